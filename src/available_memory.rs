//! Checks of the memory that is left.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, ErrorKind, Result};

/// The memory that must stay free after a large allocation, for small ones: if a small allocation fails, the process
/// ends.
const MIN_FREE_BYTES: usize = 1 << 20;

/// The size above which an allocation is large.
const SMALL_BYTES: usize = 256 << 10;

/// The bytes that all threads are allocating by [`allocate`].
static WANTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Calls a function that allocates `length_bytes`, if the limits of the process leave enough.
///
/// # Errors
/// `OutOfMemory` if there is not enough memory.
pub(crate) fn allocate<T>(length_bytes: usize, allocate: impl FnOnce() -> Option<T>) -> Result<T> {
    let wanted_bytes = WANTED_BYTES.fetch_add(length_bytes, Relaxed).saturating_add(length_bytes);
    let has_room = length_bytes <= SMALL_BYTES || has_memory(wanted_bytes.saturating_add(MIN_FREE_BYTES));
    let allocated = has_room.then(allocate).flatten();
    WANTED_BYTES.fetch_sub(length_bytes, Relaxed);
    allocated.ok_or_else(|| out_of_memory(length_bytes))
}

pub(crate) fn out_of_memory(length_bytes: usize) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "no memory for {length_bytes} bytes; raise the limit (ulimit -v), or take a part of the tensor"
        ),
    )
}

/// Whether the process's limits on address space and data (`ulimit -v` and `-d`) leave `length_bytes`. There is no
/// trial allocation: during it, small allocations of other threads could fail, and that ends the process.
pub(crate) fn has_memory(length_bytes: usize) -> bool {
    free_within_limits().is_none_or(|free_bytes| free_bytes >= length_bytes as u64)
}

/// Returns the bytes that are free under the stricter limit, or `None` if no limit is known.
fn free_within_limits() -> Option<u64> {
    let limits = [(Resource::As, "VmSize:"), (Resource::Data, "VmData:")]
        .map(|(resource, used)| getrlimit(resource).current.map(|limit_bytes| (limit_bytes, used)));
    if limits == [None, None] {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let free = |(limit_bytes, used): (u64, &str)| {
        let used = status.lines().find_map(|line| line.strip_prefix(used))?;
        let used_kib: u64 = used.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(limit_bytes.saturating_sub(used_kib.saturating_mul(1024)))
    };
    limits.into_iter().flatten().filter_map(free).min()
}

/// How many mappings are left to the rest of the process. Threads and the allocator need some, and without them the
/// process ends.
const LEFT_MAPPINGS: usize = 64;

/// The least and the most mappings that are made before they are counted again. Other code makes mappings too.
const MIN_UNCOUNTED: usize = 16;
const MAX_UNCOUNTED: usize = 1024;

/// How many mappings can be made before they are counted again.
static UNCOUNTED: AtomicUsize = AtomicUsize::new(0);

/// Held by the thread that counts.
static COUNTING: Mutex<()> = Mutex::new(());

/// Checks that the process can make more mappings than the one that the caller is about to make. They are counted, and
/// counted again once half of those that were left are made. As above, there is no trial.
///
/// # Errors
/// `ENOMEM`, as if the limit were smaller. A read of the counts that fails is no error.
pub(crate) fn leave_mappings() -> io::Result<()> {
    if UNCOUNTED.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok() {
        return Ok(());
    }
    // One thread counts, and those that wait for it use what it found.
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if UNCOUNTED.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok() {
        return Ok(());
    }
    let Some(left) = left_mappings() else { return Ok(()) };
    let uncounted = left.saturating_sub(LEFT_MAPPINGS) / 2;
    if uncounted < MIN_UNCOUNTED {
        return Err(Errno::NOMEM.into());
    }
    UNCOUNTED.store(uncounted.min(MAX_UNCOUNTED), Relaxed);
    Ok(())
}

/// Returns the number of mappings that the kernel still allows this process, or `None` if it does not state them.
fn left_mappings() -> Option<usize> {
    let limit: usize = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let mut maps = File::open("/proc/self/maps").ok()?;
    // Not in one allocation: the text may be several MiB long.
    let mut buffer = [0; 4096];
    let mut count = 0;
    loop {
        match maps.read(&mut buffer) {
            Ok(0) => return Some(limit.saturating_sub(count)),
            Ok(n) => count += buffer.iter().take(n).filter(|&&byte| byte == b'\n').count(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
