//! Tensors: their headers, and the memory that they lend to arrays.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict as _, PyDict, PyTuple};
use stridemap::half::{bf16, f16};
use stridemap::num_complex::Complex;
use stridemap::{DType, Element, ErrorKind, Source as _};

use crate::error::{Error, Result};
use crate::interrupt::{self, apart, detach};
use crate::live::LiveTensor;
use crate::lock::LockHandle;
use crate::scalar::to_python;
use crate::source::{Elements, dtype_of};

/// How a store was opened: whether it is mapped, whether it is writable (not with mode "r"), which external files it
/// opens, and whether it is read in place from a remote.
#[derive(Clone, IntoPyObject)]
pub(crate) struct OpenMode {
    pub(crate) mapped: bool,
    pub(crate) writable: bool,
    pub(crate) external: String,
    pub(crate) remote: bool,
}

impl OpenMode {
    /// Acts without the interpreter's lock. Ctrl-C ends requests to a remote.
    pub(crate) fn detach<R: Send, E: Into<Error>>(
        &self,
        py: Python<'_>,
        act: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R> {
        match self.remote {
            true => apart(py, |_| Ok(()), |_| act()),
            false => detach(py, act),
        }
    }
}

/// Bytes of a file: its device and inode, the number of bytes of the storage, and where in it they begin and end.
type FileRange = (u64, u64, u64, usize, usize);

/// Where a tensor was loaded from.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) store: PathBuf,
    pub(crate) uuid: String,
    pub(crate) open_mode: OpenMode,
    pub(crate) generation: u64,
    pub(crate) name: String,
}

/// A header over a storage: dtype, size, stride and storage offset.
///
/// Views are headers over the same storage, and no element is read to make one. `numpy()` and `torch()` return arrays
/// of the elements.
///
/// In the examples, `x` has the integers 0 to 5 in 2 rows, and `store` is the store that has it.
///
/// >>> x[1, 2].item(), x.T.shape
/// (5, (3, 2))
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

    /// Waits for a lock on the storage, which must be mutable.
    fn _lock(&self, py: Python<'_>, exclusive: bool) -> Result<LockHandle> {
        if exclusive {
            self.check_writable("lock")?;
        }
        LockHandle::take(py, self, exclusive)
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
    fn _storage_path(&self) -> Option<PathBuf> {
        let (origin, id) = (self.origin.as_ref()?, self.inner.storage_id()?);
        if origin.open_mode.remote {
            return None;
        }
        Some(origin.store.join(format!("storages/{id:016x}.bin")))
    }

    /// The device and the inode of the file of the storage.
    #[getter]
    fn _file_id(&self) -> Option<(u64, u64)> {
        self.inner.file_id()
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

    /// Returns what a notebook shows.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("stridemap._html")?.getattr("of_tensor")?.call1((slf,))
    }
}

/// Returns a function or a class of the package's module of arrays.
fn from_arrays_module<'py>(tensor: &Bound<'py, Tensor>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    tensor.py().import("stridemap._arrays")?.getattr(name)
}

impl Tensor {
    fn byte_strides(&self) -> Vec<isize> {
        let itemsize = self.inner.dtype().itemsize() as isize;
        self.inner.stride().iter().map(|stride| stride.saturating_mul(itemsize)).collect()
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
