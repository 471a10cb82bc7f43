//! SIGINT (Ctrl-C) and SIGTERM.
//!
//! A command that reports progress checks for a signal at each report, and while it waits for a lock. It unwinds from
//! there, so that unfinished files are deleted as after an error. An operation that reports from several threads, or waits
//! for a server, gets an error instead: see [`stop`]. A second signal ends the process at once.
//!
//! `log --follow` and `follow` end after the line that they are printing. Other commands end at the first signal; the next commit deletes the
//! unfinished files that they leave in the store.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::Signal;
use signal_hook::flag;

/// The exit code after the signal that arrived, or 0.
static CODE: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The panic payload with which an interrupted command unwinds.
struct Interrupted;

/// Catches signals from now on. A signal then ends the command at its next [`check`].
pub(crate) fn catch_signals() {
    CODE.get_or_init(|| {
        let (code, is_second) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        for number in signals() {
            // A signal that cannot be caught ends the process.
            let _ = flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&is_second));
            let _ = flag::register_usize(number, Arc::clone(&code), 128 + number as usize);
            let _ = flag::register(number, Arc::clone(&is_second));
        }
        code
    });
}

/// Returns the signals that ask a command to end, except those that this process ignores. A shell can start a
/// background command with SIGINT ignored.
fn signals() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let is_ignored = move |number: i32| mask.unwrap_or_default() >> (number - 1) & 1 == 1;
    [Signal::INT, Signal::TERM].map(Signal::as_raw).into_iter().filter(move |number| !is_ignored(*number))
}

/// Returns the exit code after the signal that arrived, if one did.
pub(crate) fn exit_code() -> Option<u8> {
    let code = CODE.get()?.load(Ordering::Relaxed);
    u8::try_from(code).ok().filter(|code| *code > 0)
}

/// Ends the command, by unwinding, if a signal has arrived.
pub(crate) fn check() {
    if exit_code().is_some() {
        resume_unwind(Box::new(Interrupted));
    }
}

/// Whether [`stop`] has returned an error.
static HAS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Returns an error if a signal has arrived, so that an operation of the library ends with it. For any thread.
#[cfg(feature = "remote")]
pub(crate) fn stop() -> stridemap::Result<()> {
    if exit_code().is_none() {
        return Ok(());
    }
    HAS_STOPPED.store(true, Ordering::Relaxed);
    Err(stridemap::Error::new(stridemap::ErrorKind::Interrupted, "a signal has ended the command"))
}

/// Returns whether a signal has ended an operation of the library. Its error says no more than that.
pub(crate) fn has_stopped() -> bool {
    HAS_STOPPED.load(Ordering::Relaxed)
}

/// Runs a command. Returns `None` if it was interrupted.
pub(crate) fn run<T>(command: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<Interrupted>() => None,
        Err(payload) => resume_unwind(payload),
    }
}
