//! Copies tensors of a generation into another store.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::TensorRecord;

use super::copy::{Copied, Done, Original, Part};
use crate::error::{Context, Result};
use crate::generation::OpenStore;
use crate::storage::StagedStorage;

/// Tensors that have been copied to staged storages.
pub(crate) struct StagedTensors {
    /// The storages, each with its id in the original.
    pub(crate) storages: Vec<(u64, StagedStorage)>,
    /// The tensors by name, each with its header on the copied storage and the id of the original storage.
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
    pub(crate) copied: Copied,
}

impl Original<'_> {
    /// Returns the tensors with these names.
    pub(crate) fn tensors(&self, names: &[&str]) -> Result<BTreeMap<String, TensorRecord>> {
        let record = |name: &&str| Ok(((*name).to_owned(), self.generation.existing(self.action, name)?));
        names.iter().map(record).collect()
    }

    /// Copies the storages of these tensors to staged storages of another store: each once, and without the bytes that
    /// none of the tensors reaches.
    pub(crate) fn stage_tensors(
        &self,
        target: &OpenStore,
        mut tensors: BTreeMap<String, TensorRecord>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StagedTensors> {
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for (name, record) in &tensors {
            parts.entry(record.storage_id).or_default().tensors.push((name.clone(), record.clone()));
        }
        let (mut storages, mut done) = (Vec::new(), Done::default());
        for (id, mut part) in parts {
            let first = part.tensors.first().map(|(name, _)| name.clone()).unwrap_or_default();
            let staged =
                self.stage(target, id, &mut part, &mut done, progress).context(format!("{first:?}"))?;
            storages.extend(staged.map(|staged| (id, staged)));
            for (name, header) in part.placed {
                tensors.entry(name).and_modify(|record| record.header = Arc::new(header));
            }
        }
        done.copied.tensor_count = tensors.len() as u64;
        Ok(StagedTensors { storages, tensors, copied: done.copied })
    }
}
