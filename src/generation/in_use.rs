//! Finds the processes that use older generations, or hold other locks of a store.

use std::cell::LazyCell;
use std::io;
use std::path::Path;

use stridemap_format::{KeptGeneration, ManifestHead, limits};

use super::Generation;
use super::recover::manifest_numbers;
use super::store_dir::StoreDir;
use crate::disk::{Access, DiskFile, LockHolders, LockMode, is_not_regular, read_again, read_capped};
use crate::error::{Error, Result};

/// An older generation that a process uses, so its files are needed.
#[derive(Debug)]
pub(crate) struct GenerationInUse {
    pub(crate) generation: u64,
    /// The processes that use it, as far as the system reports them.
    pub(crate) processes: Vec<u32>,
    /// `None` if its manifest cannot be read: then it may need anything.
    pub(crate) needs: Option<ManifestNeeds>,
}

impl GenerationInUse {
    /// Whether the generation needs a storage whose last name was removed in generation `dropped`.
    pub(crate) fn needs_storage(&self, id: u64, dropped: u64) -> bool {
        self.needs.is_none_or(|needs| needs.has_storage(id)) && self.generation < dropped
    }

    pub(crate) fn needs_table(&self, table: u64) -> bool {
        self.needs.is_none_or(|needs| needs.table == Some(table))
    }

    pub(crate) fn needs_history(&self, history: u64) -> bool {
        self.needs.is_none_or(|needs| needs.history == Some(history))
    }
}

/// The files that the readers of a manifest may need, as far as the manifest says. What it says stays true as long as
/// it exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestNeeds {
    next_storage_id: u64,
    pub(crate) table: Option<u64>,
    pub(super) history: Option<u64>,
}

impl ManifestNeeds {
    /// Whether the generation may have a storage that was removed later. Ids only grow.
    pub(crate) fn has_storage(self, id: u64) -> bool {
        id < self.next_storage_id
    }
}

impl From<&ManifestHead> for ManifestNeeds {
    fn from(head: &ManifestHead) -> Self {
        ManifestNeeds {
            next_storage_id: head.next_storage_id,
            table: head.table.map(|table| table.generation),
            history: head.history.map(|history| history.generation),
        }
    }
}

impl From<&KeptGeneration> for ManifestNeeds {
    fn from(kept: &KeptGeneration) -> Self {
        let KeptGeneration { next_storage_id, table, .. } = *kept;
        ManifestNeeds { next_storage_id, table, history: None }
    }
}

/// Returns the generations before `newest` that a process uses. Changes nothing, and keeps no lock.
pub(crate) fn generations_in_use(store: &StoreDir, newest: &Generation) -> Result<Vec<GenerationInUse>> {
    let (mut pins, holders) = (Vec::new(), LazyCell::new(|| store.disk.lock_holders()));
    let older = manifest_numbers(&*store.disk, &store.paths)?.into_iter();
    let older = older.filter(|&generation| generation < newest.number());
    let mut manifests: Vec<_> =
        older.map(|generation| (generation, store.paths.manifest(generation))).collect();
    for released in newest.released()? {
        let (generation, _) = released?;
        manifests.push((generation, store.paths.kept_manifest(generation)));
    }
    for (generation, path) in manifests {
        match generation_in_use(store, &path, generation, &holders) {
            Ok(pin) => pins.extend(pin),
            // The file was deleted since it was listed, or it is not a regular file and so has no readers.
            Err(e) if e.kind() == io::ErrorKind::NotFound || is_not_regular(&e) => {}
            Err(e) => return Err(Error::io("open manifest", &path, e)),
        }
    }
    Ok(pins)
}

fn generation_in_use(
    store: &StoreDir,
    path: &Path,
    generation: u64,
    holders: &LockHolders,
) -> io::Result<Option<GenerationInUse>> {
    let file = read_again(|| store.disk.open(path, Access::Read))?;
    let processes = file.lock_holders_among(holders);
    if processes.is_empty() && !is_locked(&*file, LockMode::Exclusive)? {
        return Ok(None);
    }
    let bytes = read_capped(&*file, limits::MAX_MANIFEST_BYTES)?;
    let head = ManifestHead::decode(&bytes, store.uuid, generation);
    Ok(Some(GenerationInUse { generation, processes, needs: head.ok().as_ref().map(ManifestNeeds::from) }))
}

/// Whether a lock of this mode is refused now. Takes the lock for a moment if it is free. So it is called only where
/// the system does not report holders, and never where it could make another process's attempt fail.
fn is_locked(file: &dyn DiskFile, mode: LockMode) -> io::Result<bool> {
    let is_free = file.try_lock(mode)?;
    if is_free {
        file.unlock()?;
    }
    Ok(!is_free)
}

/// Returns the processes that hold a file's lock, as far as the system reports them. The lock itself is not touched.
pub(crate) fn holders(store: &StoreDir, path: &Path) -> Vec<u32> {
    store.disk.open(path, Access::Read).map_or(Vec::new(), |file| file.lock_holders())
}

/// Returns the processes that are writing an unfinished file, by its exclusive lock, or `None` if no process is.
pub(crate) fn writers_of(store: &StoreDir, path: &Path) -> Option<Vec<u32>> {
    let file = read_again(|| store.disk.open(path, Access::Read)).ok()?;
    let processes = file.lock_holders();
    let is_held = !processes.is_empty() || is_locked(&*file, LockMode::Shared).ok()?;
    is_held.then_some(processes)
}

/// Returns " by process 12" or " by processes 12 and 13", or nothing if no process is known.
pub(crate) fn by_processes(processes: &[u32]) -> String {
    let listed: Vec<String> = processes.iter().map(u32::to_string).collect();
    let noun = if listed.len() == 1 { "process" } else { "processes" };
    if listed.is_empty() { String::new() } else { format!(" by {noun} {}", listed.join(" and ")) }
}
