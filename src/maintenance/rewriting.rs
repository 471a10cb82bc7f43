//! Copies of the storages that are rewritten: alone, or together in the storage that small ones of a commit share.

use stridemap_format::{Header, RecordKind, Sealed, StorageRecord};

use super::rewrite::{Compacted, SkipReason};
use super::rewrite_candidates::Candidate;
use super::storage_tensors::{RewriteGain, StorageTensors, rewrite_gain};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::OpenStore;
use crate::layout::Repacked;
use crate::storage::{
    ByteSource, GrowthLock, OWN_STORAGE_BYTES, Stages, Storage, StorageWriter, UnverifiedStorage,
    VerifiedStorage, open_whole, repacked_bytes,
};

/// Which storages are rewritten.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// Sealed storages, if that frees at least this.
    Sealed(RewriteGain),
    External,
}

/// Copies storages, and keeps them from growing until the commit.
pub(super) struct Rewriting<'a> {
    pub(super) store: &'a OpenStore,
    pub(super) wanted: Wanted,
    /// The growth lock of the next storage, if it is held already.
    pub(super) held: Option<GrowthLock>,
    /// Called with the bytes written since the last call.
    pub(super) progress: &'a mut dyn FnMut(u64),
}

/// A staged copy of a storage.
pub(super) struct StagedCopy {
    /// The index of the staged storage, and the offset of the copy in it, in bytes.
    pub(super) index: usize,
    pub(super) offset_bytes: u64,
    /// The bytes by which the staged storage became longer, with those that align the copy.
    pub(super) added_bytes: u64,
    /// The lock that keeps the original from growing, if it can grow.
    pub(super) lock: Option<GrowthLock>,
}

/// Whether a storage of which this much is kept can share a storage with others: what was made to grow needs one of its
/// own.
pub(super) fn is_packable(record: &StorageRecord, kept_bytes: u64) -> bool {
    let is_of_kind = match record.kind {
        RecordKind::Sealed(Sealed { reserved_bytes, .. }) => reserved_bytes == 0,
        RecordKind::External(_) => true,
        RecordKind::Mutable | RecordKind::Live { .. } => false,
    };
    is_of_kind && kept_bytes < OWN_STORAGE_BYTES
}

/// Returns the header of a tensor whose storage begins at an offset in bytes of another one. No element straddles it.
pub(super) fn moved_by(header: Header, offset_bytes: u64) -> Header {
    let first_elem = offset_bytes as usize / header.dtype().itemsize();
    let storage_offset = first_elem.saturating_add(header.storage_offset());
    header.with_storage_offset(storage_offset)
}

impl Rewriting<'_> {
    /// Whether to rewrite a storage with this record, if that makes it `new_bytes` long.
    pub(super) fn is_wanted(&self, record: &StorageRecord, new_bytes: u64) -> bool {
        match (self.wanted, &record.kind) {
            (Wanted::Sealed(least), RecordKind::Sealed(_)) => {
                rewrite_gain(record.length_bytes, new_bytes) >= least
            }
            (Wanted::External, RecordKind::External(_)) => true,
            _ => false,
        }
    }

    /// Whether a storage is worth a rewrite even if it shares the new storage with no other.
    pub(super) fn is_worth(&self, candidate: &Candidate) -> bool {
        match self.wanted {
            Wanted::Sealed(least) => rewrite_gain(candidate.length_bytes, candidate.new_bytes) >= least,
            Wanted::External => !candidate.is_pack,
        }
    }

    /// Reports that another commit has changed a storage, unless it would only have shared a new one.
    pub(super) fn skip_changed(&self, candidate: &Candidate, done: &mut Compacted) {
        if self.is_worth(candidate) {
            done.skip(candidate.id, candidate.gain_bytes(), SkipReason::Changed);
        }
    }

    /// Copies what `repacked` keeps of a storage: to the storage that small ones share if it `is_packed`, and otherwise to
    /// one of its own. Returns `None` if another process is appending to the storage.
    pub(super) fn copy(
        &mut self,
        storage: &StorageTensors,
        (repacked, is_packed): (&Repacked, bool),
        stages: &mut Stages,
    ) -> Result<Option<StagedCopy>> {
        let lock = match &storage.record.kind {
            RecordKind::External(_) => None,
            _ => match self.lock(storage)? {
                None => return Ok(None),
                lock => lock,
            },
        };
        let (store, progress) = (self.store, &mut *self.progress);
        let (disk, paths, durable) = (&store.disk, &store.paths, store.is_durable());
        let (index, offset_bytes, added_bytes) = match is_packed {
            true => {
                // Read whole before the first byte is written: a damaged chunk must leave nothing in the shared storage.
                let mut kept = Vec::new();
                read(store, storage, &mut |source| {
                    kept = repacked_bytes(source, repacked, progress)?;
                    Ok(())
                })?;
                stages.write_shared((disk, paths, durable), &kept)?
            }
            false => {
                let mut writer = StorageWriter::sealed(disk, paths, durable)?;
                if let RecordKind::Sealed(sealed) = &storage.record.kind {
                    writer.reserve_address_space(sealed.reserved_bytes);
                }
                read(store, storage, &mut |source| writer.copy_from(source, repacked, progress))?;
                let added_bytes = writer.length_bytes();
                (stages.push(writer.finish()?), 0, added_bytes)
            }
        };
        Ok(Some(StagedCopy { index, offset_bytes, added_bytes, lock }))
    }

    fn lock(&mut self, storage: &StorageTensors) -> Result<Option<GrowthLock>> {
        let disk = &self.store.disk;
        let path = self.store.paths.storage(storage.id);
        open_whole(&**disk, &path, storage.record.length_bytes)?;
        match self.held.take() {
            Some(lock) => Ok(Some(lock)),
            None => GrowthLock::try_take(disk, &path),
        }
    }
}

/// Passes the bytes of a sealed or external storage to `copy`. Those of a sealed one are verified. After each read of an
/// external file, also the last, the file is still the one that was adopted.
fn read(
    store: &OpenStore,
    storage: &StorageTensors,
    copy: &mut dyn FnMut(&mut dyn ByteSource) -> Result<()>,
) -> Result<()> {
    let StorageTensors { id, record, .. } = storage;
    let RecordKind::External(external) = &record.kind else {
        return copy(&mut VerifiedStorage::open(&*store.disk, &store.paths, *id, record)?);
    };
    let file = store.externals.open(external).map_err(refused)?;
    let range = Storage::of_range(&file, external.offset_bytes, record.length_bytes);
    copy(&mut UnverifiedStorage::new(&range)).map_err(refused)
}

/// Says that it is a materialization that may not use an external file.
pub(super) fn refused(e: Error) -> Error {
    match e.kind() {
        ErrorKind::NotAllowed | ErrorKind::ExternalChanged => e.context("materialize"),
        _ => e,
    }
}
