use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::History;
use crate::disk::{Access, Disk, DiskFile, LockMode, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Turn, file_id};

/// The right to commit: an exclusive lock on the store's `LOCK`. The kernel gives it back when its holder dies.
pub(super) struct WriterLock {
    _lock: Held,
}

impl WriterLock {
    pub(super) fn take(history: &History) -> Result<Self> {
        history.check_process()?;
        let path = history.paths.lock();
        let file = match history.disk.open(&path, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(&path)),
            opened => opened.map_err(|e| failed(&path, e))?,
        };
        let lock = wait(&*history.disk, &path, &file, history.options.lock_timeout)?;
        // Who deletes and recreates the file would let two writers in: each would hold the lock of its own.
        let held = lock.file.stat().map_err(|e| failed(&path, e))?;
        let named = match history.disk.stat(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(&path)),
            stat => stat.map_err(|e| failed(&path, e))?,
        };
        let is_named = || (held.device, held.inode) == (named.device, named.inode);
        if !Step::LockIsNamed.holds(&*history.disk, is_named) {
            return Err(Error::new(
                ErrorKind::Replaced,
                format!(
                    "{}: the file was replaced while it was being locked, and nothing was written; try again, once no \
                     other writer is at work on the old one",
                    path.display()
                ),
            ));
        }
        let is_intact = || history.disk.is_intact();
        let dirs = Step::DirsAreNamed.is_taken(&*history.disk).then(is_intact).unwrap_or(Ok(true));
        if !dirs.map_err(|e| failed(&path, e))? {
            let root = history.paths.root().display();
            let message = format!(
                "{root}: a directory in the store was replaced while the store was open, and nothing was written; open the \
                 store again"
            );
            return Err(Error::new(ErrorKind::Replaced, message));
        }
        Ok(WriterLock { _lock: lock })
    }
}

fn missing(path: &Path) -> Error {
    let message =
        format!("{}: the lock file is missing; an empty file in its place makes up for it", path.display());
    Error::new(ErrorKind::Replaced, message)
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::denied("lock the store for writing", path, e)
}

/// An exclusive lock on an open file.
struct Held {
    file: Arc<dyn DiskFile>,
    process: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not left to the closing of the file: a child that was forked meanwhile has it open. The child's lock it is not.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// Waits for the lock, in the order of the queue.
fn wait(disk: &dyn Disk, path: &Path, file: &Arc<dyn DiskFile>, timeout: Duration) -> Result<Held> {
    let began = Instant::now();
    let id = file_id(file.stat().map_err(|e| failed(path, e))?);
    let turn = Turn::take(file, id, LockMode::Exclusive, timeout);
    let at_the_front = Instant::now();
    loop {
        let is_taken = Step::LockWriters.locks(disk, || file.try_lock(LockMode::Exclusive));
        if is_taken.map_err(|e| failed(path, e))? {
            drop(turn);
            return Ok(Held { file: Arc::clone(file), process: std::process::id() });
        }
        let left = timeout.saturating_sub(began.elapsed());
        if left.is_zero() {
            // The one at the front of the queue has no lock on this file.
            let holder = match file.lock_holders().as_slice() {
                [] => "another writer holds it".to_owned(),
                [id, ..] => format!("process {id} holds it"),
            };
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "lock the store for writing: {}: {holder}, and {timeout:?} have passed; try again when it is done",
                    path.display(),
                ),
            ));
        }
        thread::sleep(Turn::pause(at_the_front).min(left));
    }
}
