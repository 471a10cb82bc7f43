//! NumPy's `.npy` format: one array per file.
//!
//! ```
//! use stridemap_interop::{ForeignFile, npy};
//! use stridemap::{OnExisting, Store, Tensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
//! npy::write(dir.join("points_t.npy"), &points.t()?, OnExisting::Refuse, &mut |_| ())?;
//!
//! let store = Store::create(dir.join("points.smap"))?;
//! stridemap_interop::import(&store, dir.join("points_t.npy"), "")?;
//! assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stridemap::{OnExisting, Result, Tensor};

use super::header::{Array, Preamble, Reading, header_of};
use super::order::{Order, arranged};
use crate::FileFormat;
use crate::contents::{Contents, ForeignStorage, ForeignTensor, Form};
use crate::file::{self, RawFile};

/// Reads the header of a file with one array, and checks it against the file.
///
/// Bytes after the elements are refused, though `numpy.load` ignores them: they are part of a longer array, or
/// a second array.
pub(crate) fn read(file: &Arc<RawFile>, reading: Reading) -> Result<Contents> {
    let bad = |what| file.bad(what);
    let preamble = Preamble::parse(file.preamble()?).map_err(bad)?;
    let header = file.header(preamble.start_bytes, preamble.header_bytes, preamble.header_bytes)?;
    let text = preamble.text(header).map_err(bad)?;
    let Array { dtype, layout, length_bytes, swapped_bytes } = Array::parse(&text, reading).map_err(bad)?;
    file.check_rest(preamble.end_bytes(), length_bytes)?;
    let mut storage = ForeignStorage::range(file, preamble.end_bytes(), length_bytes);
    storage.form = Form { member: None, swapped_bytes };
    Ok(Contents {
        format: FileFormat::Npy,
        storages: vec![storage],
        tensors: vec![ForeignTensor { name: file.stem()?, dtype, layout, storage: 0 }],
        attributes: BTreeMap::new(),
        keeps_storages: false,
    })
}

/// Writes a tensor as a `.npy` file in C order: [`write_in`] with the default [`Order`].
///
/// # Errors
/// Those of [`write_in`].
pub fn write(
    path: impl AsRef<Path>,
    tensor: &Tensor,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    write_in(path, tensor, Order::C, on_existing, progress)
}

/// Writes a tensor as a `.npy` file.
///
/// A view is written as an array of its elements, in the given order. The file is written under a temporary name and
/// then renamed, so `path` never holds a partial file. A symbolic link is replaced, not followed. The file is durable
/// on return. `progress` is called with the bytes of elements written since the last call.
///
/// Types that NumPy lacks are written as in the `ml_dtypes` package, without their name. NumPy sees untyped elements
/// of one or two bytes, `V1` or `V2`, and `numpy.load(path).view(ml_dtypes.bfloat16)` restores the type.
///
/// # Errors
/// [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile), before anything is written, for `float4_e2m1fn_x2`.
/// [`ErrorKind::AlreadyExists`](stridemap::ErrorKind::AlreadyExists) with [`OnExisting::Refuse`], and if `path` is
/// not a regular file. [`ErrorKind::ReadOnly`](stridemap::ErrorKind::ReadOnly),
/// [`ErrorKind::Io`](stridemap::ErrorKind::Io), and the errors of reading the elements.
pub fn write_in(
    path: impl AsRef<Path>,
    tensor: &Tensor,
    order: Order,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let path = path.as_ref();
    let array = arranged(path, "", tensor, order)?;
    let header = header_of(&array.descr, array.is_fortran_order, tensor.size());
    file::write(path, &header, [&array.elements], on_existing, progress)
}
