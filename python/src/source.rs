//! Elements of NumPy arrays to be saved.

use numpy::PyReadonlyArray1;
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

    /// Returns a source that can be read without the interpreter's lock.
    pub(crate) fn source(&self) -> Result<impl Source + Send + Sync> {
        let bytes = self.2.as_slice().map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Bytes { dtype: self.dtype()?, size: &self.1, bytes })
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        Ok(self.2.as_slice().map_err(|e| PyValueError::new_err(e.to_string()))?)
    }
}

struct Bytes<'a> {
    dtype: DType,
    size: &'a [usize],
    bytes: &'a [u8],
}

impl Source for Bytes<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn size(&self) -> Vec<usize> {
        self.size.to_vec()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> stridemap::Result<()>) -> stridemap::Result<()> {
        sink(self.bytes)
    }
}

pub(crate) fn dtype(name: &str) -> Result<DType> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        PyTypeError::new_err(format!("no dtype is named {name:?}; there are {}", names.join(", "))).into()
    })
}
