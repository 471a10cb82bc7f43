//! The files of a store that is not in a file system, as a disk.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::files::{FileReader, Files};
use crate::disk::{
    Access, Disk, DiskFile, ExternalError, ExternalFiles, FileStat, LockMode, OwnerProcess, StoreFile,
    StorePaths, SyncDirError, Watch,
};

/// The bit that no device number of the system has.
const DEVICES: u64 = 1 << 63;

/// How many device numbers a disk takes: one for each kind of file.
const KINDS: u64 = 16;

/// A disk that only reads, from [`Files`]. Nothing on it is locked, because nothing on it changes.
#[derive(Debug)]
pub(super) struct FilesDisk {
    files: Arc<dyn Files>,
    paths: StorePaths,
    /// The first device number of this disk. The process has registries of files by device and inode, so no two disks
    /// share a device.
    device: u64,
    owner: OwnerProcess,
    /// The files that are open, so that a file that is in use is not looked up again.
    open: Mutex<HashMap<PathBuf, Weak<OpenFile>>>,
}

impl FilesDisk {
    pub(super) fn new(files: Arc<dyn Files>, paths: StorePaths) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let device = DEVICES | LAST.fetch_add(1, Ordering::Relaxed).wrapping_mul(KINDS);
        FilesDisk { files, paths, device, owner: OwnerProcess::current(), open: Mutex::default() }
    }

    /// Returns the name of a path relative to the store.
    fn name<'a>(&self, path: &'a Path) -> io::Result<&'a str> {
        let root = self.paths.root().as_os_str().as_bytes();
        let below = path.as_os_str().as_bytes().strip_prefix(root).and_then(|rest| str::from_utf8(rest).ok());
        let below = below.map(|below| below.strip_prefix('/').unwrap_or(below));
        below.ok_or_else(|| {
            let message = format!("{}: not a path in the open store", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })
    }

    /// Returns the device and the inode of a file: one device for each kind of file, and the number in its name.
    fn id(&self, path: &Path) -> (u64, u64) {
        let dir = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (kind, number) = match StoreFile::in_dir(&self.paths, dir, name) {
            StoreFile::Manifest(number) => (1, number),
            StoreFile::KeptManifest(number) => (2, number),
            StoreFile::Table(number) => (3, number),
            StoreFile::History(number) => (4, number),
            StoreFile::Storage(number) => (5, number),
            StoreFile::Digests(number) => (6, number),
            StoreFile::Unfinished | StoreFile::Foreign if path == self.paths.format_file() => (7, 0),
            StoreFile::Unfinished | StoreFile::Foreign if path == self.paths.lock() => (7, 1),
            StoreFile::Unfinished | StoreFile::Foreign => (7, 2),
        };
        (self.device + kind, number)
    }

    fn find(&self, path: &Path) -> io::Result<Arc<OpenFile>> {
        self.owner.check(|| format!("{}: the store was opened", path.display()))?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = open.get(path).and_then(Weak::upgrade) {
            return Ok(found);
        }
        drop(open);
        // LOCK has no bytes, and is only for writers, so `Files` has none.
        let reader = match path == self.paths.lock() {
            true => None,
            false => Some(self.files.open(self.name(path)?)?),
        };
        let file = Arc::new(OpenFile { reader, id: self.id(path), owner: self.owner });
        open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == open.capacity() {
            open.retain(|_, file| file.strong_count() > 0);
        }
        open.insert(path.to_path_buf(), Arc::downgrade(&file));
        Ok(file)
    }
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

fn not_in_a_file_system() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the store is not in a file system")
}

impl Disk for FilesDisk {
    fn hold(&self, _: &Path) -> io::Result<Arc<dyn Disk>> {
        Err(not_in_a_file_system())
    }

    fn is_intact(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn never_changes(&self) -> bool {
        true
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        match access {
            Access::Read => Ok(self.find(path)?),
            Access::Write => Err(read_only()),
            Access::ReadForeign => Err(not_in_a_file_system()),
        }
    }

    fn open_external(
        &self,
        _: &Path,
        _: &Path,
        _: ExternalFiles,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        Err(ExternalError::NotAllowed(
            "the store is not in a file system, and the file is on a machine of its own",
        ))
    }

    fn recorded_path(&self, _: &Path, _: &File) -> io::Result<PathBuf> {
        Err(not_in_a_file_system())
    }

    fn create_staged(&self, _: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        Err(read_only())
    }

    fn rename_new(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(read_only())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.owner.check(|| format!("{}: the store was opened", dir.display()))?;
        match dir == self.paths.meta_dir() || dir == self.paths.generations_dir() {
            true => self.files.list(self.name(dir)?),
            false => Err(not_in_a_file_system()),
        }
    }

    fn sync_dir(&self, _: &Path) -> Result<(), SyncDirError> {
        Err(SyncDirError::Open(read_only()))
    }

    fn sync_file_system(&self, _: &Path) -> io::Result<()> {
        Err(read_only())
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.find(path)?.stat()
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(path == self.paths.root() || self.paths.dirs().iter().any(|dir| dir == path))
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Err(read_only())
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        Err(read_only())
    }

    fn watch(&self, _: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        Ok(None)
    }

    fn is_network(&self, _: &Path) -> io::Result<bool> {
        Ok(true)
    }
}

/// An open file of a [`FilesDisk`].
#[derive(Debug)]
struct OpenFile {
    /// `None` for LOCK, which has no bytes.
    reader: Option<Arc<dyn FileReader>>,
    id: (u64, u64),
    /// A reader may use threads, which a forked child does not have.
    owner: OwnerProcess,
}

impl OpenFile {
    fn size_bytes(&self) -> u64 {
        self.reader.as_ref().map_or(0, |reader| reader.size_bytes())
    }

    /// Returns the reader, if the file has this range.
    fn reader(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<&dyn FileReader> {
        self.owner.check(|| "the file was opened".to_owned())?;
        let is_inside =
            offset_bytes.checked_add(length_bytes).is_some_and(|end_bytes| end_bytes <= self.size_bytes());
        let reader = self.reader.as_deref().filter(|_| is_inside);
        reader.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl DiskFile for OpenFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.reader(offset_bytes, buf.len() as u64)?.read_exact_at(buf, offset_bytes)
    }

    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.reader(range.start, range.end - range.start)?.stream(range, sink)
    }

    fn reads_ahead(&self) -> bool {
        true
    }

    fn prefetch(&self, range: Range<u64>) {
        let end = range.end.min(self.size_bytes());
        if let Some(reader) = self.reader.as_ref().filter(|_| range.start < end && self.owner.is_current()) {
            reader.prefetch(range.start..end);
        }
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn allocate(&self, _: Range<u64>) -> io::Result<bool> {
        Err(read_only())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn sync(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn stat(&self) -> io::Result<FileStat> {
        let (device, inode) = self.id;
        let size_bytes = self.size_bytes();
        Ok(FileStat { device, inode, size_bytes, link_count: 1, is_regular: true, mtime_ns: 0 })
    }

    fn try_lock(&self, _: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_network(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn as_file(&self) -> Option<&File> {
        None
    }
}
