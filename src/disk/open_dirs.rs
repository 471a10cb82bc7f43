//! The open directories of a store. Renaming or replacing the path of the store has no effect on them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directories in a store that hold its files.
const SUBDIRS: [&str; 3] = ["meta", "storages", "generations"];

/// The directories of the store at `path`, each as a `D`: a file descriptor, or an equivalent on another disk.
///
/// The path is then only a prefix: paths that begin with it are looked up in these directories.
#[derive(Debug)]
pub struct OpenDirs<D> {
    path: PathBuf,
    /// The store's own directory.
    root: D,
    /// In the order of [`SUBDIRS`]. The creator of a store makes them, so one that was missing is opened when it is first
    /// used.
    subdirs: [OnceLock<D>; SUBDIRS.len()],
}

/// The location of a directory entry.
pub struct Place<'a, D> {
    /// The open directory.
    pub dir: &'a D,
    /// The path relative to the directory: one name, or `.` or `..`.
    pub name: &'a Path,
}

impl<D> OpenDirs<D> {
    /// Opens the store's directories that exist. `find` opens a directory in another one.
    pub fn new(path: &Path, root: D, find: impl Fn(&D, &str) -> io::Result<D>) -> io::Result<Self> {
        let opened = OpenDirs { path: path.components().collect(), root, subdirs: Default::default() };
        for name in SUBDIRS {
            match opened.subdir(name, &find) {
                Err(e) if is_missing(&e) => {}
                found => drop(found?),
            }
        }
        Ok(opened)
    }

    /// Returns the directory that contains the entry of a path, and the entry's name.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is not below the store; those of `find`.
    pub fn entry<'a>(
        &'a self,
        path: &'a Path,
        find: impl Fn(&D, &str) -> io::Result<D>,
    ) -> io::Result<Place<'a, D>> {
        let below = self.below(path)?;
        let mut names = below.as_os_str().as_bytes().split(|&byte| byte == b'/');
        match (names.next(), names.next(), names.next()) {
            (None | Some(b""), None, _) => Ok(Place { dir: &self.root, name: Path::new(".") }),
            (Some(_), None, _) => Ok(Place { dir: &self.root, name: below }),
            (Some(dir), Some(name), None) if !name.is_empty() => {
                let dir = str::from_utf8(dir).map_err(|_| not_of_the_store(path))?;
                Ok(Place { dir: self.subdir(dir, find)?, name: Path::new(OsStr::from_bytes(name)) })
            }
            _ => Err(not_of_the_store(path)),
        }
    }

    /// Returns the location of a directory that the caller will list or open.
    ///
    /// # Errors
    /// As for [`entry`](Self::entry).
    pub fn directory<'a>(
        &'a self,
        path: &'a Path,
        find: impl Fn(&D, &str) -> io::Result<D>,
    ) -> io::Result<Place<'a, D>> {
        match self.below(path)?.to_str() {
            Some(name) if SUBDIRS.contains(&name) => {
                Ok(Place { dir: self.subdir(name, find)?, name: Path::new(".") })
            }
            _ => self.entry(path, find),
        }
    }

    /// Whether a path is the store's own path.
    pub fn is_root(&self, path: &Path) -> bool {
        path == self.path
    }

    /// Returns the store's own directory, and the open directories in it that commits write to, with their names.
    pub fn commit_dirs(&self) -> (&D, impl Iterator<Item = (&'static str, &D)>) {
        (
            &self.root,
            SUBDIRS.into_iter().zip(&self.subdirs).filter_map(|(name, dir)| Some((name, dir.get()?))),
        )
    }

    fn below<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        // Every path in the store is the store's own path, then `/`, then names: see `StorePaths::new`. Comparing the
        // bytes is much faster than comparing the components, as `Path::strip_prefix` does, which takes longer than
        // some system calls.
        let own = self.path.as_os_str().as_bytes();
        let rest = path.as_os_str().as_bytes().strip_prefix(own);
        let below = rest.and_then(|rest| match rest {
            [] => Some(rest),
            [b'/', below @ ..] => Some(below),
            below => own.ends_with(b"/").then_some(below),
        });
        below.map(|below| Path::new(OsStr::from_bytes(below))).ok_or_else(|| not_of_the_store(path))
    }

    fn subdir(&self, name: &str, find: impl Fn(&D, &str) -> io::Result<D>) -> io::Result<&D> {
        let at = SUBDIRS.iter().position(|&subdir| subdir == name);
        let cell = at.and_then(|at| self.subdirs.get(at)).ok_or_else(|| not_of_the_store(Path::new(name)))?;
        match cell.get() {
            Some(dir) => Ok(dir),
            None => {
                let dir = find(&self.root, name)?;
                Ok(cell.get_or_init(|| dir))
            }
        }
    }
}

fn is_missing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput)
}

fn not_of_the_store(path: &Path) -> io::Error {
    let message = format!("{}: not a path in the open store", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
