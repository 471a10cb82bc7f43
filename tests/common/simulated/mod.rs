//! A disk in memory that can lose power.
//!
//! It keeps two states, the one that a running system sees and the one that a power cut would leave, and logs every
//! operation. At any moment a [`PowerCut`] lists the unsynced changes that may survive: each block of a file in any
//! version since its last sync, each length, and each name change, independently of all others. Any part of the log
//! can be replayed, modified or not.
//!
//! It assumes that on a real disk a sync does what it promises, that a block is written whole or not at all, and that
//! a rename within a directory is one change, unless the disk was created
//! [otherwise](SimulatedDisk::with_split_renames).

mod cut;
mod file;
mod op;
mod state;
mod world;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use cut::{Outcome, PowerCut, Survivors};
pub(crate) use op::Op;
use state::{Fault, State};
use stridemap::disk::{
    Access, Disk, DiskFile, ExternalError, ExternalFiles, FileStat, LockMode, OpenDirs, RealDisk,
    STAGE_PREFIX, SyncDirError, Watch,
};
use world::{Inode, ROOT, World};

/// The number of bytes that a disk writes at once: a sector. A page of memory is eight sectors, so every outcome that
/// whole pages can have is possible here too.
pub(crate) const BLOCK_BYTES: usize = 512;

/// A disk in memory, shared by its clones.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    /// The open directories of a store, if this handle is limited to one.
    store_dirs: Option<Arc<OpenDirs<Inode>>>,
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::with_block_bytes(BLOCK_BYTES)
    }
}

impl SimulatedDisk {
    /// Creates an empty disk.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Creates an empty disk that writes `block_bytes` bytes at once.
    #[must_use]
    pub(crate) fn with_block_bytes(block_bytes: usize) -> Self {
        Self::of(World::new(block_bytes.max(1)))
    }

    fn of(world: World) -> Self {
        SimulatedDisk { state: Arc::new(Mutex::new(State::of(world))), store_dirs: None }
    }

    /// Makes a rename two changes: the file's new name, and the removal of its old one. A power cut may keep only one
    /// of them. This is weaker than what ext4, XFS and btrfs guarantee.
    #[must_use]
    pub(crate) fn with_split_renames(self) -> Self {
        self.state().splits_renames = true;
        self
    }

    /// Stops logging operations.
    #[must_use]
    pub(crate) fn without_log(self) -> Self {
        self.state().log = None;
        self
    }

    /// Makes a directory a separate file system, until a power cut.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn mount(&self, dir: &Path) -> io::Result<()> {
        let dir = self.directory(dir)?;
        self.state().mounts.push(dir);
        Ok(())
    }

    /// Returns every operation on the disk, in order.
    #[must_use]
    pub(crate) fn log(&self) -> Vec<Op> {
        self.state().log.clone().unwrap_or_default()
    }

    /// Returns the number of operations that have changed or synced something, with or without a log.
    #[must_use]
    pub(crate) fn op_count(&self) -> u64 {
        self.state().op_count
    }

    /// Returns the number of times that everything became durable.
    #[must_use]
    pub(crate) fn file_system_syncs(&self) -> u64 {
        self.state().file_system_syncs
    }

    /// Adds a mark to the log.
    pub(crate) fn mark(&self, mark: &str) {
        if let Some(log) = &mut self.state().log {
            log.push(Op::Mark(mark.to_owned()));
        }
    }

    /// Makes the next operation that `is_due` selects fail without any effect.
    pub(crate) fn fail(&self, is_due: impl Fn(&Op) -> bool + Send + 'static) {
        self.state().fault = Some(Fault(Box::new(is_due)));
    }

    /// Cuts the power after `op_count` more operations. Every later operation fails, even a read.
    pub(crate) fn lose_power_after(&self, op_count: u64) {
        self.state().power = Some(op_count);
    }

    /// Whether the power is off.
    #[must_use]
    pub(crate) fn is_off(&self) -> bool {
        self.state().power == Some(0)
    }

    /// Returns the state of the disk just before a power cut.
    #[must_use]
    pub(crate) fn power_cut(&self) -> PowerCut {
        PowerCut { world: self.state().world.clone() }
    }

    /// Returns the disk after these operations and a power cut.
    #[must_use]
    pub(crate) fn after_power_cut(ops: &[Op], outcome: Outcome) -> Self {
        let mut cut = Self::new().power_cut();
        ops.iter().for_each(|op| cut.apply(op));
        cut.disk(&cut.simple(outcome))
    }

    /// Returns the number of name changes that would be pending after these operations.
    #[must_use]
    pub(crate) fn pending_names(ops: &[Op]) -> usize {
        let mut cut = Self::new().power_cut();
        ops.iter().for_each(|op| cut.apply(op));
        cut.pending_names()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, inode: Inode) -> Arc<dyn DiskFile> {
        let number = self.state().take_number();
        Arc::new(SimulatedFile { disk: self.clone(), inode, number })
    }

    /// Returns the directory where a path starts, and the rest of the path.
    fn entry<'a>(&'a self, path: &'a Path) -> io::Result<(Inode, &'a Path)> {
        let Some(store_dirs) = &self.store_dirs else { return Ok((ROOT, path)) };
        let place = store_dirs.entry(path, |&dir, name| self.find_dir(dir, name))?;
        Ok((*place.dir, place.name))
    }

    fn directory(&self, path: &Path) -> io::Result<Inode> {
        let Some(store_dirs) = &self.store_dirs else { return self.state().find((ROOT, path)) };
        let place = store_dirs.directory(path, |&dir, name| self.find_dir(dir, name))?;
        self.state().find((*place.dir, place.name))
    }

    fn find_dir(&self, dir: Inode, name: &str) -> io::Result<Inode> {
        let state = self.state();
        let found = state.find((dir, Path::new(name)))?;
        state.names(found).map(|_| found)
    }
}

impl Disk for SimulatedDisk {
    fn hold(&self, store: &Path) -> io::Result<Arc<dyn Disk>> {
        let root = self.directory(store)?;
        self.state().names(root)?;
        let store_dirs = OpenDirs::new(store, root, |&dir, name| self.find_dir(dir, name))?;
        Ok(Arc::new(SimulatedDisk { state: Arc::clone(&self.state), store_dirs: Some(Arc::new(store_dirs)) }))
    }

    fn is_intact(&self) -> io::Result<bool> {
        let Some(store_dirs) = &self.store_dirs else { return Ok(true) };
        let (&root, mut subdirs) = store_dirs.commit_dirs();
        let state = self.state();
        Ok(subdirs.all(|(name, &dir)| state.find((root, Path::new(name))).is_ok_and(|named| named == dir)))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        if access == Access::ReadForeign {
            return RealDisk::default().open(path, access);
        }
        let inode = self.state().find(self.entry(path)?)?;
        Ok(self.handle(inode))
    }

    /// Opens absolute paths only, because the stores of this disk are not in a real directory.
    fn open_external(
        &self,
        _: &Path,
        path: &Path,
        _: ExternalFiles,
    ) -> Result<Arc<dyn DiskFile>, ExternalError> {
        Ok(RealDisk::default().open(path, Access::ReadForeign)?)
    }

    fn recorded_path(&self, _: &Path, file: &File) -> io::Result<PathBuf> {
        RealDisk::default().recorded_path(Path::new("/proc/self"), file)
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        let number = self.state().take_number();
        let path = dir.join(format!("{STAGE_PREFIX}{number}"));
        let entry = self.entry(&path)?;
        let inode = self.state().create(entry, Op::CreateFile)?;
        let file = self.handle(inode);
        file.try_lock(LockMode::Exclusive)?;
        Ok((path, file))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.entry(from)?, self.entry(to)?);
        let mut state = self.state();
        if state.find(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let entry = self.entry(path)?;
        let mut state = self.state();
        let found = state.find(entry)?;
        if state.names(found).is_ok() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (dir, name) = state.place(entry)?;
        state.perform(Op::Names { dir, changes: vec![(name, None)] })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inode = self.directory(dir)?;
        let state = self.state();
        state.check_power()?;
        Ok(state.names(inode)?.keys().cloned().collect())
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SyncDirError> {
        let inode = self.directory(dir).map_err(SyncDirError::Open)?;
        Ok(self.state().perform(Op::SyncDir(inode))?)
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        let dir = self.directory(dir)?;
        let mut state = self.state();
        let mount = state.mount_of(dir);
        state.sync_mount(mount)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let entry = self.entry(path)?;
        let state = self.state();
        Ok(state.stat(state.find(entry)?))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        let entry = self.entry(path)?;
        let state = self.state();
        Ok(state.names(state.find(entry)?).is_ok())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let entry = self.entry(path)?;
        self.state().create(entry, Op::CreateDir).map(drop)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let entry = self.entry(path)?;
        let mut state = self.state();
        if !state.names(state.find(entry)?)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let (dir, name) = state.place(entry)?;
        state.perform(Op::Names { dir, changes: vec![(name, None)] })
    }

    fn watch(&self, _dir: &Path) -> io::Result<Option<Box<dyn Watch>>> {
        Ok(None)
    }

    fn is_network(&self, _path: &Path) -> io::Result<bool> {
        Ok(false)
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    inode: Inode,
    /// Identifies a lock holder.
    number: u64,
}

impl DiskFile for SimulatedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let state = self.disk.state();
        state.check_power()?;
        let file = state.world.files.get(&self.inode);
        file.map_or(Err(io::ErrorKind::UnexpectedEof.into()), |file| file.read(buf, offset_bytes))
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.disk.state().perform(Op::Write { file: self.inode, offset_bytes, bytes: bytes.into() })
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<bool> {
        if self.stat()?.size_bytes < range.end {
            self.set_len(range.end)?;
        }
        Ok(true)
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.disk.state().perform(Op::SetLen { file: self.inode, length_bytes })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.state().perform(Op::Sync(self.inode))
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(self.disk.state().stat(self.inode))
    }

    fn try_lock(&self, mode: LockMode) -> io::Result<bool> {
        let mut state = self.disk.state();
        let holders = state.locks.entry(self.inode).or_default();
        let is_exclusive = mode == LockMode::Exclusive;
        let blocks =
            |&(number, exclusive): &(u64, bool)| number != self.number && (exclusive || is_exclusive);
        if holders.iter().any(blocks) {
            return Ok(false);
        }
        holders.retain(|&(number, _)| number != self.number);
        holders.insert((self.number, is_exclusive));
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        if let Some(holders) = self.disk.state().locks.get_mut(&self.inode) {
            holders.retain(|&(number, _)| number != self.number);
        }
        Ok(())
    }

    fn is_network(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn as_file(&self) -> Option<&File> {
        None
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let _ = self.unlock();
    }
}
