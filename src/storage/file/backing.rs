//! The storage type: the bytes that back tensors.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use stridemap_format::{External, RecordKind, Sealed, StorageRecord, Uuid};

use super::external_file::ExternalFile;
use super::heap_bytes::resize_discarding;
use super::in_place::{InPlaceContext, InPlaceFile, Opened};
use super::live::LiveFile;
use super::mutable::MutableFile;
use super::mutable_access::MutableAccess;
use super::open_external::ExternalOpener;
use super::read_file::ReadFile;
use crate::disk::kept::KeptQuota;
use crate::disk::{Access, Disk, DiskFile, FileId, FileStat, ForkCheck};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::digest::chunk_checks::ChunkChecks;
use crate::storage::map::advice::Hint;
use crate::storage::map::mapping::{MapPermit, Mapping};
use crate::storage::open_file::{MapError, OpenContext, check_length, open_whole};
use crate::storage::read_ahead::ReadAhead;

/// The store that a storage belongs to, if any, and the id of the storage in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Not in a store: the bytes are on the heap.
    Heap,
    /// Not in a store: the bytes are a range of a file outside any store.
    Foreign,
    /// A storage of a generation of the store.
    Stored { store: Uuid, id: u64, record: StorageRecord },
    /// A storage that a transaction is about to publish, under a provisional id.
    Staged { transaction: u64, id: u64 },
}

/// A storage of a generation of a store.
pub(crate) struct Stored {
    pub(crate) store: Uuid,
    pub(crate) id: u64,
    pub(crate) record: StorageRecord,
}

/// A contiguous sequence of bytes that backs tensors.
pub(crate) struct Storage {
    pub(super) identity: Identity,
    /// The file that contains the storage, and the offset where the storage begins. `None` on the heap and while
    /// staged.
    pub(super) place: Option<(FileId, u64)>,
    pub(super) length_bytes: u64,
    pub(super) bytes: Bytes,
    /// Set for a sealed storage of a handle that verifies what it reads.
    pub(super) checks: OnceLock<ChunkChecks>,
}

pub(super) enum Bytes {
    None,
    Heap(Box<dyn AsRef<[u8]> + Send + Sync>),
    File(ReadFile),
    /// A file, and the offset of the first byte in it.
    Range(Arc<ExternalFile>, u64),
    /// A mapping, the offset of the first byte in it, and the path of the file.
    Mapped(Mapping, u64, Box<Path>),
    Mutable(Arc<MutableFile>, MutableAccess),
    Live(LiveFile),
}

impl Storage {
    pub(super) fn new(
        identity: Identity,
        place: Option<(FileId, u64)>,
        length_bytes: u64,
        bytes: Bytes,
    ) -> Arc<Self> {
        Arc::new(Storage { identity, place, length_bytes, bytes, checks: OnceLock::new() })
    }

    /// Returns a storage that owns bytes in memory.
    pub(crate) fn on_heap(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Arc<Self> {
        let length_bytes = bytes.as_ref().len() as u64;
        Storage::new(Identity::Heap, None, length_bytes, Bytes::Heap(Box::new(bytes)))
    }

    /// Returns a storage of `length_bytes` at `offset_bytes` of a file outside any store. The caller has checked that
    /// the file has these bytes. They are read with positional reads.
    pub(crate) fn of_range(file: &Arc<ExternalFile>, offset_bytes: u64, length_bytes: u64) -> Arc<Self> {
        let bytes = Bytes::Range(Arc::clone(file), offset_bytes);
        let place = Some((file.id(), offset_bytes));
        Storage::new(Identity::Foreign, place, length_bytes, bytes)
    }

    /// Opens the storage of a store at `path`, and maps it if that is permitted. `context` is called for a storage that
    /// is changed in place.
    ///
    /// The file stays open or mapped, so the bytes stay readable even if the file is collected.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        Stored { store, id, record }: Stored,
        permit: Option<MapPermit>,
        context: impl FnOnce() -> InPlaceContext,
    ) -> Result<Arc<Self>> {
        let (length_bytes, forks) = (record.length_bytes, ForkCheck::begin());
        let file = disk.open(path, Access::Read).opening("open storage", path)?;
        let stat = file.stat().opening("open storage", path)?;
        check_length(path, stat.size_bytes, record.file_bytes())?;
        let place = (stat.id(), 0);
        // Only bytes that never change can be borrowed without a lock.
        let (map_permit, reserved_bytes) = match record.kind {
            RecordKind::Sealed(Sealed { reserved_bytes, .. }) => (permit, reserved_bytes),
            _ => (None, 0),
        };
        let in_place = |file| {
            let opened = Opened { forks, path, file, stat };
            InPlaceFile::new(disk, opened, (store, id), &record, context(), permit)
        };
        let bytes = match (&record.kind, file.as_file(), map_permit) {
            (RecordKind::Mutable, ..) => {
                Bytes::Mutable(MutableFile::new(in_place(file)), MutableAccess::default())
            }
            (&RecordKind::Live { access_bytes }, ..) => {
                Bytes::Live(LiveFile::new(in_place(file), access_bytes))
            }
            _ if length_bytes == 0 => Bytes::None,
            (_, Some(os_file), Some(permit)) => {
                match Mapping::of(os_file, stat, length_bytes, reserved_bytes, permit) {
                    Ok(mapping) => Bytes::Mapped(mapping, 0, path.into()),
                    // Positional reads still work.
                    Err(MapError::Unsupported) => Bytes::File(ReadFile::of(file, path)),
                    Err(e) => return Err(e.into_error(path)),
                }
            }
            _ => Bytes::File(ReadFile::of(file, path)),
        };
        let identity = Identity::Stored { store, id, record };
        Ok(Storage::new(identity, Some(place), length_bytes, bytes))
    }

    /// Opens a mutable storage that has lost its mark, to copy what is left of it. No process locks such a file, so none
    /// changes it.
    pub(crate) fn open_without_mark(
        disk: &dyn Disk,
        path: &Path,
        Stored { store, id, record }: Stored,
    ) -> Result<Arc<Self>> {
        let length_bytes = record.length_bytes;
        let bytes = Bytes::File(ReadFile::of(open_whole(disk, path, length_bytes)?, path));
        let identity = Identity::Stored { store, id, record };
        Ok(Storage::new(identity, None, length_bytes, bytes))
    }

    /// Opens an external storage of a store, and maps its file if that is permitted.
    pub(crate) fn open_external(
        externals: &ExternalOpener,
        Stored { store, id, record }: Stored,
        external: &External,
        permit: Option<MapPermit>,
    ) -> Result<Arc<Self>> {
        let file = externals.open(external)?;
        let (length_bytes, offset_bytes) = (record.length_bytes, external.offset_bytes);
        let place = (file.id(), offset_bytes);
        let to_map = if length_bytes > 0 { permit.zip(file.file_to_map()?) } else { None };
        let bytes = match to_map {
            None if length_bytes == 0 => Bytes::None,
            None => Bytes::Range(file, offset_bytes),
            Some((permit, (os_file, stat))) => {
                externals.check_mappable(&file)?;
                // The whole file is mapped, so that all storages in it share one mapping.
                match Mapping::of(os_file, stat, external.stamp.size_bytes, 0, permit) {
                    Ok(mapping) => Bytes::Mapped(mapping, offset_bytes, file.path().into()),
                    Err(MapError::Conflict(conflict)) => {
                        let message = format!(
                            "{}: external file refused: it is also {conflict}; drop that mapping or lock, \
                             or use open for this store, which reads without mapping",
                            file.path().display()
                        );
                        return Err(Error::new(ErrorKind::NotAllowed, message));
                    }
                    Err(MapError::Unsupported) => Bytes::Range(file, offset_bytes),
                    Err(e) => return Err(e.into_error(file.path())),
                }
            }
        };
        let identity = Identity::Stored { store, id, record };
        Ok(Storage::new(identity, Some(place), length_bytes, bytes))
    }

    /// Returns a storage of the first `length_bytes` of a file that a transaction is still writing.
    pub(crate) fn staged(
        (transaction, id): (u64, u64),
        file: &Arc<dyn DiskFile>,
        path: &Path,
        length_bytes: u64,
    ) -> Arc<Self> {
        let bytes = Bytes::File(ReadFile::of(Arc::clone(file), path));
        Storage::new(Identity::Staged { transaction, id }, None, length_bytes, bytes)
    }

    /// Returns a storage of a range of an external file that a transaction is about to commit.
    pub(crate) fn staged_range(
        (transaction, id): (u64, u64),
        file: &Arc<ExternalFile>,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Arc<Self> {
        let bytes = Bytes::Range(Arc::clone(file), offset_bytes);
        Storage::new(Identity::Staged { transaction, id }, None, length_bytes, bytes)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether both are the same storage. Ids are not enough, because a copy of a store has the same ids.
    pub(crate) fn is_same(&self, other: &Storage) -> bool {
        match (&self.identity, &other.identity) {
            (Identity::Stored { .. }, Identity::Stored { .. }) => self.place == other.place,
            (Identity::Foreign, Identity::Foreign) => {
                (self.place, self.length_bytes) == (other.place, other.length_bytes)
            }
            (Identity::Staged { .. }, Identity::Staged { .. }) => self.identity == other.identity,
            _ => std::ptr::eq(self, other),
        }
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Takes the quota for what the storage uses while no tensor uses it. Returns `None` if there is none left, or if the
    /// storage must not be kept open without a tensor.
    pub(in crate::storage) fn take_quota(&self) -> Option<KeptQuota> {
        let Identity::Stored { record: StorageRecord { kind: RecordKind::Sealed(_), .. }, .. } =
            self.identity
        else {
            return None;
        };
        match &self.bytes {
            Bytes::None => KeptQuota::of_mapping(0),
            Bytes::Mapped(mapping, ..) => KeptQuota::of_mapping(mapping.address_bytes()),
            // A file that is not the system's is cheap to open, and may hold memory.
            Bytes::File(own) if own.file.as_file().is_some() => KeptQuota::of_file(),
            _ => None,
        }
    }

    /// Whether a read of the file has failed, so that the next load must open it again.
    pub(in crate::storage) fn has_failed(&self) -> bool {
        matches!(&self.bytes, Bytes::File(own) if own.has_failed())
    }

    /// Has the chunks of a sealed storage verified when they are first read.
    pub(crate) fn verify_reads(&self, checks: ChunkChecks) {
        // Who opens a storage sets them, before it is shared.
        let _ = self.checks.set(checks);
    }

    /// Returns what verifies reads, if they are verified.
    pub(crate) fn checks(&self) -> Option<&ChunkChecks> {
        self.checks.get()
    }

    /// Verifies the chunks of a range that were not used before, if reads are verified. For bytes that are borrowed:
    /// [`read_at`](Self::read_at) verifies those that it reads from a file.
    ///
    /// # Errors
    /// `Corrupt` for a chunk that was changed.
    pub(crate) fn check(&self, range: Range<u64>) -> Result<()> {
        match (self.checks.get(), self.borrow()) {
            (Some(checks), Some(bytes)) => checks.check(range, bytes),
            _ => Ok(()),
        }
    }

    /// Returns the bytes if they are on the heap or mapped. [`check`](Self::check) those that are used.
    pub(crate) fn borrow(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::None => Some(&[]),
            Bytes::Heap(bytes) => Some((**bytes).as_ref()),
            // An external file is mapped whole.
            Bytes::Mapped(mapping, start, _) => {
                let end = usize::try_from(start.checked_add(self.length_bytes)?).ok()?;
                mapping.bytes().get(usize::try_from(*start).ok()?..end)
            }
            Bytes::File(..) | Bytes::Range(..) | Bytes::Mutable(..) | Bytes::Live(_) => None,
        }
    }

    /// Returns the file of a mutable storage.
    pub(crate) fn as_mutable(&self) -> Option<&Arc<MutableFile>> {
        match &self.bytes {
            Bytes::Mutable(file, _) => Some(file),
            _ => None,
        }
    }

    /// Returns the file of a live storage.
    pub(crate) fn as_live(&self) -> Option<&LiveFile> {
        match &self.bytes {
            Bytes::Live(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the file that contains the bytes. `None` on the heap, and for an empty storage.
    pub(crate) fn file_id(&self) -> Option<FileId> {
        match &self.bytes {
            Bytes::None | Bytes::Heap(_) => None,
            Bytes::File(own) => own.file.stat().ok().map(|stat| stat.id()),
            Bytes::Range(file, _) => Some(file.id()),
            Bytes::Mapped(mapping, ..) => Some(mapping.file()),
            Bytes::Mutable(file, _) => Some(file.in_place().id),
            Bytes::Live(file) => Some(file.in_place().id),
        }
    }

    /// Whether `stat` is of the file that contains the bytes. True for a storage without bytes.
    pub(crate) fn is_on_file(&self, stat: FileStat) -> bool {
        matches!(self.bytes, Bytes::None) || self.file_id() == Some(stat.id())
    }

    /// Fills `buf` with the bytes at `offset_bytes`.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        match &self.bytes {
            Bytes::File(own) => {
                let read = |buf: &mut [u8], at| own.read_at(buf, at, self.length_bytes);
                return match self.checks.get() {
                    Some(checks) => checks.read_at(buf, offset_bytes, read),
                    None => read(buf, offset_bytes),
                };
            }
            Bytes::Range(file, start_bytes) => {
                let end_bytes = offset_bytes.checked_add(buf.len() as u64);
                let is_inside = end_bytes.is_some_and(|end| end <= self.length_bytes);
                let at_bytes = start_bytes.checked_add(offset_bytes).filter(|_| is_inside);
                return file
                    .read_exact_at(buf, at_bytes.ok_or_else(|| self.out_of_range(buf, offset_bytes))?);
            }
            Bytes::Mutable(file, access) => {
                debug_assert!(access.lock.hold().is_some(), "a mutable storage is read without its lock");
                return file.in_place().read_at(buf, offset_bytes);
            }
            Bytes::Live(file) => return file.in_place().read_at(buf, offset_bytes),
            _ => {}
        }
        let start = usize::try_from(offset_bytes).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(buf.len())?));
        self.check(offset_bytes..offset_bytes.saturating_add(buf.len() as u64))?;
        let bytes = range.and_then(|range| self.borrow()?.get(range));
        buf.copy_from_slice(bytes.ok_or_else(|| self.out_of_range(buf, offset_bytes))?);
        Ok(())
    }

    /// Returns the store's file, if the bytes are read from it.
    pub(crate) fn file(&self) -> Option<&Arc<dyn DiskFile>> {
        match &self.bytes {
            Bytes::File(own) => Some(&own.file),
            Bytes::Mutable(file, _) => Some(&file.in_place().file),
            Bytes::Live(file) => Some(&file.in_place().file),
            Bytes::None | Bytes::Heap(_) | Bytes::Range(..) | Bytes::Mapped(..) => None,
        }
    }

    /// Whether reads are faster if they are announced.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.file().is_some_and(|file| file.reads_ahead())
    }

    /// Returns what announces the ranges of a read, or `None` if that is of no use.
    pub(crate) fn read_ahead<I: Iterator<Item = Range<u64>>>(&self, ranges: I) -> Option<ReadAhead<I>> {
        ReadAhead::of(self.file()?, ranges)
    }

    /// Passes a hint about a range of bytes inside the storage to the kernel, or to a file that is not the kernel's. Bytes
    /// on the heap need none.
    pub(crate) fn advise(&self, range: Range<u64>, hint: Hint) {
        if let (Some(file), Hint::WillNeed) = (self.file().filter(|file| file.reads_ahead()), hint) {
            return file.prefetch(range);
        }
        let (file, start_bytes) = match &self.bytes {
            Bytes::None | Bytes::Heap(_) => return,
            Bytes::Mapped(mapping, start, _) => {
                return mapping.advise((start + range.start) as usize..(start + range.end) as usize, hint);
            }
            Bytes::File(own) => (own.file.as_file(), 0),
            Bytes::Range(file, start) => (file.as_file(), *start),
            Bytes::Mutable(file, _) => (file.in_place().file.as_file(), 0),
            Bytes::Live(file) => (file.in_place().file.as_file(), 0),
        };
        if let Some(file) = file {
            hint.pass_to_kernel(file, start_bytes + range.start..start_bytes + range.end);
        }
    }

    /// Reads a range of bytes inside the storage from the disk into the page cache, waits for it, and verifies it if reads
    /// are verified. `buffer` is used if they are not mapped. Bytes on the heap need no read. The lock of a mutable storage
    /// is not needed, because what is read is not used.
    pub(crate) fn fetch(&self, range: Range<u64>, buffer: &mut Vec<u8>) -> Result<()> {
        let (start, end) = (range.start, range.end);
        let mut read = |read: &dyn Fn(&mut [u8]) -> Result<()>| {
            resize_discarding(buffer, (end - start) as usize)?;
            read(buffer)
        };
        match &self.bytes {
            Bytes::None | Bytes::Heap(_) => Ok(()),
            Bytes::Mapped(mapping, offset, path) => mapping
                .populate((offset + start) as usize..(offset + end) as usize)
                .map_err(|e| Error::io("read storage", path, e))
                .and_then(|()| self.check(range)),
            Bytes::File(_) | Bytes::Range(..) => read(&|buffer| self.read_at(buffer, start)),
            Bytes::Mutable(file, _) => read(&|buffer| file.in_place().read_at(buffer, start)),
            Bytes::Live(file) => read(&|buffer| file.in_place().read_at(buffer, start)),
        }
    }

    /// Returns the file that contains the bytes, and where in it they begin. `None` on the heap.
    pub(crate) fn place(&self) -> Option<(FileId, u64)> {
        self.place
    }

    fn out_of_range(&self, buf: &[u8], offset_bytes: u64) -> Error {
        let (count, length_bytes) = (buf.len(), self.length_bytes);
        let message =
            format!("{count} bytes at offset {offset_bytes}, but the storage has {length_bytes} bytes");
        Error::new(ErrorKind::OutOfRange, message)
    }

    /// Returns the file of an external storage that is not mapped.
    pub(crate) fn unmapped_file(&self) -> Option<&Arc<ExternalFile>> {
        match &self.bytes {
            Bytes::Range(file, _) => Some(file),
            _ => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Heap => f.write_str("heap"),
            Identity::Foreign => f.write_str("foreign"),
            Identity::Stored { id, .. } => write!(f, "{id:016x}"),
            Identity::Staged { .. } => f.write_str("staged"),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mapped = matches!(self.bytes, Bytes::Mapped(..));
        f.debug_struct("Storage")
            .field("id", &format_args!("{}", self.identity))
            .field("length_bytes", &self.length_bytes)
            .field("is_mapped", &is_mapped)
            .finish()
    }
}
