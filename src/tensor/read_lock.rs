//! The lock under which the elements of a mutable tensor are read.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use super::Tensor;
use crate::error::{Context, Result};
use crate::storage::{LockedStorage, ReadLock};

/// A tensor whose elements no guard changes while this exists. Its views can be read on any thread.
pub(super) struct Steady<'a> {
    tensor: Cow<'a, Tensor>,
    /// `None` if no lock is needed, or the caller has it.
    lock: Option<ReadLock>,
}

impl Tensor {
    /// Locks the storage of a mutable tensor, shared, until the returned value is dropped. Everything that turns
    /// elements into bytes calls this first, once for all of the elements. Does nothing for other kinds of storages.
    ///
    /// # Errors
    /// `Busy` after the lock timeout, or at once if this thread holds an exclusive guard of the storage; `Stale`; `Io`.
    pub(super) fn steady(&self) -> Result<Steady<'_>> {
        let lock = match self.numel() {
            0 => None,
            _ => self.storage().lock_to_read().context("read")?,
        };
        let tensor = match &lock {
            Some(lock) if !Arc::ptr_eq(&lock.storage, self.storage()) => {
                Cow::Owned(self.on_storage(&lock.storage))
            }
            _ => Cow::Borrowed(self),
        };
        Ok(Steady { tensor, lock })
    }

    /// Like [`steady`](Self::steady), for a thread that holds `lock`, which may be that of the same storage.
    pub(super) fn steady_beside(&self, lock: &LockedStorage) -> Result<Steady<'_>> {
        match self.storage().under(lock) {
            Some(storage) => Ok(Steady { tensor: Cow::Owned(self.on_storage(&storage)), lock: None }),
            None => self.steady(),
        }
    }

    /// Returns the tensor on a handle of its storage that is read under `lock` while that is held.
    pub(super) fn under(&self, lock: &LockedStorage) -> Tensor {
        self.storage().under(lock).map_or_else(|| self.clone(), |storage| self.on_storage(&storage))
    }
}

impl Steady<'_> {
    pub(super) fn into_lock(self) -> Option<ReadLock> {
        self.lock
    }
}

impl Deref for Steady<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}
