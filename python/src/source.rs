//! Elements of NumPy arrays to be saved.
//!
//! Another thread may write an array while it is saved. So the bytes of the array are copied to a buffer, piece by
//! piece, before they are digested and written. The digests then match the file, whatever the other thread does.

use numpy::{PyArrayMethods as _, PyReadonlyArray1, PyUntypedArrayMethods as _};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use stridemap::{DType, Source};

use crate::error::Result;

/// The elements of an array: its dtype, its size, and its bytes in row-major order.
#[derive(FromPyObject)]
pub(crate) struct Elements<'py>(String, Vec<usize>, PyReadonlyArray1<'py, u8>);

impl Elements<'_> {
    pub(crate) fn dtype(&self) -> Result<DType> {
        dtype(&self.0)
    }

    pub(crate) fn size(&self) -> &[usize] {
        &self.1
    }

    pub(crate) fn nbytes(&self) -> usize {
        numpy::PyUntypedArrayMethods::len(&*self.2)
    }

    /// Returns a source that can be read without the interpreter's lock.
    pub(crate) fn source(&self) -> Result<impl Source + Send + Sync> {
        if !self.2.is_contiguous() {
            return Err(PyValueError::new_err("the bytes of the elements are not contiguous").into());
        }
        Ok(Memory {
            dtype: self.dtype()?,
            size: &self.1,
            start: Address(self.2.data()),
            nbytes: self.nbytes(),
        })
    }
}

/// The size of a piece, in bytes: large enough that the library digests a piece on one thread and writes it on another.
const PIECE_BYTES: usize = 8 << 20;

/// The address of the elements of an array.
struct Address(*const u8);

// SAFETY: the address is only read from, by `copy_to`, whose caller keeps the array alive.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// Fills a buffer with the bytes at an offset.
    ///
    /// # Safety
    /// The array is alive, and has these bytes.
    unsafe fn copy_to(&self, buffer: &mut [u8], offset: usize) {
        // SAFETY: the caller guarantees that the bytes exist, and the buffer is this function's alone. No reference to
        // the array is made, because another thread may write it.
        unsafe { self.0.wrapping_add(offset).copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) }
    }
}

/// The elements of an array that `Elements` keeps alive.
struct Memory<'a> {
    dtype: DType,
    size: &'a [usize],
    start: Address,
    nbytes: usize,
}

impl Source for Memory<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn size(&self) -> Vec<usize> {
        self.size.to_vec()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> stridemap::Result<()>) -> stridemap::Result<()> {
        let mut buffer = vec![0; self.nbytes.min(PIECE_BYTES)];
        for offset in (0..self.nbytes).step_by(PIECE_BYTES) {
            let piece = &mut buffer[..(self.nbytes - offset).min(PIECE_BYTES)];
            // SAFETY: the array has `nbytes` contiguous bytes, and `Elements` borrows it for longer than `self` lives.
            unsafe { self.start.copy_to(piece, offset) };
            sink(piece)?;
        }
        Ok(())
    }
}

/// Returns the dtype that a value of Python stands for: a name, or a dtype of NumPy or PyTorch.
pub(crate) fn dtype_of(value: &Bound<'_, PyAny>) -> Result<DType> {
    let name = value.py().import("stridemap._arrays")?.getattr("dtype_name")?.call1((value,))?;
    dtype(&name.extract::<String>()?)
}

pub(crate) fn dtype(name: &str) -> Result<DType> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        PyTypeError::new_err(format!("no dtype is named {name:?}; there are {}", names.join(", "))).into()
    })
}
