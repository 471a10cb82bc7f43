//! The files of a new store, and the syncs that make its names durable.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stridemap_format::{Manifest, Marker};

use crate::disk::{Disk, Staged, StorePaths, SyncDirError, step};
use crate::error::{Error, ErrorKind, Result};

/// Whether other processes can open a directory that becomes a store.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Visibility {
    Visible,
    Hidden,
}

/// Returns the first manifest of a new store, with a random uuid.
pub(super) fn first_manifest() -> Manifest {
    Manifest { time_ns: now_ns(), ..Manifest::first(uuid::Uuid::new_v4().into_bytes()) }
}

/// Turns an empty directory into an empty store whose first manifest is `first`, or leaves it empty.
pub(super) fn fill(
    disk: &Arc<dyn Disk>,
    root: &Path,
    durable: bool,
    visibility: Visibility,
    first: &Manifest,
) -> io::Result<()> {
    let mut made = Vec::new();
    make(disk, &StorePaths::new(root), durable, visibility, first, &mut made).inspect_err(|_| {
        // FORMAT first, so that an interrupted deletion does not leave a store. What others put here stays.
        for path in made.iter().rev() {
            let _ = disk.remove(path).or_else(|_| disk.remove_dir(path));
        }
    })
}

/// Makes the parts of an empty store, and adds the path of each to `made`.
fn make(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    durable: bool,
    visibility: Visibility,
    first: &Manifest,
    made: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let bytes = first.encode().map_err(io::Error::other)?;
    // If two processes create a store in one directory, only one gets past the first of these.
    for dir in paths.dirs() {
        disk.create_dir(&dir)?;
        made.push(dir);
    }
    let mut write =
        |path: PathBuf, bytes: &[u8]| write_new(disk, &path, bytes, durable).map(|()| made.push(path));
    write(paths.manifest(first.generation), &bytes)?;
    write(paths.lock(), &[])?;
    if !durable {
        write(paths.unsynced(), &[])?;
    } else {
        // Without this sync, the store could have no generation. The others need no sync: they are empty, and
        // their names are in the root.
        step!("sync-new-meta", disk.sync_dir(&paths.meta_dir()))?;
    }
    if durable && visibility == Visibility::Visible {
        // Before FORMAT: otherwise a store could lack one of its parts.
        step!("sync-new-names", disk.sync_dir(paths.root()))?; // crash: a directory that is not a store
    }
    // FORMAT makes the directory a store. If other processes can see the directory, nothing follows FORMAT here, so a
    // failure never deletes a store in use.
    write(paths.format_file(), &Marker { uuid: first.uuid }.encode())?;
    if durable && visibility == Visibility::Hidden {
        sync_root(&**disk, paths.root())?; // otherwise the directory may not be a store
    }
    Ok(())
}

/// Returns the time of this moment, in nanoseconds since 1970.
pub(super) fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or_else(|e| -nanoseconds(e.duration()), nanoseconds)
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn failed(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::AlreadyExists => occupied(path, "the path already exists; choose a different path"),
        _ => Error::at_first_write("create store", path, e),
    }
}

pub(super) fn occupied(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("create {}: {what}", path.display()))
}

fn write_new(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let mut staged = Staged::create(disk, path.parent().unwrap_or(path))?;
    staged.file().write_all_at(bytes, 0)?;
    if durable {
        step!("sync-new-file", staged.file().sync())?; // otherwise the name could exist with an empty file
    }
    step!("rename-new-file", staged.publish(path))
}

/// Makes FORMAT and the other names in a store's directory durable.
pub(super) fn sync_root(disk: &dyn Disk, root: &Path) -> Result<(), SyncDirError> {
    step!("sync-new-root", disk.sync_dir(root))
}

/// Makes the name of a store's directory durable.
pub(crate) fn sync_name(disk: &dyn Disk, root: &Path) -> Result<()> {
    // The real parent directory, whatever link led here.
    let parent = root.join("..");
    let synced = match disk.sync_dir(&parent) {
        // A user who may write the store may not be allowed to read its parent directory.
        Err(SyncDirError::Open(e)) if e.kind() == io::ErrorKind::PermissionDenied => {
            disk.sync_file_system(root).map_err(SyncDirError::Sync)
        }
        // Some directories cannot be synced.
        Err(SyncDirError::Sync(e)) if e.kind() == io::ErrorKind::InvalidInput => {
            disk.sync_file_system(root).map_err(SyncDirError::Sync)
        }
        synced => synced,
    };
    synced.map_err(|e| e.at(&parent))
}
