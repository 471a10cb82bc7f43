//! Takes the locks of mutable storages.

use stridemap_format::RecordKind;

use super::Tensor;
use super::guard::{ExclusiveGuard, SharedGuard};
use crate::disk::LockMode;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::storage::{Identity, LockedStorage};

/// Locks of mutable storages.
///
/// A lock covers the whole storage, whichever view it is taken through. It applies to other processes, other handles
/// and other threads. Waiters are served in roughly the order of their requests, so a new shared guard waits behind a
/// waiting exclusive one. Suppose that a thread holds a shared guard while it waits for a second thread to take one
/// too, and that an exclusive guard is requested in between. The second thread then waits for up to about a second.
///
/// Methods that read elements of a tensor take the shared lock by themselves. The methods of a guard, and of the views
/// made from it, read under the guard's lock, on any thread. A tensor that was made from a guard takes the lock by
/// itself once the guard is dropped. While another thread reads a view that was made from an exclusive guard, the thread
/// with the guard must not change the elements.
///
/// In-place writes are visible to later readers at once, and are not a commit. After a power cut, any mix of old and new
/// bytes written since the last [`flush`](ExclusiveGuard::flush) may remain.
///
/// If a process ends, or a thread panics, while it holds an exclusive guard with which it has changed elements, some of
/// them may be changed and others not. All later locks and reads of the storage, in every process, then fail with
/// [`ErrorKind::Interrupted`], until an exclusive guard that [allows it](Tensor::allow_interrupted) is dropped. The same
/// holds if an operation fails after it may have changed some elements, unless a later `fill_` or `copy_` under the guard
/// replaces all elements of the storage. An operation that is refused changes nothing.
impl Tensor {
    /// Waits until no process or thread is changing the storage, and prevents changes while the guard is held.
    ///
    /// The guard can lend the elements if the store was opened with
    /// [`Store::open_mapped`](crate::Store::open_mapped). Any number of shared guards can be held at the same time.
    /// The guard covers the file that was loaded, even if its last name has since been removed.
    ///
    /// ```
    /// use stridemap::{StorageKind, Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # let elements = Tensor::from_vec(vec![1f32, 2.], &[2])?;
    /// # Store::create(&path)?.write(|txn| txn.save_as("x", &elements, StorageKind::Mutable))?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// assert_eq!(store.load("x")?.lock_shared()?.as_slice::<f32>()?, [1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor on a different kind of storage; [`ErrorKind::Busy`] after the store's
    /// [lock timeout](crate::StoreOptions::lock_timeout), or at once if this thread holds an exclusive guard of the
    /// storage; [`ErrorKind::Interrupted`] if a writer ended in the middle of a change; [`ErrorKind::Stale`] in a forked
    /// child of the process that loaded the tensor; [`ErrorKind::Corrupt`] if the file is being changed as a live
    /// storage; [`ErrorKind::Io`].
    pub fn lock_shared(&self) -> Result<SharedGuard> {
        Ok(SharedGuard::new(self, self.lock("lock_shared", LockMode::Shared)?))
    }

    /// Waits until no other guard of the storage is held, and prevents others while this guard is held. The elements
    /// can then be changed.
    ///
    /// A storage that no tensor of the newest generation refers to is refused: writes to it would be lost, or change what
    /// a tag keeps. The last name can still be removed while the guard is held.
    ///
    /// ```
    /// use stridemap::{DType, StorageKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let points = store.create_tensor("points", DType::F32, &[3, 2], StorageKind::Mutable)?;
    /// points.select(0, 1)?.lock_exclusive()?.fill_(7)?;
    /// assert_eq!(points.read::<f32>()?, [0., 0., 7., 7., 0., 0.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor on a different kind of storage; [`ErrorKind::Busy`] after the store's
    /// [lock timeout](crate::StoreOptions::lock_timeout), or at once if this thread holds a guard of the storage;
    /// [`ErrorKind::Interrupted`] if a writer ended in the middle of a change; [`ErrorKind::Stale`] in a forked child of
    /// the process that loaded the tensor; [`ErrorKind::ReadOnly`]; [`ErrorKind::Conflict`] if no tensor of the newest
    /// generation refers to the storage, or its file has a second hard link; [`ErrorKind::Stale`] if a different file
    /// took its place; [`ErrorKind::Corrupt`] if the file is lent as a sealed storage or being changed as a live one;
    /// [`ErrorKind::Io`].
    pub fn lock_exclusive(&self) -> Result<ExclusiveGuard<'static>> {
        Ok(ExclusiveGuard::new(self, self.lock("lock_exclusive", LockMode::Exclusive)?))
    }

    /// Returns the same tensor, which can be locked and read even if a process ended, a thread panicked, or an operation
    /// failed, while it was changing the storage. Its views can be, too.
    ///
    /// The elements are as that process or thread left them: some may be changed, and others not. The guards of the
    /// tensor say [whether that is so](ExclusiveGuard::was_interrupted). Dropping an exclusive guard of it declares the
    /// elements whole, unless its last operation failed: the storage can then be locked as before, whether or not the guard
    /// has changed anything. For a tensor on a different kind of storage, this is only a clone.
    ///
    /// ```
    /// use stridemap::{ErrorKind, StorageKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[1i64, 1], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// let same = x.clone();
    /// let change = move || same.lock_exclusive().unwrap().add_(1).map(|_| panic!("a bug")).unwrap();
    /// assert!(std::thread::spawn(change).join().is_err());
    ///
    /// assert_eq!(x.read::<i64>().unwrap_err().kind(), ErrorKind::Interrupted);
    /// let mut guard = x.allow_interrupted().lock_exclusive()?;
    /// if guard.was_interrupted() {
    ///     guard.fill_(1)?; // begin again
    /// }
    /// drop(guard);
    /// assert_eq!(x.read::<i64>()?, [1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allow_interrupted(&self) -> Tensor {
        self.storage()
            .allowing_interrupted()
            .map_or_else(|| self.clone(), |storage| self.on_storage(&storage))
    }

    /// Refuses to write to a view that reaches an element twice, as PyTorch does.
    pub(super) fn check_writable(&self, op: &str) -> Result<()> {
        if !self.overlaps_itself() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{op}: several indices of size {:?} with stride {:?} refer to one element; write through a view \
                 without overlaps",
                self.size(),
                self.stride()
            ),
        ))
    }

    fn lock(&self, op: &str, mode: LockMode) -> Result<LockedStorage> {
        self.storage().lock(mode).context(op)?.ok_or_else(|| {
            let why = self
                .explain_storage("use save_as with StorageKind::Mutable to make a copy that can be locked");
            Error::new(ErrorKind::Unsupported, format!("{op}: {why}"))
        })
    }

    /// Describes the kind of the tensor's storage, for an operation that needs a different kind. `copy` says how to
    /// make a copy of that kind.
    pub(super) fn explain_storage(&self, copy: &str) -> String {
        let (id, record) = match self.storage().identity() {
            Identity::Heap => return format!("the tensor is in memory, not in a store; {copy}"),
            Identity::Foreign => {
                return format!("a tensor of a file in a different format is read-only; {copy}");
            }
            Identity::Staged { .. } => return "the tensor is not committed; commit, and load it".to_owned(),
            Identity::Stored { id, record, .. } => (id, record),
        };
        let (kind, advice) = match record.kind {
            RecordKind::Sealed(_) => ("sealed: its elements never change", copy),
            RecordKind::Mutable => ("mutable: its elements are changed under lock_exclusive", copy),
            RecordKind::Live { .. } => ("live: it has no locks", "read and write its elements with as_live"),
            _ => ("not the store's own", copy),
        };
        format!("storage {id:016x} is {kind}; {advice}")
    }
}
