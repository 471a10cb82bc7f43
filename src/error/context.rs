//! Adds to an error, where it is made, what was being done.

use std::fmt;
use std::io;
use std::path::Path;

use stridemap_format as format;

use super::{Error, Result};

/// Context for the result of one file operation.
pub(crate) trait IoContext<T> {
    /// Converts an error to [`Error::io`].
    fn doing(self, action: &str, path: &Path) -> Result<T>;
    /// For a sync: what was written may be lost, and another sync would not report it.
    fn syncing(self, action: &str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::io(action, path, e))
    }

    fn syncing(self, action: &str, path: &Path) -> Result<T> {
        self.doing(action, path).map_err(Error::after_failed_sync)
    }
}

/// Context for a result of this crate.
pub(crate) trait Context<T> {
    /// Prepends what was being done, as [`Error::context`] does.
    fn context(self, action: impl fmt::Display) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context(self, action: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.context(action))
    }
}

/// Context for the result of a check by the format.
pub(crate) trait FormatContext<T> {
    /// For bytes that were read from the file at `path`. Where no error must cost nothing, make the path in a
    /// `map_err`.
    fn corrupt_in(self, path: &Path) -> Result<T>;
    /// For a value that would break a rule if it were written.
    fn refused_to(self, action: impl fmt::Display) -> Result<T>;
}

impl<T> FormatContext<T> for format::Result<T> {
    fn corrupt_in(self, path: &Path) -> Result<T> {
        self.map_err(|e| Error::corrupt(path, e))
    }

    fn refused_to(self, action: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Error::refused(action, e))
    }
}
