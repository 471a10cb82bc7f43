//! Numbers of the library as objects of Python.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyComplex;
use stridemap::Scalar;

pub(crate) fn to_python(py: Python<'_>, scalar: Scalar) -> PyResult<Py<PyAny>> {
    match scalar {
        Scalar::Bool(value) => value.into_py_any(py),
        Scalar::Int(value) => value.into_py_any(py),
        Scalar::Float(value) => value.into_py_any(py),
        Scalar::Complex(re, im) => PyComplex::from_doubles(py, re, im).into_py_any(py),
        Scalar::Pair(low, high) => (low, high).into_py_any(py),
        other => format!("{other:?}").into_py_any(py),
    }
}
