//! What a handle knows about the newest generation without listing `meta/` again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::store_dir::StoreDir;
use crate::disk::Watch;

/// A listing of `meta/` with more names than this is not repeated while a watch reports no new names.
const LONG_LISTING: usize = 64;

/// Nor is one that a handle has made this often: it will ask again. Most handles never start a watch.
const MANY_LISTINGS: u32 = 8;

/// The newest generation, as far as a handle knows, and a watch that tells whether it may be another one by now.
///
/// The watch is asked before `meta/` is listed, so that a name which appears during the listing is news next time. The
/// kernel queues the news before the rename that makes them returns, so a commit that has ended is not missed. The time of
/// the directory's last change would not do: two commits within one tick of the clock, 4 ms and on some file systems 2 s,
/// give it the same time, and a clock that is set back can give it any.
#[derive(Debug, Default)]
pub(crate) struct NewestWatch(Mutex<Known>);

#[derive(Debug, Default)]
pub(super) struct Known {
    watch: Option<Box<dyn Watch>>,
    /// Whether the file system cannot be watched.
    is_unwatched: bool,
    /// The newest generation of the last listing, or `None` if names have appeared since.
    newest: Option<u64>,
    is_long: bool,
    listing_count: u32,
}

impl NewestWatch {
    /// Locked during a listing too: otherwise, a thread that lists slowly could record what is no longer the newest. The
    /// caller has checked that it is not in a forked child.
    pub(super) fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether the last listing was long.
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether a generation is known to be the newest. Otherwise the caller lists `meta/`.
    pub(super) fn is_newest(&mut self, generation: u64) -> bool {
        let Some(watch) = &self.watch else { return false };
        let has_news = watch.wait(Duration::ZERO).unwrap_or(true);
        self.newest = self.newest.filter(|_| !has_news);
        self.newest == Some(generation)
    }

    /// Records what a listing has shown. Starts the watch if it is worth it. What was listed then counts only from the next
    /// listing on.
    pub(super) fn note_listing(&mut self, store: &StoreDir, newest: u64, name_count: usize) {
        self.is_long = name_count > LONG_LISTING;
        if self.watch.is_some() {
            self.newest = Some(newest);
            return;
        }
        self.listing_count += 1;
        if self.is_unwatched || !(self.is_long || self.listing_count >= MANY_LISTINGS) {
            return;
        }
        // If the system has no watches left, this is tried again later.
        self.listing_count = 0;
        match store.disk.watch_all(&store.paths.meta_dir()) {
            Ok(Some(watch)) => self.watch = Some(watch),
            Ok(None) => self.is_unwatched = true,
            Err(_) => {}
        }
    }

    /// Records that this handle has published a generation under the writers' lock, which it still holds.
    pub(super) fn note_published(&mut self, generation: u64) {
        let Some(watch) = &self.watch else { return };
        // All names that were added are its own.
        let is_drained = watch.wait(Duration::ZERO).is_ok();
        self.newest = is_drained.then_some(generation);
    }
}
