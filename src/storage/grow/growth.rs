//! Appends to sealed storages.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Digest, RecordKind, Sealed, Sealer, StorageRecord, full_chunk_count};

use super::known_tails::KnownTails;
use super::writer::stage_sum;
use crate::disk::{
    Access, Disk, DiskFile, FileId, FileStat, Staged, StorePaths, if_test_omits_step, is_named, read_again,
    step,
};
use crate::error::{Error, ErrorKind, FormatContext, IoContext, Result};
use crate::storage::lock::lock_wait::LockWait;
use crate::storage::map::file_lock::FileLock;
use crate::storage::map::file_registry::Purpose;
use crate::storage::open_file::{OpenContext, broken, check_length, other_names_error};
use crate::storage::zeroed;

const CHUNK: usize = CHUNK_BYTES as usize;
const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// Writes shorter than this are collected, and written together.
const PENDING_BYTES: usize = 16 << 10;

/// The lock that allows a process to write past the end of a sealed storage, to truncate the file to that end, and to
/// move its tensors to a different storage. The kernel releases it when the process dies.
///
/// It is acquired before the writers' lock. A process that already holds the writers' lock takes this one without
/// waiting.
#[derive(Debug)]
pub(crate) struct GrowthLock {
    disk: Arc<dyn Disk>,
    lock: FileLock,
    /// Open for writing.
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// The offset in the file where unfinished bytes of this process begin. They are truncated when the lock is
    /// dropped.
    leftover_from: Option<u64>,
}

impl Drop for GrowthLock {
    fn drop(&mut self) {
        if let Some(length_bytes) = self.leftover_from.filter(|_| self.lock.owner().is_current()) {
            // After a failure, the next growth overwrites the bytes, or a collection truncates them.
            let _ = self.truncate(length_bytes);
        }
    }
}

impl GrowthLock {
    /// Waits for the lock of the storage at a path. Returns `None` if the file no longer exists.
    ///
    /// # Errors
    /// `Busy` after the timeout, or at once if this thread holds the lock; `ReadOnly`; `Corrupt` if it is not a
    /// regular file; `Io`.
    pub(crate) fn take(disk: &Arc<dyn Disk>, path: &Path, wait: LockWait) -> Result<Option<Self>> {
        Self::open(disk, path, |file, id| FileLock::take(file, id, Purpose::Grow, (path, wait)))
    }

    /// Like [`take`](Self::take), but does not wait: returns `Busy` unless the lock is free.
    pub(crate) fn take_or_busy(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Self>> {
        let busy = || Error::new(ErrorKind::Busy, format!("{}: the storage is growing", path.display()));
        Self::open(disk, path, |file, id| FileLock::try_take(file, id, Purpose::Grow, path)?.ok_or_else(busy))
    }

    fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        lock: impl FnOnce(&Arc<dyn DiskFile>, FileId) -> Result<FileLock>,
    ) -> Result<Option<Self>> {
        // Opened for each lock, because a lock belongs to the open file.
        let file = match read_again(|| disk.open(path, Access::Write)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.opening_to_write("open storage for writing", path)?,
        };
        let id = file.stat().doing("lock storage", path)?.id();
        let lock = lock(&file, id)?;
        // The file may have lost its name during the wait. Rows would then be written to a deleted file.
        let is_named = step!("growth-is-named", is_named(&**disk, path, id)).doing("lock storage", path)?;
        let disk = Arc::clone(disk);
        Ok(is_named.then(|| GrowthLock { disk, lock, file, path: path.to_path_buf(), leftover_from: None }))
    }

    /// Takes the lock without waiting. Returns `None` if the lock is held or the file does not exist.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take) except `Busy`.
    pub(crate) fn try_take(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Self>> {
        match Self::take_or_busy(disk, path) {
            Err(e) if e.kind() == ErrorKind::Busy => Ok(None),
            taken => taken,
        }
    }

    /// Truncates the file to the length that the newest record states. Returns the number of deleted bytes. Deletes
    /// nothing if bytes past that length may be borrowed in this process, or if the file has several names.
    pub(crate) fn truncate(&self, length_bytes: u64) -> io::Result<u64> {
        let stat = self.file.stat()?;
        if stat.size_bytes <= length_bytes || !self.has_one_name(stat) || !self.keep_stable(length_bytes) {
            return Ok(0);
        }
        self.file.set_len(length_bytes)?;
        Ok(stat.size_bytes - length_bytes)
    }

    fn has_one_name(&self, stat: FileStat) -> bool {
        // Otherwise the file would also grow under its other names.
        step!("growth-has-one-name", stat.link_count == 1)
    }

    fn keep_stable(&self, stable_bytes: u64) -> bool {
        step!("keep-stable", self.lock.keep_stable(stable_bytes))
    }

    /// Checks that a file of the storage is at least as long as the record states, and has only one name.
    fn check_file(&self, file: &dyn DiskFile, path: &Path, length_bytes: u64) -> Result<()> {
        let stat = file.stat().doing("examine storage", path)?;
        // Otherwise an append would hide the damage.
        step!("growth-is-whole", check_length(path, stat.size_bytes, length_bytes))?;
        match self.has_one_name(stat) {
            true => Ok(()),
            false => Err(other_names_error(path, stat.link_count)),
        }
    }
}

/// A sealed storage that grows. New bytes are written past the end that its record states, and no reader reads them
/// until a commit publishes a longer record. Earlier bytes are never overwritten.
///
/// After a commit it can grow further. Dropping it releases the growth lock.
pub(crate) struct Growth {
    lock: GrowthLock,
    id: u64,
    from: StorageRecord,
    sealer: Sealer,
    /// The digests of the chunks that have become full.
    digests: Vec<Digest>,
    /// The `.sum` file, open for writing. `None` if the storage had no full chunk.
    sum: Option<(Arc<dyn DiskFile>, PathBuf)>,
    /// The number of bytes that are written and digested.
    written_bytes: u64,
    /// The bytes after those, not written yet.
    pending: Vec<u8>,
}

impl Growth {
    /// Prepares to append to a storage, under its lock. `from` is its newest record.
    ///
    /// # Errors
    /// `Corrupt` if a file is missing or too short, or if the tail does not match its digest: a new digest would hide
    /// the damage. `Conflict` for a file with several names; `Unsupported` for a storage that is not sealed; `Io`.
    pub(crate) fn begin(
        paths: &StorePaths,
        lock: GrowthLock,
        (id, from): (u64, StorageRecord),
        tails: &KnownTails,
    ) -> Result<Self> {
        let length_bytes = from.length_bytes;
        lock.check_file(&*lock.file, &lock.path, length_bytes)?;
        let sum = open_sum(paths, &lock, id, length_bytes)?;
        let sealer = match tails.sealer(id, &from) {
            Some(sealer) => sealer,
            None => read_sealer(&lock, id, &from)?,
        };
        let mut growth = Growth {
            lock,
            id,
            from,
            sealer,
            digests: Vec::new(),
            sum,
            written_bytes: length_bytes,
            pending: Vec::new(),
        };
        growth.allow_writes()?;
        Ok(growth)
    }

    /// Releases the growth lock after a commit has published `to`, the record that [`finish`](Self::finish) returned.
    pub(crate) fn release(self, to: &StorageRecord, tails: &KnownTails) {
        tails.remember(self.id, to, &self.sealer);
    }

    /// Continues after a commit has published `to`, so that more bytes can be appended for another commit.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin). The growth must then be dropped.
    pub(crate) fn continue_from(&mut self, paths: &StorePaths, to: StorageRecord) -> Result<()> {
        if self.sum.is_none() {
            self.sum = open_sum(paths, &self.lock, self.id, to.length_bytes)?;
        }
        self.digests.clear();
        self.from = to;
        self.allow_writes()
    }

    /// Allows writes past the published bytes. From now on, no slice in this process may borrow bytes there. Called
    /// again if nothing was published after [`finish`](Self::finish).
    pub(crate) fn allow_writes(&mut self) -> Result<()> {
        let length_bytes = self.from.length_bytes;
        if !self.lock.keep_stable(length_bytes) {
            let detail = "the file is also mapped in this process as a longer storage";
            return Err(broken(&self.lock.path, detail));
        }
        self.lock.leftover_from = Some(length_bytes);
        Ok(())
    }

    /// Makes the calling thread the holder of the growth lock. A second wait of that thread for the lock then fails at
    /// once.
    pub(crate) fn move_to_this_thread(&mut self) {
        self.lock.lock.move_to_this_thread();
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.written_bytes + self.pending.len() as u64
    }

    /// Allocates blocks for `additional_bytes`, so that a full disk is an error before most of them are written. Does
    /// nothing for less than a chunk, whose blocks the file system allocates better by itself.
    pub(crate) fn reserve(&self, additional_bytes: u64) -> Result<()> {
        self.check_process()?;
        if additional_bytes < CHUNK_BYTES {
            return Ok(());
        }
        let end = self.length_bytes().saturating_add(additional_bytes);
        let allocated = self.lock.file.allocate(self.length_bytes()..end);
        allocated.map(drop).doing("allocate storage", &self.lock.path)
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_process()?;
        if self.pending.len() + bytes.len() >= PENDING_BYTES {
            self.flush()?;
        }
        if bytes.len() < PENDING_BYTES {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        bytes.chunks(CHUNK).try_for_each(|piece| self.put(piece))
    }

    fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.put(&pending)?;
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.sealer.update(bytes, |full| self.digests.push(full));
        if !bytes.is_empty() {
            self.lock.file.write_all_at(bytes, self.written_bytes).doing("write storage", &self.lock.path)?;
            self.written_bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// Writes the remaining bytes and the digests of new full chunks, and syncs them if `durable`. May be called again
    /// if nothing was published.
    ///
    /// Each comment says what a crash just after the step leaves behind.
    pub(crate) fn finish(&mut self, paths: &StorePaths, durable: bool) -> Result<Grown> {
        self.check_process()?;
        let disk = &Arc::clone(&self.lock.disk);
        self.flush()?; // crash: bytes past the record's length, which the next growth overwrites
        let new_sum = match &self.sum {
            // The new file is published under the writers' lock.
            None => stage_sum(disk, &paths.storages_dir(), &self.digests, durable)?, // crash: an unfinished file, deleted later
            Some((file, path)) => {
                if !self.digests.is_empty() {
                    let offset_bytes = full_chunk_count(self.from.length_bytes) * DIGEST_BYTES;
                    file.write_all_at(self.digests.as_flattened(), offset_bytes)
                        .doing("write chunk digests", path)?; // crash: unused digests
                    if durable {
                        let synced = step!("sync-grown-digests", file.sync());
                        synced.syncing("sync chunk digests", path)?;
                    }
                }
                None
            }
        };
        if durable && self.written_bytes > self.from.length_bytes {
            let synced = step!("sync-grown", self.lock.file.sync()); // crash: unpublished bytes, now durable
            synced.syncing("sync storage", &self.lock.path)?;
        }
        self.lock.leftover_from = None;
        // From here on no byte changes. Once the commit is published, the new bytes may be borrowed.
        self.lock.lock.keep_stable(u64::MAX);
        let reserved_bytes = sealed_of(self.id, &self.from)?.reserved_bytes;
        let kind = RecordKind::Sealed(self.sealer.sealed(reserved_bytes));
        let to = StorageRecord { length_bytes: self.written_bytes, kind, ..self.from.clone() };
        Ok(Grown { id: self.id, from: self.from.clone(), to, new_sum })
    }

    fn check_process(&self) -> Result<()> {
        self.lock.lock.owner().check(|| format!("{}: rows were appended", self.lock.path.display()))
    }
}

fn sealed_of(id: u64, record: &StorageRecord) -> Result<Sealed> {
    match record.kind {
        RecordKind::Sealed(sealed) => Ok(sealed),
        _ => Err(Error::new(ErrorKind::Unsupported, format!("storage {id:016x} is not sealed"))),
    }
}

/// Reads the bytes after the last full chunk, and verifies them.
fn read_sealer(lock: &GrowthLock, id: u64, from: &StorageRecord) -> Result<Sealer> {
    let sealed = sealed_of(id, from)?;
    let mut tail = zeroed((from.length_bytes % CHUNK_BYTES) as usize)?;
    let tail_offset_bytes = from.length_bytes - tail.len() as u64;
    let read = lock.file.read_exact_at(&mut tail, tail_offset_bytes);
    read.doing("read the end of storage", &lock.path)?;
    if_test_omits_step!("tail-is-whole", sealed = Sealed { tail: stridemap_format::digest(&tail), ..sealed });
    Sealer::resume(&sealed, from.length_bytes, &tail).corrupt_in(&lock.path)
}

/// Opens the `.sum` file for writing. Returns `None` if the storage has no full chunk.
fn open_sum(
    paths: &StorePaths,
    lock: &GrowthLock,
    id: u64,
    length_bytes: u64,
) -> Result<Option<(Arc<dyn DiskFile>, PathBuf)>> {
    let chunk_count = full_chunk_count(length_bytes);
    if chunk_count == 0 {
        return Ok(None);
    }
    let path = paths.sum(id);
    let file = read_again(|| lock.disk.open(&path, Access::Write))
        .opening_to_write("open chunk digests for writing", &path)?;
    lock.check_file(&*file, &path, chunk_count * DIGEST_BYTES)?;
    Ok(Some((file, path)))
}

/// A storage that has grown, until a commit publishes its longer record. The [`Growth`] holds the growth lock until
/// then.
#[derive(Debug)]
pub(crate) struct Grown {
    pub(crate) id: u64,
    /// The record that it grew from. Its tensor count may have changed since.
    pub(crate) from: StorageRecord,
    pub(crate) to: StorageRecord,
    new_sum: Option<Staged>,
}

impl Grown {
    /// Publishes the storage's first chunk digests, under the writers' lock. Returns whether there are any.
    pub(crate) fn publish(&mut self, paths: &StorePaths) -> Result<bool> {
        let Some(sum) = &mut self.new_sum else { return Ok(false) };
        let target = paths.sum(self.id);
        step!("rename-grown-digests", sum.publish_over_orphan(&target))
            .doing("publish chunk digests", &target)?;
        // Until here, the lock marked the file as unfinished.
        sum.file().unlock().doing("publish chunk digests", &target)?;
        Ok(true)
    }
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth")
            .field("path", &self.lock.path)
            .field("from", &self.from)
            .field("length_bytes", &self.length_bytes())
            .finish_non_exhaustive()
    }
}
