//! The mark of a store that has commits without a sync, and the syncs that make up for them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::Manifest;

use super::store_dir::StoreDir;
use super::writer_lock::WriterLock;
use super::{Generation, OpenStore, new_store};
use crate::disk::{Staged, step};
use crate::error::{Error, IoContext, Result};

/// Handles earlier commits that were not synced, before a writer does anything else. A writer that does not sync
/// marks the store. A writer that syncs makes all earlier commits durable, because its own commit builds on them, and
/// removes the mark.
///
/// Neither the mark nor its removal needs to survive a power cut, because after a power cut nothing is left to sync.
pub(crate) fn settle(store: &OpenStore, _lock: &WriterLock) -> Result<()> {
    let is_marked = is_marked(store)?;
    if store.is_durable() && is_marked {
        sync_all(store)?;
        let _ = store.disk.remove(&store.paths.unsynced());
    } else if !store.is_durable() && !is_marked {
        mark(store)?;
    }
    Ok(())
}

/// Makes all commits so far durable before one of them is sent elsewhere. A power cut could otherwise take it back here,
/// and the next commit would be another generation of the same number. Needs no lock, so the mark stays.
pub(crate) fn settle_sent(store: &StoreDir) -> Result<()> {
    // The files of a store elsewhere are not on a disk of this machine.
    if !store.disk.never_changes() && is_marked(store)? { sync_all(store) } else { Ok(()) }
}

fn sync_all(store: &StoreDir) -> Result<()> {
    let (disk, root) = (&store.disk, store.paths.root());
    let device = |dir: &Path| Ok(disk.stat(dir).doing("examine", dir)?.device);
    // A directory may be on a separate file system. What manifests refer to becomes durable before them.
    for dir in store.paths.dirs() {
        if device(&dir)? != device(root)? {
            step!("sync-mounts", disk.sync_file_system(&dir)).syncing("sync the file system of", &dir)?;
        }
    }
    step!("sync-file-system", disk.sync_file_system(root)).syncing("sync the file system of", root)
}

/// Marks the store, so that the next writer that syncs makes everything durable first.
pub(crate) fn mark(store: &OpenStore) -> Result<()> {
    let (disk, path) = (&store.disk, store.paths.unsynced());
    let mark = || Staged::create(disk, store.paths.root())?.publish(&path);
    step!("mark-unsynced", mark()).map_err(|e| Error::at_first_write("mark the store as unsynced", &path, e))
}

/// Makes the newest generation durable, and returns it, for a caller that publishes nothing: for a handle that does not
/// sync, only as far as is needed before what the generation replaced may be deleted.
///
/// The writer of the newest generation may have died before it synced the name of the manifest, and a power cut could
/// then remove that name.
pub(crate) fn settle_newest(store: &OpenStore, lock: &WriterLock) -> Result<Arc<Generation>> {
    store.check_poison()?;
    // A handle that does not sync has nothing to do here: nothing is published, so the store need not be marked.
    if store.is_durable() {
        store.record_failure(settle(store, lock))?;
    }
    let newest = store.newest_listed(lock)?.0;
    store.record_failure(settle_creation(store, &newest, lock))?;
    // In a marked store, commits that are not synced have the same effect.
    if !newest.is_synced() && (store.is_durable() || !is_marked(store)?) {
        let dir = store.paths.meta_dir();
        let synced = step!("sync-newest-name", store.disk.sync_dir(&dir));
        store.record_failure(synced.map_err(|e| e.at(&dir)))?;
        newest.set_synced();
    }
    Ok(newest)
}

/// Makes the store's own name, and that of FORMAT, durable before a writer relies on the newest generation, if that is
/// the store's first one. Its creator may have died before these names were synced. A power cut would then remove the
/// directory with everything in it, or leave a directory that is not a store.
pub(crate) fn settle_creation(store: &OpenStore, newest: &Generation, _lock: &WriterLock) -> Result<()> {
    if !store.is_durable() || newest.number() != Manifest::first(store.uuid).generation {
        return Ok(());
    }
    let (disk, root) = (&*store.disk, store.paths.root());
    new_store::sync_root(disk, root).map_err(|e| e.at(root))?;
    step!("sync-creation", new_store::sync_name(disk, root))
}

/// Makes the name of a generation durable. The first flush of a storage calls this if another writer committed the
/// storage's generation. That writer may have died before the name was synced, and a power cut would then take back
/// what was flushed. Commits without syncs are skipped: their names must not become durable before their files.
pub(crate) fn settle_name(store: &StoreDir) -> Result<()> {
    if is_marked(store)? {
        return Ok(());
    }
    let dir = store.paths.meta_dir();
    let synced = step!("sync-flushed-name", store.disk.sync_dir(&dir));
    synced.map_err(|e| e.at(&dir))
}

/// Whether some commits were not synced.
pub(crate) fn is_marked(store: &StoreDir) -> Result<bool> {
    let path = store.paths.unsynced();
    match store.disk.stat(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true).doing("examine", &path),
    }
}
