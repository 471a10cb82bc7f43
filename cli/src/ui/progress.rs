//! Progress bars.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::term::is_quiet;
use crate::interrupt;

/// A progress bar that counts bytes. It is cleared when it is dropped.
pub(crate) struct Progress(ProgressBar);

/// Shows a progress bar on standard error if that is a terminal and `--quiet` is not given. `total_bytes` is 0 if the
/// total is not known. From now on a signal interrupts the command where it calls [`inc`](Progress::inc).
pub(crate) fn progress(verb: &'static str, total_bytes: u64) -> Progress {
    interrupt::catch_signals();
    let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(total_bytes) };
    let bar = bar.with_message(verb).with_style(style(total_bytes));
    Progress(bar.with_finish(ProgressFinish::AndClear))
}

/// Returns a function that adds bytes to a progress bar: see [`progress`]. The bar is cleared when it is dropped.
pub(crate) fn advance(verb: &'static str, total_bytes: u64) -> impl Fn(u64) {
    let bar = progress(verb, total_bytes);
    move |bytes| bar.inc(bytes)
}

fn style(total_bytes: u64) -> ProgressStyle {
    let template = match total_bytes {
        0 => "{msg} {bytes} {bytes_per_sec}",
        _ => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress {
    /// Adds bytes. Ends the command if a signal has arrived.
    pub(crate) fn inc(&self, bytes: u64) {
        interrupt::check();
        self.0.inc(bytes);
    }

    /// Moves the bar, from any thread. Unlike [`inc`](Progress::inc), this never ends the command.
    #[cfg(feature = "remote")]
    pub(crate) fn set(&self, done_bytes: u64, total_bytes: u64) {
        if self.0.length() != Some(total_bytes) {
            self.0.set_style(style(total_bytes));
            self.0.set_length(total_bytes);
        }
        self.0.set_position(done_bytes);
    }

    /// Prints something while the bar is hidden.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    pub(crate) fn finish_and_clear(&self) {
        self.0.finish_and_clear();
    }
}
