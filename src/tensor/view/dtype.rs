use stridemap_format::DType;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Tensor;

/// Views of the same bytes as elements of another dtype. What strides cannot say, such as a conjugate, is no view.
impl Tensor {
    /// The bytes as elements of another dtype: PyTorch's `view(dtype)`. A narrower element makes the last axis longer, a
    /// wider one shorter.
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
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) where the widths differ and the last stride is not 1, or, for a
    /// wider element, where it does not divide the last size, the other strides and the offset.
    pub fn view_dtype(&self, dtype: DType) -> Result<Tensor> {
        let op = format_args!("view({dtype}) of {}", self.dtype());
        let layout = self.layout().reinterpreted(op, self.dtype().itemsize(), dtype.itemsize())?;
        Ok(self.with_layout(dtype, layout))
    }

    /// Complex elements as pairs of their real and imaginary parts, along a last axis of size 2.
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
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch) for elements that are not complex.
    pub fn view_as_real(&self) -> Result<Tensor> {
        let part = self.part_dtype("view_as_real")?;
        Ok(self.with_layout(part, self.layout().as_pairs(format_args!("view_as_real"))?))
    }

    /// Pairs along a last axis of size 2 as complex elements.
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
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch) for elements other than float32 and float64;
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

    /// The real parts. Elements that are not complex are their own.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::C64, &[3])?;
    /// assert_eq!(x.stride(), [1]);
    /// let view = x.real()?;
    /// assert_eq!((view.dtype(), view.size(), view.stride()), (DType::F32, &[3][..], &[2][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// None that a tensor on a storage can meet.
    pub fn real(&self) -> Result<Tensor> {
        match self.dtype().is_complex() {
            true => self.part("real", 0),
            false => Ok(self.clone()),
        }
    }

    /// The imaginary parts.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::C64, &[3])?;
    /// assert_eq!(x.stride(), [1]);
    /// let view = x.imag()?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3][..], &[2][..], 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch) for elements that are not complex.
    pub fn imag(&self) -> Result<Tensor> {
        self.part("imag", 1)
    }

    fn part(&self, op: &str, part: usize) -> Result<Tensor> {
        let dtype = self.part_dtype(op)?;
        Ok(self.with_layout(dtype, self.layout().part(format_args!("{op}"), part)?))
    }

    fn part_dtype(&self, op: &str) -> Result<DType> {
        match self.dtype() {
            DType::C64 => Ok(DType::F32),
            DType::C128 => Ok(DType::F64),
            other => Err(mismatch(op, other, "complex64 or complex128")),
        }
    }
}

fn mismatch(op: &str, dtype: DType, expected: &str) -> Error {
    Error::new(ErrorKind::DTypeMismatch, format!("{op}: the elements are {dtype}, not {expected}"))
}
