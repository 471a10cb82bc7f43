//! The progress of a push or a pull.

use stridemap_remote::Done;

use crate::interrupt;
use crate::ui::{Progress, progress};

/// A progress bar that any thread moves.
pub(super) struct Bar(Progress);

impl Bar {
    pub(super) fn new(verb: &'static str) -> Self {
        Bar(progress(verb, 0))
    }

    /// Shows how far the operation is. An error if a signal has arrived.
    pub(super) fn show(&self, done: Done) -> stridemap::Result<()> {
        self.0.set(done.done_bytes, done.total_bytes);
        interrupt::stop()
    }

    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
