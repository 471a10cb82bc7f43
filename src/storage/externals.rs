use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use stridemap_format::{External, FileStamp};

use super::external::{ExternalFile, difference};
use crate::disk::{Disk, ExternalError, Reach, Step};
use crate::error::{Error, ErrorKind, Result};

/// Which files that are not the store's a handle opens for the external storages of the store.
///
/// A record says which file, and whoever made the store made the record: it could name any file that this process can
/// read. Only regular files are opened in any case, none that is one of a store, and each only while its device, inode,
/// length and mtime are those that it had when it was adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExternalFiles {
    /// None.
    #[default]
    Refuse,
    /// Those under the directory that holds the store, whatever symbolic links lead out of it: the kernel keeps inside,
    /// with `openat2`, of Linux 5.6.
    Beside,
    /// Any.
    Anywhere,
}

impl ExternalFiles {
    fn reach(self) -> Option<Reach> {
        match self {
            ExternalFiles::Refuse => None,
            ExternalFiles::Beside => Some(Reach::Beside),
            ExternalFiles::Anywhere => Some(Reach::Anywhere),
        }
    }
}

/// What a handle may do with the files of external storages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExternalOptions {
    pub(crate) allowed: ExternalFiles,
    pub(crate) allows_network_mapping: bool,
}

/// The files of the external storages of a store, for one handle. Each is open once, however many storages stand on it.
#[derive(Debug)]
pub(crate) struct Externals {
    disk: Arc<dyn Disk>,
    store: PathBuf,
    options: ExternalOptions,
    open: Mutex<HashMap<(u64, u64), Weak<ExternalFile>>>,
}

impl Externals {
    /// For the store in this directory.
    pub(crate) fn new(disk: &Arc<dyn Disk>, store: &Path, options: ExternalOptions) -> Self {
        Externals { disk: Arc::clone(disk), store: store.to_path_buf(), options, open: Mutex::default() }
    }

    /// Where the file of a record is, for messages.
    pub(crate) fn path(&self, external: &External) -> PathBuf {
        // Of a path that ends in `..`, or in a link, what is before it is another directory.
        match (self.store.file_name(), self.store.parent()) {
            (Some(_), Some(holder)) if self.disk.is_dir(&self.store).unwrap_or(true) => {
                holder.join(&external.path)
            }
            _ => self.store.join("..").join(&external.path),
        }
    }

    /// Opens the file of a record, if it may be opened, and is still what was recorded.
    ///
    /// # Errors
    /// `ExternalRefused` for one that the handle may not open; `ExternalChanged` for one that is gone, replaced or changed;
    /// `Io`.
    pub(crate) fn open(&self, external: &External) -> Result<Arc<ExternalFile>> {
        let path = self.path(external);
        let changed = |what: &str| {
            let message = format!(
                "{}: the file is not any more the one that was adopted: {what}; put that one back, or adopt this one \
                 again, or import it, which copies its elements",
                path.display()
            );
            Err(Error::new(ErrorKind::ExternalChanged, message))
        };
        let Some(reach) = self.options.allowed.reach() else {
            return Err(self.refused(&path, "this handle opens the store's own files only"));
        };
        let file = match self.disk.open_external(&self.store, Path::new(&external.path), reach) {
            Ok(file) => file,
            Err(ExternalError::Outside(why)) => return Err(self.refused(&path, why)),
            Err(ExternalError::Io(e)) => match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return changed("no file is there"),
                io::ErrorKind::InvalidInput => return changed(&e.to_string()),
                _ => return Err(Error::io("open external file", &path, e)),
            },
        };
        let file = ExternalFile::of(&path, file).map_err(|e| Error::io("look at", &path, e))?;
        match difference(external.stamp, file.stamp()) {
            Some(what) if Step::ExternalIsSame.is_taken(&*self.disk) => changed(&what),
            _ => Ok(self.shared(Arc::new(file))),
        }
    }

    /// The same file as it is open already, or this one from now on.
    fn shared(&self, file: Arc<ExternalFile>) -> Arc<ExternalFile> {
        let FileStamp { device, inode, .. } = file.stamp();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // What is open keeps its inode from being given to another file.
        if let Some(standing) = open.get(&(device, inode)).and_then(Weak::upgrade)
            && standing.stamp() == file.stamp()
        {
            return standing;
        }
        if open.len() == open.capacity() {
            open.retain(|_, file| file.strong_count() > 0);
        }
        open.insert((device, inode), Arc::downgrade(&file));
        file
    }

    fn refused(&self, path: &Path, why: &str) -> Error {
        let advice = match self.options.allowed {
            ExternalFiles::Refuse => {
                "allow it with StoreOptions::external(ExternalFiles::Beside) (--external beside) when the file is under the \
                 directory that holds the store, else Anywhere"
            }
            ExternalFiles::Beside => {
                "StoreOptions::external(ExternalFiles::Anywhere) (--external anywhere) allows files outside the directory \
                 that holds the store"
            }
            ExternalFiles::Anywhere => "import copies its elements",
        };
        Error::new(
            ErrorKind::ExternalRefused,
            format!("{}: external file refused: {why}; {advice}", path.display()),
        )
    }

    /// # Errors
    /// `NetworkFileSystem` for a file on one, unless that was allowed: as for the store's own files.
    pub(super) fn check_mappable(&self, file: &ExternalFile) -> Result<()> {
        let failed = |e| Error::io("look at the file system of", file.path(), e);
        if self.options.allows_network_mapping || !file.is_network().map_err(failed)? {
            return Ok(());
        }
        let message = format!(
            "{}: it is on a network file system, where another machine can truncate a mapped file, and end this process; \
             use open, or StoreOptions::allow_network_mapping if one machine alone writes it",
            file.path().display()
        );
        Err(Error::new(ErrorKind::NetworkFileSystem, message))
    }

    /// What a record is to say of a file, so that this handle opens it again: where it is, and how it looked when it was
    /// opened.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), of the file under that path; `InvalidArgument` for a path that is not UTF-8.
    pub(crate) fn adopt(&self, file: &ExternalFile) -> Result<(String, Arc<ExternalFile>)> {
        file.check_unchanged()?;
        let failed = |e| Error::io("adopt", file.path(), e);
        let path = match file.as_file() {
            Some(open) => self.disk.recorded_path(&self.store, open).map_err(failed)?,
            None => file.path().to_path_buf(),
        };
        let Ok(path) = path.into_os_string().into_string() else {
            let message =
                format!("adopt {}: a path that is not UTF-8 cannot be recorded", file.path().display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let external = External { path, offset_bytes: 0, stamp: file.stamp() };
        let open = self.open(&external)?;
        Ok((external.path, open))
    }
}
