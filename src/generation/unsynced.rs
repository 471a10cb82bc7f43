use std::io;
use std::path::Path;

use stridemap_format::Manifest;

use super::writer_lock::WriterLock;
use super::{Generation, History, create};
use crate::disk::{Disk, Staged, Step, StorePaths};
use crate::error::{Error, Result};

/// What a writer does first, for the sake of commits that were not synced: one that does not sync marks the store; one
/// that does makes durable what was published since, because its own commit stands on it, and takes the mark away.
///
/// The mark need not survive a power cut, after which there is nothing left to sync; nor need its removal.
pub(crate) fn settle(history: &History, _lock: &WriterLock) -> Result<()> {
    let (disk, path, root) = (&history.disk, history.paths.unsynced(), history.paths.root());
    let is_marked = is_marked(&**disk, &history.paths)?;
    if history.is_durable() && is_marked {
        let failed = |dir: &Path, e| Error::io("sync the file system of", dir, e).after_failed_sync();
        let device = |dir: &Path| disk.stat(dir).map(|stat| stat.device).map_err(|e| failed(dir, e));
        // What manifests refer to becomes durable before them.
        for dir in [history.paths.storages_dir(), history.paths.meta_dir()] {
            if device(&dir)? != device(root)? {
                let synced = Step::SyncMounts.on(&**disk, || disk.sync_file_system(&dir));
                synced.map_err(|e| failed(&dir, e))?;
            }
        }
        let synced = Step::SyncFileSystem.on(&**disk, || disk.sync_file_system(root));
        synced.map_err(|e| failed(root, e))?;
        let _ = disk.remove(&path);
    } else if !history.is_durable() && !is_marked {
        mark(history)?;
    }
    Ok(())
}

/// Has the next writer that syncs make everything durable first.
pub(crate) fn mark(history: &History) -> Result<()> {
    let (disk, path) = (&history.disk, history.paths.unsynced());
    let mark = || Staged::create(disk, history.paths.root())?.publish(&path);
    Step::MarkUnsynced.on(&**disk, mark).map_err(|e| Error::denied("mark the store as unsynced", &path, e))
}

/// What a writer does once it has found the newest generation, before it relies on it: where that is the one of the store's
/// creation, whoever created it may have died before the name of its directory was synced, and with that name a power cut
/// would take back all that is in it.
pub(crate) fn settle_creation(history: &History, newest: &Generation, _lock: &WriterLock) -> Result<()> {
    if !history.is_durable() || newest.number() != Manifest::first(history.uuid).generation {
        return Ok(());
    }
    create::sync_name(Step::SyncCreation, &*history.disk, history.paths.root())
}

/// What a flush does once, where the generation that it found the storage in was another's: whose writer may have died before
/// its name was synced, and with that name a power cut would take back what was flushed. Commits without syncs are left
/// alone: their names must not be durable before their files.
pub(crate) fn settle_name(disk: &dyn Disk, paths: &StorePaths) -> Result<()> {
    if is_marked(disk, paths)? {
        return Ok(());
    }
    let dir = paths.meta_dir();
    let synced = Step::SyncFlushedName.on(disk, || disk.sync_dir(&dir));
    synced.map_err(|e| Error::io("sync", &dir, e).after_failed_sync())
}

/// Whether there are commits that were not synced.
fn is_marked(disk: &dyn Disk, paths: &StorePaths) -> Result<bool> {
    let path = paths.unsynced();
    match disk.stat(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true).map_err(|e| Error::io("look at", &path, e)),
    }
}
