//! Guards: locks of mutable storages, with access to their elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::access::{not_borrowable, not_mapped};
use super::read_lock::Steady;
use super::{Element, Tensor};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{LockedStorage, MAY_NEED_BLOCKS};

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
    pub(super) fn new(tensor: &Tensor, storage: LockedStorage) -> Self {
        let storage = Arc::new(storage);
        SharedGuard { tensor: tensor.under(&storage), storage, of_this_thread: PhantomData }
    }

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
/// that fails with [`ErrorKind::Io`] may have changed some elements. If the guard is dropped then, the storage counts as
/// [interrupted](Tensor::allow_interrupted), as if its process had ended.
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

impl ExclusiveGuard<'static> {
    pub(super) fn new(tensor: &Tensor, storage: LockedStorage) -> Self {
        let storage = GuardLock::Owned(storage);
        ExclusiveGuard { tensor: tensor.under(&storage), storage, of_this_thread: PhantomData }
    }
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
    /// [`allow_interrupted`](Tensor::allow_interrupted). Dropping the guard declares the elements whole, unless its last
    /// operation failed.
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
        self.change(|guard| guard.borrow_slice_mut::<T>().map(|_| ()))?.borrow_slice_mut()
    }

    fn borrow_slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.tensor.check_slice::<T>("as_slice_mut")?;
        self.borrow_span_mut("as_slice_mut")
    }

    /// Runs an operation that changes elements, or lends them to be changed, and notes how it ended. What is written to
    /// lent elements is not known, so it counts as done.
    pub(super) fn change(&mut self, run: impl FnOnce(&mut Self) -> Result<()>) -> Result<&mut Self> {
        let done = run(self);
        self.storage.note_outcome(done.is_ok());
        done.map(|()| self)
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
