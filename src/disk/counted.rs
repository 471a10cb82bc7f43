//! A disk that counts bytes and operations, for tests.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Access, Disk, DiskFile, ExternalError, ExternalScope, FileStat, LockHolders, LockMode, RealDisk, Watch,
};

/// Counts of bytes and operations on a disk. Files in `storages/`, and files outside the store, count as data.
/// Everything else is metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Bytes read from metadata.
    pub metadata_read_bytes: u64,
    /// Bytes written to metadata.
    pub metadata_written_bytes: u64,
    /// Bytes read from data.
    pub data_read_bytes: u64,
    /// Bytes written to data.
    pub data_written_bytes: u64,
    /// Operations other than those on open files: opens, renames, deletions, listings, syncs of directories.
    pub operation_count: u64,
}

/// The real disk, with a count of bytes and operations.
#[derive(Clone, Debug)]
pub struct Counted {
    disk: Arc<dyn Disk>,
    metadata: Arc<Traffic>,
    data: Arc<Traffic>,
    operation_count: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Traffic {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Default for Counted {
    fn default() -> Self {
        Counted {
            disk: Arc::new(RealDisk::default()),
            metadata: Arc::default(),
            data: Arc::default(),
            operation_count: Arc::default(),
        }
    }
}

impl Counted {
    /// Returns the counts since the last call.
    pub fn take(&self) -> Counts {
        let taken = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Counts {
            metadata_read_bytes: taken(&self.metadata.read_bytes),
            metadata_written_bytes: taken(&self.metadata.written_bytes),
            data_read_bytes: taken(&self.data.read_bytes),
            data_written_bytes: taken(&self.data.written_bytes),
            operation_count: taken(&self.operation_count),
        }
    }

    /// Counts one operation, and returns the real disk.
    fn real(&self) -> &dyn Disk {
        self.operation_count.fetch_add(1, Ordering::Relaxed);
        &*self.disk
    }

    fn counted(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let is_data = path.parent().is_some_and(|dir| dir.ends_with("storages"));
        let traffic = Arc::clone(if is_data { &self.data } else { &self.metadata });
        Arc::new(CountedFile { file, traffic })
    }
}

impl Disk for Counted {
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(Counted { disk: self.real().hold(store)?, ..self.clone() }))
    }

    fn is_intact(&self) -> io::Result<bool> {
        self.real().is_intact()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(path, self.real().open(path, access)?))
    }

    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        scope: ExternalScope,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        let file = self.real().open_external(store, path, scope)?;
        Ok(Arc::new(CountedFile { file, traffic: Arc::clone(&self.data) }))
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        self.real().recorded_path(store, file)
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        let (path, file) = self.real().create_staged(dir)?;
        let file = self.counted(&path, file);
        Ok((path, file))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real().rename_new(from, to)
    }

    fn link_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real().link_new(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.real().remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.real().list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real().sync_dir(dir)
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        self.real().sync_file_system(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.real().stat(path)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        self.real().is_dir(path)
    }

    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        self.real().watch(dir)
    }

    fn is_watch_complete(&self, dir: &Path) -> bool {
        self.real().is_watch_complete(dir)
    }

    fn lock_holders(&self) -> LockHolders {
        self.real().lock_holders()
    }

    fn is_network(&self, path: &Path) -> io::Result<bool> {
        self.real().is_network(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.real().create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.real().remove_dir(path)
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn DiskFile>,
    traffic: Arc<Traffic>,
}

impl DiskFile for CountedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.traffic.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buf, offset_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.traffic.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_all_at(bytes, offset_bytes)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<bool> {
        self.file.allocate(range)
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.file.set_len(length_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
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

    fn try_front(&self, mode: LockMode) -> io::Result<bool> {
        self.file.try_front(mode)
    }

    fn wait_for_front(&self, mode: LockMode) -> io::Result<()> {
        self.file.wait_for_front(mode)
    }

    fn leave_front(&self) -> io::Result<()> {
        self.file.leave_front()
    }

    fn share_blocks_of(&self, source: &File) -> bool {
        self.file.share_blocks_of(source)
    }

    fn lock_holders(&self) -> Vec<u32> {
        self.file.lock_holders()
    }

    fn is_network(&self) -> io::Result<bool> {
        self.file.is_network()
    }

    fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }
}
