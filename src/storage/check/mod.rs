//! The files of storages read and held against their records, on several threads.

mod sealed;

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use stridemap_format::{CHUNK_BYTES, Digest, Sealed, StorageKind, StorageRecord};

use super::file::{broken, open_error};
use crate::disk::{Access, Disk, DiskFile, StorePaths};
use crate::error::{Error, Result};
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

/// What is left to be read, for all threads.
struct Work<I> {
    rest: I,
    /// Storages that are read in parts: each thread takes the next part of the first.
    open: VecDeque<Arc<Checked>>,
}

/// The id of a storage, and what is wrong with it.
pub(crate) type Found = (u64, Harm);

/// More only wait for the disk.
const MOST_THREADS: usize = 8;

/// How many bytes, or how many storages, are worth another thread.
const BYTES_A_THREAD: u64 = 4 * UNIT_CHUNKS * CHUNK_BYTES;
const STORAGES_A_THREAD: u64 = 64;

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
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS) as u64;
    let work = Mutex::new(Work { rest: storages.into_iter(), open: VecDeque::new() });
    if threads.min(worth) == 1 {
        let (mut buffer, mut found) = (Vec::new(), Vec::new());
        while let Some(harm) = check_next(disk, paths, &work, &mut buffer, progress) {
            found.extend(harm);
        }
        return of_the_storages(found);
    }
    let found = Mutex::new(Vec::new());
    let (teller, told) = sync_channel(64);
    thread::scope(|scope| {
        for _ in 0..threads.min(worth) {
            let (work, found, teller) = (&work, &found, teller.clone());
            scope.spawn(move || {
                let mut buffer = Vec::new();
                let mut tell = |bytes| teller.send(bytes).unwrap_or_default();
                while let Some(harm) = check_next(disk, paths, work, &mut buffer, &mut tell) {
                    found.lock().unwrap_or_else(PoisonError::into_inner).extend(harm);
                }
            });
        }
        drop(teller);
        told.iter().for_each(&mut *progress);
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(id, _)| *id);
    of_the_storages(found)
}

fn of_the_storages(found: Vec<Found>) -> Result<Vec<Found>> {
    found.into_iter().map(|(id, harm)| Ok((id, harm.of_the_storage()?))).collect()
}

/// Does one piece of the work; none when nothing is left.
fn check_next<'a, I: Iterator<Item = (u64, &'a StorageRecord)>>(
    disk: &dyn Disk,
    paths: &StorePaths,
    work: &Mutex<Work<I>>,
    buffer: &mut Vec<u8>,
    tell: &mut dyn FnMut(u64),
) -> Option<Option<Found>> {
    let mut taken = work.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(storage) = taken.open.front() {
        let Some(part) = storage.next_part() else {
            taken.open.pop_front();
            continue;
        };
        let storage = Arc::clone(storage);
        drop(taken);
        tell(storage.check(part, buffer));
        let harm = storage.finish_part();
        return Some(harm.filter(|harm| !harm.is_none()).map(|harm| (storage.id(), harm)));
    }
    let (id, record) = taken.rest.next()?;
    if let StorageKind::Sealed(sealed) = &record.kind
        && record.length_bytes > UNIT_CHUNKS * CHUNK_BYTES
    {
        // Under the mutex: the other threads have nothing better to do than to wait for their parts of it.
        let opened = Checked::open(disk, paths, id, record, sealed);
        return Some(match opened {
            Err(harm) => Some((id, harm)),
            Ok(storage) => {
                taken.open.push_back(Arc::new(storage));
                None
            }
        });
    }
    drop(taken);
    Some(check_small(disk, paths, (id, record), buffer, tell).map(|harm| (id, harm)))
}

fn check_small(
    disk: &dyn Disk,
    paths: &StorePaths,
    (id, record): (u64, &StorageRecord),
    buffer: &mut Vec<u8>,
    tell: &mut dyn FnMut(u64),
) -> Option<Harm> {
    let harm = match &record.kind {
        StorageKind::External(_) => return None,
        StorageKind::Mutable | StorageKind::Live { .. } => check_in_place(disk, paths, id, record),
        StorageKind::Sealed(sealed) => match checked_whole(disk, paths, (id, record, sealed), buffer, tell) {
            Ok(harm) | Err(harm) => harm,
        },
    };
    (!harm.is_none()).then_some(harm)
}

fn checked_whole(
    disk: &dyn Disk,
    paths: &StorePaths,
    (id, record, sealed): (u64, &StorageRecord, &Sealed),
    buffer: &mut Vec<u8>,
    tell: &mut dyn FnMut(u64),
) -> Result<Harm, Harm> {
    let storage = Checked::open(disk, paths, id, record, sealed)?;
    tell(storage.check(0..storage.chunk_count(), buffer));
    Ok(storage.finish())
}
