//! Deletes older manifests that no process holds, and the files that only they needed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Manifest, ManifestHead, limits};

use super::Generation;
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

/// Whether the newest generation has no record of a storage that is listed as garbage. A malformed store may list one
/// that has a record.
fn is_really_garbage(newest: &Generation, id: u64) -> bool {
    step!("garbage-is-garbage", matches!(newest.storage(id), Ok(None)))
}

/// How many older manifests a commit checks: half are the latest ones, and the other half rotates through the rest.
const CHECKED_PER_COMMIT: usize = 8;

/// How many older manifests a commit reads, unless they are so few that each commit checks them all.
const READ_PER_COMMIT: usize = 1;

/// The manifests before the newest one, and what is known about them. A handle keeps this from one commit to the
/// next, so that the work per commit does not grow with their number.
#[derive(Debug, Default)]
pub(crate) struct OlderManifests {
    /// In ascending order of generation. `None` for a manifest that was not read: its readers may need anything.
    manifests: Vec<(u64, Option<ManifestNeeds>)>,
    /// The newest generation when this was listed. While it is still the newest, no earlier manifest is added.
    as_of: u64,
    /// Garbage dropped up to this generation is needed by one of `manifests`, so a commit skips it.
    needed_to: u64,
    /// The value of `needed_to` once the commit in progress is published.
    needed_to_after: u64,
    /// The lock of this handle on one of `manifests`, which no other part of this process uses.
    own_pin: Option<(u64, Pin)>,
    tables: Vec<u64>,
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
        self.manifests = numbers.map(|number| (number, self.needs(number))).collect();
        self.as_of = newest.number();
        self.needed_to = 0;
        self.tables = numbers_among(&names, "tab");
        self.unfinished = names.into_iter().filter(|name| name.starts_with(STAGE_PREFIX)).collect();
        Ok(())
    }

    /// Adds the generation that was the newest until now. If nothing else in this process uses it, its lock is kept
    /// for [`after_commit`](Self::after_commit), which then need not open the manifest.
    pub(crate) fn add(&mut self, newest: Arc<Generation>) {
        let (number, needs) = (newest.number(), ManifestNeeds::from(newest.manifest().head()));
        self.tables.extend(needs.table.filter(|table| !self.tables.contains(table)));
        self.manifests.push((number, Some(needs)));
        self.own_pin = Arc::into_inner(newest).and_then(Generation::into_pin).map(|pin| (number, pin));
    }

    /// Returns the index of the first manifest that is not before a generation.
    fn position(&self, generation: u64) -> usize {
        self.manifests.partition_point(|&(number, _)| number < generation)
    }

    fn needs(&self, generation: u64) -> Option<ManifestNeeds> {
        self.manifests.get(self.position(generation)).filter(|(number, _)| *number == generation)?.1
    }

    /// Deletes the files of garbage that no older generation can need, and drops them from the garbage list. Returns
    /// whether any were dropped: then `storages/` must be synced before a manifest without them is published. Every
    /// existing manifest counts as held.
    ///
    /// A reader that stays on an old generation keeps what that generation needs, and nothing else. Every manifest
    /// repeats the garbage list and every commit scans it, so it must not grow with the commits made during a long
    /// read.
    pub(crate) fn delete_garbage(
        &mut self,
        store: &StoreDir,
        newest: &Generation,
        next: &mut Manifest,
    ) -> bool {
        let before = next.garbage.len();
        let mut collector = Collector::new(store);
        let generation = next.generation;
        let mut needed_to = newest.number();
        next.garbage.retain(|&id, &mut dropped_at| {
            // A storage that this commit drops still has a record in the generation before it.
            if dropped_at <= self.needed_to || dropped_at >= generation || self.is_needed(id, dropped_at) {
                return true;
            }
            let is_deleted = is_really_garbage(newest, id) && collector.remove_storage(id);
            if !is_deleted {
                needed_to = needed_to.min(dropped_at - 1);
            }
            !is_deleted
        });
        self.needed_to_after = needed_to;
        next.garbage.len() < before
    }

    /// Runs after a commit: deletes what the new generation no longer needs and, if `sweeps`, crashed writers' leftovers.
    /// Best effort: a file that cannot be deleted is tried again later.
    pub(crate) fn after_commit(&mut self, store: &StoreDir, newest: &Generation, sweeps: bool) {
        self.as_of = newest.number();
        self.needed_to = self.needed_to_after;
        let mut collector = Collector::new(store);
        let others = self.manifests.len().saturating_sub(CHECKED_PER_COMMIT / 2) as u64;
        // Successive commits check all of them in turn.
        let start = newest.number().wrapping_mul(CHECKED_PER_COMMIT as u64 / 2) % others.max(1);
        let turn = |index: u64| (index + others - start) % others < CHECKED_PER_COMMIT as u64 / 2;
        let is_selected = |index| index as u64 >= others || turn(index as u64);
        let reads = if others == 0 { CHECKED_PER_COMMIT } else { READ_PER_COMMIT };
        self.collect(is_selected, reads, &mut collector);
        self.own_pin = None;
        collector.remove_garbage(newest, self);
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
            let Some((number, needs)) = self.manifests.get_mut(index) else { continue };
            let (number, read) = (*number, needs.is_none() && reads_left > 0);
            reads_left -= usize::from(read);
            let own = self.own_pin.take_if(|(own, _)| *own == number).map(|(_, pin)| pin);
            let exists = match collect_one(number, own, read, collector) {
                Ok(None) => false,
                Ok(Some(found)) => {
                    *needs = needs.or(found);
                    true
                }
                // The file was deleted, or it is not a regular file and so has no readers.
                Err(e) => e.kind() != io::ErrorKind::NotFound && !is_not_regular(&e),
            };
            if !exists {
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
        self.manifests.iter().map(|&(generation, needs)| GenerationInUse {
            generation,
            processes: Vec::new(),
            needs,
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
        let Some(&(_, needs)) = before.and_then(|at| self.manifests.get(at)) else { return false };
        if_test_omits_step!("pinned-holds-back", return Self::may_need_anything(needs));
        Self::may_need_anything(needs) || needs.is_some_and(|it| it.has_storage(id))
    }

    /// Whether a reader may need a table. A later generation has the same table or a later one: if the first
    /// generation that could have this table does not need it, no later one does.
    fn is_table_needed(&self, table: u64) -> bool {
        let Some(&(_, needs)) = self.manifests.get(self.position(table)) else { return false };
        if_test_omits_step!("pinned-tables", return Self::may_need_anything(needs));
        Self::may_need_anything(needs) || needs.is_some_and(|it| it.table == Some(table))
    }
}

/// Deletes a manifest unless a process holds it. Releases `own`, a lock of this handle on it. Returns `None` if it was
/// deleted, and otherwise what it needs, if `read` is set.
fn collect_one(
    number: u64,
    own: Option<Pin>,
    read: bool,
    collector: &mut Collector<'_>,
) -> io::Result<Option<Option<ManifestNeeds>>> {
    let store = collector.store;
    let path = store.paths.manifest(number);
    let file = match &own {
        Some(pin) => Arc::clone(pin.file()),
        None => read_again(|| store.disk.open(&path, Access::Read))?,
    };
    // Locked until the file is deleted: a reader that opens it meanwhile sees the lock, or sees that the file has no
    // name.
    if step!("lock-older-manifest", file.try_lock(LockMode::Exclusive))? {
        collector.remove(&path)?;
        return Ok(None);
    }
    if !read {
        return Ok(Some(None));
    }
    let bytes = read_capped(&*file, limits::MAX_MANIFEST_BYTES)?;
    let head = ManifestHead::decode(&bytes, store.uuid, number).map_err(io::Error::other)?;
    Ok(Some(Some(head.into())))
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

    /// Deletes tables, and storages on the garbage list, unless the newest generation or an older one that may be held
    /// needs them. Also deletes the unfinished files in `meta/`.
    pub(crate) fn remove_garbage(&mut self, newest: &Generation, older: &mut OlderManifests) {
        let paths = &self.store.paths;
        for (&id, &dropped_at) in &newest.manifest().garbage {
            if dropped_at > older.needed_to
                && !older.is_needed(id, dropped_at)
                && is_really_garbage(newest, id)
            {
                self.remove_storage(id);
            }
        }
        let own = newest.manifest().table.map(|table| table.generation);
        let mut tables = std::mem::take(&mut older.tables);
        tables.retain(|&table| {
            let is_needed = Some(table) == own || older.is_table_needed(table);
            is_needed || self.remove(&paths.table(table)).is_err()
        });
        older.tables = tables;
        for name in older.unfinished.drain(..) {
            let _ = self.remove(&paths.meta_dir().join(name));
        }
    }

    /// Deletes crashed writers' unfinished files, and the unneeded files in `storages/`.
    pub(crate) fn sweep(&mut self, is_unneeded: impl Fn(StoreFile) -> bool) -> Result<()> {
        let store = self.store;
        let (dir, root) = (store.paths.storages_dir(), store.paths.root());
        for dir in [root, &dir] {
            for name in store.disk.list(dir).doing("list", dir)? {
                let (file, path) = (StoreFile::in_storages(&name), dir.join(&name));
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

/// Opens and locks an unfinished file. Returns `None` while a live writer holds it.
fn lock_abandoned(store: &StoreDir, path: &Path) -> Option<Arc<dyn DiskFile>> {
    let file = store.disk.open(path, Access::Read).ok()?;
    step!("stage-is-abandoned", file.try_lock(LockMode::Exclusive)).ok()?.then_some(file)
}
