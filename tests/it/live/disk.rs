//! The real disk, whose files fail to sync when they are told to.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stridemap::disk::{Access, Disk, DiskFile, FileStat, LockMode, RealDisk};

/// Every file that it opens fails to sync while this is set.
#[derive(Debug)]
pub(super) struct FailingDisk(pub(super) Arc<AtomicBool>);

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn DiskFile>,
    fails: Arc<AtomicBool>,
}

impl Disk for FailingDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile { file: RealDisk.open(path, access)?, fails: Arc::clone(&self.0) }))
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        RealDisk.create_staged(dir)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename_new(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_file_system(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        RealDisk.stat(path)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        RealDisk.is_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn copy_access(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.copy_access(from, to)
    }

    fn rename_dir(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename_dir(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(path)
    }
}

impl DiskFile for FailingFile {
    fn sync(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("injected fault"));
        }
        self.file.sync()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset_bytes)
    }

    fn allocate(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.file.allocate(range)
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.file.set_len(length_bytes)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        self.file.try_lock(mode)
    }

    fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }
}
