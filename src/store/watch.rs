//! Waiting for what other processes commit.

use std::thread;
use std::time::{Duration, Instant};

use super::handle::Store;
use crate::disk::Watch;
use crate::error::Result;

/// How often a waiter looks where the system does not tell of changes.
const UNTOLD_PAUSE: Duration = Duration::from_millis(50);

/// How often it looks all the same where the system does: what another machine does on a network file system is told to
/// nobody.
const TOLD_PAUSE: Duration = Duration::from_secs(1);

impl Store {
    /// Waits until this handle is on another generation than when it was called: until a commit, by whatever handle in
    /// whatever process, this one in another thread included, and moves there as [`refresh`](Self::refresh) does. Gives whether it moved: false after `timeout`.
    ///
    /// A commit that came before the call, and that the handle has not seen, ends it at once. Several commits may have come
    /// when it returns. Any number of threads can wait on one handle, and all of them return when it moves. Nothing is locked,
    /// and the system wakes the waiter (inotify); where it cannot, on other file systems than those of this machine or when
    /// the system has no more watches to give, the waiter looks by itself, some times a second.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = Store::create(&path)?;
    /// let another = Store::open(&path)?;                   // in life, another process
    /// another.save("x", &Tensor::from_vec(vec![1f32], &[1])?)?;
    /// assert!(store.wait_for_change(Duration::from_secs(60))?);
    /// assert!(store.contains("x")?);
    /// assert!(!store.wait_for_change(Duration::ZERO)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn wait_for_change(&self, timeout: Duration) -> Result<bool> {
        let history = &self.loader.history;
        let (before, began) = (history.number(), Instant::now());
        let has_moved = || {
            self.refresh()?;
            Ok(history.number() != before)
        };
        // What is there already needs no watch.
        if has_moved()? || timeout.is_zero() {
            return Ok(history.number() != before);
        }
        let mut watch = history.watch();
        // Once more: a commit may have come before the watch began. What comes after ends the wait.
        let mut was_told = true;
        let has_changed = loop {
            if has_moved()? {
                break true;
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                break false;
            }
            match wait(watch.as_deref(), left) {
                Ok(has_news) => was_told = has_news,
                Err(_) => watch = None,
            }
        };
        // A watch that did not tell of a change is of no use to the next wait.
        if let Some(watch) = watch.filter(|_| was_told || !has_changed) {
            history.keep_watch(watch);
        }
        Ok(has_changed)
    }
}

/// Gives whether the system told of anything.
fn wait(watch: Option<&dyn Watch>, left: Duration) -> std::io::Result<bool> {
    match watch {
        Some(watch) => watch.wait(left.min(TOLD_PAUSE)),
        None => {
            thread::sleep(left.min(UNTOLD_PAUSE));
            Ok(false)
        }
    }
}
