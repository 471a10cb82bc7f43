use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use stridemap_format::{Rule, Uuid};

use super::lock::{FileId, FileLock, file_id};
use super::mapping::{LockedMapping, MapPermit};
use crate::disk::{Access, Disk, DiskFile, FileStat, LockMode};
use crate::error::{Error, ErrorKind, Result};

/// A storage of a store on a file: ids are given once, and numbers of files again.
type StorageKey = (FileId, Uuid, u64);

/// What this process failed to flush. Who loads the storage again gets the same pages, called clean.
static FAILED_TO_SYNC: LazyLock<Mutex<HashSet<StorageKey>>> = LazyLock::new(Mutex::default);

/// The file of a mutable storage.
#[derive(Debug)]
pub(crate) struct MutableFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// For reading; and for the failures to write back that the kernel has had since it was opened.
    file: Arc<dyn DiskFile>,
    id: FileId,
    /// The store, and the storage's id in it.
    identity: (Uuid, u64),
    /// Which process loaded it: a forked child shares the open file, and with it the locks on it.
    process: u32,
    length_bytes: u64,
    in_use: InUse,
    lock_timeout: Duration,
    permit: Option<MapPermit>,
    /// By [`LockMode`]. Made when first asked for; a lock is what lets anyone see their bytes.
    shared_mapping: OnceLock<LockedMapping>,
    exclusive_mapping: OnceLock<LockedMapping>,
}

/// Asks whether a tensor of the newest generation stands on a storage.
#[derive(Clone)]
pub(crate) struct InUse(pub(crate) Arc<dyn Fn() -> Result<bool> + Send + Sync>);

impl fmt::Debug for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InUse")
    }
}

/// A mutable storage under a lock: the only way to write it, and to borrow its bytes.
#[derive(Debug)]
pub(crate) struct LockedStorage {
    storage: Arc<MutableFile>,
    lock: FileLock,
    /// As the lock needs it: for writing when it is exclusive.
    file: Arc<dyn DiskFile>,
}

impl MutableFile {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        (path, file, stat): (&Path, Arc<dyn DiskFile>, FileStat),
        identity: (Uuid, u64),
        length_bytes: u64,
        in_use: InUse,
        permit: Option<MapPermit>,
        lock_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(MutableFile {
            disk: Arc::clone(disk),
            path: path.to_path_buf(),
            file,
            id: file_id(stat),
            identity,
            process: std::process::id(),
            length_bytes,
            in_use,
            lock_timeout,
            permit,
            shared_mapping: OnceLock::new(),
            exclusive_mapping: OnceLock::new(),
        })
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// `Busy`, at once in a forked child of the process that loaded the storage; for an exclusive one `ReadOnly`,
    /// `LockReplaced` when another file has the name of this one, and `Conflict` when no tensor stands on it any more, so
    /// that what is written would be lost, or the file has several names.
    pub(crate) fn lock(self: &Arc<Self>, mode: LockMode) -> Result<LockedStorage> {
        if self.process != std::process::id() {
            let message = format!(
                "{}: loaded by the process that this one was forked from; open the store again",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        // Opened for each lock: a lock is on the open file, and who forked shares those of its parent.
        let file = match mode {
            // To share is to read what was loaded, whatever has become of its name since.
            LockMode::Shared => match self.disk.open(&self.path, Access::Read) {
                Ok(file) if file.stat().is_ok_and(|stat| file_id(stat) == self.id) => file,
                _ => Arc::clone(&self.file),
            },
            LockMode::Exclusive => match self.disk.open(&self.path, Access::Write) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(self.nameless()),
                opened => opened.map_err(|e| Error::denied("open storage for writing", &self.path, e))?,
            },
        };
        let lock = FileLock::take(&file, self.id, mode, &self.path, self.lock_timeout)?;
        if mode == LockMode::Exclusive {
            let stat = file.stat().map_err(|e| self.error("lock storage", e))?;
            if file_id(stat) != self.id {
                let message = format!(
                    "{}: the file was replaced since the tensor was loaded; load it again",
                    self.path.display()
                );
                return Err(Error::new(ErrorKind::LockReplaced, message));
            }
            match stat.link_count {
                0 => return Err(self.nameless()),
                1 => {}
                names => {
                    let message = format!(
                        "{}: the file has {names} names (hard links), and what stands under the others would change \
                         too; give the store a copy of its own",
                        self.path.display()
                    );
                    return Err(Error::new(ErrorKind::Conflict, message));
                }
            }
            // Readers of an older generation may keep the file for longer than its last name.
            if !(self.in_use.0)()? {
                return Err(self.nameless());
            }
        }
        Ok(LockedStorage { storage: Arc::clone(self), lock, file })
    }

    /// Whether a file of this stat is the storage's.
    pub(crate) fn is_file(&self, stat: FileStat) -> bool {
        file_id(stat) == self.id
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset_bytes).map_err(|e| self.error("read storage", e))
    }

    fn nameless(&self) -> Error {
        let message = format!(
            "{}: no tensor stands on the storage any more, and what is written now would be lost; save the elements \
             under a new name",
            self.path.display()
        );
        Error::new(ErrorKind::Conflict, message)
    }

    fn error(&self, action: &str, e: io::Error) -> Error {
        Error::io(action, &self.path, e)
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
        let (Some(os_file), Some(permit)) = (file.as_file(), self.permit) else { return Ok(None) };
        let stat = file.stat().map_err(|e| self.error("map storage", e))?;
        if stat.size_bytes < self.length_bytes {
            let detail = format!("{} bytes, where the record says {}", stat.size_bytes, self.length_bytes);
            return Err(Error::corrupt(&self.path, stridemap_format::Error::new(Rule::StorageFile, detail)));
        }
        if mode == LockMode::Exclusive && self.length_bytes > 0 {
            // A hole that somebody made by copying would be filled on the first write: a full disk is an error now.
            file.allocate(self.length_bytes).map_err(|e| self.error("allocate storage", e))?;
        }
        match LockedMapping::of(os_file, stat, self.length_bytes, mode, permit) {
            Ok(mapping) => Ok(Some(cell.get_or_init(|| mapping))),
            // Some file systems refuse shared maps; positional reads and writes still serve.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
            Err(e) => Err(self.error("map storage", e)),
        }
    }
}

impl LockedStorage {
    /// Whether this is the lock of that storage.
    pub(crate) fn is_of(&self, storage: &MutableFile) -> bool {
        self.storage.id == storage.id && self.storage.length_bytes == storage.length_bytes
    }

    /// The bytes, where they can be borrowed: the store is mapped.
    pub(crate) fn bytes(&self) -> Result<Option<&[u8]>> {
        self.check_process()?;
        let mapping = self.storage.mapping(&self.file, self.lock.mode())?;
        Ok(mapping.and_then(|mapping| mapping.bytes(&self.lock)))
    }

    /// The bytes to be changed, where they can be borrowed: the store is mapped, and the lock exclusive.
    pub(crate) fn bytes_mut(&mut self) -> Result<Option<&mut [u8]>> {
        self.check_process()?;
        let mapping = self.storage.mapping(&self.file, self.lock.mode())?;
        Ok(mapping.and_then(|mapping| mapping.bytes_mut(&mut self.lock)))
    }

    pub(crate) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.storage.read_at(buf, offset_bytes)
    }

    pub(crate) fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.check_process()?;
        self.file.write_all_at(bytes, offset_bytes).map_err(|e| self.storage.error("write storage", e))
    }

    /// Makes what was written durable, through a mapping or not: to Linux both are pages of the file.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.check_process()?;
        let (store, id) = self.storage.identity;
        let key = (self.storage.id, store, id);
        if FAILED_TO_SYNC.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            let message = format!(
                "{}: an earlier flush failed, and what was written before it may be lost, whatever another one says; \
                 save the elements under a new name, from their source",
                self.storage.path.display()
            );
            return Err(Error::new(ErrorKind::Poisoned, message));
        }
        // The kernel tells each open file of a failure once, if it was open by then: the one that was just opened knows
        // nothing of what was written back, and lost, before.
        let synced = self.file.sync().and_then(|()| self.storage.file.sync());
        synced.map_err(|e| {
            FAILED_TO_SYNC.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
            self.storage.error("flush storage", e)
        })
    }

    /// The lock of a process is not that of a child that it forks.
    fn check_process(&self) -> Result<()> {
        if self.lock.is_ours() {
            return Ok(());
        }
        let message = format!(
            "{}: the guard belongs to the process that this one was forked from; open the store again",
            self.storage.path.display()
        );
        Err(Error::new(ErrorKind::Busy, message))
    }
}
