//! The files of storages that are changed in place.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use stridemap_format::{StorageRecord, Uuid};

use super::poison::Poison;
use crate::disk::{
    Access, Disk, DiskFile, FileId, FileStat, FileSystem, ForkCheck, OwnerProcess, if_test_omits_step,
    is_written_in_place, needs_new_blocks, step, unshare,
};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::storage::lock::lock_wait::LockWait;
use crate::storage::map::mapping::MapPermit;
use crate::storage::open_file::{check_length, other_names_error};

/// The storages that this process failed to flush, by file, store and id in the store, with their errors: inodes are
/// reused, ids are not. The kernel has marked their pages clean, so a handle that loads such a storage again must also get
/// the error.
static FAILED_TO_SYNC: LazyLock<Mutex<FailedSyncs>> = LazyLock::new(Mutex::default);

type FailedSyncs = HashMap<(FileId, Uuid, u64), Error>;

/// The file of a storage that is changed in place: the common part of mutable and live storages.
#[derive(Debug)]
pub(crate) struct InPlaceFile {
    pub(in crate::storage) disk: Arc<dyn Disk>,
    pub(in crate::storage) path: PathBuf,
    /// Used to read, and to detect writeback failures: the kernel reports a failure only to files that were open when
    /// it happened.
    pub(in crate::storage) file: Arc<dyn DiskFile>,
    pub(in crate::storage) id: FileId,
    /// Created before `file` was opened.
    pub(in crate::storage) forks: ForkCheck,
    /// The store, and the storage's id in it.
    identity: (Uuid, u64),
    /// The process that loaded the storage.
    owner: OwnerProcess,
    pub(in crate::storage) length_bytes: u64,
    /// How many bytes of the file belong to the storage.
    file_bytes: u64,
    pub(in crate::storage) context: InPlaceContext,
    /// Locked during a flush: if several threads sync an open file, the kernel reports a failure to only one of them.
    flushing: Mutex<()>,
    pub(in crate::storage) permit: Option<MapPermit>,
    file_system: FileSystem,
    /// Set once all blocks of the file are allocated, on a file system that writes in place.
    is_allocated: OnceLock<()>,
}

/// Explains why elements cannot be borrowed mutably, and what to do.
pub(crate) const MAY_NEED_BLOCKS: &str = "the file system may write a change to new blocks, and if the disk is full, such a \
    change would end the process; keep the store on a different file system, or, on btrfs from Linux 6.17 on, \
    use save_as, which makes a file that is changed in place";

/// What a storage that is changed in place uses of the handle that loaded it.
pub(crate) struct InPlaceContext {
    /// How long to wait for the lock of the storage.
    pub(crate) lock_wait: LockWait,
    pub(crate) poison: Poison,
    /// Whether a tensor of the newest generation is backed by the storage.
    pub(crate) is_referenced: Box<dyn Fn() -> Result<bool> + Send + Sync>,
    /// Syncs the name of the manifest that contains the storage, if that is not done yet.
    pub(crate) make_durable: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl InPlaceContext {
    /// Returns what a storage uses that is only read.
    pub(crate) fn of_a_reader(lock_wait: LockWait, poison: Poison) -> Self {
        InPlaceContext {
            lock_wait,
            poison,
            is_referenced: Box::new(|| Ok(true)),
            make_durable: Box::new(|| Ok(())),
        }
    }
}

impl fmt::Debug for InPlaceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlaceContext").field("poison", &self.poison).finish_non_exhaustive()
    }
}

/// The open file of a storage.
pub(in crate::storage) struct Opened<'a> {
    pub(in crate::storage) forks: ForkCheck,
    pub(in crate::storage) path: &'a Path,
    pub(in crate::storage) file: Arc<dyn DiskFile>,
    pub(in crate::storage) stat: FileStat,
}

impl InPlaceFile {
    pub(in crate::storage) fn new(
        disk: &Arc<dyn Disk>,
        Opened { forks, path, file, stat }: Opened<'_>,
        identity: (Uuid, u64),
        record: &StorageRecord,
        context: InPlaceContext,
        permit: Option<MapPermit>,
    ) -> Self {
        let os_file = file.as_file().filter(|_| permit.is_some());
        // A file system that cannot be determined may need new blocks.
        let of = |file| FileSystem::of(file).unwrap_or(FileSystem::CopyOnWrite);
        InPlaceFile {
            file_system: os_file.map_or(FileSystem::InPlace, of),
            is_allocated: OnceLock::new(),
            disk: Arc::clone(disk),
            path: path.to_path_buf(),
            file,
            id: stat.id(),
            forks,
            identity,
            owner: OwnerProcess::current(),
            length_bytes: record.length_bytes,
            file_bytes: record.file_bytes(),
            context,
            flushing: Mutex::new(()),
            permit,
        }
    }

    /// Whether `stat` is of the storage's file.
    fn is_same_file(&self, stat: FileStat) -> bool {
        stat.id() == self.id
    }

    /// Whether both are the same storage.
    pub(in crate::storage) fn is_same(&self, other: &InPlaceFile) -> bool {
        self.id == other.id && self.length_bytes == other.length_bytes
    }

    /// Checks that the handle can still write.
    ///
    /// # Errors
    /// `Poisoned` once a sync of the handle that loaded the storage has failed.
    pub(in crate::storage) fn check_poison(&self) -> Result<()> {
        self.context.poison.check()
    }

    /// Checks that this is the process that loaded the storage.
    ///
    /// # Errors
    /// `Stale` in a forked child of the process that loaded the storage.
    pub(in crate::storage) fn check_process(&self) -> Result<()> {
        self.owner.check(|| format!("{}: the tensor was loaded", self.path.display()))
    }

    pub(in crate::storage) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset_bytes).doing("read storage", &self.path)
    }

    /// Opens the file at the storage's path for writing.
    ///
    /// # Errors
    /// `Poisoned`; `ReadOnly`; `Conflict` if no file has that path.
    pub(in crate::storage) fn open_to_write(&self) -> Result<Arc<dyn DiskFile>> {
        self.check_poison()?;
        match self.disk.open(&self.path, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(self.unreferenced_error()),
            opened => opened.map_err(|e| Error::at_first_write("open storage for writing", &self.path, e)),
        }
    }

    /// Opens the file that was loaded, if it still has its name.
    pub(in crate::storage) fn open_same(&self) -> Option<Arc<dyn DiskFile>> {
        let file = self.disk.open(&self.path, Access::Read).ok()?;
        file.stat().is_ok_and(|stat| stat.id() == self.id).then_some(file)
    }

    /// Checks that writes to this file, which was opened by its name, change only the storage that was loaded, and are not
    /// lost.
    ///
    /// # Errors
    /// `Stale` if the name of the loaded file now belongs to a different file; `Conflict` if the file has several
    /// names, or if no tensor of the newest generation is backed by the storage.
    pub(in crate::storage) fn check_changeable(&self, file: &Arc<dyn DiskFile>) -> Result<()> {
        self.check_stat(file.stat())
    }

    /// Like [`check_changeable`](Self::check_changeable), for a file that was open before: the name may be gone since, or be
    /// that of a different file.
    pub(in crate::storage) fn check_still_changeable(&self) -> Result<()> {
        match self.disk.stat(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(self.unreferenced_error()),
            stat => self.check_stat(stat),
        }
    }

    fn check_stat(&self, stat: io::Result<FileStat>) -> Result<()> {
        let stat = stat.doing("examine storage", &self.path)?;
        if !step!("in-place-is-same", self.is_same_file(stat)) {
            let message = format!(
                "{}: the file was replaced since the tensor was loaded; load it again",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Stale, message));
        }
        if stat.link_count == 0 {
            return Err(self.unreferenced_error());
        }
        let has_one_name = step!("in-place-has-one-name", stat.link_count == 1);
        if !has_one_name {
            return Err(other_names_error(&self.path, stat.link_count));
        }
        // Readers of an older generation may keep the file after the last tensor on it was removed.
        let is_in_use = step!("in-place-is-in-use", (self.context.is_referenced)()?);
        if is_in_use { Ok(()) } else { Err(self.unreferenced_error()) }
    }

    /// Checks that an open file is at least as long as the record states, if it is the file that was loaded.
    ///
    /// # Errors
    /// `Corrupt`; `Io`.
    pub(in crate::storage) fn check_length(&self, file: &Arc<dyn DiskFile>) -> Result<()> {
        let stat = file.stat().doing("examine storage", &self.path)?;
        if !self.is_same_file(stat) {
            return Ok(());
        }
        step!("in-place-is-whole", check_length(&self.path, stat.size_bytes, self.file_bytes))
    }

    /// Returns the metadata of a file that is about to be mapped.
    ///
    /// # Errors
    /// `Corrupt` if it is shorter than the record states; `Io`.
    pub(in crate::storage) fn stat_to_map(&self, file: &Arc<dyn DiskFile>) -> Result<FileStat> {
        let stat = file.stat().doing("map storage", &self.path)?;
        check_length(&self.path, stat.size_bytes, self.file_bytes)?;
        Ok(stat)
    }

    /// Allocates all blocks of the file, because a write through a mapping that finds the disk full ends the process.
    /// Returns false if the file system may still need new blocks for a write.
    ///
    /// # Errors
    /// `Io`, for example if the disk is full.
    pub(in crate::storage) fn allocate_blocks(&self, file: &Arc<dyn DiskFile>) -> Result<bool> {
        let all = 0..self.file_bytes;
        if all.is_empty() || self.is_allocated.get().is_some() {
            return Ok(true);
        }
        // A copied file may have holes.
        let allocate = || file.allocate(all.clone()).doing("allocate storage", &self.path);
        let needs_new =
            |os_file| needs_new_blocks(os_file, self.file_bytes).doing("allocate storage", &self.path);
        match (self.file_system, file.as_file()) {
            (_, None) => allocate(),
            (FileSystem::InPlace, Some(os_file)) => {
                let has_room = allocate()? || !needs_new(os_file)?;
                if has_room {
                    self.is_allocated.get_or_init(|| ());
                }
                Ok(has_room)
            }
            (FileSystem::Sharing | FileSystem::Overlay, Some(os_file)) => {
                // On a full disk, XFS refuses to allocate blocks that are already allocated.
                if !needs_new(os_file)? {
                    return Ok(true);
                }
                unshare(os_file, &all).doing("allocate storage", &self.path)?;
                // The file system below an overlay may not report the blocks of a file.
                let has_room = allocate()?;
                Ok(has_room && self.file_system == FileSystem::Overlay || !needs_new(os_file)?)
            }
            (FileSystem::CopyOnWriteUnlessMarked, Some(os_file))
                if is_written_in_place(os_file).doing("allocate storage", &self.path)? =>
            {
                if needs_new(os_file)? {
                    allocate()?;
                    return Ok(!needs_new(os_file)?);
                }
                Ok(true)
            }
            (FileSystem::CopyOnWriteUnlessMarked | FileSystem::CopyOnWrite, _) => Ok(false),
        }
    }

    /// Whether opening the file for writing may copy it, so that earlier mappings still map the old file.
    pub(in crate::storage) fn is_on_overlay(&self) -> bool {
        self.file_system == FileSystem::Overlay
    }

    /// Makes all writes durable. On Linux, writes through a mapping and positional writes change the same pages, so a
    /// sync covers both.
    ///
    /// # Errors
    /// `Io`; `Poisoned` if an earlier flush of the storage in this process, or a sync of the handle that loaded it,
    /// has failed. The message contains that failure.
    pub(in crate::storage) fn sync(&self, files: &[&Arc<dyn DiskFile>]) -> Result<()> {
        let (store, id) = self.identity;
        let key = (self.id, store, id);
        let failed = || FAILED_TO_SYNC.lock().unwrap_or_else(PoisonError::into_inner);
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if_test_omits_step!("flush-alone", drop(_alone));
        let first = failed().get(&key).cloned();
        if_test_omits_step!("flush-once", first = None);
        if let Some(first) = first {
            let message = format!(
                "{}: an earlier flush failed, and writes before it may be lost, even if a later flush succeeds; \
                 save the elements under a new name, from their source; the first failure was: {first}",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Poisoned, message).caused_by(&first));
        }
        self.check_poison()?;
        // The kernel reports a failure once to each file that was open at that time. A file that was opened later
        // gets no report, but the file that was opened at load does.
        let synced = files
            .iter()
            .try_for_each(|file| step!("sync-in-place", file.sync()))
            .and_then(|()| step!("sync-loaded", self.file.sync()));
        synced.doing("flush storage", &self.path).inspect_err(|e| {
            failed().insert(key, e.clone());
            self.context.poison.set(e);
        })?;
        let settled = (self.context.make_durable)();
        settled.inspect_err(|e| {
            if e.is_failed_sync() {
                self.context.poison.set(e);
            }
        })
    }

    fn unreferenced_error(&self) -> Error {
        let message = format!(
            "{}: no tensor of the newest generation is backed by the storage, so it cannot be changed; \
             restore one of its tensors, or save the elements under a new name",
            self.path.display()
        );
        Error::new(ErrorKind::Conflict, message)
    }
}
