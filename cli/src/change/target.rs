//! The store to import into: opened, or created.

use std::fs;
use std::path::Path;

use stridemap::{ErrorKind, Store, StoreOptions};

use crate::error::{Error, Result};

/// Opens the store to import into. Returns `None` if it is to be created, because the path does not exist or is an empty
/// directory.
pub(super) fn find(options: &StoreOptions, path: &Path) -> Result<Option<Store>> {
    check_store_name(path)?;
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match options.open(path) {
        Ok(store) => Ok(Some(store)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotAStore && is_empty() => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The ends of the names of files with tensors.
const FILE_ENDINGS: [&str; 7] = [".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin", ".index.json"];

/// Refuses to create a store under the name of a file, which is likely if the store was forgotten.
fn check_store_name(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if !FILE_ENDINGS.iter().any(|ending| name.ends_with(ending)) || path.join("FORMAT").exists() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "import {}: this is the name of a file, and the last path must be that of a store, such as model.smap",
        path.display()
    )))
}

/// Creates a store and fills it. If that fails, the store is deleted again, unless it has a commit by now.
pub(super) fn create(
    options: &StoreOptions,
    path: &Path,
    fill: impl FnOnce(&Store) -> stridemap::Result<u64>,
) -> Result<u64> {
    let was_there = path.exists();
    let store = options.create(path)?;
    let first = store.generation();
    let failed = match fill(&store) {
        Ok(generation) => return Ok(generation),
        Err(e) => e,
    };
    if store.refresh().is_ok() && store.generation() == first {
        drop(store);
        // What cannot be deleted is an empty store, and the first error is the one to report.
        let _ = fs::remove_dir_all(path);
        if was_there {
            let _ = fs::create_dir(path);
        }
    }
    Err(failed.into())
}
