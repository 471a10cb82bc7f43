//! The files that an export would replace.

use std::fs;
use std::path::{Path, PathBuf};

use super::export::ExportArgs;
use crate::error::{Error, Result};
use crate::output_file::EXISTS;

/// Refuses to replace a file unless `--force` is given. Always refuses a path that is not a file. Returns whether the
/// file exists.
pub(super) fn check_existing(path: &Path, args: &ExportArgs) -> Result<bool> {
    let refused = |why: &str| Err(Error::Refused(format!("export {}: {why}", path.display())));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            refused("the path exists and is not a regular file")
        }
        Ok(_) if !args.existing.force => refused(EXISTS),
        found => Ok(found.is_ok()),
    }
}

/// Returns the path of the index that a model in shards has.
pub(super) fn index_path(args: &ExportArgs) -> PathBuf {
    let mut path = args.out.clone();
    path.as_mut_os_string().push(".index.json");
    path
}
