//! Work without the interpreter's lock, and how a signal such as Ctrl-C ends it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pyo3::prelude::*;

use crate::error::{Error, Result};

/// What unwinds from the place where a signal was noticed: the exception of its handler.
struct Interrupted(PyErr);

/// Acts without the interpreter's lock, so that other threads run.
pub(crate) fn detach<R: Send, E: Into<Error>>(
    py: Python<'_>,
    act: impl FnOnce() -> Result<R, E> + Send,
) -> Result<R> {
    py.detach(|| match catch_unwind(AssertUnwindSafe(|| act().map_err(Into::into))) {
        Ok(result) => result,
        Err(payload) => match payload.downcast::<Interrupted>() {
            Ok(interrupted) => Err(interrupted.0.into()),
            Err(payload) => resume_unwind(payload),
        },
    })
}

/// Runs the handlers of signals that have arrived. If a handler raises an exception, the work ends with that exception.
/// Called during long work, and while waiting for a lock. Only the main thread runs handlers.
pub(crate) fn check() {
    if let Err(e) = Python::attach(|py| py.check_signals()) {
        resume_unwind(Box::new(Interrupted(e)));
    }
}
