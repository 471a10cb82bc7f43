//! What the header of a tensor says.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::tensor::Tensor;

#[pymethods]
impl Tensor {
    /// The size of each dimension.
    ///
    /// >>> x.shape
    /// (2, 3)
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.size())
    }

    /// The stride of each dimension in bytes, as in NumPy.
    ///
    /// >>> x.strides
    /// (24, 8)
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.byte_strides())
    }

    /// Returns the stride of each dimension in elements, as in PyTorch.
    ///
    /// >>> x.stride(), x.T.stride()
    /// ((3, 1), (1, 3))
    fn stride<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.stride())
    }

    /// The offset of the first element in the storage, in elements.
    ///
    /// >>> x[1].storage_offset
    /// 3
    #[getter]
    fn storage_offset(&self) -> usize {
        self.inner.storage_offset()
    }

    /// The number of bytes of the elements.
    ///
    /// >>> x[1].nbytes
    /// 24
    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    /// The number of bytes of one element.
    ///
    /// >>> x.itemsize
    /// 8
    #[getter]
    fn itemsize(&self) -> usize {
        self.inner.dtype().itemsize()
    }

    /// The number of elements.
    ///
    /// >>> x.size
    /// 6
    #[getter]
    fn size(&self) -> usize {
        self.inner.numel()
    }

    /// The number of dimensions.
    ///
    /// >>> x.ndim
    /// 2
    #[getter]
    fn ndim(&self) -> usize {
        self.inner.ndim()
    }

    /// The id of the storage in its store. `None` for a tensor in memory.
    ///
    /// >>> x.storage_id == x.T.storage_id, x.copy().storage_id
    /// (True, None)
    #[getter]
    fn storage_id(&self) -> Option<u64> {
        self.inner.storage_id()
    }

    /// The number of bytes of the storage.
    ///
    /// >>> x[1].storage_nbytes
    /// 48
    #[getter]
    fn storage_nbytes(&self) -> u64 {
        self.inner.storage_nbytes()
    }

    /// The name of each dimension, or `None`.
    ///
    /// >>> x.refine_names("row", None).names
    /// ['row', None]
    #[getter]
    fn names(&self) -> Vec<Option<String>> {
        self.inner.names().into_iter().map(|name| name.map(str::to_owned)).collect()
    }

    /// Returns whether the elements follow one another in row-major order.
    ///
    /// >>> x.is_contiguous(), x.T.is_contiguous()
    /// (True, False)
    fn is_contiguous(&self) -> bool {
        self.inner.is_contiguous()
    }

    /// Returns whether both tensors are on the same storage.
    ///
    /// >>> x.shares_storage(x[1]), x.shares_storage(x.copy())
    /// (True, False)
    fn shares_storage(&self, other: &Tensor) -> bool {
        self.inner.shares_storage(&other.inner)
    }
}

impl Tensor {
    /// Returns how far apart elements are, in bytes, as NumPy states it.
    pub(crate) fn byte_strides(&self) -> Vec<isize> {
        let itemsize = self.inner.dtype().itemsize() as isize;
        self.inner.stride().iter().map(|stride| stride.saturating_mul(itemsize)).collect()
    }
}
