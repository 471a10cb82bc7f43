//! The few file operations that a store uses, behind a trait: so that a crash can be simulated at each of them, and
//! what a commit reads and writes can be counted.
//!
//! Nothing above this module touches the file system, the import and export of foreign files aside.

#[cfg(feature = "simulation")]
mod counted;
mod external;
mod file_system;
mod held;
mod holders;
mod locked;
mod paths;
mod real;
#[cfg(feature = "simulation")]
mod simulated;
mod staged;
mod step;
mod watch;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "simulation")]
pub use counted::{Counted, Counts};
pub use external::{ExternalError, Reach};
pub(crate) use file_system::{FileSystem, is_written_in_place, unshare, write_in_place};
pub use holders::LockHolders;
pub(crate) use locked::{LockedFile, is_named};
pub(crate) use paths::{STAGE_PREFIX, StoreFile, StorePaths, dir_of, number_in};
pub use real::RealDisk;
pub(crate) use real::opened;
#[cfg(feature = "simulation")]
pub use simulated::{BLOCK_BYTES, Op, Outcome, Possible, PowerCut, SimulatedDisk, Survivors};
pub(crate) use staged::Staged;
pub use step::Step;

/// What an open file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
    /// Reading only, where a symbolic link may stand for the file: for files that are not a store's own. They are real on
    /// a simulated disk too.
    ReadForeign,
}

/// Who may hold a lock beside oneself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Others that share.
    Shared,
    /// Nobody.
    Exclusive,
}

/// The device and the inode of a file: the same by whatever name it was opened.
pub(crate) type FileId = (u64, u64);

/// What is known of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The device's number.
    pub device: u64,
    /// The inode's number.
    pub inode: u64,
    /// The length in bytes.
    pub size_bytes: u64,
    /// How many names the file has: 0 once it is deleted.
    pub link_count: u64,
    /// Whether it is a regular file: no directory, device or pipe.
    pub is_regular: bool,
    /// When its bytes last changed, in nanoseconds since 1970, as fine as the file system's clock.
    pub mtime_ns: i64,
}

impl FileStat {
    pub(crate) fn id(&self) -> FileId {
        (self.device, self.inode)
    }
}

/// A file system. Each method is one step that a crash can come after.
pub trait Disk: Debug + Send + Sync {
    /// Opens the directories of a store, `meta`, `storages` and `lost+found` in the one that `store` leads to. On the disk that
    /// is returned, paths that begin with `store` are looked up in these directories, whatever is later renamed or put in
    /// their place. Any other path is refused, except those of files that are not the store's.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, and those of the file system.
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>>;

    /// Whether the directories in a store that is [held](Self::hold) still have their names. Always true of other disks.
    ///
    /// # Errors
    /// Those of the file system.
    fn is_intact(&self) -> io::Result<bool>;

    /// Opens a regular file that exists. A store's own files are never behind a symbolic link: it could lead anywhere.
    ///
    /// # Errors
    /// `InvalidInput` for what is not a regular file, and those of the file system.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a regular file that is not the store's, for reading, where it may be. A path that is not absolute begins in the
    /// directory that holds the store. Files of others are real on every disk.
    ///
    /// # Errors
    /// `Outside` when it is elsewhere, and in the store's own directory; `InvalidInput` for what is not a regular file, and
    /// those of the file system.
    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        reach: Reach,
    ) -> Result<Arc<dyn DiskFile>, ExternalError>;

    /// Where an open file that is not the store's is: from the directory that holds the store on, or absolute where it is not
    /// beneath that. No part of it is a symbolic link.
    ///
    /// # Errors
    /// `NotFound` for a file that was deleted, and those of the file system.
    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf>;

    /// Creates a file of a fresh name that begins with `.stage-`, under an exclusive lock.
    ///
    /// # Errors
    /// Those of the file system.
    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)>;

    /// Gives a file or a directory another name, which must be free: never replaces.
    ///
    /// # Errors
    /// `AlreadyExists`, and those of the file system.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file one more name, which must be free: never replaces.
    ///
    /// # Errors
    /// `AlreadyExists`, and those of the file system, which may know no second names.
    fn link_new(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Deletes a file's name.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in no order. Names that are not UTF-8 are foreign, and left out.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes everything durable that is on the same file system as a directory.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync_file_system(&self, dir: &Path) -> io::Result<()>;

    /// What is known of the file at a path.
    ///
    /// # Errors
    /// Those of the file system.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// Whether the path is a directory, and not a link to one.
    ///
    /// # Errors
    /// Those of the file system.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;

    /// Creates a directory whose parent exists.
    ///
    /// # Errors
    /// Those of the file system.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Deletes an empty directory.
    ///
    /// # Errors
    /// `DirectoryNotEmpty`, and those of the file system.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Begins to watch the names in a directory; none where the system does not tell of them.
    ///
    /// # Errors
    /// Those of the system, which has only so many watches to give.
    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>>;

    /// Whether a [watch](Self::watch) of a directory tells of each name there, by whatever process it was given.
    fn tells_all(&self, _dir: &Path) -> bool {
        false
    }

    /// Whether a directory is on a file system that other machines write too, as far as that can be told.
    ///
    /// # Errors
    /// Those of the file system.
    fn is_network(&self, dir: &Path) -> io::Result<bool>;

    /// The processes that hold locks, of all files: for many files at less cost than each file's own
    /// [`lock_holders`](DiskFile::lock_holders).
    fn lock_holders(&self) -> LockHolders {
        LockHolders::default()
    }

    /// Whether a step of the protocol is left out on this disk, to see what it is for.
    #[cfg(feature = "simulation")]
    fn omits(&self, _step: Step) -> bool {
        false
    }
}

/// A directory that is watched for as long as this lives.
pub trait Watch: Debug + Send + Sync {
    /// Waits until a file got a name, other than one of an unfinished file, since the watch began or was last waited for;
    /// at most `timeout`. Gives whether one did; may return sooner, for no reason.
    ///
    /// # Errors
    /// Those of the system.
    fn wait(&self, timeout: Duration) -> io::Result<bool>;
}

/// An open file. Dropping it gives its lock back.
pub trait DiskFile: Debug + Send + Sync {
    /// Fills `buf` from the bytes at `offset_bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before that, and those of the file system.
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset_bytes`.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Makes sure that the file reaches to the end of a range of bytes, and that the disk has the room for them. False where the
    /// file system cannot promise room, and nothing has happened: the writes will tell.
    ///
    /// # Errors
    /// `StorageFull`, and those of the file system.
    fn allocate(&self, range: Range<u64>) -> io::Result<bool>;

    /// Sets the length.
    ///
    /// # Errors
    /// Those of the file system.
    fn set_len(&self, length_bytes: u64) -> io::Result<()>;

    /// Makes bytes and length durable.
    ///
    /// # Errors
    /// Those of the file system. After one, what was written since the last success may be lost whatever a second try
    /// says.
    fn sync(&self) -> io::Result<()>;

    /// What is known of the file.
    ///
    /// # Errors
    /// Those of the file system.
    fn stat(&self) -> io::Result<FileStat>;

    /// Takes the file's lock if nobody stands in the way; false when somebody does.
    ///
    /// # Errors
    /// Those of the file system.
    fn try_lock(&self, mode: LockMode) -> io::Result<bool>;

    /// Gives the file's lock back.
    ///
    /// # Errors
    /// Those of the file system.
    fn unlock(&self) -> io::Result<()>;

    /// Puts this process at the front of those who want the file's lock, which is no lock on the file; false when another
    /// process is there. Any number of processes that share the lock are there together. A process that closes the
    /// file, by any of its descriptors, leaves the front.
    ///
    /// # Errors
    /// Those of the file system.
    fn try_front(&self, _mode: LockMode) -> io::Result<bool> {
        Ok(true)
    }

    /// The same; waits for as long as another process is there.
    ///
    /// # Errors
    /// Those of the file system, and that each of two processes would wait for the other.
    fn wait_for_front(&self, _mode: LockMode) -> io::Result<()> {
        Ok(())
    }

    /// Leaves the front.
    ///
    /// # Errors
    /// Those of the file system.
    fn leave_front(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes an empty file a copy of another that shares its blocks on the disk, until one of the two is written; false
    /// where that cannot be, and nothing has happened.
    fn share_blocks_of(&self, _source: &File) -> bool {
        false
    }

    /// The processes that hold the file's lock, as far as the system says so: those that took it, each once.
    fn lock_holders(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Whether the file is on a file system that other machines write too, as far as that can be told.
    ///
    /// # Errors
    /// Those of the file system.
    fn is_network(&self) -> io::Result<bool>;

    /// The operating system's file, to map it; none for a simulated one.
    fn as_file(&self) -> Option<&File>;
}

/// Reads a whole file of at most `limit_bytes`; a longer one is cut there, one byte beyond.
pub(crate) fn read_capped(file: &dyn DiskFile, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let length_bytes = file.stat()?.size_bytes.min(limit_bytes.saturating_add(1));
    let mut bytes = vec![0; usize::try_from(length_bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
