//! Opens live tensors: `as_live`, and its checks.

use std::marker::PhantomData;

use super::{LiveElement, LiveTensor};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::storage::LiveFile;
use crate::tensor::{Element, Tensor};

impl Tensor {
    /// Returns the tensor as a [`LiveTensor`]: its elements are read and written in place, while other threads and
    /// processes do the same.
    ///
    /// Like [`as_slice`](Self::as_slice), this copies nothing. It returns a handle and not a borrow, because a
    /// reference into memory that others change would be unsound. The storage is mapped at the first call, once per
    /// process.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// // SAFETY: only stridemap writes to this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// store.write(|txn| txn.save_as("steps", &[0u64; 2], StorageKind::Live))?;
    /// let steps = store.load("steps")?.as_live::<u64>()?;
    /// steps.fetch_add(1, 5)?;
    /// assert_eq!(store.load("steps")?.read::<u64>()?, [0, 5]); // the same bytes
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor on a different kind of storage, or one that is not committed;
    /// [`ErrorKind::Unsupported`] if the store was not opened with [`Store::open_mapped`](crate::Store::open_mapped),
    /// or the file cannot be mapped; [`ErrorKind::DTypeMismatch`], also for a view whose elements do not have the
    /// width that the storage was made for: all accesses to a storage have one width; [`ErrorKind::Unsupported`] for
    /// an expanded or unfolded view; [`ErrorKind::ReadOnly`]; [`ErrorKind::Conflict`] if no tensor of the newest
    /// generation refers to the storage, or its file has a second name; [`ErrorKind::Stale`] if a different file
    /// took its place; [`ErrorKind::Stale`] in a child of the process that loaded the tensor; [`ErrorKind::Corrupt`]
    /// if the file is shorter than it should be, or is also a storage of a different kind; [`ErrorKind::Io`], for
    /// example for a full disk.
    pub fn as_live<T: LiveElement>(&self) -> Result<LiveTensor<T>> {
        let op = "as_live";
        let file = self.live_file(op)?;
        check_view::<T>(op, self, file)?;
        let mapping = file.map().context(op)?;
        Ok(LiveTensor { tensor: self.clone(), mapping, element: PhantomData })
    }

    pub(super) fn live_file(&self, op: &str) -> Result<&LiveFile> {
        self.storage().as_live().ok_or_else(|| {
            let why = self.explain_storage("use save_as with StorageKind::Live to make a live copy");
            Error::new(ErrorKind::Unsupported, format!("{op}: {why}"))
        })
    }
}

/// Checks that the elements of a view can be accessed as `T`, each by its own atomic.
pub(super) fn check_view<T: Element>(op: &str, view: &Tensor, file: &LiveFile) -> Result<()> {
    view.check_dtype::<T>(op)?;
    let (dtype, access_bytes) = (view.dtype(), file.access_bytes());
    if dtype.itemsize() != usize::from(access_bytes) {
        let message = format!(
            "{op}: every process accesses the storage {access_bytes} bytes at a time, but {dtype} has {} bytes; \
             view it as a dtype of {access_bytes} bytes",
            dtype.itemsize()
        );
        return Err(Error::new(ErrorKind::DTypeMismatch, message));
    }
    view.check_writable(op)
}
