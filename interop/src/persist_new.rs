//! Names for temporary files outside a store.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempPath;

/// Renames a temporary file to a name that must be free. On a file system that can neither rename without replacing nor
/// make hard links, the name is examined first, and a file that another process creates at that moment is replaced.
///
/// # Errors
/// `AlreadyExists`, or an error of the file system. The temporary file is then deleted.
pub fn persist_new(staged: TempPath, path: &Path) -> io::Result<()> {
    let refused = match staged.persist_noclobber(path) {
        Ok(()) => return Ok(()),
        Err(refused) => refused,
    };
    if !matches!(refused.error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) {
        return Err(refused.error);
    }
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => refused.path.persist(path).map_err(|e| e.error),
        found => Err(found.map_or_else(|e| e, |_| io::ErrorKind::AlreadyExists.into())),
    }
}
