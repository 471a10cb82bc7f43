//! The few file operations that a store uses, behind a trait, so that tests can simulate a crash at each of them.
//!
//! No other module opens or changes the files of a store by path.

mod external_paths;
mod file_system;
mod foreign;
pub(crate) mod kept;
mod lock_holders;
mod locked_file;
mod omit_step;
mod open_dirs;
mod paths;
mod process;
mod real_disk;
mod shared_watch;
mod staged_file;
mod stream;
mod system_calls;
mod watch;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use external_paths::{ExternalError, ExternalFiles};
pub(crate) use file_system::{FileSystem, is_written_in_place, mark_for_writes_in_place, unshare};
pub(crate) use foreign::tree_bytes;
pub use lock_holders::LockHolders;
pub(crate) use locked_file::{LockedFile, is_named};
#[cfg(feature = "simulation")]
pub(crate) use omit_step::{Omit, omits};
#[cfg(feature = "simulation")]
pub use omit_step::{OmittedStep, omit_step};
pub(crate) use omit_step::{if_test_omits_step, step};
#[cfg(feature = "simulation")]
pub use open_dirs::OpenDirs;
pub use paths::{REMOTE_PREFIX, STAGE_PREFIX};
pub(crate) use paths::{StoreFile, StorePaths, dir_of, number_in};
pub(crate) use process::{ForkCheck, OwnerProcess};
pub use real_disk::RealDisk;
pub(crate) use real_disk::opened;
pub(crate) use staged_file::Staged;
pub(crate) use stream::stream;
pub(crate) use system_calls::{needs_new_blocks, start_writeback};

use crate::available_memory;
use crate::error::Error;

/// The access that a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
    /// Reading only, for files outside a store. Symbolic links are followed. These are real files even on a simulated
    /// disk.
    ReadForeign,
}

/// The mode of a lock: which other locks of the file may exist at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Other shared locks.
    Shared,
    /// No other lock.
    Exclusive,
}

/// The device and the inode of a file, which are the same under each of its names.
pub(crate) type FileId = (u64, u64);

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// The length in bytes.
    pub size_bytes: u64,
    /// The number of names that the file has; 0 after it is deleted.
    pub link_count: u64,
    /// Whether it is a regular file, not a directory, device or pipe.
    pub is_regular: bool,
    /// When its bytes last changed, in nanoseconds since 1970, with the resolution of the file system's clock.
    pub mtime_ns: i64,
}

impl FileStat {
    pub(crate) fn id(&self) -> FileId {
        (self.device, self.inode)
    }
}

/// A file system. A crash may happen after each method call.
pub trait Disk: Debug + Send + Sync {
    /// Opens the directories of a store: the one at `store`, and `meta`, `storages` and `generations` in it. On the returned
    /// disk, paths that begin with `store` are looked up in these directories, even if they are later renamed or replaced.
    /// Any other path is refused, except by [`Access::ReadForeign`] and [`open_external`](Self::open_external).
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or an error of the file system.
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>>;

    /// Whether `meta`, `storages` and `generations` in the store are still the directories that [`hold`](Self::hold) opened. Always
    /// true on other disks.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_intact(&self) -> io::Result<bool>;

    /// Whether no file of the store ever changes, appears or is deleted, so that a file that is missing once stays missing.
    fn never_changes(&self) -> bool {
        false
    }

    /// Opens an existing regular file. A store's own files are never opened through a symbolic link, which could
    /// point anywhere.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a regular file, or an error of the file system.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a regular file outside the store for reading, if `allowed` includes its location. A relative path starts in
    /// the directory that holds the store. Such files are real on every disk.
    ///
    /// # Errors
    /// `NotAllowed` if the location is not allowed or is in a store; `InvalidInput` if it is not a regular file; or an
    /// error of the file system.
    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        allowed: ExternalFiles,
    ) -> Result<Arc<dyn DiskFile>, ExternalError>;

    /// Returns the path of an open file outside the store: relative to the directory that holds the store if the file
    /// is below that, otherwise absolute. No part of the path is a symbolic link.
    ///
    /// # Errors
    /// `NotFound` for a deleted file, or an error of the file system.
    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf>;

    /// Creates a file with a fresh name that begins with `.stage-`, and locks it exclusively.
    ///
    /// # Errors
    /// Errors of the file system.
    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)>;

    /// Renames a file or a directory. The new name must be free: nothing is replaced.
    ///
    /// On a file system that cannot rename without replacing, such as most FUSE file systems, the name is examined
    /// first, and a file of that name which another process creates at that moment is replaced. The names in a store
    /// are created under a lock, or in a directory that only its creator uses.
    ///
    /// # Errors
    /// `AlreadyExists`, or an error of the file system.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Deletes a file's name.
    ///
    /// # Errors
    /// Errors of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory, in no particular order. Names that are not UTF-8 cannot be those of a
    /// store's files, and are left out.
    ///
    /// # Errors
    /// Errors of the file system.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// Errors of the file system.
    fn sync_dir(&self, dir: &Path) -> Result<(), SyncDirError>;

    /// Makes everything on a directory's file system durable.
    ///
    /// # Errors
    /// Errors of the file system.
    fn sync_file_system(&self, dir: &Path) -> io::Result<()>;

    /// Returns the metadata of the file at a path.
    ///
    /// # Errors
    /// Errors of the file system.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// Whether the path is a directory, and not a link to one.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;

    /// Creates a directory whose parent exists.
    ///
    /// # Errors
    /// Errors of the file system.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Deletes an empty directory.
    ///
    /// # Errors
    /// `DirectoryNotEmpty`, or an error of the file system.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Starts to watch the names in a directory. Returns `None` if the system does not report them.
    ///
    /// # Errors
    /// Errors of the system, which limits the number of watches.
    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>>;

    /// Starts a watch of a directory that is only asked, and never waits. It reports every new name, whichever process
    /// created it. Returns `None` if the file system cannot do that. All such watches of a process count as one for the
    /// limits of the system.
    ///
    /// # Errors
    /// Those of [`watch`](Self::watch); `WouldBlock` if another thread is using such a watch.
    fn watch_all(&self, _dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        Ok(None)
    }

    /// Whether a directory is on a file system that other machines may write to, as far as that can be determined.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_network(&self, dir: &Path) -> io::Result<bool>;

    /// Whether something other than this kernel may serve the file system of a directory, so that an operation which
    /// failed may still have been done. True if that is not known.
    fn may_be_remote(&self, _dir: &Path) -> bool {
        false
    }

    /// Returns the processes that hold locks, for all files. For many files this is cheaper than
    /// [`lock_holders`](DiskFile::lock_holders) of each file.
    fn lock_holders(&self) -> LockHolders {
        LockHolders::default()
    }
}

/// Why the names in a directory were not made durable.
#[derive(Debug)]
pub enum SyncDirError {
    /// The directory could not be opened. Nothing is lost: the sync can be tried again.
    Open(io::Error),
    /// The sync failed. What was written may be lost, and another sync would not report it.
    Sync(io::Error),
}

impl SyncDirError {
    /// Creates the error for the directory.
    pub(crate) fn at(self, dir: &Path) -> Error {
        match self {
            SyncDirError::Open(e) => Error::io("open to sync", dir, e),
            SyncDirError::Sync(e) => Error::io("sync", dir, e).after_failed_sync(),
        }
    }
}

impl From<io::Error> for SyncDirError {
    fn from(e: io::Error) -> Self {
        SyncDirError::Sync(e)
    }
}

impl From<SyncDirError> for io::Error {
    fn from(e: SyncDirError) -> Self {
        match e {
            SyncDirError::Open(e) | SyncDirError::Sync(e) => e,
        }
    }
}

/// A watch of a directory. It ends when this is dropped.
pub trait Watch: Debug + Send + Sync {
    /// Waits at most `timeout` until a file appears, not counting unfinished files. Files that have appeared since
    /// the start of the watch or the last wait also count. Returns whether a file appeared; may return false early.
    ///
    /// # Errors
    /// Errors of the system.
    fn wait(&self, timeout: Duration) -> io::Result<bool>;
}

/// An open file. Dropping it releases its lock.
pub trait DiskFile: Debug + Send + Sync {
    /// Fills `buf` from the bytes at `offset_bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is too short, or an error of the file system.
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()>;

    /// Passes a range of bytes to `sink`, in order, in pieces of any length.
    ///
    /// # Errors
    /// Those of [`read_exact_at`](Self::read_exact_at) and of `sink`.
    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        stream_by_reads(range, sink, |buf, offset_bytes| self.read_exact_at(buf, offset_bytes))
    }

    /// Whether reads are faster if [`prefetch`](Self::prefetch) announces them.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Announces that a range will be read soon. Does nothing unless [`reads_ahead`](Self::reads_ahead).
    fn prefetch(&self, _range: Range<u64>) {}

    /// Writes all of `bytes` at `offset_bytes`.
    ///
    /// # Errors
    /// Errors of the file system.
    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Extends the file to the end of the range of bytes if it is shorter, and reserves disk space for the range.
    /// Returns false, without any effect, if the file system cannot reserve space: then a later write may fail.
    ///
    /// # Errors
    /// `StorageFull`, or an error of the file system.
    fn allocate(&self, range: Range<u64>) -> io::Result<bool>;

    /// Sets the length.
    ///
    /// # Errors
    /// Errors of the file system.
    fn set_len(&self, length_bytes: u64) -> io::Result<()>;

    /// Makes the bytes and the length durable.
    ///
    /// # Errors
    /// Errors of the file system. After an error, whatever was written since the last success may be lost, even if a
    /// second try succeeds.
    fn sync(&self) -> io::Result<()>;

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// Errors of the file system.
    fn stat(&self) -> io::Result<FileStat>;

    /// Tries to take the file's lock. Returns false if another lock excludes it.
    ///
    /// # Errors
    /// Errors of the file system.
    fn try_lock(&self, mode: LockMode) -> io::Result<bool>;

    /// Releases the file's lock.
    ///
    /// # Errors
    /// Errors of the file system.
    fn unlock(&self) -> io::Result<()>;

    /// Tries to move this process to the front of the queue for the file's lock. This does not lock the file. Returns
    /// false if another process is at the front. Any number of processes that want a shared lock may be at the front
    /// together. A process that closes the file, through any of its descriptors, leaves the front.
    ///
    /// # Errors
    /// Errors of the file system.
    fn try_front(&self, _mode: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether [`try_front`](Self::try_front) would succeed. This process does not move.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_front_free(&self, _mode: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether locking this open file once more has the same effect as opening the file anew to lock it. Not if another
    /// machine or program may serve the file system, which may not check an open file again, nor on overlayfs, where an
    /// open file may be that of a lower layer.
    fn keeps_locks(&self) -> bool {
        false
    }

    /// Like [`try_front`](Self::try_front), but waits while another process is at the front.
    ///
    /// # Errors
    /// Errors of the file system, or a deadlock: two processes would wait for each other.
    fn wait_for_front(&self, _mode: LockMode) -> io::Result<()> {
        Ok(())
    }

    /// Leaves the front of the queue.
    ///
    /// # Errors
    /// Errors of the file system.
    fn leave_front(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes an empty file a copy of another file. The two share blocks on disk until one of them is written. Returns
    /// false, without any effect, if that is not possible.
    fn share_blocks_of(&self, _source: &File) -> bool {
        false
    }

    /// Returns the processes that took the file's lock, each once, as far as the system reports them.
    fn lock_holders(&self) -> Vec<u32> {
        self.lock_holders_among(&LockHolders::read())
    }

    /// Returns those among all processes that hold locks.
    fn lock_holders_among(&self, _all: &LockHolders) -> Vec<u32> {
        Vec::new()
    }

    /// Whether the file is on a file system that other machines may write to, as far as that can be determined.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_network(&self) -> io::Result<bool>;

    /// Returns the operating system's file, for mapping, or `None` for a simulated file.
    fn as_file(&self) -> Option<&File>;
}

/// Whether an open was refused because the path is not a regular file. The system's own EINVAL has the same kind, and
/// says nothing about the file.
pub(crate) fn is_not_regular(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::InvalidInput && e.raw_os_error().is_none() && Error::inside(e).is_none()
}

/// Calls `read`, and calls it again if it fails. A disk may fail once, and file systems on a network may deny for a
/// moment that a file exists. An error that contains one of this crate is final: whoever made it has tried again.
pub(crate) fn read_again<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    read().or_else(|e| if Error::inside(&e).is_some() { Err(e) } else { read() })
}

/// Passes a range of bytes to `sink`, in blocks that `read` fills one after another.
///
/// # Errors
/// Those of `read` and `sink`.
pub(crate) fn stream_by_reads(
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    read: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    const BLOCK_BYTES: u64 = 4 << 20;
    let mut block = vec![0; range.end.saturating_sub(range.start).min(BLOCK_BYTES) as usize];
    let mut start = range.start;
    while start < range.end {
        let length = (range.end - start).min(BLOCK_BYTES) as usize;
        read(&mut block[..length], start)?;
        sink(&block[..length])?;
        start += length as u64;
    }
    Ok(())
}

/// Reads a whole file of at most `limit_bytes`. A longer file is cut off one byte past the limit.
pub(crate) fn read_capped(file: &dyn DiskFile, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let length_bytes = file.stat()?.size_bytes.min(limit_bytes.saturating_add(1));
    let length_bytes = usize::try_from(length_bytes).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    let reserved = available_memory::allocate(length_bytes, || bytes.try_reserve_exact(length_bytes).ok());
    reserved.map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(length_bytes, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
