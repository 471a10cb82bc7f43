//! Copies a generation, or some of its tensors, to a new store, while others may write the original.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{
    Attributes, Digest, Error as FormatError, Header, RecordKind, Rule, StorageRecord, TensorRecord,
};

use crate::disk::{Disk, LockMode};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{
    Change, Changes, Draft, Generation, IncompleteStore, OnExisting, OpenStore, StoreDir, not_created,
    publish,
};
use crate::layout::{Repacked, footprint_bytes, repack};
use crate::storage::{
    InPlaceContext, LockedStorage, StagedStorage, Storage, StorageWriter, Stored, UnverifiedStorage,
    VerifiedStorage, Without,
};

/// The maximum number of storages that one commit copies: until the commit, each has two files open. The copy is
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
    /// The bytes of storages that were written.
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

/// One commit of the copy.
struct Commit<'a> {
    target: &'a OpenStore,
    draft: Draft,
    staged: Vec<StagedStorage>,
}

impl Commit<'_> {
    /// Adds a storage, and returns its provisional id.
    fn stage(&mut self, storage: StagedStorage) -> u64 {
        self.staged.push(storage);
        Changes::provisional_id(self.staged.len() - 1)
    }

    fn publish(self) -> Result<Arc<Generation>> {
        if self.draft.changes.is_empty() {
            return Ok(Arc::clone(self.draft.generation()));
        }
        let lock = self.target.lock_writers()?;
        Ok(publish(self.target, self.draft, self.staged, Vec::new(), &lock)?.0)
    }
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
        // Maps the storage ids of the source to those of the copy, which are provisional until the commit.
        let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
        loop {
            let mut commit = Commit { target, draft: Draft::new(target.current()), staged: Vec::new() };
            for ((scope, key), value) in mem::take(&mut attributes) {
                let change = Change::SetAttribute { scope, key, value: Some(value) };
                commit.draft.apply(change, OnExisting::Replace)?;
            }
            // The storages of the source that this commit copies, each with a name that refers to it.
            let mut staged: Vec<(u64, String)> = Vec::new();
            let mut tensor_count = 0;
            while tensor_count < MAX_COMMIT_TENSORS
                && staged.len() < MAX_COMMIT_STORAGES
                && let Some(entry) = tensors.next()
            {
                let (name, record) = entry?;
                let id = record.storage_id;
                let part = parts.entry(id).or_default();
                let new_id = match ids.get(&id) {
                    Some(&new_id) => new_id,
                    None if done.refused.contains_key(&id) => continue,
                    None => {
                        let storage = self.stage(target, id, part, &mut done, progress);
                        let Some(storage) = storage.context(format!("{name:?}"))? else { continue };
                        let new_id = commit.stage(storage);
                        ids.insert(id, new_id);
                        staged.push((id, name.clone()));
                        new_id
                    }
                };
                let header = part.placed.remove(&name).map_or(record.header, Arc::new);
                let record = TensorRecord { header, storage_id: new_id };
                let put = Change::Put { action: self.action, name, record };
                commit.draft.apply(put, OnExisting::Replace)?;
                done.copied.tensor_count += 1;
                tensor_count += 1;
            }
            let generation = commit.publish()?;
            for (id, name) in staged {
                ids.extend(generation.tensor(&name)?.map(|record| (id, record.storage_id)));
            }
            if tensors.peek().is_none() {
                return Ok(done);
            }
        }
    }

    /// Copies a storage, or the part of it that tensors reach, into a staged one. Returns `None` if it is left out.
    pub(super) fn stage(
        &self,
        target: &OpenStore,
        id: u64,
        part: &mut Part,
        done: &mut Done,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<StagedStorage>> {
        let record = self.generation.storage(id)?.ok_or_else(|| {
            let detail =
                format!("generation {} has no record of storage {id:016x}", self.generation.number());
            Error::corrupt(&self.store.paths.storage(id), FormatError::new(Rule::TensorStorage, detail))
        })?;
        self.stage_record(target, (id, &record), part, done, progress)
    }

    /// Copies a storage with this record, like [`stage`](Self::stage).
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
                self.stage_sealed(target, (id, record), part, &mut done.copied, progress).map(Some)
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

    /// Copies a sealed storage, and shares its blocks if possible. Storages that are changed in place do not share
    /// blocks: a write to a shared block needs new space, and on a full disk a write through a mapping would end the
    /// process.
    fn stage_sealed(
        &self,
        target: &OpenStore,
        (id, record): (u64, &StorageRecord),
        part: &mut Part,
        copied: &mut Copied,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StagedStorage> {
        let (store, length_bytes) = (self.store, record.length_bytes);
        let mut old = match self.damaged.get(&id) {
            None => VerifiedStorage::open(&*store.disk, &store.paths, id, record)?,
            Some(damaged) => {
                let file = (damaged.file_id, record);
                VerifiedStorage::open_damaged(&*store.disk, &store.paths, file, damaged.corrected.clone())?
            }
        };
        let lost = self.damaged.get(&id).map_or(&[][..], |damaged| &damaged.lost);
        let views: Vec<&Header> = part.tensors.iter().map(|(_, tensor)| &*tensor.header).collect();
        let broken = |e| Error::corrupt(&store.paths.storage(id), e);
        let is_whole = lost.is_empty()
            && (part.tensors.is_empty()
                || footprint_bytes(&views, length_bytes, MAX_RUNS).map_err(broken)? == Some(length_bytes));
        if is_whole {
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
        let repacked = match is_whole {
            true => Repacked::whole(length_bytes),
            false => repack(&views, length_bytes).map_err(broken)?,
        };
        let mut writer = old.start_copy(&target.disk, &target.paths, target.is_durable())?;
        writer.copy_from(&mut Without { source: &mut old, lost }, &repacked, progress)?;
        copied.copied_bytes += writer.length_bytes();
        let names = part.tensors.iter().map(|(name, _)| name.clone());
        part.placed = names.zip(repacked.views).collect();
        writer.finish()
    }
}

/// Whether a store may not use an external file from its path: the file is not allowed there, its path there cannot be
/// recorded, or it has changed.
fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::InvalidArgument | ErrorKind::ExternalChanged)
}
