//! Windows, and views with arbitrary strides.

use crate::error::{FormatContext, Result};
use crate::layout::{self, Axis, Integer, Integers, listed, non_negative, non_negative_list};
use crate::tensor::Tensor;

/// Views that may contain an element more than once.
impl Tensor {
    /// Returns all windows of `size` along an axis, `step` apart. The axis then has one position per window, and a new
    /// last axis of length `size` holds the elements of each.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[7, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.unfold(0, 3, 2)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 2, 3][..], &[4, 1, 2][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist, or a window longer than the
    /// axis; [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a negative size, or a step below 1;
    /// [`LimitExceeded`](crate::ErrorKind::LimitExceeded) for a 65th axis.
    pub fn unfold<'a>(
        &self,
        axis: impl Into<Axis<'a>>,
        size: impl Integer,
        step: impl Integer,
    ) -> Result<Tensor> {
        let (size, step) = (non_negative("unfold", "size", size)?, non_negative("unfold", "step", step)?);
        self.viewed(layout::unfold(self.header(), axis.into(), size, step))
    }

    /// Returns all windows of the given size along each of the axes, 1 apart, as NumPy's `sliding_window_view` does.
    /// New last axes, of these sizes, hold the elements of each window.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.sliding_window_view([2, 2], [0, 1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 2, 2][..], &[4, 1, 4, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist, or a window longer than its
    /// axis; [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a negative size, or if the numbers of sizes
    /// and axes differ; [`LimitExceeded`](crate::ErrorKind::LimitExceeded) for a 65th axis.
    pub fn sliding_window_view<'a>(
        &self,
        window: impl Integers,
        axes: impl IntoIterator<Item = impl Into<Axis<'a>>>,
    ) -> Result<Tensor> {
        let window = non_negative_list("sliding_window_view", "window", window)?;
        self.viewed(layout::sliding_window_view(self.header(), &window, &listed(axes)))
    }

    /// Views the storage with any size, stride and storage offset, in elements. An offset of `None` keeps the offset
    /// of this tensor. Strides may be negative.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 3])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// let view = x.as_strided([2, 2], [1, 2], 1)?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[2, 2][..], &[1, 2][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) if an element would be outside the storage;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a negative size, or if the numbers of sizes and
    /// strides differ; [`LimitExceeded`](crate::ErrorKind::LimitExceeded) for more than 64 dimensions or too many
    /// elements.
    pub fn as_strided(
        &self,
        size: impl Integers,
        stride: impl Integers,
        storage_offset: impl Into<Option<usize>>,
    ) -> Result<Tensor> {
        let (size, stride) = (non_negative_list("as_strided", "size", size)?, stride.to_vec());
        let view = layout::as_strided(self.header(), &size, &stride, storage_offset.into())?;
        let op = format_args!("as_strided({size:?}, {stride:?}, {})", view.storage_offset());
        view.extent(self.storage_nbytes()).refused_to(op)?;
        Ok(self.with_header(view))
    }
}
