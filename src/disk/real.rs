use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags, StatFs};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::watch::Inotify;
use super::{
    Access, Disk, DiskFile, ExternalError, FileStat, LockHolders, LockMode, Reach, STAGE_PREFIX, Watch,
    external,
};

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        // A FIFO in a file's place must not block the opener, so it is opened without waiting, and then refused.
        let links = if access == Access::ReadForeign { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::Write)
            .custom_flags((OFlags::NONBLOCK | links).bits().cast_signed())
            .open(path);
        let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let file = match file {
            Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return refused("a symbolic link");
            }
            opened => opened?,
        };
        if !file.metadata()?.is_file() {
            return refused("not a regular file");
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        reach: Reach,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        Ok(Arc::new(RealFile(external::open(store, path, reach)?)))
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        external::recorded_path(store, file)
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        loop {
            let (file, path) = create_temporary(STAGE_PREFIX, dir)?.keep()?;
            let file = RealFile(file);
            // Between the two a collector may have taken the file for one that a dead writer left; then begin again.
            if file.try_lock(LockMode::Exclusive)? && file.stat()?.link_count > 0 {
                return Ok((path, Arc::new(file)));
            }
        }
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system does not know the flag: a hard link refuses a taken name as well.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                fs::hard_link(from, to)?;
                fs::remove_file(from)
            }
            renamed => Ok(renamed?),
        }
    }

    fn link_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(dir)?)?)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        Ok(stat_of(&fs::metadata(path)?))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(fs::symlink_metadata(path)?.is_dir())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn copy_access(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (model, own) = (fs::metadata(from)?, fs::metadata(to)?);
        let mut permissions = model.permissions();
        if (model.uid(), model.gid()) != (own.uid(), own.gid())
            && let Err(e) = unix::fs::chown(to, Some(model.uid()), Some(model.gid()))
        {
            if e.kind() != io::ErrorKind::PermissionDenied {
                return Err(e);
            }
            // As `cp -p` does for who may not give files away: the group if that is allowed, and no bits that act for
            // who it is not.
            let has_group = unix::fs::chown(to, None, Some(model.gid())).is_ok();
            permissions.set_mode(permissions.mode() & if has_group { 0o3777 } else { 0o1777 });
        }
        fs::set_permissions(to, permissions)
    }

    fn rename_dir(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        // One that is empty is deleted without being opened, which takes a descriptor.
        fs::remove_dir(path).or_else(|_| fs::remove_dir_all(path))
    }

    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        Ok(Some(Box::new(Inotify::new(dir)?)))
    }

    fn tells_all(&self, dir: &Path) -> bool {
        // File systems that only this kernel changes.
        const LOCAL: [u32; 5] = [
            0xef53,      // ext2, ext3, ext4
            0x5846_5342, // XFS
            0x9123_683e, // btrfs
            0xf2f5_2010, // F2FS
            0x0102_1994, // tmpfs
        ];
        rustix::fs::statfs(dir).is_ok_and(|it| LOCAL.contains(&(it.f_type as u32)))
    }

    fn lock_holders(&self) -> LockHolders {
        LockHolders::read()
    }

    fn is_network(&self, path: &Path) -> io::Result<bool> {
        Ok(is_network_kind(&rustix::fs::statfs(path)?))
    }
}

fn is_network_kind(file_system: &StatFs) -> bool {
    // The numbers of linux/magic.h and of the file systems themselves. A file system of a user (FUSE) may be either.
    const NETWORK: [u32; 11] = [
        0x6969,      // NFS
        0x517b,      // SMB, the old
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB 2 and 3
        0x5346_414f, // AFS
        0x6b41_4653, // AFS, that of the kernel
        0x7375_7245, // Coda
        0x00c3_6400, // Ceph
        0x0bd0_0bd0, // Lustre
        0x4750_4653, // GPFS
        0x0102_1997, // 9P
    ];
    // The field is signed, or longer, on some machines.
    NETWORK.contains(&(file_system.f_type as u32))
}

/// A file of a fresh name, with the permissions that any new file has.
pub(crate) fn create_temporary(prefix: &str, dir: &Path) -> io::Result<NamedTempFile> {
    let create = |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).open(path);
    tempfile::Builder::new().prefix(prefix).make_in(dir, create)
}

/// A file that nobody else can open, and that is gone with its last reader; in the system's directory for those.
#[cfg(feature = "interop")]
pub(crate) fn unnamed_temporary() -> io::Result<Arc<dyn DiskFile>> {
    Ok(Arc::new(RealFile(tempfile::tempfile()?)))
}

#[derive(Debug)]
struct RealFile(File);

impl RealFile {
    /// Whether `fcntl` and `flock` know nothing of each other here: on a network file system they are one kind of lock.
    fn has_front(&self) -> bool {
        const FUSE: u32 = 0x6573_5546;
        let file_system = rustix::fs::fstatfs(&self.0);
        file_system.is_ok_and(|it| !is_network_kind(&it) && it.f_type as u32 != FUSE)
    }
}

impl DiskFile for RealFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset_bytes)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let length_bytes = range.end.saturating_sub(range.start);
        loop {
            match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), range.start, length_bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
                allocated => return Ok(allocated?),
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
        Ok(stat_of(&self.0.metadata()?))
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        // Written out in full: since Rust 1.89 a method call would mean the standard library's own locks.
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

    /// An `fcntl` lock, which is a process's: it says who is at the front, and the `flock` is the file's lock.
    fn try_front(&self, mode: LockMode) -> io::Result<bool> {
        let operation = match mode {
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match self.has_front().then(|| rustix::fs::fcntl_lock(&self.0, operation)) {
            None | Some(Ok(())) => Ok(true),
            Some(Err(Errno::AGAIN | Errno::ACCESS)) => Ok(false),
            Some(Err(e)) => Err(e.into()),
        }
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
        Ok(rustix::fs::fcntl_lock(&self.0, FlockOperation::NonBlockingUnlock)?)
    }

    fn share_blocks_of(&self, source: &File) -> bool {
        rustix::fs::ioctl_ficlone(&self.0, source).is_ok()
    }

    fn lock_holders(&self) -> Vec<u32> {
        self.stat().map_or(Vec::new(), |stat| LockHolders::read().of(stat))
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.0)
    }
}

fn stat_of(metadata: &fs::Metadata) -> FileStat {
    FileStat {
        device: metadata.dev(),
        inode: metadata.ino(),
        size_bytes: metadata.len(),
        link_count: metadata.nlink(),
        is_regular: metadata.is_file(),
        mtime_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
    }
}
