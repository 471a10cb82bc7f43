//! The real disk, on which a process may wait before any operation, so that others come between any two of them; or die.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stridemap::disk::{Access, Disk, DiskFile, FileStat, LockMode, RealDisk, Watch};

use super::random::mixed;

/// One operation in so many comes after a wait.
const WAITS: u64 = 40;

/// One operation in so many is the last of the process.
const DEATHS: u64 = 3000;

#[derive(Clone, Debug)]
pub(super) struct HesitantDisk {
    random: Arc<AtomicU64>,
}

impl HesitantDisk {
    pub(super) fn new(seed: u64) -> HesitantDisk {
        HesitantDisk { random: Arc::new(AtomicU64::new(seed)) }
    }

    fn wait(&self) {
        let number = mixed(self.random.fetch_add(1, Ordering::Relaxed));
        if number.is_multiple_of(WAITS) {
            thread::sleep(Duration::from_micros((number >> 32) % 12_000));
        }
    }

    /// Whether this operation is not to be finished.
    fn is_last(&self) -> bool {
        self.wait();
        mixed(self.random.fetch_add(1, Ordering::Relaxed)).is_multiple_of(DEATHS)
    }

    /// The disk below, for one operation.
    fn real(&self) -> RealDisk {
        if self.is_last() {
            die();
        }
        RealDisk
    }

    fn watched(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(HesitantFile { disk: self.clone(), file })
    }
}

fn die() -> ! {
    // SAFETY: a process may kill itself; nothing that it owns is used after this.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
    unreachable!("killed");
}

impl Disk for HesitantDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.watched(self.real().open(path, access)?))
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        let (path, file) = self.real().create_staged(dir)?;
        Ok((path, self.watched(file)))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real().rename_new(from, to)
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

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.real().create_dir(path)
    }

    fn copy_access(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real().copy_access(from, to)
    }

    fn rename_dir(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real().rename_dir(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.real().remove_dir_all(path)
    }

    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        self.real().watch(dir)
    }
}

#[derive(Debug)]
struct HesitantFile {
    disk: HesitantDisk,
    file: Arc<dyn DiskFile>,
}

impl HesitantFile {
    fn file(&self) -> &dyn DiskFile {
        if self.disk.is_last() {
            die();
        }
        &*self.file
    }
}

impl DiskFile for HesitantFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file().read_exact_at(buf, offset_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        if self.disk.is_last() {
            let _ = self.file.write_all_at(&bytes[..bytes.len() / 2], offset_bytes);
            die();
        }
        self.file.write_all_at(bytes, offset_bytes)
    }

    fn allocate(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.file().allocate(range)
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.file().set_len(length_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file().sync()
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file().stat()
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        // Asked for over and over, which is no reason to die.
        self.disk.wait();
        self.file.try_lock(mode)
    }

    fn unlock(&self) -> io::Result<()> {
        self.file().unlock()
    }

    fn lock_holders(&self) -> Vec<u32> {
        self.file.lock_holders()
    }

    fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }
}
