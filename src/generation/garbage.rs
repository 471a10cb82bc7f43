//! Deletes the files that no generation needs: what older manifests that were deleted needed alone, and leftovers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use stridemap_format::KeptKey;

use super::entries::{Entries, KeptEntry, StorageEntry};
use super::store_dir::StoreDir;
use super::writer_lock::WriterLock;
use crate::disk::{Access, DiskFile, LockMode, StoreFile, dir_of, if_test_omits_step, step};
use crate::error::{Error, IoContext, Result};

/// What a garbage collection deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Collected {
    /// The number of deleted files.
    pub file_count: u64,
    /// Their total size in bytes, including bytes cut off after aborted appends.
    pub size_bytes: u64,
}

/// A file of at least this many bytes is kept open while it is deleted, until the writers' lock is released. Its name is
/// gone at once, but the file system frees its blocks when it is closed, which takes a while and needs no lock.
const LARGE_BYTES: u64 = 1 << 20;

/// Deletes files that are no longer needed, and counts them.
pub(crate) struct Collector<'a> {
    pub(super) store: &'a StoreDir,
    pub(crate) collected: Collected,
    /// The lock that is released when the collection ends, if nothing that is done before needs the space.
    lock: Option<&'a WriterLock>,
}

/// Whether a generation has no record of a storage that is listed as garbage. A malformed store may list one that has a
/// record.
pub(super) fn is_really_garbage(entries: Entries<'_>, id: u64) -> bool {
    step!("garbage-is-garbage", matches!(entries.find::<StorageEntry>(&id), Ok(None)))
}

impl<'a> Collector<'a> {
    pub(crate) fn new(store: &'a StoreDir) -> Self {
        Collector { store, collected: Collected::default(), lock: None }
    }

    /// Closes large files after the lock is released.
    pub(super) fn closing_after(store: &'a StoreDir, lock: &'a WriterLock) -> Self {
        Collector { lock: Some(lock), ..Self::new(store) }
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let size_bytes = self.store.disk.stat(path).map_or(0, |stat| stat.size_bytes);
        let large = self.lock.filter(|_| size_bytes >= LARGE_BYTES);
        let open = large.and_then(|lock| Some((lock, self.open_to_delete(path)?)));
        self.store.disk.remove(path)?;
        if let Some((lock, file)) = open {
            lock.close_later(file);
        }
        self.collected.file_count += 1;
        self.collected.size_bytes += size_bytes;
        Ok(())
    }

    /// Opens a file that is about to be deleted. A file system that another machine or program serves may rename an open
    /// file instead of deleting it, so there it is not opened.
    fn open_to_delete(&self, path: &Path) -> Option<Arc<dyn DiskFile>> {
        let disk = &self.store.disk;
        if disk.may_be_remote(dir_of(path)) { None } else { disk.open(path, Access::Read).ok() }
    }

    /// Deletes the files of a storage. Returns whether they are gone.
    pub(super) fn remove_storage(&mut self, id: u64) -> bool {
        let paths = &self.store.paths;
        let mut is_gone = |path: &Path| match self.remove(path) {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        let is_bytes_gone = is_gone(&paths.storage(id));
        is_gone(&paths.sum(id)) && is_bytes_gone
    }

    /// Deletes crashed writers' unfinished files, and the unneeded files in `storages/` and `generations/`.
    pub(crate) fn sweep(&mut self, is_unneeded: impl Fn(StoreFile) -> bool) -> Result<()> {
        let store = self.store;
        let root = store.paths.root();
        for dir in [root, &store.paths.storages_dir(), &store.paths.generations_dir()] {
            for name in store.disk.list(dir).doing("list", dir)? {
                let (file, path) = (StoreFile::in_dir(&store.paths, dir, &name), dir.join(&name));
                // Locked until the file is deleted: its writer may be about to lock it, and must then see that it was
                // deleted.
                let abandoned = match file {
                    StoreFile::Unfinished => lock_abandoned(store, &path),
                    _ => None,
                };
                if abandoned.is_some() || dir != root && is_unneeded(file) {
                    let _ = self.remove(&path);
                }
            }
        }
        Ok(())
    }
}

/// Reserves disk space. If the disk is full, deletes crashed writers' unfinished files, and tries again.
pub(crate) fn with_space<T>(store: &StoreDir, reserve: impl Fn() -> Result<T>) -> Result<T> {
    let first = reserve();
    if first.as_ref().is_err_and(|e| frees_full_disk(store, e)) { reserve() } else { first }
}

/// If this is the error of a full disk, deletes crashed writers' unfinished files: the next commit would delete them, but
/// is not reached without space. Returns whether it has deleted any.
pub(super) fn frees_full_disk(store: &StoreDir, error: &Error) -> bool {
    let errno = error.io_error().and_then(Errno::from_io_error);
    if !matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)) {
        return false;
    }
    let mut collector = Collector::new(store);
    collector.sweep(|_| false).is_ok() && collector.collected.file_count > 0
}

/// Whether the newest generation, or one that a tag keeps, has a table.
pub(crate) fn is_table_of(newest: Entries<'_>, table: u64) -> Result<bool> {
    if newest.manifest.table.is_some_and(|own| own.generation == table) {
        return Ok(true);
    }
    // The first tagged generation that could have the table: a later one has the same or a later one.
    let start = KeptKey { is_tagged: true, generation: table };
    let first = newest.scan::<KeptEntry>(Some(&start))?.next().transpose()?;
    if_test_omits_step!("tag-keeps-table", return Ok(false));
    Ok(first.is_some_and(|(_, kept)| kept.table == Some(table)))
}

/// Opens and locks an unfinished file. Returns `None` while a live writer holds it.
fn lock_abandoned(store: &StoreDir, path: &Path) -> Option<Arc<dyn DiskFile>> {
    let file = store.disk.open(path, Access::Read).ok()?;
    step!("stage-is-abandoned", file.try_lock(LockMode::Exclusive)).ok()?.then_some(file)
}
