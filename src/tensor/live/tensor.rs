use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use stridemap_format::StorageKind;

use super::LiveElement;
use super::walk::for_each;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Integer, Integers, Layout};
use crate::storage::{Identity, LiveFile, LiveMapping};
use crate::tensor::{Element, Tensor};

impl Tensor {
    /// The elements of a live storage where they are, to be read and written at the same time as everybody else does.
    ///
    /// As [`as_slice`](Self::as_slice) it copies nothing; what it gives is a handle and no borrow, for no reference into
    /// memory that others change could be sound. The storage is mapped when this is first asked, once a process.
    ///
    /// # Errors
    /// [`ErrorKind::NotLive`] for a tensor on another kind of storage, or one that is not committed;
    /// [`ErrorKind::NotMapped`] when the store was not opened with [`Store::open_mapped`](crate::Store::open_mapped), or the
    /// file cannot be mapped; [`ErrorKind::DTypeMismatch`], also for a view of elements that are not as wide as those that
    /// the storage was made for: all of its elements are accessed by one width; [`ErrorKind::Overlapping`] for an expanded
    /// or unfolded view; [`ErrorKind::ReadOnly`]; [`ErrorKind::Conflict`] when no tensor of the newest generation stands on
    /// the storage, or its file has a second name; [`ErrorKind::Replaced`] when another file took its place;
    /// [`ErrorKind::Forked`] in a child of the process that loaded the tensor; [`ErrorKind::Corrupt`] when the
    /// file is shorter than it should be, or a storage of another kind too; [`ErrorKind::Io`], a full disk among them.
    pub fn as_live<T: LiveElement>(&self) -> Result<LiveTensor<T>> {
        let op = "as_live";
        let file = self.live_file(op)?;
        check_view::<T>(op, self, file)?;
        let mapping = file.map().map_err(|e| e.context(op))?;
        Ok(LiveTensor { tensor: self.clone(), mapping, element: PhantomData })
    }

    fn live_file(&self, op: &str) -> Result<&LiveFile> {
        self.storage().as_live().ok_or_else(|| {
            let copy = "save_as with StorageKind::Live copies its elements to where they are";
            let why = match self.storage().identity() {
                Identity::Heap => format!("a tensor in memory is not live; {copy}"),
                Identity::Foreign => {
                    format!("a tensor of a file of another format is only read; {copy}")
                }
                Identity::Staged { .. } => "the tensor is not committed; commit, and load it".to_owned(),
                Identity::Stored { id, record, .. } => {
                    let kind = match record.kind {
                        StorageKind::Sealed(_) => "sealed: its elements never change",
                        StorageKind::Mutable => "mutable: its elements are changed under lock_exclusive",
                        _ => "not the store's own",
                    };
                    format!("storage {id:016x} is {kind}; {copy}")
                }
            };
            Error::new(ErrorKind::NotLive, format!("{op}: {why}"))
        })
    }
}

/// A tensor on a live storage, whose elements many threads and processes read and write at once: [`Tensor::as_live`].
///
/// It is the [`Tensor`] too, its header and its views. [`at`](Self::at) gives the live tensor of a view of it. All methods
/// take `&self`, a clone is one more handle, and both can go to any thread. Nobody waits for anybody.
///
/// ```
/// use stridemap::{DType, StorageKind, Store};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.smap");
/// # Store::create(&path)?;
/// // SAFETY: only stridemap writes this store.
/// let store = unsafe { Store::open_mapped(&path)? };
/// let counts = store.create_tensor("counts", DType::I64, &[2, 3], StorageKind::Live)?.as_live::<i64>()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).try_for_each(|_| counts.fetch_add([0, -1], 1).map(drop)));
///     }
/// });
/// assert_eq!(counts.get([0, 2])?, 4000);
/// counts.at(&counts.select(0, 1)?)?.write_from(&[1, 2, 3])?;
/// assert_eq!(counts.read()?, [0, 0, 4000, 1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What others see
///
/// - Every element is read and written whole: what is read was written by somebody, or was there from the start. Of two who
///   write the same element one is last; of two who [add](Self::fetch_add) to it neither is lost. A copy of several elements
///   is one access of each: another's can come between any two of them.
/// - It is seen at once, by every process, and stays when this one ends or is killed.
/// - There is no order between elements. Every access is [relaxed](std::sync::atomic::Ordering::Relaxed): a reader that sees
///   the later of two writes may still not see the earlier. So a flag among the elements says on its own that something was
///   done, not that what was done can be seen. To publish, write the elements, then
///   [`fence(Release)`](std::sync::atomic::fence), then set the flag; to read, get the flag, then `fence(Acquire)`, then read
///   the elements. The fences of the standard library order these accesses as those of its own atomics. A commit publishes
///   as well: what was written before it is seen by whoever loads what it committed.
/// - The methods that read without `as_live`, as [`Tensor::read`], copy the file's bytes: an element that changes meanwhile
///   may come half old, half new.
///
/// What is written is no commit. After a power cut any mix of old and new can be there, element by element, down to the last
/// [`flush`](Self::flush), and a [`Snapshot`](crate::Snapshot) does not isolate it. When the last name of the storage is
/// removed, this handle goes on, and what it writes is lost with it.
///
/// A child that this process forks may go on with a live tensor that it inherits, which takes no lock; `as_live` and `flush`
/// are refused there.
pub struct LiveTensor<T> {
    tensor: Tensor,
    mapping: LiveMapping,
    element: PhantomData<T>,
}

impl<T: LiveElement> LiveTensor<T> {
    /// The live tensor of another view of the same storage.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a tensor on another storage; [`ErrorKind::DTypeMismatch`] and
    /// [`ErrorKind::Overlapping`] as [`Tensor::as_live`].
    pub fn at(&self, view: &Tensor) -> Result<LiveTensor<T>> {
        let file = self.tensor.live_file("at")?;
        if !view.storage().as_live().is_some_and(|other| other.is_same(file)) {
            let (of_view, own) = (view.storage().identity(), self.tensor.storage().identity());
            let message = format!("at: the view stands on storage {of_view}, and the live tensor on {own}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        check_view::<T>("at", view, file)?;
        Ok(LiveTensor { tensor: view.clone(), mapping: self.mapping.clone(), element: PhantomData })
    }

    /// The element at an index, one position for each dimension; negative ones count from the end.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions.
    pub fn get(&self, index: impl Integers) -> Result<T> {
        Ok(T::load(self.atom("get", index)?))
    }

    /// Puts an element at an index.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn set(&self, index: impl Integers, value: T) -> Result<()> {
        self.atom("set", index).map(|atom| value.store(atom))
    }

    /// Adds to the element at an index, in one step to everybody else, and gives what it was before. Integers wrap; floats
    /// are added and rounded as their type does, float16 and bfloat16 from a sum in float32.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn fetch_add(&self, index: impl Integers, value: T) -> Result<T> {
        Ok(T::fetch_add(self.atom("fetch_add", index)?, value))
    }

    /// Puts `new` at an index if `current` is there, in one step to everybody else. The inner result is what was there:
    /// `Ok` when it was replaced, `Err` when it was something else.
    ///
    /// Elements are compared by their bits: a NaN is replaced when it is the same NaN, and 0.0 is not -0.0.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn compare_exchange(&self, index: impl Integers, current: T, new: T) -> Result<Result<T, T>> {
        Ok(T::compare_exchange(self.atom("compare_exchange", index)?, current, new))
    }

    /// Copies all elements, in row-major order.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when there is not so much memory.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut elements = T::zeros(self.tensor.numel())?;
        self.read_into(&mut elements)?;
        Ok(elements)
    }

    /// Copies all elements, in row-major order, into `out`.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] unless `out` holds exactly as many.
    pub fn read_into(&self, out: &mut [T]) -> Result<()> {
        self.load_into("read_into", self.tensor.layout(), out)
    }

    /// Copies the row at `row` of the first dimension: as `at(&select(0, row))`, then [`read_into`](Self::read_into).
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a row that is not there; [`ErrorKind::SizeMismatch`].
    pub fn read_row_into(&self, row: impl Integer, out: &mut [T]) -> Result<()> {
        self.load_into("read_row_into", &self.row("read_row_into", row.to_isize())?, out)
    }

    /// Puts elements, given in row-major order, at all indices.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] unless there are exactly as many.
    pub fn write_from(&self, elements: &[T]) -> Result<()> {
        self.store_from("write_from", self.tensor.layout(), elements)
    }

    /// Puts elements into the row at `row` of the first dimension: as `at(&select(0, row))`, then
    /// [`write_from`](Self::write_from).
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a row that is not there; [`ErrorKind::SizeMismatch`].
    pub fn write_row_from(&self, row: impl Integer, elements: &[T]) -> Result<()> {
        self.store_from("write_row_from", &self.row("write_row_from", row.to_isize())?, elements)
    }

    /// Puts one value at all indices.
    pub fn fill(&self, value: T) {
        for_each(self.atoms(), self.tensor.layout(), |_, atom| value.store(atom));
    }

    /// Makes everything durable that was written into this storage before, by whatever process. Without it, the operating
    /// system writes it when it sees fit, and survives the end of the process all the same.
    ///
    /// After a power cut, an element that nobody has written since the flush began is as it was then; one that somebody has
    /// is as it was then or at any time later. As for guards, the elements and not the name:
    /// [`ExclusiveGuard::flush`](crate::ExclusiveGuard::flush).
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: what was written since the last flush may be lost, and trying again would not tell; also when what
    /// another process wrote was lost since the tensor was loaded. [`ErrorKind::Poisoned`] when an earlier flush of the
    /// storage in this process failed, through whatever handle, or a sync of the handle that the tensor was loaded by: its
    /// source is that failure, and after this one that handle commits and flushes no more; `set`, `fill` and the like are
    /// stores to memory, which nothing refuses. [`ErrorKind::Forked`] in a forked child, which the kernel would tell of a
    /// failure instead of its parent.
    pub fn flush(&self) -> Result<()> {
        self.tensor.live_file("flush")?.sync().map_err(|e| e.context("flush"))
    }

    fn atoms(&self) -> &[T::Atom] {
        // Of the width that `check_view` saw the storage to have; of another there are none.
        self.mapping.atoms().unwrap_or_default()
    }

    fn atom(&self, op: &str, index: impl Integers) -> Result<&T::Atom> {
        let place = self.tensor.layout().place(op, &index)?;
        self.atoms()
            .get(place)
            .ok_or_else(|| Error::new(ErrorKind::OutOfRange, format!("{op}: outside the storage")))
    }

    fn row(&self, op: &str, row: isize) -> Result<Layout> {
        self.tensor.layout().select(0.into(), row).map_err(|e| e.context(op))
    }

    fn load_into(&self, op: &str, layout: &Layout, out: &mut [T]) -> Result<()> {
        check_count(op, layout, out.len())?;
        for_each(self.atoms(), layout, |i, atom| out[i] = T::load(atom));
        Ok(())
    }

    fn store_from(&self, op: &str, layout: &Layout, elements: &[T]) -> Result<()> {
        check_count(op, layout, elements.len())?;
        for_each(self.atoms(), layout, |i, atom| elements[i].store(atom));
        Ok(())
    }
}

/// Whether the elements of a view can be accessed as `T`, each by an atomic of its own.
fn check_view<T: Element>(op: &str, view: &Tensor, file: &LiveFile) -> Result<()> {
    view.check_dtype::<T>(op)?;
    let (dtype, access_bytes) = (view.dtype(), file.access_bytes());
    if dtype.itemsize() != usize::from(access_bytes) {
        let message = format!(
            "{op}: the storage is accessed {access_bytes} bytes at a time, by everyone, and {dtype} has {} bytes; view it as \
             a dtype of {access_bytes}",
            dtype.itemsize()
        );
        return Err(Error::new(ErrorKind::DTypeMismatch, message));
    }
    view.check_writable(op)
}

fn check_count(op: &str, layout: &Layout, count: usize) -> Result<()> {
    if layout.numel() == count {
        return Ok(());
    }
    let message = format!(
        "{op}: size {:?} holds {} elements, and the slice has {count}",
        layout.size(),
        layout.numel()
    );
    Err(Error::new(ErrorKind::SizeMismatch, message))
}

impl<T> Clone for LiveTensor<T> {
    fn clone(&self) -> Self {
        LiveTensor { tensor: self.tensor.clone(), mapping: self.mapping.clone(), element: PhantomData }
    }
}

/// The tensor, not the elements.
impl<T> fmt::Debug for LiveTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveTensor({:?})", self.tensor)
    }
}

impl<T> Deref for LiveTensor<T> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}
