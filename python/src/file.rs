//! Files in other formats: read in place, imported, adopted and written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stridemap::OnExisting;
use stridemap_interop::npz::Packing;
use stridemap_interop::{ForeignFile, ForeignOptions, Order, gguf, npy, npz, safetensors};

use crate::error::Result;
use crate::interrupt::{check, detach};
use crate::snapshot::Snapshot;
use crate::source::dtype_of;
use crate::tensor::Tensor;
use crate::transaction::TransactionHandle;

/// An open file in another format.
#[pyclass(frozen)]
pub(crate) struct FileHandle(ForeignFile);

fn options(skip_unreadable: bool) -> ForeignOptions {
    ForeignOptions::new().skip_unreadable(skip_unreadable)
}

/// Opens a file. With `skip_unreadable`, what cannot be read is left out. `untyped` is the dtype of elements that NumPy
/// wrote as bytes.
#[pyfunction]
pub(crate) fn open_file(
    py: Python<'_>,
    path: PathBuf,
    skip_unreadable: bool,
    untyped: Option<&Bound<'_, PyAny>>,
) -> Result<FileHandle> {
    let mut options = options(skip_unreadable);
    if let Some(dtype) = untyped {
        options = options.untyped(dtype_of(dtype)?);
    }
    Ok(FileHandle(detach(py, || options.open(path))?))
}

/// Opens the bytes of a file, in a temporary copy.
#[pyfunction]
pub(crate) fn open_bytes(py: Python<'_>, bytes: &[u8]) -> Result<FileHandle> {
    let open = || {
        let failed =
            |e| stridemap::Error::io("create a temporary file (see TMPDIR) for", Path::new("bytes"), e);
        options(false).open_reader(bytes, tempfile::tempfile().map_err(failed)?, "bytes")
    };
    Ok(FileHandle(detach(py, open)?))
}

#[pymethods]
impl FileHandle {
    /// The format: "safetensors", "shard-index", "npy", "npz", "pytorch" or "gguf".
    #[getter]
    fn format(&self) -> &'static str {
        self.0.format().name()
    }

    /// Returns the names of the tensors that begin with `prefix`, in the order of the file.
    #[pyo3(signature = (prefix = ""))]
    fn names(&self, prefix: &str) -> Vec<String> {
        self.0.tensors().map(|tensor| tensor.name).filter(|name| name.starts_with(prefix)).collect()
    }

    /// Whether a name begins with `prefix`.
    fn has_prefix(&self, prefix: &str) -> bool {
        self.0.tensors().any(|tensor| tensor.name.starts_with(prefix))
    }

    /// Returns the number of tensors.
    fn tensor_count(&self) -> usize {
        self.0.tensors().count()
    }

    /// Loads a tensor. Returns `None` if there is none.
    fn find(&self, py: Python<'_>, name: &str) -> Result<Option<Tensor>> {
        self.0.contains(name).then(|| self.load(py, name)).transpose()
    }

    fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn load(&self, py: Python<'_>, name: &str) -> Result<Tensor> {
        Ok(Tensor { inner: detach(py, || self.0.load(name))?, origin: None })
    }

    /// Returns the number of the storage of each tensor. Tensors that share a storage in the file have the same.
    fn storage_ids(&self) -> BTreeMap<String, u64> {
        self.0.tensors().map(|tensor| (tensor.name, tensor.storage_id)).collect()
    }

    /// Returns the text in the file besides its tensors, which belongs to the prefix "", or that of a tensor.
    #[pyo3(signature = (scope = ""))]
    fn attributes(&self, scope: &str) -> BTreeMap<String, String> {
        if scope.is_empty() { self.0.attributes().clone() } else { self.0.attributes_of(scope) }
    }

    /// Returns the names that were left out, and why.
    fn skipped(&self) -> Vec<(String, String)> {
        self.0.skipped().iter().map(|skipped| (skipped.name.clone(), skipped.reason.to_string())).collect()
    }
}

#[pymethods]
impl TransactionHandle {
    /// Copies the tensors of a file, with a prefix before their names.
    fn import_file(&self, py: Python<'_>, file: &FileHandle, prefix: &str) -> Result<()> {
        self.with(py, |txn| file.0.import_into(txn, prefix, |_| check()).map(drop))
    }

    /// Saves headers of the tensors of a file, whose elements stay in it.
    fn adopt_file(&self, py: Python<'_>, file: &FileHandle, prefix: &str) -> Result<()> {
        self.with(py, |txn| file.0.adopt_into(txn, prefix))
    }
}

#[pymethods]
impl Snapshot {
    /// Copies the generation, or some of its tensors, to a new store.
    fn copy_to(&self, py: Python<'_>, path: PathBuf, names: Option<Vec<String>>) -> Result<()> {
        self.open_mode.detach(py, || -> stridemap::Result<()> {
            let names: Option<Vec<&str>> =
                names.as_ref().map(|names| names.iter().map(String::as_str).collect());
            self.snapshot.copy_to(path, names.as_deref(), |_| check()).map(drop)
        })
    }
}

/// Tensors and their names.
type Named<'py> = Vec<(String, PyRef<'py, Tensor>)>;

/// Writes tensors without the interpreter's lock. Ctrl-C ends reading from a remote.
fn write<R: Send>(
    py: Python<'_>,
    tensors: Named<'_>,
    act: impl FnOnce(&[(String, stridemap::Tensor)]) -> stridemap::Result<R> + Send,
) -> Result<R> {
    let inner: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.inner.clone())).collect();
    match tensors.iter().find(|(_, tensor)| tensor.is_remote()) {
        Some((_, tensor)) => tensor.detach(py, || act(&inner)),
        None => detach(py, || act(&inner)),
    }
}

fn existing(replace: bool) -> OnExisting {
    if replace { OnExisting::Replace } else { OnExisting::Refuse }
}

fn order(is_fortran: bool) -> Order {
    if is_fortran { Order::F } else { Order::C }
}

/// Writes a safetensors file, or shards and their index. Returns the paths.
#[pyfunction]
pub(crate) fn write_safetensors(
    py: Python<'_>,
    path: PathBuf,
    tensors: Named<'_>,
    metadata: BTreeMap<String, String>,
    max_shard_bytes: Option<u64>,
    replace: bool,
) -> Result<Vec<PathBuf>> {
    write(py, tensors, |tensors| {
        let mut export = safetensors::Export::new().metadata(&metadata).on_existing(existing(replace));
        if let Some(max_shard_bytes) = max_shard_bytes {
            export = export.max_shard_bytes(max_shard_bytes);
        }
        export.write(path, tensors, |_| check())
    })
}

/// Returns the bytes of a safetensors file.
#[pyfunction]
pub(crate) fn safetensors_bytes<'py>(
    py: Python<'py>,
    tensors: Named<'py>,
    metadata: BTreeMap<String, String>,
) -> Result<Bound<'py, PyBytes>> {
    let bytes = write(py, tensors, |tensors| {
        let mut bytes = Vec::new();
        safetensors::Export::new().metadata(&metadata).write_to(&mut bytes, tensors, |_| check())?;
        Ok(bytes)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// Writes a `.npy` file.
#[pyfunction]
pub(crate) fn write_npy(
    py: Python<'_>,
    path: PathBuf,
    tensor: PyRef<'_, Tensor>,
    is_fortran: bool,
    replace: bool,
) -> Result<()> {
    let export = npy::Export::new().order(order(is_fortran)).on_existing(existing(replace));
    let (inner, tensor) = (tensor.inner.clone(), &*tensor);
    tensor.detach(py, || export.write(path, &inner, |_| check()))
}

/// Writes a `.npz` file. Returns the names that had to be changed, and what they are in the file.
#[pyfunction]
pub(crate) fn write_npz(
    py: Python<'_>,
    path: PathBuf,
    tensors: Named<'_>,
    is_fortran: bool,
    compress: bool,
    replace: bool,
) -> Result<Vec<(String, String)>> {
    let packing = if compress { Packing::Deflated } else { Packing::Stored };
    let export = npz::Export::new().order(order(is_fortran)).packing(packing).on_existing(existing(replace));
    write(py, tensors, |tensors| export.write(path, tensors, |_| check()))
}

/// Writes a GGUF file. `types` are the attributes of tensors that name their types.
#[pyfunction]
pub(crate) fn write_gguf(
    py: Python<'_>,
    path: PathBuf,
    tensors: Named<'_>,
    metadata: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
    replace: bool,
) -> Result<()> {
    let export = gguf::Export::new().metadata(&metadata).types(&types).on_existing(existing(replace));
    write(py, tensors, |tensors| export.write(path, tensors, |_| check()))
}
