//! A generation of a store, as a mapping of names to tensors.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use stridemap::{StorageKind, Store, TensorInfo};

use crate::error::Result;
use crate::interrupt::apart;
use crate::origin::OpenMode;
use crate::remote::Progress;
use crate::store::{microseconds, origin};
use crate::tensor::Tensor;

/// How many storages that are not mapped are read ahead at a time. Each has a file open, and a process may have 1024.
const MAX_OPEN_STORAGES: usize = 128;

/// The name, the dtype, the size and the number of bytes of a tensor.
type Listed = (String, &'static str, Vec<usize>, usize);

/// One generation of a store, which never changes.
#[pyclass(frozen, module = "stridemap")]
pub(crate) struct Snapshot {
    pub(crate) snapshot: stridemap::Snapshot,
    pub(crate) store: Store,
    pub(crate) open_mode: OpenMode,
}

impl Snapshot {
    /// Loads some tensors, or all, one after another.
    fn each_loaded(
        &self,
        names: Option<&[String]>,
        mut visit: impl FnMut(stridemap::Tensor) -> stridemap::Result<()>,
    ) -> stridemap::Result<()> {
        match names {
            Some(names) => names.iter().try_for_each(|name| visit(self.snapshot.load(name)?)),
            None => self.snapshot.iter_loaded("")?.try_for_each(|entry| visit(entry?.1)),
        }
    }
}

#[pymethods]
impl Snapshot {
    #[getter]
    fn generation(&self) -> u64 {
        self.snapshot.generation()
    }

    /// When the generation was published, in microseconds since 1970.
    #[getter]
    fn time(&self) -> i128 {
        microseconds(self.snapshot.time())
    }

    /// What the user said about the generation.
    #[getter]
    fn message(&self) -> Option<&str> {
        self.snapshot.message()
    }

    /// Returns the ids of the sealed storages.
    fn sealed_storages(&self, py: Python<'_>) -> Result<BTreeSet<u64>> {
        self.open_mode.detach(py, || -> stridemap::Result<_> {
            let mut sealed = BTreeSet::new();
            for storage in self.snapshot.storages() {
                let storage = storage?;
                sealed.extend((storage.kind == StorageKind::Sealed).then_some(storage.id));
            }
            Ok(sealed)
        })
    }

    /// Returns the files with the bytes of the storages. Those of adopted files are outside the store.
    fn files(&self, py: Python<'_>) -> Result<BTreeSet<PathBuf>> {
        self.open_mode.detach(py, || -> stridemap::Result<_> {
            self.snapshot.storages().map(|storage| storage.map(|storage| storage.file)).collect()
        })
    }

    #[getter]
    fn _origin(&self) -> (OsString, String, OpenMode, u64) {
        (self.store.path().into(), self.store.uuid(), self.open_mode.clone(), self.snapshot.generation())
    }

    #[pyo3(signature = (prefix = ""))]
    fn names(&self, py: Python<'_>, prefix: &str) -> Result<Vec<String>> {
        self.open_mode.detach(py, || names(&self.snapshot, prefix))
    }

    fn has_prefix(&self, py: Python<'_>, prefix: &str) -> Result<bool> {
        self.open_mode.detach(py, || has_prefix(&self.snapshot, prefix))
    }

    fn tensor_count(&self, py: Python<'_>) -> Result<u64> {
        self.open_mode.detach(py, || self.snapshot.tensor_count())
    }

    fn find(&self, py: Python<'_>, name: &str) -> Result<Option<Tensor>> {
        let Some(inner) = self.open_mode.detach(py, || find(&self.snapshot, name))? else { return Ok(None) };
        let origin = origin(&self.store, &self.open_mode, self.snapshot.generation(), name);
        Ok(Some(Tensor { inner, origin: Some(Arc::new(origin)) }))
    }

    /// Returns the name, the dtype, the size and the number of bytes of each tensor, without opening its storage.
    fn tensors(&self, py: Python<'_>) -> Result<Vec<Listed>> {
        self.open_mode.detach(py, || -> stridemap::Result<_> {
            let listed = |info: TensorInfo| {
                let header = &info.header;
                (info.name, header.dtype().name(), header.size().to_vec(), header.nbytes())
            };
            self.snapshot.iter_tensors("")?.map(|info| info.map(listed)).collect()
        })
    }

    fn load(&self, py: Python<'_>, name: &str) -> Result<Tensor> {
        let inner = self.open_mode.detach(py, || self.snapshot.load(name))?;
        let origin = origin(&self.store, &self.open_mode, self.snapshot.generation(), name);
        Ok(Tensor { inner, origin: Some(Arc::new(origin)) })
    }

    /// Reads the elements of some tensors, or of all, into the page cache.
    fn prefetch(
        &self,
        py: Python<'_>,
        names: Option<Vec<String>>,
        progress: Option<Py<PyAny>>,
    ) -> Result<()> {
        let progress = Progress::new(progress.as_ref());
        apart(
            py,
            |py| progress.tick(py),
            |_| -> stridemap::Result<_> {
                let nbytes = |info: TensorInfo| info.header.nbytes() as u64;
                let mut total_bytes = 0u64;
                match &names {
                    None => {
                        for info in self.snapshot.iter_tensors("")? {
                            total_bytes = total_bytes.saturating_add(nbytes(info?));
                        }
                    }
                    // The name itself comes before longer ones. One that does not exist is refused when it is loaded.
                    Some(names) => {
                        for name in names {
                            let first = self.snapshot.iter_tensors(name)?.next().transpose()?;
                            total_bytes = total_bytes.saturating_add(first.map_or(0, nbytes));
                        }
                    }
                }
                let mut advance = progress.advance(total_bytes);
                let (mut tensors, mut storages) = (Vec::new(), HashSet::new());
                self.each_loaded(names.as_deref(), |tensor| {
                    storages.insert(tensor.storage_id());
                    tensors.push(tensor);
                    if self.open_mode.mapped || storages.len() < MAX_OPEN_STORAGES {
                        return Ok(());
                    }
                    storages.clear();
                    stridemap::Tensor::prefetch_all(&std::mem::take(&mut tensors), &mut advance)
                })?;
                stridemap::Tensor::prefetch_all(&tensors, &mut advance)
            },
        )
    }

    fn contains(&self, py: Python<'_>, name: &str) -> Result<bool> {
        self.open_mode.detach(py, || self.snapshot.contains(name))
    }

    fn attributes(&self, scope: &str) -> BTreeMap<String, String> {
        self.snapshot.attributes(scope)
    }

    /// Returns the names that were added, changed and removed since an earlier snapshot.
    fn changes_since(
        &self,
        py: Python<'_>,
        earlier: &Snapshot,
    ) -> Result<(Vec<String>, Vec<String>, Vec<String>)> {
        let changes = self.open_mode.detach(py, || self.snapshot.changes_since(&earlier.snapshot))?;
        Ok((changes.added, changes.changed, changes.removed))
    }
}

/// Returns the names of a generation that begin with `prefix`.
pub(crate) fn names(snapshot: &stridemap::Snapshot, prefix: &str) -> stridemap::Result<Vec<String>> {
    snapshot.iter_tensors(prefix)?.map(|info| Ok(info?.name)).collect()
}

/// Whether a name of a generation begins with `prefix`.
pub(crate) fn has_prefix(snapshot: &stridemap::Snapshot, prefix: &str) -> stridemap::Result<bool> {
    Ok(snapshot.iter_tensors(prefix)?.next().transpose()?.is_some())
}

/// Loads a tensor of a generation, if it has one with this name.
pub(crate) fn find(
    snapshot: &stridemap::Snapshot,
    name: &str,
) -> stridemap::Result<Option<stridemap::Tensor>> {
    snapshot.contains(name)?.then(|| snapshot.load(name)).transpose()
}
