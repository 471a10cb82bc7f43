//! Writes the metadata of a store that is a copy of another one, with its tags: the same generations, with the same
//! numbers and storage ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{
    External, GarbageKey, KeptGeneration, KeptKey, Manifest, RecordKind, StorageRecord, TableRef, Tag,
};

use super::entries::StorageEntry;
use super::history::kept_of;
use super::publish::{Base, keep_manifest, publish_manifest, write_table};
use super::table::Table;
use super::{Generation, OpenStore};
use crate::disk::step;
use crate::error::{IoContext, Result};

/// The metadata of a copy, until its newest generation is published. Records are as in the original, except for the uuid
/// and the paths of external files.
#[derive(Debug)]
pub(crate) struct MetadataCopy<'a> {
    target: &'a OpenStore,
    /// The external files as seen from the copy, by the id of the storage.
    externals: BTreeMap<u64, External>,
    /// The earlier generations that were written. Their tags are not counted yet.
    kept: BTreeMap<u64, KeptGeneration>,
    /// The table that was written last. A later generation has the same one or a later one.
    table: Option<TableRef>,
}

impl<'a> MetadataCopy<'a> {
    /// `target` is a new store, which no other process opens yet.
    pub(crate) fn new(target: &'a OpenStore) -> Self {
        MetadataCopy { target, externals: BTreeMap::new(), kept: BTreeMap::new(), table: None }
    }

    /// Notes where the copy finds the file of an external storage.
    pub(crate) fn add_external(&mut self, id: u64, external: External) {
        self.externals.insert(id, external);
    }

    /// Writes a generation that tags name. The generations ascend, and their storages are in the copy.
    pub(crate) fn keep(&mut self, generation: &Generation) -> Result<()> {
        let manifest = self.manifest_of(generation)?;
        keep_manifest(self.target, &manifest)?;
        self.kept.insert(generation.number(), kept_of(&manifest));
        Ok(())
    }

    /// Publishes the newest generation, with those of the tags whose generations are in the copy. `garbage` are the
    /// storages that only those have. Returns the number of tags.
    pub(crate) fn publish(
        mut self,
        newest: &Generation,
        tags: BTreeMap<String, Tag>,
        garbage: BTreeMap<GarbageKey, StorageRecord>,
    ) -> Result<u64> {
        let target = self.target;
        let mut manifest = self.manifest_of(newest)?;
        let first = target.current();
        // The first generation of the copy is there already. It is as empty as any other first one.
        manifest.generation = manifest.generation.max(first.number().saturating_add(1));
        self.kept.insert(manifest.generation, kept_of(&manifest));
        for (name, tag) in tags {
            if let Some(kept) = self.kept.get_mut(&tag.generation) {
                kept.tag_count += 1;
                manifest.tags.insert(name, Some(tag));
            }
        }
        self.kept.retain(|_, kept| kept.tag_count > 0);
        let key = |generation| KeptKey { is_tagged: true, generation };
        manifest.kept = self.kept.iter().map(|(&generation, kept)| (key(generation), Some(*kept))).collect();
        let moved = |(key, record): (GarbageKey, StorageRecord)| (key, self.moved(key.id, record));
        manifest.garbage = garbage.into_iter().map(moved).collect();
        let tag_count = manifest.tags.len() as u64;

        let lock = target.lock_writers()?;
        step!("sync-storages-dir", target.sync_dir(&target.paths.storages_dir()))?; // otherwise tensors could be left without storages
        let table = Table::of(&*target.disk, &target.paths, &manifest)?.map(Arc::new);
        let newest = &Generation::stand_in(target.uuid, first.number()).with_table(table.clone());
        let base = Base { newest, table, is_received: false };
        target.install(Arc::new(publish_manifest(target, manifest, base, &lock)?));
        let path = target.paths.manifest(first.number());
        target.disk.remove(&path).doing("delete", &path)?;
        Ok(tag_count)
    }

    /// Returns the manifest of a generation in the copy, whose table is written.
    fn manifest_of(&mut self, generation: &Generation) -> Result<Manifest> {
        let mut manifest = Manifest { uuid: self.target.uuid, ..generation.manifest().without_history() };
        for (&id, record) in &mut manifest.storages {
            *record = record.take().and_then(|record| self.moved(id, record));
        }
        manifest.table = match generation.table() {
            Some(table) => self.table_of(&manifest, table)?,
            None => None,
        };
        Ok(manifest)
    }

    /// Returns the table of a generation in the copy. Writes it, unless an earlier generation has it.
    fn table_of(&mut self, manifest: &Manifest, table: &Table) -> Result<Option<TableRef>> {
        let number = table.reference().generation;
        if self.table.is_none_or(|last| last.generation != number) {
            let mut changes = Manifest {
                generation: number,
                next_storage_id: manifest.next_storage_id,
                ..Manifest::first(manifest.uuid)
            };
            for entry in table.scan::<StorageEntry>(None)? {
                let (id, record) = entry?;
                if matches!(record.kind, RecordKind::External(_)) {
                    changes.storages.insert(id, self.moved(id, record));
                }
            }
            self.table = write_table(self.target, &mut changes, Some(table), false)?;
            // Otherwise the newest generation could be left without its table.
            step!("sync-table-name", self.target.sync_dir(&self.target.paths.generations_dir()))?;
        }
        Ok(self.table)
    }

    /// Returns the record of a storage in the copy. `None` for an external one that no generation of the copy has: a
    /// table may still have the record of a storage that its manifests remove.
    fn moved(&self, id: u64, mut record: StorageRecord) -> Option<StorageRecord> {
        if let RecordKind::External(external) = &mut record.kind {
            external.clone_from(self.externals.get(&id)?);
        }
        Some(record)
    }
}
