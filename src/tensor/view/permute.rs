use crate::error::Result;
use crate::layout::{Axes, Axis};
use crate::tensor::Tensor;

/// Views of the same elements in another order of axes.
impl Tensor {
    /// Exchanges two axes.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.transpose(0, 2)?;
    /// assert_eq!((view.size(), view.stride()), (&[5, 4, 3][..], &[1, 5, 20][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn transpose<'a>(&self, axis0: impl Into<Axis<'a>>, axis1: impl Into<Axis<'a>>) -> Result<Tensor> {
        self.viewed(self.layout().transpose(axis0.into(), axis1.into()))
    }

    /// [`transpose`](Self::transpose), by NumPy's name.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.swapaxes(0, 1)?;
    /// assert_eq!((view.size(), view.stride()), (&[4, 3, 5][..], &[5, 20, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn swapaxes<'a>(&self, axis0: impl Into<Axis<'a>>, axis1: impl Into<Axis<'a>>) -> Result<Tensor> {
        self.transpose(axis0, axis1)
    }

    /// Exchanges the two axes of a matrix; a vector or a single element stays as it is.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.t()?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3][..], &[1, 2][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for more than two axes.
    pub fn t(&self) -> Result<Tensor> {
        self.viewed(self.layout().t())
    }

    /// Exchanges the last two axes: PyTorch's `mT`. A single element stays as it is.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.mt()?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 5, 4][..], &[20, 1, 5][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a vector.
    pub fn mt(&self) -> Result<Tensor> {
        self.viewed(self.layout().mt())
    }

    /// Puts the axes in another order: axis `axes[i]` becomes axis `i`.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.permute([2, 0, 1])?;
    /// assert_eq!((view.size(), view.stride()), (&[5, 3, 4][..], &[1, 20, 5][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless each axis stands once;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn permute<'a>(&self, axes: impl Into<Axes<'a>>) -> Result<Tensor> {
        self.viewed(self.layout().permute(&axes.into()))
    }

    /// Moves axes to other places; those that are not named keep their order around them.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.movedim(0, -1)?;
    /// assert_eq!((view.size(), view.stride()), (&[4, 5, 3][..], &[5, 1, 20][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an axis or a place named twice, or more of one than of
    /// the other; [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn movedim<'a>(
        &self,
        source: impl Into<Axes<'a>>,
        destination: impl Into<Axes<'a>>,
    ) -> Result<Tensor> {
        self.viewed(self.layout().movedim(&source.into(), &destination.into()))
    }
}
