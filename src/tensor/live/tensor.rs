//! The live tensor type.

use std::fmt;
use std::marker::PhantomData;

use stridemap_format::Header;

use super::LiveElement;
use super::open::check_view;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::{self, Integers};
use crate::storage::LiveMapping;
use crate::tensor::Tensor;
use crate::tensor::copy::storage_order;
use crate::tensor::kernel::for_each_start;

/// A tensor on a live storage. Many threads and processes read and write its elements at once; see
/// [`Tensor::as_live`].
///
/// Its [`view`](Self::view)s are live, too, and its [`tensor`](Self::tensor) has its header. All methods take `&self`. A
/// live tensor can be cloned and sent to any thread. No access waits for another.
///
/// ```
/// use stridemap::{DType, StorageKind, Store};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.smap");
/// # Store::create(&path)?;
/// // SAFETY: only stridemap writes to this store.
/// let store = unsafe { Store::open_mapped(&path)? };
/// let counts = store.create_tensor("counts", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).try_for_each(|_| counts.fetch_add([0, -1], 1).map(drop)));
///     }
/// });
/// assert_eq!(counts.get([0, 2])?, 4000);
/// counts.view(|counts| counts.select(0, 1))?.write_from(&[1, 2, 3])?;
/// assert_eq!(counts.read()?, [0, 0, 4000, 1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Concurrent access
///
/// - Every element is read and written whole: a read returns a value that was written, or the initial one. If two
///   threads write the same element, one of the values is last; if two [add](Self::fetch_add) to it, neither addition
///   is lost. Copying several elements accesses them one at a time, so other accesses can come in between.
/// - A write is visible at once in every process, and stays when the writing process ends or is killed.
/// - There is no order between elements. Every access is [relaxed](std::sync::atomic::Ordering::Relaxed): a reader
///   that sees the later of two writes may still not see the earlier. So a flag among the elements says only that
///   something was done, not that the result is visible. To publish, write the elements, then call
///   [`fence(Release)`](std::sync::atomic::fence), then set the flag. To read, get the flag, then call
///   `fence(Acquire)`, then read the elements. The fences of the standard library order these accesses like those of
///   its own atomics. A commit also publishes: a process that loads what was committed sees what was written before
///   the commit.
/// - Methods that read without `as_live`, such as [`Tensor::read`], copy the bytes of the file: an element that
///   changes meanwhile may be read half old and half new.
///
/// Writes are not commits. After a power cut any mix of old and new elements written since the last
/// [`flush`](Self::flush) may remain, and a [`Snapshot`](crate::Snapshot) does not isolate them. If the last name of
/// the storage is removed, this handle continues to work, but its writes are lost with it.
///
/// A forked child may continue to use a live tensor that it inherits, because that takes no lock. `as_live` and
/// `flush` fail there.
#[must_use = "this only gives access to the elements"]
pub struct LiveTensor<T> {
    pub(super) tensor: Tensor,
    pub(super) mapping: LiveMapping,
    pub(super) element: PhantomData<T>,
}

impl<T: LiveElement> LiveTensor<T> {
    /// Returns the tensor: its header and its views. What is read through it is copied from the file, and an element
    /// that changes meanwhile may be read half old and half new.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns a view of the same elements, which is live too. `view` receives the [tensor](Self::tensor), and returns
    /// the view of it.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// let column = x.view(|x| x.select(1, 0))?;
    /// column.fill(7);
    /// assert_eq!(x.read()?, [7, 0, 0, 7, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `view`; [`ErrorKind::InvalidArgument`] for a tensor on a different storage;
    /// [`ErrorKind::DTypeMismatch`] and [`ErrorKind::Unsupported`] as for [`Tensor::as_live`].
    pub fn view(&self, view: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<LiveTensor<T>> {
        let (file, view) = (self.tensor.live_file("view")?, view(&self.tensor)?);
        if !view.storage().as_live().is_some_and(|other| other.is_same(file)) {
            let (of_view, own) = (view.storage().identity(), self.tensor.storage().identity());
            let message = format!("view: the view is on storage {of_view}, and the live tensor on {own}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        check_view::<T>("view", &view, file)?;
        Ok(LiveTensor { tensor: view, mapping: self.mapping.clone(), element: PhantomData })
    }

    /// Returns the element at an index: one position per dimension. Negative positions count from the end.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// assert_eq!(x.get([0, 2])?, 0);
    /// assert!(x.get([0, 3]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions.
    pub fn get(&self, index: impl Integers) -> Result<T> {
        Ok(T::load(self.atom("get", index)?))
    }

    /// Writes the element at an index.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.set([-1, -1], 5)?; // the last element
    /// assert_eq!(x.get([1, 2])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions.
    pub fn set(&self, index: impl Integers, value: T) -> Result<()> {
        self.atom("set", index).map(|atom| value.store(atom))
    }

    /// Adds to the element at an index atomically, and returns the old element. Integers wrap. Floats are added and
    /// rounded by the rules of their type. float16 and bfloat16 are added in float32, and the sum is rounded.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// assert_eq!(x.fetch_add([0, 0], 5)?, 0);
    /// assert_eq!(x.fetch_add([0, 0], 2)?, 5);
    /// assert_eq!(x.get([0, 0])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions.
    pub fn fetch_add(&self, index: impl Integers, value: T) -> Result<T> {
        Ok(T::fetch_add(self.atom("fetch_add", index)?, value))
    }

    /// Writes `new` at an index if the element there is `current`, atomically. The inner result is the old element:
    /// `Ok` if it was `current` and was replaced, otherwise `Err`.
    ///
    /// Elements are compared by their bits: a NaN is replaced if it is the same NaN, and 0.0 is not -0.0.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// assert_eq!(x.compare_exchange([0, 0], 0, 1)?, Ok(0));  // this caller claims the slot
    /// assert_eq!(x.compare_exchange([0, 0], 0, 2)?, Err(1)); // it was claimed before
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions.
    pub fn compare_exchange(&self, index: impl Integers, current: T, new: T) -> Result<Result<T, T>> {
        Ok(T::compare_exchange(self.atom("compare_exchange", index)?, current, new))
    }

    /// Copies all elements, in row-major order.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.set([0, 1], 4)?;
    /// assert_eq!(x.read()?, [0, 4, 0, 0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if there is not enough memory.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut elements = T::zeros(self.tensor.numel())?;
        self.read_into(&mut elements)?;
        Ok(elements)
    }

    /// Copies all elements, in row-major order, into `out`.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.fill(3);
    /// let mut elements = [0; 6];
    /// x.read_into(&mut elements)?;
    /// assert_eq!(elements, [3; 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] unless the length of `out` is the number of elements.
    pub fn read_into(&self, out: &mut [T]) -> Result<()> {
        check_count("read_into", self.tensor.header(), out.len())?;
        for_each(self.atoms(), self.tensor.header(), |i, atom| out[i] = T::load(atom));
        Ok(())
    }

    /// Writes all elements, from `elements` in row-major order.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.write_from(&[1, 2, 3, 4, 5, 6])?;
    /// assert_eq!(x.get([1, 0])?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] unless the length of `elements` is the number of elements.
    pub fn write_from(&self, elements: &[T]) -> Result<()> {
        check_count("write_from", self.tensor.header(), elements.len())?;
        for_each(self.atoms(), self.tensor.header(), |i, atom| elements[i].store(atom));
        Ok(())
    }

    /// Writes one value to all elements.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.fill(-1);
    /// assert_eq!(x.read()?, [-1; 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill(&self, value: T) {
        for_each(self.atoms(), self.tensor.header(), |_, atom| value.store(atom));
    }

    /// Makes everything durable that any process has written to this storage so far. Without it, the operating system
    /// writes the data at some later time; that also happens if the process has ended.
    ///
    /// After a power cut, an element has the value that it had when the flush began, or, if it was written since then,
    /// perhaps a later one. Like that of a guard, this flush makes the elements durable, not the name: see
    /// [`ExclusiveGuard::flush`](crate::ExclusiveGuard::flush).
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
    /// x.fill(1);
    /// x.flush()?; // a power cut no longer undoes the fill
    /// assert_eq!(x.read()?, [1; 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: what was written since the last flush may be lost, and another flush would not report it. It
    /// is also returned if another process's writes were lost since the tensor was loaded. [`ErrorKind::Poisoned`] if
    /// an earlier flush of the storage failed in this process, through any handle, or if a sync of the handle that
    /// loaded the tensor failed; [`io_error`](crate::Error::io_error) returns that failure. After `Io`, the handle that
    /// loaded the tensor can no longer commit or flush. `set`, `fill` and similar methods still work, because they only
    /// write to memory.
    /// [`ErrorKind::Stale`] in a forked child, because the kernel would report a failure to the child instead of the
    /// parent.
    pub fn flush(&self) -> Result<()> {
        self.tensor.live_file("flush")?.sync().context("flush")
    }

    fn atoms(&self) -> &[T::Atom] {
        // `check_view` has checked this width against the storage; for any other width, `atoms` returns `None`.
        self.mapping.atoms().unwrap_or_default()
    }

    pub(super) fn atom(&self, op: &str, index: impl Integers) -> Result<&T::Atom> {
        let place = layout::offset_of(self.tensor.header(), op, &index)?;
        self.atoms()
            .get(place)
            .ok_or_else(|| Error::new(ErrorKind::OutOfRange, format!("{op}: outside the storage")))
    }
}

/// Calls `body` with each element of a view and its index in row-major order.
fn for_each<A>(atoms: &[A], header: &Header, mut body: impl FnMut(usize, &A)) {
    if header.numel() > 0 {
        let order = storage_order(header).in_other_order();
        for_each_start(&order.dims, order.start, order.other_start, &mut |i, place| body(i, &atoms[place]));
    }
}

fn check_count(op: &str, header: &Header, count: usize) -> Result<()> {
    if header.numel() == count {
        return Ok(());
    }
    let message = format!(
        "{op}: size {:?} holds {} elements, but the slice has length {count}",
        header.size(),
        header.numel()
    );
    Err(Error::new(ErrorKind::SizeMismatch, message))
}

impl<T> Clone for LiveTensor<T> {
    fn clone(&self) -> Self {
        LiveTensor { tensor: self.tensor.clone(), mapping: self.mapping.clone(), element: PhantomData }
    }
}

/// Prints the tensor, not the elements.
impl<T> fmt::Debug for LiveTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveTensor({:?})", self.tensor)
    }
}
