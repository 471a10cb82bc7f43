//! Locks that any thread may release.

use std::sync::Arc;

use super::guard::GuardLock;
use super::{ExclusiveGuard, SharedGuard};
use crate::error::Result;
use crate::storage::LockedStorage;

/// The lock of a guard, without access to its elements, for languages that drop objects on any thread.
///
/// The thread that took the lock counts as its holder, whichever thread has this value: that thread is refused a second
/// lock at once, and others wait.
#[must_use = "the lock is released when this is dropped"]
pub struct HeldLock(Held);

enum Held {
    Shared { _lock: Arc<LockedStorage> },
    Exclusive(GuardLock<'static>),
}

impl From<SharedGuard> for HeldLock {
    fn from(guard: SharedGuard) -> Self {
        HeldLock(Held::Shared { _lock: guard.storage })
    }
}

impl From<ExclusiveGuard<'static>> for HeldLock {
    fn from(guard: ExclusiveGuard<'static>) -> Self {
        HeldLock(Held::Exclusive(guard.storage))
    }
}

impl HeldLock {
    /// Says that what was to be done under the lock has failed: if a change of the storage was interrupted before, that
    /// stays so.
    pub fn abandon(&mut self) {
        if let Held::Exclusive(lock) = &mut self.0 {
            lock.note_outcome(false);
        }
    }

    /// Makes all changes of the storage durable, as [`ExclusiveGuard::flush`] does. Does nothing under a shared lock.
    ///
    /// # Errors
    /// `Io`, `Poisoned` and `Stale`, as for [`ExclusiveGuard::flush`].
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.0 {
            Held::Shared { .. } => Ok(()),
            Held::Exclusive(lock) => lock.sync(),
        }
    }
}
