//! Copies one storage of a store to another store, or the part of it that tensors reach.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Error as FormatError, Header, RecordKind, Rule, StorageRecord, TensorRecord};

use super::copy::{Copied, Done, Original};
use super::rewriting::{is_packable, moved_by};
use crate::disk::LockMode;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::generation::{Changes, OpenStore, StoreDir};
use crate::layout::{Repacked, footprint_bytes, repack};
use crate::storage::{
    InPlaceContext, LockedStorage, StagedStorage, Stages, Storage, StorageWriter, Stored, UnverifiedStorage,
    VerifiedStorage, Without, repacked_bytes,
};

/// The maximum number of runs of bytes that are counted for the views of a storage. Views with more runs are assumed to
/// leave some bytes out.
const MAX_RUNS: u64 = 1 << 20;

/// The part of a storage that is copied.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The tensors that are copied; empty for all of them.
    pub(super) tensors: Vec<(String, TensorRecord)>,
    /// The headers of these tensors on the copied storage, if not all bytes are copied.
    pub(super) placed: BTreeMap<String, Header>,
}

impl Part {
    /// Keeps the headers of the tensors on the copied storage.
    fn place(&mut self, views: Vec<Header>) {
        let names = self.tensors.iter().map(|(name, _)| name.clone());
        self.placed = names.zip(views).collect();
    }
}

/// Where the bytes of a storage are in the copy.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The id of the storage in the copy. It is provisional until the commit.
    pub(super) storage_id: u64,
    /// Where they begin in it, in bytes.
    offset_bytes: u64,
    /// How many there are. A header that reaches past them would reach those of another storage.
    length_bytes: u64,
}

impl Place {
    /// Returns the record of a tensor in the copy, from its header on the bytes that were copied.
    pub(super) fn tensor(&self, header: Arc<Header>, path: &Path) -> Result<TensorRecord> {
        header.extent(self.length_bytes).corrupt_in(path)?;
        let header = match self.offset_bytes {
            0 => header,
            offset_bytes => moved_by(Header::clone(&header), offset_bytes).into(),
        };
        Ok(TensorRecord { header, storage_id: self.storage_id })
    }
}

/// What is kept of a sealed storage.
struct Kept {
    repacked: Repacked,
    is_whole: bool,
}

impl Original<'_> {
    /// Copies a storage, or the part of it that tensors reach: into the storage that small ones share, or into one of its
    /// own. Returns `None` if it is left out.
    pub(super) fn stage(
        &self,
        (target, stages): (&OpenStore, &mut Stages),
        id: u64,
        part: &mut Part,
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Place>> {
        let record = self.generation.storage(id)?.ok_or_else(|| {
            let detail =
                format!("generation {} has no record of storage {id:016x}", self.generation.number());
            Error::corrupt(&self.store.paths.storage(id), FormatError::new(Rule::TensorStorage, detail))
        })?;
        let source = (id, &record);
        let staged = match record.kind {
            RecordKind::Sealed(_) => {
                let kept = self.kept(source, part)?;
                if is_packable(&record, kept.repacked.length_bytes) {
                    return self
                        .stage_small((target, stages), source, (kept, part), done, progress)
                        .map(Some);
                }
                Some(self.stage_sealed(target, source, (kept, part), &mut done.copied, progress)?)
            }
            _ => self.stage_other(target, source, done, progress)?,
        };
        Ok(staged.map(|staged| {
            let length_bytes = staged.record().length_bytes;
            Place { storage_id: Changes::provisional_id(stages.push(staged)), offset_bytes: 0, length_bytes }
        }))
    }

    /// Copies what is kept of a small sealed storage to one that small ones share. Their blocks are not shared, because a file
    /// each takes longer than a copy.
    fn stage_small(
        &self,
        (target, stages): (&OpenStore, &mut Stages),
        (id, record): (u64, &StorageRecord),
        (kept, part): (Kept, &mut Part),
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Place> {
        let (mut old, lost) = (self.open_sealed((id, record))?, self.lost(id));
        // Read whole before the first byte is written: a damaged chunk must leave nothing in the shared storage.
        let bytes = repacked_bytes(&mut Without { source: &mut old, lost }, &kept.repacked, progress)?;
        let disk = (&target.disk, &target.paths, target.is_durable());
        let (index, offset_bytes, _) = stages.write_shared(disk, &bytes)?;
        done.copied.copied_bytes += bytes.len() as u64;
        part.place(kept.repacked.views);
        Ok(Place {
            storage_id: Changes::provisional_id(index),
            offset_bytes,
            length_bytes: bytes.len() as u64,
        })
    }

    /// Copies a storage with this record into one of its own, however small it is.
    pub(super) fn stage_record(
        &self,
        target: &OpenStore,
        (id, record): (u64, &StorageRecord),
        part: &mut Part,
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<StagedStorage>> {
        match &record.kind {
            RecordKind::Sealed(_) => {
                let kept = self.kept((id, record), part)?;
                self.stage_sealed(target, (id, record), (kept, part), &mut done.copied, progress).map(Some)
            }
            _ => self.stage_other(target, (id, record), done, progress),
        }
    }

    /// Adopts an external storage again, or copies one that is changed in place.
    fn stage_other(
        &self,
        target: &OpenStore,
        (id, record): (u64, &StorageRecord),
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<StagedStorage>> {
        let RecordKind::External(external) = &record.kind else {
            return self.stage_in_place(target, (id, record.clone()), done, progress).map(Some);
        };
        let file = self.store.externals.open(external);
        let (path, file) = match file.and_then(|file| target.externals.adopt(&file, None)) {
            Err(e) if self.is_salvage && is_refused(&e) => {
                done.refused.insert(id, e);
                return Ok(None);
            }
            adopted => adopted?,
        };
        let (offset_bytes, length_bytes) = (external.offset_bytes, record.length_bytes);
        Ok(Some(StagedStorage::external(&target.disk, (path, &file), offset_bytes, length_bytes)))
    }

    /// Copies a mutable or live storage. Marks the copy if a change of the original was interrupted.
    fn stage_in_place(
        &self,
        target: &OpenStore,
        (id, record): (u64, StorageRecord),
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StagedStorage> {
        let OpenStore { options, poison, .. } = self.store;
        let StoreDir { disk, paths, uuid, .. } = &**self.store;
        let (kind, length_bytes, damaged) = (record.kind.clone(), record.length_bytes, self.damaged.get(&id));
        let path = paths.storage(damaged.map_or(id, |damaged| damaged.file_id));
        let is_mark_lost = damaged.is_some_and(|damaged| damaged.is_mark_lost);
        let open = || {
            let stored = Stored { store: *uuid, id, record: record.clone() };
            let context = || InPlaceContext::of_a_reader(options.lock_wait, poison.clone());
            match is_mark_lost {
                true => Storage::open_without_mark(&**disk, &path, stored),
                false => Storage::open(disk, &path, stored, None, context),
            }
        };
        // A file that could not be opened once is not missing.
        let storage = open().or_else(|_| open());
        // The storage may be that of an older copy of the store, restored over this one. The manifest was then replaced
        // too, which this detects.
        self.generation.check_named(&**disk)?;
        let mut storage = storage?;
        if self.is_salvage {
            storage = storage.allowing_interrupted().unwrap_or(storage);
        }
        let mut writer = StorageWriter::in_place(kind, &target.disk, &target.paths, target.is_durable())?;
        {
            // A live storage has no lock: any process writes it at any time.
            let lock = storage.lock(LockMode::Shared)?;
            if is_mark_lost || lock.as_ref().is_some_and(LockedStorage::was_interrupted) {
                done.interrupted.insert(id);
                writer.mark_interrupted();
            }
            let locked = lock.as_ref().and_then(|lock| storage.under(lock));
            let storage = locked.as_ref().unwrap_or(&storage);
            let lost = damaged.map_or(&[][..], |damaged| &damaged.lost);
            let mut source = Without { source: &mut UnverifiedStorage::new(storage), lost };
            writer.copy_from(&mut source, &Repacked::whole(length_bytes), progress)?;
        }
        done.copied.copied_bytes += length_bytes;
        writer.finish()
    }

    /// Returns what is kept of a sealed storage.
    fn kept(&self, (id, record): (u64, &StorageRecord), part: &Part) -> Result<Kept> {
        let length_bytes = record.length_bytes;
        let views: Vec<&Header> = part.tensors.iter().map(|(_, tensor)| &*tensor.header).collect();
        let path = self.store.paths.storage(id);
        let is_whole = self.lost(id).is_empty()
            && (part.tensors.is_empty()
                || footprint_bytes(&views, length_bytes, MAX_RUNS).corrupt_in(&path)? == Some(length_bytes));
        let repacked = match is_whole {
            true => Repacked::whole(length_bytes),
            false => repack(&views, length_bytes).corrupt_in(&path)?,
        };
        Ok(Kept { repacked, is_whole })
    }

    /// Returns the bytes of a storage that are lost.
    fn lost(&self, id: u64) -> &[Range<u64>] {
        self.damaged.get(&id).map_or(&[][..], |damaged| &damaged.lost)
    }

    fn open_sealed(&self, (id, record): (u64, &StorageRecord)) -> Result<VerifiedStorage> {
        let StoreDir { disk, paths, .. } = &**self.store;
        match self.damaged.get(&id) {
            None => VerifiedStorage::open(&**disk, paths, id, record),
            Some(damaged) => {
                let file = (damaged.file_id, record);
                VerifiedStorage::open_damaged(&**disk, paths, file, damaged.corrected.clone())
            }
        }
    }

    /// Copies what is kept of a sealed storage, and shares its blocks if possible. Storages that are changed in place do not
    /// share blocks: a write to a shared block needs new space, and on a full disk a write through a mapping would end the
    /// process.
    fn stage_sealed(
        &self,
        target: &OpenStore,
        (id, record): (u64, &StorageRecord),
        (kept, part): (Kept, &mut Part),
        copied: &mut Copied,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StagedStorage> {
        let length_bytes = record.length_bytes;
        let (mut old, lost) = (self.open_sealed((id, record))?, self.lost(id));
        if kept.is_whole {
            let mut writer = old.start_copy(&target.disk, &target.paths, target.is_durable())?;
            if writer.share_blocks(old.as_file(), length_bytes)? {
                writer.digest_file(length_bytes, progress)?;
                let shared = writer.finish()?;
                // The kind of a sealed storage contains its digest. If the digests differ, the copy below reads the
                // storage chunk by chunk, and reports which chunk is damaged.
                if shared.record().kind == record.kind {
                    copied.shared_bytes += length_bytes;
                    return Ok(shared);
                }
            }
        }
        let mut writer = old.start_copy(&target.disk, &target.paths, target.is_durable())?;
        writer.copy_from(&mut Without { source: &mut old, lost }, &kept.repacked, progress)?;
        copied.copied_bytes += writer.length_bytes();
        part.place(kept.repacked.views);
        writer.finish()
    }
}

/// Whether a store may not use an external file from its path: the file is not allowed there, its path there cannot be
/// recorded, or it has changed.
fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::InvalidArgument | ErrorKind::ExternalChanged)
}
