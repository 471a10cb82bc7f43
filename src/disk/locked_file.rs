//! Locked files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::process::OwnerProcess;
use super::{Disk, DiskFile, FileId, read_again};

/// Whether the file at a path is `file`.
///
/// The link count is not enough: on overlayfs a file of a lower layer keeps its count when it is deleted, and a
/// backup that uses hard links adds a name.
pub(crate) fn is_named(disk: &dyn Disk, path: &Path, file: FileId) -> io::Result<bool> {
    match read_again(|| disk.stat(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        stat => Ok(stat?.id() == file),
    }
}

/// An open file that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: Arc<dyn DiskFile>,
    owner: OwnerProcess,
}

impl LockedFile {
    /// Holds the lock that the caller has just taken on a file.
    pub(crate) fn new(file: &Arc<dyn DiskFile>) -> Self {
        LockedFile { file: Arc::clone(file), owner: OwnerProcess::current() }
    }

    /// The open file. Locking it again through this handle replaces the lock.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing the file is not enough: a forked child may also have it open, even one that is about to call `exec`.
        if self.owner.is_current() {
            let _ = self.file.unlock();
        }
    }
}
