use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stridemap_format::StorageKind as RecordKind;

use super::handle::Store;
use super::snapshot::StorageKind;
use crate::disk::StoreFile;
use crate::error::{Error, Result};
use crate::generation::History;
use crate::layout::reached_bytes;
use crate::maintenance::{self, Inventory, ListedFile, Reclaimable, SpaceReason, StorageTensors, Worth};

/// How many names are given of those that stand on a storage.
const MOST_NAMES: usize = 3;

/// How many runs of bytes are counted for one storage.
const MOST_RUNS: u64 = 1 << 20;

/// Where the space of a store is, and why what nobody reaches is still there: see [`Store::stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The generation that was looked at: the newest.
    pub generation: u64,
    /// The lengths of the store's files, together.
    pub file_bytes: u64,
    /// Of these the bytes of manifests and tables.
    pub metadata_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether that is exact, and not only a bound, for every storage.
    pub is_exact: bool,
    /// The lengths of external storages, together: bytes of files that are not the store's, which no other number here
    /// counts.
    pub external_bytes: u64,
    /// The storages and files that have bytes to give back, storages by ascending id and then unfinished files.
    pub storages: Vec<StorageStats>,
}

impl Stats {
    /// All bytes that could be given back, now or when what stands in the way is gone.
    #[must_use]
    pub fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable().map(|reclaimable| reclaimable.bytes).fold(0, u64::saturating_add)
    }

    /// What could be given back, of all storages.
    pub fn reclaimable(&self) -> impl Iterator<Item = &Reclaimable> {
        self.storages.iter().flat_map(|storage| &storage.reclaimable)
    }
}

/// A storage, or an unfinished file, that has bytes to give back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorageStats {
    /// Its id; none for an unfinished file.
    pub id: Option<u64>,
    /// How its bytes may change; none when no record says so any more.
    pub kind: Option<StorageKind>,
    /// The file of its bytes.
    pub file: PathBuf,
    /// The length of that file, and of the file of chunk digests beside it.
    pub file_bytes: u64,
    /// Its length by its record; 0 without one.
    pub length_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether that is exact. Where the tensors reach more than a million separate runs of bytes it is the length to which
    /// the storage could be compacted.
    pub is_exact: bool,
    /// How many names stand on it.
    pub tensor_count: u64,
    /// The first few of them.
    pub names: Vec<String>,
    /// What could be given back, and why it has not been.
    pub reclaimable: Vec<Reclaimable>,
}

/// The files of one storage.
#[derive(Default)]
struct Files {
    file_bytes: u64,
    /// Of the file of its bytes, else of the file of its digests.
    spare: Option<Reclaimable>,
}

impl Store {
    /// Where the space of the store is: which bytes no tensor of the newest generation reaches, and why they are still
    /// there. Goes through all headers and looks at every file; no element is read, and nothing is changed.
    ///
    /// The locks of commits and appends are not touched: who holds them is read from `/proc/locks`. Where that does not
    /// say, as for a process of another namespace, an append or a commit that is under way is taken for one that never
    /// came to be. On an older generation and on an unfinished file, of which it says nothing, a lock is tried and given
    /// back at once. A collection just then takes the one for in use, and leaves it to the next; a writer that has created
    /// the other but not locked it yet creates another.
    ///
    /// It shows the store while others write, so a file that a commit is just making or deleting can be among what it
    /// lists.
    ///
    /// # Errors
    /// `Corrupt` for metadata that breaks a rule, `Busy` as in [`open`](Self::open), `Io`.
    pub fn stats(&self) -> Result<Stats> {
        let history = &self.loader.history;
        history.check_process()?;
        let Inventory { newest, files } = Inventory::take(history)?;
        let paths = &history.paths;
        let others = [paths.marker(), paths.lock(), paths.unsynced()];
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
                    // The file of the bytes comes first.
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
            if matches!(record.kind, RecordKind::External(_)) {
                stats.external_bytes = stats.external_bytes.saturating_add(record.length_bytes);
            }
        }
        maintenance::each_storage(&newest, |standing| {
            let files = storages.remove(&standing.id).unwrap_or_default();
            let storage = of_standing(history, standing, files)?;
            stats.reachable_bytes = stats.reachable_bytes.saturating_add(storage.reachable_bytes);
            stats.is_exact &= storage.is_exact;
            stats.storages.extend(Some(storage).filter(|storage| !storage.reclaimable.is_empty()));
            Ok(())
        })?;
        // The others have no record.
        stats.storages.extend(storages.into_iter().filter_map(|(id, files)| {
            Some(without_record(Some(id), paths.storage(id), files.file_bytes, files.spare?.reason))
        }));
        stats.storages.sort_by_key(|storage| storage.id);
        stats.storages.extend(unfinished);
        Ok(stats)
    }
}

/// A storage with a record.
fn of_standing(history: &History, standing: StorageTensors, files: Files) -> Result<StorageStats> {
    let path = history.paths.storage(standing.id);
    let length_bytes = standing.record.length_bytes;
    let compacted_bytes = standing.repacked(history)?.length_bytes;
    let reached = reached_bytes(&standing.views(), length_bytes, MOST_RUNS);
    let reached = reached.map_err(|e| Error::corrupt(&path, e))?;
    let kind = match standing.record.kind {
        RecordKind::Sealed(_) => StorageKind::Sealed,
        RecordKind::Mutable => StorageKind::Mutable,
        RecordKind::Live { .. } => StorageKind::Live,
        RecordKind::External(_) => StorageKind::External,
    };
    let mut reclaimable = Vec::new();
    let unreached = match (maintenance::worth(length_bytes, compacted_bytes), kind) {
        (Worth::Nothing, _) => None,
        (Worth::Little, _) => Some(SpaceReason::TooLittle),
        (Worth::Much, StorageKind::Mutable) => Some(SpaceReason::Mutable),
        (Worth::Much, StorageKind::Live) => Some(SpaceReason::Live),
        (Worth::Much, _) => Some(SpaceReason::Unreached),
    };
    reclaimable.extend(
        unreached.map(|reason| Reclaimable { bytes: length_bytes.saturating_sub(compacted_bytes), reason }),
    );
    reclaimable.extend(files.spare);
    Ok(StorageStats {
        id: Some(standing.id),
        kind: Some(kind),
        file: path,
        file_bytes: files.file_bytes,
        length_bytes,
        reachable_bytes: reached.unwrap_or(compacted_bytes),
        is_exact: reached.is_some(),
        tensor_count: standing.record.tensor_count,
        names: standing.tensors.into_keys().take(MOST_NAMES).collect(),
        reclaimable,
    })
}

/// A file that stands for itself.
fn without_record(id: Option<u64>, file: PathBuf, bytes: u64, reason: SpaceReason) -> StorageStats {
    StorageStats {
        id,
        kind: None,
        file,
        file_bytes: bytes,
        length_bytes: 0,
        reachable_bytes: 0,
        is_exact: true,
        tensor_count: 0,
        names: Vec::new(),
        reclaimable: vec![Reclaimable { bytes, reason }],
    }
}

/// Zero for a file that is not there.
fn size_of(history: &History, path: &Path) -> u64 {
    history.disk.stat(path).map_or(0, |stat| stat.size_bytes)
}
