//! A store that no process opens until it is complete.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::Manifest;

use super::new_store::{self, Visibility, sync_name};
use super::open_dirs::open_dirs;
use super::open_store::{Durability, OpenStore, Options};
use super::store_dir::StoreDir;
use super::unsynced;
use crate::disk::{Disk, OwnerProcess, STAGE_PREFIX, StoreFile, StorePaths, dir_of, step};
use crate::error::{Error, ErrorKind, Result};

/// A store that is built beside its final path, under a name that no process opens. Unless it was completed, it is
/// deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct IncompleteStore {
    disk: Arc<dyn Disk>,
    /// The temporary path.
    path: PathBuf,
    final_path: PathBuf,
    /// The process that deletes the store.
    owner: OwnerProcess,
    /// Whether the files at `path` are those of this store, and no process opens them yet.
    is_unfinished: bool,
}

impl IncompleteStore {
    /// Picks the path. Creates nothing yet.
    ///
    /// # Errors
    /// `AlreadyExists` if anything exists at `final_path`; `Io` if the directory that will hold it cannot be examined.
    fn beside(disk: &Arc<dyn Disk>, final_path: &Path) -> Result<Self> {
        check_free(&**disk, final_path)?;
        let dir = dir_of(final_path);
        disk.stat(dir).map_err(|e| new_store::failed(final_path, e))?;
        let path = dir.join(format!("{STAGE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        let (disk, final_path, owner) = (Arc::clone(disk), final_path.to_path_buf(), OwnerProcess::current());
        Ok(IncompleteStore { disk, path, final_path, owner, is_unfinished: true })
    }

    /// Creates an empty store, which [`finish`](Self::finish) brings to its final path. `first` is its first manifest.
    ///
    /// # Errors
    /// Those of [`create`](super::create()).
    pub(super) fn create(
        disk: &Arc<dyn Disk>,
        final_path: &Path,
        durable: bool,
        first: &Manifest,
    ) -> Result<Self> {
        let building = IncompleteStore::beside(disk, final_path)?;
        disk.create_dir(building.path())
            // From here on, no lookup uses a path that another process may redirect.
            .and_then(|()| disk.hold(building.path()))
            .and_then(|held| new_store::fill(&held, building.path(), durable, Visibility::Hidden, first))
            .map_err(|e| new_store::failed(final_path, e))
            .map(|()| building)
    }

    /// Like [`create`](Self::create), and opens the store.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        final_path: &Path,
        options: Options,
    ) -> Result<(Self, OpenStore)> {
        Self::open_with(disk, final_path, options, &new_store::first_manifest())
    }

    /// Like [`open`](Self::open), for a store with this first manifest, and so with its uuid.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) fn open_with(
        disk: &Arc<dyn Disk>,
        final_path: &Path,
        options: Options,
        first: &Manifest,
    ) -> Result<(Self, OpenStore)> {
        let building = Self::create(disk, final_path, options.durability == Durability::Full, first)?;
        let (disk, paths) = open_dirs(disk, building.path())?;
        let store = OpenStore::open(StoreDir::new(disk, paths, first.uuid), options)?;
        Ok((building, store))
    }

    /// The path at which to create and fill the store.
    fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the store to its final path, durably if its handle syncs.
    ///
    /// A writer that opens the store at that path relies on its name, which this process may not have synced when it is
    /// killed. So the store stays marked as unsynced until its name is durable. The lock is held until the mark is
    /// removed: otherwise a writer that does not sync could find this mark, make none of its own, and be left without
    /// one.
    ///
    /// The comments say what a crash just after the step leaves behind.
    ///
    /// # Errors
    /// `AlreadyExists` if something exists at the path by now; `CommitUnknown` if the last sync failed; `Io`.
    pub(crate) fn finish(mut self, store: &OpenStore) -> Result<()> {
        let _lock = store.lock_writers()?;
        if store.is_durable() {
            unsynced::mark(store)?; // crash: a directory beside the final path
        }
        self.rename()?; // crash: the store, whose next writer makes its name durable
        if store.is_durable() {
            // The store is there, even if its parent could not be opened to be synced.
            let synced = step!("sync-parent", sync_name(&*self.disk, &self.final_path));
            synced.map_err(|e| self.unknown(&e))?; // crash: the store, now durable
            let _ = store.disk.remove(&store.paths.unsynced());
        }
        Ok(())
    }

    /// Returns the error after a sync that failed when the store had its final path.
    fn unknown(&self, e: &Error) -> Error {
        let message = format!(
            "create {}: the store may or may not have been published; open it to check; if it exists, commit or run gc \
             to make it durable: {e}",
            self.final_path.display()
        );
        Error::new(ErrorKind::CommitUnknown, message).caused_by(e).after_failed_sync()
    }

    /// Renames the store to its final path, and does not sync the name.
    ///
    /// # Errors
    /// `AlreadyExists` if something exists at the path by now; `Io`.
    pub(super) fn rename(&mut self) -> Result<()> {
        let renamed = step!("rename-store", self.disk.rename_new(&self.path, &self.final_path));
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => new_store::failed(&self.final_path, e),
            _ => Error::at_first_write("rename to", &self.final_path, e),
        })?;
        self.is_unfinished = false;
        Ok(())
    }
}

/// Returns the error of a commit to a store that is built to be renamed to `path`. What was committed is deleted with
/// the unfinished store, so its outcome is known.
pub(crate) fn not_created(path: &Path, e: Error) -> Error {
    if e.kind() != ErrorKind::CommitUnknown {
        return e;
    }
    let message = format!("create {}: nothing was created: {e}", path.display());
    Error::new(ErrorKind::Io, message).caused_by(&e)
}

/// Refuses a path that exists.
///
/// # Errors
/// `AlreadyExists`; `Io`.
pub(crate) fn check_free(disk: &dyn Disk, path: &Path) -> Result<()> {
    match disk.is_dir(path) {
        Ok(_) => Err(new_store::failed(path, io::ErrorKind::AlreadyExists.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(new_store::failed(path, e)),
    }
}

impl Drop for IncompleteStore {
    fn drop(&mut self) {
        if !self.is_unfinished || !self.owner.is_current() {
            return;
        }
        // A file that cannot be deleted stays, under a name that no process opens.
        delete_files(&*self.disk, &StorePaths::new(&self.path));
        let _ = self.disk.remove_dir(&self.path);
    }
}

/// Deletes the files of a store, and the directories of the store that are then empty. Files of others stay.
fn delete_files(disk: &dyn Disk, paths: &StorePaths) {
    // Without FORMAT, what an interrupted deletion leaves is not a store.
    for file in [paths.format_file(), paths.lock(), paths.unsynced()] {
        let _ = disk.remove(&file);
    }
    // `storages/` last: until it is gone, no other process creates a store here.
    for dir in paths.dirs().iter().rev() {
        for name in disk.list(dir).unwrap_or_default() {
            if StoreFile::in_dir(paths, dir, &name) != StoreFile::Foreign {
                let _ = disk.remove(&dir.join(name));
            }
        }
        let _ = disk.remove_dir(dir);
    }
}

/// A store that was just created in an empty directory. Unless it is kept, it is deleted when this is
/// dropped.
pub(crate) struct Unfilled<'a> {
    store: &'a OpenStore,
    is_kept: bool,
}

impl<'a> Unfilled<'a> {
    pub(crate) fn new(store: &'a OpenStore) -> Self {
        Unfilled { store, is_kept: false }
    }

    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Unfilled<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // If this fails, an empty store stays, which does no harm.
            let _ = delete_empty(self.store);
        }
    }
}

/// Deletes the files of a store, unless something was committed to it. Its directory stays.
fn delete_empty(store: &OpenStore) -> Result<()> {
    // No other writer commits in the meantime. Those that wait find no LOCK, and fail.
    let _lock = store.lock_writers()?;
    if store.newest()?.number() == 1 {
        delete_files(&*store.disk, &store.paths);
    }
    Ok(())
}
