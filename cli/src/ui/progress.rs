//! Progress bars.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::term::is_quiet;

/// Shows a progress bar on standard error if that is a terminal and `--quiet` is not given. The bar counts bytes, and is cleared when it is
/// dropped.
pub(crate) fn progress(verb: &'static str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(total_bytes) };
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(verb)
        .with_finish(ProgressFinish::AndClear)
}
