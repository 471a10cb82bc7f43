//! Locks of mutable storages, and handles that are read under them.

use std::sync::Arc;

use super::backing::{Bytes, Storage};
use super::mutable::{LockedStorage, MutableFile};
use crate::disk::LockMode;
use crate::error::Result;
use crate::storage::map::file_lock::{FileLock, Held, LockRef};

/// How one handle of a mutable storage is read and locked.
#[derive(Clone, Debug, Default)]
pub(super) struct MutableAccess {
    /// The lock under which this handle is read, if it was made for one.
    pub(super) lock: LockRef,
    /// Whether this handle is locked even if a change of the storage was interrupted.
    pub(super) allows_interrupted: bool,
}

/// A lock under which the bytes of a mutable storage are read.
#[derive(Debug)]
pub struct ReadLock {
    /// The storage as it is read under this lock, on any thread.
    pub(crate) storage: Arc<Storage>,
    _lock: Lock,
}

#[derive(Debug)]
enum Lock {
    /// That of a guard, or of an earlier read.
    Shared {
        _hold: Arc<Held>,
    },
    Own {
        _lock: FileLock,
    },
}

impl Storage {
    /// Waits for the lock of a mutable storage. `None` for the other kinds, which have no lock.
    ///
    /// # Errors
    /// Those of [`MutableFile::lock`].
    pub(crate) fn lock(&self, mode: LockMode) -> Result<Option<LockedStorage>> {
        match &self.bytes {
            Bytes::Mutable(file, access) => file.lock(mode, access.allows_interrupted).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns a handle of a mutable storage that is locked even if a change of the storage was interrupted. `None` for
    /// the other kinds.
    pub(crate) fn allowing_interrupted(&self) -> Option<Arc<Self>> {
        match &self.bytes {
            Bytes::Mutable(file, MutableAccess { lock, .. }) => {
                Some(self.with_access(file, MutableAccess { lock: lock.clone(), allows_interrupted: true }))
            }
            _ => None,
        }
    }

    /// Returns a handle of this storage that is read under `lock` while that is held. `None` if it locks a different
    /// storage.
    pub(crate) fn under(&self, lock: &LockedStorage) -> Option<Arc<Self>> {
        match &self.bytes {
            Bytes::Mutable(file, access) if lock.is_of(file) => {
                Some(self.with_access(file, MutableAccess { lock: lock.to_read(), ..*access }))
            }
            _ => None,
        }
    }

    fn with_access(&self, file: &Arc<MutableFile>, access: MutableAccess) -> Arc<Self> {
        let bytes = Bytes::Mutable(Arc::clone(file), access);
        let Storage { ref identity, place, length_bytes, .. } = *self;
        Storage::new(identity.clone(), place, length_bytes, bytes)
    }

    /// Locks a mutable storage so that its bytes do not change while they are read. `None` for the other kinds, which
    /// have no lock.
    ///
    /// A handle that was made for a lock shares that lock while it is held.
    ///
    /// # Errors
    /// Those of [`MutableFile::lock_to_read`].
    pub(crate) fn lock_to_read(self: &Arc<Self>) -> Result<Option<ReadLock>> {
        let Bytes::Mutable(file, access) = &self.bytes else { return Ok(None) };
        let (lock, lock_ref) = match access.lock.hold() {
            Some(hold) => {
                let lock_ref = LockRef::of(&hold);
                (Lock::Shared { _hold: hold }, lock_ref)
            }
            None => {
                let own = file.lock_to_read(access.allows_interrupted)?;
                let lock_ref = own.to_read();
                (Lock::Own { _lock: own }, lock_ref)
            }
        };
        let storage = self.with_access(file, MutableAccess { lock: lock_ref, ..*access });
        Ok(Some(ReadLock { storage, _lock: lock }))
    }
}
