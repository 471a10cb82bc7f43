use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use stridemap::Snapshot;

use crate::to_candle;

/// Returns a model builder that takes its variables from a generation of a store, by name:
/// `vb.pp("encoder").pp("0").get(size, "weight")` is the tensor `encoder.0.weight`, with `prefix` before it, which
/// may be `""`. Views are found like other tensors.
///
/// Nothing is read until a variable is requested. Its elements are then [copied](to_candle) once, to `device`, and
/// converted by candle if the stored dtype is not `dtype`. On a mapped store the copy is made from the pages of the
/// file. The builder keeps the snapshot: all variables are of one generation, whatever others commit meanwhile, and
/// its files stay on disk until the builder is dropped.
///
/// A missing variable is candle's `CannotFindTensor`, with the store's message as context; one of another size is
/// `UnexpectedShape`. `contains_tensor` cannot fail: if the store's metadata cannot be read, it returns false, and
/// `get` returns the error.
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
/// let weights = stridemap_candle::var_builder(&store.snapshot(), "model.", DType::F32, &Device::Cpu);
/// let tail = weights.pp("tail").get((3, 2), "weight")?;
/// assert_eq!(tail.to_vec2::<f32>()?, [[1., 4.], [2., 5.], [3., 6.]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn var_builder(snapshot: &Snapshot, prefix: &str, dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = Generation { snapshot: snapshot.clone(), prefix: prefix.to_owned() };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

struct Generation {
    snapshot: Snapshot,
    prefix: String,
}

impl Generation {
    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl SimpleBackend for Generation {
    fn get(&self, size: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.full(name);
        let tensor = load(&self.snapshot, &name)?;
        check_size(&tensor, &name, &size)?;
        converted(&tensor, &name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.full(name);
        converted(&load(&self.snapshot, &name)?, &name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.snapshot.contains(&self.full(name)).unwrap_or(false)
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
    let msg = format!("the tensor {name:?} of the store has another size");
    Err(Error::UnexpectedShape { msg, expected: expected.clone(), got: Shape::from(tensor.size()) })
}

pub(crate) fn converted(
    tensor: &stridemap::Tensor,
    name: &str,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let converted = to_candle(tensor, device).and_then(|tensor| tensor.to_dtype(dtype));
    converted.map_err(|e| e.context(format!("the tensor {name:?} of the store")))
}
