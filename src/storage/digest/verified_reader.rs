//! Reads chunks of a sealed storage and checks their digests. Compaction, copies, verify and salvage read this way. A
//! handle that verifies what it reads checks chunks where they are: see `chunk_checks`.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use stridemap_format::{
    CHUNK_BYTES, ChunkChain, Digest, Error as FormatError, RecordKind, Rule, Sealed, StorageRecord, digest,
    digests_of_chunks, full_chunk_count,
};

use super::rewrite::{ByteSource, Sink};
use crate::disk::{Access, Disk, DiskFile, StorePaths, read_again};
use crate::error::{Error, Result};
use crate::storage::grow::writer::StorageWriter;
use crate::storage::open_file::{OpenContext, broken, check_length, read_error};
use crate::storage::read_ahead::ReadAhead;
use crate::storage::{resize_discarding, zeroed};

/// The number of chunk digests in memory at a time. It is limited because a record may claim any number of chunks.
const PIECE_DIGESTS: u64 = 256;
const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// Reads a sealed storage, and returns a chunk only if it matches its digest. Code that copies bytes under new
/// digests reads them through this type. Otherwise damaged bytes would get valid digests.
pub(crate) struct VerifiedStorage {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// The length of the file.
    found_bytes: u64,
    length_bytes: u64,
    sealed: Sealed,
    /// The digests of full chunks. `None` if the storage has no full chunk, or if the file of digests is missing.
    sum: Option<SumFile>,
    /// Digests that replace those of the file, in ascending order of chunk.
    corrected: Vec<(u64, Digest)>,
    /// The index of the chunk that [`read`](ByteSource::read) has in memory. Ascending ranges read each chunk once.
    chunk_index: Option<u64>,
    chunk: Vec<u8>,
}

/// A `.sum` file, and the number of required digests that it contains.
struct SumFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    count: u64,
    /// Of a file that is far away: the digests that were read last, and the index of the first.
    last: Mutex<(u64, Vec<Digest>)>,
}

/// A chunk that was read and does not match its digest. The bytes after the last full chunk, possibly none, also count
/// as a chunk.
#[derive(Debug)]
pub(crate) struct DamagedChunk {
    pub(crate) index: u64,
    /// The digest of the bytes, or why the disk cannot read them.
    pub(crate) found: Result<Digest, Error>,
}

/// What to do about bytes that the disk cannot read, even when asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Fail: nothing is known about them.
    Fail,
    /// Go on without them.
    Skip,
}

impl Unreadable {
    /// Whether to go on after an error. After any other error than that of the disk or of its file system, such as too
    /// many open files, a later read may succeed.
    pub(crate) fn skips(self, error: &Error) -> bool {
        let cause = || error.io_error()?.raw_os_error();
        let is_of_the_disk = |number| [Errno::IO, Errno::UCLEAN].contains(&Errno::from_raw_os_error(number));
        self == Unreadable::Skip && cause().is_some_and(is_of_the_disk)
    }

    /// Separates damage, which is the inner error, from a failure to read, which says nothing about the bytes.
    pub(crate) fn damage_in<T>(self, read: Result<T>) -> Result<Result<T, Error>> {
        match read {
            Err(e) if e.format_error().is_none() && !self.skips(&e) => Err(e),
            read => Ok(read),
        }
    }
}

impl VerifiedStorage {
    /// Opens the files of storage `id`, and reads all its chunk digests. Reads no byte of the storage itself.
    ///
    /// # Errors
    /// `Corrupt` if a file is missing or short ([`Rule::StorageFile`]), or if the record does not confirm the chunk
    /// digests ([`Rule::ChunkDigest`]); `Io`.
    pub(crate) fn open(disk: &dyn Disk, paths: &StorePaths, id: u64, record: &StorageRecord) -> Result<Self> {
        let (storage, error) = Self::open_unchecked(disk, paths, (id, record), Unreadable::Fail)?;
        check_length(&storage.path, storage.found_bytes, record.length_bytes)?;
        error.map_or(Ok(storage), Err)
    }

    /// Like [`open`](Self::open), but the file may be short. Also returns the error about the chunk digests, if there
    /// is one.
    ///
    /// # Errors
    /// `Corrupt` if the storage's own file is missing or not a regular file; `Io`.
    pub(crate) fn open_unchecked(
        disk: &dyn Disk,
        paths: &StorePaths,
        (id, record): (u64, &StorageRecord),
        unreadable: Unreadable,
    ) -> Result<(Self, Option<Error>)> {
        let (path, length_bytes) = (paths.storage(id), record.length_bytes);
        let RecordKind::Sealed(sealed) = record.kind else {
            return Err(broken(&path, "the storage is not sealed".to_owned()));
        };
        let file = read_again(|| disk.open(&path, Access::Read)).opening("open storage", &path)?;
        let found_bytes = read_again(|| file.stat()).opening("open storage", &path)?.size_bytes;
        let (sum, mut error) = match full_chunk_count(length_bytes) {
            0 => (None, None),
            count => match unreadable.damage_in(SumFile::open(disk, paths.sum(id), count))? {
                Ok((sum, error)) => (Some(sum), error),
                Err(e) => (None, Some(e)),
            },
        };
        let mut storage = VerifiedStorage {
            file,
            path,
            found_bytes,
            length_bytes,
            sealed,
            sum,
            corrected: Vec::new(),
            chunk_index: None,
            chunk: Vec::new(),
        };
        if error.is_none() {
            error = unreadable.damage_in(storage.check_digests())?.err();
            if error.as_ref().is_some_and(|e| unreadable.skips(e)) {
                storage.sum = None;
            }
        }
        Ok((storage, error))
    }

    /// Opens a damaged storage. `corrected` has replacements for digests that are wrong or missing in the `.sum`
    /// file.
    pub(crate) fn open_damaged(
        disk: &dyn Disk,
        paths: &StorePaths,
        file: (u64, &StorageRecord),
        corrected: Vec<(u64, Digest)>,
    ) -> Result<Self> {
        let (storage, _) = Self::open_unchecked(disk, paths, file, Unreadable::Skip)?;
        Ok(VerifiedStorage { corrected, ..storage })
    }

    /// Starts a storage that is to replace this one. It reserves the same address space.
    pub(crate) fn start_copy(
        &self,
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        durable: bool,
    ) -> Result<StorageWriter> {
        let mut writer = StorageWriter::sealed(disk, paths, durable)?;
        writer.reserve_address_space(self.sealed.reserved_bytes);
        Ok(writer)
    }

    /// Returns the operating system's file, to share its blocks, or `None` for a simulated file.
    pub(crate) fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }

    /// Returns what announces reads of these chunks, or `None` if that is of no use.
    pub(crate) fn read_ahead(
        &self,
        chunks: Range<u64>,
    ) -> Option<ReadAhead<impl Iterator<Item = Range<u64>> + use<>>> {
        let length_bytes = self.length_bytes;
        let bytes = move |index: u64| {
            let start = index * CHUNK_BYTES;
            start..(start + CHUNK_BYTES).min(length_bytes).max(start)
        };
        ReadAhead::of(&self.file, chunks.map(bytes))
    }

    pub(crate) fn found_bytes(&self) -> u64 {
        self.found_bytes
    }

    /// Reads a chunk into `buffer`, and returns it if it is damaged. The buffer may be used only if this returns
    /// `None`.
    ///
    /// # Errors
    /// `Io` or `OutOfMemory` if the chunk could not be read, which says nothing about its bytes; `Corrupt` if the file
    /// became shorter.
    pub(crate) fn read_chunk(&self, index: u64, buffer: &mut Vec<u8>) -> Result<Option<DamagedChunk>> {
        let offset_bytes = index * CHUNK_BYTES;
        let chunk_bytes = self.length_bytes.saturating_sub(offset_bytes).min(CHUNK_BYTES);
        resize_discarding(buffer, chunk_bytes as usize)?;
        let read = read_again(|| self.file.read_exact_at(buffer, offset_bytes));
        read.map_err(|e| read_error(&self.path, e))?;
        let found = digest(buffer);
        let is_whole = self.stated_digest(index)? == Some(found);
        Ok((!is_whole).then_some(DamagedChunk { index, found: Ok(found) }))
    }

    fn damage(&self, index: u64) -> Error {
        chunk_damage(&self.path, index, self.chunk.len() as u64)
    }

    fn stated_digest(&self, index: u64) -> Result<Option<Digest>> {
        if index >= full_chunk_count(self.length_bytes) {
            return Ok(Some(self.sealed.tail));
        }
        let corrected = self.corrected.binary_search_by_key(&index, |(index, _)| *index);
        if let Some((_, digest)) = corrected.ok().and_then(|at| self.corrected.get(at)) {
            return Ok(Some(*digest));
        }
        self.sum.as_ref().map_or(Ok(None), |sum| sum.digest(index))
    }

    /// Returns up to `count` digests of full chunks from the `.sum` file, fewer at its end.
    fn digests(&self, first: u64, count: u64) -> Result<Vec<Digest>> {
        self.sum.as_ref().map_or(Ok(Vec::new()), |sum| sum.digests(first, count))
    }

    /// Returns the digests of all full chunks.
    ///
    /// # Errors
    /// `Io`; `OutOfMemory`.
    pub(super) fn into_digests(self) -> Result<Vec<Digest>> {
        let count = full_chunk_count(self.length_bytes);
        let mut digests: Vec<Digest> = zeroed(usize::try_from(count).unwrap_or(usize::MAX))?;
        for (first, piece) in
            (0..).step_by(PIECE_DIGESTS as usize).zip(digests.chunks_mut(PIECE_DIGESTS as usize))
        {
            let stated = self.digests(first, piece.len() as u64)?;
            piece.iter_mut().zip(stated).for_each(|(digest, stated)| *digest = stated);
        }
        Ok(digests)
    }

    fn check_digests(&self) -> Result<()> {
        if self.is_confirmed(&self.corrected)? {
            return Ok(());
        }
        // A storage without a full chunk has no `.sum` file. In that case the record is wrong.
        let path = self.sum.as_ref().map_or(&self.path, |sum| &sum.path);
        Err(Error::corrupt(path, FormatError::new(Rule::ChunkDigest, "the chunk digests were changed")))
    }

    /// Whether the record confirms the digests of the `.sum` file, with those in `corrected` in place of its own.
    pub(crate) fn is_confirmed(&self, corrected: &[(u64, Digest)]) -> Result<bool> {
        let full = full_chunk_count(self.length_bytes);
        let mut chain = ChunkChain::default();
        let mut corrected = corrected.iter().peekable();
        let mut index = 0;
        while index < full {
            let count = (full - index).min(PIECE_DIGESTS);
            let stated = self.digests(index, count)?;
            for at in 0..count {
                let corrected = corrected.next_if(|(corrected, _)| *corrected == index + at);
                match corrected.map(|(_, digest)| digest).or(stated.get(at as usize)) {
                    Some(digest) => chain.push(*digest),
                    None => return Ok(false),
                }
            }
            index += count;
        }
        Ok(chain.link() == self.sealed.chunks)
    }
}

/// Returns the error for a chunk of the file at `path` that does not match its digest.
pub(super) fn chunk_damage(path: &Path, index: u64, chunk_bytes: u64) -> Error {
    let detail = format!("the {chunk_bytes}-byte chunk starting here was changed");
    Error::corrupt(path, FormatError::new(Rule::ChunkDigest, detail).at(index * CHUNK_BYTES))
}

/// Every chunk is verified before any of its bytes are passed on.
impl ByteSource for VerifiedStorage {
    /// # Errors
    /// The errors of `sink`; `Corrupt` with [`Rule::ChunkDigest`] at the first damaged chunk, and with
    /// [`Rule::StorageFile`] for a range past the end; `Io`.
    fn read(&mut self, range: Range<u64>, sink: Sink<'_>) -> Result<()> {
        if range.end > self.length_bytes {
            let detail = format!("{} bytes, but a read ends at byte {}", self.length_bytes, range.end);
            return Err(broken(&self.path, detail));
        }
        let mut ahead = self.read_ahead(range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES));
        let mut start = range.start;
        while start < range.end {
            let (index, within) = (start / CHUNK_BYTES, start % CHUNK_BYTES);
            let count = (range.end - start).min(CHUNK_BYTES - within);
            if self.chunk_index != Some(index) {
                self.chunk_index = None;
                if let Some(ahead) = &mut ahead {
                    ahead.before_read_of((self.length_bytes - index * CHUNK_BYTES).min(CHUNK_BYTES));
                }
                let mut chunk = std::mem::take(&mut self.chunk);
                let read = self.read_chunk(index, &mut chunk);
                self.chunk = chunk;
                if let Some(damaged) = read? {
                    return Err(self.damage(damaged.index));
                }
                self.chunk_index = Some(index);
            }
            sink(&self.chunk[within as usize..][..count as usize])?;
            start += count;
        }
        Ok(())
    }
}

impl SumFile {
    /// Opens a file that may be short. If it is, also returns an error.
    fn open(disk: &dyn Disk, path: PathBuf, chunk_count: u64) -> Result<(Self, Option<Error>)> {
        let file = read_again(|| disk.open(&path, Access::Read)).opening("open chunk digests", &path)?;
        let found_bytes = read_again(|| file.stat()).opening("open chunk digests", &path)?.size_bytes;
        let expected_bytes = chunk_count.saturating_mul(DIGEST_BYTES);
        let error = (found_bytes < expected_bytes).then(|| {
            let detail =
                format!("{found_bytes} bytes, but the storage needs {expected_bytes} bytes of digests");
            broken(&path, detail)
        });
        let count = (found_bytes / DIGEST_BYTES).min(chunk_count);
        Ok((SumFile { file, path, count, last: Mutex::default() }, error))
    }

    /// Returns the digest of a chunk, or `None` after the end of the file.
    fn digest(&self, index: u64) -> Result<Option<Digest>> {
        if !self.file.reads_ahead() {
            return Ok(self.digests(index, 1)?.first().copied());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, digests) = &mut *last;
        let is_read = |first: u64| index.checked_sub(first).is_some_and(|at| at < digests.len() as u64);
        if !is_read(*first) {
            (*first, *digests) = (index, self.digests(index, PIECE_DIGESTS)?);
        }
        Ok(digests.get((index - *first) as usize).copied())
    }

    /// Returns up to `count` digests, fewer at the end of the file.
    fn digests(&self, first: u64, count: u64) -> Result<Vec<Digest>> {
        let count = self.count.saturating_sub(first).min(count);
        let mut piece = vec![0; (count * DIGEST_BYTES) as usize];
        let read = read_again(|| self.file.read_exact_at(&mut piece, first * DIGEST_BYTES));
        read.map_err(|e| read_error(&self.path, e))?;
        Ok(digests_of_chunks(&piece).collect())
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
    use std::path::Path;

    use super::*;
    use crate::disk::{RealDisk, StorePaths};

    const CHUNK: usize = CHUNK_BYTES as usize;

    fn storage(dir: &Path, length: usize) -> (Arc<dyn Disk>, StorePaths, StorageRecord, Vec<u8>) {
        let (disk, paths): (Arc<dyn Disk>, _) = (Arc::new(RealDisk::default()), StorePaths::new(dir));
        disk.create_dir(&paths.storages_dir()).unwrap();
        let bytes: Vec<u8> =
            (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut writer = StorageWriter::sealed(&disk, &paths, true).unwrap();
        writer.write(&bytes).unwrap();
        let mut staged = writer.finish().unwrap();
        staged.publish(&paths, 1).unwrap();
        let record = staged.record().clone();
        (disk, paths, record, bytes)
    }

    fn read(storage: &mut VerifiedStorage, range: Range<usize>) -> Result<Vec<u8>> {
        let mut read = Vec::new();
        storage.read(range.start as u64..range.end as u64, &mut |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(read)
    }

    #[test]
    fn any_range_can_be_read_back() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let dir = tempfile::tempdir().unwrap();
            let (disk, paths, record, bytes) = storage(dir.path(), length);
            let mut storage = VerifiedStorage::open(&*disk, &paths, 1, &record).unwrap();
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
    fn damage_is_found_only_by_reading_its_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, paths, record, bytes) = storage(dir.path(), 2 * CHUNK + 9);
        let file = disk.open(&paths.storage(1), Access::Write).unwrap();
        for (at, chunk, other) in
            [(CHUNK + 5, CHUNK..CHUNK + 1, 0..CHUNK), (2 * CHUNK + 8, 2 * CHUNK..2 * CHUNK + 1, 7..9)]
        {
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            let mut storage = VerifiedStorage::open(&*disk, &paths, 1, &record).unwrap();
            for _ in 0..2 {
                let damage = read(&mut storage, chunk.clone()).unwrap_err();
                assert_eq!(damage.rule(), Some(Rule::ChunkDigest), "{damage}");
                assert_eq!(damage.format_error().unwrap().offset_bytes(), Some(chunk.start as u64));
                assert_eq!(read(&mut storage, other.clone()).unwrap(), bytes[other.clone()]);
            }
            file.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
        let sum = disk.open(&paths.sum(1), Access::Write).unwrap();
        sum.write_all_at(b"x", 17).unwrap();
        let damage = VerifiedStorage::open(&*disk, &paths, 1, &record).unwrap_err();
        assert_eq!((damage.rule(), damage.broken_path()), (Some(Rule::ChunkDigest), Some(&*paths.sum(1))));
    }
}
