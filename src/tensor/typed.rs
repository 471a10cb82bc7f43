//! Tensors whose element type is known at compile time.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use stridemap_format::DType;

use super::{Element, Tensor};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Integer;

impl Tensor {
    /// Returns the elements of a contiguous tensor as a value that keeps them alive. It can be stored in a struct,
    /// sent to a thread, and returned from a function. Nothing is copied, and the dtype is checked only here.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1f32, 2., 3., 4.], &[2, 2])?.select(0, 1)?.typed::<f32>()?;
    /// assert_eq!((x[0], x.len()), (3., 2)); // a slice, which owns its tensor
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NeedsCopy`], as for [`as_slice`](Self::as_slice); [`ErrorKind::DTypeMismatch`], also for `bool`,
    /// whose bytes would have to be checked at every access: use [`read`](Self::read), or
    /// [`view_dtype`](Self::view_dtype) with `uint8`.
    pub fn typed<T: Element>(&self) -> Result<TypedTensor<T>> {
        let op = "typed";
        self.check_slice::<T>(op)?;
        if T::DTYPE == DType::Bool {
            let message = format!(
                "{op}::<bool>: not every byte is a valid bool, so each access would have to check them all; use read, or \
                 view_dtype as uint8"
            );
            return Err(Error::new(ErrorKind::DTypeMismatch, message));
        }
        self.borrow_span::<T>(op)?;
        let bytes = if self.numel() == 0 { 0..0 } else { self.byte_span(op)? };
        Ok(TypedTensor { tensor: self.clone(), bytes, element: PhantomData })
    }
}

/// A contiguous tensor with elements of a known type, returned by [`Tensor::typed`]. It dereferences to a slice of
/// its elements, in row-major order.
///
/// It keeps the storage alive: a mapping lasts until the last tensor on it is dropped, even if the store is dropped
/// or the name removed. Cloning costs as much as cloning a [`Tensor`].
///
/// ```
/// use stridemap::{Store, TypedTensor};
///
/// struct Model {
///     embedding: TypedTensor<f32>,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.smap");
/// # Store::create(&path)?.save("embedding", &[[1f32, 2.], [3., 4.], [5., 6.]])?;
/// // SAFETY: only stridemap writes to this store.
/// let store = unsafe { Store::open_mapped(&path)? };
/// let model = Model { embedding: store.load("embedding")?.typed()? };
/// drop(store);
/// assert_eq!(model.embedding.row(1), [3., 4.]);
/// assert_eq!(model.embedding.iter().sum::<f32>(), 21.);
///
/// let clone = model.embedding.clone();
/// assert_eq!(std::thread::spawn(move || clone[5]).join().unwrap(), 6.);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a typed tensor only lends elements"]
pub struct TypedTensor<T> {
    tensor: Tensor,
    /// The byte range of the elements in the storage. `typed` has checked its alignment.
    bytes: Range<usize>,
    element: PhantomData<T>,
}

impl<T: Element> TypedTensor<T> {
    /// Returns the elements at one position of dimension 0, in row-major order. A negative position counts from the
    /// end.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec((0..12i32).collect(), &[3, 2, 2])?.typed::<i32>()?;
    /// assert_eq!(x.row(1), [4, 5, 6, 7]);
    /// assert_eq!(x.row(-1), [8, 9, 10, 11]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if the position does not exist, like slice indexing.
    #[must_use]
    #[track_caller]
    pub fn row(&self, position: impl Integer) -> &[T] {
        let size = self.tensor.size();
        let count = size.first().copied().unwrap_or_default();
        let given = position.to_isize();
        let position = if given < 0 { given.checked_add_unsigned(count) } else { Some(given) };
        let position = position.and_then(|position| usize::try_from(position).ok()).filter(|&i| i < count);
        let Some(position) = position else { panic!("row {given} is out of range for size {size:?}") };
        let row_elems = self.tensor.numel() / count;
        &self[position * row_elems..][..row_elems]
    }
}

impl<T> TypedTensor<T> {
    /// Returns the tensor, for its views and methods.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?.typed::<i32>()?;
    /// assert_eq!(x.tensor().t()?.read::<i32>()?, [1, 3, 2, 4]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl<T: Element> Deref for TypedTensor<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // Memory does not move, so a borrow that succeeded in `typed` succeeds again.
        let bytes = self.tensor.storage().borrow().and_then(|all| all.get(self.bytes.clone()));
        bytes.and_then(T::borrow).unwrap_or_default()
    }
}

impl<T> Clone for TypedTensor<T> {
    fn clone(&self) -> Self {
        TypedTensor { tensor: self.tensor.clone(), bytes: self.bytes.clone(), element: PhantomData }
    }
}

/// Shows the tensor without the elements.
impl<T> fmt::Debug for TypedTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypedTensor({:?})", self.tensor)
    }
}
