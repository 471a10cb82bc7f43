//! Locks on mutable storages.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use send_wrapper::SendWrapper;
use stridemap::{DType, ExclusiveGuard, SharedGuard};

use crate::error::Result;
use crate::interrupt::detach;

enum Guard {
    Shared { _held: SharedGuard },
    Exclusive(ExclusiveGuard<'static>),
}

/// A lock on a mutable storage. The thread that took it has to release it.
#[pyclass(frozen)]
pub(crate) struct LockHandle(Mutex<Option<SendWrapper<Guard>>>);

impl LockHandle {
    pub(crate) fn take(py: Python<'_>, tensor: &stridemap::Tensor, exclusive: bool) -> Result<LockHandle> {
        let guard = detach(py, || -> stridemap::Result<_> {
            Ok(SendWrapper::new(if exclusive {
                let mut guard = tensor.lock_exclusive()?;
                if tensor.numel() > 0 {
                    // Refuses a storage that cannot be written through a mapping.
                    let first = tensor.as_strided([1], [1], None)?.view_dtype(DType::U8)?;
                    guard.at(&first)?.as_slice_mut::<u8>()?;
                }
                Guard::Exclusive(guard)
            } else {
                Guard::Shared { _held: tensor.lock_shared()? }
            }))
        })?;
        Ok(LockHandle(Mutex::new(Some(guard))))
    }

    fn with<R>(&self, act: impl FnOnce(&mut Option<SendWrapper<Guard>>) -> Result<R>) -> Result<R> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.as_ref().is_some_and(|guard| !guard.valid()) {
            return Err(PyRuntimeError::new_err("a lock belongs to the thread that took it").into());
        }
        act(&mut guard)
    }
}

#[pymethods]
impl LockHandle {
    /// Makes all changes of the storage durable.
    fn flush(&self, py: Python<'_>) -> Result<()> {
        self.with(|guard| match guard {
            Some(guard) => detach(py, || match &mut **guard {
                Guard::Exclusive(guard) => guard.flush(),
                Guard::Shared { .. } => Ok(()),
            }),
            None => Ok(()),
        })
    }

    /// Releases the lock. Releasing it again does nothing.
    fn release(&self) -> Result<()> {
        self.with(|guard| {
            *guard = None;
            Ok(())
        })
    }
}

impl Drop for LockHandle {
    /// On a different thread, the guard is leaked: it may be dropped only on the thread that took the lock.
    fn drop(&mut self) {
        let guard = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if guard.as_ref().is_some_and(|guard| !guard.valid()) {
            std::mem::forget(guard);
        }
    }
}
