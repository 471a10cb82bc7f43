use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::History;
use crate::disk::{Access, DiskFile, LockMode};
use crate::error::{Error, ErrorKind, Result};

/// The right to commit: an exclusive lock on the store's `LOCK`. The kernel gives it back when its holder dies.
pub(super) struct WriterLock {
    file: Arc<dyn DiskFile>,
    process: u32,
}

impl WriterLock {
    pub(super) fn take(history: &History) -> Result<Self> {
        let path = history.paths.lock();
        let failed = |e| Error::denied("lock the store for writing", &path, e);
        let file = match history.disk.open(&path, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let message = format!(
                    "{}: the lock file is missing; an empty file in its place makes up for it",
                    path.display()
                );
                return Err(Error::new(ErrorKind::LockReplaced, message));
            }
            opened => opened.map_err(failed)?,
        };
        // A timeout past the end of time is none.
        let deadline = Instant::now().checked_add(history.options.lock_timeout);
        let mut pause = Duration::from_micros(100);
        while !file.try_lock(LockMode::Exclusive).map_err(failed)? {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "lock the store for writing: {}: another writer holds it, and {:?} have passed; try again when it is done",
                        path.display(),
                        history.options.lock_timeout
                    ),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        // Who deletes and recreates the file would let two writers in: each would hold the lock of its own.
        let held = file.stat().map_err(failed)?;
        let named = history.disk.stat(&path).map_err(failed)?;
        if (held.device, held.inode) != (named.device, named.inode) {
            return Err(Error::new(
                ErrorKind::LockReplaced,
                format!(
                    "{}: the file was replaced while it was being locked; nothing was written",
                    path.display()
                ),
            ));
        }
        Ok(WriterLock { file, process: std::process::id() })
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Not left to the closing of the file: a child that was forked meanwhile has it open. The child's lock it is not.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}
