//! Guards: locks of mutable storages, with access to their elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stridemap_format::RecordKind;

use super::access::{not_borrowable, not_mapped};
use super::read_lock::Steady;
use super::{Element, Tensor};
use crate::disk::LockMode;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::storage::{Identity, LockedStorage, MAY_NEED_BLOCKS};

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
/// [`ErrorKind::Interrupted`], until an exclusive guard that [allows it](Tensor::allow_interrupted) is dropped. An
/// operation that fails is no such end, even if it has changed some elements: the caller still has the guard.
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
        let storage = Arc::new(self.lock("lock_shared", LockMode::Shared)?);
        Ok(SharedGuard { tensor: self.under(&storage), storage, of_this_thread: PhantomData })
    }

    /// Waits until no other guard of the storage is held, and prevents others while this guard is held. The elements
    /// can then be changed.
    ///
    /// A storage that no tensor of the newest generation refers to is refused, because writes to it would be lost.
    /// The last name can still be removed while the guard is held. Later writes are then lost.
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
        let storage = GuardLock::Owned(self.lock("lock_exclusive", LockMode::Exclusive)?);
        Ok(ExclusiveGuard { tensor: self.under(&storage), storage, of_this_thread: PhantomData })
    }

    /// Returns the same tensor, which can be locked and read even if a process ended, or a thread panicked, while it
    /// was changing the storage. Its views can be, too.
    ///
    /// The elements are as that process or thread left them: some may be changed, and others not. The guards of the
    /// tensor say [whether that is so](ExclusiveGuard::was_interrupted). Dropping an exclusive guard of it declares the
    /// elements whole: the storage can then be locked as before, whether or not the guard has changed anything. For a
    /// tensor on a different kind of storage, this is only a clone.
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

/// Keeps a guard on the thread that took it. A lock records its threads, to detect a thread that would wait for
/// itself, so no other thread may create guards through [`at`](SharedGuard::at). Slices that a guard lends can be
/// sent to other threads.
type OfThisThread = PhantomData<*const ()>;

/// A shared lock of a mutable storage, taken by [`Tensor::lock_shared`]. The elements do not change while it is held.
///
/// The guard dereferences to its [`Tensor`], which has all methods that read. Views made from it are covered by the
/// lock while the guard is held.
///
/// The elements that a guard lends, and its tensor, can be sent to other threads. The guard itself stays on its thread,
/// so this does not compile:
///
/// ```compile_fail,E0277
/// # fn lent(guard: &stridemap::SharedGuard, view: &stridemap::Tensor) {
/// std::thread::scope(|scope| drop(scope.spawn(|| guard.at(view).is_ok())));
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct SharedGuard {
    tensor: Tensor,
    pub(super) storage: Arc<LockedStorage>,
    of_this_thread: OfThisThread,
}

impl SharedGuard {
    /// Returns a guard under the same lock, for a different view of the same storage.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[[1i32, 2], [3, 4]], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// let guard = x.lock_shared()?;
    /// let row = guard.at(&x.select(0, 1)?)?; // the same lock
    /// assert_eq!(row.read::<i32>()?, [3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the view is on a different storage.
    pub fn at(&self, view: &Tensor) -> Result<SharedGuard> {
        check_same(view, &self.storage, &self.tensor)?;
        let storage = Arc::clone(&self.storage);
        Ok(SharedGuard { tensor: view.under(&storage), storage, of_this_thread: PhantomData })
    }

    /// Whether a change of the storage was interrupted before this guard was taken through
    /// [`allow_interrupted`](Tensor::allow_interrupted).
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.storage.was_interrupted()
    }

    /// Borrows the elements of a contiguous tensor.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[1f32, 2., 3.], StorageKind::Mutable))?;
    /// let guard = store.load("x")?.lock_shared()?;
    /// assert_eq!(guard.as_slice::<f32>()?, [1., 2., 3.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` and `NeedsCopy`, as for [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.tensor.check_slice::<T>("as_slice")?;
        self.borrow_span("as_slice")
    }

    pub(crate) fn borrow_span<T: Element>(&self, op: &str) -> Result<&[T]> {
        self.tensor.borrow_span_in(op, self.storage.bytes()?)
    }
}

/// Shows the tensor under the lock.
impl fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedGuard({:?})", self.tensor)
    }
}

impl Deref for SharedGuard {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

/// An exclusive lock of a mutable storage, taken by [`Tensor::lock_exclusive`]. It can change the elements.
///
/// The operations have PyTorch's names and follow its rules for dtypes and broadcasting: operands are broadcast to
/// the size of the tensor, and the elements keep their dtype. They work on every store: in memory if the store is
/// mapped, otherwise by reading and writing pieces of a few MiB. An operation that is refused changes nothing; one
/// that fails with [`ErrorKind::Io`] may have changed some elements.
///
/// ```
/// use stridemap::{DType, StorageKind, Store};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// let points = store.create_tensor("points", DType::F32, &[3, 2], StorageKind::Mutable)?;
///
/// let mut guard = points.lock_exclusive()?;
/// guard.add_(2)?.div_(4.0)?;
/// guard.at(&points.select(0, 1)?)?.fill_(10)?;        // a part of the storage, under the same lock
/// guard.at(&points.select(1, 0)?)?.sub_(&points.select(1, 1)?)?;
/// assert_eq!(guard.read::<f32>()?, [0., 0.5, 0., 10., 0., 0.5]);
/// guard.flush()?;                                     // durable from here on
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A slice that the guard lends cannot be used after the next change:
///
/// ```compile_fail,E0499
/// # fn both(mut guard: stridemap::ExclusiveGuard<'_>) -> stridemap::Result<()> {
/// let elements = guard.as_slice_mut::<f32>()?;
/// guard.fill_(0)?;
/// elements[0] = 1.;
/// # Ok(())
/// # }
/// ```
///
/// and cannot outlive the guard:
///
/// ```compile_fail,E0515
/// # fn lent(tensor: &stridemap::Tensor) -> stridemap::Result<&'static [f32]> {
/// tensor.lock_shared()?.as_slice::<f32>()
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct ExclusiveGuard<'a> {
    tensor: Tensor,
    pub(super) storage: GuardLock<'a>,
    of_this_thread: OfThisThread,
}

/// The lock of a guard, or a borrow of it for a view.
pub(super) enum GuardLock<'a> {
    Owned(LockedStorage),
    Borrowed(&'a mut LockedStorage),
}

impl ExclusiveGuard<'_> {
    /// Returns a guard under the same lock, for a different view of the same storage.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[[1i32, 2], [3, 4]], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// let mut guard = x.lock_exclusive()?;
    /// guard.at(&x.select(1, 0)?)?.fill_(0)?; // under the same lock
    /// assert_eq!(guard.read::<i32>()?, [0, 2, 0, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the view is on a different storage.
    pub fn at(&mut self, view: &Tensor) -> Result<ExclusiveGuard<'_>> {
        check_same(view, &self.storage, &self.tensor)?;
        let storage = GuardLock::Borrowed(&mut self.storage);
        Ok(ExclusiveGuard { tensor: view.under(&storage), storage, of_this_thread: PhantomData })
    }

    /// Whether a change of the storage was interrupted before this guard was taken through
    /// [`allow_interrupted`](Tensor::allow_interrupted). Dropping the guard declares the elements whole.
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.storage.was_interrupted()
    }

    /// Makes all in-place writes to this storage durable, whichever process made them. Without a flush, the operating
    /// system writes them at a time of its choosing; they still survive the end of the process.
    ///
    /// A flush covers the elements, not the name. A tensor committed with
    /// [`Durability::Process`](crate::Durability::Process) survives a power cut only if a commit or collection with
    /// `Full` follows, no matter how many times it is flushed.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[1i32, 2], StorageKind::Mutable))?;
    /// let mut guard = store.load("x")?.lock_exclusive()?;
    /// guard.add_(10)?;
    /// guard.flush()?; // a power cut no longer undoes the addition
    /// assert_eq!(guard.read::<i32>()?, [11, 12]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if writes since the last flush may be lost; a retry would not detect this. The same error
    /// reports that writes of another process were lost since the tensor was loaded. [`ErrorKind::Poisoned`] if an
    /// earlier flush of the storage failed in this process, through any handle, or a sync of the handle that loaded
    /// the tensor failed; [`io_error`](crate::Error::io_error) returns that failure. After `Io`, the handle that loaded the tensor can
    /// no longer commit, flush or write in place.
    pub fn flush(&mut self) -> Result<()> {
        self.storage.sync()
    }

    /// Borrows the elements of a contiguous tensor.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[1f32, 2., 3.], StorageKind::Mutable))?;
    /// let guard = store.load("x")?.lock_exclusive()?;
    /// assert_eq!(guard.as_slice::<f32>()?.iter().sum::<f32>(), 6.);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` and `NeedsCopy`, as for [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.tensor.check_slice::<T>("as_slice")?;
        self.borrow_span("as_slice")
    }

    /// Mutably borrows the elements of a contiguous tensor.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[1f32, 2., 3.], StorageKind::Mutable))?;
    /// let mut guard = store.load("x")?.lock_exclusive()?;
    /// guard.as_slice_mut::<f32>()?.sort_by(|a, b| b.total_cmp(a));
    /// assert_eq!(guard.read::<f32>()?, [3., 2., 1.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` and `NeedsCopy`, as for [`Tensor::as_slice`]; [`ErrorKind::Unsupported`] if several indices
    /// refer to one element.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.tensor.check_slice::<T>("as_slice_mut")?;
        self.borrow_span_mut("as_slice_mut")
    }

    pub(crate) fn borrow_span<T: Element>(&self, op: &str) -> Result<&[T]> {
        self.tensor.borrow_span_in(op, self.storage.bytes()?)
    }

    pub(crate) fn borrow_span_mut<T: Element>(&mut self, op: &str) -> Result<&mut [T]> {
        self.check_writable(op)?;
        if self.tensor.numel() == 0 {
            return Ok(&mut []);
        }
        let range = self.tensor.byte_span(op)?;
        if self.storage.bytes_mut()?.is_none() && self.storage.lacks_room() {
            let message =
                format!("{op}: {MAY_NEED_BLOCKS}; fill_, copy_ and other in-place operations still work");
            return Err(Error::new(ErrorKind::NeedsCopy, message));
        }
        let bytes = self.storage.bytes_mut()?.ok_or_else(|| not_mapped(op))?;
        T::borrow_mut(bytes.get_mut(range).unwrap_or_default()).ok_or_else(|| not_borrowable::<T>(op))
    }

    /// Returns an operand so that it can be read: under this lock if it is on the same storage, and otherwise under the
    /// shared lock of its own.
    pub(super) fn operand<'o>(&self, operand: &'o Tensor) -> Result<Steady<'o>> {
        operand.steady_beside(&self.storage)
    }

    /// Returns the view and its storage.
    pub(super) fn parts(&mut self) -> (&Tensor, &mut LockedStorage) {
        (&self.tensor, &mut self.storage)
    }
}

/// Shows the tensor under the lock.
impl fmt::Debug for ExclusiveGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExclusiveGuard({:?})", self.tensor)
    }
}

impl Deref for ExclusiveGuard<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Deref for GuardLock<'_> {
    type Target = LockedStorage;

    fn deref(&self) -> &LockedStorage {
        match self {
            GuardLock::Owned(storage) => storage,
            GuardLock::Borrowed(storage) => storage,
        }
    }
}

impl DerefMut for GuardLock<'_> {
    fn deref_mut(&mut self) -> &mut LockedStorage {
        match self {
            GuardLock::Owned(storage) => storage,
            GuardLock::Borrowed(storage) => storage,
        }
    }
}

fn check_same(view: &Tensor, storage: &LockedStorage, tensor: &Tensor) -> Result<()> {
    if view.storage().as_mutable().is_some_and(|file| storage.is_of(file)) {
        return Ok(());
    }
    let (of_view, of_guard) = (view.storage().identity(), tensor.storage().identity());
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("at: the view is on storage {of_view}, but the guard locks storage {of_guard}"),
    ))
}
