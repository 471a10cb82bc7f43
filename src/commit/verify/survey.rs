use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{Manifest, StorageRecord, TensorRecord};

use crate::commit::table::{Table, lookup_path};
use crate::error::{Error, Result};

/// How many damaged entries are looked at bit by bit.
const MOST_MENDED: usize = 100;

/// What the metadata of a generation says, entry by entry: what is wrong with one hides no other.
pub(in crate::commit) struct Survey<'a> {
    manifest: &'a Manifest,
    table: Option<&'a Table>,
    /// Every storage that has a record, and how many tensors stand on it. One whose entry could be mended is among them.
    pub(in crate::commit) storages: BTreeMap<u64, Standing>,
    /// Entries of the table that cannot be read, by ordinal.
    pub(in crate::commit) broken: BTreeMap<u64, Broken>,
    /// The ids of the table's storages by ordinal; none of one that is not known.
    ids: Vec<Option<u64>>,
    /// The ordinals of entries that do not follow the one before.
    pub(in crate::commit) unordered: Vec<u64>,
    /// Whether a tensor stands on a storage without a record.
    has_unknown_storages: bool,
}

#[derive(Debug)]
pub(in crate::commit) struct Standing {
    pub(in crate::commit) record: StorageRecord,
    pub(in crate::commit) tensor_count: u64,
}

/// An entry of a table that cannot be read.
#[derive(Debug)]
pub(in crate::commit) struct Broken {
    pub(in crate::commit) error: Error,
    /// What it was, when one flipped bit is all that is wrong.
    pub(in crate::commit) mended: Option<Mended>,
}

#[derive(Debug)]
pub(in crate::commit) enum Mended {
    Storage(u64),
    Tensor(String, TensorRecord),
}

/// A name, and where its record is.
pub(in crate::commit) struct Tensor<'a> {
    pub(in crate::commit) name: &'a str,
    pub(in crate::commit) record: &'a TensorRecord,
    /// Its place in the table; none in the manifest.
    ordinal: Option<u64>,
}

impl<'a> Survey<'a> {
    /// # Errors
    /// `Io`: what breaks a rule is kept.
    pub(in crate::commit) fn of(manifest: &'a Manifest, table: Option<&'a Table>) -> Result<Self> {
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
                survey.storages.insert(id, Standing { record: record.clone(), tensor_count: 0 });
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
                Some(standing) => standing.tensor_count = count,
                None => survey.has_unknown_storages = true,
            }
        }
        Ok(survey)
    }

    fn read_storages(&mut self, table: &Table) -> Result<()> {
        let mut last = None;
        table.each_one(table.storages(), |ordinal, entry: Result<(u64, StorageRecord)>| {
            let (id, record) = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let mended: Option<(u64, StorageRecord)> =
                        (self.broken.len() < MOST_MENDED).then(|| table.mended(ordinal)).flatten();
                    let known = mended.as_ref().map(|(id, _)| Mended::Storage(*id));
                    self.broken.insert(ordinal, Broken { error, mended: known });
                    let Some(entry) = mended else {
                        self.ids.push(None);
                        return Ok(());
                    };
                    entry
                }
            };
            if last.is_some_and(|last| last >= id) {
                self.unordered.push(ordinal);
            }
            last = Some(id);
            self.ids.push(Some(id));
            self.storages.insert(id, Standing { record, tensor_count: 0 });
            Ok(())
        })
    }

    fn find_broken_tensors(&mut self, table: &Table) -> Result<()> {
        let mut last: Option<String> = None;
        table.each_one(table.tensors(), |ordinal, entry: Result<(String, TensorRecord)>| {
            match entry {
                Ok((name, _)) => {
                    if last.as_ref().is_some_and(|last| *last >= name) {
                        self.unordered.push(ordinal);
                    }
                    last = Some(name);
                }
                Err(error) => {
                    let mended = (self.broken.len() < MOST_MENDED).then(|| table.mended(ordinal)).flatten();
                    let mended = mended.map(|(name, record)| Mended::Tensor(name, record));
                    self.broken.insert(ordinal, Broken { error, mended });
                }
            }
            Ok(())
        })
    }

    /// Every tensor whose record is known; those of a table before those of its manifest.
    pub(in crate::commit) fn each_tensor(
        &self,
        mut visit: impl FnMut(Tensor<'_>) -> Result<()>,
    ) -> Result<()> {
        if let Some(table) = self.table {
            table.each_one(table.tensors(), |ordinal, entry: Result<(String, TensorRecord)>| {
                let broken = self.broken.get(&ordinal).and_then(|broken| broken.mended.as_ref());
                let (name, record) = match (&entry, broken) {
                    (Ok((name, record)), _) | (Err(_), Some(Mended::Tensor(name, record))) => (name, record),
                    _ => return Ok(()),
                };
                if self.manifest.tensors.contains_key(name) {
                    return Ok(());
                }
                visit(Tensor { name, record, ordinal: Some(ordinal) })
            })?;
        }
        for (name, record) in &self.manifest.tensors {
            if let Some(record) = record {
                visit(Tensor { name, record, ordinal: None })?;
            }
        }
        Ok(())
    }

    /// The damaged entries that the lookup of a tensor meets, its own among them.
    pub(in crate::commit) fn in_the_way_of(&self, tensor: &Tensor<'_>) -> Vec<u64> {
        let (Some(table), false) = (self.table, self.broken.is_empty()) else { return Vec::new() };
        let by_name = tensor
            .ordinal
            .into_iter()
            .flat_map(|target| lookup_path(table.tensors(), move |ordinal| Some(ordinal.cmp(&target))));
        let by_name = by_name.filter(|ordinal| self.broken.contains_key(ordinal));
        by_name.chain(self.in_the_way_of_storage(table, tensor.record.storage_id)).collect()
    }

    fn in_the_way_of_storage(&self, table: &Table, id: u64) -> Vec<u64> {
        if self.manifest.storages.contains_key(&id) {
            return Vec::new();
        }
        let compare = |ordinal: u64| -> Option<Ordering> {
            Some(self.ids.get(ordinal as usize).copied().flatten()?.cmp(&id))
        };
        lookup_path(table.storages(), compare).filter(|ordinal| self.broken.contains_key(ordinal)).collect()
    }

    /// Whether the entry of a storage was lost for good, or one has no record.
    pub(in crate::commit) fn has_lost_storages(&self) -> bool {
        self.ids.iter().any(Option::is_none) || self.has_unknown_storages
    }

    /// Whether an entry was lost for good, so that counts may be of what it said.
    pub(in crate::commit) fn has_lost_entries(&self) -> bool {
        self.broken.values().any(|broken| broken.mended.is_none())
    }
}

impl Tensor<'_> {
    pub(in crate::commit) fn shared_name(&self) -> Arc<str> {
        Arc::from(self.name)
    }
}
