use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::History;
use super::create::sync_name;
use super::unsynced;
use super::writer_lock::WriterLock;
use crate::disk::{Disk, STAGE_PREFIX, StorePaths, dir_of, step};
use crate::error::{Error, ErrorKind, Result};
use crate::process::OwnerProcess;

/// A store that is built beside its final path, under a name that no process opens. Deleted when dropped, unless it
/// was renamed to its final path.
#[derive(Debug)]
pub(crate) struct Building {
    disk: Arc<dyn Disk>,
    /// Where the store is built.
    path: PathBuf,
    /// Where the store will be.
    place: PathBuf,
    /// The process that deletes the store.
    owner: OwnerProcess,
    is_placed: bool,
}

impl Building {
    /// Picks the path. Creates nothing yet.
    ///
    /// # Errors
    /// `AlreadyExists` if anything exists at `place`; `Io` if the directory that will hold it cannot be examined.
    pub(crate) fn beside(disk: &Arc<dyn Disk>, place: &Path) -> Result<Self> {
        match disk.is_dir(place) {
            Ok(_) => return Err(taken(place)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("examine", place, e)),
        }
        let dir = dir_of(place);
        disk.stat(dir).map_err(|e| Error::io("examine", dir, e))?;
        let path = dir.join(format!("{STAGE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        let (disk, place, owner) = (Arc::clone(disk), place.to_path_buf(), OwnerProcess::current());
        Ok(Building { disk, path, place, owner, is_placed: false })
    }

    /// The path at which to create and fill the store.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the store to its final path, durably if its handle syncs.
    ///
    /// A writer that opens the store there relies on its name, which a killed copy may not have synced. So the store
    /// stays marked as unsynced until its name is durable. The lock keeps writers that do not sync from relying on
    /// the mark.
    ///
    /// # Errors
    /// `AlreadyExists` if something exists at the path by now; `Io`.
    pub(crate) fn place(mut self, history: &History) -> Result<()> {
        let _lock = WriterLock::take(history)?;
        if history.is_durable() {
            unsynced::mark(history)?; // crash: a directory beside the final path
        }
        let renamed = step!("rename-store", self.disk.rename_new(&self.path, &self.place));
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => taken(&self.place),
            _ => Error::denied("rename to", &self.place, e),
        })?; // crash: the store, whose next writer makes its name durable
        self.is_placed = true;
        if history.is_durable() {
            step!("sync-parent", sync_name(&*self.disk, &self.place))?; // crash: the store, now durable
            let _ = history.disk.remove(&history.paths.unsynced());
        }
        Ok(())
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if self.is_placed || !self.owner.is_current() {
            return;
        }
        // A file that cannot be deleted stays, under a name that no process opens.
        let paths = StorePaths::new(&self.path);
        for dir in [&paths.storages_dir(), &paths.meta_dir(), &self.path] {
            for name in self.disk.list(dir).unwrap_or_default() {
                let _ = self.disk.remove(&dir.join(name));
            }
            let _ = self.disk.remove_dir(dir);
        }
    }
}

fn taken(place: &Path) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("{}: the path already exists; choose a different path", place.display()),
    )
}
