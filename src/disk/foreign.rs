//! Directories that do not belong to the store.

use std::fs;
use std::path::Path;

/// Returns the length of a file, or of a directory and all that is in it, as `du -sb` counts it. What cannot be read
/// counts as empty.
pub(crate) fn tree_bytes(path: &Path) -> u64 {
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    let entries = if found.is_dir() { fs::read_dir(path).ok() } else { None };
    let inside = entries.into_iter().flatten().flatten().map(|entry| tree_bytes(&entry.path()));
    inside.fold(found.len(), u64::saturating_add)
}
