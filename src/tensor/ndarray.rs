//! Conversions between tensors and `ndarray` arrays of every rank.

use ndarray::{
    Array, ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Data, Dimension, IxDyn,
    ShapeBuilder as _, StrideShape,
};
use stridemap_format::{DType, Header};

use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout::strides_with_unused_as_one;
use crate::tensor::{Element, ExclusiveGuard, SharedGuard, Source, Tensor};

/// The number of elements gathered at a time from an array that is not in row-major order.
const PIECE_ELEMS: usize = 1 << 16;

/// What an error says was refused.
const BORROW: &str = "borrow as an array";
const BORROW_MUT: &str = "borrow as a mutable array";

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

macro_rules! borrowed_from {
    ($($type:ty),*) => {$(
        /// Borrows the elements with their strides, without copying.
        ///
        /// # Errors
        /// [`ErrorKind::SizeMismatch`] if the number of dimensions differs; [`ErrorKind::DTypeMismatch`];
        /// [`ErrorKind::NeedsCopy`] for a file that is not mapped, and for misaligned elements;
        /// [`ErrorKind::LimitExceeded`] if `ndarray` does not support the view.
        impl<'a, T: Element, D: Dimension> TryFrom<&'a $type> for ArrayView<'a, T, D> {
            type Error = Error;

            fn try_from(tensor: &'a $type) -> Result<Self> {
                check_rank::<D>(tensor)?;
                tensor.check_dtype::<T>(BORROW)?;
                let array = ArrayViewD::from_shape(shape_of(tensor), tensor.borrow_span(BORROW)?);
                array.and_then(ArrayBase::into_dimensionality).map_err(|e| refused(BORROW, tensor, &e))
            }
        }
    )*};
}

borrowed_from!(Tensor, SharedGuard, ExclusiveGuard<'_>);

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
/// ArrayViewMut2::<f32>::try_from(&mut guard)?[[0, 1]] = 9.;
/// assert_eq!(ArrayView2::<f32>::try_from(&guard)?, array![[1., 9.], [3., 4.]]);
/// drop(guard);
/// let shared = store.load("x")?.lock_shared()?;
/// assert_eq!(ArrayView2::<f32>::try_from(&shared)?, array![[1., 9.], [3., 4.]]);
/// assert!(ndarray::ArrayView1::<f32>::try_from(&shared).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ErrorKind::SizeMismatch`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::NeedsCopy`] and
/// [`ErrorKind::LimitExceeded`], as for an `ArrayView`; [`ErrorKind::Unsupported`] if several indices refer to one
/// element; [`ErrorKind::LimitExceeded`] also if no elements overlap but `ndarray` cannot verify this, for example for
/// size `[3, 2]` with stride `[2, 3]`. `ndarray` requires each stride to exceed the distance from the first to the last
/// element along all dimensions with smaller strides. The methods of the guard work on such views.
impl<'a, T: Element, D: Dimension> TryFrom<&'a mut ExclusiveGuard<'_>> for ArrayViewMut<'a, T, D> {
    type Error = Error;

    fn try_from(guard: &'a mut ExclusiveGuard<'_>) -> Result<Self> {
        borrow_mut(guard.change(|guard| borrow_mut::<T, D>(guard).map(|_| ()))?)
    }
}

fn borrow_mut<'a, T: Element, D: Dimension>(
    guard: &'a mut ExclusiveGuard<'_>,
) -> Result<ArrayViewMut<'a, T, D>> {
    check_rank::<D>(guard)?;
    guard.check_dtype::<T>(BORROW_MUT)?;
    let tensor = Tensor::clone(guard);
    let array = ArrayViewMutD::from_shape(shape_of(&tensor), guard.borrow_span_mut(BORROW_MUT)?);
    array.and_then(ArrayBase::into_dimensionality).map_err(|e| refused(BORROW_MUT, &tensor, &e))
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

/// Takes ownership of the array without copying. The tensor, on the heap, has the strides of the array.
///
/// These conversions are between tensors and arrays of every rank (feature `ndarray`, on by default), by `TryFrom`:
///
/// | from | to | elements are |
/// |---|---|---|
/// | `&Tensor`, `&SharedGuard`, `&ExclusiveGuard` | `ArrayView<T, D>` | borrowed, with their strides |
/// | `&mut ExclusiveGuard` | `ArrayViewMut<T, D>` | mutably borrowed, with their strides |
/// | `&Tensor` | `Array<T, D>` | copied, in row-major order |
/// | `Array<T, D>` | `Tensor` | moved, with their strides |
/// | `&ArrayBase<_, D>` | `Tensor` | copied, in row-major order |
///
/// ```
/// use ndarray::{Array2, ArrayView2, array, s};
/// use stridemap::Tensor;
///
/// let points = Tensor::try_from(array![[1f32, 4.], [2., 1.], [3., 5.]].reversed_axes())?;
/// assert_eq!((points.size(), points.stride()), (&[2, 3][..], &[1, 2][..]));   // the array's buffer, unchanged
///
/// let flipped = points.flip([1])?;
/// let view = ArrayView2::<f32>::try_from(&flipped)?;                          // no copy, with a negative stride
/// assert_eq!(view, array![[3., 2., 1.], [5., 1., 4.]]);
/// let owned = Array2::<f32>::try_from(&flipped)?;                             // a copy
/// assert_eq!(owned, view);
///
/// let column = Tensor::try_from(&view.slice(s![.., 0]))?;                     // a copy of what the view shows
/// assert_eq!(column.read::<f32>()?, [3., 5.]);
///
/// let refused = ArrayView2::<f32>::try_from(&column).unwrap_err();
/// let message = "convert to an array of 2 dimensions: the tensor has 1 (size [2]); use view, or convert to an ArrayD";
/// assert_eq!(refused.to_string(), message);
/// # Ok::<(), stridemap::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = Error;

    fn try_from(array: Array<T, D>) -> Result<Tensor> {
        let (size, stride) = (array.shape().to_vec(), array.strides().to_vec());
        let (elements, first) = array.into_raw_vec_and_offset();
        // An empty array has no first element, and `ndarray` gives it strides of 0, unlike PyTorch.
        let header = match first {
            None => Header::contiguous(T::DTYPE, &size),
            Some(first) => Header::new(T::DTYPE, size, stride, first),
        };
        Ok(Tensor::from_elements(elements, header.refused_to("convert from an array")?))
    }
}

/// Copies the elements to the heap, in row-major order.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Tensor> {
        Tensor::try_from(array.as_standard_layout().into_owned())
    }
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

/// Returns the size and strides in the form that `ndarray` expects for a slice that starts at the lowest element: a
/// negative stride is given as its two's complement.
fn shape_of(tensor: &Tensor) -> StrideShape<IxDyn> {
    let stride = strides_with_unused_as_one(tensor.header()).into_iter();
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
