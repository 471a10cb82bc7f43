//! Tensors: a header over a storage, and what is done with its elements.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict as _, PyDict};
use stridemap::{Advice, ErrorKind, Source as _};

use crate::error::{Error, Result};
use crate::interrupt::{self, detach};
use crate::live::LiveTensor;
use crate::lock::LockHandle;
use crate::origin::{OpenMode, Origin};
use crate::scalar::to_python;
use crate::source::{Elements, dtype_of};

/// A header over a storage: dtype, size, stride and storage offset.
///
/// Views are headers over the same storage, and no element is read to make one. `numpy()` and `torch()` return arrays
/// of the elements. The results of operators such as `+` are new arrays of NumPy, or tensors of PyTorch if the other operand
/// is one; `+=` changes a mutable tensor in place, under a lock.
///
/// In the examples, `x` has the integers 0 to 5 in 2 rows, and `store` is the store that has it.
///
/// >>> x[1, 2].item(), x.T.shape
/// (5, (3, 2))
/// >>> 10 - x[1]
/// array([7, 6, 5])
#[pyclass(frozen, weakref, module = "stridemap")]
pub(crate) struct Tensor {
    pub(crate) inner: stridemap::Tensor,
    /// `None` for a tensor in memory.
    pub(crate) origin: Option<Arc<Origin>>,
}

impl Tensor {
    /// Wraps a tensor that was made from this one, such as a view or a copy.
    pub(crate) fn with_same_origin(&self, inner: stridemap::Tensor) -> Tensor {
        Tensor { inner, origin: self.origin.clone() }.with_origin_if_stored()
    }

    /// Drops the origin of a tensor that is not on a storage of a store, such as a copy in memory.
    pub(crate) fn with_origin_if_stored(self) -> Tensor {
        let origin = self.inner.storage_id().and(self.origin);
        Tensor { origin, ..self }
    }

    /// Whether elements are requested from a remote.
    pub(crate) fn is_remote(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.open_mode.remote)
    }

    /// Reads elements without the interpreter's lock. Ctrl-C ends requests to a remote.
    pub(crate) fn detach<R: Send, E: Into<Error>>(
        &self,
        py: Python<'_>,
        act: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R> {
        match &self.origin {
            Some(origin) => origin.open_mode.detach(py, act),
            None => detach(py, act),
        }
    }

    /// Refuses to change elements of a store that was opened with mode "r".
    fn check_writable(&self, op: &str) -> Result<()> {
        match &self.origin {
            Some(origin) if origin.open_mode.remote => {
                let path = origin.store.display();
                let message =
                    format!("{op}: {path} is only read; change a store on this machine, and push it");
                Err(stridemap::Error::new(ErrorKind::ReadOnly, message).into())
            }
            Some(origin) if !origin.open_mode.writable => {
                let path = origin.store.display();
                let message = format!("{op}: {path} was opened with mode 'r'; open it with 'r+'");
                Err(stridemap::Error::new(ErrorKind::ReadOnly, message).into())
            }
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Tensor {
    /// Returns a tensor in memory.
    #[staticmethod]
    fn _of_elements(elements: Elements<'_>) -> Result<Tensor> {
        let source = elements.source()?;
        let mut bytes = Vec::with_capacity(elements.nbytes());
        source.write_to(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let inner = stridemap::Tensor::from_bytes(elements.dtype()?, elements.size(), &bytes)?;
        Ok(Tensor { inner, origin: None })
    }

    /// Returns the only element.
    ///
    /// >>> x[1, 2].item()
    /// 5
    fn item(&self, py: Python<'_>) -> Result<Py<PyAny>> {
        if self.inner.numel() != 1 {
            let message = format!("item: the tensor has {} elements, not one", self.inner.numel());
            return Err(pyo3::exceptions::PyValueError::new_err(message).into());
        }
        let element = self.detach(py, || self.inner.to_scalars())?;
        Ok(to_python(py, element[0])?)
    }

    /// Returns the elements converted to another dtype, in memory. Without `copy`, a tensor that has the dtype is returned
    /// itself.
    ///
    /// >>> x.astype("float32")[1].tolist()
    /// [3.0, 4.0, 5.0]
    #[pyo3(signature = (dtype, *, copy = true))]
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>, copy: bool) -> Result<Tensor> {
        let dtype = dtype_of(dtype)?;
        let convert = || {
            if copy && dtype == self.inner.dtype() {
                self.inner.clone_data()
            } else {
                self.inner.to_dtype(dtype)
            }
        };
        Ok(self.with_same_origin(self.detach(py, convert)?))
    }

    /// Returns a copy of the elements in memory.
    ///
    /// >>> x.T.copy().tolist()
    /// [[0, 3], [1, 4], [2, 5]]
    fn copy(&self, py: Python<'_>) -> Result<Tensor> {
        Ok(self.with_same_origin(self.detach(py, || self.inner.clone_data())?))
    }

    /// Returns statistics of all elements, computed on all processors: counts, extremes, mean, standard deviation and
    /// quantiles. Quantiles are of `sample_count` finite elements: of all, or of a sample of a large tensor.
    ///
    /// >>> found = x.statistics()
    /// >>> found["count"], found["max"], found["mean"]
    /// (6, 5, 2.5)
    fn statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let found = self.detach(py, || self.inner.statistics(|_| interrupt::check()))?;
        let result = PyDict::new(py);
        result.set_item("count", found.count)?;
        result.set_item("nan_count", found.nan_count)?;
        result.set_item("positive_infinity_count", found.positive_infinity_count)?;
        result.set_item("negative_infinity_count", found.negative_infinity_count)?;
        result.set_item("zero_count", found.zero_count)?;
        for (key, extreme) in [("min", found.min), ("max", found.max)] {
            result.set_item(key, extreme.map(|scalar| to_python(py, scalar)).transpose()?)?;
        }
        result.set_item("mean", found.mean())?;
        result.set_item("std", found.std())?;
        result.set_item("sample_count", found.sample_count)?;
        let quantiles = [0.001, 0.5, 0.999].map(|fraction| Some((fraction, found.quantile(fraction)?)));
        result.set_item("quantiles", quantiles.into_iter().flatten().into_py_dict(py)?)?;
        Ok(result)
    }

    /// Waits for a lock on the storage, which must be mutable.
    fn _lock(&self, py: Python<'_>, exclusive: bool) -> Result<LockHandle> {
        if exclusive {
            self.check_writable("lock")?;
        }
        LockHandle::take(py, self, exclusive)
    }

    /// Tells the kernel how elements will be read: at "random", from the first to the last ("sequential"), or "normal".
    ///
    /// At random, the kernel reads only what is touched; otherwise, it reads large files in pieces of at least 2 MiB. This is
    /// for the whole tensor, in this process, until other advice is given. PyTorch maps a file by itself, without advice.
    ///
    /// >>> store["x"].advise("random")
    /// >>> store["x"][1, 2].item()
    /// 5
    fn advise(&self, access: &str) -> Result<()> {
        let advice = match access {
            "normal" => Advice::Normal,
            "random" => Advice::Random,
            "sequential" => Advice::Sequential,
            _ => {
                let message = format!("advise: access is 'normal', 'random' or 'sequential', not {access:?}");
                return Err(PyValueError::new_err(message).into());
            }
        };
        self.inner.advise(advice);
        Ok(())
    }

    /// Returns a handle to read and write elements by atomic operations. The storage must be live.
    ///
    /// >>> store.create("hits", (3,), "int64", kind="live")
    /// >>> store["hits"].live().fetch_add(0, 5), store["hits"].tolist()
    /// (0, [5, 0, 0])
    fn live(&self) -> Result<LiveTensor> {
        if self.is_remote() {
            self.check_writable("live")?;
        }
        LiveTensor::open(&self.inner, self.check_writable("live").is_ok())
    }

    /// The path that the file of the storage has if it is in the store.
    #[getter]
    fn _storage_path(&self) -> Option<OsString> {
        let (origin, id) = (self.origin.as_ref()?, self.inner.storage_id()?);
        if origin.open_mode.remote {
            return None;
        }
        Some(origin.store.join(format!("storages/{id:016x}.bin")).into_os_string())
    }

    /// The device and the inode of the file of the storage.
    #[getter]
    fn _file_id(&self) -> Option<(u64, u64)> {
        self.inner.file_id()
    }

    /// Where the tensor was loaded from: the path and the uuid of the store, how the store was opened, the generation
    /// and the name. A view has the origin of the tensor that was loaded.
    #[getter]
    fn _origin(&self) -> Option<(OsString, String, OpenMode, u64, String)> {
        let origin = self.origin.as_ref()?;
        Some((
            origin.store.clone().into(),
            origin.uuid.clone(),
            origin.open_mode.clone(),
            origin.generation,
            origin.name.clone(),
        ))
    }

    /// Returns the elements as a tensor of PyTorch. The tensor maps the file if the store is mapped, the storage is
    /// sealed and no stride is negative. Otherwise, the elements are copied. PyTorch has no read-only tensors: what is
    /// written to the tensor is seen by this process only, and never saved.
    ///
    /// >>> x.torch()[1]
    /// tensor([3, 4, 5])
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static ONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let one = || Ok::<_, PyErr>(py.import("stridemap._torch_storages")?.getattr("one")?.unbind());
        ONE.get_or_try_init(py, one)?.bind(py).call1((slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_arrays_module(slf, "to_array")?.call1((slf, dtype, copy))
    }

    #[pyo3(signature = (**arguments))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_arrays_module(slf, "to_dlpack")?.call((slf,), arguments)
    }

    /// Returns DLPack's number for the CPU, and the device index 0.
    fn __dlpack_device__(&self) -> (u32, u32) {
        (1, 0)
    }

    /// Returns a lock on the storage, for `with`. The storage must be mutable. `with` yields an array of the elements,
    /// which can be written under an exclusive lock.
    ///
    /// >>> store.save("w", [1, 2], kind="mutable")
    /// >>> with store["w"].lock() as array:
    /// ...     array += 1
    /// >>> store["w"].tolist()
    /// [2, 3]
    #[pyo3(signature = (exclusive=true))]
    fn lock<'py>(slf: &Bound<'py, Self>, exclusive: bool) -> PyResult<Bound<'py, PyAny>> {
        from_arrays_module(slf, "Lock")?.call1((slf, exclusive))
    }

    /// Returns the same tensor, which can be locked and read even if a change of the storage was interrupted.
    ///
    /// >>> store.save("w", [1, 2], kind="mutable")
    /// >>> with store["w"].allow_interrupted().lock() as array:
    /// ...     array[:] = 0
    /// >>> store["w"].tolist()
    /// [0, 0]
    fn allow_interrupted(&self) -> Tensor {
        self.with_same_origin(self.inner.allow_interrupted())
    }

    /// The header of a tensor does not change, so a shallow copy is the tensor itself.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> Result<Tensor> {
        self.copy(py)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("stridemap._handles")?.getattr("reduce")?.call1((slf,))
    }

    fn __len__(&self) -> PyResult<usize> {
        let size = self.inner.size().first().copied();
        size.ok_or_else(|| PyTypeError::new_err("len() of a tensor without dimensions"))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.borrow().__len__()?;
        from_arrays_module(slf, "rows")?.call1((slf,))
    }

    fn __contains__(&self, _value: &Bound<'_, PyAny>) -> PyResult<bool> {
        Err(PyTypeError::new_err("a tensor is not searched for elements; use its numpy() array"))
    }

    /// Describes the header. No element is read, because reading one may wait for a lock or a request.
    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("stridemap._html")?.getattr("described")?.call1((slf,))
    }

    /// The number, if the tensor has no dimensions, and otherwise the description.
    fn __str__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("stridemap._html")?.getattr("printed")?.call1((slf,))
    }

    /// Returns what a notebook shows.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("stridemap._html")?.getattr("of_tensor")?.call1((slf,))
    }
}

/// Returns a function or a class of the package's module of arrays.
fn from_arrays_module<'py>(tensor: &Bound<'py, Tensor>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    tensor.py().import("stridemap._arrays")?.getattr(name)
}
