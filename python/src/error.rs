//! Errors of the library as exceptions of the package.

use std::io;

use pyo3::prelude::*;

/// An error of the library or of Python.
pub(crate) enum Error {
    Stridemap(stridemap::Error),
    Python(PyErr),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<stridemap::Error> for Error {
    fn from(error: stridemap::Error) -> Self {
        Error::Stridemap(error)
    }
}

impl From<PyErr> for Error {
    fn from(error: PyErr) -> Self {
        Error::Python(error)
    }
}

impl From<Error> for PyErr {
    /// The kind of an error determines the class of the exception, which also has the kind as a string.
    fn from(error: Error) -> Self {
        let error = match error {
            Error::Stridemap(error) => error,
            Error::Python(error) => return error,
        };
        Python::attach(|py| {
            let new = |py: Python<'_>| -> PyResult<PyErr> {
                let make = py.import("stridemap._errors")?.getattr("make")?;
                let kind = format!("{:?}", error.kind());
                let errno = error.io_error().and_then(io::Error::raw_os_error);
                Ok(PyErr::from_value(make.call1((kind, error.to_string(), errno))?))
            };
            new(py).unwrap_or_else(|e| e)
        })
    }
}
