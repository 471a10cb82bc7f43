//! Views with different dimensions, and copies where strides cannot express the result.

use stridemap_format::Header;

use crate::error::{ErrorKind, Result};
use crate::layout::{self, Axis, Integer, Integers, listed};
use crate::tensor::Tensor;
use crate::tensor::copy;

/// Views with different dimensions.
///
/// [`reshape`](Self::reshape) and [`flatten`](Self::flatten) copy if no strides can express the result.
/// [`contiguous`](Self::contiguous) copies if the tensor is not contiguous. PyTorch copies in the same cases. [`shares_storage`](Self::shares_storage) shows whether they copied.
impl Tensor {
    /// Removes axes of size 1 and ignores listed axes of other sizes.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[1, 3, 1, 2])?;
    /// assert_eq!(x.stride(), [6, 2, 2, 1]);
    /// let view = x.squeeze([0])?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 2][..], &[2, 2, 1][..]));
    /// assert_eq!(x.squeeze([0, 1, 2])?.size(), [3, 2]);
    /// assert_eq!(x.squeeze(0..x.ndim())?.size(), [3, 2]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange) for an axis that does not exist;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an axis listed twice.
    pub fn squeeze<'a>(&self, axes: impl IntoIterator<Item = impl Into<Axis<'a>>>) -> Result<Tensor> {
        self.viewed(layout::squeeze(self.header(), &listed(axes)))
    }

    /// Inserts an axis of size 1 at position `axis` of the result.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.unsqueeze(1)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 2][..], &[2, 2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange) for a position that does not exist;
    /// [`LimitExceeded`](ErrorKind::LimitExceeded) for a 65th axis.
    pub fn unsqueeze(&self, axis: impl Integer) -> Result<Tensor> {
        self.viewed(layout::unsqueeze(self.header(), axis.to_isize()))
    }

    /// Adds leading axes and repeats axes of size 1, without copying: repeated axes have a stride of 0. A size of -1
    /// keeps the current size.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 1])?;
    /// assert_eq!(x.stride(), [1, 1]);
    /// let view = x.expand([2, -1, 4])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 4][..], &[0, 1, 0][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SizeMismatch`](ErrorKind::SizeMismatch) if an axis to repeat does not have size 1, or for fewer sizes than
    /// axes; [`InvalidArgument`](ErrorKind::InvalidArgument) for a size below -1, or for -1 on a new axis.
    pub fn expand(&self, size: impl Integers) -> Result<Tensor> {
        self.viewed(layout::expand(self.header(), &size.to_vec()))
    }

    /// Views the same elements, in the same order, with a different size. One size may be -1 and is then inferred.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.view([2, -1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 6][..], &[6, 1][..]));
    /// assert_eq!(x.t()?.view([12]).unwrap_err().kind(), stridemap::ErrorKind::NeedsCopy);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NeedsCopy`](ErrorKind::NeedsCopy) if no strides can express the view; [`reshape`](Self::reshape) then
    /// copies. [`SizeMismatch`](ErrorKind::SizeMismatch) if the number of elements differs;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a size below -1, or if a -1 cannot be inferred.
    pub fn view(&self, size: impl Integers) -> Result<Tensor> {
        self.viewed(layout::view(self.header(), &size.to_vec()))
    }

    /// Splits one axis into several. One size may be -1 and is then inferred.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 12])?;
    /// assert_eq!(x.stride(), [12, 1]);
    /// let view = x.unflatten(1, [3, -1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 4][..], &[12, 4, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SizeMismatch`](ErrorKind::SizeMismatch) if the product of the sizes is not the size of the axis;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no sizes, a size below -1, or if a -1 cannot be inferred;
    /// [`OutOfRange`](ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn unflatten<'a>(&self, axis: impl Into<Axis<'a>>, sizes: impl Integers) -> Result<Tensor> {
        self.viewed(layout::unflatten(self.header(), axis.into(), &sizes.to_vec()))
    }

    /// Changes the size: a [`view`](Self::view) if strides can express it, otherwise a view of a
    /// [`contiguous`](Self::contiguous) copy.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// assert_eq!(x.reshape([6, 2])?.stride(), [2, 1]);
    /// assert!(x.reshape([6, 2])?.shares_storage(&x));
    /// let copy = x.t()?.reshape([6, 2])?;
    /// assert_eq!((copy.size(), copy.stride()), (&[6, 2][..], &[2, 1][..]));
    /// assert!(!copy.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SizeMismatch`](ErrorKind::SizeMismatch); [`OutOfMemory`](ErrorKind::OutOfMemory) and [`Io`](ErrorKind::Io) if
    /// it copies.
    pub fn reshape(&self, size: impl Integers) -> Result<Tensor> {
        let size = size.to_vec();
        self.view_or_copy(|header| layout::view_by(header, format_args!("reshape({size:?})"), &size))
    }

    /// Joins the axes from `start` to `end`, inclusive, copying if [`reshape`](Self::reshape) would. A single element
    /// becomes a vector of one.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3, 4])?;
    /// assert_eq!(x.stride(), [12, 4, 1]);
    /// let view = x.flatten(1, -1)?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 12][..], &[12, 1][..]));
    /// assert!(view.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange) for an axis that does not exist;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `start` comes after `end`; those of
    /// [`to_bytes`](Self::to_bytes) if it copies.
    pub fn flatten<'a>(&self, start: impl Into<Axis<'a>>, end: impl Into<Axis<'a>>) -> Result<Tensor> {
        let (start, end) = (start.into(), end.into());
        self.view_or_copy(|header| layout::flatten(header, start, end))
    }

    fn view_or_copy(&self, view: impl Fn(&Header) -> Result<Header>) -> Result<Tensor> {
        match view(self.header()) {
            Err(e) if e.kind() == ErrorKind::NeedsCopy => {
                let copy = self.contiguous()?;
                copy.viewed(view(copy.header()))
            }
            viewed => self.viewed(viewed),
        }
    }

    /// Returns this tensor if it is contiguous, otherwise a row-major copy on the heap.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// assert!(x.contiguous()?.shares_storage(&x));
    /// let view = x.t()?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 2][..], &[1, 3][..]));
    /// let copy = view.contiguous()?;
    /// assert_eq!((copy.size(), copy.stride()), (&[3, 2][..], &[2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if there is not enough memory; [`Io`](ErrorKind::Io).
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    /// Copies the elements to the heap in row-major order, even if they already have that order. This is PyTorch's
    /// `clone` with `contiguous_format`.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// let view = x.select(1, 0)?;
    /// assert_eq!((view.size(), view.stride()), (&[2][..], &[3][..]));
    /// let copy = view.clone_data()?;
    /// assert_eq!((copy.size(), copy.stride()), (&[2][..], &[1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if there is not enough memory; [`Io`](ErrorKind::Io).
    pub fn clone_data(&self) -> Result<Tensor> {
        let header = layout::row_major(self.header(), self.dtype(), self.size())?;
        Tensor::filled(header, |out| copy::gather(&*self.steady()?, out))
    }
}
