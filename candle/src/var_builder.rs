//! A candle `VarBuilder` that reads its variables from a store.

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use stridemap::Snapshot;

use crate::to_candle;

/// Returns a `VarBuilder` whose variables are the tensors of a snapshot, by name. For example,
/// `vb.pp("encoder").pp("0").get(size, "weight")` loads the tensor `encoder.0.weight`. `prefix` is put before every
/// name, and may be `""`. Variables can be views.
///
/// Nothing is read until a variable is requested. Its elements are then [copied](to_candle) to `device`, and converted
/// by candle if the stored dtype is not `dtype`. On a mapped store, the copy is made from the mapped pages of the file.
/// The builder keeps the snapshot, so all variables belong to one generation, whatever is committed in the meantime,
/// and the files of that generation stay on disk until the builder is dropped.
///
/// If the model is on a disk and all variables will be requested, [read it ahead](stridemap::Tensor::prefetch_all) first:
/// several threads read it in the order of the disk.
///
/// A missing variable fails with candle's `CannotFindTensor`, with the store's message as context. A variable of a
/// different size fails with `UnexpectedShape`. `contains_tensor` cannot fail: if the store's metadata cannot be read,
/// it returns false, and `get` returns the error.
///
/// ```
/// use candle_core::{DType, Device};
/// use stridemap::Store;
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("model.smap"))?;
/// store.save("model.head.weight", &[[1f32, 2., 3.], [4., 5., 6.]])?;
/// store.save_view("model.tail.weight", &store.load("model.head.weight")?.t()?)?;
///
/// let snapshot = store.snapshot();
/// let model = snapshot.iter_loaded("model.")?.map(|entry| Ok(entry?.1)).collect::<stridemap::Result<Vec<_>>>()?;
/// stridemap::Tensor::prefetch_all(&model, |_| ())?;
/// let weights = stridemap_candle::var_builder(&snapshot, "model.", DType::F32, &Device::Cpu);
/// let tail = weights.pp("tail").get((3, 2), "weight")?;
/// assert_eq!(tail.to_vec2::<f32>()?, [[1., 4.], [2., 5.], [3., 6.]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn var_builder(snapshot: &Snapshot, prefix: &str, dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = SnapshotBackend { snapshot: snapshot.clone(), prefix: prefix.to_owned() };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

struct SnapshotBackend {
    snapshot: Snapshot,
    prefix: String,
}

impl SnapshotBackend {
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl SimpleBackend for SnapshotBackend {
    fn get(&self, size: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.full_name(name);
        let tensor = load(&self.snapshot, &name)?;
        check_size(&tensor, &name, &size)?;
        convert(&tensor, &name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.full_name(name);
        convert(&load(&self.snapshot, &name)?, &name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.snapshot.contains(&self.full_name(name)).unwrap_or(false)
    }
}

pub(crate) fn load(snapshot: &Snapshot, name: &str) -> Result<stridemap::Tensor> {
    snapshot.load(name).map_err(|e| match e.kind() {
        stridemap::ErrorKind::NameNotFound => Error::CannotFindTensor { path: name.to_owned() }.context(e),
        _ => Error::wrap(e),
    })
}

pub(crate) fn check_size(tensor: &stridemap::Tensor, name: &str, expected: &Shape) -> Result<()> {
    if tensor.size() == expected.dims() {
        return Ok(());
    }
    let msg = format!("tensor {name:?} in the store has a different size");
    Err(Error::UnexpectedShape { msg, expected: expected.clone(), got: Shape::from(tensor.size()) })
}

pub(crate) fn convert(
    tensor: &stridemap::Tensor,
    name: &str,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let converted = to_candle(tensor, device).and_then(|tensor| tensor.to_dtype(dtype));
    converted.map_err(|e| e.context(format!("tensor {name:?} in the store")))
}
