//! The progress of a transfer from another store.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::disk::{DiskFile, stream};
use crate::error::{Error, ErrorKind, Result};

/// Counts what is read from another store. All threads of the transfer share it.
pub(crate) struct Transfer<'a> {
    progress: &'a (dyn Fn(u64) -> Result<()> + Sync),
    received_bytes: AtomicU64,
    is_stopped: AtomicBool,
    /// The error that stopped it.
    failure: Mutex<Option<Error>>,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(progress: &'a (dyn Fn(u64) -> Result<()> + Sync)) -> Self {
        Transfer {
            progress,
            received_bytes: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// Notes that bytes were read.
    ///
    /// # Errors
    /// That of the caller's function, which ends the transfer.
    pub(crate) fn note(&self, bytes: u64) -> Result<()> {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_stopped() {
            return Err(Error::new(ErrorKind::Io, "the transfer was ended by an error of another thread"));
        }
        (self.progress)(bytes)
    }

    /// Ends the work of the other threads, because of an error on this one.
    pub(crate) fn stop(&self, failure: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the error that ended the work, if one did.
    pub(crate) fn outcome(&self) -> Result<()> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Passes all bytes of a file of the other store to `sink`, in order. `broken` makes the error for a file that is
    /// shorter by now.
    pub(crate) fn read(
        &self,
        (file, path): (&dyn DiskFile, &Path),
        range: std::ops::Range<u64>,
        broken: impl FnOnce() -> Error,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let read = stream(file, range, &mut |bytes| {
            sink(bytes)?;
            self.note(bytes.len() as u64)
        });
        read.map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => broken(),
            _ => Error::io("read", path, e),
        })?
    }
}
