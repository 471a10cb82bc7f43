//! The mark of a mutable storage: the byte of its file after its own bytes.
//!
//! It is set while an exclusive guard changes the storage, so it is found set under a lock only if that guard has ended
//! before its changes were complete.

use std::io;
use std::path::Path;

use stridemap_format::{RecordKind, StorageRecord};

use crate::disk::{Access, Disk, DiskFile, read_again};
use crate::error::{IoContext, Result};
use crate::storage::map::file_lock::FileLock;
use crate::storage::open_file::OpenContext;

/// The mark of a storage that nothing is changing. Any other value is a mark that is set.
pub(in crate::storage) const WHOLE: u8 = 0;
pub(in crate::storage) const CHANGING: u8 = 1;

/// Whether the mark of a storage of `length_bytes` is set.
pub(in crate::storage) fn is_set(file: &dyn DiskFile, length_bytes: u64) -> io::Result<bool> {
    let mut mark = [WHOLE];
    file.read_exact_at(&mut mark, length_bytes)?;
    Ok(mark != [WHOLE])
}

/// Whether a change of the storage at `path` was interrupted. It was not if a guard that is changing the storage still
/// has its lock. A file that is missing or too short has no mark.
///
/// # Errors
/// `Io` if the file could not be read.
pub(crate) fn is_interrupted(disk: &dyn Disk, path: &Path, record: &StorageRecord) -> Result<bool> {
    if record.kind != RecordKind::Mutable {
        return Ok(false);
    }
    let read = |file: &dyn DiskFile| match read_again(|| is_set(file, record.length_bytes)) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.doing("read storage", path),
    };
    let file = match read_again(|| disk.open(path, Access::Read)).opening("open storage", path) {
        Err(e) if e.format_error().is_some() => return Ok(false),
        file => file?,
    };
    if !read(&*file)? {
        return Ok(false);
    }
    // A guard clears its mark before it releases its lock.
    let is_set = FileLock::read_unless_locked(&file, path, || read(&*file))?;
    Ok(is_set.unwrap_or(false))
}
