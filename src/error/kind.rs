//! The kinds of error, and what a caller can do about each.

use super::Error;

/// The kind of an [`Error`], to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system returned an error, which is the [`io_error`](Error::io_error).
    Io,
    /// There is no store at the path.
    NotFound,
    /// The path exists but is not a store.
    NotAStore,
    /// The path of a new store or an exported file already exists.
    AlreadyExists,
    /// The store was written by a newer version of the format.
    UnsupportedVersion,
    /// The store's bytes break a [`rule`](Error::rule) of the format.
    Corrupt,
    /// The store has no tensor with this name.
    NameNotFound,
    /// A tensor with this name exists, and the change does not replace it.
    NameExists,
    /// The elements have a different dtype.
    DTypeMismatch,
    /// Sizes do not match each other or the data, or aligned dimensions have different names.
    SizeMismatch,
    /// An axis, an index or a range is out of bounds.
    OutOfRange,
    /// An argument, or a value in the elements, is not valid.
    InvalidArgument,
    /// Only a copy of the elements would do: strides cannot describe the view; or elements to be borrowed are not
    /// contiguous, not aligned, not mapped, or may change; or a view to be saved is backed by other memory or by another
    /// store.
    NeedsCopy,
    /// The tensor does not support the operation. Locking it and changing it in place needs a mutable storage, atomic
    /// access a mapped live one. Appending rows needs a contiguous tensor at the end of a sealed storage. Writing needs
    /// a view in which no two indices refer to the same element.
    Unsupported,
    /// A number exceeds a limit of the format, of an operation or of this machine's address space.
    LimitExceeded,
    /// There is not enough memory for the result.
    OutOfMemory,
    /// An [option](crate::StoreOptions) does not allow it: to open a file outside the store, or to map files of a network
    /// file system.
    NotAllowed,
    /// An external file changed since it was opened or adopted.
    ExternalChanged,
    /// Another process, or another guard, holds the lock.
    Busy,
    /// The handle or tensor can no longer be used, because a file or directory of the store was deleted or replaced, or
    /// because it was created by the parent of this forked process. Open the store again.
    Stale,
    /// Another commit changed what this one depends on.
    Conflict,
    /// The store cannot be changed, because its file system is read-only, or because the process has no permission
    /// to write its files. Reading works.
    ReadOnly,
    /// The commit may or may not have taken effect; opening the store again shows which. The next commit or
    /// collection by a new handle makes the visible state durable.
    CommitUnknown,
    /// An earlier sync failed, so this handle can no longer write. The message contains that failure.
    Poisoned,
    /// A process ended, a thread panicked, or an operation failed, while it was changing the mutable storage. Use
    /// [`allow_interrupted`](crate::Tensor::allow_interrupted) to go on.
    Interrupted,
    /// An imported file is malformed, or the format of an exported file cannot represent a tensor.
    BadFile,
}

/// What a caller can do about an error.
#[derive(PartialEq, Eq)]
enum Remedy {
    Retry,
    ChangeRequest,
    Salvage,
    MendDisk,
    Other,
}

impl ErrorKind {
    fn remedy(self) -> Remedy {
        match self {
            ErrorKind::Busy | ErrorKind::Conflict => Remedy::Retry,
            ErrorKind::NotFound
            | ErrorKind::NotAStore
            | ErrorKind::AlreadyExists
            | ErrorKind::NameNotFound
            | ErrorKind::NameExists
            | ErrorKind::DTypeMismatch
            | ErrorKind::SizeMismatch
            | ErrorKind::OutOfRange
            | ErrorKind::InvalidArgument
            | ErrorKind::NeedsCopy
            | ErrorKind::Unsupported
            | ErrorKind::LimitExceeded
            | ErrorKind::NotAllowed => Remedy::ChangeRequest,
            ErrorKind::Corrupt | ErrorKind::ExternalChanged => Remedy::Salvage,
            ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::CommitUnknown | ErrorKind::Poisoned => {
                Remedy::MendDisk
            }
            ErrorKind::UnsupportedVersion
            | ErrorKind::OutOfMemory
            | ErrorKind::Stale
            | ErrorKind::Interrupted
            | ErrorKind::BadFile => Remedy::Other,
        }
    }
}

/// At most one of these is true of an error.
impl Error {
    /// Returns whether the same call may succeed later: another process or thread holds a lock (`Busy`), or another
    /// commit came first (`Conflict`: read again what the change depends on).
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # let store = Store::create(&path)?;
    /// let _exclusive = store.begin_exclusive()?;
    /// let other = StoreOptions::new().lock_timeout(std::time::Duration::ZERO).open(&path)?;
    /// assert!(other.save("x", &1).unwrap_err().is_retryable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().remedy() == Remedy::Retry
    }

    /// Returns whether the call asks for what the store, the tensor or the options do not have or allow. The same call
    /// fails again: change it. Nothing is wrong with the store or the disk.
    #[must_use]
    pub fn is_invalid_request(&self) -> bool {
        self.kind().remedy() == Remedy::ChangeRequest
    }

    /// Returns whether the store is damaged (`Corrupt`), or one of its external files is no longer the one that was
    /// adopted (`ExternalChanged`). The [`verify`](crate::Store::verify) methods list all damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.kind().remedy() == Remedy::Salvage
    }

    /// Returns whether the disk or the operating system failed or refused (`Io`, `ReadOnly`, `CommitUnknown`,
    /// `Poisoned`).
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.kind().remedy() == Remedy::MendDisk
    }
}
