//! The manifests before the newest one, and what their readers may need. Deletes those that no process holds.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use stridemap_format::{
    Error as FormatError, GarbageKey, KeptGeneration, KeptKey, Manifest, ManifestHead, Rule, limits,
};

use super::Generation;
use super::entries::{Entries, GarbageEntry, KeptEntry, Tables, remove};
use super::garbage::{Collector, is_really_garbage, is_table_of};
use super::in_use::{GenerationInUse, ManifestNeeds};
use super::pinned::Pin;
use super::recover::{list, numbers_among};
use super::store_dir::StoreDir;
use super::writer_lock::WriterLock;
use crate::disk::{
    Access, LockMode, STAGE_PREFIX, StoreFile, if_test_omits_step, is_not_regular, read_again, read_capped,
    step,
};
use crate::error::{Error, Result};

/// How many older manifests a commit checks besides those that it releases: half are the latest ones, and the other half
/// rotates through the rest.
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
    /// The generations that the newest lists as released, and whose manifests were deleted.
    gone: Vec<u64>,
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
    /// used if they are still current, and otherwise the directory is listed. The released generations are read only if
    /// another handle has published since.
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
        let mut numbers = numbers_among(&names, "man");
        numbers.retain(|&number| number < newest.number());
        if self.as_of == newest.number() {
            self.forget(|older| !older.is_kept && numbers.binary_search(&older.generation).is_err());
        } else {
            self.list_again(store, &numbers, newest)?;
        }
        self.histories = numbers_among(&names, "his");
        self.unfinished = names.into_iter().filter(|name| name.starts_with(STAGE_PREFIX)).collect();
        self.as_of = newest.number();
        Ok(())
    }

    /// Makes this the manifests with these numbers in `meta/`, and those of the released generations.
    fn list_again(&mut self, store: &StoreDir, numbers: &[u64], newest: &Generation) -> Result<()> {
        let known = |&generation| OlderManifest { generation, is_kept: false, needs: self.needs(generation) };
        self.manifests = numbers.iter().map(known).collect();
        self.needed_to = 0;
        let released = newest.released()?.map(|entry| {
            let (generation, kept) = entry?;
            // Otherwise, the manifest of a tag would be deleted.
            match newest.is_tagged(generation)? {
                true => Err(kept_twice(store, newest, generation)),
                false => Ok((generation, kept)),
            }
        });
        let released: Vec<_> = released.collect::<Result<_>>()?;
        self.add_released(&released);
        self.find_gone(store, newest.number());
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

    /// Adds the kept manifests of generations that no tag names any more: a reader may still use them.
    fn add_released(&mut self, released: &[(u64, KeptGeneration)]) {
        if_test_omits_step!("released-holds-back", return);
        let older = |&(generation, ref kept)| {
            let needs = Some(ManifestNeeds::from(kept));
            OlderManifest { generation, is_kept: true, needs }
        };
        self.manifests.extend(released.iter().map(older));
        if !released.is_empty() {
            self.manifests.sort_by_key(|older| (older.generation, !older.is_kept));
        }
    }

    /// Finds released generations whose manifests other processes have deleted. Stops after a few manifests that exist:
    /// readers may hold many.
    fn find_gone(&mut self, store: &StoreDir, turn: u64) {
        let kept: Vec<u64> =
            self.manifests.iter().filter(|older| older.is_kept).map(|older| older.generation).collect();
        let start = turn.wrapping_mul(CHECKED_PER_COMMIT as u64 / 2) % (kept.len() as u64).max(1);
        let (before, from) = kept.split_at(start as usize);
        let (mut gone, mut existing) = (BTreeSet::new(), 0);
        for &generation in from.iter().chain(before) {
            let stat = store.disk.stat(&store.paths.kept_manifest(generation));
            let is_gone = matches!(stat, Err(e) if e.kind() == io::ErrorKind::NotFound);
            if step!("released-is-gone", is_gone) {
                gone.insert(generation);
                continue;
            }
            existing += 1;
            if existing == CHECKED_PER_COMMIT / 2 {
                break;
            }
        }
        self.forget(|older| older.is_kept && gone.contains(&older.generation));
        self.gone = gone.into_iter().collect();
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

    /// Returns the index of the manifest of a released generation.
    fn kept_at(&self, generation: u64) -> Option<usize> {
        let at = self.position(generation);
        let older = self.manifests.get(at)?;
        (older.is_kept && older.generation == generation).then_some(at)
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
    /// examines this garbage, so it must not grow with the commits made during a long read. `tables` are those of `next`.
    pub(crate) fn delete_garbage(
        &mut self,
        store: &StoreDir,
        newest: &Generation,
        (next, tables): (&mut Manifest, Tables<'_>),
    ) -> Result<bool> {
        // A commit that fails may have written a manifest of a generation that is gone.
        self.as_of = 0;
        for &generation in &self.gone {
            remove::<KeptEntry>(next, tables, &KeptKey { is_tagged: false, generation })?;
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
    /// Checks few manifests, and those of all generations that the commit released, which only readers of these need.
    /// `gained` are those that it tagged.
    /// Best effort: a file that cannot be deleted is tried again later.
    pub(crate) fn after_commit(
        &mut self,
        store: &StoreDir,
        newest: &Generation,
        (gained, released): (BTreeSet<u64>, &[(u64, KeptGeneration)]),
        sweeps: bool,
        lock: &WriterLock,
    ) {
        self.as_of = newest.number();
        self.needed_to = self.needed_to_after;
        self.gone.clear();
        if !gained.is_empty() {
            if_test_omits_step!("tagged-again-stays", gained = BTreeSet::new());
            self.forget(|older| older.is_kept && gained.contains(&older.generation));
        }
        self.add_released(released);
        let half = CHECKED_PER_COMMIT / 2;
        let others = self.manifests.len().saturating_sub(half);
        let mut selected: BTreeSet<usize> = (others..self.manifests.len()).collect();
        // Successive commits check all of them in turn.
        let start = (newest.number() as usize).wrapping_mul(half) % others.max(1);
        selected.extend((0..half.min(others)).map(|turn| (start + turn) % others));
        selected.extend(released.iter().filter_map(|&(generation, _)| self.kept_at(generation)));
        let reads = if others == 0 { CHECKED_PER_COMMIT } else { READ_PER_COMMIT };
        let mut collector = Collector::closing_after(store, lock);
        self.collect(selected.into_iter().rev(), reads, &mut collector);
        self.own_pin = None;
        let _ = self.remove_garbage(newest, &mut collector);
        if sweeps {
            let next_id = newest.manifest().next_storage_id;
            let is_later =
                |file| matches!(file, StoreFile::Storage(id) | StoreFile::Digests(id) if id >= next_id);
            let _ = collector.sweep(is_later);
        }
    }

    /// Deletes all manifests that no process holds, and reads the others.
    pub(crate) fn collect_all(&mut self, collector: &mut Collector<'_>) {
        self.collect((0..self.manifests.len()).rev(), usize::MAX, collector);
    }

    /// Deletes the manifests at these indices, which descend, that no process holds. Reads up to `reads_left` of the others.
    fn collect(
        &mut self,
        indices: impl Iterator<Item = usize>,
        mut reads_left: usize,
        collector: &mut Collector<'_>,
    ) {
        for index in indices {
            let Some(older) = self.manifests.get_mut(index) else { continue };
            let (number, is_kept) = (older.generation, older.is_kept);
            let read = older.needs.is_none() && reads_left > 0;
            reads_left -= usize::from(read);
            let is_own = |(own, _): &mut (u64, Pin)| *own == number && !is_kept;
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
                self.gone.extend(is_kept.then_some(number));
            }
            if !exists || read {
                // It may have been the only one that needed what was dropped after it.
                self.needed_to = self.needed_to.min(number);
            }
        }
    }

    /// Deletes the tables of manifests that were deleted, and the storages that are garbage, unless a tag, the newest
    /// generation or an older one that may be held needs them. Also deletes the unfinished files in `meta/`.
    pub(crate) fn remove_garbage(
        &mut self,
        newest: &Generation,
        collector: &mut Collector<'_>,
    ) -> Result<()> {
        let paths = &collector.store.paths;
        let start = GarbageKey { is_tagged: false, dropped: self.needed_to.saturating_add(1), id: 0 };
        for entry in newest.entries().scan::<GarbageEntry>(Some(&start))? {
            let (GarbageKey { is_tagged, dropped, id }, _) = entry?;
            if is_tagged {
                break;
            }
            if !self.is_needed(id, dropped) && is_really_garbage(newest.entries(), id) {
                collector.remove_storage(id);
            }
        }
        for table in std::mem::take(&mut self.freed_tables) {
            let is_needed = is_table_of(newest.entries(), table)? || self.is_table_needed(table);
            if !is_needed {
                let _ = collector.remove(&paths.table(table));
            }
        }
        let own = newest.manifest().history.map(|history| history.generation);
        let mut histories = std::mem::take(&mut self.histories);
        histories.retain(|&history| {
            let is_needed = Some(history) == own || self.is_history_needed(history);
            is_needed || collector.remove(&paths.history(history)).is_err()
        });
        self.histories = histories;
        for name in self.unfinished.drain(..) {
            let _ = collector.remove(&paths.meta_dir().join(name));
        }
        Ok(())
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
    pub(super) fn is_table_needed(&self, table: u64) -> bool {
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

/// Returns the error for a generation that is listed both as tagged and as released.
fn kept_twice(store: &StoreDir, newest: &Generation, generation: u64) -> Error {
    let path = newest.history_path(&store.paths);
    let detail = format!("generation {generation} is listed both with tags and without; verify the store");
    Error::corrupt(&path, FormatError::new(Rule::RecordCount, detail))
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
