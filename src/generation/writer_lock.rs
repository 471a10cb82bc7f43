//! The lock that makes writers take turns.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Generation, History};
use crate::disk::{Access, DiskFile, FileId, LockMode, step};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Turn;

/// The newest generation, and the names in `meta/` if they had to be listed.
pub(crate) type NewestListed = (Arc<Generation>, Option<Vec<String>>);

/// The right to commit: an exclusive lock on the store's `LOCK`. The kernel releases it when the holder dies.
pub(crate) struct WriterLock<'h> {
    history: &'h History,
    file: Option<LockFile>,
    /// Set by the first listing under this lock, until a commit.
    pub(super) listed: Mutex<Option<NewestListed>>,
}

/// An open `LOCK`, and its identity.
///
/// A handle keeps it from one commit to the next. A thread that locks takes it out, because the kernel does not
/// distinguish the threads that use one open file.
#[derive(Debug)]
pub(super) struct LockFile {
    file: Arc<dyn DiskFile>,
    id: FileId,
}

impl<'h> WriterLock<'h> {
    pub(crate) fn take(history: &'h History) -> Result<Self> {
        Self::take_since(history, Instant::now())
    }

    /// Waits for the lock until the lock timeout has passed since `began`.
    pub(crate) fn take_since(history: &'h History, began: Instant) -> Result<Self> {
        history.check_process()?;
        let path = history.paths.lock();
        let idle = history.idle_lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        let held = match idle.map(|idle| Self::wait(history, &path, idle, began)).transpose()? {
            Some(lock) if lock.is_named(&path)? => lock,
            _ => {
                let lock = Self::wait(history, &path, LockFile::open(history, &path)?, began)?;
                // If the file was deleted and created again, another writer may hold the lock of the new one.
                if !lock.is_named(&path)? {
                    return Err(Error::new(
                        ErrorKind::Replaced,
                        format!(
                            "{}: the file was replaced while it was being locked, and nothing was written; try again \
                             once no other writer uses the old one",
                            path.display()
                        ),
                    ));
                }
                lock
            }
        };
        // Without this check, a commit could write to a directory that no other process reads.
        if !step!("dirs-are-named", history.disk.is_intact()).map_err(|e| failed(&path, e))? {
            let root = history.paths.root().display();
            let message = format!(
                "{root}: a directory in the store was replaced while the store was open, and nothing was \
                 written; open the store again"
            );
            return Err(Error::new(ErrorKind::Replaced, message));
        }
        Ok(held)
    }

    fn wait(history: &'h History, path: &Path, lock: LockFile, began: Instant) -> Result<Self> {
        wait(path, &lock, history.options.lock_timeout, began)?;
        Ok(WriterLock { history, file: Some(lock), listed: Mutex::default() })
    }

    /// Whether the locked file still has its name.
    fn is_named(&self, path: &Path) -> Result<bool> {
        let named = match self.history.disk.stat(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(path)),
            stat => stat.map_err(|e| failed(path, e))?,
        };
        Ok(step!("lock-is-named", self.file.as_ref().is_some_and(|held| held.id == named.id())))
    }
}

impl Drop for WriterLock<'_> {
    fn drop(&mut self) {
        // Closing the file is not enough: a forked child may also have it open. The child itself must not unlock.
        if let Some(lock) = self.file.take()
            && self.history.check_process().is_ok()
            && lock.file.unlock().is_ok()
        {
            *self.history.idle_lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
        }
    }
}

impl LockFile {
    fn open(history: &History, path: &Path) -> Result<Self> {
        let file = match history.disk.open(path, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing(path)),
            opened => opened.map_err(|e| failed(path, e))?,
        };
        let id = file.stat().map_err(|e| failed(path, e))?.id();
        Ok(LockFile { file, id })
    }
}

fn missing(path: &Path) -> Error {
    let message = format!("{}: the lock file is missing; create an empty file in its place", path.display());
    Error::new(ErrorKind::Replaced, message)
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::denied("lock the store for writing", path, e)
}

/// Waits for the lock, in the order of the queue.
fn wait(path: &Path, LockFile { file, id }: &LockFile, timeout: Duration, began: Instant) -> Result<()> {
    let turn = Turn::take(file, *id, LockMode::Exclusive, timeout.saturating_sub(began.elapsed()));
    let at_the_front = Instant::now();
    loop {
        // Without the lock, two writers could use one number for two generations, and one id for two storages.
        if step!("lock-writers", file.try_lock(LockMode::Exclusive)).map_err(|e| failed(path, e))? {
            drop(turn);
            return Ok(());
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
        thread::sleep(Turn::pause(at_the_front).min(left));
    }
}
