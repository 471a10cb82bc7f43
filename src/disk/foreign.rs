//! Directories that do not belong to the store.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::FileId;

/// Returns the length of a file, or of a directory and all that is in it, as `du -sb` counts it. What cannot be read
/// counts as empty, and so does a file of which a name was counted already. The files with several names are added to
/// `counted`.
pub(crate) fn tree_bytes(path: &Path, counted: &mut HashSet<FileId>) -> u64 {
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    if !found.is_dir() {
        let is_first = found.nlink() < 2 || counted.insert((found.dev(), found.ino()));
        return if is_first { found.len() } else { 0 };
    }
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|entry| tree_bytes(&entry.path(), counted)).fold(found.len(), u64::saturating_add)
}
