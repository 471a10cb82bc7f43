//! Fallible allocation, for sizes that come from data.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytemuck::Zeroable;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, ErrorKind, Result};
use crate::storage::prefer_huge_pages;

/// The memory that must stay free after a large allocation. A small allocation that fails ends the process.
const LEFT_BYTES: usize = 1 << 20;

/// The size above which an allocation is large.
const SMALL_BYTES: usize = 256 << 10;

/// The bytes that all threads are allocating by [`allocate`].
static WANTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Resizes a buffer without preserving its contents: each byte is either an old byte or zero.
///
/// # Errors
/// `LimitExceeded` if there is not enough memory.
pub(crate) fn resize_discarding(buffer: &mut Vec<u8>, length_bytes: usize) -> Result<()> {
    if buffer.capacity() < length_bytes {
        // Free the old buffer first: both together may not fit.
        *buffer = Vec::new();
        *buffer = allocate(length_bytes, || {
            let mut longer = Vec::new();
            longer.try_reserve_exact(length_bytes).is_ok().then_some(longer)
        })?;
    }
    buffer.resize(length_bytes, 0);
    Ok(())
}

/// Returns a vector of zeros.
///
/// # Errors
/// `LimitExceeded` if there is not enough memory.
pub(crate) fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    let mut zeros =
        allocate(count.saturating_mul(size_of::<T>()), || bytemuck::allocation::try_zeroed_vec(count).ok())?;
    prefer_huge_pages(&mut zeros);
    Ok(zeros)
}

fn allocate<T>(length_bytes: usize, allocate: impl FnOnce() -> Option<T>) -> Result<T> {
    let wanted_bytes = WANTED_BYTES.fetch_add(length_bytes, Relaxed).saturating_add(length_bytes);
    let has_room = length_bytes <= SMALL_BYTES || has_memory(wanted_bytes.saturating_add(LEFT_BYTES));
    let allocated = has_room.then(allocate).flatten();
    WANTED_BYTES.fetch_sub(length_bytes, Relaxed);
    allocated.ok_or_else(|| out_of_memory(length_bytes))
}

/// Whether `length_bytes` could be allocated now.
pub(crate) fn has_memory(length_bytes: usize) -> bool {
    if let Some(free_bytes) = free_address_space() {
        return free_bytes >= length_bytes as u64;
    }
    let mut probe = Vec::<u8>::new();
    // `black_box` keeps the compiler from removing the allocation.
    black_box(&mut probe).try_reserve_exact(length_bytes).is_ok()
}

/// Returns what is left of the process's limit on address space, or `None` if it has no limit. To allocate instead, as a
/// test, would take the memory from other threads for a moment, and their small allocations would end the process.
fn free_address_space() -> Option<u64> {
    let limit_bytes = getrlimit(Resource::As).current?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used_kib: u64 = used.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(limit_bytes.saturating_sub(used_kib.saturating_mul(1024)))
}

pub(crate) fn out_of_memory(length_bytes: usize) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "no memory for {length_bytes} bytes; raise the limit (ulimit -v), or take a part of the tensor"
        ),
    )
}
