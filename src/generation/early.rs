//! Files that get their final names before the commit that refers to them.
//!
//! A transfer may take hours, and needs many files, so it neither holds the writers' lock meanwhile nor keeps the files
//! open. Until the commit, nothing refers to them: a crash leaves files that later commits and collections delete. The
//! commit checks under the lock that all of them are still there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::writer_lock::WriterLock;
use super::{Generation, OpenStore};
use crate::disk::{Access, DiskFile, FileId, Staged, StoreFile, dir_of, is_named, step, stream};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// The files of one transfer that have their final names.
pub(crate) struct EarlyFiles<'a> {
    store: &'a OpenStore,
    /// The generation on which the commit will be based.
    newest: Arc<Generation>,
    files: Mutex<BTreeMap<PathBuf, FileId>>,
}

impl<'a> EarlyFiles<'a> {
    pub(crate) fn new(store: &'a OpenStore, newest: Arc<Generation>) -> Self {
        EarlyFiles { store, newest, files: Mutex::default() }
    }

    /// Notes a file that must still exist when the commit is made.
    fn note(&self, path: &Path) -> Result<()> {
        match self.note_if_there(path)? {
            true => Ok(()),
            false => Err(deleted(path)),
        }
    }

    /// Like [`note`](Self::note), but returns false if there is no such file.
    pub(crate) fn note_if_there(&self, path: &Path) -> Result<bool> {
        let id = match self.store.disk.stat(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            stat => stat.doing("examine", path)?.id(),
        };
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), id);
        Ok(true)
    }

    /// Returns the generation on which the commit will be based.
    pub(crate) fn newest(&self) -> &Generation {
        &self.newest
    }

    /// Whether a file was noted.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).contains_key(path)
    }

    /// Gives a file its final name. A file that an interrupted transfer or a failed commit left under this name is
    /// replaced; the caller knows that no generation refers to that.
    pub(crate) fn publish(&self, staged: &mut Staged, target: &Path) -> Result<()> {
        match step!("rename-received", staged.publish(target)) {
            // Another writer may be about to publish it, which holds the lock.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let lock = self.store.lock_writers()?;
                self.check_newest(&lock)?;
                staged.publish_over_orphan(target)
            }
            published => published,
        }
        .doing("publish", target)?;
        self.note(target)
    }

    /// Like [`publish`](Self::publish), for a file in `generations/`. A file with the same bytes is used as it is: readers
    /// may have it open.
    pub(crate) fn publish_metadata(&self, mut staged: Staged, target: &Path) -> Result<()> {
        let disk = &self.store.disk;
        let existing = match disk.open(target, Access::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.doing("open", target)?),
        };
        let Some(existing) = existing else { return self.publish(&mut staged, target) };
        if has_same_bytes(&*existing, &**staged.file()).doing("read", target)? {
            if self.store.is_durable() {
                // The process that made it may have died before it was synced.
                disk.open(target, Access::Write).and_then(|file| file.sync()).syncing("sync", target)?;
            }
            return self.note(target);
        }
        let lock = self.store.lock_writers()?;
        let names = self.check_newest(&lock)?;
        if self.is_needed(target, names, &lock)? {
            let message = format!(
                "{}: an earlier generation of this store has a different file of this name, so the two stores are not \
                 copies of each other; verify both",
                target.display()
            );
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        staged.publish_over_orphan(target).doing("publish", target)?;
        drop(lock);
        self.note(target)
    }

    /// Whether a generation before the newest may need a file in `generations/`.
    fn is_needed(&self, target: &Path, names: Option<Vec<String>>, lock: &WriterLock) -> Result<bool> {
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match StoreFile::in_dir(&self.store.paths, dir_of(target), name) {
            StoreFile::Table(table) => {
                Ok(self.store.older(names, &self.newest, lock)?.is_table_needed(table))
            }
            StoreFile::KeptManifest(generation) => self.newest.is_released(generation),
            _ => Ok(true),
        }
    }

    /// Checks that the newest generation is still the one on which the transfer is based.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn check_base(&self, newest: &Generation) -> Result<()> {
        check_same(&self.newest, newest)
    }

    /// Checks that nothing was committed since the transfer began. Returns the names in `meta/`, if they were listed.
    fn check_newest(&self, lock: &WriterLock) -> Result<Option<Vec<String>>> {
        let (newest, names) = self.store.newest_listed(lock)?;
        check_same(&self.newest, &newest)?;
        Ok(names)
    }

    /// Checks that all files are still there, under the writers' lock.
    ///
    /// # Errors
    /// `Conflict`; `Io`.
    pub(super) fn check(&self, _lock: &WriterLock) -> Result<()> {
        for (path, id) in self.files.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if !step!("received-is-named", is_named(&*self.store.disk, path, *id).doing("examine", path))? {
                return Err(deleted(path));
            }
        }
        Ok(())
    }
}

fn deleted(path: &Path) -> Error {
    let message = format!(
        "{}: another process deleted this file, in a collection, before the generation that needs it was published, so \
         that was not published; receive again",
        path.display()
    );
    Error::new(ErrorKind::Conflict, message)
}

/// Checks that the newest generation is still the one on which a transfer is based.
///
/// # Errors
/// `Conflict`.
fn check_same(base: &Generation, newest: &Generation) -> Result<()> {
    if base.number() == newest.number() && (std::ptr::eq(base, newest) || base.id()? == newest.id()?) {
        return Ok(());
    }
    let message = format!(
        "another process committed generation {} to this store, which was at generation {}, so the received one was not published; \
         receive again, or keep the commits of this store",
        newest.number(),
        base.number()
    );
    Err(Error::new(ErrorKind::Conflict, message))
}

fn has_same_bytes(a: &dyn DiskFile, b: &dyn DiskFile) -> io::Result<bool> {
    let length_bytes = a.stat()?.size_bytes;
    if b.stat()?.size_bytes != length_bytes {
        return Ok(false);
    }
    let (mut is_same, mut start, mut other) = (true, 0, Vec::new());
    let read = stream(a, 0..length_bytes, &mut |bytes| {
        if is_same {
            other.resize(bytes.len(), 0);
            is_same = b.read_exact_at(&mut other, start).is_ok() && bytes == other;
            start += bytes.len() as u64;
        }
        Ok(())
    })?;
    Ok(read.is_ok() && is_same)
}
