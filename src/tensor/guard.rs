use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stridemap_format::StorageKind;

use super::access::{misaligned, not_mapped};
use super::{Element, Tensor};
use crate::disk::LockMode;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Identity, LockedStorage, MutableFile, NO_ROOM};

/// Locks of mutable storages.
///
/// A lock is on the whole storage, whatever the view that it is asked of: against other processes, other handles and
/// other threads. Those who wait come in about the order in which they asked, so a new shared guard waits behind one that wants
/// the storage alone: a thread that holds a shared guard while it waits for another thread to take one may wait for a second.
///
/// What is written in place is seen by every reader at once, under a lock or not, and is no commit: after a power cut any
/// mix of old and new can be there, down to the last [`flush`](ExclusiveGuard::flush). A reader without a lock can see a
/// change half made.
impl Tensor {
    /// Waits until nobody changes the storage, and keeps it so while the guard lives.
    ///
    /// The elements can then be borrowed, when the store was opened with
    /// [`Store::open_mapped`](crate::Store::open_mapped). Any number of shared guards are held at the same time. The guard
    /// is on the file that was loaded, even when the last name on it has since been removed.
    ///
    /// ```
    /// use stridemap::{StorageKind, Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # let elements = Tensor::from_vec(vec![1f32, 2.], &[2])?;
    /// # Store::create(&path)?.save_as("x", &elements, StorageKind::Mutable)?;
    /// // SAFETY: only stridemap writes this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// assert_eq!(store.load("x")?.lock_shared()?.as_slice::<f32>()?, [1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotMutable`] for a tensor on another kind of storage; [`ErrorKind::Busy`] after the store's
    /// [lock timeout](crate::StoreOptions::lock_timeout), and at once when this thread holds an exclusive guard of the
    /// storage; [`ErrorKind::Forked`] in a child of the process that loaded the tensor; [`ErrorKind::Corrupt`] when the file
    /// is changed as a live storage's; [`ErrorKind::Io`].
    pub fn lock_shared(&self) -> Result<SharedGuard> {
        let storage = self.lockable("lock_shared")?.lock(LockMode::Shared);
        let storage = Arc::new(storage.map_err(|e| e.context("lock_shared"))?);
        Ok(SharedGuard { tensor: self.clone(), storage, of_this_thread: PhantomData })
    }

    /// Waits until no other guard of the storage is held, and keeps it so while the guard lives. The elements can then be
    /// changed.
    ///
    /// A storage on which no tensor of the newest generation stands is refused: what is written to it would be lost. The
    /// last name can still go while the guard is held, and what is written after goes with it.
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
    /// [`ErrorKind::NotMutable`] for a tensor on another kind of storage; [`ErrorKind::Busy`] after the store's
    /// [lock timeout](crate::StoreOptions::lock_timeout), and at once when this thread holds a guard of the storage;
    /// [`ErrorKind::Forked`] in a child of the process that loaded the tensor; [`ErrorKind::ReadOnly`];
    /// [`ErrorKind::Conflict`] when no tensor of the newest generation stands on the storage, or its file has a second
    /// name; [`ErrorKind::Replaced`] when another file took its place;
    /// [`ErrorKind::Corrupt`] when it is lent as a sealed storage's, or changed as a live one's; [`ErrorKind::Io`].
    pub fn lock_exclusive(&self) -> Result<ExclusiveGuard<'static>> {
        let storage = self.lockable("lock_exclusive")?.lock(LockMode::Exclusive);
        let storage = Hold::Own(storage.map_err(|e| e.context("lock_exclusive"))?);
        Ok(ExclusiveGuard { tensor: self.clone(), storage, of_this_thread: PhantomData })
    }

    /// PyTorch's rule: no element is written twice.
    pub(super) fn check_writable(&self, op: &str) -> Result<()> {
        if !self.overlaps_itself() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Overlapping,
            format!(
                "{op}: in size {:?} with stride {:?} several indices are one element; write through a view where each \
                 is its own",
                self.size(),
                self.stride()
            ),
        ))
    }

    fn lockable(&self, op: &str) -> Result<&Arc<MutableFile>> {
        self.storage().as_mutable().ok_or_else(|| {
            let copy = "save_as with StorageKind::Mutable copies its elements to where they can";
            let why = match self.storage().identity() {
                Identity::Heap => format!("a tensor in memory cannot be locked; {copy}"),
                Identity::Foreign => {
                    format!("a tensor of a file of another format is only read; {copy}")
                }
                Identity::Staged { .. } => "the tensor is not committed; commit, and load it".to_owned(),
                Identity::Stored { id, record, .. } => {
                    let (kind, advice) = match record.kind {
                        StorageKind::Sealed(_) => ("sealed: its elements never change", copy),
                        StorageKind::Live { .. } => (
                            "live: its elements are under no lock",
                            "as_live reads and writes them, beside everyone else who does",
                        ),
                        _ => ("not the store's own", copy),
                    };
                    format!("storage {id:016x} is {kind}; {advice}")
                }
            };
            Error::new(ErrorKind::NotMutable, format!("{op}: {why}"))
        })
    }
}

/// A guard stays on the thread that took it, and is not lent to another, which could take one of its own
/// [`at`](SharedGuard::at) a view: it is what tells a thread that it waits for itself. What a guard lends can go anywhere.
type OfThisThread = PhantomData<*const ()>;

/// A tensor on a mutable storage that nobody changes while the guard lives: [`Tensor::lock_shared`].
///
/// It is the [`Tensor`] too, with everything that reads; a view that it gives is under the lock while the guard lives.
///
/// It stays on its thread; the elements that it lends, and the tensor, may go to others:
///
/// ```compile_fail,E0277
/// # fn lent(guard: &stridemap::SharedGuard, view: &stridemap::Tensor) {
/// std::thread::scope(|scope| drop(scope.spawn(|| guard.at(view).is_ok())));
/// # }
/// ```
pub struct SharedGuard {
    tensor: Tensor,
    storage: Arc<LockedStorage>,
    of_this_thread: OfThisThread,
}

impl SharedGuard {
    /// Another guard under the same lock, for a view of the same storage.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a tensor on another storage.
    pub fn at(&self, view: &Tensor) -> Result<SharedGuard> {
        check_same(view, &self.storage, &self.tensor)?;
        let storage = Arc::clone(&self.storage);
        Ok(SharedGuard { tensor: view.clone(), storage, of_this_thread: PhantomData })
    }

    /// Borrows the elements of a contiguous tensor.
    ///
    /// # Errors
    /// Those of [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.tensor.check_slice::<T>("as_slice")?;
        self.reach("as_slice")
    }

    pub(crate) fn reach<T: Element>(&self, op: &str) -> Result<&[T]> {
        self.tensor.reach_in(op, self.storage.bytes()?)
    }
}

/// The tensor under the lock.
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

/// A tensor on a mutable storage of which nobody else holds a lock, to be changed: [`Tensor::lock_exclusive`].
///
/// The operations carry PyTorch's names and its rules of dtypes and broadcasting: what they are given is broadcast to the
/// size of the tensor, never the other way, and the elements keep their dtype. They work on every store: on a mapped one
/// in memory, elsewhere by reading and writing pieces of some MiB. An operation that is refused has changed nothing; one
/// that ends in [`ErrorKind::Io`] may have changed some elements.
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
/// What it lends ends before the next change:
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
/// and before the guard does:
///
/// ```compile_fail,E0515
/// # fn lent(tensor: &stridemap::Tensor) -> stridemap::Result<&'static [f32]> {
/// tensor.lock_shared()?.as_slice::<f32>()
/// # }
/// ```
pub struct ExclusiveGuard<'a> {
    tensor: Tensor,
    storage: Hold<'a>,
    of_this_thread: OfThisThread,
}

/// The lock of a guard, or for a part of it that of the whole.
enum Hold<'a> {
    Own(LockedStorage),
    Of(&'a mut LockedStorage),
}

impl ExclusiveGuard<'_> {
    /// The guard on another view of the same storage, under the same lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a tensor on another storage.
    pub fn at(&mut self, view: &Tensor) -> Result<ExclusiveGuard<'_>> {
        check_same(view, &self.storage, &self.tensor)?;
        let storage = Hold::Of(&mut self.storage);
        Ok(ExclusiveGuard { tensor: view.clone(), storage, of_this_thread: PhantomData })
    }

    /// Makes everything durable that was written in place into this storage, by whatever process. Without it, the
    /// operating system writes it when it sees fit, and survives the end of the process all the same.
    ///
    /// The elements, not the name: a tensor that was committed with [`Durability::Process`](crate::Durability::Process) is
    /// there after a power cut only when a commit or collection with `Full` came after, however often it was flushed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: what was written since the last flush may be lost, and trying again would not tell; also when
    /// what another process wrote was lost since the tensor was loaded. [`ErrorKind::Poisoned`] when an earlier flush of
    /// the storage in this process failed, through whatever handle, or a sync of the handle that the tensor was loaded by:
    /// its source is that failure. Of a handle whose flush failed every later write is refused, as after a failed commit.
    pub fn flush(&mut self) -> Result<()> {
        self.storage.sync()
    }

    /// Borrows the elements of a contiguous tensor.
    ///
    /// # Errors
    /// Those of [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.tensor.check_slice::<T>("as_slice")?;
        self.reach("as_slice")
    }

    /// Borrows the elements of a contiguous tensor, to change them.
    ///
    /// # Errors
    /// Those of [`Tensor::as_slice`].
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.tensor.check_slice::<T>("as_slice_mut")?;
        self.reach_mut("as_slice_mut")
    }

    pub(crate) fn reach<T: Element>(&self, op: &str) -> Result<&[T]> {
        self.tensor.reach_in(op, self.storage.bytes()?)
    }

    pub(crate) fn reach_mut<T: Element>(&mut self, op: &str) -> Result<&mut [T]> {
        self.check_writable(op)?;
        if self.tensor.numel() == 0 {
            return Ok(&mut []);
        }
        let range = self.tensor.reached_bytes(op)?;
        if self.storage.bytes_mut()?.is_none() && self.storage.lacks_room() {
            let message = format!("{op}: {NO_ROOM}; fill_, copy_ and the like write by position");
            return Err(Error::new(ErrorKind::NotMapped, message));
        }
        let bytes = self.storage.bytes_mut()?.ok_or_else(|| not_mapped(op))?;
        T::borrow_mut(bytes.get_mut(range).unwrap_or_default()).ok_or_else(|| misaligned::<T>(op))
    }

    /// The view, and the storage that it is on.
    pub(super) fn parts(&mut self) -> (&Tensor, &mut LockedStorage) {
        (&self.tensor, &mut self.storage)
    }
}

/// The tensor under the lock.
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

impl Deref for Hold<'_> {
    type Target = LockedStorage;

    fn deref(&self) -> &LockedStorage {
        match self {
            Hold::Own(storage) => storage,
            Hold::Of(storage) => storage,
        }
    }
}

impl DerefMut for Hold<'_> {
    fn deref_mut(&mut self) -> &mut LockedStorage {
        match self {
            Hold::Own(storage) => storage,
            Hold::Of(storage) => storage,
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
        format!("at: the view stands on storage {of_view}, and the guard locks storage {of_guard}"),
    ))
}
