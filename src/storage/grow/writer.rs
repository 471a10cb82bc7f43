//! Writes new storages.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use stridemap_format::{CHUNK_BYTES, Digest, RecordKind, Sealed, StorageRecord, digest, full_chunk_count};

use crate::disk::{Disk, Staged, StorePaths, dir_of, mark_for_writes_in_place, start_writeback, step};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::parallel;
use crate::storage::file::mark;
use crate::storage::{ALIGNMENT_BYTES, ExternalFile, StagedStorage, Storage, Writeback, extend, zeroed};

const CHUNK: usize = CHUNK_BYTES as usize;

/// Writes of at least this many bytes are digested by a second thread at the same time.
const PARALLEL_BYTES: usize = 4 * CHUNK;

/// The maximum number of threads that read a storage to digest it. More would only wait for the disk.
const MAX_READ_THREADS: usize = 4;

/// Writes a new storage from its first byte to its last. Digests each chunk of a sealed storage.
///
/// Writing changes nothing else in the store and takes no lock: the file has a temporary name until a commit
/// publishes it.
#[derive(Debug)]
pub(crate) struct StorageWriter {
    staged: Staged,
    /// The bytes of the chunk that is not full yet.
    pending: Vec<u8>,
    /// The number of bytes before `pending`. All of them are in the file.
    written_bytes: u64,
    allocated_bytes: u64,
    mutability: Mutability,
    /// `Some` for a durable storage, whose files are synced by [`finish`](Self::finish).
    writeback: Option<Writeback>,
}

/// Whether the bytes of a storage change after it is published.
#[derive(Debug)]
enum Mutability {
    /// They never change.
    Sealed(Sealing),
    /// They are changed in place, in a storage of this kind. It has no digests, because they would become wrong.
    InPlace {
        kind: RecordKind,
        /// What a mutable storage is marked with.
        mark: u8,
    },
}

#[derive(Debug, Default)]
struct Sealing {
    /// The digests of the chunks in the file.
    digests: Vec<Digest>,
    reserved_bytes: u64,
    /// Whether other processes write the bytes, so that they are digested at the end.
    is_left_to_others: bool,
}

impl StorageWriter {
    /// Starts a storage whose bytes never change once it is published. If it is `durable`, its files are synced by
    /// [`finish`](Self::finish).
    pub(crate) fn sealed(disk: &Arc<dyn Disk>, paths: &StorePaths, durable: bool) -> Result<Self> {
        Self::create(disk, paths, Mutability::Sealed(Sealing::default()), durable)
    }

    /// Starts a storage whose bytes are changed in place later: mutable or live.
    pub(crate) fn in_place(
        kind: RecordKind,
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        durable: bool,
    ) -> Result<Self> {
        let writer = Self::create(disk, paths, Mutability::InPlace { kind, mark: mark::WHOLE }, durable)?;
        // Before the first byte: the mark has no effect on a file with data.
        if let Some(file) = writer.staged.file().as_file() {
            mark_for_writes_in_place(file);
        }
        Ok(writer)
    }

    fn create(
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        mutability: Mutability,
        durable: bool,
    ) -> Result<Self> {
        let dir = paths.storages_dir();
        let staged =
            Staged::create(disk, &dir).map_err(|e| Error::at_first_write("stage a storage in", &dir, e))?;
        Ok(StorageWriter {
            staged,
            pending: Vec::new(),
            written_bytes: 0,
            allocated_bytes: 0,
            mutability,
            writeback: durable.then(Writeback::default),
        })
    }

    /// Creates a sealed storage that shares the blocks of a whole file on disk. Returns `None` if the file system
    /// cannot share them. The bytes are read to compute their digests, and `progress` is called with the length of
    /// each piece.
    ///
    /// # Errors
    /// `ExternalChanged` if the file has changed since it was opened, because the blocks are shared as they are now;
    /// `Io`.
    pub(crate) fn sharing(
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        source: &ExternalFile,
        durable: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Self>> {
        let mut writer = Self::sealed(disk, paths, durable)?;
        let length_bytes = source.stamp().size_bytes;
        if !writer.share_blocks(source.as_file(), length_bytes)? {
            return Ok(None);
        }
        // Later changes of the file do not affect the shared blocks.
        step!("shared-is-unchanged", source.check_unchanged())?;
        writer.digest_file(length_bytes, progress)?;
        Ok(Some(writer))
    }

    /// Shares the blocks of the first `length_bytes` of a file. Returns false, without any effect, if the file system
    /// cannot. Call [`digest_file`](Self::digest_file) next.
    pub(crate) fn share_blocks(&mut self, source: Option<&File>, length_bytes: u64) -> Result<bool> {
        if !source.is_some_and(|file| self.staged.file().share_blocks_of(file)) {
            return Ok(false);
        }
        // The source may have grown, so cut off the rest. Do nothing for equal lengths, because XFS would rewrite the
        // last block.
        let shared = self.staged.file().stat().doing("share storage", self.staged.path())?;
        if shared.size_bytes > length_bytes {
            let cut = self.staged.file().set_len(length_bytes);
            cut.doing("set the length of storage", self.staged.path())?;
        }
        self.allocated_bytes = length_bytes;
        Ok(true)
    }

    /// Digests a sealed storage by reading its file on several threads.
    pub(crate) fn digest_file(&mut self, length_bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let Mutability::Sealed(sealing) = &mut self.mutability else { return Ok(()) };
        let (file, path) = (self.staged.file(), self.staged.path());
        let useful = usize::try_from(full_chunk_count(length_bytes)).unwrap_or(MAX_READ_THREADS);
        // Used again: the first write to each page of a new one costs more than the digest.
        let buffers: Mutex<Vec<Vec<u8>>> = Mutex::default();
        let unused = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
        parallel::in_order(
            parallel::thread_count(useful.min(MAX_READ_THREADS)),
            |push| (0..length_bytes).step_by(CHUNK).try_for_each(push),
            |start_bytes| {
                let bytes = (length_bytes - start_bytes).min(CHUNK_BYTES);
                let found = unused().pop();
                let mut buffer = found.map_or_else(|| zeroed(length_bytes.min(CHUNK_BYTES) as usize), Ok)?;
                let chunk = buffer.split_at_mut(bytes as usize).0;
                file.read_exact_at(chunk, start_bytes).doing("read storage", path)?;
                let digest = digest(chunk);
                unused().push(buffer);
                Ok((digest, bytes))
            },
            |read: Result<_>| {
                let (digest, bytes) = read?;
                sealing.digests.push(digest);
                progress(bytes);
                Ok(())
            },
        )?;
        self.written_bytes = length_bytes;
        Ok(())
    }

    /// Makes a sealed storage of this length that others fill: any process may write its file until
    /// [`finish`](Self::finish), which reads it to digest it. Until it is written, it is zeros.
    pub(crate) fn leave_to_others(&mut self, length_bytes: u64) -> Result<()> {
        const ACTION: &str = "allocate storage";
        self.allocate(length_bytes)?;
        let stat = self.staged.file().stat().doing(ACTION, self.staged.path())?;
        // No space could be reserved. Without it, a process that writes through a mapping would be killed if the disk
        // is full.
        let zeros = zeroed(if stat.size_bytes < length_bytes { CHUNK } else { 0 })?;
        for start_bytes in (stat.size_bytes..length_bytes).step_by(CHUNK) {
            let bytes = (length_bytes - start_bytes).min(CHUNK_BYTES) as usize;
            let written = self.staged.file().write_all_at(zeros.split_at(bytes).0, start_bytes);
            written.doing(ACTION, self.staged.path())?;
        }
        self.written_bytes = length_bytes;
        if let Mutability::Sealed(sealing) = &mut self.mutability {
            sealing.is_left_to_others = true;
        }
        Ok(())
    }

    /// Starts to write to disk what others have written, if it will be synced.
    pub(crate) fn start_writeback(&self) -> Result<()> {
        match (&self.mutability, self.staged.file().as_file(), &self.writeback) {
            (Mutability::Sealed(Sealing { is_left_to_others: true, .. }), Some(file), Some(_)) => {
                start_writeback(file, 0..self.written_bytes).doing("write storage", self.path())
            }
            _ => Ok(()),
        }
    }

    /// Whether the file is one of the system, and not of a simulation.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.staged.file().as_file().is_some()
    }

    /// Digests what others have written.
    fn digest_what_others_wrote(&mut self) -> Result<()> {
        let (length_bytes, path) = (self.written_bytes, self.staged.path());
        let found_bytes = self.staged.file().stat().doing("read storage", path)?.size_bytes;
        if found_bytes != length_bytes {
            let message = format!(
                "{}: {length_bytes} bytes were staged, and a process that wrote them has changed the length to \
                 {found_bytes}; write within the file, and do not open it to truncate it",
                path.display()
            );
            return Err(Error::new(ErrorKind::SizeMismatch, message));
        }
        self.digest_file(length_bytes, &mut |_| ())
    }

    /// Marks a mutable storage as one whose change was interrupted.
    pub(crate) fn mark_interrupted(&mut self) {
        if let Mutability::InPlace { mark, .. } = &mut self.mutability {
            *mark = mark::CHANGING;
        }
    }

    /// Returns the path of the unfinished file.
    pub(crate) fn path(&self) -> &Path {
        self.staged.path()
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.written_bytes + self.pending.len() as u64
    }

    /// Records that readers of a sealed storage should reserve address space for growth. This takes no space on disk.
    pub(crate) fn reserve_address_space(&mut self, reserved_bytes: u64) {
        if let Mutability::Sealed(sealing) = &mut self.mutability {
            sealing.reserved_bytes = reserved_bytes;
        }
    }

    /// Reserves disk space for more bytes, so that a full disk is an error now, not during a write.
    pub(crate) fn reserve(&mut self, additional_bytes: u64) -> Result<()> {
        self.allocate(self.length_bytes().saturating_add(additional_bytes))
    }

    fn allocate(&mut self, end_bytes: u64) -> Result<()> {
        if end_bytes > self.allocated_bytes {
            self.staged
                .file()
                .allocate(self.allocated_bytes..end_bytes)
                .doing("allocate storage", self.staged.path())?;
            self.allocated_bytes = end_bytes;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.pending.is_empty() && bytes.len() >= CHUNK {
                let (chunks, rest) = bytes.split_at(bytes.len() - bytes.len() % CHUNK);
                self.put_chunks(chunks)?;
                bytes = rest;
            } else {
                let (part, rest) = bytes.split_at(bytes.len().min(CHUNK - self.pending.len()));
                extend(&mut self.pending, part)?;
                bytes = rest;
                if self.pending.len() == CHUNK {
                    let chunk = std::mem::take(&mut self.pending);
                    self.put_chunks(&chunk)?;
                    self.pending = chunk;
                    self.pending.clear();
                }
            }
        }
        Ok(())
    }

    /// Fills a storage with zeros up to `length_bytes`. In a storage that is changed in place, reserved space already
    /// reads as zeros.
    pub(crate) fn zeros_up_to(&mut self, length_bytes: u64) -> Result<()> {
        let stat = self.staged.file().stat().doing("allocate storage", self.staged.path())?;
        if stat.size_bytes >= length_bytes && matches!(self.mutability, Mutability::InPlace { .. }) {
            self.written_bytes = length_bytes;
        }
        // Otherwise write the zeros: a sealed storage needs their digests, and if no space could be reserved, only
        // written bytes have space on disk.
        let zeros = zeroed(CHUNK)?;
        while self.length_bytes() < length_bytes {
            let rest = (length_bytes - self.length_bytes()).min(CHUNK_BYTES);
            self.write(zeros.split_at(rest as usize).0)?;
        }
        Ok(())
    }

    /// Pads with zeros to the next offset where a tensor may begin. Returns that offset in bytes.
    pub(crate) fn align(&mut self) -> Result<u64> {
        let offset_bytes = self.length_bytes().next_multiple_of(ALIGNMENT_BYTES);
        self.pad_to(offset_bytes)?;
        Ok(offset_bytes)
    }

    /// Pads with zeros up to `offset_bytes`, which is at most one alignment away.
    pub(crate) fn pad_to(&mut self, offset_bytes: u64) -> Result<()> {
        let padding = [0; ALIGNMENT_BYTES as usize];
        let missing_bytes = offset_bytes.saturating_sub(self.length_bytes()).min(ALIGNMENT_BYTES);
        self.write(padding.split_at(missing_bytes as usize).0)
    }

    /// Writes some chunks, which are full except for the last one of the storage, and digests them. If there are many,
    /// another thread digests them meanwhile.
    ///
    /// The digests are of the bytes that are written, because nothing changes `chunks` while they are borrowed.
    fn put_chunks(&mut self, chunks: &[u8]) -> Result<()> {
        // When several tensors are packed into one storage, nothing has called `reserve`.
        self.allocate(self.written_bytes + chunks.len() as u64)?;
        if !matches!(self.mutability, Mutability::Sealed(_)) {
            return self.put_each(chunks, &mut |_| ());
        }
        let mut digests = Vec::new();
        if chunks.len() >= PARALLEL_BYTES {
            digests = parallel::alongside(|push| self.put_each(chunks, push), digest)?;
        } else {
            self.put_each(chunks, &mut |chunk| digests.push(digest(chunk)))?;
        }
        if let Mutability::Sealed(sealing) = &mut self.mutability {
            sealing.digests.extend(digests);
        }
        Ok(())
    }

    /// Writes chunks, and passes each to `written` while it is in the processor's cache.
    fn put_each<'a>(&mut self, chunks: &'a [u8], written: &mut dyn FnMut(&'a [u8])) -> Result<()> {
        chunks.chunks(CHUNK).try_for_each(|chunk| {
            self.put(chunk)?;
            self.written_bytes += chunk.len() as u64;
            written(chunk);
            // Starts to write it to disk, so that the last sync has less to do.
            match (self.staged.file().as_file(), &mut self.writeback) {
                (Some(file), Some(writeback)) => {
                    writeback.advance(file, self.written_bytes).doing("write storage", self.staged.path())
                }
                _ => Ok(()),
            }
        })
    }

    fn put(&self, bytes: &[u8]) -> Result<()> {
        self.staged.file().write_all_at(bytes, self.written_bytes).doing("write storage", self.staged.path())
    }

    /// Returns the bytes written so far as a storage with a provisional identity, so that the transaction itself can
    /// read them.
    pub(crate) fn as_storage(&self, identity: (u64, u64)) -> Result<Arc<Storage>> {
        self.put(&self.pending)?;
        Ok(Storage::staged(identity, self.staged.file(), self.staged.path(), self.length_bytes()))
    }

    /// Finishes the storage: writes its last chunk, sets its length, writes the digests of a sealed one, and syncs the
    /// files of a durable one.
    pub(crate) fn finish(mut self) -> Result<StagedStorage> {
        if matches!(&self.mutability, Mutability::Sealed(sealing) if sealing.is_left_to_others) {
            step!("digest-filled", self.digest_what_others_wrote())?;
        }
        let disk = &Arc::clone(self.staged.disk());
        let length_bytes = self.length_bytes();
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.put_chunks(&last)?;
        }
        let mut file_bytes = length_bytes;
        if let Mutability::InPlace { kind: RecordKind::Mutable, mark } = self.mutability {
            self.put(&[mark])?;
            file_bytes += 1;
        }
        if self.allocated_bytes > file_bytes {
            self.staged.file().set_len(file_bytes).doing("set the length of storage", self.staged.path())?;
        }
        let durable = self.writeback.is_some();
        if durable {
            // Otherwise, after a power cut, the file could be shorter than its record states.
            let synced = step!("sync-storage", self.staged.file().sync());
            synced.syncing("sync storage", self.staged.path())?;
        }
        let (kind, sum) = match self.mutability {
            Mutability::InPlace { kind, .. } => (kind, None),
            Mutability::Sealed(Sealing { digests, reserved_bytes, .. }) => {
                let (full, last) = digests.split_at(full_chunk_count(length_bytes) as usize);
                let sum = stage_sum(disk, dir_of(self.staged.path()), full, durable)?;
                let sealed = Sealed::of_digests(full, last.first().copied(), reserved_bytes);
                (RecordKind::Sealed(sealed), sum)
            }
        };
        let record = StorageRecord::new(length_bytes, kind);
        Ok(StagedStorage::of_files(self.staged, sum, record))
    }
}

/// Writes the digests of full chunks to an unfinished `.sum` file. Returns `None` if there is no full chunk.
pub(in crate::storage) fn stage_sum(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    digests: &[Digest],
    durable: bool,
) -> Result<Option<Staged>> {
    if digests.is_empty() {
        return Ok(None);
    }
    const ACTION: &str = "stage chunk digests in";
    let sum = Staged::create(disk, dir).doing(ACTION, dir)?;
    sum.file().write_all_at(digests.as_flattened(), 0).doing(ACTION, dir)?;
    if durable {
        // Otherwise, after a power cut, `verify` could find them missing.
        let synced = step!("sync-digests", sum.file().sync());
        synced.syncing(ACTION, dir)?;
    }
    Ok(Some(sum))
}
