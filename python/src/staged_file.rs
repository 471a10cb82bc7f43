//! Files that several processes fill before a transaction commits them.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stridemap::import;

use crate::error::Result;

/// A file that is deleted unless a transaction commits it.
#[pyclass(frozen)]
pub(crate) struct StagedFile {
    file: Mutex<Option<import::StagedFile>>,
    path: PathBuf,
}

impl StagedFile {
    pub(crate) fn new(file: import::StagedFile) -> Result<StagedFile> {
        let failed = |e| stridemap::Error::io("find the working directory for", file.path(), e);
        let path = std::path::absolute(file.path()).map_err(failed)?;
        Ok(StagedFile { file: Mutex::new(Some(file)), path })
    }

    /// Returns the file, for a transaction.
    pub(crate) fn take(&self) -> Result<import::StagedFile> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        file.ok_or_else(|| PyValueError::new_err("the file was staged or removed before").into())
    }
}

#[pymethods]
impl StagedFile {
    /// The absolute path, for other processes.
    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the file, unless a transaction has it.
    fn remove(&self, py: Python<'_>) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(file));
    }
}
