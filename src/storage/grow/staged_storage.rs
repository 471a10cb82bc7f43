//! Storages that a transaction has written but not published.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{External, RecordKind, StorageRecord};

use crate::disk::{Disk, Staged, StorePaths, step};
use crate::error::{IoContext, Result};
use crate::storage::Storage;
use crate::storage::file::external_file::ExternalFile;

/// A complete storage that has no id yet.
#[derive(Debug)]
pub(crate) struct StagedStorage {
    bytes: StagedBytes,
    record: StorageRecord,
}

#[derive(Debug)]
enum StagedBytes {
    /// Unfinished files: one with the bytes, and one with the chunk digests if there are any.
    Files { bytes: Staged, sum: Option<Staged> },
    /// A range of an external file, starting at `offset_bytes`. Nothing is written.
    External { disk: Arc<dyn Disk>, file: Arc<ExternalFile>, offset_bytes: u64 },
}

impl StagedStorage {
    pub(in crate::storage) fn of_files(bytes: Staged, sum: Option<Staged>, record: StorageRecord) -> Self {
        StagedStorage { bytes: StagedBytes::Files { bytes, sum }, record }
    }

    /// Stages a range of a file that the store will refer to by `path`.
    pub(crate) fn external(
        disk: &Arc<dyn Disk>,
        (path, file): (String, &Arc<ExternalFile>),
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Self {
        let kind = RecordKind::External(External { path, offset_bytes, stamp: file.stamp() });
        let bytes = StagedBytes::External { disk: Arc::clone(disk), file: Arc::clone(file), offset_bytes };
        StagedStorage { bytes, record: StorageRecord::new(length_bytes, kind) }
    }

    pub(crate) fn record(&self) -> &StorageRecord {
        &self.record
    }

    /// Returns the bytes as a storage with a provisional identity, so that the transaction itself can read them.
    pub(crate) fn as_storage(&self, identity: (u64, u64)) -> Arc<Storage> {
        let length_bytes = self.record.length_bytes;
        match &self.bytes {
            StagedBytes::Files { bytes, .. } => {
                Storage::staged(identity, bytes.file(), bytes.path(), length_bytes)
            }
            StagedBytes::External { file, offset_bytes, .. } => {
                Storage::staged_range(identity, file, *offset_bytes, length_bytes)
            }
        }
    }

    /// Renames the files to their final names before the commit, without the writers' lock, and closes them. `publish`
    /// renames one file.
    pub(crate) fn publish_early(
        self,
        paths: &StorePaths,
        id: u64,
        publish: impl Fn(&mut Staged, &Path) -> Result<()>,
    ) -> Result<()> {
        let StagedBytes::Files { bytes, sum } = self.bytes else { return Ok(()) };
        let files = [Some((bytes, paths.storage(id))), sum.map(|sum| (sum, paths.sum(id)))];
        for (mut file, target) in files.into_iter().flatten() {
            publish(&mut file, &target)?;
            // Until here, the lock marked the file as unfinished.
            file.file().unlock().doing("unlock storage", &target)?;
        }
        Ok(())
    }

    /// Renames the files to their final names, under the writers' lock.
    ///
    /// # Errors
    /// `ExternalChanged` for an external file that was changed since it was adopted; `Io`.
    pub(crate) fn publish(&mut self, paths: &StorePaths, id: u64) -> Result<()> {
        let (target, sum_target) = (paths.storage(id), paths.sum(id));
        match &mut self.bytes {
            StagedBytes::Files { bytes, sum } => {
                let published = step!("rename-storage", bytes.publish_over_orphan(&target));
                published.doing("publish storage", &target)?;
                match sum {
                    Some(sum) => step!("rename-digests", sum.publish_over_orphan(&sum_target)),
                    None => remove_orphan(&**bytes.disk(), &sum_target),
                }
                .doing("publish chunk digests", &sum_target)?;
                // Until here, the lock marked the file as unfinished.
                bytes.file().unlock().doing("unlock storage", &target)
            }
            StagedBytes::External { disk, file, .. } => {
                // Otherwise the record could have a stamp that does not match the elements.
                step!("adopted-is-unchanged", file.check_unchanged())?;
                [&target, &sum_target]
                    .into_iter()
                    .try_for_each(|path| remove_orphan(&**disk, path).doing("delete", path))
            }
        }
    }
}

/// Deletes the file that an aborted commit may have left at `target`, which would otherwise stay until a collection.
/// The caller holds the writers' lock and knows that no manifest refers to the file.
fn remove_orphan(disk: &dyn Disk, target: &Path) -> io::Result<()> {
    match step!("remove-orphan", disk.remove(target)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
