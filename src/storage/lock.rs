//! Locks on files that are changed in place, or grow: between processes by `flock`, and within this one by a registry,
//! because the kernel does not tell the threads of a process apart.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use stridemap_format::Rule;

use super::mapping::{is_mapped_live, is_mapped_sealed, lent_bytes};
use super::queue::Turn;
use crate::disk::{Disk, DiskFile, FileStat, LockMode, Step};
use crate::error::{Error, ErrorKind, Result};

/// Device and inode.
pub(crate) type FileId = (u64, u64);

pub(crate) fn file_id(stat: FileStat) -> FileId {
    (stat.device, stat.inode)
}

/// What a lock is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To read what others change under a lock.
    Share,
    /// To change bytes in place.
    Change,
    /// To write past the end of what anybody reads, or to cut that off: sealed readers go on beside it.
    Grow,
}

impl Purpose {
    pub(super) fn of(mode: LockMode) -> Self {
        match mode {
            LockMode::Shared => Purpose::Share,
            LockMode::Exclusive => Purpose::Change,
        }
    }

    fn mode(self) -> LockMode {
        match self {
            Purpose::Share => LockMode::Shared,
            Purpose::Change | Purpose::Grow => LockMode::Exclusive,
        }
    }

    fn step(self) -> Step {
        match self {
            Purpose::Share | Purpose::Change => Step::LockGuard,
            Purpose::Grow => Step::LockGrowth,
        }
    }
}

/// A lock that is held, until it is dropped.
///
/// Who holds one that is not to share is alone: no other lock on the file is held, in any process or thread.
#[derive(Debug)]
pub(crate) struct FileLock {
    id: FileId,
    purpose: Purpose,
    thread: ThreadId,
    process: u32,
}

/// Everything that this process holds.
struct Held {
    /// A forked child has a copy of the registry, but none of the locks is its own.
    process: u32,
    by_file: HashMap<FileId, Holders>,
}

/// `flock` is held once a file, by the descriptor of whoever came first, and given back by the last.
struct Holders {
    purpose: Purpose,
    /// How many bytes from the file's beginning nobody changes, as long as the lock is held.
    stable_bytes: u64,
    threads: Vec<ThreadId>,
    file: Arc<dyn DiskFile>,
}

static HELD: LazyLock<Mutex<Held>> =
    LazyLock::new(|| Mutex::new(Held { process: std::process::id(), by_file: HashMap::new() }));
static RELEASED: Condvar = Condvar::new();

fn held() -> MutexGuard<'static, Held> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.process != std::process::id() {
        // Closing the parent's descriptors here takes nothing from the parent.
        *held = Held { process: std::process::id(), by_file: HashMap::new() };
    }
    held
}

/// Does something while nobody in this process takes a lock; not when one is held under which the first `length_bytes` of
/// the file may change.
pub(super) fn unless_changing<T>(id: FileId, length_bytes: usize, act: impl FnOnce() -> T) -> Option<T> {
    let held = held();
    let may_change =
        |holders: &Holders| holders.purpose != Purpose::Share && holders.stable_bytes < length_bytes as u64;
    (!held.by_file.get(&id).is_some_and(may_change)).then(act)
}

/// The same; not when any lock of the file is held.
pub(super) fn unless_locked<T>(id: FileId, act: impl FnOnce() -> T) -> Option<T> {
    let held = held();
    (!held.by_file.contains_key(&id)).then(act)
}

fn wait_for_release(held: MutexGuard<'static, Held>, timeout: Duration) -> MutexGuard<'static, Held> {
    RELEASED.wait_timeout(held, timeout).unwrap_or_else(PoisonError::into_inner).0
}

impl FileLock {
    /// Waits for the lock of `file`, at most `timeout`, in the order in which it was asked for. A thread that shares it
    /// already shares it once more at once.
    ///
    /// # Errors
    /// `Busy` after the timeout, and at once when this thread itself is in the way; `Corrupt` for one to change a file that
    /// is mapped as a sealed storage too, and for any on one that is mapped as a live storage.
    pub(super) fn take(
        disk: &dyn Disk,
        file: &Arc<dyn DiskFile>,
        id: FileId,
        purpose: Purpose,
        (path, timeout): (&Path, Duration),
    ) -> Result<FileLock> {
        let thread = thread::current().id();
        let busy = |why: &str| Err(Error::new(ErrorKind::Busy, format!("{}: {why}", path.display())));
        let lies =
            |detail| Err(Error::corrupt(path, stridemap_format::Error::new(Rule::StorageFile, detail)));
        // A timeout past the end of time is none.
        let deadline = Instant::now().checked_add(timeout);
        let (mut turn, mut front_since) = (None, None);
        let mut held = held();
        loop {
            let is_another_thread = match held.by_file.get_mut(&id) {
                Some(holders)
                    if (holders.purpose, purpose) == (Purpose::Share, Purpose::Share)
                        && (front_since.is_some() || holders.threads.contains(&thread)) =>
                {
                    holders.threads.push(thread);
                    break;
                }
                Some(holders) if holders.threads.contains(&thread) => {
                    return busy(match holders.purpose {
                        Purpose::Share => "this thread holds a shared guard of the storage; drop it first",
                        Purpose::Change => {
                            "this thread holds an exclusive guard of the storage; drop it first"
                        }
                        Purpose::Grow => {
                            "a transaction of this thread has appended to the storage; commit it, or drop it, first"
                        }
                    });
                }
                Some(_) => true,
                None if purpose == Purpose::Change && is_mapped_sealed(id) => {
                    return lies(
                        "the file is a sealed storage too, or an external file, which is lent without a lock",
                    );
                }
                None if is_mapped_live(id) => {
                    return lies("the file is a live storage too, which is changed without a lock");
                }
                None if front_since.is_none() => false,
                None => {
                    let is_locked = purpose.step().locks(disk, || file.try_lock(purpose.mode()));
                    if is_locked.map_err(|e| Error::io("lock storage", path, e))? {
                        // Who changes has any byte to change; who grows says which when it knows.
                        let stable_bytes = if purpose == Purpose::Change { 0 } else { u64::MAX };
                        let file = Arc::clone(file);
                        let holders = Holders { purpose, stable_bytes, threads: vec![thread], file };
                        held.by_file.insert(id, holders);
                        break;
                    }
                    false
                }
            };
            let Some(since) = front_since else {
                drop(held);
                turn = Turn::take(file, id, purpose.mode(), timeout);
                front_since = Some(Instant::now());
                held = self::held();
                continue;
            };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // Looking the process up reads every lock of the system: nobody is to wait for that.
                drop(held);
                let rival = match is_another_thread {
                    true => "another thread of this process".to_owned(),
                    false => {
                        let holder = file.lock_holders().first().copied();
                        holder.map_or("another process".to_owned(), |id| format!("process {id}"))
                    }
                };
                let what = match purpose {
                    Purpose::Grow => "appends to the storage, or compacts it",
                    Purpose::Share | Purpose::Change => "holds a guard of the storage",
                };
                return busy(&format!(
                    "{rival} {what}, and {timeout:?} have passed; try again when it is done"
                ));
            }
            // Another thread wakes us. Another process cannot, so we look again.
            let until = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            held = match (is_another_thread, until) {
                (true, None) => RELEASED.wait(held).unwrap_or_else(PoisonError::into_inner),
                (true, Some(left)) => wait_for_release(held, left),
                (false, left) => {
                    let pause = Turn::pause(since);
                    wait_for_release(held, pause.min(left.unwrap_or(pause)))
                }
            };
        }
        drop(turn);
        Ok(FileLock { id, purpose, thread, process: held.process })
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Says that from here on all but the first `stable_bytes` of the file may change under this lock, for growth. Not when
    /// more of them are lent in this process, which only a store that lies brings about; gives whether it is so.
    pub(super) fn keep_stable(&self, stable_bytes: u64) -> bool {
        if !self.is_ours() {
            return false;
        }
        let mut held = held();
        let Some(holders) = held.by_file.get_mut(&self.id) else { return false };
        // Nobody maps meanwhile: that takes the registry first.
        let is_free = lent_bytes(self.id) <= stable_bytes;
        if is_free {
            holders.stable_bytes = stable_bytes;
        }
        is_free
    }

    /// Whether it was taken by this process, and not by the one that this one was forked from.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let mut held = held();
        let Some(holders) = held.by_file.get_mut(&self.id) else { return };
        if let Some(mine) = holders.threads.iter().position(|&thread| thread == self.thread) {
            holders.threads.swap_remove(mine);
        }
        if holders.threads.is_empty() {
            // Not left to the closing of the descriptor: a child that is being started may still have it open.
            let _ = holders.file.unlock();
            held.by_file.remove(&self.id);
            RELEASED.notify_all();
        }
    }
}
