//! The store to import or copy into.

use std::fs;
use std::path::Path;

use stridemap::{ErrorKind, Store, StoreOptions};

use crate::at::check_untagged;
use crate::error::{Error, Result};
use crate::input::reporting_waits;
use crate::names::is_like_a_file;
use crate::output_file::check_parent_dir;

/// Opens the store to import or copy into. Returns `None` if it is to be created, because the path does not exist or is an
/// empty directory.
pub(super) fn open_existing(
    command: &'static str,
    options: &StoreOptions,
    path: &Path,
) -> Result<Option<Store>> {
    check_untagged(path)?;
    check_store_name(command, path)?;
    check_parent_dir(command, path)?;
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match reporting_waits(options).open(path) {
        Ok(store) => Ok(Some(store)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotAStore && is_empty() => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotAStore => {
            Err(Error::Refused(format!("{e}; name a path that does not exist, to create a store there")))
        }
        Err(e) => Err(e.into()),
    }
}

/// Refuses to create a store whose name looks like that of a file with tensors. The user probably forgot to name the
/// store, so that the last path is an input file.
fn check_store_name(command: &str, path: &Path) -> Result<()> {
    let is_store = path.extension().is_some_and(|ending| ending == "smap") || path.join("FORMAT").exists();
    if is_store || !is_like_a_file(path) {
        return Ok(());
    }
    let why = "this is the name of a file, and the last path must be that of a store, such as model.smap";
    Err(Error::at(command, path, why))
}
