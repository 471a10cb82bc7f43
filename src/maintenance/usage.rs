//! Disk usage: adds up the inventory and the bytes that tensors reach.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::inventory::{Inventory, ListedFile, SpaceReason, SpareFile};
use super::storage_tensors::{RewriteGain, StorageTensors, each_storage, rewrite_gain};
use super::tagged::TaggedGenerations;
use crate::disk::{FileId, REMOTE_PREFIX, STAGE_PREFIX, StoreFile, tree_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{OpenStore, writers_of};
use crate::layout::repack;
use crate::storage::StorageKind;

/// The maximum number of names that are listed for one storage.
const MAX_NAMES: usize = 3;

/// The disk usage of a store: see [`Store::disk_usage`](crate::Store::disk_usage). The sum of the five numbers of bytes
/// is the length of everything in the store's directory, as `du -sb` prints it: a file with several names there counts
/// once, by the name that is needed most.
#[must_use = "this only reports"]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DiskUsage {
    /// The generation that the numbers describe: the newest.
    pub generation: u64,
    /// The bytes of storages that a compaction keeps: those of tensors, those that align them or are between the
    /// elements of views, and the space that is reserved for a tensor to grow.
    pub reachable_bytes: u64,
    /// Bytes that the newest generation does not need, but a tag keeps.
    pub tagged_bytes: u64,
    /// Bytes that neither the newest generation nor a tag needs, but which a process still uses or is writing.
    pub held_bytes: u64,
    /// Bytes that nothing needs, and which could be freed now.
    pub reclaimable_bytes: u64,
    /// Everything else: the headers of the newest generation, digests, a few small files, the directories themselves,
    /// and files that are not the store's.
    pub metadata_bytes: u64,
    /// The files with bytes that the newest generation does not need, and why they are on disk. Files that are not the
    /// store's are also listed.
    pub spare: Vec<SpareFile>,
}

impl DiskUsage {
    /// Returns the length of everything in the store's directory: the sum of the five numbers.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// let usage = store.disk_usage()?;
    /// assert_eq!(usage.reachable_bytes, 100);
    /// assert!(usage.reclaimable_bytes >= 9_900 && usage.folder_bytes() > 10_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn folder_bytes(&self) -> u64 {
        let DiskUsage {
            reachable_bytes, tagged_bytes, held_bytes, reclaimable_bytes, metadata_bytes, ..
        } = *self;
        [reachable_bytes, tagged_bytes, held_bytes, reclaimable_bytes, metadata_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Lists a file, and adds its spare bytes to those of its reason.
    fn add(&mut self, file: SpareFile) {
        let sum = match &file.reason {
            SpaceReason::Foreign => &mut self.metadata_bytes,
            SpaceReason::Tagged { .. } => &mut self.tagged_bytes,
            reason if reason.is_held() => &mut self.held_bytes,
            _ => &mut self.reclaimable_bytes,
        };
        add(sum, file.spare_bytes);
        self.spare.push(file);
    }
}

/// Adds up the sizes of all files, and the bytes that tensors reach.
pub(crate) fn usage(store: &OpenStore) -> Result<DiskUsage> {
    if store.disk.never_changes() {
        let message = format!(
            "disk usage of {}: the store is not in a file system; list its storages for their sizes, or copy it to a path",
            store.paths.root().display()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let Inventory { newest, mut files } = Inventory::take(store)?;
    let mut usage = DiskUsage { generation: newest.number(), ..DiskUsage::default() };
    let mut counted = Counted::default();
    let others = add_root(&mut usage, store, &mut counted)?;
    files.sort_by_key(ListedFile::spareness);
    // How many bytes of each storage's `.bin` file are needed.
    let mut needed = BTreeMap::<u64, u64>::new();
    for listed in files {
        let (file, mut size_bytes, shared_id) = (listed.file, listed.size_bytes, listed.shared_id);
        let mut spare = listed.spare();
        if let (StoreFile::Foreign, Some(file)) = (file, &mut spare) {
            file.spare_bytes = counted.bytes_at(store, &file.path);
            file.size_bytes = file.size_bytes.max(file.spare_bytes);
            size_bytes = file.spare_bytes;
        } else if !counted.is_first(shared_id) {
            size_bytes = 0;
            spare.iter_mut().for_each(|file| file.spare_bytes = 0);
        }
        let spare_bytes = spare.as_ref().map_or(0, |spare| spare.spare_bytes);
        let needed_bytes = size_bytes.saturating_sub(spare_bytes);
        match file {
            StoreFile::Storage(id) => add(needed.entry(id).or_default(), needed_bytes),
            _ => add(&mut usage.metadata_bytes, needed_bytes),
        }
        spare.into_iter().for_each(|spare| usage.add(spare));
    }
    let (mut unreached, mut restored) = (Vec::new(), Vec::new());
    each_storage(&newest, false, |storage| {
        let (id, is_restored) = (storage.id, storage.record.is_restored);
        let needed_bytes = needed.remove(&id).unwrap_or_default();
        let found = unreached_bytes(store, storage, needed_bytes)?;
        let unreached_bytes = found.as_ref().map_or(0, |file| file.spare_bytes);
        add(&mut usage.reachable_bytes, needed_bytes.saturating_sub(unreached_bytes));
        restored.extend((is_restored && found.is_some()).then_some(id));
        unreached.extend(found.map(|file| (id, file)));
        Ok(())
    })?;
    let mut tagged = TaggedGenerations::list(&newest)?;
    tagged.find_restored(store, &newest, &restored, &[])?;
    for (id, mut file) in unreached {
        // A rewrite would free nothing: the tag keeps the storage.
        if let Some(generation) = tagged.with_storage(id).next() {
            file.reason = SpaceReason::Tagged { generation };
        }
        usage.add(file);
    }
    // A damaged generation may need every storage.
    needed.into_values().for_each(|bytes| add(&mut usage.reachable_bytes, bytes));
    for path in others {
        add_other(&mut usage, store, path, &mut counted);
    }
    usage.spare.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(usage)
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

/// Adds the store's own directory, and its own files and directories in it, except for the contents of these
/// directories. Returns what else is there.
fn add_root(usage: &mut DiskUsage, store: &OpenStore, counted: &mut Counted) -> Result<Vec<PathBuf>> {
    let (paths, root) = (&store.paths, store.paths.root());
    let own = paths.dirs().into_iter().chain([paths.format_file(), paths.lock(), paths.unsynced()]);
    let own: Vec<_> = own.collect();
    add(&mut usage.metadata_bytes, counted.size_of(store, root));
    let mut others = Vec::new();
    for name in store.disk.list(root).map_err(|e| Error::io("list", root, e))? {
        let path = root.join(&name);
        match own.contains(&path) || name.starts_with(REMOTE_PREFIX) {
            true => add(&mut usage.metadata_bytes, counted.size_of(store, &path)),
            false => others.push(path),
        }
    }
    Ok(others)
}

/// Adds a file or directory in the store's directory that is neither one of its own nor in one of its own.
fn add_other(usage: &mut DiskUsage, store: &OpenStore, path: PathBuf, counted: &mut Counted) {
    let is_staged =
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(STAGE_PREFIX));
    let reason = match is_staged && !store.disk.is_dir(&path).unwrap_or(false) {
        true => writers_of(store, &path)
            .map_or(SpaceReason::Garbage, |processes| SpaceReason::Writing { processes }),
        false => SpaceReason::Foreign,
    };
    let spare_bytes = counted.bytes_at(store, &path);
    let size_bytes = store.disk.stat(&path).map_or(0, |stat| stat.size_bytes).max(spare_bytes);
    usage.add(SpareFile { path, spare_bytes, reason, size_bytes, storage_id: None, names: Vec::new() });
}

/// Returns the bytes of a storage that no tensor reaches and that a compaction does not keep, if there are any.
fn unreached_bytes(
    store: &OpenStore,
    storage: StorageTensors,
    needed_bytes: u64,
) -> Result<Option<SpareFile>> {
    let (path, length_bytes) = (store.paths.storage(storage.id), storage.record.length_bytes);
    let repacked = repack(&storage.views(), length_bytes).map_err(|e| Error::corrupt(&path, e))?;
    let kept_bytes = repacked.length_bytes.min(length_bytes);
    let reason = match (rewrite_gain(length_bytes, kept_bytes), StorageKind::of(&storage.record.kind)) {
        (RewriteGain::Nothing, _) => return Ok(None),
        (RewriteGain::Enough, StorageKind::Sealed) => SpaceReason::Unreached,
        _ => SpaceReason::Kept,
    };
    Ok(Some(SpareFile {
        path,
        // A damaged file can be too short.
        spare_bytes: (length_bytes - kept_bytes).min(needed_bytes),
        reason,
        size_bytes: needed_bytes,
        storage_id: Some(storage.id),
        names: storage.tensors.into_keys().take(MAX_NAMES).collect(),
    }))
}

/// The files with several names of which one was counted.
#[derive(Default)]
struct Counted(HashSet<FileId>);

impl Counted {
    /// Returns whether no other name of the file was counted.
    fn is_first(&mut self, shared_id: Option<FileId>) -> bool {
        shared_id.is_none_or(|id| self.0.insert(id))
    }

    /// Returns the length of a file, or of a directory and all that is in it.
    fn bytes_at(&mut self, store: &OpenStore, path: &Path) -> u64 {
        match store.disk.is_dir(path).unwrap_or(false) {
            true => tree_bytes(path, &mut self.0),
            false => self.size_of(store, path),
        }
    }

    /// Returns the length of a file or of the directory itself, or zero if there is none, or if it was counted.
    fn size_of(&mut self, store: &OpenStore, path: &Path) -> u64 {
        let Ok(stat) = store.disk.stat(path) else { return 0 };
        let shared_id = (stat.link_count > 1).then(|| stat.id());
        if self.is_first(shared_id) { stat.size_bytes } else { 0 }
    }
}
