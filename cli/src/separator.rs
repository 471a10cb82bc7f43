//! The `--` of the command line, after which every word is meant as it is.

use std::env;

/// Returns whether the command line has a `--`.
pub(crate) fn has_separator() -> bool {
    env::args_os().any(|word| word == "--")
}

/// Returns how many words follow a `--`.
pub(crate) fn words_after_separator() -> usize {
    env::args_os().skip_while(|word| word != "--").skip(1).count()
}
