//! Memory and files that tensors lend to arrays.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stridemap::half::{bf16, f16};
use stridemap::num_complex::Complex;
use stridemap::{DType, Element, ErrorKind};

use crate::error::Result;
use crate::tensor::Tensor;

/// Bytes of a file: its device and inode, the number of bytes of the storage, and where in it they begin and end.
type FileRange = (u64, u64, u64, usize, usize);

#[pymethods]
impl Tensor {
    /// Lends the memory of the elements to an array, without a copy. Returns `None` if the elements are not mapped, are
    /// misaligned, or may change.
    pub(crate) fn _lend(&self) -> Result<Option<Lent>> {
        match address(&self.inner) {
            Ok(address) => Ok(Some(Lent {
                address,
                size: self.inner.size().to_vec(),
                strides: self.byte_strides(),
                owner: self.inner.clone(),
            })),
            Err(e) if e.kind() == ErrorKind::NeedsCopy => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The bytes of a file that another mapping of it would need: the device and the inode of the file, the number of
    /// bytes of the storage, and where in it the first element begins and the last one ends. `None` if the elements are
    /// not lent, if there are none, or if a stride is negative.
    #[getter]
    fn _file_range(&self) -> Result<Option<FileRange>> {
        let (inner, steps) = (&self.inner, self.byte_strides());
        let Some((device, inode)) = inner.file_id() else { return Ok(None) };
        if inner.storage_id().is_none() || inner.numel() == 0 || steps.iter().any(|step| *step < 0) {
            return Ok(None);
        }
        match address(inner) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NeedsCopy => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let itemsize = inner.dtype().itemsize();
        let last = inner.size().iter().zip(steps).map(|(size, step)| (size - 1) * step.unsigned_abs());
        let start = inner.storage_offset() * itemsize;
        Ok(Some((device, inode, inner.storage_nbytes(), start, start + last.sum::<usize>() + itemsize)))
    }
}

/// Memory lent to an array. The array holds this object, which keeps the mapping alive.
#[pyclass(frozen)]
pub(crate) struct Lent {
    address: usize,
    size: Vec<usize>,
    strides: Vec<isize>,
    owner: stridemap::Tensor,
}

#[pymethods]
impl Lent {
    /// Describes the memory to NumPy, as read-only.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.size)?)?;
        interface.set_item("strides", PyTuple::new(py, &self.strides)?)?;
        interface.set_item("data", (self.address, true))?;
        interface.set_item("typestr", numpy_code(self.owner.dtype()))?;
        Ok(interface)
    }
}

/// Returns NumPy's code of a dtype. If NumPy does not have the dtype, this is the code of an unsigned integer of the
/// same width.
fn numpy_code(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::U16 | DType::BF16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        _ => "|u1",
    }
}

/// Returns the address of the first element, if the elements can be borrowed.
fn address(tensor: &stridemap::Tensor) -> stridemap::Result<usize> {
    fn address_as<T: Element>(tensor: &stridemap::Tensor) -> stridemap::Result<usize> {
        Ok(numpy::ndarray::ArrayViewD::<T>::try_from(tensor)?.as_ptr().addr())
    }
    match tensor.dtype() {
        DType::U16 => address_as::<u16>(tensor),
        DType::U32 => address_as::<u32>(tensor),
        DType::U64 => address_as::<u64>(tensor),
        DType::I16 => address_as::<i16>(tensor),
        DType::I32 => address_as::<i32>(tensor),
        DType::I64 => address_as::<i64>(tensor),
        DType::F16 => address_as::<f16>(tensor),
        DType::BF16 => address_as::<bf16>(tensor),
        DType::F32 => address_as::<f32>(tensor),
        DType::F64 => address_as::<f64>(tensor),
        DType::C64 => address_as::<Complex<f32>>(tensor),
        DType::C128 => address_as::<Complex<f64>>(tensor),
        // Bools are viewed as bytes; as bools, all of them would be read to check that they are valid.
        _ => address_as::<u8>(&tensor.view_dtype(DType::U8)?),
    }
}
