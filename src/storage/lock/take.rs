//! Waits for the lock of a file. `flock` excludes other processes. The kernel does not distinguish the threads of one
//! process, so this module does.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::lock_queue::{self, Turn};
use super::lock_wait::{LockWait, WaitReports};
use crate::disk::{DiskFile, FileId, LockMode, step};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::storage::map::file_lock::FileLock;
use crate::storage::map::file_registry::{self, Purpose};

impl FileLock {
    /// Locks `file`, waiting at most the timeout of `wait`, in the order in which locks were requested. A thread that
    /// already shares the lock shares it once more without waiting.
    ///
    /// # Errors
    /// `Busy` after the timeout, or at once if this thread itself holds a lock that excludes this one; `Corrupt` if
    /// this process maps the file as a storage of a different kind.
    pub(in crate::storage) fn take(
        file: &Arc<dyn DiskFile>,
        id: FileId,
        purpose: Purpose,
        (path, wait): (&Path, LockWait),
    ) -> Result<FileLock> {
        let busy = |why: &str| Error::new(ErrorKind::Busy, format!("{}: {why}", path.display()));
        // `None` if the end of the timeout cannot be represented.
        let deadline = Instant::now().checked_add(wait.timeout);
        let mut reports = WaitReports::begin(wait);
        let mut turn: Option<Turn> = None;
        let may_try =
            |turn: &Option<Turn>| turn.is_some() || lock_queue::is_empty(&**file, id, purpose.mode());
        let mut registry = file_registry::lock_without_conflict(id, purpose, path)?;
        let lock = loop {
            if registry.file(id).conflict_with_lock(purpose).is_some() {
                drop(registry);
                registry = file_registry::lock_without_conflict(id, purpose, path)?;
            }
            let is_another_thread = match registry.file(id).held_lock() {
                Some((Purpose::Share, is_own)) if purpose == Purpose::Share && (is_own || may_try(&turn)) => {
                    break registry.add_lock(id, purpose, file);
                }
                Some((held, true)) => return Err(busy(held_by_this_thread(held))),
                Some((_, false)) => true,
                None => {
                    if may_try(&turn) && try_lock(&**file, purpose, path)? {
                        break registry.add_lock(id, purpose, file);
                    }
                    false
                }
            };
            let Some(turn) = &mut turn else {
                drop(registry);
                turn.insert(Turn::join(file, id, purpose.mode(), wait.timeout)).wait();
                registry = file_registry::lock();
                continue;
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                drop(registry);
                return Err(busy(&held_by_another(file, purpose, is_another_thread, wait)));
            }
            if reports.is_due() {
                drop(registry);
                reports.send(file);
                registry = file_registry::lock();
                continue;
            }
            let pause = turn.pause();
            if pause.is_zero() {
                drop(registry);
                turn.wait();
                registry = file_registry::lock();
                continue;
            }
            // Another thread notifies this one. Another process cannot, so the lock is tried again after a pause.
            let pause = (!is_another_thread).then_some(pause);
            registry =
                file_registry::wait(registry, left.into_iter().chain(pause).chain(reports.left()).min());
        };
        drop(registry);
        drop(turn);
        Ok(lock)
    }

    /// Locks `file` exclusively if it is free, whether or not others wait for it. Otherwise returns `None`.
    ///
    /// # Errors
    /// `Corrupt` as for [`take`](Self::take); `Io`.
    pub(in crate::storage) fn try_take(
        file: &Arc<dyn DiskFile>,
        id: FileId,
        purpose: Purpose,
        path: &Path,
    ) -> Result<Option<FileLock>> {
        let mut registry = file_registry::lock_without_conflict(id, purpose, path)?;
        if registry.file(id).held_lock().is_some() {
            return Ok(None);
        }
        Ok(try_lock(&**file, purpose, path)?.then(|| registry.add_lock(id, purpose, file)))
    }

    /// Calls `read` under the shared lock of `file`, if that is free or this process has it. Otherwise returns `None`.
    ///
    /// The registry is locked meanwhile. So no other thread finds the file locked, which would refuse it a lock that it does
    /// not wait for.
    ///
    /// # Errors
    /// `Io`; those of `read`.
    pub(in crate::storage) fn read_unless_locked<T>(
        file: &Arc<dyn DiskFile>,
        path: &Path,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let id = file.stat().doing("examine storage", path)?.id();
        let registry = file_registry::lock();
        match registry.file(id).held_lock() {
            Some((Purpose::Share, _)) => return read().map(Some),
            Some((Purpose::Change | Purpose::Grow, _)) => return Ok(None),
            None => {}
        }
        if !file.try_lock(LockMode::Shared).doing("lock storage", path)? {
            return Ok(None);
        }
        let read = read();
        file.unlock().doing("lock storage", path)?;
        read.map(Some)
    }
}

fn try_lock(file: &dyn DiskFile, purpose: Purpose, path: &Path) -> Result<bool> {
    step!("lock-storage", file.try_lock(purpose.mode())).doing("lock storage", path)
}

fn held_by_this_thread(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Share => "this thread holds a shared guard of the storage; drop it first",
        Purpose::Change => {
            "this thread holds an exclusive guard of the storage; use that guard, or drop it first"
        }
        Purpose::Grow => {
            "this thread has an appender for the storage, or a transaction that has appended to it; drop the appender, \
             or commit or drop the transaction, first"
        }
    }
}

/// Describes the holder of the lock. Finding a process reads every lock of the system, so the registry must not be
/// locked during this call.
fn held_by_another(
    file: &Arc<dyn DiskFile>,
    purpose: Purpose,
    is_another_thread: bool,
    wait: LockWait,
) -> String {
    let holder = match is_another_thread {
        true => "another thread of this process".to_owned(),
        false => match file.lock_holders().first() {
            Some(process) => format!("process {process}"),
            None => "another process".to_owned(),
        },
    };
    let what = match purpose {
        Purpose::Grow => "is appending to the storage, or compacting it",
        Purpose::Share | Purpose::Change => "holds a guard of the storage",
    };
    format!("{holder} {what}; gave up after {:?}; try again when it is done", wait.timeout)
}
