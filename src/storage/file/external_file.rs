//! Files that do not belong to the store.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stridemap_format::FileStamp;

use crate::disk::{Access, Disk as _, DiskFile, FileId, FileStat, RealDisk, opened};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// An open file that is not part of a store, with its inode, length and mtime when it was opened.
///
/// Other processes may change the file at any time. The three are compared again after every read that copies bytes, and
/// the read fails if one differs. Not noticed are a change that leaves all three as they were, and a change to bytes that
/// are borrowed from a mapping of the file.
///
/// ```
/// use std::sync::Arc;
/// use stridemap::import::ExternalFile;
/// use stridemap::{Header, DType, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("points.bin");
/// std::fs::write(&path, [1f32, 4., 2., 1., 3., 5.].map(f32::to_le_bytes).as_flattened())?;
/// let file = Arc::new(ExternalFile::open(&path)?);
/// let points = Tensor::from_file(&file, 0..file.size_bytes(), Header::contiguous(DType::F32, &[3, 2])?)?;
/// assert_eq!(points.t()?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ExternalFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    id: FileId,
    stamp: FileStamp,
}

impl ExternalFile {
    /// Opens a regular file. A FIFO, a device or a directory is refused at once.
    ///
    /// If the file was written less than 12 milliseconds ago, this waits until that time has passed, so that a later
    /// change gets a different mtime. A file system with a coarser clock (FAT: two seconds) may hide a change for
    /// longer.
    ///
    /// ```
    /// # use stridemap::import::ExternalFile;
    /// # use stridemap::ErrorKind;
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("x.bin");
    /// std::fs::write(&path, b"0123456789")?;
    /// let file = ExternalFile::open(&path)?;
    /// assert_eq!((file.path(), file.size_bytes()), (&*path, 10));
    /// assert_eq!(ExternalFile::open(dir.path()).unwrap_err().kind(), ErrorKind::BadFile);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] if it is not a regular file; [`ErrorKind::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let opened = RealDisk::default().open(path, Access::ReadForeign);
        opened.and_then(|file| Self::settled(path, file)).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidInput => not_regular(path),
            _ => Error::io("open", path, e),
        })
    }

    /// Takes ownership of a file that is open for reading, such as a temporary file. Error messages use `path` as its
    /// name. Waits like [`open`](Self::open).
    ///
    /// ```
    /// use std::io::Write as _;
    /// use stridemap::import::ExternalFile;
    ///
    /// let mut temporary = tempfile::tempfile()?;
    /// temporary.write_all(b"0123456789")?;
    /// let file = ExternalFile::from_file(temporary, "unpacked")?;
    /// let mut bytes = [0; 2];
    /// file.read_exact_at(&mut bytes, 8)?;
    /// assert_eq!((&bytes, file.size_bytes()), (b"89", 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] if it is not a regular file; [`ErrorKind::Io`].
    pub fn from_file(file: File, path: impl AsRef<Path>) -> Result<Self> {
        let (path, file) = (path.as_ref(), opened(file));
        if !file.stat().doing("examine", path)?.is_regular {
            return Err(not_regular(path));
        }
        Self::settled(path, file).doing("examine", path)
    }

    /// Waits until a later change would get a different mtime, then wraps the file.
    fn settled(path: &Path, file: Arc<dyn DiskFile>) -> io::Result<Self> {
        for _ in 0..MAX_WAITS {
            let Some(left) = until_settled(file.stat()?.mtime_ns) else { break };
            thread::sleep(left);
        }
        Self::of(path, file)
    }

    /// Wraps an open file, without waiting. Error messages use `path` as its name.
    pub(in crate::storage) fn of(path: &Path, file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let stat = file.stat()?;
        Ok(ExternalFile { path: path.to_path_buf(), file, id: stat.id(), stamp: stamp_of(stat) })
    }

    /// Returns the path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length in bytes when it was opened.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.stamp.size_bytes
    }

    /// Returns the stamp of the file when it was opened.
    pub(crate) fn stamp(&self) -> FileStamp {
        self.stamp
    }

    pub(in crate::storage) fn is_network(&self) -> io::Result<bool> {
        self.file.is_network()
    }

    pub(in crate::storage) fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }

    /// Returns the operating system's file, for mapping, and its metadata.
    pub(in crate::storage) fn file_to_map(&self) -> Result<Option<(&File, FileStat)>> {
        let stat = self.file.stat().doing("map", &self.path)?;
        Ok(self.file.as_file().map(|file| (file, stat)))
    }

    /// Returns the device and inode.
    pub(in crate::storage) fn id(&self) -> FileId {
        self.id
    }

    /// Fills `buf` from the bytes at `offset_bytes`.
    ///
    /// ```
    /// # use stridemap::import::ExternalFile;
    /// # use stridemap::ErrorKind;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// # std::fs::write(&path, b"0123456789")?;
    /// let file = ExternalFile::open(&path)?;
    /// let mut bytes = [0; 3];
    /// file.read_exact_at(&mut bytes, 4)?;
    /// assert_eq!(&bytes, b"456");
    /// std::fs::write(&path, b"changed")?;
    /// assert_eq!(file.read_exact_at(&mut bytes, 4).unwrap_err().kind(), ErrorKind::ExternalChanged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ExternalChanged`] if the file has changed since it was opened; [`ErrorKind::Io`].
    pub fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        let read = self.file.read_exact_at(buf, offset_bytes);
        // A change is reported before a failed read, because it explains more than an unexpected end of file.
        self.check_unchanged()?;
        read.doing("read", &self.path)
    }

    /// Checks that a range of bytes is within the file.
    pub(crate) fn check_range(&self, range: &Range<u64>) -> Result<()> {
        if range.start <= range.end && range.end <= self.size_bytes() {
            return Ok(());
        }
        let (path, size_bytes) = (self.path.display(), self.size_bytes());
        let message =
            format!("{path}: bytes {} to {}, but the file has {size_bytes} bytes", range.start, range.end);
        Err(Error::new(ErrorKind::OutOfRange, message))
    }

    /// Checks that the file has not changed since it was opened.
    ///
    /// # Errors
    /// `ExternalChanged`; `Io`.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let now = self.file.stat().doing("examine", &self.path)?;
        match difference(self.stamp, stamp_of(now)) {
            None => Ok(()),
            Some(what) => {
                let message = format!(
                    "{}: the file was changed since it was opened: {what}; open it again once no process writes \
                     to it",
                    self.path.display()
                );
                Err(Error::new(ErrorKind::ExternalChanged, message))
            }
        }
    }
}

fn not_regular(path: &Path) -> Error {
    Error::new(ErrorKind::BadFile, format!("open {}: not a regular file", path.display()))
}

/// The kernel's clock for file times ticks every 10 milliseconds or more often; under load, a tick can be slightly
/// late.
const SETTLED_AFTER: Duration = Duration::from_millis(12);

/// The limit on waits while another process keeps writing to the file. After that, a later read detects the change.
const MAX_WAITS: u32 = 3;

/// Returns for how long a later change could still get the same mtime, or `None` if none can. An mtime in the future is
/// such a case.
fn until_settled(mtime_ns: i64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let changed = Duration::from_nanos(u64::try_from(mtime_ns).ok()?);
    let is_near = changed < now.saturating_add(SETTLED_AFTER);
    let left = changed.saturating_add(SETTLED_AFTER).saturating_sub(now);
    (is_near && !left.is_zero()).then_some(left)
}

pub(in crate::storage) fn stamp_of(stat: FileStat) -> FileStamp {
    let FileStat { inode, size_bytes, mtime_ns, .. } = stat;
    FileStamp { inode, size_bytes, mtime_ns }
}

/// Describes what has changed in a file, or returns `None` if nothing has.
pub(in crate::storage) fn difference(then: FileStamp, now: FileStamp) -> Option<String> {
    let fields = [
        ("inode", i128::from(then.inode), i128::from(now.inode)),
        ("size in bytes", i128::from(then.size_bytes), i128::from(now.size_bytes)),
        ("mtime in ns", i128::from(then.mtime_ns), i128::from(now.mtime_ns)),
    ];
    let changed = fields.into_iter().filter(|(_, then, now)| then != now);
    let changed: Vec<String> =
        changed.map(|(field, then, now)| format!("{field} {then}, now {now}")).collect();
    (!changed.is_empty()).then(|| changed.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::storage::Storage;

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf, Arc<ExternalFile>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, bytes).unwrap();
        let file = Arc::new(ExternalFile::open(&path).unwrap());
        (dir, path, file)
    }

    #[test]
    fn a_range_of_a_file_is_read_by_position_and_within_its_bounds() {
        let (_dir, _, file) = file_of(b"0123456789");
        let storage = Storage::of_range(&file, 3, 4);
        let mut bytes = [0; 4];
        storage.read_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, storage.length_bytes()), (b"3456", 4));
        storage.read_at(&mut bytes[..1], 3).unwrap();
        assert_eq!(bytes[0], b'6');
        for (length, offset) in [(2, 3), (1, 4), (1, u64::MAX)] {
            let error = storage.read_at(&mut bytes[..length], offset).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        }
        assert!(storage.borrow().is_none());
    }

    #[test]
    fn a_read_after_any_change_to_the_file_fails_and_says_what_changed() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 4] = [
            ("size in bytes 10, now 4", |path| {
                fs::File::options().write(true).open(path).unwrap().set_len(4).unwrap()
            }),
            ("size in bytes 10, now 12", |path| fs::write(path, b"0123456789ab").unwrap()),
            ("mtime in ns", |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.write_all_at(b"x", 9).unwrap();
                file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
            }),
            ("mtime in ns", |path| {
                fs::File::open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            }),
        ];
        for (what, change) in changes {
            let (_dir, path, file) = file_of(b"0123456789");
            let mut bytes = [0; 2];
            file.read_exact_at(&mut bytes, 8).unwrap();
            change(&path);
            let error = file.read_exact_at(&mut bytes, 8).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ExternalChanged, "{error}");
            assert!(error.to_string().contains(what) && error.to_string().contains("file:"), "{error}");
        }
    }

    #[test]
    fn files_that_are_not_regular_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [&fifo, dir.path(), Path::new("/dev/null")] {
            let error = ExternalFile::open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadFile, "{}: {error}", path.display());
        }
    }
}
