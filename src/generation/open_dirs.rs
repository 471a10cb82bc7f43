//! Opens the directories of an existing store.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::remote::Head;
use stridemap_format::{self as format, Marker, Rule, Uuid};

use super::recover;
use crate::disk::{Access, Disk, StorePaths, is_not_regular, read_again, read_capped};
use crate::error::{Error, ErrorKind, IoContext, Result};

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
    for dir in paths.dirs() {
        let rule = if dir == paths.storages_dir() { Rule::StorageFile } else { Rule::MetadataFile };
        if !is_own_dir(disk, &dir, rule)? {
            if is_remote(disk, paths) {
                let root = paths.root().display();
                let message = format!(
                    "open {root}: not a stridemap store but a remote, to which stores were pushed; pull it, or read it in \
                     place, by its URL: file:// and its absolute path"
                );
                return Err(Error::new(ErrorKind::NotAStore, message));
            }
            return Err(Error::corrupt(&dir, format::Error::new(rule, "the directory is missing")));
        }
    }
    Ok(uuid)
}

/// Whether a directory is a remote, which has a FORMAT too, and so looks like a store without its own directories.
fn is_remote(disk: &dyn Disk, paths: &StorePaths) -> bool {
    let file = read_again(|| disk.open(&paths.remote_head(), Access::Read));
    let bytes = file.and_then(|file| read_again(|| read_capped(&*file, Head::LENGTH as u64)));
    bytes.is_ok_and(|bytes| Head::decode(&bytes, None).is_ok())
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
