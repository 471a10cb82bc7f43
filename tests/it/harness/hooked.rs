//! The real disk, with actions before or after its operations.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap::disk::{
    Access, Disk, DiskFile, ExternalError, ExternalScope, FileStat, LockHolders, LockMode, RealDisk, Watch,
};

/// Called with the name of the operation in the trait, and the path. For an operation on a file, this is the file's
/// path.
pub(crate) type Hook = Arc<dyn Fn(&str, &Path) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Hooked {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) before: Hook,
    pub(crate) after: Hook,
    pub(crate) is_network: bool,
    pub(crate) has_watches: bool,
    /// Whether a listing returns only names that exist both before and after its hook, which is all that POSIX
    /// promises.
    pub(crate) lists_slowly: bool,
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
            is_network: false,
            has_watches: true,
            lists_slowly: false,
        }
    }
}

impl Hooked {
    /// Runs the hook before each operation. If it returns an error, the operation fails with it.
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

    fn around<T>(
        &self,
        operation: &str,
        path: &Path,
        act: impl FnOnce(&dyn Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        (self.before)(operation, path)?;
        let done = act(&*self.disk)?;
        (self.after)(operation, path)?;
        Ok(done)
    }

    fn file(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(HookedFile { disk: self.clone(), path: path.to_owned(), file })
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
        scope: ExternalScope,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        self.disk.open_external(store, path, scope)
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        self.disk.recorded_path(store, file)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.around("open", path, |disk| disk.open(path, access))?;
        Ok(self.file(path, file))
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        let (path, file) = self.around("create_staged", dir, |disk| disk.create_staged(dir))?;
        let file = self.file(&path, file);
        Ok((path, file))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around("rename_new", to, |disk| disk.rename_new(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around("remove", path, |disk| disk.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let before = if self.lists_slowly { self.disk.list(dir)? } else { Vec::new() };
        let mut listed = self.around("list", dir, |disk| disk.list(dir))?;
        listed.retain(|name| !self.lists_slowly || before.contains(name));
        Ok(listed)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.around("sync_dir", dir, |disk| disk.sync_dir(dir))
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        self.around("sync_file_system", dir, |disk| disk.sync_file_system(dir))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.around("stat", path, |disk| disk.stat(path))
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
        if !self.has_watches {
            return Ok(None);
        }
        self.around("watch", dir, |disk| disk.watch(dir))
    }

    fn lock_holders(&self) -> LockHolders {
        self.disk.lock_holders()
    }

    fn is_network(&self, _: &Path) -> io::Result<bool> {
        Ok(self.is_network)
    }
}

#[derive(Debug)]
struct HookedFile {
    disk: Hooked,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for HookedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.disk.around("read_exact_at", &self.path, |_| self.file.read_exact_at(buf, offset_bytes))
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.disk.around("write_all_at", &self.path, |_| self.file.write_all_at(bytes, offset_bytes))
    }

    fn allocate(&self, range: std::ops::Range<u64>) -> io::Result<bool> {
        self.disk.around("allocate", &self.path, |_| self.file.allocate(range))
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.disk.around("set_len", &self.path, |_| self.file.set_len(length_bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.around("sync", &self.path, |_| self.file.sync())
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.disk.around("stat", &self.path, |_| self.file.stat())
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        self.disk.around("try_lock", &self.path, |_| self.file.try_lock(mode))
    }

    fn unlock(&self) -> io::Result<()> {
        self.disk.around("unlock", &self.path, |_| self.file.unlock())
    }

    fn try_front(&self, mode: LockMode) -> io::Result<bool> {
        self.disk.around("try_front", &self.path, |_| self.file.try_front(mode))
    }

    fn wait_for_front(&self, mode: LockMode) -> io::Result<()> {
        self.file.wait_for_front(mode)
    }

    fn leave_front(&self) -> io::Result<()> {
        self.file.leave_front()
    }

    fn lock_holders(&self) -> Vec<u32> {
        self.file.lock_holders()
    }

    fn is_network(&self) -> io::Result<bool> {
        Ok(self.disk.is_network)
    }

    fn as_file(&self) -> Option<&File> {
        self.file.as_file()
    }
}

/// Kills this process from a hook, as a crash would.
pub(crate) fn die() -> ! {
    // SAFETY: a process may kill itself. Nothing that it owns is used afterwards.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
    unreachable!("killed");
}
