//! The files of storages read and held against their records, on several threads.

mod sealed;

use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Digest, StorageKind, StorageRecord};

use super::file::{broken, open_error};
use crate::disk::{Access, Disk, DiskFile, StorePaths};
use crate::error::{Error, Result};
use crate::parallel;
use sealed::{Checked, UNIT_CHUNKS};

/// What is wrong with the files of a storage.
#[derive(Debug, Default)]
pub(crate) struct Harm {
    /// The `.bin` file is missing, short or no file: nobody opens the storage.
    pub(crate) file: Option<Error>,
    /// How long the `.bin` file is, if it is one.
    pub(crate) found_bytes: Option<u64>,
    /// The chunks, the tail among them, that are in the file and are not those that were sealed, ascending.
    pub(crate) chunks: Vec<DamagedChunk>,
    /// What is wrong with the `.sum` file.
    pub(crate) sum: Option<SumHarm>,
}

#[derive(Debug)]
pub(crate) struct DamagedChunk {
    pub(crate) index: u64,
    /// What the system said, when it could not be read.
    pub(crate) unread: Option<Error>,
}

/// A `.sum` file that has not the digests of its record.
#[derive(Debug)]
pub(crate) struct SumHarm {
    pub(crate) error: Error,
    /// The digests that are wrong or missing there, and what they are: the record confirms them all. None when it cannot,
    /// and then nothing is known of any full chunk.
    pub(crate) right: Option<Vec<(u64, Digest)>>,
}

impl Harm {
    fn is_none(&self) -> bool {
        self.file.is_none() && self.chunks.is_empty() && self.sum.is_none()
    }

    /// That this process, or the machine, has no descriptors or no memory left says nothing of the storage: then it is an
    /// error, and no harm.
    fn of_the_storage(self) -> Result<Self> {
        let unread = self.chunks.iter().filter_map(|chunk| chunk.unread.as_ref());
        let mut errors = self.file.iter().chain(self.sum.as_ref().map(|sum| &sum.error)).chain(unread);
        match errors.find(|error| error.is_for_want_of_resources()) {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }

    /// Of a storage that cannot be opened.
    fn unusable(error: Error, found_bytes: Option<u64>) -> Self {
        Harm { file: Some(error), found_bytes, ..Harm::default() }
    }
}

/// Opens the file of a storage, whatever its length; gives it with that.
fn open_file(disk: &dyn Disk, paths: &StorePaths, id: u64) -> Result<(Arc<dyn DiskFile>, u64)> {
    let path = paths.storage(id);
    let failed = |e| open_error("open storage", &path, Access::Read, e);
    let file = disk.open(&path, Access::Read).map_err(failed)?;
    let length_bytes = file.stat().map_err(failed)?.size_bytes;
    Ok((file, length_bytes))
}

fn short(paths: &StorePaths, id: u64, found_bytes: u64, record: &StorageRecord) -> Option<Error> {
    let detail = || format!("{found_bytes} bytes, where the record says {}", record.length_bytes);
    (found_bytes < record.length_bytes).then(|| broken(&paths.storage(id), detail()))
}

/// A storage whose elements have no digests: only its file can be looked at.
fn check_in_place(disk: &dyn Disk, paths: &StorePaths, id: u64, record: &StorageRecord) -> Harm {
    match open_file(disk, paths, id) {
        Err(e) => Harm::unusable(e, None),
        Ok((_, found_bytes)) => Harm {
            file: short(paths, id, found_bytes, record),
            found_bytes: Some(found_bytes),
            ..Harm::default()
        },
    }
}

/// Reads the chunks of one storage that `is_wanted`, and all of its chunk digests; gives what is wrong, if anything is.
/// Where the chunk digests are not those of the record, no chunk tells which of them.
pub(crate) fn check_chunks(
    disk: &dyn Disk,
    paths: &StorePaths,
    (id, record): (u64, &StorageRecord),
    mut is_wanted: impl FnMut(u64) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Harm>> {
    let harm = match &record.kind {
        StorageKind::External(_) => return Ok(None),
        StorageKind::Sealed(sealed) => match Checked::open(disk, paths, id, record, sealed) {
            Err(harm) => harm,
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
    (!harm.is_none()).then(|| harm.of_the_storage()).transpose()
}

/// The id of a storage, and what is wrong with it.
pub(crate) type Found = (u64, Harm);

/// More only wait for the disk.
const MOST_THREADS: usize = 8;

/// How many bytes, or how many storages, are worth another thread.
const BYTES_A_THREAD: u64 = 4 * PART_BYTES;
const STORAGES_A_THREAD: u64 = 64;

/// How many bytes, or how many storages, a thread reads at a time.
const PART_BYTES: u64 = UNIT_CHUNKS * CHUNK_BYTES;
const STORAGES_A_PART: usize = 16;

/// What a thread reads at a time.
enum Part<'a> {
    Storages(Vec<(u64, &'a StorageRecord)>),
    Chunks(Arc<Checked>, Range<u64>),
    /// Of a large storage that cannot be opened.
    Unusable(Found),
}

/// Reads all storages, a few MiB at a time on each thread, and gives what is wrong, by id.
///
/// `progress` is called on this thread, with the bytes read since the last call.
///
/// # Errors
/// `Io` where there are no descriptors or no memory left to read with.
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
        |(bytes, harms)| {
            progress(bytes);
            found.extend(harms);
            Ok(())
        },
    )?;
    found.sort_by_key(|(id, _)| *id);
    found.into_iter().map(|(id, harm)| Ok((id, harm.of_the_storage()?))).collect()
}

/// Small storages together, and large ones in parts.
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
                match Checked::open(disk, paths, id, record, sealed).map(Arc::new) {
                    Err(harm) => push(Part::Unusable((id, harm)))?,
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

/// Returns how many bytes were read, and what is wrong.
fn check_part(disk: &dyn Disk, paths: &StorePaths, part: Part<'_>) -> (u64, Vec<Found>) {
    let mut buffer = Vec::new();
    match part {
        Part::Unusable(found) => (0, vec![found]),
        Part::Chunks(storage, chunks) => {
            let bytes = storage.check(chunks, &mut buffer);
            let harm = storage.finish_part().filter(|harm| !harm.is_none());
            (bytes, harm.into_iter().map(|harm| (storage.id(), harm)).collect())
        }
        Part::Storages(storages) => {
            let (mut bytes, mut found) = (0, Vec::new());
            for (id, record) in storages {
                let harm = match &record.kind {
                    StorageKind::Sealed(sealed) => match Checked::open(disk, paths, id, record, sealed) {
                        Ok(storage) => {
                            bytes += storage.check(0..storage.chunk_count(), &mut buffer);
                            storage.finish()
                        }
                        Err(harm) => harm,
                    },
                    _ => check_in_place(disk, paths, id, record),
                };
                if !harm.is_none() {
                    found.push((id, harm));
                }
            }
            (bytes, found)
        }
    }
}
