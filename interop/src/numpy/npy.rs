//! NumPy's `.npy` format: one array per file.
//!
//! ```
//! use stridemap_interop::{ForeignFile, npy};
//! use stridemap::{Store, Tensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
//! npy::Export::new().write(dir.join("points_t.npy"), &points.t()?, |_| ())?;
//!
//! let store = Store::create(dir.join("points.smap"))?;
//! stridemap_interop::import(&store, dir.join("points_t.npy"), "")?;
//! assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

#[cfg(doc)]
use stridemap::ErrorKind;
use stridemap::{OnExisting, Result, Tensor};

use super::array::{Array, budget};
use super::dtype::ParsedDescr;
use super::header::{ArrayHeader, MAX_HEADER_BYTES, Preamble, header_of};
use crate::contents::Contents;
use crate::file::{self, RawFile};
use crate::foreign_storage::ForeignStorage;
use crate::{FileFormat, ForeignOptions};

/// Reads the header of a file with one array, and checks it against the file.
///
/// Bytes after the elements are refused, though `numpy.load` ignores them, because they can be part of a longer array,
/// or a second array.
pub(crate) fn read(file: &Arc<RawFile>, options: ForeignOptions) -> Result<Contents> {
    let bad = |what| file.bad(what);
    let (array, start_bytes) = header(file, options)?;
    file.check_rest(start_bytes, array.length_bytes)?;
    let name = file.stem().map_err(|what| file.bad(what))?;
    let mut contents = Contents::new(FileFormat::Npy);
    let storage = ForeignStorage::of_range(file, start_bytes, array.length_bytes);
    array.add_to(&mut contents, name, storage, bad);
    Ok(contents)
}

/// Reads the header. Returns the array, and the offset of its elements.
fn header(file: &RawFile, options: ForeignOptions) -> Result<(Array, u64)> {
    let bad = |what| file.bad(what);
    let preamble = Preamble::parse(file.preamble()?).map_err(bad)?;
    let header = file.header(preamble.start_bytes, preamble.header_bytes, MAX_HEADER_BYTES)?;
    let text = preamble.text(header).map_err(bad)?;
    let header = ArrayHeader::parse(&text).map_err(bad)?;
    let array = Array::of(&header, options, &mut budget(file)).map_err(bad)?;
    Ok((array, preamble.elements_offset()))
}

/// Returns the length of the file according to its header, which is complete.
pub(crate) fn stated_bytes(file: &RawFile, options: ForeignOptions) -> Result<u64> {
    let (array, start_bytes) = header(file, options)?;
    Ok(start_bytes.saturating_add(array.length_bytes))
}

/// Returns where the header ends, if the first bytes of a file are there.
pub(crate) fn header_end_bytes(file: &RawFile) -> Result<u64> {
    let preamble = Preamble::parse(file.preamble()?).map_err(|what| file.bad(what))?;
    Ok(preamble.elements_offset())
}

/// The order in which elements are written, with NumPy's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Row-major: the last index changes fastest.
    #[default]
    C,
    /// Column-major: the first index changes fastest. A tensor in this order in memory is written without reordering.
    F,
}

/// Options for writing a `.npy` file. By default it is row-major, and replaces an existing file.
///
/// ```
/// use stridemap::{OnExisting, Tensor};
/// use stridemap_interop::{ForeignFile, Order, npy};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("points.npy");
/// let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
/// let mut written_bytes = 0;
/// let export = npy::Export::new().order(Order::F).on_existing(OnExisting::Refuse);
/// export.write(&path, &points, |bytes| written_bytes += bytes)?;
/// assert_eq!(written_bytes, 24);
/// assert_eq!(ForeignFile::open(&path)?.load("points")?.stride(), [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Export {
    order: Order,
    on_existing: OnExisting,
}

impl Export {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Export::default()
    }

    /// Sets the order of the elements.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets whether an existing file may be replaced.
    #[must_use]
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.on_existing = on_existing;
        self
    }

    /// Writes a tensor as a `.npy` file. A view is written as an array of its elements.
    ///
    /// The file is written under a temporary name and then renamed, so `path` never holds a partial file, and the
    /// tensor may come from the file that is replaced. A symbolic link is replaced, not followed. The file is durable
    /// on return. `progress` is called with the bytes of elements written since the last call.
    ///
    /// Types that NumPy lacks are written as in the `ml_dtypes` package, without their name. NumPy sees untyped
    /// elements of one or two bytes, `V1` or `V2`, and `numpy.load(path).view(ml_dtypes.bfloat16)` restores the type.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, for `float4_e2m1fn_x2`. [`ErrorKind::AlreadyExists`] with
    /// [`OnExisting::Refuse`], and if `path` is not a regular file. [`ErrorKind::ReadOnly`], [`ErrorKind::Io`], and
    /// the errors of reading the elements.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        tensor: &Tensor,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let path = path.as_ref();
        let array = arrange(path, "", tensor, self.order)?;
        file::write(path, &array.header, [&array.elements], self.on_existing, &mut progress)
    }

    /// Writes a tensor to any writer, such as a pipe, in one pass and in pieces.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::npy;
    /// let mut bytes = Vec::new();
    /// npy::Export::new().write_to(&mut bytes, &Tensor::from_vec(vec![1u8, 2], &[2])?, |_| ())?;
    /// assert!(bytes.starts_with(b"\x93NUMPY") && bytes.ends_with(&[1, 2]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, as for [`write`](Self::write); [`ErrorKind::Io`], whose
    /// source is the error of the writer; the errors of reading the elements.
    pub fn write_to(
        &self,
        mut writer: impl Write,
        tensor: &Tensor,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let path = Path::new(file::OUTPUT);
        let array = arrange(path, "", tensor, self.order)?;
        file::write_to(path, &mut writer, &array.header, [&array.elements], &mut progress)
    }
}

/// An array to write: its header, and a view whose elements, read in row-major order, are in the order that the header
/// states.
pub(super) struct Arranged {
    pub(super) header: Vec<u8>,
    pub(super) elements: Tensor,
}

/// Arranges a tensor for writing. If the dtype cannot be written, the error message begins with `what`.
pub(super) fn arrange(path: &Path, what: &str, tensor: &Tensor, order: Order) -> Result<Arranged> {
    let dtype = tensor.dtype();
    let descr = ParsedDescr::descr_of(dtype).ok_or_else(|| {
        file::unwritable(
            path,
            format!("{what}NumPy cannot hold {dtype}, which packs two elements into a byte; write a view of it as uint8"),
        )
    })?;
    // With at most one dimension both orders are the same, and NumPy calls them C.
    let is_fortran_order = order == Order::F && tensor.ndim() > 1;
    let elements = if is_fortran_order { tensor.permute((0..tensor.ndim()).rev())? } else { tensor.clone() };
    Ok(Arranged { header: header_of(&descr, is_fortran_order, tensor.size()), elements })
}
