//! Views with a different dtype.

use stridemap_format::DType;

use crate::error::Result;
use crate::layout;
use crate::tensor::Tensor;

/// Views of the same bytes as elements of a different dtype. There is no view of the conjugate, because strides cannot
/// express it.
impl Tensor {
    /// Reinterprets the bytes as elements of a different dtype, like PyTorch's `view(dtype)`. A narrower dtype
    /// lengthens the last axis; a wider one shortens it.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let bytes = x.view_dtype(DType::U8)?;
    /// assert_eq!((bytes.size(), bytes.stride()), (&[3, 16][..], &[16, 1][..]));
    /// let wider = x.view_dtype(DType::C64)?;
    /// assert_eq!((wider.size(), wider.stride()), (&[3, 2][..], &[2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the widths differ, and the tensor has no axis or its last
    /// stride is not 1; also if the new dtype is wider, and the ratio of the widths does not divide the last size, all
    /// other strides and the offset.
    pub fn view_dtype(&self, dtype: DType) -> Result<Tensor> {
        self.viewed(layout::view_dtype(self.header(), dtype))
    }

    /// Views complex elements as pairs of real and imaginary parts, along a new last axis of size 2.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::C64, &[3])?;
    /// assert_eq!(x.stride(), [1]);
    /// let view = x.view_as_real()?;
    /// assert_eq!((view.dtype(), view.size(), view.stride()), (DType::F32, &[3, 2][..], &[2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DTypeMismatch`](crate::ErrorKind::DTypeMismatch) if the elements are not complex;
    /// [`LimitExceeded`](crate::ErrorKind::LimitExceeded) for a 65th axis.
    pub fn view_as_real(&self) -> Result<Tensor> {
        self.viewed(layout::view_as_real(self.header()))
    }

    /// Views pairs along a last axis of size 2 as complex elements.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F64, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.view_as_complex()?;
    /// assert_eq!((view.dtype(), view.size(), view.stride()), (DType::C128, &[3][..], &[1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DTypeMismatch`](crate::ErrorKind::DTypeMismatch) unless the elements are float32 or float64;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) unless the last axis has size 2 and stride 1, and the other
    /// strides and the offset are even.
    pub fn view_as_complex(&self) -> Result<Tensor> {
        self.viewed(layout::view_as_complex(self.header()))
    }
}
