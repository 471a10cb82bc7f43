//! Locks on files, and reads under them. The [registry](super::file_registry) knows which threads hold each.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, ThreadId};

use super::file_registry::{FileRegistry, HeldLock, Purpose, lock, notify_unlocked};
use crate::disk::kept::{self, Kind};
use crate::disk::{DiskFile, FileId, OwnerProcess};

impl FileRegistry {
    /// Records that the calling thread has locked a file, as its only holder or together with threads that already
    /// share the lock.
    pub(in crate::storage) fn add_lock(
        &mut self,
        id: FileId,
        purpose: Purpose,
        file: &Arc<dyn DiskFile>,
    ) -> FileLock {
        let thread = Some(thread::current().id());
        let held = self.by_file.entry(id).or_default().lock.get_or_insert_with(|| {
            // A lock to grow the file keeps all bytes unchanged until `keep_stable` says which ones stay unchanged.
            let stable_bytes = if purpose == Purpose::Change { 0 } else { u64::MAX };
            HeldLock { purpose, stable_bytes, threads: Vec::new(), file: Arc::clone(file) }
        });
        held.threads.push(thread);
        let hold = Arc::new(LockHold { id, thread: Mutex::new(thread), owner: self.owner });
        FileLock { id, purpose, owner: self.owner, own: Arc::new(Held(hold)) }
    }
}

/// A lock on a file, held until it is dropped.
///
/// Except for [`Purpose::Share`], it excludes every other lock on the file, in any process or thread.
#[derive(Debug)]
pub(crate) struct FileLock {
    id: FileId,
    purpose: Purpose,
    owner: OwnerProcess,
    own: Arc<Held>,
}

impl FileLock {
    pub(in crate::storage) fn id(&self) -> FileId {
        self.id
    }

    pub(in crate::storage) fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub(in crate::storage) fn owner(&self) -> OwnerProcess {
        self.owner
    }

    /// Returns a reference with which others can read under this lock.
    pub(in crate::storage) fn to_read(&self) -> LockRef {
        LockRef::of(&self.own)
    }

    /// Makes the calling thread the one that holds the lock, instead of the thread that took it.
    pub(in crate::storage) fn move_to_this_thread(&mut self) {
        self.own.0.move_to(Some(thread::current().id()));
    }

    /// Declares that from now on, under this lock to grow the file, only the first `stable_bytes` stay unchanged.
    /// Returns false, and declares nothing, if more bytes may be borrowed in this process. That happens only in a
    /// malformed store.
    pub(in crate::storage) fn keep_stable(&self, stable_bytes: u64) -> bool {
        if !self.owner.is_current() {
            return false;
        }
        let declare = || {
            let mut registry = lock();
            let file_use = registry.by_file.get_mut(&self.id)?;
            if file_use.regions().any(|region| region.borrowable_bytes as u64 > stable_bytes) {
                return None;
            }
            file_use.lock.as_mut()?.stable_bytes = stable_bytes;
            Some(())
        };
        kept::retry_after_release(Kind::Mapping, || declare().ok_or(()), |()| true).is_ok()
    }
}

impl Drop for FileLock {
    /// If a read under the lock continues on another thread, the file stays locked until that has ended. This thread
    /// then waits for the file like any other.
    fn drop(&mut self) {
        self.own.0.move_to(None);
    }
}

/// Refers to a lock, or to one read under it, while that lasts.
#[derive(Clone, Debug, Default)]
pub(in crate::storage) struct LockRef(Weak<Held>);

impl LockRef {
    pub(in crate::storage) fn of(held: &Arc<Held>) -> LockRef {
        LockRef(Arc::downgrade(held))
    }

    /// Keeps the file locked for a read, until the returned value is dropped. Returns `None` if the lock, or the read
    /// that this refers to, has ended, or the lock was taken by the parent of this process. A read does not make the
    /// lock last for others that begin later.
    pub(in crate::storage) fn hold(&self) -> Option<Arc<Held>> {
        let held = self.0.upgrade().filter(|held| held.0.owner.is_current())?;
        Some(Arc::new(Held(Arc::clone(&held.0))))
    }
}

/// Keeps a file locked, for a lock or for one read under it.
#[derive(Debug)]
pub(crate) struct Held(Arc<LockHold>);

/// The entry of a lock, which is shared by the lock and the reads under it.
#[derive(Debug)]
struct LockHold {
    id: FileId,
    /// The entry of the lock in the registry.
    thread: Mutex<Option<ThreadId>>,
    owner: OwnerProcess,
}

impl LockHold {
    fn move_to(&self, thread: Option<ThreadId>) {
        let mut own = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, thread);
        if before == thread || !self.owner.is_current() {
            return;
        }
        let mut registry = lock();
        let held = registry.by_file.get_mut(&self.id).and_then(|file_use| file_use.lock.as_mut());
        if let Some(entry) = held.and_then(|held| held.threads.iter_mut().find(|entry| **entry == before)) {
            *entry = thread;
        }
    }
}

impl Drop for LockHold {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        let thread = *self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut registry = lock();
        let Some(file_use) = registry.by_file.get_mut(&self.id) else { return };
        let Some(held) = &mut file_use.lock else { return };
        if let Some(own) = held.threads.iter().position(|&entry| entry == thread) {
            held.threads.swap_remove(own);
        }
        if held.threads.is_empty() {
            // Closing the file is not enough: a forked child may also have it open, even one that is about to call
            // `exec`.
            let _ = held.file.unlock();
            let held = file_use.lock.take();
            registry.remove_if_unused(self.id);
            notify_unlocked(registry);
            drop(held);
        }
    }
}
