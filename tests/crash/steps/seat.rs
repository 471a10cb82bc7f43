//! One of several simulated processes on a disk. Other processes can act between its operations.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stridemap::disk::{Access, Disk, DiskFile, ExternalError, ExternalScope, FileStat, LockMode, Watch};

/// Whether an action runs before or after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

type Act = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// An action that runs once, at the first operation with this name on a path with this ending.
struct Trap {
    when: When,
    operation: &'static str,
    ending: &'static str,
    act: Act,
}

/// Optional behaviours of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manners {
    /// Every process gets every lock on a storage, as if other machines' locks were not visible.
    pub(crate) has_blind_locks: bool,
    /// A listing returns only names that exist both before and after it, which is all that POSIX promises.
    pub(crate) lists_slowly: bool,
    /// A read-only descriptor syncs nothing.
    pub(crate) syncs_by_writers: bool,
    /// Files can share blocks.
    pub(crate) shares_blocks: bool,
}

#[derive(Clone)]
pub(crate) struct Seat {
    disk: Arc<dyn Disk>,
    /// Unique to each process of the test. It gives files a different device number for each seat. Otherwise this
    /// process's registry of locks would make the seats exclude each other, which separate processes do not share.
    number: u64,
    manners: Manners,
    traps: Arc<Mutex<Vec<Trap>>>,
    countdown: Arc<Mutex<Option<(u64, Act)>>>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seat {}", self.number)
    }
}

impl Seat {
    pub(crate) fn new(disk: &Arc<dyn Disk>, number: u64) -> Self {
        let (disk, manners) = (Arc::clone(disk), Manners::default());
        Seat { disk, number, manners, traps: Arc::default(), countdown: Arc::default() }
    }

    pub(crate) fn with(mut self, manners: Manners) -> Self {
        self.manners = manners;
        self
    }

    /// Runs an action once, at an operation with this name in the trait, on a path with this ending.
    pub(crate) fn trap(
        &self,
        when: When,
        operation: &'static str,
        ending: &'static str,
        act: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) {
        self.traps.lock().unwrap().push(Trap { when, operation, ending, act: Box::new(act) });
    }

    /// Runs an action once, before the operation with this number.
    pub(crate) fn before_operation(&self, nth: u64, act: impl FnOnce() -> io::Result<()> + Send + 'static) {
        *self.countdown.lock().unwrap() = Some((nth, Box::new(act)));
    }

    /// Returns the number of operations left until the action of `before_operation` runs.
    pub(crate) fn operations_left(&self) -> Option<u64> {
        self.countdown.lock().unwrap().as_ref().map(|(left, _)| *left)
    }

    /// Makes an operation fail once.
    pub(crate) fn fail(&self, operation: &'static str, ending: &'static str) {
        self.trap(When::Before, operation, ending, || Err(io::Error::other("injected fault")));
    }

    /// Returns whether all actions have run.
    pub(crate) fn is_done(&self) -> bool {
        self.traps.lock().unwrap().is_empty() && self.countdown.lock().unwrap().is_none()
    }

    fn fire(&self, when: When, operation: &str, path: &Path) -> io::Result<()> {
        if when == When::Before {
            self.count()?;
        }
        let path = path.to_string_lossy();
        let mut traps = self.traps.lock().unwrap();
        let is_due =
            |trap: &Trap| (trap.when, trap.operation) == (when, operation) && path.ends_with(trap.ending);
        let due = traps.iter().position(is_due).map(|at| traps.remove(at));
        drop(traps);
        due.map_or(Ok(()), |trap| (trap.act)())
    }

    fn count(&self) -> io::Result<()> {
        let mut countdown = self.countdown.lock().unwrap();
        match countdown.take() {
            Some((0, act)) => {
                drop(countdown);
                act()
            }
            Some((left, act)) => {
                *countdown = Some((left - 1, act));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn around<T, E: From<io::Error>>(
        &self,
        operation: &str,
        path: &Path,
        act: impl FnOnce(&dyn Disk) -> Result<T, E>,
    ) -> Result<T, E> {
        self.fire(When::Before, operation, path)?;
        let done = act(&*self.disk)?;
        self.fire(When::After, operation, path)?;
        Ok(done)
    }

    fn file(&self, path: &Path, file: Arc<dyn DiskFile>, access: Access) -> Arc<dyn DiskFile> {
        if access == Access::ReadForeign {
            return file;
        }
        Arc::new(SeatFile { seat: self.clone(), path: path.to_owned(), file, access })
    }

    fn seen(&self, stat: FileStat) -> FileStat {
        FileStat { device: stat.device.wrapping_add(self.number << 40), ..stat }
    }
}

impl Disk for Seat {
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(Seat { disk: self.disk.hold(store)?, ..self.clone() }))
    }

    fn is_intact(&self) -> io::Result<bool> {
        self.disk.is_intact()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let operation = if access == Access::Write { "open to write" } else { "open" };
        let file = self.around(operation, path, |disk| disk.open(path, access))?;
        Ok(self.file(path, file, access))
    }

    fn open_external(
        &self,
        store: &Path,
        path: &Path,
        scope: ExternalScope,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        self.around("open_external", path, |disk| disk.open_external(store, path, scope))
    }

    fn recorded_path(&self, store: &Path, file: &File) -> io::Result<PathBuf> {
        self.disk.recorded_path(store, file)
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
        let before = self.disk.list(dir)?;
        let mut listed = self.around("list", dir, |disk| disk.list(dir))?;
        listed.retain(|name| !self.manners.lists_slowly || before.contains(name));
        Ok(listed)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.around("sync_dir", dir, |disk| disk.sync_dir(dir))
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        self.around("sync_file_system", dir, |disk| disk.sync_file_system(dir))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        Ok(self.seen(self.around("stat", path, |disk| disk.stat(path))?))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        self.disk.is_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.around("create_dir", path, |disk| disk.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.around("remove_dir", path, |disk| disk.remove_dir(path))
    }

    fn watch(&self, _: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        Ok(None)
    }

    fn is_network(&self, path: &Path) -> io::Result<bool> {
        self.disk.is_network(path)
    }
}

#[derive(Debug)]
struct SeatFile {
    seat: Seat,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    access: Access,
}

impl SeatFile {
    fn around<T>(&self, operation: &str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.seat.around(operation, &self.path, |_| act())
    }
}

impl DiskFile for SeatFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.around("read_exact_at", || self.file.read_exact_at(buf, offset_bytes))
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.around("write_all_at", || self.file.write_all_at(bytes, offset_bytes))
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<bool> {
        self.around("allocate", || self.file.allocate(range))
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.around("set_len", || self.file.set_len(length_bytes))
    }

    fn sync(&self) -> io::Result<()> {
        if self.seat.manners.syncs_by_writers && self.access == Access::Read {
            return self.around("sync", || Ok(()));
        }
        self.around("sync", || self.file.sync())
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(self.seat.seen(self.around("stat of file", || self.file.stat())?))
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        let is_storage = self.path.parent().is_some_and(|dir| dir.ends_with("storages"));
        if self.seat.manners.has_blind_locks && is_storage {
            return Ok(true);
        }
        self.around("try_lock", || self.file.try_lock(mode))
    }

    fn unlock(&self) -> io::Result<()> {
        self.around("unlock", || self.file.unlock())
    }

    fn share_blocks_of(&self, source: &File) -> bool {
        let share = || {
            let mut bytes = vec![0; source.metadata()?.len() as usize];
            source.read_exact_at(&mut bytes, 0)?;
            self.file.write_all_at(&bytes, 0)
        };
        self.seat.manners.shares_blocks && self.around("share_blocks_of", share).is_ok()
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
