//! Copies the newest generation of a store with all that tags keep, while others may write the original.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Error as FormatError, GarbageKey, RecordKind, Rule, StorageRecord, Tag};

use super::copy::{Copied, Done, Original};
use super::copy_storage::Part;
use super::verify::checked_metadata;
use crate::error::{Error, Result};
use crate::generation::{GarbageEntry, Generation, MetadataCopy, OpenStore};

/// How many tagged generations are held at a time: the oldest of those that are not copied yet. Each needs two open
/// files.
const MAX_HELD: usize = 100;

/// Opens a tagged generation. Returns `None` if its tags have been removed, and it is gone.
pub(crate) type PinTagged<'a> = dyn Fn(u64) -> Result<Option<Arc<Generation>>> + 'a;

/// A copy with tags that is being made.
struct Copying<'a> {
    target: &'a OpenStore,
    metadata: MetadataCopy<'a>,
    /// The record of each storage in the last generation that has it, where it is the longest.
    records: BTreeMap<u64, StorageRecord>,
    /// The storages that are in the copy.
    ids: BTreeSet<u64>,
    done: Done,
}

impl Original<'_> {
    /// Copies the generation, which is the newest, and all those that its tags name, to a path that does not exist.
    pub(crate) fn copy_with_tags(
        &self,
        path: &Path,
        pin: &PinTagged<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied> {
        self.build(path, |target| self.fill_with_tags(target, pin, progress))
    }

    fn fill_with_tags(
        &self,
        target: &OpenStore,
        pin: &PinTagged<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied> {
        let newest = self.generation;
        let tags: BTreeMap<String, Tag> = newest.tags()?.collect::<Result<_>>()?;
        let mut names: BTreeMap<u64, &str> = BTreeMap::new();
        for (name, tag) in &tags {
            names.entry(tag.generation).or_insert(name);
        }
        names.remove(&newest.number());
        let mut records: BTreeMap<u64, StorageRecord> = newest.storages()?.collect::<Result<_>>()?;
        let mut garbage: BTreeMap<GarbageKey, StorageRecord> = BTreeMap::new();
        let first = GarbageKey { is_tagged: true, dropped: 0, id: 0 };
        for entry in newest.entries().scan::<GarbageEntry>(Some(&first))? {
            let (key, record) = entry?;
            if let Entry::Vacant(place) = records.entry(key.id) {
                place.insert(record.clone());
                garbage.insert(key, record);
            }
        }
        let (metadata, ids, done) = (MetadataCopy::new(target), BTreeSet::new(), Done::default());
        let mut copying = Copying { target, metadata, records, ids, done };
        let (mut held, mut rest) = (VecDeque::new(), names.iter());
        loop {
            while held.len() < MAX_HELD
                && let Some((&number, name)) = rest.next()
            {
                let pinned = pin(number).map_err(|e| e.context(format!("tag {name:?}")))?;
                held.extend(pinned.map(|generation| (name, generation)));
            }
            let Some((name, kept)) = held.pop_front() else { break };
            let copied = copying.copy_storages(self, &kept, progress);
            let copied = copied.and_then(|_| copying.metadata.keep(&kept));
            copied.map_err(|e| e.context(format!("tag {name:?}")))?;
        }
        let tensor_count = copying.copy_storages(self, newest, progress)?;
        let Copying { metadata, ids, done, .. } = copying;
        garbage.retain(|key, _| ids.contains(&key.id));
        let tag_count = metadata.publish(newest, tags, garbage)?;
        Ok(Copied { tensor_count, tag_count, ..done.copied })
    }
}

impl Copying<'_> {
    /// Copies the storages of a generation that are not in the copy yet. Returns how many tensors the generation has.
    fn copy_storages(
        &mut self,
        original: &Original<'_>,
        generation: &Generation,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        let &Original { action, disk, store, .. } = original;
        let survey = checked_metadata(store, generation, &|id| self.records.get(id))?;
        let tensor_count = survey.storages.values().map(|storage| storage.tensor_count).sum();
        let ids: Vec<u64> = survey.storages.into_keys().filter(|id| !self.ids.contains(id)).collect();
        let from = Original { action, disk, store, generation, damaged: BTreeMap::new(), is_salvage: false };
        for id in ids {
            self.copy_storage(&from, id, progress).map_err(|e| match name_on(generation, id) {
                Some(name) => e.context(format!("{name:?}")),
                None => e,
            })?;
            self.ids.insert(id);
        }
        Ok(tensor_count)
    }

    fn copy_storage(&mut self, from: &Original<'_>, id: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let Some(record) = self.records.get(&id) else { return Ok(()) };
        let (part, done) = (&mut Part::default(), &mut self.done);
        let Some(mut staged) = from.stage_record(self.target, (id, record), part, done, progress)? else {
            return Ok(());
        };
        match &staged.record().kind {
            RecordKind::External(external) => self.metadata.add_external(id, external.clone()),
            // The copy states what the original does.
            kind if *kind != record.kind => {
                let broken = FormatError::new(Rule::ChunkDigest, "its digests are not those of its bytes");
                return Err(Error::corrupt(&from.store.paths.storage(id), broken));
            }
            _ => {}
        }
        staged.publish(&self.target.paths, id)
    }
}

/// Returns the name of a tensor on a storage.
fn name_on(generation: &Generation, id: u64) -> Option<String> {
    let mut tensors = generation.tensors("").ok()?.filter_map(Result::ok);
    tensors.find(|(_, record)| record.storage_id == id).map(|(name, _)| name)
}
