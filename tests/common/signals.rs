//! Signals that the parent of the tests ignores.

use std::fs;
use std::sync::{Arc, Once};

use rustix::process::Signal;

/// Lets the processes that this one starts react to signals as usual, although this process was started with the
/// signals ignored, as by `nohup` or by a shell in the background. An ignored signal stays ignored in a child, but a
/// signal with a handler gets its default action. So this installs handlers, which do nothing.
pub(crate) fn reach_children() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(Signal::as_raw) {
            if ignored >> (signal - 1) & 1 == 1 {
                signal_hook::flag::register(signal, Arc::default()).unwrap();
            }
        }
    });
}
