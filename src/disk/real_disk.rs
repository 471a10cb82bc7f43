//! The operating system's file system.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, OFlags, RenameFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{FlockType, fcntl_getlk};
use tempfile::NamedTempFile;

use super::file_system::Locks;
use super::kept::{self, Kind};
use super::open_dirs::OpenDirs;
use super::shared_watch::SharedWatch;
use super::watch::Inotify;
use super::{
    Access, Disk, DiskFile, ExternalError, ExternalFiles, FileId, FileStat, LockHolders, LockMode,
    STAGE_PREFIX, SyncDirError, Watch, external_paths, file_system, is_named,
};

/// The operating system's file system: all of it by default, or the directories of one store as opened by
/// [`hold`](Disk::hold).
#[derive(Clone, Debug, Default)]
pub struct RealDisk {
    store_dirs: Option<Arc<StoreDirs>>,
}

#[derive(Debug)]
struct StoreDirs {
    dirs: OpenDirs<OpenDir>,
    /// Whether the store's path is a symbolic link.
    is_link: bool,
}

/// An open directory, and its identity.
#[derive(Debug)]
struct OpenDir {
    fd: OwnedFd,
    id: FileId,
}

impl OpenDir {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let id = stat_of(&rustix::fs::fstat(&fd)?).id();
        Ok(OpenDir { fd, id })
    }
}

impl RealDisk {
    /// Returns the directory that contains the entry of a path, and the name of the entry.
    fn entry<'a>(&'a self, path: &'a Path) -> io::Result<(BorrowedFd<'a>, &'a Path)> {
        let Some(store_dirs) = &self.store_dirs else { return Ok((CWD, path)) };
        let place = store_dirs.dirs.entry(path, find_dir)?;
        Ok((place.dir.fd.as_fd(), place.name))
    }

    /// Opens a directory.
    fn directory(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match &self.store_dirs {
            None => openat(CWD, path, flags),
            Some(store_dirs) => {
                let place = store_dirs.dirs.directory(path, find_dir)?;
                openat(place.dir.fd.as_fd(), place.name, flags)
            }
        }
    }

    fn open_file(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let (dir, name) = self.entry(path)?;
        Ok(openat(dir, name, flags | OFlags::CLOEXEC)?.into())
    }

    /// Returns the metadata of the entry at a path. `flags` states whether a link is followed.
    fn stat_entry(&self, path: &Path, flags: AtFlags) -> io::Result<Stat> {
        let (dir, name) = self.entry(path)?;
        Ok(rustix::fs::statat(dir, name, flags)?)
    }
}

/// Returns the path of a descriptor: what is done to it is done to the open directory, whatever that one's path is.
fn path_of(dir: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

/// Opens a directory in an open one.
fn find_dir(dir: &OpenDir, name: &str) -> io::Result<OpenDir> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    OpenDir::new(openat(dir.fd.as_fd(), Path::new(name), flags)?)
}

/// Opens a file. If the process or the system has no descriptors left, releases the files that are kept for the next load
/// or lock, and tries again.
fn openat(dir: BorrowedFd<'_>, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let open = || retry_on_intr(|| rustix::fs::openat(dir, name, flags, 0o666.into()));
    let lacks_descriptors = |e: &Errno| matches!(*e, Errno::MFILE | Errno::NFILE);
    Ok(kept::retry_after_release(Kind::File, open, lacks_descriptors)?)
}

impl Disk for RealDisk {
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>> {
        let root = OpenDir::new(self.directory(store, OFlags::PATH)?)?;
        let is_link = !self.is_dir(store)?;
        let dirs = OpenDirs::new(store, root, find_dir)?;
        Ok(Arc::new(RealDisk { store_dirs: Some(Arc::new(StoreDirs { dirs, is_link })) }))
    }

    fn is_intact(&self) -> io::Result<bool> {
        let Some(store_dirs) = &self.store_dirs else { return Ok(true) };
        let (root, subdirs) = store_dirs.dirs.commit_dirs();
        for (name, dir) in subdirs {
            let named = match rustix::fs::statat(&root.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(false),
                named => named?,
            };
            if stat_of(&named).id() != dir.id {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        // A FIFO in place of a file must not block: it is opened without waiting, and then refused.
        let found = match access {
            // A path from the user may lead anywhere.
            Access::ReadForeign => RealDisk::default().open_file(path, OFlags::RDONLY | OFlags::NONBLOCK),
            Access::Read => self.open_file(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW),
            Access::Write => self.open_file(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW),
        };
        let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let file = match found {
            Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return refused("a symbolic link");
            }
            found => found?,
        };
        if !file.metadata()?.is_file() {
            return refused("not a regular file");
        }
        Ok(opened(file))
    }

    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        allowed: ExternalFiles,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        let store = self.directory(store, OFlags::PATH)?;
        Ok(opened(external_paths::open(&store, path, allowed)?))
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        external_paths::recorded_path(&self.directory(store, OFlags::PATH)?, file)
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        const MAX_TRIES: usize = 16;
        for _ in 0..MAX_TRIES {
            // Only the random name is used, not `/`: the file is created under this name in `dir`.
            let path_of = |made: &Path| dir.join(made.file_name().unwrap_or_default());
            let create =
                |made: &Path| self.open_file(&path_of(made), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
            let (file, made) = create_with(STAGE_PREFIX, Path::new("/"), create)?.keep()?;
            let path = path_of(&made);
            let file = opened(file);
            // Before the lock, a collector may have mistaken the file for one of a dead writer, and deleted it. In
            // that case, start again. The link count does not show this on FUSE, which hides the deleted file.
            if file.try_lock(LockMode::Exclusive)? && is_named(self, &path, file.stat()?.id())? {
                return Ok((path, file));
            }
            let _ = self.remove(&path);
        }
        Err(io::Error::other(
            "each new file was deleted, locked or replaced at once; a file system whose inode numbers change cannot \
             hold a store that is written",
        ))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (self.entry(from)?, self.entry(to)?);
        match rustix::fs::renameat_with(from_dir, from_name, to_dir, to_name, RenameFlags::NOREPLACE) {
            // The file system does not support the flag. A hard link would not replace anything either, but some file
            // systems have none, and on others the file is not the same one under its new name: a lock that was taken
            // before would not exclude those who lock it under that name.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                match rustix::fs::statat(to_dir, to_name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => Ok(rustix::fs::renameat(from_dir, from_name, to_dir, to_name)?),
                    found => Err(found.map_or_else(Errno::into, |_| Errno::EXIST.into())),
                }
            }
            renamed => Ok(renamed?),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.entry(path)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.directory(dir, OFlags::RDONLY)?)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SyncDirError> {
        let dir = self.directory(dir, OFlags::RDONLY).map_err(SyncDirError::Open)?;
        retry_on_intr(|| rustix::fs::fsync(&dir)).map_err(|e| SyncDirError::Sync(e.into()))
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        let dir = self.directory(dir, OFlags::RDONLY)?;
        Ok(retry_on_intr(|| rustix::fs::syncfs(&dir))?)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let follow = if self.store_dirs.is_some() { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        Ok(stat_of(&self.stat_entry(path, follow)?))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        let stat = self.stat_entry(path, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_link = self
            .store_dirs
            .as_ref()
            .is_some_and(|store_dirs| store_dirs.is_link && store_dirs.dirs.is_root(path));
        Ok(!is_link && FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.entry(path)?;
        Ok(rustix::fs::mkdirat(dir, name, 0o777.into())?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.entry(path)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        let dir = self.directory(dir, OFlags::PATH)?;
        Ok(Some(Box::new(Inotify::new(&path_of(&dir))?)))
    }

    fn watch_all(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        let dir = self.directory(dir, OFlags::PATH)?;
        if !file_system::is_local(&dir)? {
            return Ok(None);
        }
        Ok(Some(Box::new(SharedWatch::new(&path_of(&dir))?)))
    }

    fn may_be_remote(&self, dir: &Path) -> bool {
        // An overlay may be on top of any file system.
        !self.directory(dir, OFlags::PATH).and_then(file_system::is_local).unwrap_or(false)
    }

    fn lock_holders(&self) -> LockHolders {
        LockHolders::read()
    }

    fn is_network(&self, dir: &Path) -> io::Result<bool> {
        file_system::is_network(self.directory(dir, OFlags::PATH)?)
    }
}

fn create_with(
    prefix: &str,
    dir: &Path,
    create: impl FnMut(&Path) -> io::Result<File>,
) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(prefix).make_in(dir, create)
}

/// Wraps a file that the caller opened.
pub(crate) fn opened(file: File) -> Arc<dyn DiskFile> {
    Arc::new(RealFile(file, OnceLock::new()))
}

/// An open file, and how its file system locks it, once that is known.
#[derive(Debug)]
struct RealFile(File, OnceLock<Locks>);

impl RealFile {
    fn locks(&self) -> Locks {
        *self.1.get_or_init(|| Locks::of(&self.0).unwrap_or(Locks::Remote))
    }

    /// Whether an `fcntl` lock can be the queue for the file's lock, which is a `flock`. This needs two independent
    /// locks, and on a network file system they are the same lock.
    fn has_queue(&self) -> bool {
        self.locks() != Locks::Remote
    }
}

impl DiskFile for RealFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset_bytes)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<bool> {
        let length_bytes = range.end.saturating_sub(range.start);
        loop {
            match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), range.start, length_bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(false),
                allocated => return Ok(allocated.map(|()| true)?),
            }
        }
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.0.set_len(length_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(&rustix::fs::fstat(&self.0)?))
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        // Called by its full path: since Rust 1.89 a method call would use the standard library's own locks.
        let locked = match mode {
            LockMode::Shared => fs2::FileExt::try_lock_shared(&self.0),
            LockMode::Exclusive => fs2::FileExt::try_lock_exclusive(&self.0),
        };
        match locked {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == fs2::lock_contended_error().raw_os_error() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        fs2::FileExt::unlock(&self.0)
    }

    /// Takes an `fcntl` lock, which belongs to the process. The process that holds it is at the front of the queue for
    /// the file's lock, which is the `flock`.
    fn try_front(&self, mode: LockMode) -> io::Result<bool> {
        let operation = match mode {
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match self.has_queue().then(|| rustix::fs::fcntl_lock(&self.0, operation)) {
            None | Some(Ok(())) => Ok(true),
            Some(Err(Errno::AGAIN | Errno::ACCESS)) => Ok(false),
            Some(Err(e)) => Err(e.into()),
        }
    }

    fn is_front_free(&self, mode: LockMode) -> io::Result<bool> {
        let wanted = match mode {
            LockMode::Shared => FlockType::ReadLock,
            LockMode::Exclusive => FlockType::WriteLock,
        };
        // Unlike the lock itself, the question needs no file that is open for writing.
        Ok(!self.has_queue() || fcntl_getlk(&self.0, &wanted.into())?.is_none())
    }

    fn keeps_locks(&self) -> bool {
        self.locks() == Locks::Local
    }

    fn wait_for_front(&self, mode: LockMode) -> io::Result<()> {
        let operation = match mode {
            LockMode::Shared => FlockOperation::LockShared,
            LockMode::Exclusive => FlockOperation::LockExclusive,
        };
        loop {
            match rustix::fs::fcntl_lock(&self.0, operation) {
                Err(Errno::INTR) => {}
                waited => return Ok(waited?),
            }
        }
    }

    fn leave_front(&self) -> io::Result<()> {
        // If both locks are the same lock, this would release the `flock`.
        if !self.has_queue() {
            return Ok(());
        }
        Ok(rustix::fs::fcntl_lock(&self.0, FlockOperation::NonBlockingUnlock)?)
    }

    fn share_blocks_of(&self, source: &File) -> bool {
        rustix::fs::ioctl_ficlone(&self.0, source).is_ok()
    }

    fn lock_holders_among(&self, all: &LockHolders) -> Vec<u32> {
        self.stat().map_or(Vec::new(), |stat| all.of(&self.0, stat))
    }

    fn is_network(&self) -> io::Result<bool> {
        file_system::is_network(&self.0)
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.0)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the width of the fields depends on the machine")]
fn stat_of(stat: &Stat) -> FileStat {
    FileStat {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        size_bytes: (stat.st_size as i64).cast_unsigned(),
        link_count: stat.st_nlink as u64,
        is_regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        mtime_ns: (stat.st_mtime as i64)
            .saturating_mul(1_000_000_000)
            .saturating_add(stat.st_mtime_nsec as i64),
    }
}
