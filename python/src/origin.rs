//! Where tensors come from.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::interrupt::{apart, detach};

/// How a store was opened: whether it is mapped, whether it is writable (not with mode "r"), which external files it
/// opens, whether it is read in place from a remote, and whether elements are verified when they are first read.
#[derive(Clone, IntoPyObject)]
pub(crate) struct OpenMode {
    pub(crate) mapped: bool,
    pub(crate) writable: bool,
    pub(crate) external: String,
    pub(crate) remote: bool,
    pub(crate) verify: bool,
}

impl OpenMode {
    /// Acts without the interpreter's lock. Ctrl-C ends requests to a remote.
    pub(crate) fn detach<R: Send, E: Into<Error>>(
        &self,
        py: Python<'_>,
        act: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R> {
        match self.remote {
            true => apart(py, |_| Ok(()), |_| act()),
            false => detach(py, act),
        }
    }
}

/// Where a tensor was loaded from.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) store: PathBuf,
    pub(crate) uuid: String,
    pub(crate) open_mode: OpenMode,
    pub(crate) generation: u64,
    pub(crate) name: String,
}
