//! Conversions between tensors and `ndarray` arrays of every rank.

use ndarray::{
    Array, ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Data, Dimension, Ix0, Ix1,
    Ix2, Ix3, Ix4, Ix5, Ix6, IxDyn, ShapeBuilder as _, StrideShape,
};
use stridemap_format::DType;
use stridemap_format::limits::MAX_RANK;

use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Layout, contiguous_strides};
use crate::tensor::{Element, ExclusiveGuard, SharedGuard, Source, Tensor};

/// The number of elements gathered at a time from an array that is not in row-major order.
const PIECE_ELEMS: usize = 1 << 16;

impl<T: Element, S: Data<Elem = T>, D: Dimension> Source for ArrayBase<S, D> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn size(&self) -> Vec<usize> {
        self.shape().to_vec()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(elements) = self.as_slice() {
            return sink(T::as_bytes(elements));
        }
        let mut elements = self.iter();
        loop {
            let piece: Vec<T> = elements.by_ref().take(PIECE_ELEMS).copied().collect();
            if piece.is_empty() {
                return Ok(());
            }
            sink(T::as_bytes(&piece))?;
        }
    }
}

/// Borrowing as `ndarray` arrays (feature `ndarray`, on by default). The other conversions are `From` and `TryFrom`,
/// from and to arrays of every rank:
///
/// | from | to | by | elements are |
/// |---|---|---|---|
/// | `&Tensor`, `&SharedGuard`, `&ExclusiveGuard` | `ArrayView<T, D>` | `TryFrom` | borrowed, with their strides |
/// | `&mut ExclusiveGuard` | `ArrayViewMut<T, D>` | `TryFrom` | mutably borrowed, with their strides |
/// | `&Tensor` | `Array<T, D>` | `TryFrom` | copied, in row-major order |
/// | `Array<T, D>` | `Tensor` | `From`, or `TryFrom` for an `ArrayD` | moved, with their strides |
/// | `ArrayView<T, D>`, `&ArrayBase<_, D>` | `Tensor` | `From`, or `TryFrom` for `IxDyn` | copied, in row-major order |
///
/// ```
/// use ndarray::{Array2, ArrayView2, array, s};
/// use stridemap::Tensor;
///
/// let points = Tensor::from(array![[1f32, 4.], [2., 1.], [3., 5.]].reversed_axes());
/// assert_eq!((points.size(), points.stride()), (&[2, 3][..], &[1, 2][..]));   // the array's buffer, unchanged
///
/// let flipped = points.flip(&[1])?;
/// let view = ArrayView2::<f32>::try_from(&flipped)?;                          // no copy, with a negative stride
/// assert_eq!(view, array![[3., 2., 1.], [5., 1., 4.]]);
/// let owned = Array2::<f32>::try_from(&flipped)?;                             // a copy
/// assert_eq!(owned, view);
///
/// let column = Tensor::from(view.slice(s![.., 0]));                           // a copy of what the view shows
/// assert_eq!(column.read::<f32>()?, [3., 5.]);
///
/// let refused = ArrayView2::<f32>::try_from(&column).unwrap_err();
/// let message = "convert to an array of 2 dimensions: the tensor has 1 (size [2]); use view, or convert to an ArrayD";
/// assert_eq!(refused.to_string(), message);
/// # Ok::<(), stridemap::Error>(())
/// ```
impl Tensor {
    /// Borrows the elements with their strides, without copying. For arrays of a known rank, use
    /// `ArrayView2::try_from(&tensor)` and similar conversions.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1f32, 2., 3., 4.], &[2, 2])?;
    /// let column = x.select(1, 0)?;
    /// assert_eq!(column.as_array::<f32>()?.sum(), 4.);
    /// assert_eq!(column.as_array::<f32>()?.strides(), [2]); // no copy
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::NeedsCopy`] for a file that is not mapped, and for misaligned
    /// elements; [`ErrorKind::LimitExceeded`] if `ndarray` does not support the view.
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.borrow_span("as_array")?)
    }
}

macro_rules! borrowed_from {
    ($($type:ty),*) => {$(
        /// Borrows the elements with their strides, without copying.
        ///
        /// # Errors
        /// [`ErrorKind::SizeMismatch`] if the number of dimensions differs; those of [`Tensor::as_array`].
        impl<'a, T: Element, D: Dimension> TryFrom<&'a $type> for ArrayView<'a, T, D> {
            type Error = Error;

            fn try_from(tensor: &'a $type) -> Result<Self> {
                check_rank::<D>(tensor)?;
                tensor.as_array()?.into_dimensionality().map_err(|e| refused("as_array", tensor, &e))
            }
        }
    )*};
}

borrowed_from!(Tensor, SharedGuard, ExclusiveGuard<'_>);

/// Mutably borrows the elements with their strides, without copying.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] if the number of dimensions differs; those of [`ExclusiveGuard::as_array_mut`].
impl<'a, T: Element, D: Dimension> TryFrom<&'a mut ExclusiveGuard<'_>> for ArrayViewMut<'a, T, D> {
    type Error = Error;

    fn try_from(guard: &'a mut ExclusiveGuard<'_>) -> Result<Self> {
        check_rank::<D>(guard)?;
        let tensor = Tensor::clone(guard);
        guard.as_array_mut()?.into_dimensionality().map_err(|e| refused("as_array_mut", &tensor, &e))
    }
}

/// Copies all elements, in row-major order.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] if the number of dimensions differs; [`ErrorKind::LimitExceeded`] for a size that
/// `ndarray` does not support: its product, without sizes of 0, exceeds `isize::MAX`; those of [`Tensor::read`].
impl<T: Element, D: Dimension> TryFrom<&Tensor> for Array<T, D> {
    type Error = Error;

    fn try_from(tensor: &Tensor) -> Result<Self> {
        check_rank::<D>(tensor)?;
        let array = ArrayD::from_shape_vec(IxDyn(tensor.size()), tensor.read()?);
        array.and_then(ArrayBase::into_dimensionality).map_err(|e| refused("convert to an array", tensor, &e))
    }
}

macro_rules! of_rank {
    ($($dim:ty),*) => {$(
        /// Takes ownership of the array without copying. The tensor, on the heap, has the strides of the array.
        impl<T: Element> From<Array<T, $dim>> for Tensor {
            fn from(array: Array<T, $dim>) -> Tensor {
                from_owned(array)
            }
        }

        /// Copies the elements to the heap, in row-major order.
        impl<T: Element> From<ArrayView<'_, T, $dim>> for Tensor {
            fn from(array: ArrayView<'_, T, $dim>) -> Tensor {
                copied(&array)
            }
        }

        /// Copies the elements to the heap, in row-major order.
        impl<T: Element, S: Data<Elem = T>> From<&ArrayBase<S, $dim>> for Tensor {
            fn from(array: &ArrayBase<S, $dim>) -> Tensor {
                copied(array)
            }
        }
    )*};
}

of_rank!(Ix0, Ix1, Ix2, Ix3, Ix4, Ix5, Ix6);

/// Takes ownership of the array without copying. The tensor, on the heap, has the strides of the array.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element> TryFrom<ArrayD<T>> for Tensor {
    type Error = Error;

    fn try_from(array: ArrayD<T>) -> Result<Tensor> {
        check_rank_limit(array.shape())?;
        Ok(from_owned(array))
    }
}

/// Copies the elements to the heap, in row-major order.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element> TryFrom<ArrayViewD<'_, T>> for Tensor {
    type Error = Error;

    fn try_from(array: ArrayViewD<'_, T>) -> Result<Tensor> {
        Tensor::try_from(&array)
    }
}

/// Copies the elements to the heap, in row-major order.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element, S: Data<Elem = T>> TryFrom<&ArrayBase<S, IxDyn>> for Tensor {
    type Error = Error;

    fn try_from(array: &ArrayBase<S, IxDyn>) -> Result<Tensor> {
        check_rank_limit(array.shape())?;
        Ok(copied(array))
    }
}

/// Takes ownership of an array of at most 64 dimensions.
fn from_owned<T: Element, D: Dimension>(array: Array<T, D>) -> Tensor {
    let (size, mut stride) = (array.shape().to_vec(), array.strides().to_vec());
    let (elements, first) = array.into_raw_vec_and_offset();
    if first.is_none() {
        // An empty array has no first element, and `ndarray` gives it strides of 0, unlike PyTorch.
        stride = contiguous_strides(&size).unwrap_or(stride);
    }
    Tensor::from_elements(elements, Layout::of_array(&size, &stride, first.unwrap_or_default()))
}

/// Copies an array of at most 64 dimensions.
fn copied<T: Element, S: Data<Elem = T>, D: Dimension>(array: &ArrayBase<S, D>) -> Tensor {
    from_owned(array.as_standard_layout().into_owned())
}

fn check_rank<D: Dimension>(tensor: &Tensor) -> Result<()> {
    match D::NDIM {
        Some(rank) if rank != tensor.ndim() => Err(Error::new(
            ErrorKind::SizeMismatch,
            format!(
                "convert to an array of {rank} dimension{}: the tensor has {} (size {:?}); use view, or convert to an \
                 ArrayD",
                if rank == 1 { "" } else { "s" },
                tensor.ndim(),
                tensor.size()
            ),
        )),
        _ => Ok(()),
    }
}

fn check_rank_limit(size: &[usize]) -> Result<()> {
    if size.len() <= MAX_RANK {
        return Ok(());
    }
    let rank = size.len();
    let message = format!("convert from an array: {rank} dimensions, but a tensor has at most {MAX_RANK}");
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

/// Borrowing as `ndarray` arrays (feature `ndarray`, on by default).
impl SharedGuard {
    /// Borrows the elements with their strides, without copying.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[[1f32, 2.], [3., 4.]], StorageKind::Mutable))?;
    /// let guard = store.load("x")?.t()?.lock_shared()?;
    /// assert_eq!(guard.as_array::<f32>()?[[0, 1]], 3.); // transposed
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch`, `NeedsCopy` and `LimitExceeded`, as for [`Tensor::as_array`].
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.borrow_span("as_array")?)
    }
}

/// Borrowing as `ndarray` arrays (feature `ndarray`, on by default).
impl ExclusiveGuard<'_> {
    /// Borrows the elements with their strides, without copying.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[[1f32, 2.], [3., 4.]], StorageKind::Mutable))?;
    /// let guard = store.load("x")?.lock_exclusive()?;
    /// assert_eq!(guard.as_array::<f32>()?.sum(), 10.);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch`, `NeedsCopy` and `LimitExceeded`, as for [`Tensor::as_array`].
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.borrow_span("as_array")?)
    }

    /// Mutably borrows the elements with their strides, without copying.
    ///
    /// ```
    /// use ndarray::{ArrayView2, ArrayViewMut2, array};
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("x", &[[1f32, 2.], [3., 4.]], StorageKind::Mutable))?;
    /// let mut guard = store.load("x")?.lock_exclusive()?;
    /// guard.as_array_mut::<f32>()?[[0, 1]] = 9.;
    /// ArrayViewMut2::<f32>::try_from(&mut guard)?[[1, 0]] = 8.; // of a known rank
    /// assert_eq!(ArrayView2::<f32>::try_from(&guard)?, array![[1., 9.], [8., 4.]]);
    /// drop(guard);
    /// let shared = store.load("x")?.lock_shared()?;
    /// assert_eq!(ArrayView2::<f32>::try_from(&shared)?, array![[1., 9.], [8., 4.]]);
    /// assert!(ndarray::ArrayView1::<f32>::try_from(&shared).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch`, `NeedsCopy` and `LimitExceeded`, as for [`Tensor::as_array`]; [`ErrorKind::Unsupported`] if
    /// several indices refer to one element; [`ErrorKind::LimitExceeded`] if no elements overlap but `ndarray` cannot
    /// verify this, for example for size `[3, 2]` with stride `[2, 3]`. `ndarray` requires each stride to exceed the
    /// distance from the first to the last element along all dimensions with smaller strides. The methods of the guard
    /// work on such views.
    pub fn as_array_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        self.check_dtype::<T>("as_array_mut")?;
        let tensor = Tensor::clone(self);
        let run = self.borrow_span_mut("as_array_mut")?;
        ArrayViewMutD::from_shape(shape_of(&tensor), run).map_err(|e| refused("as_array_mut", &tensor, &e))
    }
}

fn view_of<'a, T>(tensor: &Tensor, run: &'a [T]) -> Result<ArrayViewD<'a, T>> {
    ArrayViewD::from_shape(shape_of(tensor), run).map_err(|e| refused("as_array", tensor, &e))
}

/// Returns the size and strides in the form that `ndarray` expects for a slice that starts at the lowest element: a
/// negative stride is given as its two's complement.
fn shape_of(tensor: &Tensor) -> StrideShape<IxDyn> {
    let stride = tensor.layout().strides_with_unused_as_one().into_iter();
    let stride: Vec<usize> = stride.map(isize::cast_unsigned).collect();
    let is_empty = tensor.numel() == 0;
    if is_empty { IxDyn(tensor.size()).into() } else { IxDyn(tensor.size()).strides(IxDyn(&stride)) }
}

fn refused(op: &str, tensor: &Tensor, e: &ndarray::ShapeError) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("{op}: ndarray refuses size {:?} with stride {:?}: {e}", tensor.size(), tensor.stride()),
    )
}
