//! Checks the chunks of a sealed storage when a handle first reads them, if it verifies what it reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use stridemap_format::{CHUNK_BYTES, Digest, Header, RecordKind, StorageRecord, digest, full_chunk_count};

use super::verified_reader::{VerifiedStorage, chunk_damage};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, Result};
use crate::layout::for_each_range;
use crate::parallel;
use crate::storage::resize_discarding;

/// The number of chunks that one thread checks at least.
const CHUNKS_PER_THREAD: usize = 8;

/// The limit on threads that check chunks. Digests are computed faster than memory is read.
const MAX_THREADS: usize = 8;

/// The limit on names in an error.
const LISTED_NAMES: usize = 3;

/// How often to try to look up what was checked, and how long to wait between two tries.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_micros(100);

/// Which chunks of a storage a handle has checked. It outlives the storage: a handle opens the same storage again.
#[derive(Debug, Default)]
pub(crate) struct CheckedChunks(Mutex<Checked>);

#[derive(Debug, Default)]
struct Checked {
    /// A bit for each full chunk.
    full: Vec<u64>,
    /// The length of the storage when its tail was checked. A longer storage has another tail.
    with_tail_bytes: Option<u64>,
}

/// The digests of a sealed storage of one length.
pub(crate) struct ChunkChecks {
    path: PathBuf,
    length_bytes: u64,
    full: Vec<Digest>,
    tail: Digest,
    checked: Arc<CheckedChunks>,
    /// The tensors that were loaded on the storage, for errors.
    loaded: Mutex<BTreeMap<String, Arc<Header>>>,
}

impl CheckedChunks {
    /// Returns what was checked, or `None` if that is not known soon: a forked child never gets a lock that another thread of
    /// its parent held. A chunk may be checked again.
    fn lock(&self) -> Option<MutexGuard<'_, Checked>> {
        for _ in 0..LOCK_TRIES {
            match self.0.try_lock() {
                Ok(checked) => return Some(checked),
                Err(TryLockError::Poisoned(checked)) => return Some(checked.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
        None
    }
}

impl ChunkChecks {
    /// Reads the digests of a storage, or returns `None` if it has none. `checked` are the chunks that need no check.
    ///
    /// # Errors
    /// Those of [`VerifiedStorage::open`].
    pub(crate) fn open(
        disk: &dyn Disk,
        paths: &StorePaths,
        (id, record): (u64, &StorageRecord),
        checked: impl FnOnce() -> Arc<CheckedChunks>,
    ) -> Result<Option<Self>> {
        let (path, length_bytes) = (paths.storage(id), record.length_bytes);
        let RecordKind::Sealed(sealed) = record.kind else { return Ok(None) };
        // The record has the digest of a storage without a full chunk.
        let full = match full_chunk_count(length_bytes) {
            0 => Vec::new(),
            _ => VerifiedStorage::open(disk, paths, id, record)?.into_digests()?,
        };
        let (tail, checked, loaded) = (sealed.tail, checked(), Mutex::default());
        Ok(Some(ChunkChecks { path, length_bytes, full, tail, checked, loaded }))
    }

    /// Notes that a tensor with this name was loaded.
    pub(crate) fn note_loaded(&self, name: &str, header: &Arc<Header>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.insert(name.to_owned(), Arc::clone(header));
    }

    /// Checks all chunks that a range touches, except for those that were checked before. `bytes` are those of the storage.
    ///
    /// # Errors
    /// `Corrupt` with [`Rule::ChunkDigest`](crate::Rule::ChunkDigest) at a chunk that was changed.
    pub(in crate::storage) fn check(&self, range: Range<u64>, bytes: &[u8]) -> Result<()> {
        let chunks = self.unchecked(range.clone());
        if chunks.is_empty() {
            return Ok(());
        }
        let most = (chunks.len() / CHUNKS_PER_THREAD).clamp(1, MAX_THREADS);
        parallel::in_order(
            parallel::thread_count(most),
            |push| chunks.into_iter().try_for_each(push),
            |index| {
                let chunk = self.bytes_of(index);
                (index, digest(bytes.get(chunk.start as usize..chunk.end as usize).unwrap_or_default()))
            },
            |(index, found)| self.compare(index, found, &range),
        )
    }

    /// Reads a range of bytes, and checks the chunks in it that were not checked before. Each chunk is read once. `read`
    /// fills a buffer with the bytes at an offset.
    ///
    /// # Errors
    /// Those of [`check`](Self::check), and of `read`. The buffer then has bytes that were not checked.
    pub(in crate::storage) fn read_at(
        &self,
        buf: &mut [u8],
        offset_bytes: u64,
        read: impl Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        let end = offset_bytes.saturating_add(buf.len() as u64);
        let mut chunk = Vec::new();
        let (mut start, mut rest) = (offset_bytes, buf);
        for index in self.unchecked(offset_bytes..end) {
            let bytes = self.bytes_of(index);
            // First, the checked bytes before the chunk.
            let (before, after) = rest.split_at_mut(bytes.start.saturating_sub(start) as usize);
            if !before.is_empty() {
                read(before, start)?;
            }
            start += before.len() as u64;
            let part = start..bytes.end.min(end);
            let (wanted, after) = after.split_at_mut((part.end - part.start) as usize);
            if part == bytes {
                read(wanted, start)?;
                self.compare(index, digest(wanted), &part)?;
            } else {
                resize_discarding(&mut chunk, (bytes.end - bytes.start) as usize)?;
                read(&mut chunk, bytes.start)?;
                self.compare(index, digest(&chunk), &part)?;
                wanted.copy_from_slice(&chunk[(start - bytes.start) as usize..][..wanted.len()]);
            }
            (start, rest) = (part.end, after);
        }
        if rest.is_empty() { Ok(()) } else { read(rest, start) }
    }

    /// Returns the chunks that a range touches and that were not checked. What is past the storage has none.
    fn unchecked(&self, range: Range<u64>) -> Vec<u64> {
        let end = range.end.min(self.length_bytes);
        let checked = self.checked.lock();
        let chunks = range.start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES);
        let is_checked =
            |index| checked.as_ref().is_some_and(|it| it.has(index, self.full.len(), self.length_bytes));
        chunks.filter(|&index| !is_checked(index)).collect()
    }

    /// Returns the bytes of a chunk. The last one, the tail, is shorter.
    fn bytes_of(&self, index: u64) -> Range<u64> {
        let start = index * CHUNK_BYTES;
        start..self.length_bytes.min(start + CHUNK_BYTES)
    }

    /// Compares the digest of a chunk with the stored one, and notes that it was checked. `range` is what is read, for the error.
    fn compare(&self, index: u64, found: Digest, range: &Range<u64>) -> Result<()> {
        if *self.full.get(index as usize).unwrap_or(&self.tail) != found {
            return Err(self.damage(index, range));
        }
        if let Some(mut checked) = self.checked.lock() {
            checked.add(index, self.full.len(), self.length_bytes);
        }
        Ok(())
    }

    /// Returns the error for a chunk that was changed. It names the loaded tensors that have elements in the part of it that
    /// is read.
    fn damage(&self, index: u64, range: &Range<u64>) -> Error {
        let chunk = self.bytes_of(index);
        let (start, end) = (range.start.max(chunk.start), range.end.min(chunk.end));
        let error = chunk_damage(&self.path, index, chunk.end - chunk.start)
            .advised("`stridemap verify` lists all damage, and `stridemap salvage` copies what is whole");
        // In a forked child, as above.
        let loaded = match self.loaded.try_lock() {
            Ok(loaded) => Some(loaded),
            Err(TryLockError::Poisoned(loaded)) => Some(loaded.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let is_hit = |header: &Header| {
            let mut is_hit = false;
            let inside = for_each_range(header, self.length_bytes, 1, |range| {
                is_hit |= range.start < end && start < range.end;
            });
            inside.is_ok() && is_hit
        };
        let mut hit = loaded
            .iter()
            .flat_map(|loaded| loaded.iter())
            .filter(|(_, header)| is_hit(header))
            .map(|(name, _)| name);
        let mut names: Vec<String> =
            hit.by_ref().take(LISTED_NAMES).map(|name| format!("{name:?}")).collect();
        match hit.count() {
            0 => {}
            more => names.push(format!("{more} more")),
        }
        match names.split_last() {
            None => error,
            Some((only, [])) => error.context(format_args!("read {only}")),
            Some((last, first)) => error.context(format_args!("read {} and {last}", first.join(", "))),
        }
    }
}

impl Checked {
    fn has(&self, index: u64, full_count: usize, length_bytes: u64) -> bool {
        if index >= full_count as u64 {
            return self.with_tail_bytes == Some(length_bytes);
        }
        let bits = self.full.get((index / 64) as usize).copied().unwrap_or_default();
        bits >> (index % 64) & 1 == 1
    }

    fn add(&mut self, index: u64, full_count: usize, length_bytes: u64) {
        if index >= full_count as u64 {
            self.with_tail_bytes = Some(length_bytes);
            return;
        }
        let at = (index / 64) as usize;
        if self.full.len() <= at {
            self.full.resize(at + 1, 0);
        }
        self.full[at] |= 1 << (index % 64);
    }
}
