//! The lock that makes writers take turns.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::Generation;
use super::store_dir::StoreDir;
use crate::disk::{Access, DiskFile, FileId, LockMode, LockedFile, OwnerProcess, read_again, step};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{LockWait, Turn, WaitReports};

/// The newest generation, and the names in `meta/` if they had to be listed.
pub(crate) type NewestListed = (Arc<Generation>, Option<Vec<String>>);

/// The right to commit: an exclusive lock on the store's `LOCK`. The kernel releases it when the holder dies.
pub(crate) struct WriterLock {
    _lock: LockedFile,
    /// Set by the first listing under this lock, until a commit.
    pub(super) listed: Mutex<Option<NewestListed>>,
    id: FileId,
    /// Set for a transaction that holds the lock while its caller runs.
    _holder: Option<Holder>,
    /// Large files that were deleted, closed after the lock is released, because this is after `_lock`.
    closing: Mutex<Vec<Arc<dyn DiskFile>>>,
}

/// How many deleted files are closed later: descriptors are few. The others are closed at once.
const MAX_CLOSING: usize = 64;

/// The threads of this process that hold a `LOCK` while their own code runs. If such a thread waited for the lock, it
/// would wait for itself.
static HOLDERS: Mutex<Vec<(FileId, ThreadId, OwnerProcess)>> = Mutex::new(Vec::new());

/// An entry in [`HOLDERS`], removed when this is dropped, on any thread.
struct Holder((FileId, ThreadId, OwnerProcess));

impl Holder {
    fn new(id: FileId) -> Self {
        let entry = (id, thread::current().id(), OwnerProcess::current());
        HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        Holder(entry)
    }

    fn is_this_thread(id: FileId) -> bool {
        let entry = (id, thread::current().id(), OwnerProcess::current());
        HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).contains(&entry)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A forked child could wait forever for the mutex, and never looks for the entries of its parent.
        if self.0.2.is_current() {
            let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = holders.iter().position(|entry| *entry == self.0) {
                holders.swap_remove(own);
            }
        }
    }
}

impl WriterLock {
    /// Waits for the lock until the timeout of `lock_wait` has passed since `began`.
    ///
    /// Opens LOCK anew for each commit. If the handle kept it open, each child forked since would have it open too, and
    /// would hold the lock of a writer that was killed.
    pub(crate) fn take(store: &StoreDir, lock_wait: LockWait, began: Instant) -> Result<Self> {
        store.check_process()?;
        let path = store.paths.lock();
        let file = match read_again(|| store.disk.open(&path, Access::Write)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(&path)),
            opened => opened.map_err(|e| failed(&path, e))?,
        };
        let held = file.stat().map_err(|e| failed(&path, e))?.id();
        if Holder::is_this_thread(held) {
            let message = format!(
                "lock the store for writing: {}: this thread has begun an exclusive transaction of the store; make the \
                 change in that transaction, or commit or drop it first",
                path.display()
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let lock = wait(&path, &file, held, lock_wait, began)?;
        // If the file was deleted and created again, another writer may hold the lock of the new one.
        let named = match read_again(|| store.disk.stat(&path)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(&path)),
            stat => stat.map_err(|e| failed(&path, e))?,
        };
        let is_named = step!("lock-is-named", held == named.id());
        if !is_named {
            return Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "{}: the file was replaced while it was being locked, and nothing was written; try again once no \
                     other writer uses the old one",
                    path.display()
                ),
            ));
        }
        // Without this check, a commit could write to a directory that no other process reads.
        if !step!("dirs-are-named", store.disk.is_intact()).map_err(|e| failed(&path, e))? {
            let root = store.paths.root().display();
            let message = format!(
                "{root}: a directory in the store was replaced while the store was open, and nothing was \
                 written; open the store again"
            );
            return Err(Error::new(ErrorKind::Stale, message));
        }
        let (listed, closing) = (Mutex::default(), Mutex::default());
        Ok(WriterLock { _lock: lock, listed, id: held, _holder: None, closing })
    }

    /// Closes a file after the lock is released.
    pub(super) fn close_later(&self, file: Arc<dyn DiskFile>) {
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        if closing.len() < MAX_CLOSING {
            closing.push(file);
        }
    }

    /// Lets another attempt of this thread to take the lock fail at once.
    pub(crate) fn held_by_this_thread(self) -> Self {
        WriterLock { _holder: Some(Holder::new(self.id)), ..self }
    }
}

fn missing(path: &Path) -> Error {
    let message = format!("{}: the lock file is missing; create an empty file in its place", path.display());
    Error::new(ErrorKind::Stale, message)
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::at_first_write("lock the store for writing", path, e)
}

/// Waits for the lock, in the order of the queue.
fn wait(
    path: &Path,
    file: &Arc<dyn DiskFile>,
    id: FileId,
    wait: LockWait,
    began: Instant,
) -> Result<LockedFile> {
    let timeout = wait.timeout;
    let mut reports = WaitReports::begin(wait);
    let mut turn = Turn::join(file, id, LockMode::Exclusive, timeout.saturating_sub(began.elapsed()));
    loop {
        turn.wait();
        // Without the lock, two writers could use one number for two generations, and one id for two storages.
        if step!("lock-writers", file.try_lock(LockMode::Exclusive)).map_err(|e| failed(path, e))? {
            drop(turn);
            return Ok(LockedFile::new(file));
        }
        let left = timeout.saturating_sub(began.elapsed());
        if left.is_zero() {
            // This is the holder of the lock itself, not the process at the front of the queue.
            let holder = match file.lock_holders().as_slice() {
                [] => "another writer holds it".to_owned(),
                [id, ..] => format!("process {id} holds it"),
            };
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "lock the store for writing: {}: {holder}, and did not release it within {timeout:?}; try again \
                     when it is done",
                    path.display(),
                ),
            ));
        }
        if reports.is_due() {
            reports.send(file);
        }
        thread::sleep(turn.pause().min(left));
    }
}
