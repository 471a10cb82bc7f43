//! Deletes older manifests that no process holds, and the files that only they needed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{GarbageKey, KeptKey, Manifest, ManifestHead, limits};

use super::Generation;
use super::entries::{Entries, GarbageEntry, KeptEntry, StorageEntry, remove};
use super::in_use::{GenerationInUse, ManifestNeeds};
use super::pinned::Pin;
use super::recover::{list, numbers_among};
use super::store_dir::StoreDir;
use crate::disk::{
    Access, DiskFile, LockMode, STAGE_PREFIX, StoreFile, if_test_omits_step, is_not_regular, read_again,
    read_capped, step,
};
use crate::error::{IoContext, Result};

/// What a garbage collection deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Collected {
    /// The number of deleted files.
    pub file_count: u64,
    /// Their total size in bytes, including bytes cut off after aborted appends.
    pub size_bytes: u64,
}

/// Deletes files that are no longer needed, and counts them.
pub(crate) struct Collector<'a> {
    store: &'a StoreDir,
    pub(crate) collected: Collected,
}

/// Whether a generation has no record of a storage that is listed as garbage. A malformed store may list one that has a
/// record.
fn is_really_garbage(entries: Entries<'_>, id: u64) -> bool {
    step!("garbage-is-garbage", matches!(entries.find::<StorageEntry>(&id), Ok(None)))
}

/// How many older manifests a commit checks: half are the latest ones, and the other half rotates through the rest.
const CHECKED_PER_COMMIT: usize = 8;

/// How many older manifests a commit reads, unless they are so few that each commit checks them all.
const READ_PER_COMMIT: usize = 1;

/// A manifest before the newest one.
#[derive(Clone, Copy, Debug)]
struct OlderManifest {
    generation: u64,
    /// Whether it is in `generations/`: a tag kept it.
    is_kept: bool,
    /// `None` if it was not read: then its readers may need anything.
    needs: Option<ManifestNeeds>,
}

/// The manifests before the newest one, and what is known about them. A handle keeps this from one commit to the
/// next, so that the work per commit does not grow with their number.
#[derive(Debug, Default)]
pub(crate) struct OlderManifests {
    /// In ascending order of generation.
    manifests: Vec<OlderManifest>,
    /// The newest generation when this was listed. While it is still the newest, no earlier manifest is added.
    as_of: u64,
    /// Garbage dropped up to this generation is needed by one of `manifests`, so a commit skips it.
    needed_to: u64,
    /// The value of `needed_to` once the commit in progress is published.
    needed_to_after: u64,
    /// The lock of this handle on one of `manifests`, which no other part of this process uses.
    own_pin: Option<(u64, Pin)>,
    histories: Vec<u64>,
    /// The tables of manifests that were deleted.
    freed_tables: BTreeSet<u64>,
    /// The unfinished files that were listed. Only the holder of the writers' lock creates any in `meta/`.
    unfinished: Vec<String>,
}

impl OlderManifests {
    /// Makes this the manifests before `newest`. `names` are the names in `meta/`. Without them, the known manifests are
    /// used if they are still current, and otherwise the directory is listed.
    pub(super) fn update(
        &mut self,
        store: &StoreDir,
        names: Option<Vec<String>>,
        newest: &Generation,
    ) -> Result<()> {
        let names = match names {
            None if self.as_of == newest.number() => return Ok(()),
            None => list(&*store.disk, &store.paths)?,
            Some(names) => names,
        };
        let numbers = numbers_among(&names, "man").into_iter().filter(|&number| number < newest.number());
        let is_kept = false;
        let known = |generation| OlderManifest { generation, is_kept, needs: self.needs(generation) };
        self.manifests = numbers.map(known).collect();
        self.as_of = newest.number();
        self.needed_to = 0;
        self.histories = numbers_among(&names, "his");
        self.update_released(newest)?;
        self.unfinished = names.into_iter().filter(|name| name.starts_with(STAGE_PREFIX)).collect();
        Ok(())
    }

    /// Adds the generation that was the newest until now. If nothing else in this process uses it, its lock is kept
    /// for [`after_commit`](Self::after_commit), which then need not open the manifest.
    pub(crate) fn add(&mut self, newest: Arc<Generation>) {
        let (number, needs) = (newest.number(), ManifestNeeds::from(&newest.manifest().head()));
        self.histories.extend(needs.history.filter(|history| !self.histories.contains(history)));
        self.manifests.push(OlderManifest { generation: number, is_kept: false, needs: Some(needs) });
        self.own_pin = Arc::into_inner(newest).and_then(Generation::into_pin).map(|pin| (number, pin));
    }

    /// Makes the kept manifests those of the generations whose last tag was removed: a reader may still use them.
    fn update_released(&mut self, newest: &Generation) -> Result<()> {
        if_test_omits_step!("released-holds-back", return Ok(()));
        let released = newest.released()?.collect::<Result<BTreeMap<_, _>>>()?;
        // A generation that was tagged again is not released any more.
        let key = |generation| KeptKey { is_tagged: false, generation };
        self.forget(|older| older.is_kept && !released.contains_key(&key(older.generation)));
        for (KeptKey { generation, .. }, kept) in released {
            let at = self.position(generation);
            let is_known = |older: &OlderManifest| older.generation == generation && older.is_kept;
            if !self.manifests.iter().skip(at).take(2).any(is_known) {
                let needs = Some(ManifestNeeds::from(&kept));
                self.manifests.insert(at, OlderManifest { generation, is_kept: true, needs });
            }
        }
        Ok(())
    }

    /// Removes manifests that do not exist, or hold nothing back. Each may have been the only one that needed its table,
    /// and what was dropped after it.
    fn forget(&mut self, is_gone: impl Fn(&OlderManifest) -> bool) {
        for gone in self.manifests.extract_if(.., |older| is_gone(older)) {
            self.freed_tables.extend(gone.needs.and_then(|needs| needs.table));
            self.needed_to = self.needed_to.min(gone.generation);
        }
    }

    /// Returns the index of the first manifest that is not before a generation.
    fn position(&self, generation: u64) -> usize {
        self.manifests.partition_point(|older| older.generation < generation)
    }

    /// Returns what is known about a manifest in `meta/`. One that a tag kept names no history.
    fn needs(&self, generation: u64) -> Option<ManifestNeeds> {
        self.first_in_meta(generation).filter(|older| older.generation == generation)?.needs
    }

    /// Returns the first manifest in `meta/` that is not before a generation.
    fn first_in_meta(&self, generation: u64) -> Option<&OlderManifest> {
        self.manifests.iter().skip(self.position(generation)).find(|older| !older.is_kept)
    }

    /// Deletes the files of garbage that no tag keeps and no older generation can need, and drops them from the garbage
    /// of `next`. Returns whether any were dropped: then `storages/` must be synced before a manifest without them is
    /// published. Every existing manifest counts as held.
    ///
    /// A reader that stays on an old generation keeps what that generation needs, and nothing else. Every commit
    /// examines this garbage, so it must not grow with the commits made during a long read.
    pub(crate) fn delete_garbage(
        &mut self,
        store: &StoreDir,
        newest: &Generation,
        next: &mut Manifest,
    ) -> Result<bool> {
        let tables = newest.tables();
        // A kept manifest that was deleted holds nothing back any more.
        for released in newest.released()? {
            let (key, _) = released?;
            let path = store.paths.kept_manifest(key.generation);
            if matches!(store.disk.stat(&path), Err(e) if e.kind() == io::ErrorKind::NotFound) {
                remove::<KeptEntry>(next, tables, &key)?;
                self.forget(|older| older.is_kept && older.generation == key.generation);
            }
        }
        let mut collector = Collector::new(store);
        let (mut needed_to, mut deleted) = (newest.number(), Vec::new());
        let start = GarbageKey { is_tagged: false, dropped: self.needed_to.saturating_add(1), id: 0 };
        let entries = Entries { manifest: next, tables };
        // Of the generation before: what this commit drops, or takes from a tag, is still needed there.
        let before = newest.entries();
        if_test_omits_step!("garbage-of-before", before = entries);
        for entry in before.scan::<GarbageEntry>(Some(&start))? {
            let (key, _) = entry?;
            let GarbageKey { is_tagged, dropped, id } = key;
            if is_tagged {
                break;
            }
            // This commit may restore it, or tag a generation that needs it.
            if self.is_needed(id, dropped) || entries.find::<GarbageEntry>(&key)?.is_none() {
                continue;
            }
            let is_garbage = is_really_garbage(newest.entries(), id) && is_really_garbage(entries, id);
            if is_garbage && collector.remove_storage(id) {
                deleted.push(key);
            } else {
                needed_to = needed_to.min(dropped - 1);
            }
        }
        self.needed_to_after = needed_to;
        for key in &deleted {
            remove::<GarbageEntry>(next, tables, key)?;
        }
        Ok(!deleted.is_empty())
    }

    /// Runs after a commit: deletes what the new generation no longer needs and, if `sweeps`, crashed writers' leftovers.
    /// Best effort: a file that cannot be deleted is tried again later.
    pub(crate) fn after_commit(&mut self, store: &StoreDir, newest: &Generation, sweeps: bool) {
        self.as_of = newest.number();
        self.needed_to = self.needed_to_after;
        let is_complete = self.update_released(newest).is_ok();
        let mut collector = Collector::new(store);
        let others = self.manifests.len().saturating_sub(CHECKED_PER_COMMIT / 2) as u64;
        // Successive commits check all of them in turn.
        let start = newest.number().wrapping_mul(CHECKED_PER_COMMIT as u64 / 2) % others.max(1);
        let turn = |index: u64| (index + others - start) % others < CHECKED_PER_COMMIT as u64 / 2;
        let is_selected = |index| index as u64 >= others || turn(index as u64);
        let reads = if others == 0 { CHECKED_PER_COMMIT } else { READ_PER_COMMIT };
        self.collect(is_selected, reads, &mut collector);
        self.own_pin = None;
        if is_complete {
            let _ = collector.remove_garbage(newest, self);
        }
        if sweeps {
            let next_id = newest.manifest().next_storage_id;
            let is_later =
                |file| matches!(file, StoreFile::Storage(id) | StoreFile::Digests(id) if id >= next_id);
            let _ = collector.sweep(is_later);
        }
    }

    /// Deletes the selected manifests that no process holds. Reads up to `reads_left` of the others, later ones
    /// first.
    pub(crate) fn collect(
        &mut self,
        is_selected: impl Fn(usize) -> bool,
        mut reads_left: usize,
        collector: &mut Collector<'_>,
    ) {
        for index in (0..self.manifests.len()).rev().filter(|&index| is_selected(index)) {
            let Some(older) = self.manifests.get_mut(index) else { continue };
            let (number, read) = (older.generation, older.needs.is_none() && reads_left > 0);
            reads_left -= usize::from(read);
            let is_own = |(own, _): &mut (u64, Pin)| *own == number && !older.is_kept;
            let own = self.own_pin.take_if(is_own).map(|(_, pin)| pin);
            let exists = match collect_one(*older, own, read, collector) {
                Ok(Collection { is_deleted, needs }) => {
                    older.needs = older.needs.or(needs);
                    !is_deleted
                }
                // The file was deleted, or it is not a regular file and so has no readers.
                Err(e) => e.kind() != io::ErrorKind::NotFound && !is_not_regular(&e),
            };
            if !exists {
                self.freed_tables.extend(older.needs.and_then(|needs| needs.table));
                self.manifests.remove(index);
            }
            if !exists || read {
                // It may have been the only one that needed what was dropped after it.
                self.needed_to = self.needed_to.min(number);
            }
        }
    }

    /// Returns every manifest that exists as a generation in use.
    pub(crate) fn all_as_in_use(&self) -> impl Iterator<Item = GenerationInUse> {
        self.manifests.iter().map(|older| GenerationInUse {
            generation: older.generation,
            processes: Vec::new(),
            needs: older.needs,
        })
    }

    /// Whether the readers of a manifest may need anything, because it was not read.
    fn may_need_anything(needs: Option<ManifestNeeds>) -> bool {
        if_test_omits_step!("unread-holds-back", return false);
        needs.is_none()
    }

    /// Whether a reader may need a storage that lost its last name at generation `dropped_at`. Ids only grow: if the
    /// last generation before that does not need it, no earlier one does.
    fn is_needed(&self, id: u64, dropped_at: u64) -> bool {
        let before = self.position(dropped_at).checked_sub(1);
        let Some(needs) = before.and_then(|at| self.manifests.get(at)).map(|older| older.needs) else {
            return false;
        };
        if_test_omits_step!("pinned-holds-back", return Self::may_need_anything(needs));
        Self::may_need_anything(needs) || needs.is_some_and(|it| it.has_storage(id))
    }

    /// Whether a reader may need a table of storages and tensors. A later generation has the same table or a later one: if
    /// the first generation that could have this table does not need it, no later one does.
    fn is_table_needed(&self, table: u64) -> bool {
        let Some(first) = self.manifests.get(self.position(table)) else { return false };
        if_test_omits_step!("pinned-tables", return Self::may_need_anything(first.needs));
        Self::may_need_anything(first.needs) || first.needs.and_then(|needs| needs.table) == Some(table)
    }

    /// Whether a reader may need a table of the history, in the same way. A manifest that a tag kept names none.
    fn is_history_needed(&self, history: u64) -> bool {
        self.first_in_meta(history).is_some_and(|first| {
            Self::may_need_anything(first.needs)
                || first.needs.and_then(|needs| needs.history) == Some(history)
        })
    }
}

/// What became of a manifest.
struct Collection {
    is_deleted: bool,
    /// What it needs, if it was read.
    needs: Option<ManifestNeeds>,
}

/// Deletes a manifest unless a process holds it. Releases `own`, a lock of this handle on it. Reads one that is held if
/// `read` is set.
fn collect_one(
    older: OlderManifest,
    own: Option<Pin>,
    read: bool,
    collector: &mut Collector<'_>,
) -> io::Result<Collection> {
    let (store, number) = (collector.store, older.generation);
    let path = if older.is_kept { store.paths.kept_manifest(number) } else { store.paths.manifest(number) };
    let file = match &own {
        Some(pin) => Arc::clone(pin.file()),
        None => read_again(|| store.disk.open(&path, Access::Read))?,
    };
    // Locked until the file is deleted: a reader that opens it meanwhile sees the lock, or sees that the file has no
    // name.
    let is_free = step!("lock-older-manifest", file.try_lock(LockMode::Exclusive))?;
    let mut needs = None;
    if older.needs.is_none() && (is_free || read) {
        let bytes = read_capped(&*file, limits::MAX_MANIFEST_BYTES)?;
        let head = ManifestHead::decode(&bytes, store.uuid, number);
        // A damaged manifest that nobody holds is deleted too; a collection finds its table.
        needs = if is_free { head.ok() } else { Some(head.map_err(io::Error::other)?) };
    }
    if is_free {
        collector.remove(&path)?;
    }
    Ok(Collection { is_deleted: is_free, needs: needs.as_ref().map(ManifestNeeds::from) })
}

impl<'a> Collector<'a> {
    pub(crate) fn new(store: &'a StoreDir) -> Self {
        Collector { store, collected: Collected::default() }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let size_bytes = self.store.disk.stat(path).map_or(0, |stat| stat.size_bytes);
        self.store.disk.remove(path)?;
        self.collected.file_count += 1;
        self.collected.size_bytes += size_bytes;
        Ok(())
    }

    /// Deletes the files of a storage. Returns whether they are gone.
    fn remove_storage(&mut self, id: u64) -> bool {
        let paths = &self.store.paths;
        let mut is_gone = |path: &Path| match self.remove(path) {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        let is_bytes_gone = is_gone(&paths.storage(id));
        is_gone(&paths.sum(id)) && is_bytes_gone
    }

    /// Deletes the tables of manifests that were deleted, and the storages that are garbage, unless a tag, the newest
    /// generation or an older one that may be held needs them. Also deletes the unfinished files in `meta/`.
    pub(crate) fn remove_garbage(&mut self, newest: &Generation, older: &mut OlderManifests) -> Result<()> {
        let paths = &self.store.paths;
        let start = GarbageKey { is_tagged: false, dropped: older.needed_to.saturating_add(1), id: 0 };
        for entry in newest.entries().scan::<GarbageEntry>(Some(&start))? {
            let (GarbageKey { is_tagged, dropped, id }, _) = entry?;
            if is_tagged {
                break;
            }
            if !older.is_needed(id, dropped) && is_really_garbage(newest.entries(), id) {
                self.remove_storage(id);
            }
        }
        let mut freed = std::mem::take(&mut older.freed_tables);
        for table in std::mem::take(&mut freed) {
            let is_needed = is_table_of(newest, table)? || older.is_table_needed(table);
            if !is_needed {
                let _ = self.remove(&paths.table(table));
            }
        }
        let own = newest.manifest().history.map(|history| history.generation);
        let mut histories = std::mem::take(&mut older.histories);
        histories.retain(|&history| {
            let is_needed = Some(history) == own || older.is_history_needed(history);
            is_needed || self.remove(&paths.history(history)).is_err()
        });
        older.histories = histories;
        for name in older.unfinished.drain(..) {
            let _ = self.remove(&paths.meta_dir().join(name));
        }
        Ok(())
    }

    /// Deletes crashed writers' unfinished files, and the unneeded files in `storages/` and `generations/`.
    pub(crate) fn sweep(&mut self, is_unneeded: impl Fn(StoreFile) -> bool) -> Result<()> {
        let store = self.store;
        let root = store.paths.root();
        for dir in [root, &store.paths.storages_dir(), &store.paths.generations_dir()] {
            for name in store.disk.list(dir).doing("list", dir)? {
                let (file, path) = (StoreFile::in_dir(&store.paths, dir, &name), dir.join(&name));
                // Locked until the file is deleted: its writer may be about to lock it, and must then see that it was
                // deleted.
                let abandoned = match file {
                    StoreFile::Unfinished => lock_abandoned(store, &path),
                    _ => None,
                };
                if abandoned.is_some() || dir != root && is_unneeded(file) {
                    let _ = self.remove(&path);
                }
            }
        }
        Ok(())
    }
}

/// Whether the newest generation, or one that a tag keeps, has a table.
pub(crate) fn is_table_of(newest: &Generation, table: u64) -> Result<bool> {
    if newest.manifest().table.is_some_and(|own| own.generation == table) {
        return Ok(true);
    }
    // The first tagged generation that could have the table: a later one has the same or a later one.
    let first = newest.tagged(table)?.next().transpose()?;
    if_test_omits_step!("tag-keeps-table", return Ok(false));
    Ok(first.is_some_and(|(_, kept)| kept.table == Some(table)))
}

/// Opens and locks an unfinished file. Returns `None` while a live writer holds it.
fn lock_abandoned(store: &StoreDir, path: &Path) -> Option<Arc<dyn DiskFile>> {
    let file = store.disk.open(path, Access::Read).ok()?;
    step!("stage-is-abandoned", file.try_lock(LockMode::Exclusive)).ok()?.then_some(file)
}
