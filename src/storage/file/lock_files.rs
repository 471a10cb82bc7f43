//! The open files by which a mutable storage is locked, kept from one lock to the next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::in_place::InPlaceFile;
use crate::disk::kept::{self, Keeper, KeptQuota, Kind};
use crate::disk::{DiskFile, ForkCheck, LockMode};
use crate::error::Result;

/// The files of one storage, open to be locked.
///
/// A lock belongs to the open file, not to the process. Within a process, the registry of files lets only one lock of a
/// file exist, so one open file may be locked again and again. But a child that was forked meanwhile shares the file, and
/// would keep the lock of a parent that is killed. So after a fork the file is opened anew, and in between two locks
/// nothing else changes: the same calls lock the same inode.
///
/// A file is kept only where an open file is as good as a name: see [`DiskFile::keeps_locks`].
#[derive(Debug, Default)]
pub(super) struct LockFiles {
    /// Open to read, after a fork. Before that, it is the file that was loaded.
    shared: Mutex<Option<Kept>>,
    /// Open to write.
    exclusive: Mutex<Option<Kept>>,
    is_registered: AtomicBool,
}

#[derive(Debug)]
struct Kept {
    file: Arc<dyn DiskFile>,
    forks: ForkCheck,
    _quota: KeptQuota,
}

/// An open file that is about to be locked, or is locked.
#[derive(Debug)]
pub(super) struct ToLock {
    pub(super) file: Arc<dyn DiskFile>,
    /// Created before the file was opened. `None` for a file that was kept.
    opened: Option<ForkCheck>,
}

impl ToLock {
    /// Whether the file was open before.
    pub(super) fn is_kept(&self) -> bool {
        self.opened.is_none()
    }
}

impl LockFiles {
    fn kept(&self, mode: LockMode) -> MutexGuard<'_, Option<Kept>> {
        let kept = match mode {
            LockMode::Shared => &self.shared,
            LockMode::Exclusive => &self.exclusive,
        };
        kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file of the storage to lock: one that is kept, or one that is opened by its name. The caller has checked
    /// that this process loaded the storage.
    ///
    /// # Errors
    /// Those of [`InPlaceFile::open_to_write`], for an exclusive lock.
    pub(super) fn to_lock(self: &Arc<Self>, in_place: &InPlaceFile, mode: LockMode) -> Result<ToLock> {
        let loaded = &in_place.file;
        if mode == LockMode::Exclusive {
            in_place.check_poison()?;
        }
        if mode == LockMode::Shared && !in_place.forks.may_have_forked() && loaded.keeps_locks() {
            return Ok(ToLock { file: Arc::clone(loaded), opened: None });
        }
        let outdated = self.kept(mode).take_if(|kept| kept.forks.may_have_forked());
        drop(outdated);
        if let Some(kept) = &*self.kept(mode) {
            return Ok(ToLock { file: Arc::clone(&kept.file), opened: None });
        }
        let opened = Some(ForkCheck::begin());
        if mode == LockMode::Exclusive {
            return Ok(ToLock { file: in_place.open_to_write()?, opened });
        }
        // A shared lock is for reading the file that was loaded, even if it has lost its name since.
        let Some(file) = in_place.open_same() else {
            return Ok(ToLock { file: Arc::clone(loaded), opened: None });
        };
        let to_lock = ToLock { file, opened };
        self.keep(mode, &to_lock);
        Ok(to_lock)
    }

    /// Keeps a file for the next lock of this mode, if it was opened for this one. The caller has checked that it is the
    /// file that was loaded.
    pub(super) fn keep(self: &Arc<Self>, mode: LockMode, ToLock { file, opened }: &ToLock) {
        let Some(forks) = opened.filter(|_| file.keeps_locks()) else { return };
        // Before the mutex is locked: to take a quota may release what others keep.
        let Some(quota) = KeptQuota::of_file() else { return };
        if !self.is_registered.swap(true, Ordering::Relaxed) {
            kept::register(self);
        }
        let before = self.kept(mode).replace(Kept { file: Arc::clone(file), forks, _quota: quota });
        drop(before);
    }
}

impl Keeper for LockFiles {
    fn release(&self, kind: Kind) -> bool {
        if kind != Kind::File {
            return false;
        }
        let released = [LockMode::Shared, LockMode::Exclusive].map(|mode| self.kept(mode).take());
        released.iter().any(Option::is_some)
    }
}
