//! Arrays of `ndarray`, of every rank.

use ndarray::{
    Array, ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Data, Dimension, Ix0, Ix1, Ix2, Ix3, Ix4,
    Ix5, Ix6, IxDyn, ShapeBuilder as _, StrideShape,
};
use stridemap_format::DType;
use stridemap_format::limits::MAX_RANK;

use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Layout, contiguous_strides};
use crate::tensor::{Element, ExclusiveGuard, SharedGuard, Source, Tensor};

/// Elements of an array that is not in row-major order are gathered so many at a time.
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

/// Borrows as arrays of `ndarray` (feature `ndarray`, on by default). The other conversions are `From` and `TryFrom`, from
/// and to arrays of every rank:
///
/// | from | to | by | elements are |
/// |---|---|---|---|
/// | `&Tensor` | `ArrayView<T, D>` | `TryFrom` | borrowed as they stand |
/// | `&Tensor` | `Array<T, D>` | `TryFrom` | copied, in row-major order |
/// | `Array<T, D>` | `Tensor` | `From`, `TryFrom` of an `ArrayD` | taken over as they stand |
/// | `ArrayView<T, D>`, any `&ArrayBase<_, D>` | `Tensor` | `From`, `TryFrom` of `IxDyn` | copied, in row-major order |
///
/// ```
/// use ndarray::{Array2, ArrayView2, array, s};
/// use stridemap::Tensor;
///
/// let points = Tensor::from(array![[1f32, 4.], [2., 1.], [3., 5.]].reversed_axes());
/// assert_eq!((points.size(), points.stride()), (&[2, 3][..], &[1, 2][..]));   // the array's buffer, as it was
///
/// let flipped = points.flip(&[1])?;
/// let view = ArrayView2::<f32>::try_from(&flipped)?;                          // no copy, and here is a negative stride
/// assert_eq!(view, array![[3., 2., 1.], [5., 1., 4.]]);
/// let owned = Array2::<f32>::try_from(&flipped)?;                             // a copy
/// assert_eq!(owned, view);
///
/// let column = Tensor::from(view.slice(s![.., 0]));                           // a copy of what the view shows
/// assert_eq!(column.read::<f32>()?, [3., 5.]);
///
/// let refused = ArrayView2::<f32>::try_from(&column).unwrap_err();
/// assert_eq!(refused.to_string(), "to an array of 2 dimensions: size [2] has 1; use view, or an ArrayD");
/// # Ok::<(), stridemap::Error>(())
/// ```
impl Tensor {
    /// Borrows the elements as they stand, whatever the strides: nothing is copied. For an array of a known rank there is
    /// `ArrayView2::try_from(&tensor)` and its kin.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::NotMapped`] for a file that was not mapped;
    /// [`ErrorKind::Misaligned`]; [`ErrorKind::LimitExceeded`] when `ndarray` cannot have such a view.
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.reach("as_array")?)
    }
}

/// Borrows the elements as they stand, whatever the strides: nothing is copied.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] for another number of dimensions; those of [`Tensor::as_array`].
impl<'a, T: Element, D: Dimension> TryFrom<&'a Tensor> for ArrayView<'a, T, D> {
    type Error = Error;

    fn try_from(tensor: &'a Tensor) -> Result<Self> {
        check_rank::<D>(tensor)?;
        let array = tensor.as_array()?;
        array.into_dimensionality().map_err(|e| refused("as_array", tensor, &e))
    }
}

/// Copies all elements, in row-major order.
///
/// # Errors
/// [`ErrorKind::SizeMismatch`] for another number of dimensions; [`ErrorKind::LimitExceeded`] for a size that `ndarray`
/// cannot have: without its zeros it has more than 2^63 elements; those of [`Tensor::read`].
impl<T: Element, D: Dimension> TryFrom<&Tensor> for Array<T, D> {
    type Error = Error;

    fn try_from(tensor: &Tensor) -> Result<Self> {
        check_rank::<D>(tensor)?;
        let array = ArrayD::from_shape_vec(IxDyn(tensor.size()), tensor.read()?);
        array.and_then(ArrayBase::into_dimensionality).map_err(|e| refused("to an array", tensor, &e))
    }
}

macro_rules! of_rank {
    ($($dim:ty),*) => {$(
        /// Takes the array over without a copy, whatever its strides: they become those of the tensor, on its heap storage.
        impl<T: Element> From<Array<T, $dim>> for Tensor {
            fn from(array: Array<T, $dim>) -> Tensor {
                taken_over(array)
            }
        }

        /// Copies the elements, in row-major order, onto the heap.
        impl<T: Element> From<ArrayView<'_, T, $dim>> for Tensor {
            fn from(array: ArrayView<'_, T, $dim>) -> Tensor {
                copied(&array)
            }
        }

        /// Copies the elements, in row-major order, onto the heap.
        impl<T: Element, S: Data<Elem = T>> From<&ArrayBase<S, $dim>> for Tensor {
            fn from(array: &ArrayBase<S, $dim>) -> Tensor {
                copied(array)
            }
        }
    )*};
}

of_rank!(Ix0, Ix1, Ix2, Ix3, Ix4, Ix5, Ix6);

/// Takes the array over without a copy, whatever its strides: they become those of the tensor, on its heap storage.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element> TryFrom<ArrayD<T>> for Tensor {
    type Error = Error;

    fn try_from(array: ArrayD<T>) -> Result<Tensor> {
        check_limit(array.shape())?;
        Ok(taken_over(array))
    }
}

/// Copies the elements, in row-major order, onto the heap.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element> TryFrom<ArrayViewD<'_, T>> for Tensor {
    type Error = Error;

    fn try_from(array: ArrayViewD<'_, T>) -> Result<Tensor> {
        Tensor::try_from(&array)
    }
}

/// Copies the elements, in row-major order, onto the heap.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
impl<T: Element, S: Data<Elem = T>> TryFrom<&ArrayBase<S, IxDyn>> for Tensor {
    type Error = Error;

    fn try_from(array: &ArrayBase<S, IxDyn>) -> Result<Tensor> {
        check_limit(array.shape())?;
        Ok(copied(array))
    }
}

/// An array that has at most 64 dimensions.
fn taken_over<T: Element, D: Dimension>(array: Array<T, D>) -> Tensor {
    let (size, mut stride) = (array.shape().to_vec(), array.strides().to_vec());
    let (elements, first) = array.into_raw_vec_and_offset();
    if first.is_none() {
        // Of no elements there is no first one, and `ndarray` has zeros where PyTorch has strides.
        stride = contiguous_strides(&size).unwrap_or(stride);
    }
    Tensor::over(elements, Layout::of_array(&size, &stride, first.unwrap_or_default()))
}

/// Of an array that has at most 64 dimensions.
fn copied<T: Element, S: Data<Elem = T>, D: Dimension>(array: &ArrayBase<S, D>) -> Tensor {
    taken_over(array.as_standard_layout().into_owned())
}

fn check_rank<D: Dimension>(tensor: &Tensor) -> Result<()> {
    match D::NDIM {
        Some(rank) if rank != tensor.ndim() => Err(Error::new(
            ErrorKind::SizeMismatch,
            format!(
                "to an array of {rank} dimensions: size {:?} has {}; use view, or an ArrayD",
                tensor.size(),
                tensor.ndim()
            ),
        )),
        _ => Ok(()),
    }
}

fn check_limit(size: &[usize]) -> Result<()> {
    if size.len() <= MAX_RANK {
        return Ok(());
    }
    let message = format!("from an array: {} dimensions, where a tensor has at most {MAX_RANK}", size.len());
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

/// Arrays of `ndarray` (feature `ndarray`, on by default).
impl SharedGuard {
    /// Borrows the elements as they stand, whatever the strides.
    ///
    /// # Errors
    /// Those of [`Tensor::as_array`].
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.reach("as_array")?)
    }
}

/// Arrays of `ndarray` (feature `ndarray`, on by default).
impl ExclusiveGuard<'_> {
    /// Borrows the elements as they stand, whatever the strides.
    ///
    /// # Errors
    /// Those of [`Tensor::as_array`].
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.reach("as_array")?)
    }

    /// Borrows the elements as they stand, whatever the strides, to change them.
    ///
    /// # Errors
    /// Those of [`Tensor::as_array`]; [`ErrorKind::Overlapping`] when several indices are one element;
    /// [`ErrorKind::LimitExceeded`] when none are, and `ndarray` cannot tell: it asks that a step of each dimension leads
    /// past all that the shorter steps reach. Size 3, 2 with stride 2, 3 is such a view. The guard's own operations work.
    pub fn as_array_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        self.check_dtype::<T>("as_array_mut")?;
        let tensor = Tensor::clone(self);
        let run = self.reach_mut("as_array_mut")?;
        ArrayViewMutD::from_shape(shape_of(&tensor), run).map_err(|e| refused("as_array_mut", &tensor, &e))
    }
}

fn view_of<'a, T>(tensor: &Tensor, run: &'a [T]) -> Result<ArrayViewD<'a, T>> {
    ArrayViewD::from_shape(shape_of(tensor), run).map_err(|e| refused("as_array", tensor, &e))
}

/// `ndarray` takes the run from the lowest element on, and a negative stride as its two's complement.
fn shape_of(tensor: &Tensor) -> StrideShape<IxDyn> {
    let stride = tensor.layout().lent_strides().into_iter();
    let stride: Vec<usize> = stride.map(isize::cast_unsigned).collect();
    let is_plain = tensor.numel() == 0;
    if is_plain { IxDyn(tensor.size()).into() } else { IxDyn(tensor.size()).strides(IxDyn(&stride)) }
}

fn refused(op: &str, tensor: &Tensor, e: &ndarray::ShapeError) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("{op}: ndarray refuses size {:?} with stride {:?}: {e}", tensor.size(), tensor.stride()),
    )
}
