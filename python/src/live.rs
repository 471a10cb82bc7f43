//! Elements that many processes read and write at once.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stridemap::{DType, Element, LiveElement};

use crate::error::Result;
use crate::interrupt::detach;
use crate::store::wait_in_turns;

/// A tensor on a live storage. Each access is atomic, and visible to other processes at once.
///
/// >>> store.create("hits", (3,), "int64", kind="live")
/// >>> hits = store["hits"].live()
/// >>> hits.fetch_add(2, 1), hits.fetch_add(2, 1)
/// (0, 1)
#[pyclass(frozen, module = "stridemap")]
pub(crate) struct LiveTensor {
    elements: Box<dyn Live>,
    writable: bool,
}

impl LiveTensor {
    /// Opens the elements of a tensor. Without `writable`, they can only be read.
    pub(crate) fn open(tensor: &stridemap::Tensor, writable: bool) -> Result<LiveTensor> {
        fn boxed<T: Number>(tensor: &stridemap::Tensor) -> Result<Box<dyn Live>> {
            Ok(Box::new(tensor.as_live::<T>()?))
        }
        let elements = match tensor.dtype() {
            DType::U8 => boxed::<u8>(tensor),
            DType::U16 => boxed::<u16>(tensor),
            DType::U32 => boxed::<u32>(tensor),
            DType::U64 => boxed::<u64>(tensor),
            DType::I8 => boxed::<i8>(tensor),
            DType::I16 => boxed::<i16>(tensor),
            DType::I32 => boxed::<i32>(tensor),
            DType::I64 => boxed::<i64>(tensor),
            DType::F32 => boxed::<f32>(tensor),
            DType::F64 => boxed::<f64>(tensor),
            dtype => {
                let message = format!("live: Python has no atomic operations on {dtype}");
                Err(PyTypeError::new_err(message).into())
            }
        }?;
        Ok(LiveTensor { elements, writable })
    }

    /// Returns the elements if they may be changed.
    fn writable_elements(&self) -> Result<&dyn Live> {
        if self.writable {
            return Ok(&*self.elements);
        }
        let message = "live: the store was opened with mode 'r'; open it with 'r+'".to_owned();
        Err(stridemap::Error::new(stridemap::ErrorKind::ReadOnly, message).into())
    }
}

#[pymethods]
impl LiveTensor {
    /// Returns one element.
    ///
    /// >>> store.create("hits", (2, 3), "int64", kind="live")
    /// >>> store["hits"].live().get(1, 2)
    /// 0
    #[pyo3(signature = (*index))]
    fn get(&self, py: Python<'_>, index: Vec<isize>) -> Result<Py<PyAny>> {
        self.elements.get(py, &index)
    }

    /// Sets an element. The value comes after its index: `set(row, column, value)`.
    ///
    /// >>> store.create("hits", (2, 3), "int64", kind="live")
    /// >>> store["hits"].live().set(1, 2, 7)
    /// >>> store["hits"].tolist()
    /// [[0, 0, 0], [0, 0, 7]]
    #[pyo3(signature = (*arguments))]
    fn set(&self, arguments: &Bound<'_, PyTuple>) -> Result<()> {
        let (index, [value]) = split(arguments)?;
        self.writable_elements()?.set(&index, &value)
    }

    /// Adds to an element, and returns what it was before. The value comes after its index.
    ///
    /// >>> store.create("hits", (2,), "int64", kind="live")
    /// >>> hits = store["hits"].live()
    /// >>> hits.fetch_add(1, 5), hits.fetch_add(1, 5), hits.get(1)
    /// (0, 5, 10)
    #[pyo3(signature = (*arguments))]
    fn fetch_add(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> Result<Py<PyAny>> {
        let (index, [value]) = split(arguments)?;
        self.writable_elements()?.fetch_add(py, &index, &value)
    }

    /// Sets an element to `new` if it equals `current`: `compare_exchange(row, column, current, new)`. Returns whether
    /// it was equal, and what the element was before.
    ///
    /// >>> store.create("owner", (1,), "int64", kind="live")
    /// >>> owner = store["owner"].live()
    /// >>> owner.compare_exchange(0, 0, 7), owner.compare_exchange(0, 0, 8)
    /// ((True, 0), (False, 7))
    #[pyo3(signature = (*arguments))]
    fn compare_exchange(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> Result<(bool, Py<PyAny>)> {
        let (index, [current, new]) = split(arguments)?;
        self.writable_elements()?.compare_exchange(py, &index, &current, &new)
    }

    /// Waits until an element is not `old`, for at most `timeout` seconds: `wait(row, column, old, timeout=1)`. Returns
    /// whether it is not `old`. A write wakes nobody by itself: after it, call `wake`.
    ///
    /// >>> store.create("steps", (2,), "int32", kind="live")
    /// >>> steps = store["steps"].live()
    /// >>> steps.wait(0, 0, timeout=0.01)  # nobody changes it
    /// False
    #[pyo3(signature = (*arguments, timeout = None))]
    fn wait(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>, timeout: Option<f64>) -> Result<bool> {
        let (index, [old]) = split(arguments)?;
        let wait = self.elements.waiting(index, &old)?;
        wait_in_turns(py, timeout, wait)
    }

    /// Wakes all threads of all processes that wait for an element.
    ///
    /// >>> store.create("steps", (2,), "int32", kind="live")
    /// >>> steps = store["steps"].live()
    /// >>> steps.set(0, 1)
    /// >>> steps.wake(0)
    #[pyo3(signature = (*index))]
    fn wake(&self, index: Vec<isize>) -> Result<()> {
        self.elements.wake(&index)
    }

    /// Makes all writes to the storage durable, whichever process made them.
    ///
    /// >>> store.create("hits", (2,), "int64", kind="live")
    /// >>> hits = store["hits"].live()
    /// >>> hits.set(0, 1)
    /// >>> hits.flush()
    fn flush(&self, py: Python<'_>) -> Result<()> {
        detach(py, || self.elements.flush())
    }
}

/// Splits arguments into an index, and the values after it.
fn split<'py, const N: usize>(
    arguments: &Bound<'py, PyTuple>,
) -> Result<(Vec<isize>, [Bound<'py, PyAny>; N])> {
    let all: Vec<Bound<'py, PyAny>> = arguments.iter().collect();
    match all.split_last_chunk::<N>() {
        Some((index, values)) => {
            let index = index.iter().map(|position| position.extract()).collect::<PyResult<_>>()?;
            Ok((index, values.clone()))
        }
        None => Err(PyTypeError::new_err("the value is missing: it comes after the index").into()),
    }
}

/// A live tensor of any dtype.
trait Live: Send + Sync {
    fn get(&self, py: Python<'_>, index: &[isize]) -> Result<Py<PyAny>>;
    fn set(&self, index: &[isize], value: &Bound<'_, PyAny>) -> Result<()>;
    fn fetch_add(&self, py: Python<'_>, index: &[isize], value: &Bound<'_, PyAny>) -> Result<Py<PyAny>>;
    fn compare_exchange(
        &self,
        py: Python<'_>,
        index: &[isize],
        current: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
    ) -> Result<(bool, Py<PyAny>)>;
    /// Returns what waits once, for at most a time, and tells whether the element is not `old`.
    fn waiting<'a>(&'a self, index: Vec<isize>, old: &Bound<'_, PyAny>) -> Result<Box<Wait<'a>>>;
    fn wake(&self, index: &[isize]) -> Result<()>;
    fn flush(&self) -> Result<()>;
}

type Wait<'a> = dyn Fn(Duration) -> Result<bool> + Send + Sync + 'a;

/// A number that Python has too.
trait Number:
    LiveElement
    + Element
    + Send
    + Sync
    + for<'py> IntoPyObject<'py>
    + for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>
{
}

impl<T> Number for T where
    T: LiveElement
        + Element
        + Send
        + Sync
        + for<'py> IntoPyObject<'py>
        + for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>
{
}

impl<T: Number> Live for stridemap::LiveTensor<T> {
    fn get(&self, py: Python<'_>, index: &[isize]) -> Result<Py<PyAny>> {
        Ok(stridemap::LiveTensor::get(self, index)?.into_py_any(py)?)
    }

    fn set(&self, index: &[isize], value: &Bound<'_, PyAny>) -> Result<()> {
        Ok(stridemap::LiveTensor::set(self, index, value.extract::<T>()?)?)
    }

    fn fetch_add(&self, py: Python<'_>, index: &[isize], value: &Bound<'_, PyAny>) -> Result<Py<PyAny>> {
        Ok(stridemap::LiveTensor::fetch_add(self, index, value.extract::<T>()?)?.into_py_any(py)?)
    }

    fn compare_exchange(
        &self,
        py: Python<'_>,
        index: &[isize],
        current: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
    ) -> Result<(bool, Py<PyAny>)> {
        let (current, new) = (current.extract::<T>()?, new.extract::<T>()?);
        let found = stridemap::LiveTensor::compare_exchange(self, index, current, new)?;
        let (is_replaced, element) = (found.is_ok(), found.unwrap_or_else(|element| element));
        Ok((is_replaced, element.into_py_any(py)?))
    }

    fn waiting<'a>(&'a self, index: Vec<isize>, old: &Bound<'_, PyAny>) -> Result<Box<Wait<'a>>> {
        let old = old.extract::<T>()?;
        Ok(Box::new(move |left| Ok(stridemap::LiveTensor::wait(self, &index, old, left)?)))
    }

    fn wake(&self, index: &[isize]) -> Result<()> {
        Ok(stridemap::LiveTensor::wake(self, index)?)
    }

    fn flush(&self) -> Result<()> {
        Ok(stridemap::LiveTensor::flush(self)?)
    }
}
