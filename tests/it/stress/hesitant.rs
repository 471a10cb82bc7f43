//! The real disk, where a process may wait before any operation, so that others act between any two of them, or may
//! die.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::hooked::Hooked;
use crate::harness::processes::die;
use crate::random::mixed;

/// One operation in this many waits first.
const WAITS: u64 = 40;

/// One operation in this many kills the process.
const DEATHS: u64 = 3000;

pub(super) fn hesitant_disk(seed: u64) -> Hooked {
    let random = AtomicU64::new(seed);
    let next = move || mixed(random.fetch_add(1, Ordering::Relaxed));
    Hooked::before(move |operation, _| {
        let number = next();
        if number.is_multiple_of(WAITS) {
            thread::sleep(Duration::from_micros((number >> 32) % 12_000));
        }
        // Lock attempts are frequent, so they do not kill the process.
        if operation != "try_lock" && next().is_multiple_of(DEATHS) {
            die();
        }
        Ok(())
    })
}
