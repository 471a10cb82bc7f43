use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::in_place::InPlaceFile;
use super::lock::{FileLock, Purpose, file_id};
use super::mapping::LockedMapping;
use crate::disk::{Access, DiskFile, LockMode};
use crate::error::{Error, Result};

/// The file of a mutable storage.
#[derive(Debug)]
pub(crate) struct MutableFile {
    in_place: InPlaceFile,
    lock_timeout: Duration,
    /// By [`LockMode`]. Made when first asked for; a lock is what lets anyone see their bytes.
    shared_mapping: OnceLock<LockedMapping>,
    exclusive_mapping: OnceLock<LockedMapping>,
}

/// A mutable storage under a lock: the only way to write it, and to borrow its bytes.
#[derive(Debug)]
pub(crate) struct LockedStorage {
    storage: Arc<MutableFile>,
    lock: FileLock,
    mode: LockMode,
    /// As the lock needs it: for writing when it is exclusive.
    file: Arc<dyn DiskFile>,
}

impl MutableFile {
    pub(super) fn new(in_place: InPlaceFile, lock_timeout: Duration) -> Arc<Self> {
        let (shared_mapping, exclusive_mapping) = (OnceLock::new(), OnceLock::new());
        Arc::new(MutableFile { in_place, lock_timeout, shared_mapping, exclusive_mapping })
    }

    pub(super) fn in_place(&self) -> &InPlaceFile {
        &self.in_place
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// `Busy`; `Forked` in a child of the process that loaded the storage; for an exclusive one `ReadOnly`,
    /// `Replaced` when another file has the name of this one, and `Conflict` when no tensor stands on it any more, so
    /// that what is written would be lost, or the file has several names.
    pub(crate) fn lock(self: &Arc<Self>, mode: LockMode) -> Result<LockedStorage> {
        let InPlaceFile { disk, path, id, file: loaded, .. } = &self.in_place;
        self.in_place.check_process()?;
        // Opened for each lock: a lock is on the open file, and who forked shares those of its parent.
        let file = match mode {
            // To share is to read what was loaded, whatever has become of its name since.
            LockMode::Shared => match disk.open(path, Access::Read) {
                Ok(file) if file.stat().is_ok_and(|stat| file_id(stat) == *id) => file,
                _ => Arc::clone(loaded),
            },
            LockMode::Exclusive => self.in_place.open_to_write()?,
        };
        let lock = FileLock::take(&**disk, &file, *id, Purpose::of(mode), (path, self.lock_timeout))?;
        // What is mapped already would be a fault when touched, were the file shorter by now.
        self.in_place.check_length(&file)?;
        if mode == LockMode::Exclusive {
            self.in_place.check_changeable(&file)?;
        }
        Ok(LockedStorage { storage: Arc::clone(self), lock, mode, file })
    }

    /// The file mapped as a lock of this mode needs it; none where that is not permitted or not possible.
    fn mapping(&self, file: &Arc<dyn DiskFile>, mode: LockMode) -> Result<Option<&LockedMapping>> {
        let cell = match mode {
            LockMode::Shared => &self.shared_mapping,
            LockMode::Exclusive => &self.exclusive_mapping,
        };
        if let Some(mapping) = cell.get() {
            return Ok(Some(mapping));
        }
        let (Some(os_file), Some(permit)) = (file.as_file(), self.in_place.permit) else { return Ok(None) };
        let stat = self.in_place.stat_to_map(file, mode == LockMode::Exclusive)?;
        match LockedMapping::of(os_file, stat, self.in_place.length_bytes, mode, permit) {
            Ok(mapping) => Ok(Some(cell.get_or_init(|| mapping))),
            // Some file systems refuse shared maps; positional reads and writes still serve.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
            Err(e) => Err(self.in_place.error("map storage", e)),
        }
    }
}

impl LockedStorage {
    /// Whether this is the lock of that storage.
    pub(crate) fn is_of(&self, storage: &MutableFile) -> bool {
        self.storage.in_place.is_same(&storage.in_place)
    }

    /// The bytes, where they can be borrowed: the store is mapped.
    pub(crate) fn bytes(&self) -> Result<Option<&[u8]>> {
        self.check_process()?;
        let mapping = self.storage.mapping(&self.file, self.mode)?;
        Ok(mapping.and_then(|mapping| mapping.bytes(&self.lock)))
    }

    /// The bytes to be changed, where they can be borrowed: the store is mapped, and the lock exclusive.
    pub(crate) fn bytes_mut(&mut self) -> Result<Option<&mut [u8]>> {
        self.check_process()?;
        self.storage.in_place.check_poison()?;
        let mapping = self.storage.mapping(&self.file, self.mode)?;
        Ok(mapping.and_then(|mapping| mapping.bytes_mut(&mut self.lock)))
    }

    pub(crate) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.storage.in_place.read_at(buf, offset_bytes)
    }

    pub(crate) fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.check_process()?;
        self.storage.in_place.check_poison()?;
        self.file
            .write_all_at(bytes, offset_bytes)
            .map_err(|e| self.storage.in_place.error("write storage", e))
    }

    /// Makes what was written durable, through a mapping or not: to Linux both are pages of the file.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.check_process()?;
        self.storage.in_place.sync(&[&self.file])
    }

    /// The lock of a process is not that of a child that it forks.
    fn check_process(&self) -> Result<()> {
        if self.lock.is_ours() {
            return Ok(());
        }
        Err(Error::forked(format!("{}: the guard was taken", self.storage.in_place.path.display())))
    }
}
