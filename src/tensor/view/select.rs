//! Views of some of the elements.

use crate::error::Result;
use crate::layout::{self, Axis, Index, Integer, listed, non_negative};
use crate::tensor::Tensor;

/// Views of some of the elements.
///
/// An axis is a number, negative from the end, or the name of a dimension. Errors of kind
/// [`OutOfRange`](crate::ErrorKind::OutOfRange) name the axis, the index and the size.
impl Tensor {
    /// Selects one position along an axis and removes the axis: `x.select(0, 1)` is `x[1]`.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let row = x.select(0, -1)?;
    /// assert_eq!((row.size(), row.stride(), row.storage_offset()), (&[2][..], &[1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfRange` for an axis or an index that does not exist.
    pub fn select<'a>(&self, axis: impl Into<Axis<'a>>, index: impl Integer) -> Result<Tensor> {
        self.viewed(layout::select(self.header(), axis.into(), index.to_isize()))
    }

    /// Selects `length` positions along an axis, beginning at `start`, which may count from the end.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let rows = x.narrow(0, 1, 2)?;
    /// assert_eq!((rows.size(), rows.stride(), rows.storage_offset()), (&[2, 2][..], &[2, 1][..], 2));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfRange` unless all positions exist ([`slice`](Self::slice) clamps instead); `InvalidArgument` for a
    /// negative length.
    pub fn narrow<'a>(
        &self,
        axis: impl Into<Axis<'a>>,
        start: impl Integer,
        length: impl Integer,
    ) -> Result<Tensor> {
        let length = non_negative("narrow", "length", length)?;
        self.viewed(layout::narrow(self.header(), axis.into(), start.to_isize(), length))
    }

    /// Selects the positions of a Python slice `start:end:step` along an axis. A bound may be `None` or count from
    /// the end, and is clamped to the axis. A negative step runs backwards.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[6])?;
    /// assert_eq!(x.stride(), [1]);
    /// let even = x.slice(0, None, None, 2)?;
    /// assert_eq!((even.size(), even.stride(), even.storage_offset()), (&[3][..], &[2][..], 0));
    /// let backwards = x.slice(0, 4, 0, -2)?;
    /// assert_eq!((backwards.size(), backwards.stride(), backwards.storage_offset()), (&[2][..], &[-2][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfRange` for an axis that does not exist; `InvalidArgument` for a step of 0.
    pub fn slice<'a>(
        &self,
        axis: impl Into<Axis<'a>>,
        start: impl Into<Option<isize>>,
        end: impl Into<Option<isize>>,
        step: impl Integer,
    ) -> Result<Tensor> {
        self.viewed(layout::slice(self.header(), axis.into(), start.into(), end.into(), step.to_isize()))
    }

    /// Applies a subscript such as `x[1, ::2, ..., None]`, with one [`Index`] per entry. The [`ix!`](crate::ix) macro
    /// creates the subscript. Axes without an index are kept whole.
    ///
    /// ```
    /// use stridemap::{DType, Tensor, ix};
    ///
    /// let x = Tensor::zeros(DType::F32, &[2, 3, 4])?;
    /// assert_eq!(x.stride(), [12, 4, 1]);
    /// let view = x.index(ix![1, ..., ..;2])?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[4, 2][..], 12));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfRange` for an index that does not exist, or for more indices than axes; `InvalidArgument` for a step of
    /// 0 or a second `...`.
    pub fn index(&self, subscript: impl AsRef<[Index]>) -> Result<Tensor> {
        self.viewed(layout::index(self.header(), subscript.as_ref()))
    }

    /// Reverses the order along each of the axes. Unlike PyTorch's `flip`, this does not copy: it negates the
    /// strides.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.flip([0])?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[-2, 1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an axis listed twice; `OutOfRange` for an axis that does not exist.
    pub fn flip<'a>(&self, axes: impl IntoIterator<Item = impl Into<Axis<'a>>>) -> Result<Tensor> {
        self.viewed(layout::flip(self.header(), &listed(axes)))
    }

    /// Returns the diagonal between two axes. It replaces both and becomes the last axis. A positive offset selects a
    /// diagonal above the main one, a negative offset one below.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.diagonal(1, 0, 1)?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3][..], &[5][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the two axes are the same; `OutOfRange` for an axis that does not exist.
    pub fn diagonal<'a>(
        &self,
        offset: impl Integer,
        axis0: impl Into<Axis<'a>>,
        axis1: impl Into<Axis<'a>>,
    ) -> Result<Tensor> {
        self.viewed(layout::diagonal(self.header(), offset.to_isize(), axis0.into(), axis1.into()))
    }
}
