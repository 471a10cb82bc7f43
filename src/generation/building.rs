//! A store that is built under a temporary name, and renamed when it is complete.

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
    /// The temporary path.
    path: PathBuf,
    final_path: PathBuf,
    /// The process that deletes the store.
    owner: OwnerProcess,
    is_moved: bool,
}

impl Building {
    /// Picks the path. Creates nothing yet.
    ///
    /// # Errors
    /// `AlreadyExists` if anything exists at `final_path`; `Io` if the directory that will hold it cannot be examined.
    pub(crate) fn beside(disk: &Arc<dyn Disk>, final_path: &Path) -> Result<Self> {
        match disk.is_dir(final_path) {
            Ok(_) => return Err(occupied(final_path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("examine", final_path, e)),
        }
        let dir = dir_of(final_path);
        disk.stat(dir).map_err(|e| Error::io("examine", dir, e))?;
        let path = dir.join(format!("{STAGE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        let (disk, final_path, owner) = (Arc::clone(disk), final_path.to_path_buf(), OwnerProcess::current());
        Ok(Building { disk, path, final_path, owner, is_moved: false })
    }

    /// The path at which to create and fill the store.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the store to its final path, durably if its handle syncs.
    ///
    /// A writer that opens the store at that path relies on its name, which a killed process may not have synced. So
    /// the store stays marked as unsynced until its name is durable. The lock is held until then: a writer that does
    /// not sync would see this mark, and not make its own.
    ///
    /// # Errors
    /// `AlreadyExists` if something exists at the path by now; `Io`.
    pub(crate) fn move_to_final_path(mut self, history: &History) -> Result<()> {
        let _lock = WriterLock::take(history)?;
        if history.is_durable() {
            unsynced::mark(history)?; // crash: a directory beside the final path
        }
        let renamed = step!("rename-store", self.disk.rename_new(&self.path, &self.final_path));
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => occupied(&self.final_path),
            _ => Error::denied("rename to", &self.final_path, e),
        })?; // crash: the store, whose next writer makes its name durable
        self.is_moved = true;
        if history.is_durable() {
            step!("sync-parent", sync_name(&*self.disk, &self.final_path))?; // crash: the store, now durable
            let _ = history.disk.remove(&history.paths.unsynced());
        }
        Ok(())
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if self.is_moved || !self.owner.is_current() {
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

fn occupied(final_path: &Path) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("{}: the path already exists; choose a different path", final_path.display()),
    )
}
