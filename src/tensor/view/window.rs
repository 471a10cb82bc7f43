use crate::error::{Error, Result};
use crate::layout::{Axes, Axis, Integer, Integers, count, counts};
use crate::tensor::Tensor;

/// Views in which an element may stand more than once.
impl Tensor {
    /// All windows of `size` along an axis, `step` apart: their number takes the axis' place, and a last axis of that
    /// size is added.
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
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a step
    /// of 0.
    pub fn unfold<'a>(
        &self,
        axis: impl Into<Axis<'a>>,
        size: impl Integer,
        step: impl Integer,
    ) -> Result<Tensor> {
        let (size, step) = (count("unfold", "size", size)?, count("unfold", "step", step)?);
        self.viewed(self.layout().unfold(axis.into(), size, step))
    }

    /// NumPy's: for each axis all windows of a size, 1 apart. The windows' sizes are added as last axes. `..` stands for
    /// all axes.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.sliding_window_view([2, 2], ..)?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 2, 2][..], &[4, 1, 4, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless there
    /// are as many sizes as axes.
    pub fn sliding_window_view<'a>(
        &self,
        window: impl Integers,
        axes: impl Into<Axes<'a>>,
    ) -> Result<Tensor> {
        let window = counts("sliding_window_view", "window", window)?;
        self.viewed(self.layout().sliding_window_view(&window, &axes.into()))
    }

    /// Any size and stride over the same storage, in elements, from an offset in the storage; `None` is the offset that
    /// this tensor has. Strides may be negative.
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
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) when an element would lie outside the storage;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless there are as many strides as sizes;
    /// [`LimitExceeded`](crate::ErrorKind::LimitExceeded).
    pub fn as_strided(
        &self,
        size: impl Integers,
        stride: impl Integers,
        storage_offset: impl Into<Option<usize>>,
    ) -> Result<Tensor> {
        let (size, stride) = (counts("as_strided", "size", size)?, stride.to_vec());
        let layout = self.layout().as_strided(&size, &stride, storage_offset.into())?;
        let op = format_args!("as_strided({size:?}, {stride:?}, {})", layout.offset());
        layout.extent(self.dtype(), self.storage_nbytes()).map_err(|e| Error::refused(op, e))?;
        Ok(self.with_layout(self.dtype(), layout))
    }
}
