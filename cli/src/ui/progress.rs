//! Progress bars.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use super::term::is_quiet;
use crate::interrupt;

/// How long a command runs before it shows a bar.
const DELAY: Duration = Duration::from_millis(300);

/// A progress bar that counts bytes. It is cleared when it is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Set once the bar is shown, or is not to be shown.
    is_decided: OnceLock<()>,
}

/// Shows a progress bar on standard error if that is a terminal, `--quiet` is not given and the command is not done at once.
/// `total_bytes` is 0 if the total is not known. From now on a signal interrupts the command where it calls
/// [`inc`](Progress::inc).
pub(crate) fn progress(verb: &'static str, total_bytes: u64) -> Progress {
    interrupt::catch_signals();
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::hidden());
    let bar = bar.with_message(verb).with_style(style(total_bytes)).with_finish(ProgressFinish::AndClear);
    let is_decided = OnceLock::new();
    if is_quiet() {
        let _ = is_decided.set(());
    }
    Progress { bar, began: Instant::now(), is_decided }
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
        self.show_after_delay();
        self.bar.inc(bytes);
    }

    fn show_after_delay(&self) {
        if self.is_decided.get().is_none() && self.began.elapsed() >= DELAY && self.is_decided.set(()).is_ok()
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Moves the bar, from any thread. Unlike [`inc`](Progress::inc), this never ends the command.
    #[cfg(feature = "remote")]
    pub(crate) fn set(&self, done_bytes: u64, total_bytes: u64) {
        self.show_after_delay();
        if self.bar.length() != Some(total_bytes) {
            self.bar.set_style(style(total_bytes));
            self.bar.set_length(total_bytes);
        }
        self.bar.set_position(done_bytes);
    }

    /// Prints something while the bar is hidden.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    pub(crate) fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}
