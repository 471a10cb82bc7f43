//! Copies a generation, or some of its tensors, to a new store, while others may write the original.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Attributes, Digest, TensorRecord};

use super::copy_storage::{Part, Place};
use crate::disk::Disk;
use crate::error::{Context, Error, Result};
use crate::generation::{
    Change, Draft, Generation, IncompleteStore, OnExisting, OpenStore, not_created, publish,
};
use crate::storage::Stages;

/// The maximum number of storages that one commit makes: until the commit, each has two files open. The copy is
/// invisible before its last commit, so there can be several commits.
const MAX_COMMIT_STORAGES: usize = 64;

/// The maximum number of headers that are in memory at a time.
const MAX_COMMIT_TENSORS: usize = 1 << 17;

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
}
