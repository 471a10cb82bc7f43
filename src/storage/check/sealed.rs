//! Verifies the chunks of one sealed storage on several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use stridemap_format::{CHUNK_BYTES, Digest, Sealed, StorageRecord, full_chunk_count};

use super::{Damage, DigestDamage};
use crate::disk::{Disk, StorePaths};
use crate::error::Error;
use crate::storage::file::check_length;
use crate::storage::{DamagedChunk, VerifiedStorage};

/// The number of chunks that a thread takes at a time.
pub(super) const UNIT_CHUNKS: u64 = 8;

/// The limit on mismatching chunks that are recorded if the `.sum` file itself is damaged.
const MOST_DIFFERENT: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct SealedCheck {
    id: u64,
    storage: VerifiedStorage,
    length_bytes: u64,
    /// Why the record does not confirm the `.sum` file.
    sum_error: Option<Error>,
    file_error: Option<Error>,
    next_chunk: AtomicU64,
    done_chunks: AtomicU64,
    damaged: Mutex<Vec<DamagedChunk>>,
}

impl SealedCheck {
    pub(super) fn open(
        disk: &dyn Disk,
        paths: &StorePaths,
        id: u64,
        record: &StorageRecord,
        sealed: &Sealed,
    ) -> Result<Self, Damage> {
        let length_bytes = record.length_bytes;
        let (storage, sum_error) = VerifiedStorage::open_damaged(disk, paths, id, (length_bytes, sealed))
            .map_err(Damage::unusable)?;
        Ok(SealedCheck {
            id,
            file_error: check_length(&paths.storage(id), storage.found_bytes(), length_bytes).err(),
            storage,
            length_bytes,
            sum_error,
            next_chunk: AtomicU64::new(0),
            done_chunks: AtomicU64::new(0),
            damaged: Mutex::default(),
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of chunks to verify, including the tail, which may be empty. A record may state any length,
    /// so for a short file this is the number of full chunks in the file, plus one.
    pub(super) fn chunk_count(&self) -> u64 {
        full_chunk_count(self.length_bytes.min(self.storage.found_bytes())) + 1
    }

    pub(super) fn next_part(&self) -> Option<Range<u64>> {
        let start = self.next_chunk.fetch_add(UNIT_CHUNKS, Ordering::Relaxed);
        (start < self.chunk_count()).then(|| start..(start + UNIT_CHUNKS).min(self.chunk_count()))
    }

    /// Verifies some chunks, and returns the number of bytes read. Skips chunks that reach past the end of a short
    /// file.
    pub(super) fn check(&self, part: Range<u64>, buffer: &mut Vec<u8>) -> u64 {
        let count = part.end - part.start;
        let mut bytes = 0;
        for index in part {
            let end_bytes = ((index + 1) * CHUNK_BYTES).min(self.length_bytes);
            if end_bytes > self.storage.found_bytes() {
                continue;
            }
            if let Err(damaged) = self.storage.read_chunk(index, buffer) {
                let mut all = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
                if self.sum_error.is_none() || all.len() < MOST_DIFFERENT {
                    all.push(damaged);
                }
            }
            bytes += buffer.len() as u64;
        }
        self.done_chunks.fetch_add(count, Ordering::AcqRel);
        bytes
    }

    /// Returns the damage, if this was the last part to be checked.
    pub(super) fn finish_part(&self) -> Option<Damage> {
        let is_last = self.done_chunks.load(Ordering::Acquire) >= self.chunk_count();
        // Two threads may both see that all parts are done. Only the first gets the result.
        (is_last && self.done_chunks.swap(0, Ordering::AcqRel) >= self.chunk_count()).then(|| self.finish())
    }

    /// Returns the damage after every chunk was checked.
    pub(super) fn finish(&self) -> Damage {
        self.result(true)
    }

    /// Returns the damage after only some chunks were checked.
    pub(super) fn finish_some(&self) -> Damage {
        self.result(false)
    }

    fn result(&self, is_all: bool) -> Damage {
        let mut chunks = std::mem::take(&mut *self.damaged.lock().unwrap_or_else(PoisonError::into_inner));
        chunks.sort_by_key(|chunk| chunk.index);
        let full = full_chunk_count(self.length_bytes);
        let sum = self.sum_error.clone().map(|error| {
            let corrected = if is_all { self.corrected(&chunks) } else { None };
            // Of the full chunks, keep only those that could not be read. For the others, either the digest is
            // corrected or nothing is known.
            chunks.retain(|chunk| chunk.index >= full || chunk.found.is_err());
            DigestDamage { error, corrected }
        });
        Damage { file: self.file_error.clone(), found_bytes: Some(self.storage.found_bytes()), chunks, sum }
    }

    /// Returns corrections for the `.sum` file: the digests computed from the mismatching chunks, if the record
    /// confirms the result.
    fn corrected(&self, damaged: &[DamagedChunk]) -> Option<Vec<(u64, Digest)>> {
        let full = damaged.iter().filter(|chunk| chunk.index < full_chunk_count(self.length_bytes));
        let found: Vec<_> =
            full.filter_map(|chunk| Some((chunk.index, *chunk.found.as_ref().ok()?))).collect();
        self.storage.is_confirmed(&found).unwrap_or_default().then_some(found)
    }
}
