use std::sync::atomic::{AtomicUsize, Ordering};

/// The address space that mappings of a process may take beyond the bytes that are there, all together: a quarter of what a
/// process has on today's 64-bit machines. A store that lies must not have all of it.
const RESERVED_PER_PROCESS: usize = if usize::BITS == 64 { 1 << 45 } else { 0 };

/// What of it is taken.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Address space, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation(usize);

impl Reservation {
    /// So many bytes, but at most half of what is left.
    pub(super) fn of(bytes: usize) -> Self {
        let granted = |reserved: usize| bytes.min(RESERVED_PER_PROCESS.saturating_sub(reserved) / 2);
        let taken = RESERVED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            Some(reserved + granted(reserved))
        });
        Reservation(taken.map_or(0, granted))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Ordering::Relaxed);
    }
}
