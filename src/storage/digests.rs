use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{
    CHUNK_BYTES, ChunkChain, Digest, Error as FormatError, Rule, Sealed, digest, digests_of_chunks,
    full_chunk_count,
};

use super::file::{broken, open_error, open_whole, read_error};
use crate::disk::{Access, Disk, DiskFile, StorePaths};
use crate::error::{Error, Result};

/// Bytes of chunk digests in memory at a time: a record may claim any number of chunks.
const PIECE_BYTES: u64 = 4096;
const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// A sealed storage whose chunk digests are those of its record, and that gives no byte before it has held its chunk
/// against them. Who copies bytes to where they get digests of their own reads them here, or would seal the damage.
pub(crate) struct VerifiedStorage {
    file: Arc<dyn DiskFile>,
    /// Shared with who goes through the chunks while this is read: a range may be one element.
    path: Arc<Path>,
    length_bytes: u64,
    tail: Digest,
    /// The digests of full chunks; none without one.
    sum: Option<Sum>,
    /// The chunk that was read last, by its index: ranges that ascend read each chunk once.
    chunk_index: Option<u64>,
    chunk: Vec<u8>,
}

struct Sum {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    length_bytes: u64,
    /// The digests read last, and the index of the first of them.
    first_index: u64,
    digests: Vec<Digest>,
}

/// One chunk of a sealed storage as its file has it.
pub(crate) struct Chunk<'a> {
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: &'a [u8],
    /// Whether the bytes are not those that were sealed.
    pub(crate) is_damaged: bool,
}

impl VerifiedStorage {
    /// Opens the files of storage `id`, and reads all its chunk digests. No byte of the storage is read.
    ///
    /// # Errors
    /// `Corrupt` when a file is missing or short ([`Rule::StorageFile`]), or the chunk digests are not those of the
    /// record ([`Rule::ChunkDigest`]); `Io`.
    pub(crate) fn open(
        disk: &dyn Disk,
        paths: &StorePaths,
        id: u64,
        (length_bytes, sealed): (u64, &Sealed),
    ) -> Result<Self> {
        let path: Arc<Path> = paths.storage(id).into();
        let file = open_whole(disk, &path, length_bytes)?;
        let (sum, link) = match full_chunk_count(length_bytes) {
            0 => (None, ChunkChain::default().link()),
            count => {
                let mut sum = Sum::open(disk, paths.sum(id), count)?;
                let link = sum.link(count)?;
                (Some(sum), link)
            }
        };
        if link != sealed.chunks {
            let path = sum.map_or_else(|| path.to_path_buf(), |sum| sum.path);
            let changed = FormatError::new(Rule::ChunkDigest, "the chunk digests were changed");
            return Err(Error::corrupt(&path, changed));
        }
        Ok(VerifiedStorage {
            file,
            path,
            length_bytes,
            tail: sealed.tail,
            sum,
            chunk_index: None,
            chunk: Vec::new(),
        })
    }

    /// The operating system's file, to share its blocks; none for a simulated one.
    pub(crate) fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }

    /// Goes through the chunks that a range of bytes touches, damaged ones too. What is past the storage's end is left
    /// out. The empty tail of a storage is a chunk as well, when the range ends behind the storage.
    ///
    /// # Errors
    /// Those of `visit`; `Io`, and `Corrupt` for a file that has become shorter.
    pub(crate) fn visit_chunks(
        &mut self,
        range: Range<u64>,
        mut visit: impl FnMut(Chunk<'_>) -> Result<()>,
    ) -> Result<()> {
        let end = range.end.min(self.length_bytes.saturating_add(1)).div_ceil(CHUNK_BYTES);
        for index in range.start / CHUNK_BYTES..end {
            let is_damaged = !self.read_chunk(index)?;
            visit(Chunk { offset_bytes: index * CHUNK_BYTES, bytes: &self.chunk, is_damaged })?;
        }
        Ok(())
    }

    /// Gives the bytes of a range, in their order, once their chunks are verified.
    ///
    /// # Errors
    /// Those of `take`; `Corrupt` by [`Rule::ChunkDigest`] at the first damaged chunk, by [`Rule::StorageFile`] for a range
    /// past the end; `Io`.
    pub(crate) fn read(
        &mut self,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if range.end > self.length_bytes {
            let detail = format!("{} bytes, where {} are to be read", self.length_bytes, range.end);
            return Err(broken(&self.path, detail));
        }
        if range.is_empty() {
            return Ok(());
        }
        let path = Arc::clone(&self.path);
        self.visit_chunks(range.clone(), |chunk| {
            if chunk.is_damaged {
                return Err(chunk.damage(&path));
            }
            let within =
                |at: u64| (at.saturating_sub(chunk.offset_bytes)).min(chunk.bytes.len() as u64) as usize;
            let (before_end, _) = chunk.bytes.split_at(within(range.end));
            take(before_end.split_at(within(range.start)).1)
        })
    }

    /// Reads a chunk into `self.chunk`; gives whether it has its digest.
    fn read_chunk(&mut self, index: u64) -> Result<bool> {
        let offset_bytes = index * CHUNK_BYTES;
        if self.chunk_index == Some(index) {
            return Ok(true);
        }
        self.chunk_index = None;
        let stated = match &mut self.sum {
            Some(sum) if index < full_chunk_count(self.length_bytes) => sum.digest(index)?,
            _ => self.tail,
        };
        self.chunk.resize(self.length_bytes.saturating_sub(offset_bytes).min(CHUNK_BYTES) as usize, 0);
        self.file.read_exact_at(&mut self.chunk, offset_bytes).map_err(|e| read_error(&self.path, e))?;
        let is_whole = digest(&self.chunk) == stated;
        // A damaged one is found damaged again.
        self.chunk_index = is_whole.then_some(index);
        Ok(is_whole)
    }
}

impl Chunk<'_> {
    /// What is wrong with it, when it is damaged.
    pub(crate) fn damage(&self, path: &Path) -> Error {
        let detail = format!("the chunk of {} bytes from here on was changed", self.bytes.len());
        Error::corrupt(path, FormatError::new(Rule::ChunkDigest, detail).at(self.offset_bytes))
    }
}

impl Sum {
    fn open(disk: &dyn Disk, path: PathBuf, chunk_count: u64) -> Result<Self> {
        let length_bytes = chunk_count * DIGEST_BYTES;
        let failed = |e| open_error("open chunk digests", &path, Access::Read, e);
        let file = disk.open(&path, Access::Read).map_err(failed)?;
        let found_bytes = file.stat().map_err(failed)?.size_bytes;
        if found_bytes < length_bytes {
            let detail =
                format!("{found_bytes} bytes, where the storage has {length_bytes} bytes of digests");
            return Err(broken(&path, detail));
        }
        Ok(Sum { file, path, length_bytes, first_index: 0, digests: Vec::new() })
    }

    /// The end of the chain over the first `chunk_count` digests.
    fn link(&mut self, chunk_count: u64) -> Result<Digest> {
        let mut chain = ChunkChain::default();
        for index in 0..chunk_count {
            chain.push(self.digest(index)?);
        }
        Ok(chain.link())
    }

    fn digest(&mut self, index: u64) -> Result<Digest> {
        let read = index.checked_sub(self.first_index).and_then(|at| self.digests.get(at as usize));
        if let Some(digest) = read {
            return Ok(*digest);
        }
        let offset_bytes = index * DIGEST_BYTES;
        let piece_bytes = self.length_bytes.saturating_sub(offset_bytes).min(PIECE_BYTES);
        let mut piece = vec![0; piece_bytes as usize];
        self.file.read_exact_at(&mut piece, offset_bytes).map_err(|e| read_error(&self.path, e))?;
        (self.first_index, self.digests) = (index, digests_of_chunks(&piece).collect());
        self.digests.first().copied().ok_or_else(|| broken(&self.path, format!("no digest of chunk {index}")))
    }
}

impl fmt::Debug for VerifiedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedStorage")
            .field("path", &self.path)
            .field("length_bytes", &self.length_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{SimulatedDisk, StorePaths};
    use crate::storage::StorageWriter;
    use stridemap_format::{StorageKind, StorageRecord};

    const CHUNK: usize = CHUNK_BYTES as usize;

    fn storage(length: usize) -> (Arc<dyn Disk>, StorePaths, StorageRecord, Vec<u8>) {
        let (disk, paths): (Arc<dyn Disk>, _) =
            (Arc::new(SimulatedDisk::new()), StorePaths::new(Path::new("store")));
        disk.create_dir(Path::new("store")).unwrap();
        disk.create_dir(&paths.storages_dir()).unwrap();
        let bytes: Vec<u8> =
            (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut writer = StorageWriter::sealed(&disk, &paths).unwrap();
        writer.write(&bytes).unwrap();
        let mut staged = writer.finish(&disk, &paths, true).unwrap();
        staged.publish(&paths, 1).unwrap();
        let record = staged.record().clone();
        (disk, paths, record, bytes)
    }

    fn open(disk: &Arc<dyn Disk>, paths: &StorePaths, record: &StorageRecord) -> Result<VerifiedStorage> {
        let StorageKind::Sealed(sealed) = &record.kind else { panic!("{record:?}") };
        VerifiedStorage::open(&**disk, paths, 1, (record.length_bytes, sealed))
    }

    fn read(storage: &mut VerifiedStorage, range: Range<usize>) -> Result<Vec<u8>> {
        let mut read = Vec::new();
        storage.read(range.start as u64..range.end as u64, |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(read)
    }

    #[test]
    fn any_range_reads_as_it_was_written() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let (disk, paths, record, bytes) = storage(length);
            let mut storage = open(&disk, &paths, &record).unwrap();
            for range in
                [0..0, 0..1, 0..length, length..length, length / 2..length, CHUNK - 3..CHUNK + 2, 5..9]
            {
                match bytes.get(range.clone()) {
                    Some(expected) => assert_eq!(read(&mut storage, range).unwrap(), expected),
                    None => {
                        assert_eq!(read(&mut storage, range).unwrap_err().rule(), Some(Rule::StorageFile))
                    }
                }
            }
        }
    }

    #[test]
    fn damage_is_seen_by_who_reads_its_chunk_and_by_nobody_else() {
        let (disk, paths, record, bytes) = storage(2 * CHUNK + 9);
        let file = disk.open(&paths.storage(1), Access::Write).unwrap();
        for (at, chunk, other) in
            [(CHUNK + 5, CHUNK..CHUNK + 1, 0..CHUNK), (2 * CHUNK + 8, 2 * CHUNK..2 * CHUNK + 1, 7..9)]
        {
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            let mut storage = open(&disk, &paths, &record).unwrap();
            for _ in 0..2 {
                let damage = read(&mut storage, chunk.clone()).unwrap_err();
                assert_eq!(damage.rule(), Some(Rule::ChunkDigest), "{damage}");
                assert_eq!(damage.broken().unwrap().offset_bytes(), Some(chunk.start as u64));
                assert_eq!(read(&mut storage, other.clone()).unwrap(), bytes[other.clone()]);
            }
            file.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
        let sum = disk.open(&paths.sum(1), Access::Write).unwrap();
        sum.write_all_at(b"x", 17).unwrap();
        let damage = open(&disk, &paths, &record).unwrap_err();
        assert_eq!((damage.rule(), damage.broken_path()), (Some(Rule::ChunkDigest), Some(&*paths.sum(1))));
    }
}
