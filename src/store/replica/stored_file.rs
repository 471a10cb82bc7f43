//! Opens the files of a generation, to copy them to a replica.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use stridemap_format::remote::{FileKey, FileKind};
use stridemap_format::{RecordKind, StorageRecord};

use super::files::FileReader;
use super::listing::{deleted, missing, sum_bytes};
use crate::disk::{Access, DiskFile, read_again};
use crate::error::{Error, ErrorKind, IoContext as _, Result};
use crate::storage::{
    ByteSource as _, InPlaceContext, OpenContext as _, Storage, Stored, VerifiedStorage, check_length,
};
use crate::store::Snapshot;

impl Snapshot {
    /// Opens a file that a replica of this generation needs, as [`replica_files`](Self::replica_files) lists it. The
    /// reader has the bytes that belong to the generation, even if the file is longer. [`stream`](FileReader::stream) of a
    /// sealed storage passes only bytes that match their digests, and otherwise fails with a [`stridemap::Error`](Error) in
    /// an [`io::Error`]: `Corrupt`.
    ///
    /// A mutable storage has one byte more than its elements: the mark of an interrupted change, which is copied as it is.
    /// Each read takes the shared lock of the storage, so [`stream`](FileReader::stream) of the whole file copies one
    /// state. Writers of the storage wait meanwhile. An error of such a read is a [`stridemap::Error`](Error) in an
    /// [`io::Error`]: `Busy` if the storage stays locked for longer than the timeout.
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1u8, 2, 3])?;
    /// let snapshot = store.snapshot();
    /// for (key, file) in snapshot.replica_files(None)?.needed {
    ///     let mut bytes = Vec::new();
    ///     snapshot.open_replica_file(key)?.stream(0..file.length_bytes, &mut |piece| {
    ///         bytes.extend_from_slice(piece);
    ///         Ok(())
    ///     })?;
    ///     assert_eq!((key.path().as_str(), bytes), ("storages/0000000000000001.bin", vec![1, 2, 3]));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Conflict` if only a tag kept the file, the tag was removed meanwhile, and the file deleted: list the files of the
    /// newest generation. `InvalidArgument` for a storage that the generation does not need; `Corrupt` for a file that is
    /// missing or too short; `Stale`; `Io`.
    pub fn open_replica_file(&self, key: FileKey) -> Result<Arc<dyn FileReader>> {
        let (store, generation) = (&self.loader.store, self.pinned_generation());
        store.check_process()?;
        let record = match key.kind {
            FileKind::Storage | FileKind::Sum => Some(self.replica_record(key)?),
            _ => None,
        };
        let found = self.open_file(key, record);
        // The file may be that of an older copy of the store, restored over this one.
        generation.check_named(&*store.disk)?;
        found
    }

    fn open_file(&self, key: FileKey, record: Option<StorageRecord>) -> Result<Arc<dyn FileReader>> {
        let (store, generation) = (&self.loader.store, self.pinned_generation());
        let path = store.paths.root().join(key.path());
        let file = match read_again(|| store.disk.open(&path, Access::Read)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let is_own = || generation.storage(key.number).is_ok_and(|own| own.is_some());
                let may_be_deleted = record.is_some_and(|record| record.is_restored) && !is_own();
                return Err(match may_be_deleted {
                    true => deleted(store, generation, key),
                    false => missing(store, generation, key),
                });
            }
            opened => opened.opening("open", &path)?,
        };
        let found_bytes = file.stat().doing("open", &path)?.size_bytes;
        let size_bytes = match (&record, key.kind) {
            (Some(record), FileKind::Sum) => sum_bytes(record),
            (Some(record), _) => record.file_bytes(),
            (None, _) => found_bytes,
        };
        check_length(&path, found_bytes, size_bytes)?;
        match record {
            Some(record) if record.kind == RecordKind::Mutable => {
                let stored = Stored { store: store.uuid, id: key.number, record };
                let context = || InPlaceContext::of_a_reader(store.options.lock_wait, store.poison.clone());
                let storage = Storage::open(&store.disk, &path, stored, None, context)?;
                Ok(Arc::new(MutableReader { storage, size_bytes }))
            }
            Some(record) if key.kind == FileKind::Storage && matches!(record.kind, RecordKind::Sealed(_)) => {
                let verified = VerifiedStorage::open(&*store.disk, &store.paths, key.number, &record)?;
                let file = StoredFile { file, size_bytes };
                Ok(Arc::new(SealedReader { file, verified: Mutex::new(verified) }))
            }
            _ => Ok(Arc::new(StoredFile { file, size_bytes })),
        }
    }

    /// Returns the record of a storage that the generation or a tag needs.
    fn replica_record(&self, key: FileKey) -> Result<StorageRecord> {
        let id = key.number;
        if let Some(record) = self.pinned_generation().storage(id)? {
            return Ok(record);
        }
        let kept = self.tagged_garbage()?.get(&id).map(|(_, record)| record.clone());
        kept.ok_or_else(|| {
            let generation = self.generation();
            let message = format!("open {}: generation {generation} and its tags do not need it", key.path());
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

/// The first bytes of a file that does not change.
#[derive(Debug)]
struct StoredFile {
    file: Arc<dyn DiskFile>,
    size_bytes: u64,
}

/// Refuses to read past the end.
fn check_range(range: &Range<u64>, size_bytes: u64) -> io::Result<()> {
    if range.end > size_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

impl FileReader for StoredFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        check_range(&(offset_bytes..offset_bytes.saturating_add(buf.len() as u64)), self.size_bytes)?;
        self.file.read_exact_at(buf, offset_bytes)
    }

    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        check_range(&range, self.size_bytes)?;
        self.file.stream(range, sink)
    }

    fn prefetch(&self, range: Range<u64>) {
        self.file.prefetch(range);
    }
}

/// The file of a sealed storage. Bytes that are copied in order are compared with their digests, so that damage is not
/// copied along.
#[derive(Debug)]
struct SealedReader {
    file: StoredFile,
    verified: Mutex<VerifiedStorage>,
}

impl FileReader for SealedReader {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset_bytes)
    }

    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        check_range(&range, self.file.size_bytes)?;
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        // An error of the sink is returned as it is.
        let mut ended = Ok(());
        let read = verified.read(range, &mut |bytes| {
            ended = sink(bytes);
            ended.as_ref().map_err(|_| Error::new(ErrorKind::Io, "the sink has failed")).copied()
        });
        ended.and_then(|()| read.map_err(io::Error::from))
    }

    fn prefetch(&self, range: Range<u64>) {
        self.file.prefetch(range);
    }
}

/// The file of a mutable storage, with its mark. It is read under the shared lock.
#[derive(Debug)]
struct MutableReader {
    storage: Arc<Storage>,
    size_bytes: u64,
}

impl MutableReader {
    fn locked<T>(
        &self,
        range: &Range<u64>,
        read: impl FnOnce(&dyn DiskFile) -> io::Result<T>,
    ) -> io::Result<T> {
        check_range(range, self.size_bytes)?;
        // The mark of an interrupted change is copied too.
        let storage = self.storage.allowing_interrupted().unwrap_or_else(|| Arc::clone(&self.storage));
        let _lock = storage.lock_to_read()?;
        read(&**storage.file().ok_or(io::ErrorKind::NotFound)?)
    }
}

impl FileReader for MutableReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let range = offset_bytes..offset_bytes.saturating_add(buf.len() as u64);
        self.locked(&range, |file| file.read_exact_at(buf, offset_bytes))
    }

    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.locked(&range.clone(), |file| file.stream(range, sink))
    }
}
