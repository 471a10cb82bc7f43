use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{self as format, Manifest, Marker, Rule, Uuid};

use super::recover;
use crate::disk::{Access, Disk, STAGE_PREFIX, Staged, Step, StorePaths, dir_of, read_capped};
use crate::error::{Error, ErrorKind, Result};

/// Creates an empty store. Where nothing is, it is built beside its place and then renamed: it is there whole or not at all.
/// A directory that is there already may be one that cannot be replaced, a mount point or the current directory: the store
/// is built in it, and FORMAT, without which it is no store, comes last.
pub(crate) fn create(disk: &Arc<dyn Disk>, path: &Path, durable: bool) -> Result<Uuid> {
    let taken = |what: &str| {
        Error::new(
            ErrorKind::AlreadyExists,
            format!("create {}: {what} is there; open it, or choose another path", path.display()),
        )
    };
    let is_dir = match disk.stat(path) {
        Ok(stat) if stat.is_regular => return Err(taken("a file")),
        Ok(_) => match disk.list(path) {
            Ok(names) if names.iter().any(|name| name == "FORMAT") => return Err(taken("a store")),
            Ok(names) if names.iter().any(|name| name == "storages") => {
                let message = format!(
                    "create {}: a part of a store is there, without FORMAT; repair it, or delete it if its creation was \
                     interrupted",
                    path.display()
                );
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
            // A new file system has this one directory.
            Ok(names) if names.iter().any(|name| name != "lost+found") => {
                return Err(taken("a directory that is not empty"));
            }
            _ => true,
        },
        Err(_) => false,
    };
    // It names the path that was asked for: the one that it is built at means nothing to anybody.
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists => taken("a directory that is not empty"),
        _ => Error::denied("create store", path, e),
    };
    let id = uuid::Uuid::new_v4();
    let beside = || dir_of(path).join(format!("{STAGE_PREFIX}{}", id.simple()));
    let building = if is_dir { path.to_path_buf() } else { beside() };
    let manifest = Manifest::first(id.into_bytes());
    let manifest_bytes = manifest.encode().map_err(|e| Error::refused("create a store", e))?;
    let paths = StorePaths::new(&building);
    let mut files = vec![(paths.manifest(manifest.generation), manifest_bytes), (paths.lock(), Vec::new())];
    if !durable {
        files.push((paths.unsynced(), Vec::new()));
    }
    if !is_dir {
        disk.create_dir(&building).map_err(failed)?;
    }
    // Of two that create a store in one directory, this lets one go on.
    disk.create_dir(&paths.storages_dir()).map_err(failed)?;
    let build = || {
        disk.create_dir(&paths.meta_dir())?;
        files.iter().try_for_each(|(file, bytes)| write_new(disk, file, bytes, durable))?;
        if durable {
            // Not `storages/`, which is empty: its name is in the root.
            Step::SyncNewMeta.on(&**disk, || disk.sync_dir(&paths.meta_dir()))?;
        }
        if durable && is_dir {
            Step::SyncNewNames.on(&**disk, || disk.sync_dir(&building))?; // crash: a directory that is no store
        }
        write_new(disk, &paths.marker(), &Marker { uuid: manifest.uuid }.encode(), durable)?;
        if durable {
            Step::SyncNewRoot.on(&**disk, || disk.sync_dir(&building))?;
        }
        if is_dir { Ok(()) } else { Step::RenameStore.on(&**disk, || disk.rename_new(&building, path)) }
    };
    let built = build();
    if let Err(e) = built {
        for file in files.iter().map(|(file, _)| file).chain([&paths.marker()]) {
            let _ = disk.remove(file);
        }
        for dir in [paths.storages_dir(), paths.meta_dir()] {
            let _ = disk.remove_dir(&dir);
        }
        if !is_dir {
            let _ = disk.remove_dir(&building);
        }
        return Err(failed(e));
    }
    if durable {
        sync_name(Step::SyncParent, &**disk, path)?;
    }
    Ok(manifest.uuid)
}

fn write_new(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let mut staged = Staged::create(disk, path.parent().unwrap_or(path))?;
    staged.file().write_all_at(bytes, 0)?;
    if durable {
        Step::SyncNewFile.on(&**disk, || staged.file().sync())?;
    }
    Step::RenameNewFile.on(&**disk, || staged.publish(path))
}

/// Makes the name of a store's directory durable.
pub(super) fn sync_name(step: Step, disk: &dyn Disk, root: &Path) -> Result<()> {
    // Where the directory is, whatever link led to it.
    let parent = root.join("..");
    let sync = || match disk.sync_dir(&parent) {
        // A user who may write the store need not be allowed to read the directory that holds it; and some directories
        // cannot be synced.
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => {
            disk.sync_file_system(root)
        }
        synced => synced,
    };
    step.on(disk, sync).map_err(|e| Error::io("sync", &parent, e).after_failed_sync())
}

/// Holds the directories of the store that a path leads to now: from then on nothing is looked up by that path.
pub(crate) fn hold(disk: &Arc<dyn Disk>, path: &Path) -> Result<(Arc<dyn Disk>, StorePaths)> {
    let held = disk.hold(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("open {}: no store there", path.display()))
        }
        io::ErrorKind::NotADirectory => Error::new(
            ErrorKind::NotAStore,
            format!("open {}: not a stridemap store: it is not a directory", path.display()),
        ),
        _ => Error::io("open", path, e),
    })?;
    Ok((held, StorePaths::new(path)))
}

/// Reads what makes a directory a store.
///
/// A directory without a FORMAT of ours is no store, unless it has manifests: then it is a damaged one.
pub(crate) fn read_marker(disk: &dyn Disk, paths: &StorePaths) -> Result<Uuid> {
    let (root, path) = (paths.root().display(), paths.marker());
    let unmarked = |why: &str| {
        if recover::manifest_numbers(disk, paths).is_ok_and(|numbers| !numbers.is_empty()) {
            return Error::corrupt(&path, format::Error::new(Rule::MarkerMagic, why));
        }
        Error::new(ErrorKind::NotAStore, format!("open {root}: not a stridemap store: {why}"))
    };
    let file = match disk.open(&path, Access::Read) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(unmarked("it has no FORMAT file")),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Err(unmarked(&format!("FORMAT is {e}"))),
        opened => opened.map_err(|e| Error::io("open", &path, e))?,
    };
    let bytes = read_capped(&*file, Marker::LENGTH as u64).map_err(|e| Error::io("read", &path, e))?;
    let marker = Marker::decode(&bytes).map_err(|e| match e.rule() {
        Rule::MarkerMagic => unmarked("FORMAT has another magic"),
        _ => Error::corrupt(&path, e),
    })?;
    for (dir, rule) in [(paths.storages_dir(), Rule::StorageFile), (paths.meta_dir(), Rule::ManifestFrame)] {
        let broken = |what| Err(Error::corrupt(&dir, format::Error::new(rule, what)));
        match disk.is_dir(&dir) {
            Ok(true) => {}
            // A link could lead anywhere, and files would be written and deleted there.
            Ok(false) => return broken("not a directory of its own"),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return broken("the directory is missing"),
            Err(e) => return Err(Error::io("look at", &dir, e)),
        }
    }
    Ok(marker.uuid)
}
