//! Storages that several processes fill before one transaction commits them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stridemap_format::limits::MAX_STORAGE_BYTES;

use super::handle::Store;
use super::import::too_long;
use super::loader::Loader;
use crate::error::Result;
use crate::generation::with_space;
use crate::storage::StorageWriter;

/// A file of zeros for a sealed storage, which any process may write until a [`Transaction`](crate::Transaction) commits
/// it.
///
/// So several processes fill one storage in place, and no byte is written twice. Each opens the file at
/// [`path`](Self::path), without truncating it, and writes a range of its own, with `pwrite` or through a mapping. The
/// process that [created](Store::stage_file) the file stages it when all have finished, and saves headers over it. If
/// the file is dropped without a commit, or that process is killed, the file is deleted: at once, or by a later commit.
///
/// Nobody may write the file once the commit has begun: it has become a sealed storage, and
/// [`verify`](Store::verify) would report it as damaged. On a network file system, each process closes or syncs the
/// file after it has written, so that this one sees the bytes.
///
/// ```
/// use std::os::unix::fs::FileExt;
/// use stridemap::{DType, Header, Store};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// let file = store.stage_file(1 << 20)?;
/// std::thread::scope(|scope| {
///     for part in 0..4u8 {
///         let path = file.path(); // could be sent to another process
///         scope.spawn(move || {
///             let file = std::fs::File::options().write(true).open(path)?;
///             file.write_all_at(&[part; 1 << 18], u64::from(part) << 18)
///         });
///     }
/// });
/// let parts = Header::contiguous(DType::U8, &[4, 1 << 18])?;
/// store.write(|txn| {
///     let key = txn.stage_file(file)?;
///     txn.save_header("parts", &parts, key)
/// })?;
/// assert_eq!(store.load("parts")?.select(1, 9)?.read::<u8>()?, [0, 1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the file is deleted when this is dropped"]
pub struct StagedFile {
    loader: Arc<Loader>,
    writer: StorageWriter,
}

impl fmt::Debug for StagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagedFile({:?}, {} bytes)", self.path(), self.writer.length_bytes())
    }
}

impl StagedFile {
    /// Returns the path of the file. It begins with [that of the store](Store::path), so it is relative if the store
    /// was opened by a relative path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.writer.path()
    }

    /// Returns what finishes the storage, if the file was created by this handle.
    pub(super) fn into_writer(self, loader: &Loader) -> Option<StorageWriter> {
        std::ptr::eq(&raw const *self.loader, loader).then_some(self.writer)
    }
}

impl Store {
    /// Creates a file of zeros for a storage that several processes fill. See [`StagedFile`]. Disk space is reserved
    /// for all of it.
    ///
    /// # Errors
    /// `LimitExceeded` for more bytes than a storage can hold; `ReadOnly`; `Io`, for example for a full disk; `Poisoned`.
    pub fn stage_file(&self, length_bytes: u64) -> Result<StagedFile> {
        let store = &self.loader.store;
        store.check_process()?;
        store.check_poison()?;
        if length_bytes > MAX_STORAGE_BYTES {
            return Err(too_long(length_bytes));
        }
        let writer = with_space(store, || {
            let mut writer = StorageWriter::sealed(&store.disk, &store.paths, store.is_durable())?;
            writer.leave_to_others(length_bytes)?;
            Ok(writer)
        });
        // The commit deletes what others that staged files have left since this handle was opened: they can be large.
        store.is_swept.store(false, Ordering::Relaxed);
        Ok(StagedFile { loader: Arc::clone(&self.loader), writer: store.record_failure(writer)? })
    }
}
