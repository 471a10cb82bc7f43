//! Copies tensors of a generation into another store.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::TensorRecord;

use super::copy::{Copied, Done, Original};
use super::copy_storage::Part;
use crate::error::{Context, Result};
use crate::generation::OpenStore;
use crate::storage::Stages;

/// Tensors that have been copied to staged storages.
pub(crate) struct StagedTensors {
    /// The tensors by name, each with its header on the staged storage.
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
    pub(crate) copied: Copied,
}

impl Original<'_> {
    /// Returns the tensors with these names.
    pub(crate) fn tensors(&self, names: &[&str]) -> Result<BTreeMap<String, TensorRecord>> {
        let record = |name: &&str| Ok(((*name).to_owned(), self.generation.existing(self.action, name)?));
        names.iter().map(record).collect()
    }

    /// Copies the storages of these tensors to storages that another store stages: each once, and without the bytes that
    /// none of the tensors reaches.
    pub(crate) fn stage_tensors(
        &self,
        (target, stages): (&OpenStore, &mut Stages),
        mut tensors: BTreeMap<String, TensorRecord>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StagedTensors> {
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for (name, record) in &tensors {
            parts.entry(record.storage_id).or_default().tensors.push((name.clone(), record.clone()));
        }
        let mut done = Done::default();
        for (id, mut part) in parts {
            let first = part.tensors.first().map(|(name, _)| name.clone()).unwrap_or_default();
            let place = self.stage((target, stages), id, &mut part, &mut done, progress);
            // Only a salvage leaves a storage out.
            let Some(place) = place.context(format!("{first:?}"))? else {
                part.tensors.iter().for_each(|(name, _)| drop(tensors.remove(name)));
                continue;
            };
            let path = self.store.paths.storage(id);
            for (name, record) in part.tensors {
                let header = part.placed.remove(&name).map_or(record.header, Arc::new);
                tensors.insert(name, place.tensor(header, &path)?);
            }
        }
        done.copied.tensor_count = tensors.len() as u64;
        Ok(StagedTensors { tensors, copied: done.copied })
    }
}
