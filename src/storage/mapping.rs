//! Files mapped into memory: all unsafe code of this crate, but for what another library lends (`tensor/dlpack/lend.rs`).
#![expect(
    unsafe_code,
    reason = "mapping a file is a promise about other processes, which no compiler can check"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::address_space::Reservation;
use super::lock::{FileId, FileLock, Purpose, file_id, unless_changing, unless_locked};
use crate::disk::{FileStat, FileSystem, LockMode};

/// The word of whoever opened the store, by `Store::open_mapped`, that while its files, and the external files that it
/// opens, are mapped nobody but this library writes, truncates or replaces them, and that in no process it does so by
/// another name, as a file of a store that it changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPermit(());

impl MapPermit {
    /// For the bodies of the unsafe functions that state that contract, and nowhere else.
    pub(crate) const fn by_contract_of_the_caller() -> Self {
        MapPermit(())
    }
}

/// The first bytes of a file, mapped read-only and shared with every other process that maps them, and maybe address space
/// beyond, into which the file can grow.
///
/// Only what is known to be there is lent.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    file: FileId,
    /// Whose it is: in a forked child another thread may have held the mutex that it is counted under.
    process: u32,
    /// How many bytes may be lent: the file had as many, and they are those of a sealed storage, or of an external file.
    checked_bytes: AtomicUsize,
    /// The address space beyond what was asked for, which counts.
    _reservation: Reservation,
}

/// The mappings of each file: one, or several when the earlier were too short. A live mapping keeps its inode from being
/// given to another file.
static MAPPINGS: LazyLock<Registry<Mapping>> = LazyLock::new(Mutex::default);

type Registry<M> = Mutex<HashMap<FileId, Vec<Weak<M>>>>;

/// Takes the mappings of a file that are no more off their list.
fn forget_dropped<M>(registry: &Registry<M>, file: FileId) {
    let mut mappings = registry.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(of_file) = mappings.get_mut(&file) {
        of_file.retain(|standing| standing.strong_count() > 0);
        if of_file.is_empty() {
            mappings.remove(&file);
        }
    }
}

fn standing(file: FileId) -> Vec<Arc<Mapping>> {
    let mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    mappings.get(&file).into_iter().flatten().filter_map(Weak::upgrade).collect()
}

/// Whether the bytes of a file may be lent by a [`Mapping`], under no lock.
pub(super) fn is_mapped_sealed(file: FileId) -> bool {
    !standing(file).is_empty()
}

/// How many bytes of a file may be lent by a [`Mapping`], under no lock.
pub(super) fn lent_bytes(file: FileId) -> u64 {
    let lent = standing(file).into_iter().map(|mapping| mapping.checked_bytes.load(Ordering::Relaxed));
    lent.max().unwrap_or_default() as u64
}

impl Mapping {
    /// Maps the first `length_bytes` of a file of the given stat, or shares the mapping that stands; none while this
    /// process holds a lock under which they change, or maps the file as a live storage.
    ///
    /// A new mapping has address space for `reserved_bytes`, or for twice as much as the one that has become too short, as
    /// far as there is any: who follows a file that grows maps it once, or now and then. On overlayfs it has none to spare.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter: a mapping beyond its end would be a fault when touched.
    pub(crate) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: usize,
        reserved_bytes: u64,
        _: MapPermit,
    ) -> io::Result<Option<Arc<Mapping>>> {
        if stat.size_bytes < length_bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let id = file_id(stat);
        // A store that lies can have one file as a sealed and a mutable storage, or as two sealed ones of which one grows;
        // or as an external file, by a second name, what is a storage of this store or another. Who locks it to change it
        // looks here, in the same order.
        let mapped = unless_changing(id, length_bytes, || {
            if is_mapped_live(id) {
                return Ok(None);
            }
            // Let go only after the mutex, which dropping the last of a mapping takes.
            let standing: Vec<Arc<Mapping>>;
            let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
            standing = mappings.get(&id).into_iter().flatten().filter_map(Weak::upgrade).collect();
            if let Some(mapping) = standing.iter().find(|mapping| mapping.map.len() >= length_bytes) {
                mapping.checked_bytes.fetch_max(length_bytes, Ordering::Relaxed);
                return Ok(Some(Arc::clone(mapping)));
            }
            // On overlayfs the file may have been copied up since an earlier mapping was made, so a longer record is mapped anew.
            let may_grow = FileSystem::of(file)? != FileSystem::Overlay;
            let spare = |bytes: usize| if may_grow { bytes } else { 0 };
            let longest = standing.iter().map(|mapping| mapping.map.len()).max().unwrap_or_default();
            let reserved = spare(usize::try_from(reserved_bytes).unwrap_or_default());
            // Address space may be limited, or scattered.
            let (mut map, mut reservation) = (Err(io::ErrorKind::OutOfMemory.into()), Reservation::of(0));
            let doubled = spare(longest.saturating_mul(2));
            for wanted in [reserved.max(doubled), doubled, length_bytes] {
                reservation = Reservation::of(wanted.saturating_sub(length_bytes));
                map = MmapOptions::new().len(length_bytes + reservation.bytes()).map_raw_read_only(file);
                if map.is_ok() {
                    break;
                }
            }
            let mapping = Arc::new(Mapping {
                map: map?,
                file: id,
                process: std::process::id(),
                checked_bytes: AtomicUsize::new(length_bytes),
                _reservation: reservation,
            });
            mappings.entry(id).or_default().push(Arc::downgrade(&mapping));
            Ok(Some(mapping))
        });
        mapped.unwrap_or(Ok(None))
    }

    pub(super) fn file(&self) -> FileId {
        self.file
    }

    /// Lends the first `length_bytes`; none when they are more than [`of`](Self::of) was asked for.
    pub(crate) fn bytes(&self, length_bytes: usize) -> Option<&[u8]> {
        if length_bytes > self.checked_bytes.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY:
        // - in bounds: for each value that `checked_bytes` had, `of` has seen that the map is as long, and by a stat
        //   that the file was, after a record had said that it is. On overlayfs the file may be one of a lower layer, and
        //   the stat one of its copy above: but it was opened after the record was read, so the rows of the record are in
        //   it, and `of` maps no byte more than were asked for. A lower layer never changes;
        // - still so: this library cuts a file off only past the newest record's length and past `checked_bytes` in this
        //   process. Only bytes of a published record are lent, in any process, and the newest record of a storage is the
        //   longest that was published: a generation is made on the newest one under LOCK, a record only grows, an append
        //   that no record covers was never lent, and a repair that steps back to an older generation copies each storage
        //   that is longer than its record. A generation that a process has seen stays published: a commit of unknown fate
        //   (`CommitUnknown`) is not taken back, and a power cut that takes one back ends its readers as well. This library
        //   cuts off no external file, which it opens for reading only; and by the contract of `MapPermit` nobody else
        //   truncates it;
        // - no concurrent write: only sealed storages and external files are mapped here. Bytes of a sealed one below a
        //   record's length, and those of an external file that is a storage too, this library changes under none of the
        //   file's names while they are lent in this process, nor lends while it can: who changes bytes in place holds a
        //   lock, which `FileLock::take` refuses while the file is mapped here, and under which `of` does not map it; who
        //   grows a file writes past the newest record's length, as above, and past `checked_bytes`, which
        //   `FileLock::keep_stable` sees to; and a live mapping of the file
        //   and this one exclude each other in `LiveMapping::of` and `of`. All of these go by device and inode, so by
        //   whatever name the file was opened. By the contract of `MapPermit` nobody else writes, nor does this library by
        //   another name as a file of a store: of those that are being written and have no lock here, unfinished ones and
        //   metadata, none is opened as external by its own name;
        // - alive: `self` owns the mapping, and is borrowed for as long as the slice.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr(), length_bytes) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        forget_dropped(&MAPPINGS, self.file);
    }
}

/// The first bytes of a file that is changed in place, mapped and shared with every other process that maps them.
///
/// It lends nothing on its own: a borrow is also one of a lock.
#[derive(Debug)]
pub(super) struct LockedMapping {
    map: MmapRaw,
    file: FileId,
    mode: LockMode,
}

impl LockedMapping {
    /// Maps the first `length_bytes` of a file of the given stat: for reading, or to be changed by who is exclusive.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter: a mapping beyond its end would be a fault when touched.
    pub(super) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: u64,
        mode: LockMode,
        _: MapPermit,
    ) -> io::Result<Self> {
        if stat.size_bytes < length_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut options = MmapOptions::new();
        options.len(usize::try_from(length_bytes).map_err(io::Error::other)?);
        let map = match mode {
            LockMode::Shared => options.map_raw_read_only(file)?,
            LockMode::Exclusive => options.map_raw(file)?,
        };
        Ok(LockedMapping { map, file: file_id(stat), mode })
    }

    /// Borrows the bytes under a guard of this file; none under another lock.
    pub(super) fn bytes<'a>(&'a self, lock: &'a FileLock) -> Option<&'a [u8]> {
        if lock.id() != self.file || lock.purpose() == Purpose::Grow {
            return None;
        }
        // SAFETY:
        // - in bounds: the file had the map's length when it was locked, this library cuts it off under no other lock, and
        //   by the contract of `MapPermit` nobody else truncates it. On overlayfs it may be one of a lower layer, opened
        //   under a shared lock: nobody changes its copy while that is held, and `LockedStorage` keeps the map no longer;
        // - alive: `self` owns the mapping, and is borrowed for as long as the slice;
        // - no concurrent write: the slice borrows a lock of this file. While one is held, this library writes only
        //   with an exclusive one, borrowed mutably: that is not this one, which is borrowed, and there is none beside
        //   this one. By the contract of `MapPermit` nobody else writes.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.map.len()) })
    }

    /// Borrows the bytes, to change them, under an exclusive lock of this file; none under another.
    pub(super) fn bytes_mut<'a>(&'a self, lock: &'a mut FileLock) -> Option<&'a mut [u8]> {
        if lock.id() != self.file || (lock.purpose(), self.mode) != (Purpose::Change, LockMode::Exclusive) {
            return None;
        }
        // SAFETY:
        // - in bounds, alive: as in `bytes`;
        // - writable: `of` mapped it so for this mode. That no write needs a block which a full disk lacks, which would be
        //   SIGBUS, `InPlaceFile::hold_room` has checked, once or under this lock, as long as no snapshot or reflink is made;
        // - unique: the slice borrows an exclusive lock of this file mutably. No other lock of the file is held in any
        //   process or thread, and every borrow of its bytes, through whichever mapping, borrows a lock: while this one
        //   is held, this process maps it under no name as a sealed storage. By the contract of `MapPermit` nobody else
        //   reads or writes.
        Some(unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.map.len()) })
    }
}

/// What `FS_IOC_FIEMAP` is asked and answers (`linux/fiemap.h`).
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

/// Whether a write to the first `length_bytes` of a file may need a block that the file does not have: there is a hole, or a block
/// is shared with another file, packed, or part of the metadata. True where the file system does not say.
pub(super) fn needs_new_blocks(file: &File, length_bytes: u64) -> io::Result<bool> {
    // Packed, in the metadata, shared.
    const NEEDS: u32 = 0x8 | 0x200 | 0x2000;
    // The number in the request is the size of what comes before the extents.
    const REQUEST: Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
    let mut start_bytes = 0;
    while start_bytes < length_bytes {
        let mut map = Fiemap { start_bytes, length_bytes, extent_count: 32, ..Fiemap::default() };
        // SAFETY: the request reads a `struct fiemap` and writes at most `extent_count` extents behind it; `Fiemap` is laid out
        // as that, with as many.
        let request = unsafe { Updater::<REQUEST, Fiemap>::new(&mut map) };
        // SAFETY: the request changes nothing but what it is given, which is borrowed for as long as it takes.
        match unsafe { ioctl(file, request) } {
            Err(Errno::INTR) => continue,
            Err(Errno::NOTSUP | Errno::NOTTY) => return Ok(true),
            asked => asked?,
        }
        let mapped = map.extents.get(..map.mapped_extents as usize).unwrap_or_default();
        let before_bytes = start_bytes;
        for extent in mapped {
            if extent.flags & NEEDS != 0 || extent.logical_bytes > start_bytes {
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

/// An integer in memory that others change at the same time.
///
/// # Safety
/// Any bits are a value of the type, all of its bytes are its bits, it is aligned to its size, which is at most that of a
/// page, and a shared reference is enough to change it.
pub unsafe trait Atom: Sized + Sync + 'static {
    /// What it holds.
    type Bits: Copy + Eq;

    /// Relaxed, as all that follow.
    fn load(&self) -> Self::Bits;
    /// Replaces what it holds.
    fn store(&self, bits: Self::Bits);
    /// Adds, wrapping; gives what it held.
    fn fetch_add(&self, bits: Self::Bits) -> Self::Bits;
    /// Replaces `current`; gives what it held, as an error when that was something else.
    ///
    /// # Errors
    /// What it holds.
    fn compare_exchange(&self, current: Self::Bits, new: Self::Bits) -> Result<Self::Bits, Self::Bits>;
}

macro_rules! atoms {
    ($($atom:ty = $bits:ty),*) => {$(
        // SAFETY: what the standard library says of atomic integers, on a target where they are aligned to their size.
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
        }
    )*};
}

atoms!(AtomicU8 = u8, AtomicU16 = u16, AtomicU32 = u32, AtomicU64 = u64);

/// The first bytes of the file of a live storage, mapped and shared with every other process that maps them, to be read
/// and written by atomics of one size only.
#[derive(Debug)]
pub(crate) struct LiveMapping {
    /// None of no bytes.
    map: Option<MmapRaw>,
    file: FileId,
    access_bytes: u8,
    process: u32,
}

/// Why a file cannot be mapped as a live storage.
#[derive(Debug)]
pub(super) enum LiveRefusal {
    /// The file is something else, too, in this process.
    Is(&'static str),
    Io(io::Error),
}

/// The live mappings of each file: one, or several when the earlier were too short. Whoever asks or adds holds the registry
/// of locks, as for [`MAPPINGS`].
static LIVE_MAPPINGS: LazyLock<Registry<LiveMapping>> = LazyLock::new(Mutex::default);

/// Whether the bytes of a file may be changed through a [`LiveMapping`], under no lock.
pub(super) fn is_mapped_live(file: FileId) -> bool {
    let mappings = LIVE_MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    mappings.get(&file).is_some_and(|standing| standing.iter().any(|mapping| mapping.strong_count() > 0))
}

impl LiveMapping {
    /// Maps the first `length_bytes` of a file of the given stat for atomics of `access_bytes`, or shares the mapping that
    /// stands. The file is open for writing, so it is the copy of an overlay, and [`hold_room`](super::in_place::InPlaceFile::hold_room)
    /// has seen that no write needs a new block: where the disk is full, such a write is a fault.
    ///
    /// # Errors
    /// `Is` while this process maps the file otherwise, or holds a lock of it; `UnexpectedEof` when the file is shorter.
    pub(super) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: usize,
        access_bytes: u8,
        _: MapPermit,
    ) -> Result<Arc<LiveMapping>, LiveRefusal> {
        if stat.size_bytes < length_bytes as u64 {
            return Err(LiveRefusal::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let id = file_id(stat);
        // A store that lies can have one file as storages of two kinds. Whoever lends its bytes otherwise looks here, in
        // the same order.
        let mapped = unless_locked(id, || {
            if is_mapped_sealed(id) {
                return Err(LiveRefusal::Is(
                    "sealed storage too, or an external file, which is lent without a lock",
                ));
            }
            // Let go only after the mutex, which dropping the last of a mapping takes.
            let standing: Vec<Arc<LiveMapping>>;
            let mut mappings = LIVE_MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
            standing = mappings.get(&id).into_iter().flatten().filter_map(Weak::upgrade).collect();
            if standing.iter().any(|mapping| mapping.access_bytes != access_bytes) {
                return Err(LiveRefusal::Is("live storage of another access size too"));
            }
            if let Some(mapping) = standing.iter().find(|mapping| mapping.len() >= length_bytes) {
                return Ok(Arc::clone(mapping));
            }
            let map = match length_bytes {
                0 => None,
                _ => Some(MmapOptions::new().len(length_bytes).map_raw(file).map_err(LiveRefusal::Io)?),
            };
            let mapping = Arc::new(LiveMapping { map, file: id, access_bytes, process: std::process::id() });
            mappings.entry(id).or_default().push(Arc::downgrade(&mapping));
            Ok(mapping)
        });
        mapped.unwrap_or(Err(LiveRefusal::Is("mutable storage too, which is locked")))
    }

    fn len(&self) -> usize {
        self.map.as_ref().map_or(0, MmapRaw::len)
    }

    /// All whole elements, as atomics; none of another size than the mapping is accessed by.
    pub(crate) fn atoms<A: Atom>(&self) -> Option<&[A]> {
        if usize::from(self.access_bytes) != size_of::<A>() {
            return None;
        }
        let Some(map) = &self.map else { return Some(&[]) };
        let (start, count) = (map.as_mut_ptr().cast_const().cast::<A>(), map.len() / size_of::<A>());
        // SAFETY:
        // - in bounds: the file had the map's length when `of` was given its stat, taken just before, and by the contract of
        //   `MapPermit` nobody truncates it; the division rounds down;
        // - aligned, initialised, writable: a map begins at a page, any bits are an `A` by the contract of `Atom`, and
        //   `map_raw` maps for writing;
        // - alive: `self` owns the mapping, and is borrowed for as long as the slice;
        // - no race: in this process the file's bytes are reached through atomics of this one size only. Every live mapping
        //   of the file has it; and while one stands, nothing else of this file is mapped or locked, so lent: `of`,
        //   `Mapping::of` and `FileLock::take` see to it under one mutex. Other processes do the same by the contract of
        //   `MapPermit`; what the kernel copies in and out, it copies by no reference of ours.
        Some(unsafe { std::slice::from_raw_parts(start, count) })
    }
}

impl Drop for LiveMapping {
    fn drop(&mut self) {
        // A forked child may use what it inherited, and nobody may hold a mutex there who would ever let it go.
        if self.process != std::process::id() {
            return;
        }
        forget_dropped(&LIVE_MAPPINGS, self.file);
    }
}
