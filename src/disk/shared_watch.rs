//! Watches that share one instance of inotify, because a user may have few instances: 128 by default.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, ReadFlags};
use rustix::io::Errno;

use super::Watch;
use super::process::OwnerProcess;
use super::watch::{WATCHED, is_finished, new_instance};

/// A watch of a directory that is asked for news, and does not wait.
#[derive(Debug)]
pub(super) struct SharedWatch {
    descriptor: i32,
    /// Whether news were read since this watch was asked last. Only changed while the instance is locked.
    has_news: Arc<AtomicBool>,
    owner: OwnerProcess,
}

/// The instance of this process.
struct Instance {
    inotify: OwnedFd,
    /// A forked child would take its parent's notifications, and could end its watches.
    owner: OwnerProcess,
    /// By the descriptor of a watch: [`SharedWatch::has_news`] of each watch of that directory.
    watched: HashMap<i32, Vec<Weak<AtomicBool>>>,
}

/// Locked with `try_lock` only: in a forked child it may stay locked forever.
static INSTANCE: Mutex<Option<Instance>> = Mutex::new(None);

fn instance() -> Option<MutexGuard<'static, Option<Instance>>> {
    match INSTANCE.try_lock() {
        Ok(instance) => Some(instance),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl SharedWatch {
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        let mut instance = instance().ok_or(io::ErrorKind::WouldBlock)?;
        let owner = OwnerProcess::current();
        let own = match instance.take_if(|instance| instance.owner == owner) {
            Some(own) => own,
            None => Instance { inotify: new_instance()?, owner, watched: HashMap::new() },
        };
        let own = instance.insert(own);
        let descriptor = inotify::add_watch(&own.inotify, dir, WATCHED)?;
        let has_news = Arc::new(AtomicBool::new(false));
        own.watched.entry(descriptor).or_default().push(Arc::downgrade(&has_news));
        Ok(SharedWatch { descriptor, has_news, owner })
    }
}

impl Instance {
    /// Reads all pending events, and passes each to the watches of its directory.
    fn read_news(&mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut news = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match news.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            let tell = |watches: &Vec<Weak<AtomicBool>>| {
                let watches = watches.iter().filter_map(Weak::upgrade);
                watches.for_each(|has_news| has_news.store(true, Ordering::Relaxed));
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                self.watched.values().for_each(tell);
            } else if event.events().contains(ReadFlags::IGNORED) {
                // The directory is gone. A watch that is not known any more always has news.
                self.watched.remove(&event.wd());
            } else if event.file_name().is_none_or(is_finished) {
                self.watched.get(&event.wd()).into_iter().for_each(tell);
            }
        }
    }
}

impl SharedWatch {
    /// Returns whether there is news since this was asked last. `None` if another thread is asking at this moment.
    fn ask(&self) -> io::Result<Option<bool>> {
        let Some(mut instance) = instance() else { return Ok(None) };
        let own = instance.as_mut().filter(|own| own.owner == self.owner && self.owner.is_current());
        let Some(own) = own else { return Ok(Some(true)) };
        own.read_news()?;
        let has_news = self.has_news.swap(false, Ordering::Relaxed);
        Ok(Some(has_news || !own.watched.contains_key(&self.descriptor)))
    }
}

impl Watch for SharedWatch {
    /// Does not wait. Returns true if it is not known.
    fn wait(&self, _: Duration) -> io::Result<bool> {
        Ok(self.ask()?.unwrap_or(true))
    }
}

impl Drop for SharedWatch {
    /// Ends the watch of the directory with the last watch of it. If another thread is asking at this moment, the
    /// directory is watched for as long as the process runs, and costs no more than its events.
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        let mut instance = instance();
        let Some(own) = instance.as_deref_mut().and_then(Option::as_mut) else { return };
        let Some(watches) = own.watched.get_mut(&self.descriptor) else { return };
        let is_other = |has_news: &Weak<AtomicBool>| {
            has_news.strong_count() > 0 && has_news.as_ptr() != Arc::as_ptr(&self.has_news)
        };
        watches.retain(is_other);
        if watches.is_empty() {
            own.watched.remove(&self.descriptor);
            let _ = inotify::remove_watch(&own.inotify, self.descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    /// Calls `act` again while another test of this process uses the instance, and returns its first answer.
    fn answer<T>(mut act: impl FnMut() -> Option<T>) -> T {
        let answer = |_| {
            let answer = act();
            if answer.is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            answer
        };
        (0..10_000).find_map(answer).unwrap()
    }

    fn has_news(watch: &SharedWatch) -> bool {
        answer(|| watch.ask().unwrap())
    }

    fn watch(dir: &tempfile::TempDir) -> SharedWatch {
        answer(|| SharedWatch::new(dir.path()).ok())
    }

    #[test]
    fn each_watch_is_told_once_of_what_appears_in_its_directory() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (one, same, other) = (watch(&dirs[0]), watch(&dirs[0]), watch(&dirs[1]));
        assert_eq!(one.descriptor, same.descriptor);
        // An unfinished file is no news.
        fs::write(dirs[0].path().join(".stage-1"), "").unwrap();
        assert!(!has_news(&one) && !has_news(&same));
        fs::rename(dirs[0].path().join(".stage-1"), dirs[0].path().join("1")).unwrap();
        // The first to ask reads the events of all.
        assert!(!has_news(&other));
        assert!(has_news(&one) && has_news(&same));
        assert!(!has_news(&one) && !has_news(&same));
        drop(one);
        fs::write(dirs[0].path().join("2"), "").unwrap();
        assert!(has_news(&same));
        assert!(!has_news(&same));
        drop(same);
        // A new watch of the directory is a new one for the kernel too, and hears of nothing before.
        fs::write(dirs[0].path().join("3"), "").unwrap();
        let again = watch(&dirs[0]);
        assert!(!has_news(&again));
        // A directory that is gone has news from then on.
        let [first, second] = dirs;
        drop(second);
        assert!(has_news(&other) && has_news(&other));
        assert!(!has_news(&again));
        drop(first);
    }

    #[test]
    fn watch_has_news_while_another_thread_asks() {
        let dir = tempfile::tempdir().unwrap();
        let own = watch(&dir);
        let held = answer(instance);
        assert_eq!(own.ask().unwrap(), None);
        assert!(own.wait(Duration::ZERO).unwrap());
        drop(held);
        assert!(!has_news(&own));
    }
}
