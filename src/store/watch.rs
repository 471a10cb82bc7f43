//! Waits for commits of other handles.

use std::thread;
use std::time::{Duration, Instant};

use super::handle::Store;
use crate::disk::Watch;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::kept_watch;

/// The polling interval if the system does not report changes.
const POLL_PAUSE: Duration = Duration::from_millis(50);

/// The polling interval if the system reports changes. Changes by another machine on a network file system are not
/// reported.
const RECHECK_PAUSE: Duration = Duration::from_secs(1);

impl Store {
    /// Waits for a commit by any handle in any process, including this handle in another thread. Then this handle moves
    /// to the newest generation, as with [`refresh`](Self::refresh), and the result is true. It is false after
    /// `timeout`.
    ///
    /// If there already is a commit that the handle has not seen, this returns at once. Several commits may have
    /// happened when it returns. Any number of threads can wait on one handle, and all of them return when it moves.
    /// Nothing is locked, and the system wakes the waiter (inotify). The waiter also checks once a second, because a
    /// network file system does not report the commits of other machines, and many times a second if the system has no
    /// watches left.
    ///
    /// A commit by this handle also moves it past the commits of other handles, and later calls do not report those. A
    /// follower that also writes must load its tensors again after each of its own commits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = Store::create(&path)?;
    /// let another = Store::open(&path)?;                   // usually in another process
    /// another.save("x", &Tensor::from_vec(vec![1f32], &[1])?)?;
    /// assert!(store.wait_for_change(Duration::from_secs(60))?);
    /// assert!(store.contains("x")?);
    /// assert!(!store.wait_for_change(Duration::ZERO)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt`, `UnsupportedVersion`, `Busy`, `Stale` and `Io`, as for [`refresh`](Self::refresh); `Unsupported` for a
    /// handle that was opened [at](crate::StoreOptions::at) a generation or by
    /// [`open_files`](crate::StoreOptions::open_files), which never moves.
    pub fn wait_for_change(&self, timeout: Duration) -> Result<bool> {
        let store = &self.loader.store;
        if store.is_fixed() {
            let advice = match store.disk.never_changes() {
                true => "open the store again to see a newer one",
                false => "open the newest generation to follow the store",
            };
            let message = format!(
                "wait for a change of {}: the store was opened at generation {}, and stays there; {advice}",
                store.paths.root().display(),
                store.generation_number()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (before, began) = (store.generation_number(), Instant::now());
        let has_moved = || {
            self.refresh()?;
            Ok(store.generation_number() != before)
        };
        // A commit that was already made needs no watch.
        if has_moved()? || timeout.is_zero() {
            return Ok(store.generation_number() != before);
        }
        let meta = store.paths.meta_dir();
        let mut watch = kept_watch::watch(&store.disk, &meta);
        // Check again: a commit may have come before the watch began. Later ones end the wait.
        let mut was_reported = true;
        let has_changed = loop {
            if has_moved()? {
                break true;
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                break false;
            }
            match wait(watch.as_deref(), left) {
                Ok(has_news) => was_reported = has_news,
                Err(_) => watch = None,
            }
        };
        // Do not keep a watch that missed a change.
        if let Some(watch) = watch.filter(|_| was_reported || !has_changed) {
            kept_watch::keep(&store.disk, meta, watch);
        }
        Ok(has_changed)
    }
}

/// Returns whether the system reported anything.
fn wait(watch: Option<&dyn Watch>, left: Duration) -> std::io::Result<bool> {
    match watch {
        Some(watch) => watch.wait(left.min(RECHECK_PAUSE)),
        None => {
            thread::sleep(left.min(POLL_PAUSE));
            Ok(false)
        }
    }
}
