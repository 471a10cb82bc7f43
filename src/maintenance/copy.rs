//! Copies a generation, or some of its tensors, to a new store, while others may write the original.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{
    Attributes, Digest, Error as FormatError, Header, RecordKind, Rule, StorageRecord, TensorRecord,
};

use super::rewriting::{is_packable, moved_by};
use crate::disk::{Disk, LockMode};
use crate::error::{Context, Error, ErrorKind, FormatContext, Result};
use crate::generation::{
    Change, Changes, Draft, Generation, IncompleteStore, OnExisting, OpenStore, StoreDir, not_created,
    publish,
};
use crate::layout::{Repacked, footprint_bytes, repack};
use crate::storage::{
    InPlaceContext, LockedStorage, StagedStorage, Stages, Storage, StorageWriter, Stored, UnverifiedStorage,
    VerifiedStorage, Without, repacked_bytes,
};

/// The maximum number of storages that one commit makes: until the commit, each has two files open. The copy is
/// invisible before its last commit, so there can be several commits.
const MAX_COMMIT_STORAGES: usize = 64;

/// The maximum number of headers that are in memory at a time.
const MAX_COMMIT_TENSORS: usize = 1 << 17;

/// The maximum number of runs of bytes that are counted for the views of a storage. Views with more runs are assumed to
/// leave some bytes out.
const MAX_RUNS: u64 = 1 << 20;

/// The result of copying a store: see [`Snapshot::copy_to`](crate::Snapshot::copy_to) and
/// [`Store::copy_with_tags`](crate::Store::copy_with_tags).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Copied {
    /// The number of tensors in the newest generation of the copy.
    pub tensor_count: u64,
    /// The number of tags in the copy.
    pub tag_count: u64,
    /// The bytes of storages that were written, without the few between those that share a file.
    pub copied_bytes: u64,
    /// The bytes of storages that share their blocks on disk with those of the source, until one of the two is
    /// written.
    pub shared_bytes: u64,
}

/// What is copied.
pub(crate) struct Original<'a> {
    /// What is done, for errors: "copy".
    pub(crate) action: &'static str,
    /// The disk of the copy.
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) store: &'a OpenStore,
    pub(crate) generation: &'a Generation,
    /// The storages that are damaged, by id. Damage to any other is an error.
    pub(crate) damaged: BTreeMap<u64, Damaged>,
    /// Whether what can be copied is wanted: mutable storages although a change of them was interrupted, and a copy
    /// without the external files that it may not use.
    pub(crate) is_salvage: bool,
}

/// What was copied.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) copied: Copied,
    /// The mutable storages whose change was interrupted, or may have been, by the id of the original. Their copies are
    /// marked.
    pub(crate) interrupted: BTreeSet<u64>,
    /// Why the copy may not use the files of these external storages, by the id of the original. They are left out, with
    /// their tensors.
    pub(crate) refused: BTreeMap<u64, Error>,
}

/// A damaged storage. Only the bytes that tensors reach are copied.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    /// The id of its files.
    pub(crate) file_id: u64,
    /// Replacements for wrong digests in the `.sum` file.
    pub(crate) corrected: Vec<(u64, Digest)>,
    /// The bytes that are lost, in ascending order. No tensor reaches them.
    pub(crate) lost: Vec<Range<u64>>,
    /// Whether the mark of a mutable storage is lost, so its change may have been interrupted.
    pub(crate) is_mark_lost: bool,
}

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

/// One commit of the copy.
struct Commit<'a> {
    target: &'a OpenStore,
    draft: Draft,
    stages: Stages,
}

impl Commit<'_> {
    fn publish(self) -> Result<Arc<Generation>> {
        if self.draft.changes.is_empty() {
            return Ok(Arc::clone(self.draft.generation()));
        }
        let staged = self.stages.finish(self.target.is_durable())?;
        let lock = self.target.lock_writers()?;
        Ok(publish(self.target, self.draft, staged, Vec::new(), &lock)?.0)
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
    fn own(index: usize, record: &StorageRecord) -> Self {
        Place {
            storage_id: Changes::provisional_id(index),
            offset_bytes: 0,
            length_bytes: record.length_bytes,
        }
    }

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
    /// Copies the generation to a path that does not exist.
    pub(crate) fn copy(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Done> {
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        if self.damaged.values().any(|damaged| !damaged.lost.is_empty()) {
            for entry in self.generation.tensors("")? {
                let (name, record) = entry?;
                if self.damaged.get(&record.storage_id).is_some_and(|damaged| !damaged.lost.is_empty()) {
                    parts.entry(record.storage_id).or_default().tensors.push((name, record));
                }
            }
        }
        let entries = self.generation.tensors("")?;
        self.copy_parts(path, parts, entries, self.generation.manifest().attributes.clone(), progress)
    }

    /// Copies the tensors with these names, and the attributes that belong to them.
    pub(crate) fn copy_tensors(
        &self,
        path: &Path,
        names: &[&str],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Done> {
        let mut tensors: BTreeMap<String, TensorRecord> = BTreeMap::new();
        for &name in names {
            tensors.insert(name.to_owned(), self.generation.existing("copy", name)?);
        }
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for (name, record) in &tensors {
            parts.entry(record.storage_id).or_default().tensors.push((name.clone(), record.clone()));
        }
        let mut attributes = Attributes::new();
        // The store's own attributes are kept. They come first.
        let (mut last_scope, mut is_kept) = ("", true);
        for ((scope, key), value) in &self.generation.manifest().attributes {
            if scope != last_scope {
                let from_scope = (Bound::Included(scope.as_str()), Bound::Unbounded);
                is_kept = match tensors.range::<str, _>(from_scope).next() {
                    Some((name, _)) if name == scope => true,
                    // An entry that cannot be read counts as a prefix: a damaged table must not prevent a copy.
                    Some((name, _)) if name.starts_with(scope) => {
                        !matches!(self.generation.tensor(scope), Ok(Some(_)))
                    }
                    _ => false,
                };
                last_scope = scope;
            }
            if is_kept {
                attributes.insert((scope.clone(), key.clone()), value.clone());
            }
        }
        self.copy_parts(path, parts, tensors.into_iter().map(Ok), attributes, progress)
    }

    fn copy_parts(
        &self,
        path: &Path,
        parts: BTreeMap<u64, Part>,
        tensors: impl Iterator<Item = Result<(String, TensorRecord)>>,
        attributes: Attributes,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Done> {
        self.build(path, |target| self.fill(target, parts, tensors, attributes, progress))
    }

    /// Makes a new store, which appears at `path` when it is filled.
    pub(super) fn build<T>(&self, path: &Path, fill: impl FnOnce(&OpenStore) -> Result<T>) -> Result<T> {
        let copy = || {
            let (building, target) = IncompleteStore::open(self.disk, path, self.store.options)?;
            let done = fill(&target).map_err(|e| not_created(path, e))?;
            building.finish(&target)?;
            Ok(done)
        };
        copy().map_err(|e: Error| {
            let from = self.store.paths.root().display();
            e.context(format!("{} {from} to {}", self.action, path.display()))
        })
    }

    fn fill(
        &self,
        target: &OpenStore,
        mut parts: BTreeMap<u64, Part>,
        tensors: impl Iterator<Item = Result<(String, TensorRecord)>>,
        mut attributes: Attributes,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Done> {
        let mut tensors = tensors.peekable();
        let mut done = Done::default();
        // By the storage ids of the source.
        let mut places: BTreeMap<u64, Place> = BTreeMap::new();
        loop {
            let mut commit =
                Commit { target, draft: Draft::new(target.current()), stages: Stages::default() };
            for ((scope, key), value) in mem::take(&mut attributes) {
                let change = Change::SetAttribute { scope, key, value: Some(value) };
                commit.draft.apply(change, OnExisting::Replace)?;
            }
            // The storages of the source that this commit copies, each with a name that refers to it.
            let mut staged: Vec<(u64, String)> = Vec::new();
            let mut tensor_count = 0;
            while tensor_count < MAX_COMMIT_TENSORS
                && commit.stages.len() < MAX_COMMIT_STORAGES
                && let Some(entry) = tensors.next()
            {
                let (name, record) = entry?;
                let id = record.storage_id;
                let part = parts.entry(id).or_default();
                let place = match places.get(&id) {
                    Some(place) => place,
                    None if done.refused.contains_key(&id) => continue,
                    None => {
                        let place = self.stage((target, &mut commit.stages), id, part, &mut done, progress);
                        let Some(place) = place.context(format!("{name:?}"))? else { continue };
                        staged.push((id, name.clone()));
                        places.entry(id).or_insert(place)
                    }
                };
                let header = part.placed.remove(&name).map_or(record.header, Arc::new);
                let record = place.tensor(header, &self.store.paths.storage(id))?;
                let put = Change::Put { action: self.action, name, record };
                commit.draft.apply(put, OnExisting::Replace)?;
                done.copied.tensor_count += 1;
                tensor_count += 1;
            }
            let generation = commit.publish()?;
            for (id, name) in staged {
                if let (Some(place), Some(record)) = (places.get_mut(&id), generation.tensor(&name)?) {
                    place.storage_id = record.storage_id;
                }
            }
            if tensors.peek().is_none() {
                return Ok(done);
            }
        }
    }

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
        if let RecordKind::Sealed(_) = record.kind {
            let kept = self.kept((id, &record), part)?;
            let storage = (id, &record);
            if is_packable(&record, kept.repacked.length_bytes) {
                return self.stage_small((target, stages), storage, (kept, part), done, progress).map(Some);
            }
            let staged = self.stage_sealed(target, storage, (kept, part), &mut done.copied, progress)?;
            let record = staged.record().clone();
            return Ok(Some(Place::own(stages.push(staged), &record)));
        }
        let staged = self.stage_record(target, (id, &record), part, done, progress)?;
        Ok(staged.map(|staged| {
            let record = staged.record().clone();
            Place::own(stages.push(staged), &record)
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

    /// Copies a storage with this record into one of its own, like [`stage`](Self::stage).
    pub(super) fn stage_record(
        &self,
        target: &OpenStore,
        (id, record): (u64, &StorageRecord),
        part: &mut Part,
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<StagedStorage>> {
        match &record.kind {
            RecordKind::External(external) => {
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
            RecordKind::Sealed(_) => {
                let kept = self.kept((id, record), part)?;
                self.stage_sealed(target, (id, record), (kept, part), &mut done.copied, progress).map(Some)
            }
            _ => self.stage_in_place(target, (id, record.clone()), done, progress).map(Some),
        }
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
