//! Disk usage: adds up the inventory and the bytes that tensors reach.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stridemap_format::TensorParts;

use super::inventory::{Inventory, ListedFile, Reclaimable, SpaceReason};
use super::storage_tensors::{RewriteGain, StorageTensors, each_storage, rewrite_gain};
use crate::disk::{STAGE_PREFIX, StoreFile};
use crate::error::{Error, Result};
use crate::generation::OpenStore;
use crate::layout::{footprint_bytes, repack};
use crate::storage::StorageKind;

/// The maximum number of names that are listed for one storage.
const MAX_NAMES: usize = 3;

/// The maximum number of runs of bytes that are counted for one storage.
const MAX_RUNS: u64 = 1 << 20;

/// The disk usage of a store, and why unreferenced bytes are still on disk: see
/// [`Store::disk_usage`](crate::Store::disk_usage).
#[must_use = "this only reports"]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DiskUsage {
    /// The generation that the numbers describe: the newest.
    pub generation: u64,
    /// The length of everything in the store's directory, in bytes: the sum of the nine numbers that follow. If no file
    /// is damaged, `du -sb` prints the same. The contents of a directory that does not belong to the store are not
    /// counted.
    pub folder_bytes: u64,
    /// The manifest and the table of the newest generation, and the few small files in the store's own directory.
    pub metadata_bytes: u64,
    /// The digests of the chunks of storages.
    pub digest_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Bytes that no tensor reaches, but which a compaction keeps: most of them align tensors, or are between the
    /// elements of views. Also the space that is reserved for storages to grow.
    pub padding_bytes: u64,
    /// Bytes that no tensor reaches, and which a compaction could drop.
    pub unreachable_bytes: u64,
    /// Files of older generations, and what aborted commits and appends left behind.
    pub garbage_bytes: u64,
    /// Unfinished files: of running writers, and of those that died.
    pub staging_bytes: u64,
    /// Files that a repair has moved to `lost+found`.
    pub lost_found_bytes: u64,
    /// The directories themselves, and files that are not the store's.
    pub other_bytes: u64,
    /// Whether `reachable_bytes` is exact for every storage, and not only an upper bound.
    pub is_exact: bool,
    /// The total length of external storages, in bytes. These bytes are in files outside the store, which no other
    /// number here counts.
    pub external_bytes: u64,
    /// All storages in the store's directory, by ascending id, then unfinished files.
    pub storages: Vec<StorageDiskUsage>,
}

impl DiskUsage {
    /// Returns the number of reclaimable bytes, including those that a process still holds.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// assert_eq!(store.disk_usage()?.reclaimable_bytes(), 9_900);
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
    /// for reclaimable in store.disk_usage()?.reclaimable() {
    ///     assert_eq!((reclaimable.bytes, &reclaimable.reason), (9_900, &SpaceReason::Unreached));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaimable(&self) -> impl Iterator<Item = &Reclaimable> {
        self.storages.iter().flat_map(|storage| &storage.reclaimable)
    }
}

/// A storage or an unfinished file.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StorageDiskUsage {
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
    /// Bytes that no tensor reaches, but which a compaction keeps, and space reserved for growth.
    pub padding_bytes: u64,
    /// Bytes that no tensor reaches, and which a compaction could drop. The tensors in [`names`](Self::names) keep them
    /// on disk.
    pub unreachable_bytes: u64,
    /// The digests of its chunks.
    pub digest_bytes: u64,
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

/// How many bytes of a storage some tensor reaches: see [`StorageInfo::usage`](crate::StorageInfo::usage). The sum of
/// the three numbers is the length of the storage.
#[must_use = "this only reports"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageUsage {
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Bytes that no tensor reaches, but which a compaction keeps.
    pub padding_bytes: u64,
    /// Bytes that no tensor reaches, and which a compaction could drop.
    pub unreachable_bytes: u64,
    /// Whether `reachable_bytes` is exact. If the tensors reach more than a million separate runs of bytes, it is the
    /// length to which the storage could be compacted.
    pub is_exact: bool,
}

impl StorageUsage {
    /// # Errors
    /// Those of [`TensorParts::extent`] if a view is not inside a storage of `length_bytes`.
    pub(crate) fn of(views: &[&TensorParts], length_bytes: u64) -> stridemap_format::Result<Self> {
        let compacted_bytes = repack(views, length_bytes)?.length_bytes.min(length_bytes);
        let reached = footprint_bytes(views, length_bytes, MAX_RUNS)?;
        let reachable_bytes = reached.unwrap_or(compacted_bytes);
        Ok(StorageUsage {
            reachable_bytes,
            padding_bytes: compacted_bytes.saturating_sub(reachable_bytes),
            unreachable_bytes: length_bytes.saturating_sub(compacted_bytes),
            is_exact: reached.is_some(),
        })
    }
}

/// The files of one storage.
#[derive(Default)]
struct Files {
    file_bytes: u64,
    /// The part of the `.bin` file that the newest generation needs.
    chunk_bytes: u64,
    /// The part of the `.sum` file that the newest generation needs.
    digest_bytes: u64,
    /// The reclaimable bytes of its `.bin` file, or of its `.sum` file if the `.bin` file has none.
    spare: Option<Reclaimable>,
}

/// Adds up the sizes of all files, and of the bytes that tensors reach.
pub(crate) fn usage(store: &OpenStore) -> Result<DiskUsage> {
    let Inventory { newest, files } = Inventory::take(store)?;
    let paths = &store.paths;
    let mut disk_usage = DiskUsage { generation: newest.number(), is_exact: true, ..DiskUsage::default() };
    add_root(&mut disk_usage, store)?;
    let (mut storages, mut unfinished) = (BTreeMap::<u64, Files>::new(), Vec::new());
    for ListedFile { file, path, size_bytes, spare } in files {
        let spare_bytes = spare.as_ref().map_or(0, |spare| spare.bytes);
        let needed_bytes = size_bytes.saturating_sub(spare_bytes);
        match (file, spare) {
            (StoreFile::Storage(id) | StoreFile::Digests(id), spare) => {
                let files = storages.entry(id).or_default();
                add(&mut files.file_bytes, size_bytes);
                let is_chunks = matches!(file, StoreFile::Storage(_));
                add(if is_chunks { &mut files.chunk_bytes } else { &mut files.digest_bytes }, needed_bytes);
                add(&mut disk_usage.garbage_bytes, spare_bytes);
                // The `.bin` file is listed before the `.sum` file.
                files.spare = files.spare.take().or(spare);
            }
            (StoreFile::Unfinished, spare) => {
                add(&mut disk_usage.staging_bytes, size_bytes);
                let is_storage = path.starts_with(paths.storages_dir());
                unfinished.extend(
                    spare
                        .filter(|_| is_storage)
                        .map(|spare| without_record(None, path, size_bytes, spare.reason)),
                );
            }
            (StoreFile::Foreign, _) => add(&mut disk_usage.other_bytes, size_bytes),
            (StoreFile::Manifest(_) | StoreFile::Table(_), _) => {
                add(&mut disk_usage.metadata_bytes, needed_bytes);
                add(&mut disk_usage.garbage_bytes, spare_bytes);
            }
        }
    }
    for entry in newest.storages() {
        let (_, record) = entry?;
        if StorageKind::of(&record.kind) == StorageKind::External {
            add(&mut disk_usage.external_bytes, record.length_bytes);
        }
    }
    each_storage(&newest, false, |storage| {
        let files = storages.remove(&storage.id).unwrap_or_default();
        let storage = storage_disk_usage(store, storage, files)?;
        add(&mut disk_usage.reachable_bytes, storage.reachable_bytes);
        add(&mut disk_usage.padding_bytes, storage.padding_bytes);
        add(&mut disk_usage.unreachable_bytes, storage.unreachable_bytes);
        add(&mut disk_usage.digest_bytes, storage.digest_bytes);
        disk_usage.is_exact &= storage.is_exact;
        disk_usage.storages.push(storage);
        Ok(())
    })?;
    // The storages that are left have no record.
    for (id, files) in storages {
        add(&mut disk_usage.other_bytes, files.chunk_bytes.saturating_add(files.digest_bytes));
        disk_usage.storages.extend(
            files
                .spare
                .map(|spare| without_record(Some(id), paths.storage(id), files.file_bytes, spare.reason)),
        );
    }
    disk_usage.storages.sort_by_key(|storage| storage.id);
    disk_usage.storages.extend(unfinished);
    disk_usage.folder_bytes = [
        disk_usage.metadata_bytes,
        disk_usage.digest_bytes,
        disk_usage.reachable_bytes,
        disk_usage.padding_bytes,
        disk_usage.unreachable_bytes,
        disk_usage.garbage_bytes,
        disk_usage.staging_bytes,
        disk_usage.lost_found_bytes,
        disk_usage.other_bytes,
    ]
    .into_iter()
    .fold(0, u64::saturating_add);
    Ok(disk_usage)
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

/// Adds the store's own directory and what is in it, except for the contents of `meta` and `storages`.
fn add_root(disk_usage: &mut DiskUsage, store: &OpenStore) -> Result<()> {
    let (paths, root) = (&store.paths, store.paths.root());
    let own = [paths.format_file(), paths.lock(), paths.unsynced()];
    let lost_found = paths.lost_found();
    add(&mut disk_usage.other_bytes, size_of(store, root));
    for name in store.disk.list(root).map_err(|e| Error::io("list", root, e))? {
        let path = root.join(&name);
        let part = match name.as_str() {
            _ if own.contains(&path) => &mut disk_usage.metadata_bytes,
            name if name.starts_with(STAGE_PREFIX) => &mut disk_usage.staging_bytes,
            _ => &mut disk_usage.other_bytes,
        };
        add(part, size_of(store, &path));
    }
    // A file system can have a `lost+found` of its own, which only root can read. Its contents are then not counted.
    for name in store.disk.list(&lost_found).unwrap_or_default() {
        add(&mut disk_usage.lost_found_bytes, size_of(store, &lost_found.join(name)));
    }
    Ok(())
}

/// Returns the statistics of a storage with a record.
fn storage_disk_usage(store: &OpenStore, storage: StorageTensors, files: Files) -> Result<StorageDiskUsage> {
    let path = store.paths.storage(storage.id);
    let length_bytes = storage.record.length_bytes;
    let usage = StorageUsage::of(&storage.views(), length_bytes).map_err(|e| Error::corrupt(&path, e))?;
    let StorageUsage { reachable_bytes, unreachable_bytes, .. } = usage;
    let kind = StorageKind::of(&storage.record.kind);
    let mut reclaimable = Vec::new();
    let unreached = match (rewrite_gain(length_bytes, length_bytes.saturating_sub(unreachable_bytes)), kind) {
        (RewriteGain::Nothing, _) => None,
        (RewriteGain::Small, _) => Some(SpaceReason::TooLittle),
        (RewriteGain::Enough, StorageKind::Mutable) => Some(SpaceReason::Mutable),
        (RewriteGain::Enough, StorageKind::Live) => Some(SpaceReason::Live),
        (RewriteGain::Enough, _) => Some(SpaceReason::Unreached),
    };
    // The file of a storage that can grow is longer than the storage.
    let needed_bytes = files.chunk_bytes.max(length_bytes);
    reclaimable.extend(unreached.map(|reason| Reclaimable { bytes: unreachable_bytes, reason }));
    reclaimable.extend(files.spare);
    Ok(StorageDiskUsage {
        id: Some(storage.id),
        kind: Some(kind),
        file: path,
        file_bytes: files.file_bytes,
        size_bytes: length_bytes,
        reachable_bytes,
        padding_bytes: needed_bytes.saturating_sub(unreachable_bytes).saturating_sub(reachable_bytes),
        unreachable_bytes,
        digest_bytes: files.digest_bytes,
        is_exact: usage.is_exact,
        tensor_count: storage.record.tensor_count,
        names: storage.tensors.into_keys().take(MAX_NAMES).collect(),
        reclaimable,
    })
}

/// Returns the disk usage of a file without a storage record.
fn without_record(id: Option<u64>, file: PathBuf, bytes: u64, reason: SpaceReason) -> StorageDiskUsage {
    let reclaimable = vec![Reclaimable { bytes, reason }];
    StorageDiskUsage {
        id,
        file,
        file_bytes: bytes,
        is_exact: true,
        reclaimable,
        ..StorageDiskUsage::default()
    }
}

/// Returns the size of a file, or zero if there is none.
fn size_of(store: &OpenStore, path: &Path) -> u64 {
    store.disk.stat(path).map_or(0, |stat| stat.size_bytes)
}
