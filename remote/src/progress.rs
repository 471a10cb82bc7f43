//! How far a push or a pull is.

use std::sync::{Mutex, PoisonError};

use stridemap::Result;

/// How far an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The bytes that were sent or received, or were there already.
    pub done_bytes: u64,
    /// The bytes of the whole operation, as far as they are known: it may grow, and at the end both are equal.
    pub total_bytes: u64,
}

/// A function that is called as an operation advances, from any thread. If it returns an error, the operation ends with
/// that error, and nothing is published.
pub type Progress<'a> = dyn Fn(Done) -> Result<()> + Sync + 'a;

/// Counts the bytes of one operation.
pub(crate) struct Tally<'a> {
    progress: &'a Progress<'a>,
    done: Mutex<Done>,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(progress: &'a Progress<'a>, total_bytes: u64) -> Self {
        Tally { progress, done: Mutex::new(Done { done_bytes: 0, total_bytes }) }
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<()> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.done_bytes = done.done_bytes.saturating_add(bytes);
        done.total_bytes = done.total_bytes.max(done.done_bytes);
        let done = *done;
        (self.progress)(done)
    }

    /// Says that everything is done. What was not received was there already.
    pub(crate) fn finish(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.done_bytes < done.total_bytes {
            done.done_bytes = done.total_bytes;
            let done = *done;
            // It has succeeded, so nothing can end it any more.
            let _ = (self.progress)(done);
        }
    }
}
