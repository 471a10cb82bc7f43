//! Files of storages that are read by position.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::DiskFile;
use crate::error::Result;
use crate::storage::open_file::short_or_unread;

/// The file of a storage that is read by position and never changes.
pub(super) struct ReadFile {
    pub(super) file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// Whether a read has failed. The next load then opens the file again, which says what is wrong with it, or finds
    /// that it was put right.
    has_failed: AtomicBool,
}

impl ReadFile {
    pub(super) fn of(file: Arc<dyn DiskFile>, path: &Path) -> Self {
        ReadFile { file, path: path.to_path_buf(), has_failed: AtomicBool::new(false) }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset_bytes).map_err(|e| {
            self.has_failed.store(true, Ordering::Relaxed);
            short_or_unread(&*self.file, &self.path, length_bytes, e)
        })
    }
}
