//! Creates a store.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::Uuid;

use super::incomplete_store::IncompleteStore;
use super::new_store::{Visibility, failed, fill, first_manifest, occupied, sync_name, sync_root};
use crate::disk::{Disk, StorePaths, step};
use crate::error::{Error, Result};

/// Creates an empty store. A store at a new path is built under a temporary name and renamed, so it appears whole or
/// not at all.
///
/// An empty directory may be a mount point or the current directory, which cannot be replaced. So the store is built
/// inside it, and FORMAT is written last: without it, the directory is not a store.
pub(crate) fn create(disk: &Arc<dyn Disk>, path: &Path, durable: bool) -> Result<Uuid> {
    let uuid = if is_empty_dir(&**disk, path)? {
        // Until the store is complete, no lookup uses a path that another process may redirect.
        let root = StorePaths::new(path).root().to_path_buf();
        let held = disk.hold(&root).map_err(|e| failed(path, e))?;
        let first = first_manifest();
        fill(&held, &root, durable, Visibility::Visible, &first).map_err(|e| failed(path, e))?;
        if durable {
            // If this fails, the store is not deleted, because other processes may use it by now. Its first commit
            // makes its names durable.
            sync_root(&*held, &root).map_err(|e| e.at(path))?;
        }
        first.uuid
    } else {
        let first = first_manifest();
        let mut building = IncompleteStore::create(disk, path, durable, &first)?;
        building.rename()?;
        first.uuid
    };
    if durable {
        // Otherwise the store could disappear. It is there already, even if its parent could not be opened to be synced.
        step!("sync-parent", sync_name(&**disk, path)).map_err(Error::after_failed_sync)?;
    }
    Ok(uuid)
}

/// Returns true for an empty directory, and false for a path that does not exist. Anything else is an error.
pub(crate) fn is_empty_dir(disk: &dyn Disk, path: &Path) -> Result<bool> {
    match disk.stat(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Ok(stat) if stat.is_regular => {
            return Err(occupied(path, "the path is already a file; open it, or choose a different path"));
        }
        found => found.map_err(|e| failed(path, e))?,
    };
    let names = disk.list(path).map_err(|e| failed(path, e))?;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("FORMAT") {
        return Err(occupied(path, "the path is already a store; open it, or choose a different path"));
    }
    if has("storages") {
        let what = "the path has part of a store, without FORMAT; salvage it, or delete it if its creation was \
            interrupted";
        return Err(occupied(path, what));
    }
    // A new file system contains `lost+found`.
    if names.iter().any(|name| name != "lost+found") {
        return Err(occupied(path, "the path is a directory that is not empty; choose a different path"));
    }
    Ok(true)
}
