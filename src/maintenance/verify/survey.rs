//! The metadata of a generation that may be damaged.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{Manifest, StorageRecord, TensorRecord};

use crate::error::{Error, Result};
use crate::generation::{Table, lookup_path};

/// The metadata of a generation, read entry by entry, so that a damaged entry does not hide the others.
pub(crate) struct Survey<'a> {
    manifest: &'a Manifest,
    table: Option<&'a Table>,
    /// All storages whose record can be read.
    pub(crate) storages: BTreeMap<u64, SurveyedStorage>,
    /// The table entries that cannot be read, by ordinal, and why.
    pub(crate) broken: BTreeMap<u64, Error>,
    /// The ids of the table's storages by ordinal; `None` for an entry that cannot be read.
    ids: Vec<Option<u64>>,
    /// The ordinals of entries that are not greater than the one before.
    pub(crate) unordered: Vec<u64>,
    /// Whether a tensor refers to a storage without a record.
    has_unknown_storages: bool,
}

#[derive(Debug)]
pub(crate) struct SurveyedStorage {
    pub(crate) record: StorageRecord,
    /// How many tensors refer to it, whatever its record says.
    pub(crate) tensor_count: u64,
}

/// A name and its record.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) record: &'a TensorRecord,
    /// Its ordinal in the table; `None` if it is in the manifest.
    ordinal: Option<u64>,
}

impl<'a> Survey<'a> {
    /// Surveys a manifest and its table.
    ///
    /// # Errors
    /// `Io`. A broken rule is not an error, but part of the survey.
    pub(crate) fn of(manifest: &'a Manifest, table: Option<&'a Table>) -> Result<Self> {
        let mut survey = Survey {
            manifest,
            table,
            storages: BTreeMap::new(),
            broken: BTreeMap::new(),
            ids: Vec::new(),
            unordered: Vec::new(),
            has_unknown_storages: false,
        };
        if let Some(table) = table {
            survey.read_storages(table)?;
        }
        for (&id, record) in &manifest.storages {
            survey.storages.remove(&id);
            if let Some(record) = record {
                survey.storages.insert(id, SurveyedStorage { record: record.clone(), tensor_count: 0 });
            }
        }
        if let Some(table) = table {
            survey.find_broken_tensors(table)?;
        }
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        survey.each_tensor(|tensor| {
            *counts.entry(tensor.record.storage_id).or_default() += 1;
            Ok(())
        })?;
        for (id, count) in counts {
            match survey.storages.get_mut(&id) {
                Some(storage) => storage.tensor_count = count,
                None => survey.has_unknown_storages = true,
            }
        }
        Ok(survey)
    }

    fn read_storages(&mut self, table: &Table) -> Result<()> {
        let mut last = None;
        table.each_one(table.storages(), |ordinal, entry: Result<(u64, StorageRecord)>| {
            let entry = self.check_entry(ordinal, entry, &mut last);
            self.ids.push(entry.as_ref().map(|(id, _)| *id));
            let entry = entry.map(|(id, record)| (id, SurveyedStorage { record, tensor_count: 0 }));
            self.storages.extend(entry);
            Ok(())
        })
    }

    fn find_broken_tensors(&mut self, table: &Table) -> Result<()> {
        let mut last = None;
        table.each_one(table.tensors(), |ordinal, entry: Result<(String, TensorRecord)>| {
            self.check_entry(ordinal, entry, &mut last);
            Ok(())
        })
    }

    /// Records whether an entry can be read, and whether it follows `last`, the key of the one before.
    fn check_entry<K: Ord + Clone, V>(
        &mut self,
        ordinal: u64,
        entry: Result<(K, V)>,
        last: &mut Option<K>,
    ) -> Option<(K, V)> {
        let (key, value) = entry.map_err(|error| self.broken.insert(ordinal, error)).ok()?;
        if last.as_ref().is_some_and(|last| *last >= key) {
            self.unordered.push(ordinal);
        }
        *last = Some(key.clone());
        Some((key, value))
    }

    /// Visits all tensors whose record can be read, those of a table before those of its manifest.
    pub(crate) fn each_tensor(&self, mut visit: impl FnMut(Tensor<'_>) -> Result<()>) -> Result<()> {
        if let Some(table) = self.table {
            table.each_one(
                table.tensors(),
                |ordinal, entry: Result<(String, TensorRecord)>| match &entry {
                    Ok((name, record)) if !self.manifest.tensors.contains_key(name) => {
                        visit(Tensor { name, record, ordinal: Some(ordinal) })
                    }
                    _ => Ok(()),
                },
            )?;
        }
        for (name, record) in &self.manifest.tensors {
            if let Some(record) = record {
                visit(Tensor { name, record, ordinal: None })?;
            }
        }
        Ok(())
    }

    /// Returns the damaged entries that a lookup of a tensor and its storage reads.
    pub(crate) fn damaged_lookups_of(&self, tensor: &Tensor<'_>) -> Vec<u64> {
        let (Some(table), false) = (self.table, self.broken.is_empty()) else { return Vec::new() };
        let by_name = tensor
            .ordinal
            .into_iter()
            .flat_map(|target| lookup_path(table.tensors(), move |ordinal| Some(ordinal.cmp(&target))));
        let by_name = by_name.filter(|ordinal| self.broken.contains_key(ordinal));
        by_name.chain(self.damaged_lookups_of_storage(table, tensor.record.storage_id)).collect()
    }

    fn damaged_lookups_of_storage(&self, table: &Table, id: u64) -> Vec<u64> {
        if self.manifest.storages.contains_key(&id) {
            return Vec::new();
        }
        let compare = |ordinal: u64| -> Option<Ordering> {
            Some(self.ids.get(ordinal as usize).copied().flatten()?.cmp(&id))
        };
        lookup_path(table.storages(), compare).filter(|ordinal| self.broken.contains_key(ordinal)).collect()
    }

    /// Whether there may be storages that are not in [`storages`](Self::storages).
    pub(crate) fn has_lost_storages(&self) -> bool {
        self.ids.iter().any(Option::is_none) || self.has_unknown_storages
    }
}

impl Tensor<'_> {
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::from(self.name)
    }
}
