use crate::error::Result;
use crate::layout::{Axis, Integer, Sections, count};
use crate::tensor::Tensor;

/// Views that part an axis. Parts that have more than 2^22 dimensions together are refused
/// with [`LimitExceeded`](crate::ErrorKind::LimitExceeded).
impl Tensor {
    /// At most `count` parts of equal size along an axis, the last one smaller.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for no parts;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn chunk<'a>(&self, chunks: impl Integer, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().chunk(count("chunk", "number", chunks)?, axis.into()))
    }

    /// Parts of a size along an axis, the last one smaller; or of several sizes, which make up the whole axis.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size of 0 or below;
    /// [`SizeMismatch`](crate::ErrorKind::SizeMismatch); [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn split<'a>(&self, size: impl Into<Sections>, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().split(&size.into(), axis.into()))
    }

    /// So many parts along an axis, whose sizes differ by at most 1, the larger ones first; or the parts before, between
    /// and behind positions, which are bounds of Python slices.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for no parts;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn tensor_split<'a>(
        &self,
        sections: impl Into<Sections>,
        axis: impl Into<Axis<'a>>,
    ) -> Result<Vec<Tensor>> {
        self.parted(self.layout().tensor_split(&sections.into(), axis.into()))
    }

    /// [`tensor_split`](Self::tensor_split) along the second axis, or the only one; a number of parts must divide it.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let parts = x.hsplit(2)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[2, 2][..], &[4, 1][..], 2));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    pub fn hsplit(&self, sections: impl Into<Sections>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().hsplit(&sections.into()))
    }

    /// [`tensor_split`](Self::tensor_split) along the first axis of two or more; a number of parts must divide it.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[4, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let parts = x.vsplit(2)?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[2, 2][..], &[2, 1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    pub fn vsplit(&self, sections: impl Into<Sections>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().vsplit(&sections.into()))
    }

    /// [`tensor_split`](Self::tensor_split) along the third axis of three or more; a number of parts must divide it.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3, 4])?;
    /// assert_eq!(x.stride(), [12, 4, 1]);
    /// let parts = x.dsplit(&[1])?;
    /// assert_eq!((parts[1].size(), parts[1].stride(), parts[1].storage_offset()), (&[2, 3, 3][..], &[12, 4, 1][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    pub fn dsplit(&self, sections: impl Into<Sections>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().dsplit(&sections.into()))
    }

    /// One view for each position along an axis, which goes.
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
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn unbind<'a>(&self, axis: impl Into<Axis<'a>>) -> Result<Vec<Tensor>> {
        self.parted(self.layout().unbind(axis.into()))
    }
}
