use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::History;
use crate::disk::{Access, Disk, DiskFile, LockMode, Step};
use crate::error::{Error, ErrorKind, Result};

/// How often a newcomer looks whether it is at the front, at first. Who has waited longer looks more often.
const NEWCOMER_PAUSE: Duration = Duration::from_millis(1);
const WAITING_PAUSE: Duration = Duration::from_micros(500);

/// How often who is at the front looks for `LOCK`: at least after an eighth of the time that it has stood there.
const FRONT_PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(2)];

/// For how long the front is waited for. A process that was stopped there must not keep the others from a free `LOCK`.
const PATIENCE: Duration = Duration::from_secs(1);

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
        let lock = Queue::join(history, file).wait(&path, history.options.lock_timeout)?;
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

impl Held {
    /// None when somebody else holds it.
    fn try_take(file: &Arc<dyn DiskFile>) -> io::Result<Option<Held>> {
        Ok(file.try_lock(LockMode::Exclusive)?.then(|| Held::of(file)))
    }

    fn of(file: &Arc<dyn DiskFile>) -> Held {
        Held { file: Arc::clone(file), process: std::process::id() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not left to the closing of the file: a child that was forked meanwhile has it open. The child's lock it is not.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// The writers that wait. A turnstile is passed first, then `LOCK` is taken, then the turnstile is free for the next: who
/// commits again at once finds it locked, and comes after who stands there. It is the lock of FORMAT, which is always
/// there and which nobody else locks. Only `LOCK` keeps writers apart; where the turnstile cannot be locked, there is no
/// order, and nothing else is wrong.
struct Queue {
    disk: Arc<dyn Disk>,
    lock: Arc<dyn DiskFile>,
    turnstile: Option<Arc<dyn DiskFile>>,
}

impl Queue {
    /// The file is opened anew: a lock is on the open file, and other threads have their own.
    fn join(history: &History, lock: Arc<dyn DiskFile>) -> Self {
        let turnstile = history.disk.open(&history.paths.marker(), Access::Read).ok();
        Queue { disk: Arc::clone(&history.disk), lock, turnstile }
    }

    fn wait(&self, path: &Path, timeout: Duration) -> Result<Held> {
        let began = Instant::now();
        let (mut pause, mut is_newcomer) = (NEWCOMER_PAUSE, true);
        loop {
            let turn = self.turn();
            let may_look = turn.is_some() || began.elapsed() >= PATIENCE.min(timeout / 2);
            if may_look && let Some(held) = self.try_lock(path)? {
                return Ok(held);
            }
            if turn.is_some() && !is_newcomer {
                return self.wait_at_the_front(path, began, timeout);
            }
            // A newcomer lets the turnstile go once: it may have come between the front and those who wait behind it.
            drop(turn);
            self.sleep(path, began, pause, timeout)?;
            pause = (pause * 7 / 8).max(WAITING_PAUSE);
            is_newcomer = false;
        }
    }

    /// Looks for `LOCK`, while nobody passes the turnstile.
    fn wait_at_the_front(&self, path: &Path, began: Instant, timeout: Duration) -> Result<Held> {
        let [shortest, longest] = FRONT_PAUSES;
        let arrived = Instant::now();
        loop {
            self.sleep(path, began, (arrived.elapsed() / 8).clamp(shortest, longest), timeout)?;
            if let Some(held) = self.try_lock(path)? {
                return Ok(held);
            }
        }
    }

    /// The front of the queue, if it is free: with nothing to hold where the turnstile cannot be locked.
    fn turn(&self) -> Option<Option<Held>> {
        match self.turnstile.as_ref().map(Held::try_take) {
            Some(Ok(None)) => None,
            Some(Ok(held)) => Some(held),
            Some(Err(_)) | None => Some(None),
        }
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Held>> {
        let is_taken = Step::LockWriters.locks(&*self.disk, || self.lock.try_lock(LockMode::Exclusive));
        Ok(is_taken.map_err(|e| failed(path, e))?.then(|| Held::of(&self.lock)))
    }

    /// Waits a little, unless the time is over.
    fn sleep(&self, path: &Path, began: Instant, pause: Duration, timeout: Duration) -> Result<()> {
        let left = timeout.saturating_sub(began.elapsed());
        if left.is_zero() {
            // The one at the front of the queue has no lock on this file.
            let holder = match self.lock.lock_holders().as_slice() {
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
        thread::sleep(pause.min(left));
        Ok(())
    }
}
