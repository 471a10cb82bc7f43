//! A limit on the address space that mappings reserve.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The address space, in bytes, that all mappings of a process together may reserve past the ends of their files: a
/// quarter of the address space of a 64-bit process. A malformed store must not use up all of it.
const MAX_RESERVED_BYTES: usize = 1 << 45;

/// The bytes that are reserved now.
static RESERVED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A reserved part of that address space, released on drop.
#[derive(Debug)]
pub(in crate::storage) struct Reservation(usize);

impl Reservation {
    /// Reserves `bytes`, but at most half of the bytes that are left.
    pub(in crate::storage) fn of(bytes: usize) -> Self {
        let granted = |reserved: usize| bytes.min(MAX_RESERVED_BYTES.saturating_sub(reserved) / 2);
        let taken = RESERVED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            Some(reserved + granted(reserved))
        });
        Reservation(taken.map_or(0, granted))
    }

    /// Whether [`of`](Self::of) would now grant as many bytes as it would without other reservations.
    pub(in crate::storage) fn is_available(bytes: usize) -> bool {
        let left = MAX_RESERVED_BYTES.saturating_sub(RESERVED_BYTES.load(Ordering::Relaxed));
        bytes.min(MAX_RESERVED_BYTES / 2) <= left / 2
    }

    pub(in crate::storage) fn bytes(&self) -> usize {
        self.0
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}
