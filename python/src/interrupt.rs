//! Work without the interpreter's lock, and how a signal such as Ctrl-C ends it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use stridemap::parallel::{cancel_flag, set_cancel_flag};

use crate::error::{Error, Result};

/// How often a call that sends requests looks for signals.
const TICK: Duration = Duration::from_millis(20);

/// What unwinds from the place where a signal was noticed: the exception of its handler.
struct Interrupted(PyErr);

/// What unwinds from work whose call was cancelled: the caller has the exception.
struct Cancelled;

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
    if let Some(call) = Call::of_this_thread() {
        if call.is_cancelled() {
            resume_unwind(Box::new(Cancelled));
        }
        return;
    }
    if let Err(e) = Python::attach(|py| py.check_signals()) {
        resume_unwind(Box::new(Interrupted(e)));
    }
}

/// A call that sends requests. It works on a thread of its own, while the thread of its caller runs handlers of signals:
/// the work may wait for other threads, which cannot run them.
#[derive(Clone, Default)]
pub(crate) struct Call {
    is_cancelled: Arc<AtomicBool>,
}

impl Call {
    /// Returns the call that this thread works for, also if it only helps the thread of the call.
    fn of_this_thread() -> Option<Call> {
        Some(Call { is_cancelled: cancel_flag()? })
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Fails once the call is cancelled.
    pub(crate) fn check(&self) -> stridemap::Result<()> {
        if self.is_cancelled() {
            return Err(stridemap::Error::new(stridemap::ErrorKind::Io, "the call was interrupted"));
        }
        Ok(())
    }
}

/// Fails once the call that this thread works for is cancelled. The requests of a remote that several calls share are
/// checked like this.
pub(crate) fn check_requests() -> stridemap::Result<()> {
    Call::of_this_thread().map_or(Ok(()), |call| call.check())
}

/// Acts on another thread, without the interpreter's lock. Meanwhile, this thread runs the handlers of signals and calls
/// `tick`, also once at the end. If one of these raises an exception, the work is cancelled, and ends with that exception.
pub(crate) fn apart<R: Send, E: Into<Error>>(
    py: Python<'_>,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
    act: impl FnOnce(&Call) -> Result<R, E> + Send,
) -> Result<R> {
    let call = Call::default();
    thread::scope(|scope| {
        let (end, mut ended) = sync_channel::<()>(0);
        let work = {
            let call = call.clone();
            move || {
                // Dropped when the work has ended, however it does.
                let _end = end;
                set_cancel_flag(Some(Arc::clone(&call.is_cancelled)));
                act(&call).map_err(Into::into)
            }
        };
        let thread = thread::Builder::new().name("stridemap".to_owned()).spawn_scoped(scope, work);
        let thread = thread
            .map_err(|e| stridemap::Error::new(stridemap::ErrorKind::Io, format!("start a thread: {e}")))?;
        let mut raised: Option<PyErr> = None;
        let mut is_over = false;
        while !is_over {
            // A receiver is not shared between threads, so it is lent.
            let end = &mut ended;
            is_over = py.detach(move || end.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected));
            if raised.is_none()
                && let Err(e) = py.check_signals().and_then(|()| tick(py))
            {
                call.is_cancelled.store(true, Ordering::Relaxed);
                raised = Some(e);
            }
        }
        let result = py.detach(|| thread.join());
        match raised {
            Some(e) => Err(e.into()),
            None => result.unwrap_or_else(|payload| resume_unwind(payload)),
        }
    })
}
