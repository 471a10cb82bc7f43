//! Views that split an axis.

use crate::error::Result;
use crate::layout::{self, Axis, Integer, Sections, non_negative};
use crate::tensor::Tensor;

/// Views that split an axis. They fail with [`LimitExceeded`](crate::ErrorKind::LimitExceeded) if the number of parts
/// times the number of dimensions of each part exceeds 2^22.
impl Tensor {
    /// Splits an axis into at most `chunks` parts of equal size. The last part may be smaller.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[5, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let parts = x.chunk(3, 0)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[2, 2][..], &[2, 1][..], 4));
    /// assert_eq!(parts[2].size(), [1, 2]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless there is at least one part;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn chunk<'a>(&self, chunks: impl Integer, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.views_of(layout::chunk(
            self.header(),
            non_negative("chunk", "number of chunks", chunks)?,
            axis.into(),
        ))
    }

    /// Splits an axis into parts of one size (the last part may be smaller), or into parts of the given sizes, which
    /// must add up to the size of the axis.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[5, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let parts = x.split(4, 0)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[1, 2][..], &[2, 1][..], 8));
    /// let parts = x.split([2, 3], 0)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[3, 2][..], &[2, 1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a single size of 0, unless the axis is empty, or
    /// for any negative size; [`SizeMismatch`](crate::ErrorKind::SizeMismatch) if the sizes do not add up to the size
    /// of the axis; [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn split<'a>(&self, size: impl Into<Sections>, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.views_of(layout::split(self.header(), &size.into(), axis.into()))
    }

    /// Splits an axis into a number of parts whose sizes differ by at most 1, larger parts first, or splits it at the
    /// given positions, which are bounds of Python slices.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[7])?;
    /// assert_eq!(x.stride(), [1]);
    /// let parts = x.tensor_split(3, 0)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[2][..], &[1][..], 3));
    /// let parts = x.tensor_split([1, -2], 0)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[4][..], &[1][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless there is at least one part;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn tensor_split<'a>(
        &self,
        sections: impl Into<Sections>,
        axis: impl Into<Axis<'a>>,
    ) -> Result<Vec<Tensor>> {
        self.views_of(layout::tensor_split(self.header(), &sections.into(), axis.into()))
    }

    /// Returns one view for each position along an axis, without that axis.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// let columns = x.unbind(1)?;
    /// assert_eq!(columns.len(), 3);
    /// assert_eq!((columns[1].size(), columns[1].stride(), columns[1].storage_offset()), (&[2][..], &[3][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an axis that does not exist.
    pub fn unbind<'a>(&self, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.views_of(layout::unbind(self.header(), axis.into()))
    }
}
