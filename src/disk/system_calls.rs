//! System calls for which no library has a safe function.
#![expect(unsafe_code, reason = "no library has a safe function for these system calls")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Returns an integer that is 0 now, and is 0 again in each child at its fork. Returns `None` if the kernel cannot do
/// that.
pub(super) fn zero_after_fork() -> Option<&'static AtomicU64> {
    let map = Box::leak(Box::new(MmapRaw::from(MmapOptions::new().len(size_of::<u64>()).map_anon().ok()?)));
    let accepts = |advice| {
        // SAFETY: the page belongs to `map` alone, and has no reference yet. Neither advice changes it in this process.
        (unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), advice) }) == 0
    };
    // An emulator may accept every advice and ignore it.
    if accepts(-1) || !accepts(libc::MADV_WIPEONFORK) {
        return None;
    }
    // SAFETY:
    // - in bounds, aligned, initialised: a map begins at a page, is as long as the integer, and has zeros;
    // - alive: the map is leaked;
    // - no race: the integer is reached only through this reference. At a fork the kernel writes zeros to the page of
    //   the child before the child runs.
    Some(unsafe { AtomicU64::from_ptr(map.as_mut_ptr().cast()) })
}

/// How many forks of this process have begun, and how many have ended. A fork that has begun copies the process at any time
/// until it has ended: other code may run before the copy.
pub(super) struct Forks {
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
}

/// Counts the forks of this process from now on. Returns `None` if the C library has no memory to do that.
///
/// Only the C library notices a fork: `fork`, and what is made of it. A child that is made by a bare system call is not
/// counted. Neither is one that only starts a program (`posix_spawn`, `vfork`): that closes the files of this library.
pub(super) fn count_forks() -> Option<&'static Forks> {
    static FORKS: Forks = Forks { begun: AtomicU64::new(0), ended: AtomicU64::new(0) };
    extern "C" fn before_fork() {
        FORKS.begun.fetch_add(1, Ordering::SeqCst);
    }
    extern "C" fn after_fork() {
        FORKS.ended.fetch_add(1, Ordering::SeqCst);
    }
    // Forks of other threads never end in the child.
    extern "C" fn in_child() {
        FORKS.ended.store(FORKS.begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    // SAFETY: the functions may be called on any thread and at any time, because they only change atomics. They exist for
    // as long as the library is loaded, and the C library forgets them when the library is unloaded.
    let registered = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    (registered == 0).then_some(&FORKS)
}

/// The request and the response of `FS_IOC_FIEMAP` (`linux/fiemap.h`).
#[repr(C)]
#[derive(Debug, Default)]
struct Fiemap {
    start_bytes: u64,
    length_bytes: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; 32],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FiemapExtent {
    logical_bytes: u64,
    physical_bytes: u64,
    length_bytes: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_flags: [u32; 3],
}

/// Whether a write to the first `length_bytes` of a file may need a new block. It may if these bytes contain a hole, or
/// are compressed, in the metadata, or in a block that other files use too. Also true if the file system does not
/// report its blocks.
pub(crate) fn needs_new_blocks(file: &File, length_bytes: u64) -> io::Result<bool> {
    // Flags of an extent: encoded (compressed or encrypted), in the metadata, in one block with other files, shared.
    // A delayed extent (0x4) needs no new block: its space is reserved.
    const NEEDS_NEW_BLOCK: u32 = 0x8 | 0x200 | 0x400 | 0x2000;
    // The request number contains the size of the fields before the extents.
    const REQUEST: Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
    let mut start_bytes = 0;
    while start_bytes < length_bytes {
        let mut map = Fiemap { start_bytes, length_bytes, extent_count: 32, ..Fiemap::default() };
        // SAFETY: the request reads a `struct fiemap` and writes at most `extent_count` extents after it. `Fiemap`
        // has that layout, with as many extents.
        let request = unsafe { Updater::<REQUEST, Fiemap>::new(&mut map) };
        // SAFETY: the request changes only `map`, which is borrowed until it returns.
        match unsafe { ioctl(file, request) } {
            Err(Errno::INTR) => continue,
            Err(Errno::NOTSUP | Errno::NOTTY) => return Ok(true),
            asked => asked?,
        }
        let mapped = map.extents.get(..map.mapped_extents as usize).unwrap_or_default();
        let before_bytes = start_bytes;
        for extent in mapped {
            if extent.flags & NEEDS_NEW_BLOCK != 0 || extent.logical_bytes > start_bytes {
                return Ok(true);
            }
            start_bytes = start_bytes.max(extent.logical_bytes.saturating_add(extent.length_bytes));
        }
        if start_bytes == before_bytes {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Starts to write a range of a file's changed pages to disk, and does not wait for the end. A later sync then has less
/// to do. Does nothing if the system cannot.
///
/// # Errors
/// An error that the file system reports at once, such as a full disk. The pages may then be lost, and a later sync
/// might not report it. An error of the device occurs later: the kernel records it, and the next sync returns it.
pub(crate) fn start_writeback(file: &File, range: Range<u64>) -> io::Result<()> {
    let (Ok(start), Ok(count)) = (i64::try_from(range.start), i64::try_from(range.end - range.start)) else {
        return Ok(());
    };
    // SAFETY: the call gets no pointer, and `file` is open until it returns.
    let started =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, count, libc::SYNC_FILE_RANGE_WRITE) };
    match Errno::from_io_error(&io::Error::last_os_error()) {
        _ if started == 0 => Ok(()),
        // A sync does the same later.
        Some(Errno::INTR | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM | Errno::SPIPE) => {
            Ok(())
        }
        e => Err(e.unwrap_or(Errno::IO).into()),
    }
}
