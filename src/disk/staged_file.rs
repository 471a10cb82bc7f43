//! Unfinished files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::process::OwnerProcess;
use super::{Disk, DiskFile, if_test_omits_step};

/// An unfinished file. It is deleted when dropped, unless it was published.
#[derive(Debug)]
pub(crate) struct Staged {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// The process that deletes the file.
    owner: OwnerProcess,
    is_published: bool,
}

impl Staged {
    pub(crate) fn create(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<Self> {
        let (path, file) = disk.create_staged(dir)?;
        Ok(Staged { disk: Arc::clone(disk), file, path, owner: OwnerProcess::current(), is_published: false })
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to its final name, replacing a file that an aborted commit left under that name. The caller
    /// holds the writers' lock and knows that no manifest refers to that file.
    pub(crate) fn publish_over_orphan(&mut self, target: &Path) -> io::Result<()> {
        match self.disk.rename_new(&self.path, target) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // Without this step, no further commit could be made.
                if_test_omits_step!("replace-orphan", return Err(e));
                self.disk.remove(target)?;
                self.disk.rename_new(&self.path, target)?;
            }
            renamed => renamed?,
        }
        self.is_published = true;
        Ok(())
    }

    /// Renames the file to its final name, which must be free. Two writers can publish under the same name if LOCK was
    /// replaced while it was held. The second one then fails.
    pub(crate) fn publish(&mut self, target: &Path) -> io::Result<()> {
        if_test_omits_step!("never-replace", drop(self.disk.remove(target)));
        self.disk.rename_new(&self.path, target)?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_published && self.owner.is_current() {
            // If this fails, the next writer deletes the file.
            let _ = self.disk.remove(&self.path);
        }
    }
}
