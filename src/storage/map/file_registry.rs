//! Records how this process uses each file that it maps or locks, by device and inode, under one mutex.
//!
//! The bytes of a sealed storage, or of an external file, are borrowed without a lock. The elements of a live storage
//! are shared as atomics. Mutable storages and storages that grow are locked. In a malformed store, one file can have
//! several names and so be several of these at once. Within this process the registry keeps these uses apart, and the
//! proofs in `mapping.rs` rely on it:
//!
//! - A file that is mapped as sealed is not locked to be changed, and a lock to grow it keeps the mapped bytes stable.
//! - A file that is mapped as live is not locked, and is mapped neither as sealed nor with a different access size.
//!
//! Each new use is checked against the others and recorded without unlocking the mutex in between. A mapping that a
//! handle keeps for the next load is a use as well. If it conflicts, it is released, and the check begins again.
//!
//! While the mutex is locked, code may map a file, try to lock it or read its mark, but must not drop a [`Region`], because
//! that would lock the mutex again. A weak region is therefore upgraded only to be returned to the caller.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memmap2::MmapRaw;

use super::address_space::Reservation;
use crate::disk::kept::{self, Kind};
use crate::disk::{DiskFile, FileId, LockMode, OwnerProcess};
use crate::error::Result;
use crate::storage::open_file::{MapError, broken};

/// The purpose of a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Purpose {
    /// To read bytes that others change under a lock.
    Share,
    /// To change bytes in place.
    Change,
    /// To write past the end that the newest record states, or to truncate the file to that end. Readers of the
    /// sealed storage continue to read.
    Grow,
}

impl Purpose {
    pub(in crate::storage) fn mode(self) -> LockMode {
        match self {
            Purpose::Share => LockMode::Shared,
            Purpose::Change | Purpose::Grow => LockMode::Exclusive,
        }
    }
}

impl From<LockMode> for Purpose {
    fn from(mode: LockMode) -> Self {
        match mode {
            LockMode::Shared => Purpose::Share,
            LockMode::Exclusive => Purpose::Change,
        }
    }
}

/// How the bytes of a mapping are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum MappedAs {
    /// As bytes that do not change, for a sealed storage or an external file.
    Sealed,
    /// As atomics of this size, for a live storage.
    Live { access_bytes: u8 },
}

/// A mapping of the first bytes of a file. The storages on the file share it, and it keeps the inode from being
/// reused.
#[derive(Debug)]
pub(in crate::storage) struct Region {
    pub(in crate::storage) map: MmapRaw,
    pub(in crate::storage) file: FileId,
    owner: OwnerProcess,
    /// The address space past the bytes that were requested.
    _reservation: Reservation,
}

/// The registry's entry for a region.
pub(super) struct RegionUse {
    region: Weak<Region>,
    mapped_as: MappedAs,
    mapped_bytes: usize,
    /// The greatest length that was requested of this region. That many bytes may be borrowed.
    pub(super) borrowable_bytes: usize,
}

impl RegionUse {
    /// Whether its bytes may still be borrowed.
    fn is_alive(&self) -> bool {
        if self.region.strong_count() > 0 {
            return true;
        }
        // The last borrow ended before the count fell to zero. This fence orders it before everything that follows.
        fence(Ordering::Acquire);
        false
    }

    fn describe(&self) -> String {
        match self.mapped_as {
            MappedAs::Sealed => "mapped in this process as a sealed storage or an external file".to_owned(),
            MappedAs::Live { access_bytes } => {
                format!("mapped in this process as a live storage of {access_bytes}-byte elements")
            }
        }
    }
}

/// A kernel lock on an open file. The threads that share it hold it together, and the last one unlocks the file.
pub(super) struct HeldLock {
    pub(super) purpose: Purpose,
    /// The bytes from the beginning of the file that do not change while the lock is held.
    pub(super) stable_bytes: u64,
    /// One entry for each [`FileLock`](super::file_lock::FileLock). `None` after it was dropped, while a read under it continues.
    pub(super) threads: Vec<Option<ThreadId>>,
    pub(super) file: Arc<dyn DiskFile>,
}

/// How this process uses one file.
#[derive(Default)]
pub(in crate::storage) struct FileUse {
    regions: Vec<RegionUse>,
    pub(super) lock: Option<HeldLock>,
}

impl FileUse {
    pub(super) fn regions(&self) -> impl Iterator<Item = &RegionUse> {
        self.regions.iter().filter(|region| region.is_alive())
    }

    /// Describes the current use of the file, if it forbids mapping the first `length_bytes`.
    fn conflict_with_mapping(&self, mapped_as: MappedAs, length_bytes: usize) -> Option<String> {
        if let Some(region) = self.regions().find(|region| region.mapped_as != mapped_as) {
            return Some(region.describe());
        }
        let lock = self.lock.as_ref()?;
        let is_allowed = mapped_as == MappedAs::Sealed && length_bytes as u64 <= lock.stable_bytes;
        (!is_allowed).then(|| match lock.purpose {
            Purpose::Share | Purpose::Change => "locked in this process as a mutable storage".to_owned(),
            Purpose::Grow => "locked in this process as a storage that grows".to_owned(),
        })
    }

    /// Describes the current use of the file, if it forbids a lock for this purpose.
    pub(in crate::storage) fn conflict_with_lock(&self, purpose: Purpose) -> Option<String> {
        let is_forbidden =
            |region: &&RegionUse| region.mapped_as != MappedAs::Sealed || purpose == Purpose::Change;
        self.regions().find(is_forbidden).map(RegionUse::describe)
    }

    /// Returns the purpose of the lock on the file, and whether the calling thread is one of its holders.
    pub(in crate::storage) fn held_lock(&self) -> Option<(Purpose, bool)> {
        self.lock.as_ref().map(|lock| (lock.purpose, lock.threads.contains(&Some(thread::current().id()))))
    }

    fn is_unused(&self) -> bool {
        self.regions.is_empty() && self.lock.is_none()
    }
}

/// How this process uses the files that it maps or locks.
pub(in crate::storage) struct FileRegistry {
    /// The process that the registry describes. A forked child has a copy of the registry: it holds none of the
    /// locks, but has inherited the regions.
    pub(super) owner: OwnerProcess,
    pub(super) by_file: HashMap<FileId, FileUse>,
    /// The threads in [`wait`]. Without any, an unlock notifies nobody, which saves a system call.
    waiting: usize,
}

static REGISTRY: LazyLock<Mutex<FileRegistry>> = LazyLock::new(|| {
    Mutex::new(FileRegistry { owner: OwnerProcess::current(), by_file: HashMap::new(), waiting: 0 })
});

/// Notified when a file is unlocked.
static UNLOCKED: Condvar = Condvar::new();

static UNUSED: FileUse = FileUse { regions: Vec::new(), lock: None };

/// Locks the registry. If another thread of the parent had locked it at the time of the fork, this never returns in
/// the child. Values that a child has inherited must therefore not call it.
pub(in crate::storage) fn lock() -> MutexGuard<'static, FileRegistry> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if !registry.owner.is_current() {
        registry.owner = OwnerProcess::current();
        registry.waiting = 0;
        // This closes the child's descriptors, which unlocks nothing: the parent has the files open too.
        registry.by_file.values_mut().for_each(|file_use| file_use.lock = None);
        registry.by_file.retain(|_, file_use| !file_use.is_unused());
    }
    registry
}

/// Locks the registry, and checks that the file may be locked for this purpose.
///
/// # Errors
/// `Corrupt` if this process maps the file in a way that excludes the lock.
pub(in crate::storage) fn lock_without_conflict(
    id: FileId,
    purpose: Purpose,
    path: &Path,
) -> Result<MutexGuard<'static, FileRegistry>> {
    let locked = || {
        let registry = lock();
        registry.file(id).conflict_with_lock(purpose).map_or(Ok(registry), Err)
    };
    kept::retry_after_release(Kind::Mapping, locked, |_| true)
        .map_err(|conflict| broken(path, format!("the file is also {conflict}")))
}

/// Unlocks the registry until a file is unlocked or the timeout has passed.
pub(in crate::storage) fn wait(
    mut registry: MutexGuard<'static, FileRegistry>,
    timeout: Option<Duration>,
) -> MutexGuard<'static, FileRegistry> {
    registry.waiting += 1;
    let mut registry = match timeout {
        None => UNLOCKED.wait(registry).unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => UNLOCKED.wait_timeout(registry, timeout).unwrap_or_else(PoisonError::into_inner).0,
    };
    registry.waiting -= 1;
    registry
}

/// Unlocks the registry, and wakes the threads that wait for a file that was unlocked under it.
pub(super) fn notify_unlocked(registry: MutexGuard<'static, FileRegistry>) {
    let has_waiting = registry.waiting > 0;
    drop(registry);
    if has_waiting {
        UNLOCKED.notify_all();
    }
}

/// Returns a region of a file. Its first `length_bytes` may be borrowed from now on. If no existing region is long
/// enough, calls `prepare`, which may take long, because it does not lock the registry, and then `map` with the length of
/// the longest existing one. If mappings that are kept for the next load prevent this, releases them and tries again.
///
/// # Errors
/// `Conflict` if a different use of the file forbids it; the errors of `prepare` and `map`.
pub(in crate::storage) fn reuse_or_map(
    file: FileId,
    mapped_as: MappedAs,
    length_bytes: usize,
    prepare: impl Fn() -> io::Result<()>,
    map: impl Fn(usize) -> io::Result<(MmapRaw, Reservation)>,
) -> Result<Arc<Region>, MapError> {
    let reuse_or_map = || {
        let reused = lock().reuse(file, mapped_as, length_bytes)?;
        match reused {
            Some(region) => Ok(region),
            None => {
                prepare()?;
                reuse_or_map_prepared(file, mapped_as, length_bytes, &map)
            }
        }
    };
    kept::retry_after_release(Kind::Mapping, reuse_or_map, |e| {
        matches!(e, MapError::Conflict(_)) || e.is_out_of_memory()
    })
}

fn reuse_or_map_prepared(
    file: FileId,
    mapped_as: MappedAs,
    length_bytes: usize,
    map: impl Fn(usize) -> io::Result<(MmapRaw, Reservation)>,
) -> Result<Arc<Region>, MapError> {
    let mut registry = lock();
    // Another thread may have mapped it meanwhile.
    if let Some(region) = registry.reuse(file, mapped_as, length_bytes)? {
        return Ok(region);
    }
    let file_use = registry.by_file.entry(file).or_default();
    let longest_bytes = file_use.regions().map(|region| region.mapped_bytes).max().unwrap_or_default();
    let (map, reservation) = match map(longest_bytes) {
        Ok(mapped) => mapped,
        Err(e) => {
            registry.remove_if_unused(file);
            return Err(e.into());
        }
    };
    let mapped_bytes = map.len();
    let region = Arc::new(Region { map, file, owner: OwnerProcess::current(), _reservation: reservation });
    file_use.regions.push(RegionUse {
        region: Arc::downgrade(&region),
        mapped_as,
        mapped_bytes,
        borrowable_bytes: length_bytes,
    });
    Ok(region)
}

impl FileRegistry {
    pub(in crate::storage) fn file(&self, id: FileId) -> &FileUse {
        self.by_file.get(&id).unwrap_or(&UNUSED)
    }

    /// Returns a region of a file whose first `length_bytes` may be borrowed from now on, if one is long enough.
    ///
    /// # Errors
    /// `Conflict` if a different use of the file forbids it.
    fn reuse(
        &mut self,
        file: FileId,
        mapped_as: MappedAs,
        length_bytes: usize,
    ) -> Result<Option<Arc<Region>>, MapError> {
        let Some(file_use) = self.by_file.get_mut(&file) else { return Ok(None) };
        if let Some(conflict) = file_use.conflict_with_mapping(mapped_as, length_bytes) {
            return Err(MapError::Conflict(conflict));
        }
        let long_enough = file_use.regions.iter_mut().filter(|region| region.mapped_bytes >= length_bytes);
        for found in long_enough {
            if let Some(region) = found.region.upgrade() {
                found.borrowable_bytes = found.borrowable_bytes.max(length_bytes);
                return Ok(Some(region));
            }
        }
        Ok(None)
    }

    pub(super) fn remove_if_unused(&mut self, id: FileId) {
        if self.file(id).is_unused() {
            self.by_file.remove(&id);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        let mut registry = lock();
        if let Some(file_use) = registry.by_file.get_mut(&self.file) {
            file_use.regions.retain(RegionUse::is_alive);
            registry.remove_if_unused(self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt as _;

    use memmap2::MmapOptions;

    use super::*;

    #[test]
    fn registry_is_not_locked_while_a_mapping_is_prepared_and_a_reused_one_needs_no_preparation() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        let stat = file.metadata().unwrap();
        let id = (stat.dev(), stat.ino());
        let map_of = |length_bytes: usize, prepare: &dyn Fn() -> io::Result<()>| {
            reuse_or_map(id, MappedAs::Sealed, length_bytes, prepare, |_| {
                Ok((MmapOptions::new().len(length_bytes).map_raw_read_only(&file)?, Reservation::of(0)))
            })
        };
        // Threads of other tests lock it for moments.
        let is_free = || {
            (0..1_000_000).any(|_| {
                thread::yield_now();
                REGISTRY.try_lock().is_ok()
            })
        };
        let prepared = Cell::new(0);
        let count = || {
            assert!(is_free(), "no thread can use a file meanwhile");
            prepared.set(prepared.get() + 1);
            Ok(())
        };
        let region = map_of(50, &count).unwrap();
        let same = map_of(40, &count).unwrap();
        assert!(Arc::ptr_eq(&region, &same));
        assert_eq!(prepared.get(), 1);
        // At the limit of mappings, an existing one can still be used.
        let fail = || Err(io::Error::other("no room"));
        assert!(Arc::ptr_eq(&map_of(50, &fail).unwrap(), &region));
        assert!(matches!(map_of(100, &fail), Err(MapError::Io(e)) if e.to_string() == "no room"));
        assert!(!Arc::ptr_eq(&map_of(100, &count).unwrap(), &region));
        assert_eq!(prepared.get(), 2);
    }
}
