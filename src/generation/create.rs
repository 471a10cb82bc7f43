//! Creates a store, and opens the directories of an existing one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{self as format, Manifest, Marker, Rule, Uuid};

use super::incomplete_store::IncompleteStore;
use super::recover;
use crate::disk::{
    Access, Disk, Staged, StorePaths, SyncDirError, is_not_regular, read_again, read_capped, step,
};
use crate::error::{Error, ErrorKind, IoContext, Result};

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
        let uuid = fill(&held, &root, durable, Visibility::Visible).map_err(|e| failed(path, e))?;
        if durable {
            // If this fails, the store is not deleted, because other processes may use it by now. Its first commit
            // makes its names durable.
            sync_root(&*held, &root).map_err(|e| e.at(path))?;
        }
        uuid
    } else {
        let (mut building, uuid) = IncompleteStore::create(disk, path, durable)?;
        building.rename()?;
        uuid
    };
    if durable {
        // Otherwise the store could disappear. It is there already, even if its parent could not be opened to be synced.
        step!("sync-parent", sync_name(&**disk, path)).map_err(Error::after_failed_sync)?;
    }
    Ok(uuid)
}

/// Whether other processes can open a directory that becomes a store.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Visibility {
    Visible,
    Hidden,
}

/// Turns an empty directory into an empty store, or leaves it empty.
pub(super) fn fill(
    disk: &Arc<dyn Disk>,
    root: &Path,
    durable: bool,
    visibility: Visibility,
) -> io::Result<Uuid> {
    let mut made = Vec::new();
    make(disk, &StorePaths::new(root), durable, visibility, &mut made).inspect_err(|_| {
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
    made: &mut Vec<PathBuf>,
) -> io::Result<Uuid> {
    let uuid = uuid::Uuid::new_v4().into_bytes();
    let manifest = Manifest::first(uuid);
    let bytes = manifest.encode().map_err(io::Error::other)?;
    // If two processes create a store in one directory, only one gets past the first of these.
    for dir in [paths.storages_dir(), paths.meta_dir()] {
        disk.create_dir(&dir)?;
        made.push(dir);
    }
    let mut write =
        |path: PathBuf, bytes: &[u8]| write_new(disk, &path, bytes, durable).map(|()| made.push(path));
    write(paths.manifest(manifest.generation), &bytes)?;
    write(paths.lock(), &[])?;
    if !durable {
        write(paths.unsynced(), &[])?;
    } else {
        // Without this sync, the store could have no generation. `storages/` needs no sync: it is empty, and its
        // name is in the root.
        step!("sync-new-meta", disk.sync_dir(&paths.meta_dir()))?;
    }
    if durable && visibility == Visibility::Visible {
        // Before FORMAT: otherwise a store could lack one of its parts.
        step!("sync-new-names", disk.sync_dir(paths.root()))?; // crash: a directory that is not a store
    }
    // FORMAT makes the directory a store. If other processes can see the directory, nothing follows FORMAT here, so a
    // failure never deletes a store in use.
    write(paths.format_file(), &Marker { uuid }.encode())?;
    if durable && visibility == Visibility::Hidden {
        sync_root(&**disk, paths.root())?; // otherwise the directory may not be a store
    }
    Ok(uuid)
}

pub(super) fn failed(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::AlreadyExists => occupied(path, "the path already exists; choose a different path"),
        _ => Error::at_first_write("create store", path, e),
    }
}

fn occupied(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("create {}: {what}", path.display()))
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

/// Opens the directories of the store that a path leads to now. From then on nothing is looked up by that path.
pub(crate) fn open_dirs(disk: &Arc<dyn Disk>, path: &Path) -> Result<(Arc<dyn Disk>, StorePaths)> {
    let held = disk.hold(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound if path.as_os_str().is_empty() => {
            Error::new(ErrorKind::NotFound, "open: the path is empty; the current directory is \".\"")
        }
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("open {}: no store at this path", path.display()))
        }
        io::ErrorKind::NotADirectory => Error::new(
            ErrorKind::NotAStore,
            format!("open {}: not a stridemap store: it is not a directory", path.display()),
        ),
        _ => Error::io("open", path, e),
    })?;
    Ok((held, StorePaths::new(path)))
}

/// Reads FORMAT, which makes a directory a store, and checks that the store has its directories. Returns the uuid.
pub(crate) fn check_store(disk: &dyn Disk, paths: &StorePaths) -> Result<Uuid> {
    let uuid = read_format(disk, paths)?;
    for (dir, rule) in [(paths.storages_dir(), Rule::StorageFile), (paths.meta_dir(), Rule::MetadataFile)] {
        if !is_own_dir(disk, &dir, rule)? {
            return Err(Error::corrupt(&dir, format::Error::new(rule, "the directory is missing")));
        }
    }
    Ok(uuid)
}

/// Whether a directory of a store exists.
///
/// # Errors
/// `Corrupt` for anything else: a link could lead anywhere, and files would be written and deleted there.
pub(crate) fn is_own_dir(disk: &dyn Disk, dir: &Path, rule: Rule) -> Result<bool> {
    match read_again(|| disk.is_dir(dir)) {
        Ok(true) => Ok(true),
        Ok(false) => {
            let detail = "a link or a file, not a directory of its own; put the directory back";
            Err(Error::corrupt(dir, format::Error::new(rule, detail)))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("examine", dir, e)),
    }
}

/// Whether a listing failed because there is no directory of that name.
fn is_missing_dir(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads FORMAT. A directory without a valid one is not a store, unless it has manifests: then it is a damaged store.
pub(crate) fn read_format(disk: &dyn Disk, paths: &StorePaths) -> Result<Uuid> {
    let (root, path) = (paths.root().display(), paths.format_file());
    let unmarked = |why: &str| match read_again(|| disk.list(&paths.meta_dir())) {
        Ok(names) if !recover::numbers_among(&names, "man").is_empty() => {
            Error::corrupt(&path, format::Error::new(Rule::MarkerMagic, why))
        }
        Err(e) if !is_missing_dir(&e) => Error::io("list", &paths.meta_dir(), e),
        _ => Error::new(ErrorKind::NotAStore, format!("open {root}: not a stridemap store: {why}")),
    };
    let file = match read_again(|| disk.open(&path, Access::Read)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(unmarked("it has no FORMAT file")),
        Err(e) if is_not_regular(&e) => return Err(unmarked(&format!("FORMAT is {e}"))),
        opened => opened.doing("open", &path)?,
    };
    let bytes = read_again(|| read_capped(&*file, Marker::LENGTH as u64));
    let bytes = bytes.doing("read", &path)?;
    Marker::decode(&bytes).map(|marker| marker.uuid).map_err(|e| match e.rule() {
        Rule::MarkerMagic => unmarked("FORMAT has a different magic"),
        _ => Error::corrupt(&path, e),
    })
}
