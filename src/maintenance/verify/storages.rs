//! Verifies the files of storages against their records, on several threads.

use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Digest, RecordKind, StorageRecord, full_chunk_count};

use crate::disk::{Access, Disk, StorePaths, read_again};
use crate::error::{Error, IoContext, Result};
use crate::parallel;
use crate::storage::{
    DamagedChunk, OpenContext, Unreadable, VerifiedStorage, check_length, resize_discarding,
};

/// The damage found in the files of a storage.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Why the storage cannot be opened: the `.bin` file is missing, short or not a regular file.
    pub(crate) file: Option<Error>,
    /// The length of the `.bin` file, if it is a regular file.
    pub(crate) found_bytes: Option<u64>,
    /// The chunks, including the tail, that are in the file but do not match their digests, or cannot be read, in
    /// ascending order.
    pub(crate) chunks: Vec<DamagedChunk>,
    /// The damage to the `.sum` file.
    pub(crate) sum: Option<DigestDamage>,
}

/// A `.sum` file whose digests the record does not confirm.
#[derive(Debug)]
pub(crate) struct DigestDamage {
    pub(crate) error: Error,
    /// Replacements for wrong or missing digests, computed from the chunks. `None` if the record does not confirm
    /// them; then nothing is known about any full chunk.
    pub(crate) corrected: Option<Vec<(u64, Digest)>>,
}

impl Damage {
    fn is_none(&self) -> bool {
        self.file.is_none() && self.chunks.is_empty() && self.sum.is_none()
    }

    /// Takes an error about damage for the damage of a storage that cannot be opened. A file that could not be read is
    /// not damage, unless such files are to be skipped.
    fn unless_unread(checked: Result<Self>, unreadable: Unreadable) -> Result<Self> {
        let checked = unreadable.damage_in(checked)?;
        Ok(checked.unwrap_or_else(|error| Damage { file: Some(error), ..Damage::default() }))
    }
}

/// The files to read.
pub(crate) struct Files<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) paths: &'a StorePaths,
    pub(crate) unreadable: Unreadable,
}

/// A sealed storage whose chunks are being verified.
#[derive(Debug)]
struct SealedCheck {
    storage: VerifiedStorage,
    length_bytes: u64,
    /// Why the record does not confirm the `.sum` file.
    sum_error: Option<Error>,
    file_error: Option<Error>,
    unreadable: Unreadable,
}

impl SealedCheck {
    fn open(files: &Files<'_>, (id, record): (u64, &StorageRecord)) -> Result<Self> {
        let &Files { disk, paths, unreadable } = files;
        let length_bytes = record.length_bytes;
        let (storage, sum_error) = VerifiedStorage::open_unchecked(disk, paths, (id, record), unreadable)?;
        let file_error = check_length(&paths.storage(id), storage.found_bytes(), length_bytes).err();
        Ok(SealedCheck { storage, length_bytes, sum_error, file_error, unreadable })
    }

    /// Returns the number of chunks to verify, including the tail, which may be empty. A record may state any length,
    /// so for a short file this is the number of full chunks in the file, plus one.
    fn chunk_count(&self) -> u64 {
        full_chunk_count(self.length_bytes.min(self.storage.found_bytes())) + 1
    }

    /// Verifies some chunks, adds those that do not match to `damaged`, and returns the number of bytes read. Skips
    /// chunks that reach past the end of a short file.
    ///
    /// Without a `.sum` file, no chunk matches. The number of mismatches is not limited, because their digests are
    /// needed to rewrite that file. They take 32 bytes of memory per MiB read.
    fn check(
        &self,
        chunks: Range<u64>,
        buffer: &mut Vec<u8>,
        damaged: &mut Vec<DamagedChunk>,
    ) -> Result<u64> {
        let mut bytes = 0;
        let mut ahead = self.storage.read_ahead(chunks.clone());
        for index in chunks {
            let end_bytes = ((index + 1) * CHUNK_BYTES).min(self.length_bytes);
            if end_bytes > self.storage.found_bytes() {
                continue;
            }
            if let Some(ahead) = &mut ahead {
                ahead.before_read_of(end_bytes.saturating_sub(index * CHUNK_BYTES));
            }
            match self.storage.read_chunk(index, buffer) {
                Err(e) if self.unreadable.skips(&e) => damaged.push(DamagedChunk { index, found: Err(e) }),
                read => {
                    damaged.extend(read?);
                    bytes += buffer.len() as u64;
                }
            }
        }
        Ok(bytes)
    }

    /// Returns the damage, given the mismatching chunks in ascending order. `is_all` says whether every chunk was
    /// checked.
    fn finish(&self, mut chunks: Vec<DamagedChunk>, is_all: bool) -> Result<Damage> {
        let full = full_chunk_count(self.length_bytes);
        let mut sum = None;
        if let Some(error) = self.sum_error.clone() {
            let corrected = if is_all { self.corrected(&chunks)? } else { None };
            // Of the full chunks, either the digest is corrected or nothing is known.
            chunks.retain(|chunk| chunk.index >= full);
            sum = Some(DigestDamage { error, corrected });
        }
        let found_bytes = Some(self.storage.found_bytes());
        Ok(Damage { file: self.file_error.clone(), found_bytes, chunks, sum })
    }

    /// Returns corrections for the `.sum` file: the digests computed from the mismatching chunks, if the record
    /// confirms the result.
    fn corrected(&self, damaged: &[DamagedChunk]) -> Result<Option<Vec<(u64, Digest)>>> {
        let full = damaged.iter().filter(|chunk| chunk.index < full_chunk_count(self.length_bytes));
        let found: Vec<_> =
            full.filter_map(|chunk| Some((chunk.index, *chunk.found.as_ref().ok()?))).collect();
        Ok(self.storage.is_confirmed(&found)?.then_some(found))
    }
}

/// Checks a mutable or live storage. It has no digests, so only the length of its file is checked, unless bytes that
/// cannot be read are to be found, or the files are elsewhere, where they may have digests of their own.
fn check_in_place(files: &Files<'_>, id: u64, record: &StorageRecord) -> Result<Damage> {
    let path = files.paths.storage(id);
    let file = read_again(|| files.disk.open(&path, Access::Read)).opening("open storage", &path)?;
    let found_bytes = read_again(|| file.stat()).opening("open storage", &path)?.size_bytes;
    let (mut chunks, mut buffer) = (Vec::new(), Vec::new());
    if files.disk.never_changes() {
        // In parts, which are compared with digests that a part needs, and that reading it as a whole would not need.
        let end_bytes = found_bytes.min(record.file_bytes());
        for start in (0..end_bytes).step_by(PART_BYTES as usize) {
            resize_discarding(&mut buffer, (end_bytes - start).min(PART_BYTES) as usize)?;
            read_again(|| file.read_exact_at(&mut buffer, start)).doing("read storage", &path)?;
        }
    } else if files.unreadable == Unreadable::Skip {
        let end_bytes = found_bytes.min(record.length_bytes);
        for (index, start) in (0..).zip((0..end_bytes).step_by(CHUNK_BYTES as usize)) {
            resize_discarding(&mut buffer, (end_bytes - start).min(CHUNK_BYTES) as usize)?;
            let read = read_again(|| file.read_exact_at(&mut buffer, start));
            match read.doing("read storage", &path) {
                Err(e) if files.unreadable.skips(&e) => chunks.push(DamagedChunk { index, found: Err(e) }),
                read => read?,
            }
        }
    }
    let file = check_length(&path, found_bytes, record.file_bytes()).err();
    Ok(Damage { file, found_bytes: Some(found_bytes), chunks, sum: None })
}

/// Checks the chunk digests of a storage against its record, and chunks against their digests: the chunks that
/// `is_wanted` selects, or all if it is `None`. `progress` is called with the bytes read since the last call.
fn check(
    files: &Files<'_>,
    (id, record): (u64, &StorageRecord),
    is_wanted: Option<&dyn Fn(u64) -> bool>,
    progress: &mut dyn FnMut(u64),
) -> Result<Damage> {
    let mut check_sealed = || {
        let storage = SealedCheck::open(files, (id, record))?;
        let (mut buffer, mut damaged) = (Vec::new(), Vec::new());
        for index in 0..storage.chunk_count() {
            if is_wanted.is_none_or(|is_wanted| is_wanted(index)) {
                progress(storage.check(index..index + 1, &mut buffer, &mut damaged)?);
            }
        }
        storage.finish(damaged, is_wanted.is_none())
    };
    let checked = match record.kind {
        RecordKind::Sealed(_) => check_sealed(),
        _ => check_in_place(files, id, record),
    };
    Damage::unless_unread(checked, files.unreadable)
}

/// Checks the chunk digests of one storage against its record, and the chunks that `is_wanted` selects against their
/// digests. The storage must not be external. Returns the damage, if any. If the record does not confirm the chunk
/// digests, it is not known which of them are wrong.
///
/// # Errors
/// `Io` if a file could not be read.
pub(crate) fn check_chunks(
    disk: &dyn Disk,
    paths: &StorePaths,
    storage: (u64, &StorageRecord),
    is_wanted: impl Fn(u64) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Damage>> {
    let files = Files { disk, paths, unreadable: Unreadable::Fail };
    let damage = check(&files, storage, Some(&is_wanted), progress)?;
    Ok((!damage.is_none()).then_some(damage))
}

/// The id of a storage, and its damage.
pub(crate) type DamagedStorage = (u64, Damage);

/// The maximum number of threads used. More would only wait for the disk.
const MAX_THREADS: usize = 8;

/// The number of bytes, or of storages, that justifies one more thread.
const BYTES_PER_THREAD: u64 = 4 * PART_BYTES;
const STORAGES_PER_THREAD: u64 = 64;

/// The number of chunks, or of storages, that a thread reads at a time.
const PART_CHUNKS: u64 = 8;
const PART_BYTES: u64 = PART_CHUNKS * CHUNK_BYTES;
const STORAGES_PER_PART: usize = 16;

/// The work that a thread takes at a time.
enum Part<'a> {
    Storages(Vec<(u64, &'a StorageRecord)>),
    /// Some chunks of the large storage with this id.
    Chunks(u64, Arc<SealedCheck>, Range<u64>),
}

/// What a thread found.
#[derive(Default)]
struct Checked {
    read_bytes: u64,
    found: Vec<DamagedStorage>,
    /// The mismatching chunks of a large storage.
    chunks: Vec<DamagedChunk>,
    /// Why a large storage cannot be read to its end.
    broken: Option<Error>,
    /// The large storage, if this was its last part.
    finished: Option<(u64, Arc<SealedCheck>)>,
}

/// Verifies all storages that are not external, a few MiB at a time on each thread. Returns the damage, in ascending
/// order of id.
///
/// `progress` is called on this thread, with the bytes read since the last call.
///
/// # Errors
/// `Io` if a file could not be read, unless that is to be skipped. Nothing is then known about its bytes.
pub(crate) fn check_all<'a>(
    files: &Files<'_>,
    storages: impl Iterator<Item = (u64, &'a StorageRecord)>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<DamagedStorage>> {
    let storages: Vec<(u64, &StorageRecord)> =
        storages.filter(|(_, record)| !matches!(record.kind, RecordKind::External(_))).collect();
    let bytes = storages.iter().fold(0u64, |sum, (_, record)| sum.saturating_add(record.length_bytes));
    let useful = 1 + bytes / BYTES_PER_THREAD + storages.len() as u64 / STORAGES_PER_THREAD;
    let thread_count =
        parallel::thread_count(MAX_THREADS.min(usize::try_from(useful).unwrap_or(MAX_THREADS)));
    let (mut found, mut damaged, mut broken) = (Vec::new(), Vec::new(), None);
    parallel::in_order(
        thread_count,
        |push| for_each_part(files, storages, push),
        |part| check_part(files, part),
        |checked: Result<Checked>| {
            let checked = checked?;
            progress(checked.read_bytes);
            found.extend(checked.found);
            // The parts of one storage arrive in order, not interleaved with parts of others.
            damaged.extend(checked.chunks);
            broken = broken.take().or(checked.broken);
            if let Some((id, storage)) = checked.finished {
                let chunks = std::mem::take(&mut damaged);
                let finished = broken.take().map_or_else(|| storage.finish(chunks, true), Err);
                found.push((id, Damage::unless_unread(finished, files.unreadable)?));
            }
            Ok(())
        },
    )?;
    found.retain(|(_, damage)| !damage.is_none());
    found.sort_by_key(|(id, _)| *id);
    Ok(found)
}

/// Groups small storages, and splits large ones into parts.
fn for_each_part<'a>(
    files: &Files<'_>,
    storages: Vec<(u64, &'a StorageRecord)>,
    push: &mut dyn FnMut(Part<'a>) -> Result<()>,
) -> Result<()> {
    let (mut small, mut small_bytes) = (Vec::new(), 0u64);
    for (id, record) in storages {
        let is_large = matches!(record.kind, RecordKind::Sealed(_)) && record.length_bytes > PART_BYTES;
        // A storage that cannot be opened goes to a thread with the small ones. The thread tries again and reports the
        // damage.
        if is_large && let Ok(storage) = SealedCheck::open(files, (id, record)).map(Arc::new) {
            let count = storage.chunk_count();
            for start in (0..count).step_by(PART_CHUNKS as usize) {
                let chunks = start..(start + PART_CHUNKS).min(count);
                push(Part::Chunks(id, Arc::clone(&storage), chunks))?;
            }
            continue;
        }
        small.push((id, record));
        small_bytes = small_bytes.saturating_add(record.length_bytes);
        if small.len() == STORAGES_PER_PART || small_bytes >= PART_BYTES {
            push(Part::Storages(std::mem::take(&mut small)))?;
            small_bytes = 0;
        }
    }
    push(Part::Storages(small))
}

fn check_part(files: &Files<'_>, part: Part<'_>) -> Result<Checked> {
    let mut checked = Checked::default();
    match part {
        Part::Chunks(id, storage, chunks) => {
            let is_last = chunks.end == storage.chunk_count();
            match storage.check(chunks, &mut Vec::new(), &mut checked.chunks) {
                Err(error) if error.format_error().is_some() => checked.broken = Some(error),
                read => checked.read_bytes = read?,
            }
            checked.finished = is_last.then_some((id, storage));
        }
        Part::Storages(storages) => {
            let mut read = |bytes| checked.read_bytes += bytes;
            let check = |(id, record)| Ok((id, check(files, (id, record), None, &mut read)?));
            checked.found = storages.into_iter().map(check).collect::<Result<_>>()?;
        }
    }
    Ok(checked)
}
