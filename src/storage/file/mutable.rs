//! Mutable storages, and their locks.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use super::in_place::InPlaceFile;
use super::lock_files::{LockFiles, ToLock};
use super::mark;
use crate::disk::{DiskFile, LockMode, step};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::storage::map::file_lock::{FileLock, LockRef};
use crate::storage::map::mapping::LockedMapping;
use crate::storage::open_file::MapError;

/// The file of a mutable storage.
#[derive(Debug)]
pub(crate) struct MutableFile {
    in_place: InPlaceFile,
    files: Arc<LockFiles>,
    /// One mapping for each [`LockMode`], made on first use. Its bytes are only borrowed together with a lock.
    shared_mapping: OnceLock<LockedMapping>,
    exclusive_mapping: OnceLock<LockedMapping>,
}

/// A locked mutable storage. Its bytes are written and borrowed only through this type.
#[derive(Debug)]
pub(crate) struct LockedStorage {
    storage: Arc<MutableFile>,
    lock: FileLock,
    mode: LockMode,
    /// Open for writing if the lock is exclusive.
    file: Arc<dyn DiskFile>,
    /// Whether a mapping of the file shows what writers write after this lock is released. It may not on
    /// overlayfs, where the file can be that of the lower layer.
    shows_later_writes: bool,
    /// A mapping for this lock only: on overlayfs, an earlier mapping may show the file of the lower layer, although a
    /// writer has copied it up since.
    own_mapping: OnceLock<LockedMapping>,
    /// Whether the disk has room for writes through a mapping. Checked for each lock: once the file system has
    /// made a snapshot, even overwriting needs new blocks.
    has_room: OnceLock<bool>,
    /// Whether the mark was set when the lock was taken: a change of the storage was interrupted.
    was_interrupted: bool,
    /// Whether the mark is set, and must be cleared when the lock is released.
    is_marked: bool,
    /// Whether the last operation failed.
    has_failed: bool,
    /// Whether an operation that failed may have left elements half changed, and not all were replaced since.
    is_half_changed: bool,
    /// Whether the thread was panicking when it took the lock. The guard is then not why it panics.
    was_panicking: bool,
}

impl MutableFile {
    pub(in crate::storage) fn new(in_place: InPlaceFile) -> Arc<Self> {
        let (shared_mapping, exclusive_mapping) = (OnceLock::new(), OnceLock::new());
        Arc::new(MutableFile { in_place, files: Arc::default(), shared_mapping, exclusive_mapping })
    }

    pub(in crate::storage) fn in_place(&self) -> &InPlaceFile {
        &self.in_place
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// `Busy`; `Stale` in a child of the process that loaded the storage; `Interrupted` if a change of the storage
    /// was, unless `allows_interrupted`. For an exclusive lock, also `ReadOnly`; `Stale` if a different file now has its
    /// name; `Conflict` if the file has several names, or if no tensor is backed by the storage any more, so that writes
    /// would be lost.
    pub(in crate::storage) fn lock(
        self: &Arc<Self>,
        mode: LockMode,
        allows_interrupted: bool,
    ) -> Result<LockedStorage> {
        let (to_lock, lock) = self.lock_file(mode)?;
        if mode == LockMode::Exclusive && to_lock.is_kept() {
            self.in_place.check_still_changeable()?;
        } else if mode == LockMode::Exclusive {
            self.in_place.check_changeable(&to_lock.file)?;
            self.files.keep(mode, &to_lock);
        }
        // On overlayfs a writer may have copied the file up before the lock was taken. No writer does so while the
        // lock is held.
        let (file, shows_later_writes) = match mode == LockMode::Shared && self.in_place.is_on_overlay() {
            true => self.in_place.open_same().map_or((to_lock.file, false), |file| (file, true)),
            false => (to_lock.file, true),
        };
        // Also shows that the file is whole: if it was truncated, accessing an earlier mapping would be a fault.
        let was_interrupted = self.check_mark(&file, allows_interrupted)?;
        Ok(LockedStorage {
            storage: Arc::clone(self),
            lock,
            mode,
            file,
            shows_later_writes,
            own_mapping: OnceLock::new(),
            has_room: OnceLock::new(),
            was_interrupted,
            is_marked: was_interrupted && mode == LockMode::Exclusive,
            has_failed: false,
            is_half_changed: false,
            was_panicking: thread::panicking(),
        })
    }
}

impl MutableFile {
    /// Waits for a lock under which the file can be read by position.
    ///
    /// # Errors
    /// `Busy`; `Stale` in a child of the process that loaded the storage; `Interrupted` as for [`lock`](Self::lock).
    pub(in crate::storage) fn lock_to_read(&self, allows_interrupted: bool) -> Result<FileLock> {
        let (to_lock, lock) = self.lock_file(LockMode::Shared)?;
        if !allows_interrupted {
            self.check_mark(&to_lock.file, false)?;
        }
        Ok(lock)
    }

    /// Returns whether the mark of the storage is set. The caller holds a lock of the file. The mark is the last byte of the
    /// file, so the file is not shorter than the record states.
    ///
    /// # Errors
    /// `Interrupted` if it is set, unless `allows_interrupted`; `Corrupt` if the file is too short; `Io`.
    fn check_mark(&self, file: &Arc<dyn DiskFile>, allows_interrupted: bool) -> Result<bool> {
        let InPlaceFile { path, length_bytes, .. } = &self.in_place;
        let read = mark::is_set(&**file, *length_bytes);
        if matches!(&read, Err(e) if e.kind() == io::ErrorKind::UnexpectedEof) {
            self.in_place.check_length(file)?;
        }
        let is_set = read.doing("read storage", path)?;
        if !is_set || allows_interrupted {
            return Ok(is_set);
        }
        let message = format!(
            "{}: a process ended, a thread panicked, or an operation failed, while it was changing the storage, so some \
             elements may be changed and others not; read or lock them as they are through allow_interrupted; dropping \
             an exclusive guard that was taken through it ends this error",
            path.display()
        );
        Err(Error::new(ErrorKind::Interrupted, message))
    }

    /// Waits for the lock of an open file of the storage.
    fn lock_file(&self, mode: LockMode) -> Result<(ToLock, FileLock)> {
        let InPlaceFile { path, id, context, .. } = &self.in_place;
        self.in_place.check_process()?;
        let to_lock = self.files.to_lock(&self.in_place, mode)?;
        let lock = FileLock::take(&to_lock.file, *id, mode.into(), (path, context.lock_wait))?;
        Ok((to_lock, lock))
    }
}

impl LockedStorage {
    /// Returns a reference with which others can read under this lock.
    pub(in crate::storage) fn to_read(&self) -> LockRef {
        self.lock.to_read()
    }

    /// Whether this locks `storage`.
    pub(crate) fn is_of(&self, storage: &MutableFile) -> bool {
        self.storage.in_place.is_same(&storage.in_place)
    }

    /// Returns the bytes, or `None` if the store is not mapped.
    pub(crate) fn bytes(&self) -> Result<Option<&[u8]>> {
        self.check_process()?;
        let mapping = match self.storage.exclusive_mapping.get() {
            Some(mapping) => Some(mapping),
            None => self.mapping(self.mode)?,
        };
        Ok(mapping.and_then(|mapping| mapping.bytes(&self.lock)))
    }

    /// Returns a mapping for a lock of this mode, or `None` if mapping is not permitted or not possible.
    fn mapping(&self, mode: LockMode) -> Result<Option<&LockedMapping>> {
        let MutableFile { in_place, shared_mapping, exclusive_mapping, .. } = &*self.storage;
        let cell = match mode {
            // Made from a file that was opened for writing, so on overlayfs it never maps a file of a lower layer.
            LockMode::Exclusive => exclusive_mapping,
            LockMode::Shared if in_place.is_on_overlay() => &self.own_mapping,
            LockMode::Shared => shared_mapping,
        };
        if let Some(mapping) = cell.get() {
            return Ok(Some(mapping));
        }
        let (Some(os_file), Some(permit), true) =
            (self.file.as_file(), in_place.permit, self.shows_later_writes)
        else {
            return Ok(None);
        };
        let stat = in_place.stat_to_map(&self.file)?;
        match LockedMapping::of(os_file, stat, in_place.length_bytes, mode, permit) {
            Ok(mapping) => Ok(Some(cell.get_or_init(|| mapping))),
            // Positional reads and writes still work.
            Err(MapError::Unsupported) => Ok(None),
            Err(e) => Err(e.into_error(&in_place.path)),
        }
    }

    /// Whether the mark was set when the lock was taken.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }

    /// Notes that an operation fails after it may have changed elements.
    pub(crate) fn note_half_changed(&mut self) {
        self.is_half_changed = true;
    }

    /// Notes that all elements were replaced.
    pub(crate) fn note_replaced(&mut self) {
        self.is_half_changed = false;
    }

    /// Notes how an operation that changes elements has ended.
    pub(crate) fn note_outcome(&mut self, is_ok: bool) {
        self.has_failed = !is_ok;
    }

    /// Whether the elements can be declared whole. If a change was interrupted before, an operation that failed has not set
    /// them right, even if it changed nothing.
    fn is_whole(&self) -> bool {
        let has_panicked = thread::panicking() && !self.was_panicking;
        let is_unrepaired = self.was_interrupted && self.has_failed;
        let is_poisoned = self.storage.in_place.check_poison().is_err();
        !(self.is_half_changed || is_unrepaired || has_panicked || is_poisoned)
    }

    /// Sets the mark before the first change under this lock.
    ///
    /// # Errors
    /// `Io`. Nothing must be changed then.
    fn begin_change(&mut self) -> Result<()> {
        if !self.is_marked {
            // crash: the storage counts as interrupted, although nothing is changed
            self.is_marked = step!("mark-changing", self.write_mark(mark::CHANGING).map(|()| true))?;
        }
        Ok(())
    }

    fn write_mark(&self, mark: u8) -> Result<()> {
        let InPlaceFile { path, length_bytes, .. } = &self.storage.in_place;
        self.file.write_all_at(&[mark], *length_bytes).doing("mark storage", path)
    }

    /// Returns the bytes for writing. Returns `None` unless the store is mapped, the lock is exclusive, and the disk
    /// has room.
    pub(crate) fn bytes_mut(&mut self) -> Result<Option<&mut [u8]>> {
        self.check_process()?;
        self.storage.in_place.check_poison()?;
        // Without a mapping, writes need no blocks in advance, and a full disk may refuse to allocate them.
        if self.mode != LockMode::Exclusive
            || self.storage.in_place.permit.is_none()
            || !self.has_room()?
            || self.mapping(LockMode::Exclusive)?.is_none()
        {
            return Ok(None);
        }
        self.begin_change()?;
        let mapping = self.storage.exclusive_mapping.get();
        Ok(mapping.and_then(|mapping| mapping.bytes_mut(&mut self.lock)))
    }

    fn has_room(&self) -> Result<bool> {
        if let Some(&has_room) = self.has_room.get() {
            return Ok(has_room);
        }
        let has_room = self.storage.in_place.allocate_blocks(&self.file)?;
        Ok(*self.has_room.get_or_init(|| has_room))
    }

    /// Whether [`bytes_mut`](Self::bytes_mut) returned `None` because a write may need new blocks.
    pub(crate) fn lacks_room(&self) -> bool {
        self.has_room.get() == Some(&false)
    }

    pub(crate) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.storage.in_place.read_at(buf, offset_bytes)
    }

    pub(crate) fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.check_process()?;
        self.storage.in_place.check_poison()?;
        self.begin_change()?;
        self.file.write_all_at(bytes, offset_bytes).doing("write storage", &self.storage.in_place.path)
    }

    /// Makes all writes durable. On Linux, writes through a mapping and positional writes change the same pages.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.check_process()?;
        self.storage.in_place.sync(&[&self.file])
    }

    fn check_process(&self) -> Result<()> {
        let path = &self.storage.in_place.path;
        self.lock.owner().check(|| format!("{}: the guard was taken", path.display()))
    }
}

impl Drop for LockedStorage {
    /// Clears the mark, unless the changes may be incomplete: an operation or a sync has failed, or the thread has
    /// panicked since it took the lock. A forked child leaves the mark to its parent.
    fn drop(&mut self) {
        if self.is_marked && self.check_process().is_ok() && self.is_whole() {
            // If this fails, the storage counts as interrupted, although it is whole.
            let _ = step!("unmark", self.write_mark(mark::WHOLE));
        }
    }
}
