//! Views with reordered axes.

use crate::error::Result;
use crate::layout::{self, Axis, listed};
use crate::tensor::Tensor;

/// Views of the same elements with the axes in a different order.
impl Tensor {
    /// Swaps two axes.
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
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn transpose<'a>(&self, axis0: impl Into<Axis<'a>>, axis1: impl Into<Axis<'a>>) -> Result<Tensor> {
        self.viewed(layout::transpose(self.header(), axis0.into(), axis1.into()))
    }

    /// Transposes a matrix. A tensor with fewer than two axes is returned unchanged.
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
        self.viewed(layout::t(self.header()))
    }

    /// Reorders the axes: axis `axes[i]` becomes axis `i`.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless each axis is listed exactly once;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn permute<'a>(&self, axes: impl IntoIterator<Item = impl Into<Axis<'a>>>) -> Result<Tensor> {
        self.viewed(layout::permute(self.header(), &listed(axes)))
    }

    /// Moves axes to new positions. The other axes keep their order.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4, 5])?;
    /// assert_eq!(x.stride(), [20, 5, 1]);
    /// let view = x.movedim([0], [-1])?;
    /// assert_eq!((view.size(), view.stride()), (&[4, 5, 3][..], &[5, 1, 20][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if an axis or a position is listed twice, or the two
    /// lists differ in length; [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis or a position that does not
    /// exist.
    pub fn movedim<'a>(
        &self,
        source: impl IntoIterator<Item = impl Into<Axis<'a>>>,
        destination: impl IntoIterator<Item = impl Into<Axis<'a>>>,
    ) -> Result<Tensor> {
        self.viewed(layout::movedim(self.header(), &listed(source), &listed(destination)))
    }
}
