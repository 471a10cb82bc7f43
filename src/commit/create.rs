use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{self as format, Manifest, Marker, Rule, Uuid};

use super::recover;
use crate::disk::{Access, Disk, STAGE_PREFIX, Staged, Step, StorePaths, dir_of, read_capped};
use crate::error::{Error, ErrorKind, Result};

/// Creates an empty store: whole or not at all, because it is built beside its place and then renamed. An empty directory
/// gives its place up, and its owner and permissions are the store's.
pub(crate) fn create(disk: &Arc<dyn Disk>, path: &Path, durable: bool) -> Result<Uuid> {
    let taken = |what: &str| {
        Error::new(
            ErrorKind::AlreadyExists,
            format!("create {}: {what} is there; open it, or choose another path", path.display()),
        )
    };
    let replaced = match disk.stat(path) {
        Ok(stat) if stat.is_regular => return Err(taken("a file")),
        Ok(_) => match disk.list(path) {
            Ok(names) if names.iter().any(|name| name == "FORMAT") => return Err(taken("a store")),
            Ok(names) if !names.is_empty() => return Err(taken("a directory that is not empty")),
            _ => Some(path),
        },
        Err(_) => None,
    };
    // It names the path that was asked for: the one that it is built at means nothing to anybody.
    let failed = |e| Error::denied("create store", path, e);
    let parent = dir_of(path);
    let id = uuid::Uuid::new_v4();
    let building = parent.join(format!("{STAGE_PREFIX}{}", id.simple()));
    let manifest = Manifest::first(id.into_bytes());
    let manifest_bytes = manifest.encode().map_err(|e| Error::refused("create a store", e))?;
    let paths = StorePaths::new(&building);
    let mut files = vec![
        (paths.manifest(manifest.generation), manifest_bytes),
        (paths.lock(), Vec::new()),
        (paths.marker(), Marker { uuid: manifest.uuid }.encode()),
    ];
    if !durable {
        files.push((paths.unsynced(), Vec::new()));
    }
    let built = build(disk, &paths, replaced, &files, durable).map_err(failed).and_then(|()| {
        let renamed = Step::RenameStore.on(&**disk, || disk.rename_dir(&building, path));
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                taken("a directory that is not empty")
            }
            io::ErrorKind::NotADirectory => taken("a file"),
            _ => failed(e),
        })
    });
    if let Err(e) = built {
        // Its parts first: without a descriptor left to list them, only what is empty can be deleted.
        for dir in [&paths.storages_dir(), &paths.meta_dir(), &building] {
            let _ = disk.remove_dir_all(dir);
        }
        return Err(e);
    }
    if durable {
        let synced = Step::SyncParent.on(&**disk, || disk.sync_dir(parent));
        synced.map_err(|e| Error::io("sync", parent, e))?;
    }
    Ok(manifest.uuid)
}

fn build(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    replaced: Option<&Path>,
    files: &[(PathBuf, Vec<u8>)],
    durable: bool,
) -> io::Result<()> {
    disk.create_dir(paths.root())?;
    if let Some(replaced) = replaced {
        // Before anything is in it, which might inherit of it.
        disk.copy_access(replaced, paths.root())?;
    }
    disk.create_dir(&paths.storages_dir())?;
    disk.create_dir(&paths.meta_dir())?;
    for (path, bytes) in files {
        write_new(disk, path, bytes, durable)?;
    }
    if durable {
        // Not `storages/`, which is empty: its name is in the root.
        Step::SyncNewMeta.on(&**disk, || disk.sync_dir(&paths.meta_dir()))?;
        Step::SyncNewRoot.on(&**disk, || disk.sync_dir(paths.root()))?;
    }
    Ok(())
}

fn write_new(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let mut staged = Staged::create(disk, path.parent().unwrap_or(path))?;
    staged.file().write_all_at(bytes, 0)?;
    if durable {
        Step::SyncNewFile.on(&**disk, || staged.file().sync())?;
    }
    Step::RenameNewFile.on(&**disk, || staged.publish(path))
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
        Err(e) if e.kind() == io::ErrorKind::NotFound && disk.stat(paths.root()).is_err() => {
            return Err(Error::new(ErrorKind::NotFound, format!("open {root}: no store there")));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(unmarked("it has no FORMAT file")),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(unmarked("it is not a directory"));
        }
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
