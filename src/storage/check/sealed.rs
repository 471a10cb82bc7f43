//! One sealed storage, whose chunks several threads hold against their digests.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stridemap_format::{
    CHUNK_BYTES, ChunkChain, Digest, Error as FormatError, Rule, Sealed, StorageRecord, digest,
    digests_of_chunks, full_chunk_count,
};

use super::{DamagedChunk, Harm, SumHarm, open_file, short};
use crate::disk::{Access, Disk, DiskFile, StorePaths};
use crate::error::{Error, Result};
use crate::storage::file::{broken, open_error, read_error};

/// How many chunks a thread takes at a time.
pub(super) const UNIT_CHUNKS: u64 = 8;

/// How many digests of a `.sum` file are in memory at a time.
const PIECE_DIGESTS: u64 = 256;
const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// Of how many chunks each of the two digests, that of the file and that of the bytes, is tried, when the record's is
/// of neither all the former nor all the latter: all ways to choose.
const MOST_CHOICES: usize = 10;

/// How many chunks that are not as the `.sum` file says are remembered, when that is damaged itself.
const MOST_DIFFERENT: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Checked {
    id: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// How much of the storage is there.
    found_bytes: u64,
    length_bytes: u64,
    sealed: Sealed,
    sum: Option<Sum>,
    /// Why the `.sum` file is not what the record says.
    sum_error: Option<Error>,
    file_error: Option<Error>,
    next_chunk: AtomicU64,
    done_chunks: AtomicU64,
    different: Mutex<Vec<Different>>,
}

/// The digests of full chunks, as their file has them: perhaps fewer than there should be.
#[derive(Debug)]
struct Sum {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    count: u64,
}

/// A chunk that has not the digest that is stated.
#[derive(Debug)]
struct Different {
    index: u64,
    /// What it has; or why it cannot be read.
    digest: Result<Digest>,
    is_stated: bool,
}

impl Checked {
    pub(super) fn open(
        disk: &dyn Disk,
        paths: &StorePaths,
        id: u64,
        record: &StorageRecord,
        sealed: &Sealed,
    ) -> Result<Self, Harm> {
        let (file, found_bytes) = open_file(disk, paths, id).map_err(|e| Harm::unusable(e, None))?;
        let (sum, sum_error) = match full_chunk_count(record.length_bytes) {
            0 => (None, None),
            count => match Sum::open(disk, paths.sum(id), count) {
                Ok((sum, error)) => (Some(sum), error),
                Err(e) => (None, Some(e)),
            },
        };
        let mut checked = Checked {
            id,
            path: paths.storage(id),
            file,
            found_bytes,
            length_bytes: record.length_bytes,
            sealed: *sealed,
            sum,
            sum_error,
            file_error: short(paths, id, found_bytes, record),
            next_chunk: AtomicU64::new(0),
            done_chunks: AtomicU64::new(0),
            different: Mutex::default(),
        };
        if checked.sum_error.is_none() && checked.link(&[]).is_none_or(|link| link != sealed.chunks) {
            let changed = FormatError::new(Rule::ChunkDigest, "the chunk digests were changed");
            checked.sum_error = Some(Error::corrupt(&checked.sum_path(paths), changed));
        }
        Ok(checked)
    }

    /// Of a storage without a full chunk, that has no `.sum` file, it is the record that is wrong.
    fn sum_path(&self, paths: &StorePaths) -> PathBuf {
        if self.sum.is_some() { paths.sum(self.id) } else { self.path.clone() }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// How many chunks there are to be looked at; the tail is one, and that of no bytes as well. A record may state any
    /// length, so of a short file it is those that begin in it.
    pub(super) fn chunk_count(&self) -> u64 {
        full_chunk_count(self.length_bytes.min(self.found_bytes)) + 1
    }

    pub(super) fn next_part(&self) -> Option<Range<u64>> {
        let start = self.next_chunk.fetch_add(UNIT_CHUNKS, Ordering::Relaxed);
        (start < self.chunk_count()).then(|| start..(start + UNIT_CHUNKS).min(self.chunk_count()))
    }

    /// Reads some chunks; gives how many bytes they were. What is past the end of a short file is left out.
    pub(super) fn check(&self, part: Range<u64>, buffer: &mut Vec<u8>) -> u64 {
        let mut bytes = 0;
        let (first, count) = (part.start, part.end - part.start);
        let stated = self.sum.as_ref().map_or(Ok(Vec::new()), |sum| sum.digests(first, count));
        // What cannot be read there is not stated; the chain has told.
        let stated = stated.unwrap_or_default();
        for index in part {
            let offset_bytes = index * CHUNK_BYTES;
            let end_bytes = (offset_bytes + CHUNK_BYTES).min(self.length_bytes);
            if end_bytes > self.found_bytes {
                continue;
            }
            let is_full = index < full_chunk_count(self.length_bytes);
            let expected =
                if is_full { stated.get((index - first) as usize) } else { Some(&self.sealed.tail) };
            buffer.resize((end_bytes - offset_bytes) as usize, 0);
            let read = self.file.read_exact_at(buffer, offset_bytes);
            let found = read.map(|()| digest(buffer)).map_err(|e| read_error(&self.path, e));
            bytes += buffer.len() as u64;
            if found.as_ref().ok() != expected {
                let different = Different { index, digest: found, is_stated: expected.is_some() };
                let mut all = self.different.lock().unwrap_or_else(PoisonError::into_inner);
                if self.sum_error.is_none() || all.len() < MOST_DIFFERENT {
                    all.push(different);
                }
            }
        }
        self.done_chunks.fetch_add(count, Ordering::AcqRel);
        bytes
    }

    /// What is wrong, once the last part was checked.
    pub(super) fn finish_part(&self) -> Option<Harm> {
        let is_last = self.done_chunks.load(Ordering::Acquire) >= self.chunk_count();
        // Two threads may both see the last: the first one takes it.
        (is_last && self.done_chunks.swap(0, Ordering::AcqRel) >= self.chunk_count()).then(|| self.finish())
    }

    pub(super) fn finish(&self) -> Harm {
        self.result(true)
    }

    /// As [`finish`](Self::finish), when only some chunks were read.
    pub(super) fn finish_some(&self) -> Harm {
        self.result(false)
    }

    fn result(&self, is_all: bool) -> Harm {
        let mut different =
            std::mem::take(&mut *self.different.lock().unwrap_or_else(PoisonError::into_inner));
        different.sort_by_key(|different| different.index);
        let full = full_chunk_count(self.length_bytes);
        let mut right = None;
        if self.sum_error.is_some() {
            if is_all {
                right = self.right_digests(&different);
            }
            match &right {
                // A chunk whose digest is what was wrong is whole.
                Some(right) => different.retain(|chunk| {
                    chunk.index >= full
                        || right.binary_search_by_key(&chunk.index, |(index, _)| *index).is_err()
                }),
                None => different.retain(|chunk| chunk.index >= full || chunk.digest.is_err()),
            }
        }
        let chunks = different.into_iter();
        Harm {
            file: self.file_error.clone(),
            found_bytes: Some(self.found_bytes),
            chunks: chunks
                .map(|chunk| DamagedChunk { index: chunk.index, unread: chunk.digest.err() })
                .collect(),
            sum: self.sum_error.clone().map(|error| SumHarm { error, right }),
        }
    }

    /// The digests that are wrong in the `.sum` file, found by trying: the record confirms them.
    fn right_digests(&self, different: &[Different]) -> Option<Vec<(u64, Digest)>> {
        let full = full_chunk_count(self.length_bytes);
        if different.len() >= MOST_DIFFERENT || full == 0 {
            return None;
        }
        let (mut choices, mut given) = (Vec::new(), Vec::new());
        for chunk in different.iter().filter(|chunk| chunk.index < full) {
            match (&chunk.digest, chunk.is_stated) {
                (Ok(digest), true) => choices.push((chunk.index, *digest)),
                (Ok(digest), false) => given.push((chunk.index, *digest)),
                (Err(_), true) => {}
                (Err(_), false) => return None,
            }
        }
        if choices.len() > MOST_CHOICES {
            return None;
        }
        (0..1u32 << choices.len()).find_map(|chosen| {
            let mut right = given.clone();
            right.extend(choices.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, &c)| c));
            right.sort_unstable();
            (self.link(&right)? == self.sealed.chunks).then_some(right)
        })
    }

    /// The end of the chain over the digests of the file, with some in place of those that are there; none when one is
    /// missing.
    fn link(&self, instead: &[(u64, Digest)]) -> Option<Digest> {
        let full = full_chunk_count(self.length_bytes);
        let mut chain = ChunkChain::default();
        let mut instead = instead.iter().peekable();
        let mut index = 0;
        while index < full {
            let count = (full - index).min(PIECE_DIGESTS);
            let stated = self.sum.as_ref().map_or(Ok(Vec::new()), |sum| sum.digests(index, count)).ok()?;
            for at in 0..count {
                let replaced = instead.next_if(|(replaced, _)| *replaced == index + at);
                chain.push(replaced.map(|(_, digest)| *digest).or(stated.get(at as usize).copied())?);
            }
            index += count;
        }
        Some(chain.link())
    }
}

impl Sum {
    /// Opens a file that may be short, and says so.
    fn open(disk: &dyn Disk, path: PathBuf, chunk_count: u64) -> Result<(Self, Option<Error>)> {
        let failed = |e: io::Error| open_error("open chunk digests", &path, Access::Read, e);
        let file = disk.open(&path, Access::Read).map_err(failed)?;
        let found_bytes = file.stat().map_err(failed)?.size_bytes;
        let expected_bytes = chunk_count.saturating_mul(DIGEST_BYTES);
        let error = (found_bytes < expected_bytes).then(|| {
            let detail =
                format!("{found_bytes} bytes, where the storage has {expected_bytes} bytes of digests");
            broken(&path, detail)
        });
        let count = (found_bytes / DIGEST_BYTES).min(chunk_count);
        Ok((Sum { file, path, count }, error))
    }

    /// As many of them as are there.
    fn digests(&self, first: u64, count: u64) -> Result<Vec<Digest>> {
        let count = self.count.saturating_sub(first).min(count);
        let mut piece = vec![0; (count * DIGEST_BYTES) as usize];
        let read = self.file.read_exact_at(&mut piece, first * DIGEST_BYTES);
        read.map_err(|e| read_error(&self.path, e))?;
        Ok(digests_of_chunks(&piece).collect())
    }
}
