//! Disk usage: adds up the inventory and the bytes that tensors reach.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::inventory::{Inventory, ListedFile, Reclaimable, SpaceReason};
use super::storage_tensors::{RewriteGain, StorageTensors, each_storage, rewrite_gain};
use crate::disk::StoreFile;
use crate::error::{Error, Result};
use crate::generation::History;
use crate::layout::footprint_bytes;
use crate::storage::StorageKind;

/// The most names that are listed for one storage.
const MOST_NAMES: usize = 3;

/// The most runs of bytes that are counted for one storage.
const MOST_RUNS: u64 = 1 << 20;

/// The disk usage of a store, and why unreferenced bytes are still on disk: see [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The generation that the numbers describe: the newest.
    pub generation: u64,
    /// The total length of the store's files, in bytes.
    pub file_bytes: u64,
    /// The part of `file_bytes` that is manifests and tables.
    pub metadata_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether `reachable_bytes` is exact for every storage, and not only an upper bound.
    pub is_exact: bool,
    /// The total length of external storages, in bytes. These bytes are in files outside the store, which no other
    /// number here counts.
    pub external_bytes: u64,
    /// The storages and unfinished files with reclaimable bytes: storages by ascending id, then unfinished files.
    pub storages: Vec<StorageStats>,
}

impl Stats {
    /// Returns the number of reclaimable bytes, including those that a process still holds.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// assert_eq!(store.stats()?.reclaimable_bytes(), 9_900);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable().map(|reclaimable| reclaimable.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the reclaimable space of all storages, with the reason for each.
    ///
    /// ```
    /// # use stridemap::maintenance::SpaceReason;
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// for reclaimable in store.stats()?.reclaimable() {
    ///     assert_eq!((reclaimable.bytes, &reclaimable.reason), (9_900, &SpaceReason::Unreached));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaimable(&self) -> impl Iterator<Item = &Reclaimable> {
        self.storages.iter().flat_map(|storage| &storage.reclaimable)
    }
}

/// A storage or an unfinished file that has reclaimable bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorageStats {
    /// The id of the storage; `None` for an unfinished file.
    pub id: Option<u64>,
    /// How its bytes may change; `None` if the storage no longer has a record.
    pub kind: Option<StorageKind>,
    /// The file that contains its bytes.
    pub file: PathBuf,
    /// The length of that file plus the length of its file of chunk digests, in bytes.
    pub file_bytes: u64,
    /// The length that its record states, in bytes; 0 without a record.
    pub size_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether `reachable_bytes` is exact. If the tensors reach more than a million separate runs of bytes, it is the
    /// length to which the storage could be compacted.
    pub is_exact: bool,
    /// The number of names that refer to it.
    pub tensor_count: u64,
    /// The first few of these names.
    pub names: Vec<String>,
    /// The reclaimable bytes, and why they are still on disk.
    pub reclaimable: Vec<Reclaimable>,
}

/// The files of one storage.
#[derive(Default)]
struct Files {
    file_bytes: u64,
    /// The reclaimable bytes of its `.bin` file, or of its `.sum` file if the `.bin` file has none.
    spare: Option<Reclaimable>,
}

/// Adds up the sizes of all files, and of the bytes that tensors reach.
pub(crate) fn usage(history: &History) -> Result<Stats> {
    let Inventory { newest, files } = Inventory::take(history)?;
    let paths = &history.paths;
    let others = [paths.format_file(), paths.lock(), paths.unsynced()];
    let mut stats = Stats {
        generation: newest.number(),
        file_bytes: others.iter().map(|path| size_of(history, path)).fold(0, u64::saturating_add),
        metadata_bytes: 0,
        reachable_bytes: 0,
        is_exact: true,
        external_bytes: 0,
        storages: Vec::new(),
    };
    let (mut storages, mut unfinished) = (BTreeMap::<u64, Files>::new(), Vec::new());
    for ListedFile { file, path, size_bytes, spare } in files {
        stats.file_bytes = stats.file_bytes.saturating_add(size_bytes);
        if path.starts_with(paths.meta_dir()) {
            stats.metadata_bytes = stats.metadata_bytes.saturating_add(size_bytes);
            continue;
        }
        match (file, spare) {
            (StoreFile::Chunks(id) | StoreFile::Digests(id), spare) => {
                let files = storages.entry(id).or_default();
                files.file_bytes = files.file_bytes.saturating_add(size_bytes);
                // The `.bin` file is listed before the `.sum` file.
                files.spare = files.spare.take().or(spare);
            }
            (StoreFile::Unfinished, Some(spare)) => {
                unfinished.push(without_record(None, path, size_bytes, spare.reason));
            }
            _ => {}
        }
    }
    for entry in newest.storages() {
        let (_, record) = entry?;
        if StorageKind::of(&record.kind) == StorageKind::External {
            stats.external_bytes = stats.external_bytes.saturating_add(record.length_bytes);
        }
    }
    each_storage(&newest, false, |storage| {
        let files = storages.remove(&storage.id).unwrap_or_default();
        let storage = storage_stats(history, storage, files)?;
        stats.reachable_bytes = stats.reachable_bytes.saturating_add(storage.reachable_bytes);
        stats.is_exact &= storage.is_exact;
        stats.storages.extend(Some(storage).filter(|storage| !storage.reclaimable.is_empty()));
        Ok(())
    })?;
    // The storages that are left have no record.
    stats.storages.extend(storages.into_iter().filter_map(|(id, files)| {
        Some(without_record(Some(id), paths.storage(id), files.file_bytes, files.spare?.reason))
    }));
    stats.storages.sort_by_key(|storage| storage.id);
    stats.storages.extend(unfinished);
    Ok(stats)
}

/// Returns the statistics of a storage with a record.
fn storage_stats(history: &History, storage: StorageTensors, files: Files) -> Result<StorageStats> {
    let path = history.paths.storage(storage.id);
    let length_bytes = storage.record.length_bytes;
    let compacted_bytes = storage.repacked(history)?.length_bytes;
    let reached = footprint_bytes(&storage.views(), length_bytes, MOST_RUNS);
    let reached = reached.map_err(|e| Error::corrupt(&path, e))?;
    let kind = StorageKind::of(&storage.record.kind);
    let mut reclaimable = Vec::new();
    let unreached = match (rewrite_gain(length_bytes, compacted_bytes), kind) {
        (RewriteGain::Nothing, _) => None,
        (RewriteGain::TooLittle, _) => Some(SpaceReason::TooLittle),
        (RewriteGain::Enough, StorageKind::Mutable) => Some(SpaceReason::Mutable),
        (RewriteGain::Enough, StorageKind::Live) => Some(SpaceReason::Live),
        (RewriteGain::Enough, _) => Some(SpaceReason::Unreached),
    };
    reclaimable.extend(
        unreached.map(|reason| Reclaimable { bytes: length_bytes.saturating_sub(compacted_bytes), reason }),
    );
    reclaimable.extend(files.spare);
    Ok(StorageStats {
        id: Some(storage.id),
        kind: Some(kind),
        file: path,
        file_bytes: files.file_bytes,
        size_bytes: length_bytes,
        reachable_bytes: reached.unwrap_or(compacted_bytes),
        is_exact: reached.is_some(),
        tensor_count: storage.record.tensor_count,
        names: storage.tensors.into_keys().take(MOST_NAMES).collect(),
        reclaimable,
    })
}

/// Returns the statistics of a file without a storage record.
fn without_record(id: Option<u64>, file: PathBuf, bytes: u64, reason: SpaceReason) -> StorageStats {
    StorageStats {
        id,
        kind: None,
        file,
        file_bytes: bytes,
        size_bytes: 0,
        reachable_bytes: 0,
        is_exact: true,
        tensor_count: 0,
        names: Vec::new(),
        reclaimable: vec![Reclaimable { bytes, reason }],
    }
}

/// Returns the size of a file, or zero if there is none.
fn size_of(history: &History, path: &Path) -> u64 {
    history.disk.stat(path).map_or(0, |stat| stat.size_bytes)
}
