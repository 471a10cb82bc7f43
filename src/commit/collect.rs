use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stridemap_format::{Digest, Manifest, StorageKind, full_chunk_count, limits};

use super::lock::WriterLock;
use super::recover::{manifest_numbers, pin};
use super::{Generation, History, unsynced};
use crate::disk::{Access, DiskFile, LockMode, STAGE_PREFIX, Step, number_in, read_capped};
use crate::error::{Error, Result};
use crate::storage::GrowthLock;

/// What a collection deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// How many files.
    pub file_count: u64,
    /// Their bytes together, and those that were cut off where an append had not become a commit.
    pub size_bytes: u64,
}

/// Deletes the files of garbage that no older generation can need, and forgets it; gives whether it forgot any, for then
/// `storages/` must be synced before the manifest says so.
///
/// A reader that stays on an old generation holds back what that one needs, and nothing else: the list, which every
/// manifest repeats and every commit goes through, must not grow with the commits that the reader sleeps through.
pub(super) fn delete_garbage(history: &History, newest: &Generation, next: &mut Manifest) -> Result<bool> {
    let generation = next.generation;
    if next.garbage.values().all(|&dropped| dropped == generation) {
        return Ok(false);
    }
    // Who deleted the older manifests had synced the name of the newest. Where some are left, and it is another's, its
    // writer may have died before that; what it replaced must not go while a power cut can take it back.
    if !newest.is_synced() && manifest_numbers(&*history.disk, &history.paths)?.len() > 1 {
        history.sync_dir(Step::SyncBeforeGarbage, &history.paths.meta_dir())?;
    }
    let mut deleted = Collected::default();
    let older = Older::collect(history, newest.number(), &mut deleted);
    let before = next.garbage.len();
    next.garbage.retain(|&id, &mut dropped| {
        // What this commit drops has a record still, in the generation before it: that need not be looked up.
        let goes = dropped < generation
            && !older.need(history, id, dropped)
            && is_really_garbage(history, newest, id)
            && deleted.remove_storage(history, id);
        !goes
    });
    Ok(next.garbage.len() < before)
}

/// A store may lie: what has a record is no garbage.
fn is_really_garbage(history: &History, newest: &Generation, id: u64) -> bool {
    Step::GarbageIsGarbage.holds(&*history.disk, || matches!(newest.storage(id), Ok(None)))
}

/// After a commit: what the new generation no longer needs; and, once a handle, what dead writers left. Best effort:
/// what stays is tried again.
pub(super) fn after_commit(history: &History, newest: &Generation, _lock: &WriterLock) {
    let mut collected = Collected::default();
    let older = Older::collect(history, newest.number(), &mut collected);
    collected.remove_garbage(history, newest, &older);
    if !history.is_swept.swap(true, Ordering::Relaxed) {
        let next_id = newest.manifest().next_storage_id;
        let _ = collected.sweep(history, newest, &older, |id, _| id < next_id);
    }
}

/// Deletes every file that neither the newest generation nor a pinned one needs, and what is past the end of sealed
/// storages.
pub(crate) fn collect_all(history: &History) -> Result<Collected> {
    history.check_poison()?;
    let lock = WriterLock::take(history)?;
    history.watched(unsynced::settle(history, &lock))?;
    let newest = history.newest_under(&lock)?;
    history.watched(unsynced::settle_creation(history, &newest, &lock))?;
    if !newest.is_synced() {
        // Its writer may have died before this. What it replaced must not go while its name can.
        history.watched(history.sync_dir(Step::SyncBeforeCollection, &history.paths.meta_dir()))?;
    }
    history.install(Arc::clone(&newest));
    let mut collected = Collected::default();
    let older = Older::collect(history, newest.number(), &mut collected);
    let mut needed = BTreeMap::new();
    add_storages(&newest, &mut needed)?;
    for manifest in older.pinned.iter().filter(|_| Step::PinnedStorages.is_taken(&*history.disk)) {
        if let Some(pinned) = pin(&*history.disk, &history.paths, history.uuid, manifest.generation)? {
            add_storages(&pinned, &mut needed)?;
        }
    }
    let is_needed = |id: u64, is_sum: bool| match needed.get(&id) {
        Some(&sealed_bytes) => !is_sum || full_chunk_count(sealed_bytes.unwrap_or_default()) > 0,
        None => older.is_unclear,
    };
    collected.sweep(history, &newest, &older, is_needed)?;
    if !older.is_unclear {
        for entry in newest.storages() {
            let (id, _) = entry?;
            if let Some(&Some(sealed_bytes)) = needed.get(&id) {
                collected.cut_storage(history, id, sealed_bytes);
            }
        }
    }
    Ok(collected)
}

/// Adds the storages of a generation that are in the store's own files: how many bytes of a sealed one are needed.
fn add_storages(generation: &Generation, needed: &mut BTreeMap<u64, Option<u64>>) -> Result<()> {
    for entry in generation.storages() {
        let (id, record) = entry?;
        let sealed_bytes = match record.kind {
            StorageKind::External(_) => continue,
            StorageKind::Sealed(_) => Some(record.length_bytes),
            StorageKind::Mutable | StorageKind::Live { .. } => None,
        };
        // An older generation needs as much of a storage that grows, or less.
        let known = needed.entry(id).or_insert(sealed_bytes);
        *known = known.zip(sealed_bytes).map(|(known, bytes)| known.max(bytes));
    }
    Ok(())
}

/// The generations before the newest that somebody is still on.
struct Older {
    pinned: Vec<Manifest>,
    /// A manifest that could not be read may need anything.
    is_unclear: bool,
}

impl Older {
    /// Deletes the manifests that nobody holds.
    fn collect(history: &History, newest: u64, collected: &mut Collected) -> Older {
        let mut older = Older { pinned: Vec::new(), is_unclear: false };
        let holds_back = Step::UnreadHoldsBack.is_taken(&*history.disk);
        let Ok(numbers) = manifest_numbers(&*history.disk, &history.paths) else {
            return Older { is_unclear: holds_back, ..older };
        };
        for number in numbers.into_iter().filter(|&number| number < newest) {
            match older.collect_one(history, number, collected) {
                Ok(()) => {}
                // It has gone; or it is not a file, which no reader can be on.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
                Err(_) => older.is_unclear = holds_back,
            }
        }
        older
    }

    fn collect_one(&mut self, history: &History, number: u64, collected: &mut Collected) -> io::Result<()> {
        let path = history.paths.manifest(number);
        let file = history.disk.open(&path, Access::Read)?;
        // Held until the file is gone: a reader that comes between sees the lock, or that the file has no name left.
        if Step::LockOlderManifest.locks(&*history.disk, || file.try_lock(LockMode::Exclusive))? {
            return collected.remove(history, &path);
        }
        let bytes = read_capped(&*file, limits::MAX_MANIFEST_BYTES)?;
        self.pinned.push(Manifest::decode(&bytes, history.uuid, number).map_err(io::Error::other)?);
        Ok(())
    }

    /// Whether a storage that lost its last name at generation `dropped` may be read by somebody.
    fn need(&self, history: &History, id: u64, dropped: u64) -> bool {
        let holds = |manifest: &Manifest| id < manifest.next_storage_id && manifest.generation < dropped;
        let holds_back = Step::PinnedHoldsBack.is_taken(&*history.disk);
        self.is_unclear || holds_back && self.pinned.iter().any(holds)
    }
}

impl Collected {
    fn remove(&mut self, history: &History, path: &Path) -> io::Result<()> {
        let size_bytes = history.disk.stat(path).map_or(0, |stat| stat.size_bytes);
        history.disk.remove(path)?;
        self.file_count += 1;
        self.size_bytes += size_bytes;
        Ok(())
    }

    /// Takes back what an append left that did not become a commit, unless one is under way. The caller holds the writers'
    /// lock: the length is the newest. Best effort.
    fn cut_storage(&mut self, history: &History, id: u64, length_bytes: u64) {
        let (bin, sum) = (history.paths.storage(id), history.paths.sum(id));
        let sum_bytes = full_chunk_count(length_bytes) * size_of::<Digest>() as u64;
        let is_longer =
            |path: &Path, bytes: u64| history.disk.stat(path).is_ok_and(|stat| stat.size_bytes > bytes);
        if !is_longer(&bin, length_bytes) && !is_longer(&sum, sum_bytes) {
            return;
        }
        let Ok(Some(lock)) = GrowthLock::try_take(&history.disk, &bin) else { return };
        self.size_bytes += lock.cut(length_bytes).unwrap_or_default();
        if is_longer(&sum, sum_bytes)
            && let Ok(file) = history.disk.open(&sum, Access::Write)
            && let Ok(stat) = file.stat()
            && stat.link_count == 1
            && file.set_len(sum_bytes).is_ok()
        {
            self.size_bytes += stat.size_bytes - sum_bytes;
        }
    }

    /// Gives whether the storage's files are gone.
    fn remove_storage(&mut self, history: &History, id: u64) -> bool {
        let mut is_gone = |path: &Path| match self.remove(history, path) {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        let is_bytes_gone = is_gone(&history.paths.storage(id));
        is_gone(&history.paths.sum(id)) && is_bytes_gone
    }

    fn remove_garbage(&mut self, history: &History, newest: &Generation, older: &Older) {
        for (&id, &dropped) in &newest.manifest().garbage {
            if !older.need(history, id, dropped) && is_really_garbage(history, newest, id) {
                self.remove_storage(history, id);
            }
        }
        let Ok(names) = history.disk.list(&history.paths.meta_dir()) else { return };
        let referenced: BTreeSet<u64> = older
            .pinned
            .iter()
            .filter(|_| Step::PinnedTables.is_taken(&*history.disk))
            .chain([newest.manifest()])
            .filter_map(|manifest| Some(manifest.table?.generation))
            .collect();
        for name in names {
            // Only the holder of the writers' lock has unfinished files here, and it has finished.
            let is_stale = name.starts_with(STAGE_PREFIX)
                || number_in(&name, "tab")
                    .is_some_and(|table| !older.is_unclear && !referenced.contains(&table));
            if is_stale {
                let _ = self.remove(history, &history.paths.meta_dir().join(&name));
            }
        }
    }

    /// Goes through `storages/` and deletes the unfinished files of dead writers, and what is not needed.
    fn sweep(
        &mut self,
        history: &History,
        newest: &Generation,
        older: &Older,
        is_needed: impl Fn(u64, bool) -> bool,
    ) -> Result<()> {
        self.remove_garbage(history, newest, older);
        let dir = history.paths.storages_dir();
        for name in history.disk.list(&dir).map_err(|e| Error::io("list", &dir, e))? {
            let path = dir.join(&name);
            let is_stale = match (number_in(&name, "bin"), number_in(&name, "sum")) {
                (Some(id), _) => !is_needed(id, false),
                (_, Some(id)) => !is_needed(id, true),
                _ => false,
            };
            // Held until the file is gone: its writer may be about to lock it, and must then see that it went.
            let abandoned =
                if name.starts_with(STAGE_PREFIX) { lock_abandoned(history, &path) } else { None };
            if is_stale || abandoned.is_some() {
                let _ = self.remove(history, &path);
            }
        }
        Ok(())
    }
}

/// The file, under its lock: none while a live writer holds it.
fn lock_abandoned(history: &History, path: &Path) -> Option<Arc<dyn DiskFile>> {
    let file = history.disk.open(path, Access::Read).ok()?;
    let is_locked = Step::StageIsAbandoned.locks(&*history.disk, || file.try_lock(LockMode::Exclusive));
    is_locked.ok()?.then_some(file)
}
