//! Bytes that were received for storages that this store has already.
//!
//! They are all verified before the first of these storages is changed, so what the other store lacks changes nothing here.
//! They share one unfinished file: a transfer may need more storages than a process may have open files.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use crate::disk::{Disk, Staged, StorePaths, stream};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// The unfinished file. It is created by the first write.
pub(crate) struct Spool<'a> {
    disk: &'a Arc<dyn Disk>,
    paths: &'a StorePaths,
    file: OnceLock<Staged>,
    creation: Mutex<()>,
    end: AtomicU64,
}

impl<'a> Spool<'a> {
    pub(crate) fn new(disk: &'a Arc<dyn Disk>, paths: &'a StorePaths) -> Self {
        let (file, creation, end) = (OnceLock::new(), Mutex::new(()), AtomicU64::new(0));
        Spool { disk, paths, file, creation, end }
    }

    fn file(&self) -> Result<&Staged> {
        let _creation = self.creation.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let dir = self.paths.storages_dir();
        let staged = Staged::create(self.disk, &dir);
        let staged = staged.map_err(|e| Error::at_first_write("stage received bytes in", &dir, e))?;
        Ok(self.file.get_or_init(|| staged))
    }

    /// Reserves a range for `length_bytes`.
    pub(crate) fn reserve(&self, length_bytes: u64) -> Result<Range<u64>> {
        let start = self.end.fetch_add(length_bytes, Ordering::Relaxed);
        let end = start.checked_add(length_bytes).filter(|end| *end <= i64::MAX as u64);
        let end =
            end.ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "too many bytes to receive at once"))?;
        let (range, file) = (start..end, self.file()?);
        if length_bytes > 0 {
            file.file().allocate(range.clone()).doing("allocate received bytes", file.path())?;
        }
        Ok(range)
    }

    pub(crate) fn write(&self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        let file = self.file()?;
        file.file().write_all_at(bytes, offset_bytes).doing("write received bytes", file.path())
    }

    /// Passes a range to `sink`, in order.
    pub(crate) fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let file = self.file()?;
        stream(&**file.file(), range, sink).doing("read received bytes", file.path())?
    }
}
