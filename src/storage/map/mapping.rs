//! Maps files into memory. All unsafe code of this crate is here, except for that in `disk/system_calls.rs`,
//! `tensor/dlpack/lend.rs`, and the vector instructions in `tensor/kernel/transpose.rs` and `tensor/kernel/vectors.rs`.
#![expect(unsafe_code, reason = "no compiler can check what other processes do to a mapped file")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

use super::address_space::Reservation;
use super::advice::Hint;
use super::file_lock::FileLock;
use super::file_registry::{self, MappedAs, Purpose, Region};
use crate::available_memory;
use crate::disk::kept::{self, Kind};
use crate::disk::{FileId, FileStat, FileSystem, LockMode};
use crate::storage::open_file::MapError;

/// The size of a huge page on most processors, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The promise of the caller of `Store::open_mapped`, for the files of the store and the external files that it opens.
/// While such a file is mapped, nothing but this library writes, truncates or replaces it. Nor does this library,
/// in any process, change it through another name (a hard link) that belongs to a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPermit(());

impl MapPermit {
    /// Must be called only by the unsafe functions that state this contract.
    pub(crate) const fn by_contract_of_the_caller() -> Self {
        MapPermit(())
    }
}

/// A read-only mapping of the first bytes of a sealed storage's file, or of an external file. All processes that map
/// the file share its pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Arc<Region>,
    length_bytes: usize,
}

impl Mapping {
    /// Maps the first `length_bytes` of a file with this stat, or shares an existing mapping of this process.
    ///
    /// A new mapping reserves address space for the larger of `reserved_bytes` and twice the longest mapping of the
    /// file, or as much of that as the process's limit allows. If that cannot be mapped, it reserves twice the longest
    /// mapping, or nothing. A reader then maps a
    /// growing file only once or a few times. On overlayfs nothing is reserved.
    ///
    /// # Errors
    /// `Io` with `UnexpectedEof` if the file is shorter: touching a mapping past the end of its file is a fault.
    /// `Conflict` while this process maps the file as a live storage, or holds a lock under which the bytes may
    /// change. `Unsupported`.
    pub(in crate::storage) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: u64,
        reserved_bytes: u64,
        _: MapPermit,
    ) -> Result<Mapping, MapError> {
        let length_bytes = length_to_map(stat, length_bytes)?;
        let reserved_bytes = usize::try_from(reserved_bytes).unwrap_or_default();
        // If there is not enough address space, releases the mappings that are kept for the next load. If that does not
        // help, the mapping gets less room to grow.
        let _ = kept::retry_after_release(
            Kind::Mapping,
            || if Reservation::is_available(reserved_bytes) { Ok(()) } else { Err(()) },
            |()| true,
        );
        let map = |mapped_bytes: usize| {
            let doubled_bytes = mapped_bytes.saturating_mul(2);
            map_with_room(file, length_bytes, [reserved_bytes.max(doubled_bytes), doubled_bytes])
        };
        let count = available_memory::leave_mappings;
        let region = file_registry::reuse_or_map(stat.id(), MappedAs::Sealed, length_bytes, count, map)?;
        Ok(Mapping { region, length_bytes })
    }

    pub(in crate::storage) fn file(&self) -> FileId {
        self.region.file
    }

    /// Returns the address space that it takes, in bytes.
    pub(in crate::storage) fn address_bytes(&self) -> usize {
        self.region.map.len()
    }

    /// Returns the bytes that the mapping was made for.
    pub(in crate::storage) fn bytes(&self) -> &[u8] {
        // SAFETY:
        // - in bounds: the region has at least `length_bytes`, which a record states, and `of` has checked by a stat
        //   that the file is as long. On overlayfs the file may be in a lower layer, which never changes, while the
        //   stat is that of its copy in the upper layer. Either of them contains the rows of the record, because the
        //   file was opened after the record was read; and there `of` maps no byte beyond these rows;
        // - still in bounds: this library truncates a storage only past the length of the newest record, and past the
        //   bytes lent in this process (`FileLock::keep_stable`). In any process, only bytes of a published record are
        //   lent. No published record of a storage is longer than the newest one, because
        //   - a generation is made from the newest one under LOCK, and a record only grows;
        //   - an append that no record covers was never lent;
        //   - a generation that a process has seen stays published: a commit whose outcome is unknown (`CommitUnknown`)
        //     is not undone, and a power cut that undoes one ends its readers too. This library opens an external file
        //     for reading only. By the contract of `MapPermit` nothing else truncates either kind of file;
        // - no concurrent write: from `of` until this value is dropped, the registry has the region, as sealed and with
        //   at least `length_bytes` lent, in a forked child too. Under its one mutex, every use of the file in this
        //   process was checked against every other. Files are compared by device and inode, so the name by which one
        //   was opened does not matter: no live mapping of the file exists, no lock to change it is held, and a lock to
        //   grow it keeps the lent bytes stable. This library does not write a published storage in any other way. It
        //   refuses to open the remaining files in the directory of a store (unfinished files and metadata) as external
        //   files. In another process it writes to a sealed storage only past the length of
        //   the newest record, as above. By the contract of `MapPermit` nothing else writes, nor does this library
        //   through a different name, as a file of a store;
        // - alive: `self` owns a share of the region, and is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.region.map.as_ptr(), self.length_bytes) }
    }

    /// Passes a hint about the pages of a range of bytes to the kernel.
    pub(in crate::storage) fn advise(&self, range: Range<usize>, hint: Hint) {
        let start = range.start / page_size() * page_size();
        let end = range.end.min(self.length_bytes);
        if start >= end {
            return;
        }
        let first = self.region.map.as_mut_ptr().wrapping_add(start);
        // SAFETY:
        // - in bounds: a map begins at a page. The range begins at a page too, and ends within the bytes of this
        //   mapping, so all its pages belong to the region. `self` owns a share of the region, so the region stays
        //   mapped;
        // - no change: no hint changes the bytes or the addresses, only which pages the kernel reads, and when.
        let advised = unsafe { madvise(first.cast(), end - start, hint.for_memory()) };
        let resized = hint.huge_pages().filter(|_| self.length_bytes >= HUGE_PAGE_BYTES);
        // SAFETY: as above.
        let resized = resized.map(|advice| unsafe { madvise(first.cast(), end - start, advice) });
        // Reads work without the hints.
        let _ = (advised, resized);
    }

    /// Reads the pages of a range of bytes from the disk, and waits for them. Touching them is then no page fault.
    ///
    /// # Errors
    /// `EFAULT` if the disk cannot read them.
    pub(in crate::storage) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let start = range.start / page_size() * page_size();
        let end = range.end.min(self.length_bytes);
        if start >= end {
            return Ok(());
        }
        if end - start < HUGE_PAGE_BYTES {
            // Without this, the kernel would read a huge page around them.
            self.advise(range, Hint::WillNeed);
        }
        let first = self.region.map.as_mut_ptr().wrapping_add(start);
        // SAFETY:
        // - in bounds: as in `advise`. The pages are in the file, by the stat in `of`, and stay there, as in `bytes`;
        // - no change: this advice reads pages, and changes neither the bytes nor the addresses.
        match unsafe { madvise(first.cast(), end - start, Advice::LinuxPopulateRead) } {
            // Linux before 5.14 does not know the advice. It reads in the background instead.
            Err(Errno::INVAL) => {
                self.advise(start..end, Hint::WillNeed);
                Ok(())
            }
            populated => Ok(populated?),
        }
    }
}

/// Maps a file for reading, and reserves address space for the first of these lengths that is available.
fn map_with_room(
    file: &File,
    length_bytes: usize,
    with_room_bytes: [usize; 2],
) -> io::Result<(MmapRaw, Reservation)> {
    // On overlayfs a later writer may copy the file up. The file that is mapped here then does not get the rows that
    // the writer appends.
    let may_grow = FileSystem::of(file)? != FileSystem::Overlay;
    // Address space may be limited, or fragmented.
    for bytes in with_room_bytes.into_iter().filter(|_| may_grow) {
        let reservation = Reservation::of(bytes.saturating_sub(length_bytes));
        let mut options = MmapOptions::new();
        if let Ok(map) = options.len(length_bytes + reservation.bytes()).map_raw_read_only(file) {
            return Ok((in_huge_pages(map, length_bytes), reservation));
        }
    }
    let map = MmapOptions::new().len(length_bytes).map_raw_read_only(file)?;
    Ok((in_huge_pages(map, length_bytes), Reservation::of(0)))
}

/// Asks the kernel to read a large file in pieces of the size of a huge page. Otherwise, the first piece that it reads
/// is often the whole file in small pages, which the file keeps, and touching each of them is a page fault.
fn in_huge_pages(map: MmapRaw, length_bytes: usize) -> MmapRaw {
    if length_bytes >= HUGE_PAGE_BYTES {
        // A kernel without huge pages refuses. All of the map is advised, so that it stays one map for the kernel.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    map
}

/// Returns the length of a new mapping, in bytes.
///
/// # Errors
/// `UnexpectedEof` for a file that is shorter.
fn length_to_map(stat: FileStat, length_bytes: u64) -> io::Result<usize> {
    if stat.size_bytes < length_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    usize::try_from(length_bytes).map_err(io::Error::other)
}

/// A mapping of the first bytes of a file that is changed in place. All processes that map the file share its pages.
///
/// Its bytes are borrowed only together with a lock of the file, so the registry need not record it.
#[derive(Debug)]
pub(in crate::storage) struct LockedMapping {
    map: MmapRaw,
    file: FileId,
    mode: LockMode,
}

impl LockedMapping {
    /// Maps the first `length_bytes` of a file with this stat: for reading, and also for writing if `mode` is
    /// exclusive.
    ///
    /// # Errors
    /// `Io` with `UnexpectedEof` if the file is shorter: touching a mapping past the end of its file is a fault.
    /// `Unsupported`.
    pub(in crate::storage) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: u64,
        mode: LockMode,
        _: MapPermit,
    ) -> Result<Self, MapError> {
        let mut options = MmapOptions::new();
        options.len(length_to_map(stat, length_bytes)?);
        let map = || match mode {
            LockMode::Shared => options.map_raw_read_only(file),
            LockMode::Exclusive => options.map_raw(file),
        };
        let map = || available_memory::leave_mappings().and_then(|()| map()).map_err(MapError::from);
        let map = kept::retry_after_release(Kind::Mapping, map, MapError::is_out_of_memory)?;
        Ok(LockedMapping { map, file: stat.id(), mode })
    }

    /// Borrows the bytes under a lock to read or change this file. Returns `None` under a lock to grow it, or a lock of
    /// another file.
    pub(in crate::storage) fn bytes<'a>(&'a self, lock: &'a FileLock) -> Option<&'a [u8]> {
        if lock.id() != self.file || lock.purpose() == Purpose::Grow {
            return None;
        }
        // SAFETY:
        // - in bounds: the file was longer than the map when it was locked: `MutableFile::lock` reads the byte after the
        //   storage's own bytes each time.
        //   This library truncates it only under a lock to grow it, which excludes this one, and by the contract of
        //   `MapPermit` nothing else does. On overlayfs the file under a shared lock may be in a lower layer, which
        //   never changes. Its copy in the upper layer does not change while the lock is held, so both have the same
        //   bytes, and `LockedStorage` drops the map with the lock;
        // - alive: `self` owns the map, and is borrowed for as long as the slice;
        // - no concurrent write: the slice borrows a lock of this file. While it is held, this library writes to the
        //   file only through a mutable borrow of an exclusive lock. This lock is not borrowed mutably, because it is
        //   borrowed here, and no process or thread holds an exclusive lock beside this one. Nor does a live mapping
        //   exist in this process: under the registry's mutex, `FileLock::take` and `LiveMapping::of` exclude each
        //   other. By the contract of `MapPermit` nothing else writes.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.map.len()) })
    }

    /// Borrows the bytes for writing, under a lock to change this file. Returns `None` under any other lock.
    pub(in crate::storage) fn bytes_mut<'a>(&'a self, lock: &'a mut FileLock) -> Option<&'a mut [u8]> {
        if lock.id() != self.file || (lock.purpose(), self.mode) != (Purpose::Change, LockMode::Exclusive) {
            return None;
        }
        // SAFETY:
        // - in bounds, alive: as in `bytes`;
        // - writable: `of` maps it for writing in this mode. A write that needs a new block on a full disk would be
        //   SIGBUS: `InPlaceFile::allocate_blocks` has checked, once or under this lock, that no write needs one until
        //   a snapshot or reflink is made;
        // - unique: the slice borrows an exclusive lock of this file mutably, and no other lock of the file is held
        //   in any process or thread. Every slice of a `LockedMapping` borrows a lock of the file, so no other slice
        //   exists. Nor does the registry have a region of the file, sealed or live: under its mutex,
        //   `FileLock::take` refuses this lock while a region exists, and `Mapping::of` and `LiveMapping::of` make
        //   none while the lock is held. By the contract of `MapPermit` nothing else reads or writes.
        Some(unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.map.len()) })
    }
}

/// Asks the kernel for huge pages if the memory of `elements` is large. New memory is then zeroed 2 MiB at a time,
/// which takes half as long as zeroing it page by page. Memory that the allocator reuses stays as it is.
pub(crate) fn prefer_huge_pages<T>(elements: &mut [T]) {
    const PAGE_BYTES: usize = 4096;
    let bytes = size_of_val(elements);
    if bytes < 2 * HUGE_PAGE_BYTES {
        return;
    }
    let start: *mut u8 = elements.as_mut_ptr().cast();
    let before = start.align_offset(PAGE_BYTES);
    let whole_pages = bytes.saturating_sub(before) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY:
    // - in bounds: the pages are inside `elements`, which is borrowed mutably;
    // - no change: this advice changes neither the bytes nor the addresses, only the size of pages that the kernel adds
    //   later.
    let advised = unsafe { madvise(start.wrapping_add(before).cast(), whole_pages, Advice::LinuxHugepage) };
    // A kernel without huge pages refuses. Small pages suffice too.
    let _ = advised;
}

/// An atomic integer. Every access is relaxed.
///
/// # Safety
/// Every bit pattern is a valid value, the type has no padding, its alignment equals its size, which is at most the
/// size of a page, and it can be changed through a shared reference.
pub unsafe trait Atom: Sized + Sync + 'static {
    /// The value of the integer.
    type Bits: bytemuck::Pod + Eq;

    /// Returns the value.
    fn load(&self) -> Self::Bits;
    /// Replaces the value.
    fn store(&self, bits: Self::Bits);
    /// Adds to the value, wrapping, and returns the previous value.
    fn fetch_add(&self, bits: Self::Bits) -> Self::Bits;
    /// Replaces the value if it is `current`, and returns the previous value.
    ///
    /// # Errors
    /// The value, if it is not `current`.
    fn compare_exchange(&self, current: Self::Bits, new: Self::Bits) -> Result<Self::Bits, Self::Bits>;
    /// Returns the first four bytes, as the place that the kernel compares for those who wait. `None` for a shorter
    /// integer. This process must not read or write through it, because all accesses have the size of the integer.
    fn waiting_place(&self) -> Option<&AtomicU32>;
}

macro_rules! atoms {
    ($($atom:ty = $bits:ty),*) => {$(
        // SAFETY: the standard library documents this for atomic integers, on targets where they are aligned to their
        // size.
        unsafe impl Atom for $atom {
            type Bits = $bits;

            fn load(&self) -> $bits {
                self.load(Ordering::Relaxed)
            }

            fn store(&self, bits: $bits) {
                self.store(bits, Ordering::Relaxed);
            }

            fn fetch_add(&self, bits: $bits) -> $bits {
                self.fetch_add(bits, Ordering::Relaxed)
            }

            fn compare_exchange(&self, current: $bits, new: $bits) -> Result<$bits, $bits> {
                self.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
            }

            fn waiting_place(&self) -> Option<&AtomicU32> {
                if size_of::<Self>() < size_of::<u32>() {
                    return None;
                }
                // SAFETY:
                // - in bounds, aligned, alive: `self` has at least as many bytes and as large an alignment, and is
                //   borrowed for as long as the result;
                // - no race of different sizes: by the contract of this method, only the kernel uses the place.
                Some(unsafe { AtomicU32::from_ptr(self.as_ptr().cast()) })
            }
        }
    )*};
}

atoms!(AtomicU8 = u8, AtomicU16 = u16, AtomicU32 = u32, AtomicU64 = u64);

/// A mapping of the first bytes of a live storage's file, which are read and written with atomics of one size. All
/// processes that map the file share its pages.
#[derive(Clone, Debug)]
pub(crate) struct LiveMapping {
    /// `None` if there are no bytes.
    region: Option<Arc<Region>>,
    access_bytes: u8,
}

impl LiveMapping {
    /// Maps the first `length_bytes` of a file with this stat for atomics of `access_bytes`, or shares an existing
    /// mapping of this process. The file is open for writing, so on overlayfs it is the copy in the upper layer. By
    /// [`allocate_blocks`](crate::storage::file::in_place::InPlaceFile::allocate_blocks) no write needs a new block, which on a full
    /// disk would be a fault.
    ///
    /// # Errors
    /// `Io` with `UnexpectedEof` if the file is shorter: touching a mapping past the end of its file is a fault.
    /// `Conflict` while this process maps the file as anything else, or holds a lock of it. `Unsupported`.
    pub(in crate::storage) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: u64,
        access_bytes: u8,
        _: MapPermit,
    ) -> Result<LiveMapping, MapError> {
        let length_bytes = length_to_map(stat, length_bytes)?;
        if length_bytes == 0 {
            return Ok(LiveMapping { region: None, access_bytes });
        }
        let map = |_| Ok((MmapOptions::new().len(length_bytes).map_raw(file)?, Reservation::of(0)));
        let (mapped_as, count) = (MappedAs::Live { access_bytes }, available_memory::leave_mappings);
        let region = file_registry::reuse_or_map(stat.id(), mapped_as, length_bytes, count, map)?;
        Ok(LiveMapping { region: Some(region), access_bytes })
    }

    /// Returns all whole elements as atomics, or `None` if `A` does not have the access size.
    pub(crate) fn atoms<A: Atom>(&self) -> Option<&[A]> {
        if usize::from(self.access_bytes) != size_of::<A>() {
            return None;
        }
        let Some(region) = &self.region else { return Some(&[]) };
        let (start, count) =
            (region.map.as_mut_ptr().cast_const().cast::<A>(), region.map.len() / size_of::<A>());
        // SAFETY:
        // - in bounds: the stat passed to `of`, taken just before, says that the file had the map's length. This
        //   library truncates a file only under a lock, which the registry excludes as below, and by the contract of
        //   `MapPermit` nothing else does. The division rounds down;
        // - aligned, initialised, writable: a map begins at a page, every bit pattern is a valid `A` by the contract
        //   of `Atom`, and `map_raw` maps for writing;
        // - alive: `self` owns a share of the region, and is borrowed for as long as the slice;
        // - no race: from `of` until this value is dropped, the registry has the region, as live with this access size.
        //   During that time, under its mutex, `of` and `Mapping::of` make no region of the file as anything else, and
        //   `FileLock::take` takes no lock of it. All other code needs such a region or lock to borrow the bytes. `of`
        //   would have refused this region while one existed. So this process reaches the bytes only with atomics of
        //   this size. Other processes do the same by the contract of `MapPermit`. Calls that read and
        //   write the file in the kernel use no reference of this process.
        Some(unsafe { std::slice::from_raw_parts(start, count) })
    }
}
