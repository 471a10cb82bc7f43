//! Arrays of `ndarray`, of every rank.

use ndarray::{
    ArrayBase, ArrayD, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn, ShapeBuilder as _, StrideShape,
};
use stridemap_format::DType;

use crate::error::{Error, ErrorKind, Result};
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

/// From and to arrays of `ndarray` (feature `ndarray`, on by default).
impl Tensor {
    /// Copies an array, in row-major order, onto the heap.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for more than 64 dimensions.
    pub fn from_array<T: Element, S: Data<Elem = T>, D: Dimension>(
        array: &ArrayBase<S, D>,
    ) -> Result<Tensor> {
        Tensor::from_vec(array.iter().copied().collect(), array.shape())
    }

    /// Copies all elements into an array, in row-major order.
    ///
    /// # Errors
    /// Those of [`read`](Tensor::read).
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(self.size()), self.read()?).map_err(|e| refused("to_array", self, &e))
    }

    /// Borrows the elements as they stand, whatever the strides: nothing is copied.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::NotMapped`] for a file that was not mapped;
    /// [`ErrorKind::Misaligned`].
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_dtype::<T>("as_array")?;
        view_of(self, self.reach("as_array")?)
    }
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
    let stride: Vec<usize> = tensor.stride().iter().map(|&step| step.cast_unsigned()).collect();
    let is_plain = tensor.numel() == 0;
    if is_plain { IxDyn(tensor.size()).into() } else { IxDyn(tensor.size()).strides(IxDyn(&stride)) }
}

fn refused(op: &str, tensor: &Tensor, e: &ndarray::ShapeError) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("{op}: ndarray refuses size {:?} with stride {:?}: {e}", tensor.size(), tensor.stride()),
    )
}
