//! Opens the files of storages, and creates errors about them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use stridemap_format::{Error as FormatError, Rule};

use crate::disk::{Access, Disk, DiskFile, is_not_regular, read_again};
use crate::error::{Error, ErrorKind, Result};

/// Opens the file of a storage, and checks that it has at least `needed_bytes`.
///
/// # Errors
/// `Corrupt` with [`Rule::StorageFile`] if it is missing, too short or not a regular file; `Io`.
pub(crate) fn open_whole(disk: &dyn Disk, path: &Path, needed_bytes: u64) -> Result<Arc<dyn DiskFile>> {
    let file = read_again(|| disk.open(path, Access::Read)).opening("open storage", path)?;
    check_length(path, file.stat().opening("open storage", path)?.size_bytes, needed_bytes)?;
    Ok(file)
}

/// Context for the result of opening a file that a record of the store needs.
pub(crate) trait OpenContext<T> {
    /// For a file to be read. `action` is a verb and its object: "open storage".
    fn opening(self, action: &str, path: &Path) -> Result<T>;
    /// For a file to be written. If that is denied, the error is that the store is read-only.
    fn opening_to_write(self, action: &str, path: &Path) -> Result<T>;
}

impl<T> OpenContext<T> for io::Result<T> {
    fn opening(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|e| unopened(path, e, |e| Error::io(action, path, e)))
    }

    fn opening_to_write(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|e| unopened(path, e, |e| Error::at_first_write(action, path, e)))
    }
}

fn unopened(path: &Path, e: io::Error, other: impl FnOnce(io::Error) -> Error) -> Error {
    match e.kind() {
        io::ErrorKind::NotFound => broken(path, "the file is missing"),
        _ if is_not_regular(&e) => broken(path, e.to_string()),
        _ => other(e),
    }
}

pub(super) fn read_error(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => broken(path, "the file became shorter while it was read"),
        _ => Error::io("read storage", path, e),
    }
}

/// Returns the error of a read of a file that must have at least `needed_bytes`. For one that is shorter, it is that of
/// an open.
pub(super) fn short_or_unread(file: &dyn DiskFile, path: &Path, needed_bytes: u64, e: io::Error) -> Error {
    let is_short = e.kind() == io::ErrorKind::UnexpectedEof;
    let found = is_short.then(|| file.stat().ok()).flatten();
    let short = found.and_then(|stat| check_length(path, stat.size_bytes, needed_bytes).err());
    short.unwrap_or_else(|| read_error(path, e))
}

/// Checks that a file has the bytes that its record requires.
///
/// # Errors
/// `Corrupt` for a file that is shorter.
pub(crate) fn check_length(path: &Path, found_bytes: u64, needed_bytes: u64) -> Result<()> {
    if found_bytes < needed_bytes {
        return Err(broken(
            path,
            format!("the file has {found_bytes} bytes, but the record requires {needed_bytes}"),
        ));
    }
    Ok(())
}

/// Returns the error for changing or growing a file that has several names.
pub(super) fn other_names_error(path: &Path, link_count: u64) -> Error {
    let message = format!(
        "{}: the file has {link_count} names (hard links), and a change would appear under all of them; give the \
         store its own copy",
        path.display()
    );
    Error::new(ErrorKind::Conflict, message)
}

pub(super) fn broken(path: &Path, detail: impl Into<String>) -> Error {
    Error::corrupt(path, FormatError::new(Rule::StorageFile, detail))
}

/// The reason that a file cannot be mapped.
#[derive(Debug)]
pub(super) enum MapError {
    /// This process already uses the file in a way that excludes the mapping. The text describes that use.
    Conflict(String),
    /// The file system does not support shared mappings.
    Unsupported,
    Io(io::Error),
}

impl From<io::Error> for MapError {
    fn from(e: io::Error) -> Self {
        match Errno::from_io_error(&e) {
            Some(Errno::NODEV) => MapError::Unsupported,
            _ => MapError::Io(e),
        }
    }
}

impl MapError {
    /// Whether the address space is used up, or the number of mappings is at its limit.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, MapError::Io(e) if e.kind() == io::ErrorKind::OutOfMemory)
    }

    /// Returns the error for a storage whose file is at `path`.
    pub(super) fn into_error(self, path: &Path) -> Error {
        match self {
            MapError::Conflict(conflict) => broken(path, format!("the file is also {conflict}")),
            MapError::Unsupported => Error::io("map storage", path, Errno::NODEV.into()),
            MapError::Io(e) => Error::io("map storage", path, e),
        }
    }
}
