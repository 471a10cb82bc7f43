//! Opens the external files of a store, and decides which of them a handle may open.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use stridemap_format::External;

use super::external_file::{ExternalFile, difference};
use crate::disk::{Disk, ExternalError, ExternalFiles, FileId, if_test_omits_step, is_not_regular};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// Which external files a handle may open, and whether it may map files on a network file system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessOptions {
    pub(crate) allowed: ExternalFiles,
    pub(crate) allows_network_mapping: bool,
}

/// The external files of a store, for one handle. Each file is opened once, even if it backs several storages.
#[derive(Debug)]
pub(crate) struct ExternalOpener {
    disk: Arc<dyn Disk>,
    store: PathBuf,
    options: AccessOptions,
    open: Mutex<HashMap<FileId, Weak<ExternalFile>>>,
}

impl ExternalOpener {
    /// Opens no file yet. `store` is the directory of the store.
    pub(crate) fn new(disk: &Arc<dyn Disk>, store: &Path, options: AccessOptions) -> Self {
        ExternalOpener { disk: Arc::clone(disk), store: store.to_path_buf(), options, open: Mutex::default() }
    }

    /// Returns the path of a record's file, for error messages.
    pub(crate) fn path(&self, external: &External) -> PathBuf {
        // If the store's path ends in `..` or is a link, its parent is not the directory that holds the store.
        match (self.store.file_name(), self.store.parent()) {
            (Some(_), Some(holder)) if self.disk.is_dir(&self.store).unwrap_or(true) => {
                holder.join(&external.path)
            }
            _ => self.store.join("..").join(&external.path),
        }
    }

    /// Opens the file of a record, if that is allowed and the file has not changed since it was recorded.
    ///
    /// # Errors
    /// `NotAllowed` for a file that the handle may not open; `ExternalChanged` for one that is missing, replaced
    /// or changed; `Io`.
    pub(crate) fn open(&self, external: &External) -> Result<Arc<ExternalFile>> {
        let advice = "restore the recorded file, or adopt the current one, or import it, which copies it";
        self.open_unchanged(external, ("adopted", advice))
    }

    /// Opens the file of a record. If it changed, the error says since when, and what to do.
    fn open_unchanged(
        &self,
        external: &External,
        (since, advice): (&str, &str),
    ) -> Result<Arc<ExternalFile>> {
        let path = self.path(external);
        let changed = |what: &str| {
            let message =
                format!("{}: the file changed since it was {since}: {what}; {advice}", path.display());
            Err(Error::new(ErrorKind::ExternalChanged, message))
        };
        let allowed = self.options.allowed;
        if allowed == ExternalFiles::Refuse {
            return Err(self.refused(&path, "this handle opens the store's own files only"));
        }
        let open = || self.disk.open_external(&self.store, Path::new(&external.path), allowed);
        // What is reported as a change was seen twice.
        let file = match open().or_else(|_| open()) {
            Ok(file) => file,
            Err(ExternalError::NotAllowed(why)) => return Err(self.refused(&path, why)),
            Err(ExternalError::Io(e)) => match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    return changed("the file is missing");
                }
                _ if is_not_regular(&e) => return changed(&e.to_string()),
                _ => return Err(Error::io("open external file", &path, e)),
            },
        };
        let file = ExternalFile::of(&path, file).doing("examine", &path)?;
        if_test_omits_step!("external-is-same", return Ok(self.shared(Arc::new(file))));
        // Otherwise reads could return different elements from those that were saved.
        match difference(external.stamp, file.stamp()) {
            Some(what) => changed(&what),
            None => Ok(self.shared(Arc::new(file))),
        }
    }

    /// Returns the open file with this id and stamp, if there is one. Otherwise records and returns `file`.
    fn shared(&self, file: Arc<ExternalFile>) -> Arc<ExternalFile> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // While a file is open, its inode is not reused.
        if let Some(known) = open.get(&file.id()).and_then(Weak::upgrade)
            && known.stamp() == file.stamp()
        {
            return known;
        }
        if open.len() == open.capacity() {
            open.retain(|_, file| file.strong_count() > 0);
        }
        open.insert(file.id(), Arc::downgrade(&file));
        file
    }

    fn refused(&self, path: &Path, why: &str) -> Error {
        let advice = match self.options.allowed {
            ExternalFiles::Refuse => {
                "allow files under the directory that holds the store with \
                 StoreOptions::external(ExternalFiles::Beside) (--external beside), or all files with \
                 StoreOptions::external(ExternalFiles::Anywhere) (--external anywhere)"
            }
            ExternalFiles::Beside => {
                "StoreOptions::external(ExternalFiles::Anywhere) (--external anywhere) allows files outside the \
                 directory that holds the store"
            }
            ExternalFiles::Anywhere => "import the file instead, which copies its elements",
        };
        Error::new(
            ErrorKind::NotAllowed,
            format!("{}: external file refused: {why}; {advice}", path.display()),
        )
    }

    /// Checks that a file may be mapped.
    ///
    /// # Errors
    /// `NotAllowed` for a file on a network file system, unless that is allowed. The store's own files follow
    /// the same rule.
    pub(in crate::storage) fn check_mappable(&self, file: &ExternalFile) -> Result<()> {
        if self.options.allows_network_mapping
            || !file.is_network().doing("examine the file system of", file.path())?
        {
            return Ok(());
        }
        let message = format!(
            "{}: the file is on a network file system, where another machine can truncate a mapped file, which ends \
             this process; use open, or StoreOptions::allow_network_mapping if only one machine writes it",
            file.path().display()
        );
        Err(Error::new(ErrorKind::NotAllowed, message))
    }

    /// Opens a file again, by the path that its record will contain. Returns that path and the reopened file, or
    /// `last`, an earlier result, if it has the same path and stamp.
    ///
    /// # Errors
    /// As for [`open`](Self::open) with the recorded path; `InvalidArgument` for a path that is not UTF-8.
    pub(crate) fn adopt(
        &self,
        file: &ExternalFile,
        last: Option<(String, Arc<ExternalFile>)>,
    ) -> Result<(String, Arc<ExternalFile>)> {
        file.check_unchanged()?;
        let path = match file.as_file() {
            Some(open) => self.disk.recorded_path(&self.store, open).doing("adopt", file.path())?,
            None => file.path().to_path_buf(),
        };
        let Ok(path) = path.into_os_string().into_string() else {
            let message =
                format!("adopt {}: a path that is not UTF-8 cannot be recorded", file.path().display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if let Some(last) = last.filter(|(known, opened)| *known == path && opened.stamp() == file.stamp()) {
            return Ok(last);
        }
        let external = External { path, offset_bytes: 0, stamp: file.stamp() };
        let advice = "open it again once no process changes it";
        let open = self.open_unchanged(&external, ("opened", advice))?;
        Ok((external.path, open))
    }
}
