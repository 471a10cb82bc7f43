//! A tensor as an array of NumPy: its dtype, its elements, and the operations that NumPy does on them.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use stridemap::{DType, Scalar};

use crate::error::Result;
use crate::interrupt;
use crate::scalar::to_python;
use crate::tensor::Tensor;

/// The number of dtypes.
const DTYPES: usize = DType::ALL.len();

/// What is asked of NumPy and of the package often: looking it up by its name would take longer than using it.
struct Known {
    dtypes: [PyOnceLock<Py<PyAny>>; DTYPES],
    asarray: PyOnceLock<Py<PyAny>>,
}

static KNOWN: Known = Known { dtypes: [const { PyOnceLock::new() }; DTYPES], asarray: PyOnceLock::new() };

/// Returns the dtype of NumPy or `ml_dtypes`.
///
/// # Errors
/// A `DTypeError` if neither has it.
pub(crate) fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<&Bound<'_, PyAny>> {
    let of_name =
        || -> PyResult<_> { Ok(arrays(py)?.getattr("numpy_dtype")?.call1((dtype.name(),))?.unbind()) };
    match DType::ALL.iter().position(|other| *other == dtype).and_then(|index| KNOWN.dtypes.get(index)) {
        Some(known) => Ok(known.get_or_try_init(py, of_name)?.bind(py)),
        None => Err(PyTypeError::new_err(format!("no number of the dtype {dtype}"))),
    }
}

/// Returns the package's module of arrays.
pub(crate) fn arrays(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("stridemap._arrays")
}

/// Whether NumPy has the dtype, so that an array of lent memory has it already.
fn is_of_numpy(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::Bool
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::F16
            | DType::F32
            | DType::F64
            | DType::C64
            | DType::C128
    )
}

/// A number of finite elements: what summaries of a tensor are made of.
type Moments = (u64, u64, u64, u64, Option<Py<PyAny>>, Option<Py<PyAny>>, Option<f64>, Option<f64>);

impl Tensor {
    /// Returns the only element, for a conversion of Python such as `float()`.
    fn only(&self, py: Python<'_>, conversion: &str) -> Result<Scalar> {
        if self.inner.numel() != 1 {
            let message = format!(
                "{conversion}: the tensor has {} elements, not one; numpy() has all of them",
                self.inner.numel()
            );
            return Err(PyTypeError::new_err(message).into());
        }
        Ok(self.detach(py, || self.inner.to_scalars())?[0])
    }
}

#[pymethods]
impl Tensor {
    /// The type of the elements, as a dtype of NumPy, or of `ml_dtypes` for "bfloat16" and the small floats.
    ///
    /// It equals its name, and what else NumPy takes for it: `x.dtype == "float32"`, `x.dtype == np.float32`. A dtype of
    /// PyTorch is not equal to one of NumPy: that of PyTorch is `x.torch().dtype`. Packed `float4_e2m1fn_x2` has none:
    /// use `view_dtype("uint8")`.
    ///
    /// >>> x.dtype == "int64", x.dtype == np.int64
    /// (True, True)
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(numpy_dtype(py, self.inner.dtype())?.clone())
    }

    /// The name of the dtype, also of one that NumPy does not have.
    #[getter]
    fn _dtype_name(&self) -> &'static str {
        self.inner.dtype().name()
    }

    /// Returns the elements as a read-only array of NumPy, with any strides. The array is a view of the mapped memory.
    /// Elements that are not mapped, are misaligned, or may change are copied.
    ///
    /// >>> x.numpy()[1]
    /// array([3, 4, 5])
    fn numpy<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        let (py, tensor) = (slf.py(), slf.get());
        let Some(lent) = tensor._lend()? else {
            return Ok(arrays(py)?.getattr("to_numpy")?.call1((slf,))?);
        };
        let asarray = || Ok::<_, PyErr>(py.import("numpy")?.getattr("asarray")?.unbind());
        let array = KNOWN.asarray.get_or_try_init(py, asarray)?.bind(py).call1((lent,))?;
        if is_of_numpy(tensor.inner.dtype()) {
            return Ok(array);
        }
        Ok(array.call_method1("view", (numpy_dtype(py, tensor.inner.dtype())?,))?)
    }

    /// Returns the elements as a list of lists, of Python's numbers. The result for a tensor without dimensions is a
    /// number.
    ///
    /// >>> x.tolist()
    /// [[0, 1, 2], [3, 4, 5]]
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.getattr("to_list")?.call1((slf,))
    }

    /// Changes elements of a mutable tensor, under an exclusive lock that is taken for it.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        subscript: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        arrays(slf.py())?.getattr("assign")?.call1((slf, subscript, value)).map(drop)
    }

    /// A tensor is hashed by its identity, as in PyTorch.
    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        // Objects are aligned, so the lowest bits of an address tell nothing.
        (slf.as_ptr().addr() >> 4).cast_signed()
    }

    fn __float__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let number = to_python(py, self.only(py, "float()")?)?.into_bound(py);
        Ok(py.get_type::<pyo3::types::PyFloat>().call1((number,))?)
    }

    fn __int__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let number = to_python(py, self.only(py, "int()")?)?.into_bound(py);
        Ok(py.get_type::<pyo3::types::PyInt>().call1((number,))?)
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let number = to_python(py, self.only(py, "complex()")?)?.into_bound(py);
        Ok(py.get_type::<pyo3::types::PyComplex>().call1((number,))?)
    }

    fn __index__(&self, py: Python<'_>) -> Result<Py<PyAny>> {
        let is_integer = matches!(
            self.inner.dtype(),
            DType::U8
                | DType::U16
                | DType::U32
                | DType::U64
                | DType::I8
                | DType::I16
                | DType::I32
                | DType::I64
        );
        if !is_integer || self.inner.numel() != 1 {
            let (count, dtype) = (self.inner.numel(), self.inner.dtype());
            let message = format!("an index is one integer, and the tensor has {count} elements of {dtype}");
            return Err(PyTypeError::new_err(message).into());
        }
        Ok(to_python(py, self.only(py, "index")?)?)
    }

    /// Whether the only element is not zero, as in NumPy and PyTorch.
    fn __bool__(&self, py: Python<'_>) -> Result<bool> {
        if self.inner.numel() != 1 {
            let message = format!(
                "the truth value of {} elements is ambiguous; use any() or all() of the numpy() array",
                self.inner.numel()
            );
            return Err(PyValueError::new_err(message).into());
        }
        Ok(to_python(py, self.only(py, "bool()")?)?.is_truthy(py)?)
    }

    /// Formats the only element of a tensor without dimensions, as in `f"{x:.3f}"`.
    fn __format__<'py>(slf: &Bound<'py, Self>, spec: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>> {
        let (py, tensor) = (slf.py(), slf.get());
        let format = py.import("builtins")?.getattr("format")?;
        if spec.is_empty()? {
            return Ok(slf.str()?.into_any());
        }
        if tensor.inner.ndim() > 0 {
            let size = tensor.inner.size();
            let message = format!(
                "format {spec}: the tensor has the shape {size:?}; format an element, such as x.item(), or numpy()"
            );
            return Err(PyTypeError::new_err(message).into());
        }
        Ok(format.call1((to_python(py, tensor.only(py, "format")?)?, spec))?)
    }

    /// Returns the sum of the elements, or the sums along an axis, as `numpy.sum` does. Floats of 8 and 16 bits are added
    /// as "float32".
    ///
    /// >>> x.sum(), x.sum(axis=0)
    /// (np.int64(15), array([3, 5, 7]))
    #[pyo3(signature = (*arguments, **options))]
    fn sum<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reduced(slf, "sum", arguments, options)
    }

    /// Returns the mean of the elements, or the means along an axis, as `numpy.mean` does. That of all elements is
    /// computed as "float64", on all processors.
    ///
    /// >>> x.mean(), x.mean(axis=1)
    /// (np.float64(2.5), array([1., 4.]))
    #[pyo3(signature = (*arguments, **options))]
    fn mean<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reduced(slf, "mean", arguments, options)
    }

    /// Returns the lowest element, or the lowest along an axis, as `numpy.min` does. That of all elements is found on all
    /// processors.
    ///
    /// >>> x.min(), x.min(axis=1)
    /// (np.int64(0), array([0, 3]))
    #[pyo3(signature = (*arguments, **options))]
    fn min<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reduced(slf, "min", arguments, options)
    }

    /// Returns the highest element, or the highest along an axis, as `numpy.max` does. That of all elements is found on
    /// all processors.
    ///
    /// >>> x.max(), x.max(axis=0)
    /// (np.int64(5), array([3, 4, 5]))
    #[pyo3(signature = (*arguments, **options))]
    fn max<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reduced(slf, "max", arguments, options)
    }

    /// Returns the standard deviation of the elements, or the deviations along an axis, as `numpy.std` does: divided by
    /// the number of elements, unless `ddof` says otherwise. PyTorch has `ddof=1`. That of all elements is computed as
    /// "float64", on all processors.
    ///
    /// >>> x.std(axis=0), x.std(axis=0, ddof=1).round(2)
    /// (array([1.5, 1.5, 1.5]), array([2.12, 2.12, 2.12]))
    #[pyo3(signature = (*arguments, **options))]
    fn std<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reduced(slf, "std", arguments, options)
    }

    /// Returns a copy of the rows at positions, which a vector of integers lists.
    fn _rows(&self, py: Python<'_>, positions: &Tensor) -> Result<Tensor> {
        let rows = self.detach(py, || self.inner.index_select(0, &positions.inner))?;
        Ok(Tensor { inner: rows, origin: None })
    }

    /// Returns the number of elements, of NaN and of both infinities, and of the finite elements: the lowest, the
    /// highest, the mean and the deviation of a sample.
    fn _moments(&self, py: Python<'_>) -> Result<Moments> {
        let found = self.detach(py, || self.inner.statistics(|_| interrupt::check()))?;
        let extreme = |extreme: Option<Scalar>| extreme.map(|scalar| to_python(py, scalar)).transpose();
        Ok((
            found.count,
            found.nan_count,
            found.positive_infinity_count,
            found.negative_infinity_count,
            extreme(found.min)?,
            extreme(found.max)?,
            found.mean(),
            found.std(),
        ))
    }
}

fn reduced<'py>(
    tensor: &Bound<'py, Tensor>,
    name: &str,
    arguments: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let function = tensor.py().import("stridemap._reductions")?.getattr(name)?;
    let mut all = vec![tensor.as_any().clone()];
    all.extend(arguments.iter());
    function.call(PyTuple::new(tensor.py(), all)?, options)
}
