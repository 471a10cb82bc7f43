//! Views with a different dtype.

use stridemap_format::DType;

use crate::error::{Error, ErrorKind, Result};
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
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the widths differ, and the tensor has no axis or its last
    /// stride is not 1; also if the new dtype is wider, and the ratio of the widths does not divide the last size, all
    /// other strides and the offset.
    pub fn view_dtype(&self, dtype: DType) -> Result<Tensor> {
        let op = format_args!("view({dtype}) of {}", self.dtype());
        let layout = self.layout().reinterpreted(op, self.dtype().itemsize(), dtype.itemsize())?;
        Ok(self.with_layout(dtype, layout))
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
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch) if the elements are not complex;
    /// [`LimitExceeded`](ErrorKind::LimitExceeded) for a 65th axis.
    pub fn view_as_real(&self) -> Result<Tensor> {
        let part = match self.dtype() {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => return Err(mismatch("view_as_real", other, "complex64 or complex128")),
        };
        Ok(self.with_layout(part, self.layout().as_pairs(format_args!("view_as_real"))?))
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
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch) unless the elements are float32 or float64;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) unless the last axis has size 2 and stride 1, and the other
    /// strides and the offset are even.
    pub fn view_as_complex(&self) -> Result<Tensor> {
        let complex = match self.dtype() {
            DType::F32 => DType::C64,
            DType::F64 => DType::C128,
            other => return Err(mismatch("view_as_complex", other, "float32 or float64")),
        };
        Ok(self.with_layout(complex, self.layout().of_pairs(format_args!("view_as_complex"))?))
    }
}

fn mismatch(op: &str, dtype: DType, expected: &str) -> Error {
    Error::new(ErrorKind::DTypeMismatch, format!("{op}: the elements are {dtype}, not {expected}"))
}
