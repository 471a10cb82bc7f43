//! Blocking calls of asynchronous code.

use std::future::Future;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use stridemap::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Runtime};

/// Called while a request is waited for; an error ends the wait. For Ctrl-C.
pub type Check = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// How often [`Check`] is called.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The runtime of this process, with the id of the process that started its threads.
static RUNTIME: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);

/// The threads that send and receive. There is one such runtime a process.
#[derive(Clone)]
pub(super) struct Threads {
    runtime: Arc<Runtime>,
    process_id: u32,
}

impl Threads {
    /// Returns the runtime of this process, and starts it for the first caller.
    pub(super) fn shared() -> Result<Self> {
        let process_id = process::id();
        let mut shared = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((owner, runtime)) = shared.as_ref()
            && *owner == process_id
        {
            return Ok(Threads { runtime: Arc::clone(runtime), process_id });
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(16)
            .thread_name("stridemap-remote")
            .enable_all()
            .build()
            .map_err(|e| Error::new(ErrorKind::Io, format!("start threads for requests: {e}")))?;
        let runtime = Arc::new(runtime);
        if let Some(inherited) = shared.replace((process_id, Arc::clone(&runtime))) {
            // Its threads exist only in the parent, so dropping it would wait for them forever.
            std::mem::forget(inherited);
        }
        Ok(Threads { runtime, process_id })
    }

    /// Runs a future to its end. It is dropped as soon as `check` fails, and then nothing more is sent.
    ///
    /// # Errors
    ///
    /// That of `check`. [`Stale`](ErrorKind::Stale) in a child of the process that started the threads.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        check: Option<&Check>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.wait_for_pieces(check, |_| future, &mut |_| Ok(()))
    }

    /// Like [`wait`](Self::wait), and passes what the future sends to `sink` meanwhile. An error of `sink` also ends the
    /// future, and is returned.
    pub(super) fn wait_for_pieces<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        check: Option<&Check>,
        future: impl FnOnce(PieceSender) -> F,
        sink: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<T> {
        if process::id() != self.process_id {
            return Err(Error::new(
                ErrorKind::Stale,
                "use a remote: it was opened by the parent of this forked process; open it again",
            ));
        }
        let (sender, receiver) = mpsc::channel();
        let pieces = sender.clone();
        let future = future(PieceSender(Box::new(move |piece| pieces.send(Event::Piece(piece)).is_ok())));
        let task = self.runtime.spawn(async move {
            // The receiver is gone after an interrupt.
            let _ = sender.send(Event::End(future.await));
        });
        let mut checked = Instant::now();
        loop {
            let mut result = match receiver.recv_timeout(CHECK_INTERVAL) {
                Ok(Event::Piece(piece)) => sink(piece),
                Ok(Event::End(value)) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => Err(Error::new(
                    ErrorKind::Io,
                    "send a request: its thread panicked, which is a bug of stridemap",
                )),
            };
            if let Some(check) = check.filter(|_| result.is_ok() && checked.elapsed() >= CHECK_INTERVAL) {
                result = check();
                checked = Instant::now();
            }
            if let Err(error) = result {
                task.abort();
                return Err(error);
            }
        }
    }
}

enum Event<T> {
    Piece(Bytes),
    End(T),
}

/// Sends pieces of an answer to the thread that waits for it. They wait in memory, up to a whole answer: if they filled the
/// sockets, the kernel would copy them together again and again.
pub(super) struct PieceSender(Box<dyn Fn(Bytes) -> bool + Send + Sync>);

impl PieceSender {
    /// Returns false if nobody waits for it any more.
    pub(super) fn send(&self, piece: Bytes) -> bool {
        (self.0)(piece)
    }
}
