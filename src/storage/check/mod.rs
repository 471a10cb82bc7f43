//! Verifies the files of storages against their records, on several threads.

mod sealed;

use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Digest, StorageKind, StorageRecord};

use super::DamagedChunk;
use super::file::{check_length, open_error};
use crate::disk::{Access, Disk, StorePaths};
use crate::error::{Error, Result};
use crate::parallel;
use sealed::{SealedCheck, UNIT_CHUNKS};

/// The damage found in the files of a storage.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Why the storage cannot be opened: the `.bin` file is missing, short or not a regular file.
    pub(crate) file: Option<Error>,
    /// The length of the `.bin` file, if it is a regular file.
    pub(crate) found_bytes: Option<u64>,
    /// The chunks, including the tail, that are in the file but do not match their digests, in ascending order.
    pub(crate) chunks: Vec<DamagedChunk>,
    /// The damage to the `.sum` file.
    pub(crate) sum: Option<DigestDamage>,
}

/// A `.sum` file whose digests the record does not confirm.
#[derive(Debug)]
pub(crate) struct DigestDamage {
    pub(crate) error: Error,
    /// The correct digests to replace wrong or missing ones. They are computed from the chunks, and are known only if
    /// the record confirms the result. Otherwise nothing is known about any full chunk.
    pub(crate) corrected: Option<Vec<(u64, Digest)>>,
}

impl Damage {
    fn is_none(&self) -> bool {
        self.file.is_none() && self.chunks.is_empty() && self.sum.is_none()
    }

    /// Returns an error instead if this process or the machine has run out of descriptors or memory: that is not
    /// damage.
    fn unless_out_of_resources(self) -> Result<Self> {
        let unread = self.chunks.iter().filter_map(|chunk| chunk.found.as_ref().err());
        let mut errors = self.file.iter().chain(self.sum.as_ref().map(|sum| &sum.error)).chain(unread);
        match errors.find(|error| error.is_out_of_resources()) {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }

    /// Returns the damage of a storage that cannot be opened.
    fn unusable(error: Error) -> Self {
        Damage { file: Some(error), ..Damage::default() }
    }
}

/// Checks a mutable or live storage. It has no digests, so only the length of its file is checked.
fn check_in_place(disk: &dyn Disk, paths: &StorePaths, id: u64, record: &StorageRecord) -> Damage {
    let path = paths.storage(id);
    let found = disk.open(&path, Access::Read).and_then(|file| file.stat());
    match found.map_err(|e| open_error("open storage", &path, Access::Read, e)) {
        Err(e) => Damage::unusable(e),
        Ok(stat) => Damage {
            file: check_length(&path, stat.size_bytes, record.length_bytes).err(),
            found_bytes: Some(stat.size_bytes),
            ..Damage::default()
        },
    }
}

/// Verifies all chunk digests of one storage, and the chunks that `is_wanted` selects. Returns the damage, if any. If
/// the record does not confirm the chunk digests, it is not known which of them are wrong.
pub(crate) fn check_chunks(
    disk: &dyn Disk,
    paths: &StorePaths,
    (id, record): (u64, &StorageRecord),
    mut is_wanted: impl FnMut(u64) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Damage>> {
    let damage = match &record.kind {
        StorageKind::External(_) => return Ok(None),
        StorageKind::Sealed(sealed) => match SealedCheck::open(disk, paths, id, record, sealed) {
            Err(damage) => damage,
            Ok(storage) => {
                let mut buffer = Vec::new();
                (0..storage.chunk_count())
                    .filter(|&index| is_wanted(index))
                    .for_each(|index| progress(storage.check(index..index + 1, &mut buffer)));
                storage.finish_some()
            }
        },
        StorageKind::Mutable | StorageKind::Live { .. } => check_in_place(disk, paths, id, record),
    };
    (!damage.is_none()).then(|| damage.unless_out_of_resources()).transpose()
}

/// The id of a storage, and its damage.
pub(crate) type Found = (u64, Damage);

/// More threads would only wait for the disk.
const MOST_THREADS: usize = 8;

/// The number of bytes, or of storages, that justifies one more thread.
const BYTES_A_THREAD: u64 = 4 * PART_BYTES;
const STORAGES_A_THREAD: u64 = 64;

/// The number of bytes, or of storages, that a thread reads at a time.
const PART_BYTES: u64 = UNIT_CHUNKS * CHUNK_BYTES;
const STORAGES_A_PART: usize = 16;

/// The work that a thread takes at a time.
enum Part<'a> {
    Storages(Vec<(u64, &'a StorageRecord)>),
    Chunks(Arc<SealedCheck>, Range<u64>),
    /// The damage of a large storage that cannot be opened.
    Unusable(Found),
}

/// Verifies all storages, a few MiB at a time on each thread. Returns the damage, in ascending order of id.
///
/// `progress` is called on this thread, with the bytes read since the last call.
///
/// # Errors
/// `Io` if the process runs out of descriptors or memory.
pub(crate) fn check_all(
    disk: &dyn Disk,
    paths: &StorePaths,
    storages: Vec<(u64, &StorageRecord)>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Found>> {
    let bytes = storages.iter().fold(0u64, |sum, (_, record)| sum.saturating_add(record.length_bytes));
    let worth = 1 + bytes / BYTES_A_THREAD + storages.len() as u64 / STORAGES_A_THREAD;
    let thread_count =
        parallel::thread_count(MOST_THREADS.min(usize::try_from(worth).unwrap_or(MOST_THREADS)));
    let mut found = Vec::new();
    parallel::in_order(
        thread_count,
        |push| for_each_part(disk, paths, storages, push),
        |part| check_part(disk, paths, part),
        |(bytes, damage)| {
            progress(bytes);
            found.extend(damage);
            Ok(())
        },
    )?;
    found.sort_by_key(|(id, _)| *id);
    found.into_iter().map(|(id, damage)| Ok((id, damage.unless_out_of_resources()?))).collect()
}

/// Groups small storages, and splits large ones into parts.
fn for_each_part<'a>(
    disk: &dyn Disk,
    paths: &StorePaths,
    storages: Vec<(u64, &'a StorageRecord)>,
    push: &mut dyn FnMut(Part<'a>) -> Result<()>,
) -> Result<()> {
    let (mut small, mut small_bytes) = (Vec::new(), 0u64);
    for (id, record) in storages {
        match &record.kind {
            StorageKind::External(_) => {}
            StorageKind::Sealed(sealed) if record.length_bytes > PART_BYTES => {
                match SealedCheck::open(disk, paths, id, record, sealed).map(Arc::new) {
                    Err(damage) => push(Part::Unusable((id, damage)))?,
                    Ok(storage) => {
                        while let Some(chunks) = storage.next_part() {
                            push(Part::Chunks(Arc::clone(&storage), chunks))?;
                        }
                    }
                }
            }
            _ => {
                small.push((id, record));
                small_bytes = small_bytes.saturating_add(record.length_bytes);
                if small.len() == STORAGES_A_PART || small_bytes >= PART_BYTES {
                    push(Part::Storages(std::mem::take(&mut small)))?;
                    small_bytes = 0;
                }
            }
        }
    }
    push(Part::Storages(small))
}

/// Returns the number of bytes read, and the damage.
fn check_part(disk: &dyn Disk, paths: &StorePaths, part: Part<'_>) -> (u64, Vec<Found>) {
    let mut buffer = Vec::new();
    match part {
        Part::Unusable(found) => (0, vec![found]),
        Part::Chunks(storage, chunks) => {
            let bytes = storage.check(chunks, &mut buffer);
            let damage = storage.finish_part().filter(|damage| !damage.is_none());
            (bytes, damage.into_iter().map(|damage| (storage.id(), damage)).collect())
        }
        Part::Storages(storages) => {
            let (mut bytes, mut found) = (0, Vec::new());
            for (id, record) in storages {
                let damage = match &record.kind {
                    StorageKind::Sealed(sealed) => match SealedCheck::open(disk, paths, id, record, sealed) {
                        Ok(storage) => {
                            bytes += storage.check(0..storage.chunk_count(), &mut buffer);
                            storage.finish()
                        }
                        Err(damage) => damage,
                    },
                    _ => check_in_place(disk, paths, id, record),
                };
                if !damage.is_none() {
                    found.push((id, damage));
                }
            }
            (bytes, found)
        }
    }
}
