//! A disk with actions before or after its operations.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stridemap::disk::{
    Access, Disk, DiskFile, ExternalError, ExternalFiles, FileStat, LockHolders, LockMode, RealDisk,
    SyncDirError, Watch,
};

/// Called with the name of the operation, and the path. The name is that of the method, but "open to write" and "stat
/// of file" are told apart from "open" and "stat". For an operation on a file, the path is that of the file. If a hook
/// returns an error, the operation fails with it.
pub(crate) type Hook = Arc<dyn Fn(&str, &Path) -> io::Result<()> + Send + Sync>;

/// Properties of file systems that the disk underneath does not have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    pub(crate) is_network: bool,
    /// New names in a directory are not reported.
    pub(crate) lacks_watches: bool,
    /// A listing returns only names that exist both before and after its hook, which is all that POSIX promises.
    pub(crate) lists_slowly: bool,
    /// Every process gets every lock on a storage, as if other machines' locks were not visible.
    pub(crate) has_blind_locks: bool,
    /// A read-only descriptor syncs nothing.
    pub(crate) syncs_by_writers: bool,
    /// Files can share blocks.
    pub(crate) shares_blocks: bool,
    /// A sync of a directory fails because the directory cannot be opened.
    pub(crate) opens_no_dirs: bool,
    /// No space can be reserved.
    pub(crate) reserves_nothing: bool,
    /// Added to device numbers.
    pub(crate) device_shift: u64,
}

#[derive(Clone)]
pub(crate) struct Hooked {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) before: Hook,
    pub(crate) after: Hook,
    pub(crate) quirks: Quirks,
    /// Bytes of a file that cannot be read: the disk returns an I/O error.
    pub(crate) unreadable: Option<(PathBuf, Range<u64>)>,
    pub(crate) counts: Arc<Mutex<Counts>>,
}

/// Counts of bytes and operations. Files in `storages/`, and files outside the store, are data. Everything else is
/// metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) metadata_read_bytes: u64,
    pub(crate) metadata_written_bytes: u64,
    pub(crate) data_read_bytes: u64,
    pub(crate) data_written_bytes: u64,
    /// Operations other than those on open files: opens, renames, deletions, listings, syncs of directories.
    pub(crate) operation_count: u64,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl Default for Hooked {
    fn default() -> Self {
        let nothing: Hook = Arc::new(|_, _| Ok(()));
        Hooked {
            disk: Arc::new(RealDisk::default()),
            before: Arc::clone(&nothing),
            after: nothing,
            quirks: Quirks::default(),
            unreadable: None,
            counts: Arc::default(),
        }
    }
}

impl Hooked {
    pub(crate) fn before(hook: impl Fn(&str, &Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Hooked { before: Arc::new(hook), ..Self::default() }
    }

    pub(crate) fn after(hook: impl Fn(&str, &Path) + Send + Sync + 'static) -> Self {
        let after: Hook = Arc::new(move |operation, path| {
            hook(operation, path);
            Ok(())
        });
        Hooked { after, ..Self::default() }
    }

    pub(crate) fn with(self, quirks: Quirks) -> Self {
        Hooked { quirks, ..self }
    }

    /// Returns the counts since the last call.
    pub(crate) fn take_counts(&self) -> Counts {
        std::mem::take(&mut *self.counts.lock().unwrap())
    }

    fn around<T, E: From<io::Error>>(
        &self,
        operation: &str,
        path: &Path,
        act: impl FnOnce(&dyn Disk) -> Result<T, E>,
    ) -> Result<T, E> {
        self.counts.lock().unwrap().operation_count += 1;
        self.hooked(operation, path, || act(&*self.disk))
    }

    fn hooked<T, E: From<io::Error>>(
        &self,
        operation: &str,
        path: &Path,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        (self.before)(operation, path)?;
        let done = act()?;
        (self.after)(operation, path)?;
        Ok(done)
    }

    fn file(&self, path: &Path, file: Arc<dyn DiskFile>, access: Access) -> Arc<dyn DiskFile> {
        Arc::new(HookedFile { disk: self.clone(), path: path.to_owned(), file, access })
    }

    fn shifted(&self, stat: FileStat) -> FileStat {
        FileStat { device: stat.device.wrapping_add(self.quirks.device_shift), ..stat }
    }
}

impl Disk for Hooked {
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(Hooked { disk: self.disk.hold(store)?, ..self.clone() }))
    }

    fn is_intact(&self) -> io::Result<bool> {
        self.disk.is_intact()
    }

    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        scope: ExternalFiles,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        let file = self.around("open_external", path, |disk| disk.open_external(store, path, scope))?;
        Ok(self.file(path, file, Access::ReadForeign))
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        self.disk.recorded_path(store, file)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let operation = if access == Access::Write { "open to write" } else { "open" };
        let file = self.around(operation, path, |disk| disk.open(path, access))?;
        Ok(self.file(path, file, access))
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        let (path, file) = self.around("create_staged", dir, |disk| disk.create_staged(dir))?;
        let file = self.file(&path, file, Access::Write);
        Ok((path, file))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around("rename_new", to, |disk| disk.rename_new(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around("remove", path, |disk| disk.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let before = if self.quirks.lists_slowly { self.disk.list(dir)? } else { Vec::new() };
        let mut listed = self.around("list", dir, |disk| disk.list(dir))?;
        listed.retain(|name| !self.quirks.lists_slowly || before.contains(name));
        Ok(listed)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SyncDirError> {
        self.around("sync_dir", dir, |disk| disk.sync_dir(dir)).map_err(|e| match self.quirks.opens_no_dirs {
            true => SyncDirError::Open(e.into()),
            false => e,
        })
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        self.around("sync_file_system", dir, |disk| disk.sync_file_system(dir))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        Ok(self.shifted(self.around("stat", path, |disk| disk.stat(path))?))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        self.around("is_dir", path, |disk| disk.is_dir(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.around("create_dir", path, |disk| disk.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.around("remove_dir", path, |disk| disk.remove_dir(path))
    }

    fn watch(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        if self.quirks.lacks_watches {
            return Ok(None);
        }
        self.around("watch", dir, |disk| disk.watch(dir))
    }

    fn watch_all(&self, dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        if self.quirks.lacks_watches {
            return Ok(None);
        }
        self.around("watch_all", dir, |disk| disk.watch_all(dir))
    }

    fn lock_holders(&self) -> LockHolders {
        self.disk.lock_holders()
    }

    fn is_network(&self, path: &Path) -> io::Result<bool> {
        Ok(self.quirks.is_network || self.disk.is_network(path)?)
    }

    fn may_be_remote(&self, _: &Path) -> bool {
        // The tests may run on a file system that is not known to be local.
        self.quirks.is_network
    }
}

#[derive(Debug)]
struct HookedFile {
    disk: Hooked,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    access: Access,
}

impl HookedFile {
    fn count(&self, byte_count: usize, field: impl FnOnce(&mut Counts, bool) -> &mut u64) {
        let is_data = self.is_storage() || self.access == Access::ReadForeign;
        *field(&mut self.disk.counts.lock().unwrap(), is_data) += byte_count as u64;
    }

    fn is_storage(&self) -> bool {
        self.path.parent().is_some_and(|dir| dir.ends_with("storages"))
    }

    fn around<T>(&self, operation: &str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.access {
            Access::ReadForeign => act(),
            _ => self.disk.hooked(operation, &self.path, act),
        }
    }
}

impl DiskFile for HookedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.count(buf.len(), |counts, is_data| match is_data {
            true => &mut counts.data_read_bytes,
            false => &mut counts.metadata_read_bytes,
        });
        if let Some((path, bytes)) = &self.disk.unreadable
            && *path == self.path
            && offset_bytes < bytes.end
            && bytes.start < offset_bytes + buf.len() as u64
        {
            return Err(rustix::io::Errno::IO.into());
        }
        self.around("read_exact_at", || self.file.read_exact_at(buf, offset_bytes))
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.count(bytes.len(), |counts, is_data| match is_data {
            true => &mut counts.data_written_bytes,
            false => &mut counts.metadata_written_bytes,
        });
        self.around("write_all_at", || self.file.write_all_at(bytes, offset_bytes))
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<bool> {
        if self.disk.quirks.reserves_nothing {
            return Ok(false);
        }
        self.around("allocate", || self.file.allocate(range))
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.around("set_len", || self.file.set_len(length_bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.around("sync", || match self.access {
            Access::Read if self.disk.quirks.syncs_by_writers => Ok(()),
            _ => self.file.sync(),
        })
    }

    fn stat(&self) -> io::Result<FileStat> {
        let stat = self.around("stat of file", || self.file.stat())?;
        Ok(if self.access == Access::ReadForeign { stat } else { self.disk.shifted(stat) })
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        if self.disk.quirks.has_blind_locks && self.is_storage() {
            return Ok(true);
        }
        self.around("try_lock", || self.file.try_lock(mode))
    }

    fn unlock(&self) -> io::Result<()> {
        self.around("unlock", || self.file.unlock())
    }

    fn try_front(&self, mode: LockMode) -> io::Result<bool> {
        self.around("try_front", || self.file.try_front(mode))
    }

    fn is_front_free(&self, mode: LockMode) -> io::Result<bool> {
        self.around("is_front_free", || self.file.is_front_free(mode))
    }

    fn keeps_locks(&self) -> bool {
        self.file.keeps_locks()
    }

    fn wait_for_front(&self, mode: LockMode) -> io::Result<()> {
        self.file.wait_for_front(mode)
    }

    fn leave_front(&self) -> io::Result<()> {
        self.file.leave_front()
    }

    fn share_blocks_of(&self, source: &File) -> bool {
        let share = || {
            let mut bytes = vec![0; source.metadata()?.len() as usize];
            source.read_exact_at(&mut bytes, 0)?;
            self.file.write_all_at(&bytes, 0)
        };
        self.disk.quirks.shares_blocks && self.around("share_blocks_of", share).is_ok()
    }

    fn lock_holders_among(&self, all: &LockHolders) -> Vec<u32> {
        self.file.lock_holders_among(all)
    }

    fn is_network(&self) -> io::Result<bool> {
        Ok(self.disk.quirks.is_network || self.file.is_network()?)
    }

    fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }
}
