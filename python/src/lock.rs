//! Locks on mutable storages.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use stridemap::{DType, HeldLock};

use crate::error::Result;
use crate::interrupt::detach;
use crate::tensor::Tensor;

/// A lock on a mutable storage, until it is released. Any thread may release it: Python drops objects on any thread.
#[pyclass(frozen)]
pub(crate) struct LockHandle {
    held: Mutex<Option<HeldLock>>,
    /// Whether a change of the storage was interrupted before.
    #[pyo3(get)]
    was_interrupted: bool,
}

impl LockHandle {
    pub(crate) fn take(py: Python<'_>, tensor: &Tensor, exclusive: bool) -> Result<LockHandle> {
        let (held, was_interrupted) = tensor.detach(py, || -> stridemap::Result<_> {
            let tensor = &tensor.inner;
            Ok(if exclusive {
                let mut guard = tensor.lock_exclusive()?;
                let was_interrupted = guard.was_interrupted();
                if tensor.numel() > 0 {
                    // Refuses a storage that cannot be written through a mapping. Marks the storage as being changed:
                    // the array is written through a mapping of its own.
                    let first = tensor.as_strided([1], [1], None)?.view_dtype(DType::U8)?;
                    guard.at(&first)?.as_slice_mut::<u8>()?;
                }
                (HeldLock::from(guard), was_interrupted)
            } else {
                let guard = tensor.lock_shared()?;
                let was_interrupted = guard.was_interrupted();
                (guard.into(), was_interrupted)
            })
        })?;
        Ok(LockHandle { held: Mutex::new(Some(held)), was_interrupted })
    }
}

#[pymethods]
impl LockHandle {
    /// Makes all changes of the storage durable.
    fn flush(&self, py: Python<'_>) -> Result<()> {
        detach(py, || match &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(held) => held.flush(),
            None => Ok(()),
        })
    }

    /// Releases the lock. If a change of the storage was interrupted before, that stays so.
    fn abandon(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(mut held) = self.held.lock().unwrap_or_else(PoisonError::into_inner).take() {
                held.abandon();
            }
        });
    }

    /// Releases the lock. Releasing it again does nothing.
    fn release(&self, py: Python<'_>) {
        py.detach(|| *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None);
    }
}

impl Drop for LockHandle {
    /// Releases the lock, and warns if nothing else has.
    fn drop(&mut self) {
        if self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take().is_none() {
            return;
        }
        // If the interpreter is ending, there is no one to warn.
        Python::try_attach(|py| {
            let pending = PyErr::take(py);
            let message =
                c"a lock on a mutable tensor was dropped before it was released; use it in a with block";
            if let Err(e) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), message, 1) {
                e.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}
