//! Carries out a repair: salvaged storages, a new generation, `lost+found`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{Manifest, Marker, RecordKind, StorageRecord};

use super::content::{Content, files};
use super::copy::{Copied, copy_storage, take_growth_lock};
use super::metadata::{NUMBER_LIMIT, Source, exists, manifests};
use super::plan::{Plan, check_dirs, plan, retry_if_disturbed, why_lock_file_is_unusable};
use super::{Remedy, Repair, has_dir};
use crate::disk::{Access, Disk, Staged, StorePaths, is_not_regular, number_in};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    self, Durability, Generation, OpenStore, Options, WriterLock, by_processes, numbers_among,
    processes_using_manifest, publish_manifest, unsynced,
};
use crate::storage::{GrowthLock, VerifiedStorage};

/// Repairs a store. The comments say what a crash just after the step leaves behind.
pub(super) fn apply(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    options: Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Repair> {
    // 1. The lock. A directory that is not a store does not get one.
    let look = || manifests(&**disk, paths, &mut Repair::default());
    let uuid = retry_if_disturbed(&**disk, paths, look, |_| true)?.uuid;
    let options = Options { durability: Durability::Full, ..options };
    let nothing = Arc::new(Generation::stand_in(uuid, 0));
    let work = Work { store: OpenStore::at(Arc::clone(disk), paths.clone(), options, nothing) };
    let lost_lock = why_lock_file_is_unusable(&**disk, paths)?;
    let mut kept = Vec::new();
    if lost_lock.is_some() {
        check_dirs(&**disk, paths)?;
        work.make_lock(&mut kept)?; // crash: the same, with a lock
    }
    let lock = WriterLock::take(&work.store)?;
    let Plan { mut repair, source, content } = plan(&**disk, paths, progress)?;
    if let Some(why) = lost_lock {
        repair.remedies.insert(0, Remedy { path: paths.lock(), detail: format!("created again: {why}") });
    }
    repair.moved_files = kept;
    if repair.is_empty() {
        return Ok(repair);
    }
    let mut moves = if content.is_changed { work.moves(&source, &content)? } else { Moves::default() };
    work.make_lost_found()?; // crash: the same, with an empty directory
    let held_sums: Vec<GrowthLock> =
        content.sums.keys().map(|&id| take_growth_lock(&work.store, id)).collect::<Result<_>>()?;
    unsynced::settle(&work.store, &lock)?; // crash: the same, now durable

    // 2. The files that need no new generation. crash: each is unchanged, missing, or correct
    work.restore_files(&source, &content, &mut repair.moved_files)?;
    drop(held_sums);
    if !content.is_changed {
        return Ok(repair);
    }

    // 3. The copies of damaged storages, and the new generation.
    let Content { mut storages, mut tensors, copies, readable_originals, .. } = content;
    let mut next_storage_id = work.next_storage_id(&source.manifest, &storages)?;
    let mut locks = Vec::new();
    for (id, plan) in &copies {
        let Some(record) = storages.remove(id) else { continue };
        let Copied { lock, mut storage, tensors: moved } =
            copy_storage(&work.store, (*id, &record), plan, &tensors, next_storage_id)?;
        storage.publish(paths, next_storage_id)?; // crash: an orphan, deleted later
        let copied = StorageRecord { tensor_count: record.tensor_count, ..storage.record().clone() };
        storages.insert(next_storage_id, copied);
        tensors.extend(moved);
        next_storage_id = next_storage_id.saturating_add(1);
        locks.push(lock);
    }
    work.sync(&paths.storages_dir())?; // crash: the same, now durable
    let generation = source.highest + 1;
    let mut garbage = source.manifest.garbage.clone();
    // Readers of an older generation need these files at their current paths.
    garbage.extend(readable_originals.into_iter().map(|id| (id, generation)));
    garbage.retain(|id, _| !storages.contains_key(id) && !moves.storages.contains(id));
    let manifest = Manifest {
        generation,
        next_storage_id,
        table: None,
        storages: storages.into_iter().map(|(id, record)| (id, Some(record))).collect(),
        tensors: tensors.into_iter().map(|(name, record)| (name, Some(record))).collect(),
        attributes: source.manifest.attributes.clone(),
        garbage,
        uuid: source.uuid,
    };
    // A file that the new generation does not need gets a name in lost+found first: once the generation is published,
    // a collection may delete the file under its own name.
    let found: Result<Vec<bool>> = moves.files.iter().map(|file| exists(&**disk, file)).collect();
    let mut found = found?.into_iter();
    moves.files.retain(|_| found.next().unwrap_or_default());
    let mut linked = BTreeSet::new();
    for file in &moves.files {
        if work.link(file, &mut repair.moved_files)? {
            linked.insert(file); // crash: the same, with second names, which are found again
        }
    }
    work.sync(&work.lost_found())?; // crash: the same, now durable
    // Check again: the copies took time, and readers need no lock to open the store.
    let in_meta = generation::list(&**disk, paths)?;
    work.check_unneeded(&moves, &work.held(&in_meta, &source)?)?;
    drop(publish_manifest(&work.store, manifest, None, &lock)?); // crash: as before, or repaired
    repair.generation = Some(generation);

    // 4. The old names are deleted.
    work.finish_moves(&moves, &linked, &mut repair.moved_files)?; // crash: unneeded files, deleted later
    Ok(repair)
}

/// The files to move away once no generation needs them.
#[derive(Debug, Default)]
struct Moves {
    storages: BTreeSet<u64>,
    files: Vec<PathBuf>,
}

struct Work {
    store: OpenStore,
}

impl Work {
    fn disk(&self) -> &Arc<dyn Disk> {
        &self.store.disk
    }

    fn paths(&self) -> &StorePaths {
        &self.store.paths
    }

    fn lost_found(&self) -> PathBuf {
        self.paths().lost_found()
    }

    fn sync(&self, dir: &Path) -> Result<()> {
        self.disk().sync_dir(dir).map_err(|e| e.at(dir))
    }

    /// Creates lost+found before anything is moved. A link in its place would lead out of the store, and is refused.
    fn make_lost_found(&self) -> Result<()> {
        let dir = self.lost_found();
        if has_dir(&**self.disk(), &dir, "move it away")? {
            return Ok(());
        }
        match self.disk().create_dir(&dir) {
            // Another repair created it, and is about to wait for the lock.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.map_err(|e| Error::io("create", &dir, e))?,
        }
        self.sync(self.paths().root())
    }

    /// Creates `storages/`, and writes FORMAT and the files of digests again, where that is necessary.
    fn restore_files(&self, source: &Source, content: &Content, kept: &mut Vec<PathBuf>) -> Result<()> {
        let (disk, paths) = (&**self.disk(), self.paths());
        if !check_dirs(disk, paths)? {
            let created = disk.create_dir(&paths.storages_dir());
            created.map_err(|e| Error::io("create", &paths.storages_dir(), e))?;
            self.sync(paths.root())?; // crash: an empty directory
        }
        if source.must_rewrite_format {
            let bytes = Marker { uuid: source.uuid }.encode();
            self.replace(&paths.format_file(), paths.root(), &bytes, kept)?; // crash: no FORMAT, written again
            self.sync(paths.root())?;
        }
        for (&id, sum) in &content.sums {
            let Some(record) = content.storages.get(&id) else { continue };
            let (corrected, none_lost) = (&sum.corrected, BTreeSet::new());
            let storage = VerifiedStorage::open_salvaged(disk, paths, (id, record), corrected, &none_lost)?;
            let bytes = storage.corrected_sum()?;
            self.replace(&paths.sum(id), &paths.storages_dir(), &bytes, kept)?; // crash: no file, written again
            self.sync(&paths.storages_dir())?;
        }
        Ok(())
    }

    /// Deletes the old names of the files that were linked into lost+found, and moves the others there.
    fn finish_moves(
        &self,
        moves: &Moves,
        linked: &BTreeSet<&PathBuf>,
        kept: &mut Vec<PathBuf>,
    ) -> Result<()> {
        if moves.files.is_empty() {
            return Ok(());
        }
        for file in &moves.files {
            match linked.contains(file) {
                true => self.disk().remove(file).map_err(|e| Error::io("delete", file, e))?,
                false => self.keep(file, kept)?,
            }
        }
        self.sync(&self.lost_found())?;
        self.sync(&self.paths().storages_dir())?;
        self.sync(&self.paths().meta_dir())
    }

    /// Moves a file to lost+found, under its own name or the next free one.
    fn keep(&self, file: &Path, kept: &mut Vec<PathBuf>) -> Result<()> {
        self.make_lost_found()?;
        for target in self.places(file) {
            match self.disk().rename_new(file, &target) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                renamed => {
                    renamed.map_err(|e| Error::io("move to lost+found", file, e))?;
                    kept.push(target);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Links a file into lost+found. Returns false if it cannot be linked: it is not a regular file, or the file
    /// system has no hard links.
    fn link(&self, file: &Path, kept: &mut Vec<PathBuf>) -> Result<bool> {
        let is_same = |target: &Path| {
            let stats = self.disk().stat(file).and_then(|own| Ok((own, self.disk().stat(target)?)));
            stats.is_ok_and(|(a, b)| a.is_regular && (a.device, a.inode) == (b.device, b.inode))
        };
        for target in self.places(file) {
            match self.disk().link_new(file, &target) {
                // An interrupted repair created the link.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_same(&target) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(_) => return Ok(false),
                Ok(()) => {}
            }
            kept.push(target);
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the names that a file may get in lost+found, in order.
    fn places(&self, file: &Path) -> impl Iterator<Item = PathBuf> {
        let dir = self.lost_found();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (0u64..).map(move |number| match number {
            0 => dir.join(&name),
            number => dir.join(format!("{name}.{number}")),
        })
    }

    /// Replaces a file, and keeps the old one in lost+found.
    fn replace(&self, target: &Path, stage_in: &Path, bytes: &[u8], kept: &mut Vec<PathBuf>) -> Result<()> {
        let failed = |e| Error::io("write", target, e);
        let mut staged = Staged::create(self.disk(), stage_in).map_err(failed)?;
        staged.file().write_all_at(bytes, 0).map_err(failed)?;
        staged.file().sync().map_err(|e| Error::io("sync", target, e).after_failed_sync())?;
        if exists(&**self.disk(), target)? {
            if self.link(target, kept)? {
                // After a move to another directory, a power cut may keep only the removal of the old name.
                self.sync(&self.lost_found())?;
                self.disk().remove(target).map_err(failed)?;
            } else {
                self.keep(target, kept)?;
                self.sync(&self.lost_found())?;
            }
        }
        staged.publish(target).map_err(failed)
    }

    /// Creates LOCK. If another repair creates it first, that file is used; the other repair may have locked it
    /// already.
    fn make_lock(&self, kept: &mut Vec<PathBuf>) -> Result<()> {
        let path = self.paths().lock();
        let failed = |e| Error::io("write", &path, e);
        let mut staged = Staged::create(self.disk(), self.paths().root()).map_err(failed)?;
        staged.file().sync().map_err(|e| Error::io("sync", &path, e).after_failed_sync())?;
        // It was missing or not a regular file a moment ago, and may exist now. Only something that is not a regular
        // file is moved away.
        if matches!(self.disk().open(&path, Access::Read), Err(e) if is_not_regular(&e)) {
            self.keep(&path, kept)?;
            self.sync(&self.lost_found())?;
        }
        match staged.publish(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            published => published.map_err(failed),
        }?;
        self.sync(self.paths().root())
    }

    /// Returns the files to move away.
    ///
    /// # Errors
    /// `Busy` if a reader needs one of them.
    fn moves(&self, source: &Source, content: &Content) -> Result<Moves> {
        let (disk, paths) = (&**self.disk(), self.paths());
        let mut moves = Moves::default();
        let list = |dir: &Path| match disk.list(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(|e| Error::io("list", dir, e)),
        };
        let in_storages = list(&paths.storages_dir())?;
        let in_meta = list(&paths.meta_dir())?;
        let held = self.held(&in_meta, source)?;
        moves.storages.extend(content.dropped.iter().chain(content.copies.keys()));
        let is_held = |id: &u64| held.contains(&paths.storage(*id));
        moves.storages.retain(|id| !content.readable_originals.contains(id) || !is_held(id));
        if !source.is_newest || content.has_lost_storages {
            // A file may belong to a generation or a record that cannot be read.
            let ids = ["bin", "sum"].into_iter().flat_map(|ending| numbers_among(&in_storages, ending));
            moves.storages.extend(ids.filter(|id| !content.storages.contains_key(id) && !is_held(id)));
        }
        moves.files.extend(moves.storages.iter().flat_map(|&id| files(paths, id)));
        self.check_unneeded(&moves, &held)?;
        let is_old = |name: &&String| number_in(name, "man").or(number_in(name, "tab")).is_some();
        let old = in_meta.iter().filter(is_old).map(|name| paths.meta_dir().join(name));
        moves.files.extend(old.filter(|file| !held.contains(file)));
        Ok(moves)
    }

    /// Refuses to move a file that a reader needs.
    fn check_unneeded(&self, moves: &Moves, held: &BTreeSet<PathBuf>) -> Result<()> {
        let Some(file) = moves.files.iter().find(|file| held.contains(*file)) else { return Ok(()) };
        let message = format!(
            "repair {}: a reader on an older generation needs {}, which must be moved away; end that reader, and \
             repair again",
            self.paths().root().display(),
            file.display()
        );
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// Returns the files that generations in use by readers need.
    fn held(&self, in_meta: &[String], source: &Source) -> Result<BTreeSet<PathBuf>> {
        let mut held = BTreeSet::new();
        for number in numbers_among(in_meta, "man") {
            let path = self.paths().manifest(number);
            let Some(processes) = processes_using_manifest(&self.store, &path)? else { continue };
            let refused = |why: &str| {
                let message = format!(
                    "repair {}: generation {number} is in use{}, and {why}; end its readers, and repair again",
                    self.paths().root().display(),
                    by_processes(&processes)
                );
                Error::new(ErrorKind::Busy, message)
            };
            match generation::pin(&**self.disk(), self.paths(), source.uuid, number) {
                Ok(Some(generation)) => match self.files_of(&generation) {
                    Err(e) if e.kind() == ErrorKind::Corrupt => return Err(refused("its table is damaged")),
                    files => held.extend(files?),
                },
                Ok(None) => {}
                Err(e) if e.format_error().is_some() => return Err(refused("can no longer be read")),
                Err(e) => return Err(e),
            }
        }
        Ok(held)
    }

    fn files_of(&self, generation: &Generation) -> Result<Vec<PathBuf>> {
        let paths = self.paths();
        let mut needed = vec![paths.manifest(generation.number())];
        needed.extend(generation.manifest().table.map(|table| paths.table(table.generation)));
        for entry in generation.storages() {
            let (id, record) = entry?;
            if !matches!(record.kind, RecordKind::External(_)) {
                needed.extend(files(paths, id));
            }
        }
        Ok(needed)
    }

    /// Returns an id that no file and no record has. Files with an id that no store can reach are ignored.
    fn next_storage_id(&self, manifest: &Manifest, storages: &BTreeMap<u64, StorageRecord>) -> Result<u64> {
        let dir = self.paths().storages_dir();
        let names = self.disk().list(&dir).map_err(|e| Error::io("list", &dir, e))?;
        let in_files = ["bin", "sum"].into_iter().flat_map(|ending| numbers_among(&names, ending));
        let dir = self.lost_found();
        let in_kept = self.disk().list(&dir).map_err(|e| Error::io("list", &dir, e))?;
        let in_kept = in_kept.iter().filter_map(|name| number_in(name.get(..20)?, "bin"));
        let taken = in_files.chain(in_kept).chain(storages.keys().next_back().copied());
        let taken = taken.filter(|&id| id < NUMBER_LIMIT).max();
        Ok(taken.unwrap_or_default().saturating_add(1).max(manifest.next_storage_id))
    }
}
