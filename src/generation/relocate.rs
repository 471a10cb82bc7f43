//! Plans for moving the tensors of a storage to a new one.

use std::collections::BTreeMap;

use stridemap_format::{StorageRecord, TensorRecord};

use super::Generation;
use crate::error::Result;

/// A storage whose tensors all move to a new one, with the same elements. Users must not notice, so the tensors move
/// only if neither the storage nor any of its tensors has changed since the move was planned.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    pub(crate) storage_id: u64,
    /// The record when the move was planned. It counts the tensors, so a new tensor changes it.
    pub(crate) record: StorageRecord,
    /// Every tensor on the storage, by name.
    pub(crate) tensors: BTreeMap<String, Moved>,
}

/// A tensor's header before and after the move.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) before: TensorRecord,
    pub(crate) after: TensorRecord,
}

impl Relocation {
    /// Whether the records of the storage and of every tensor are still those of the plan.
    pub(crate) fn is_up_to_date(&self, generation: &Generation) -> Result<bool> {
        if generation.storage(self.storage_id)?.as_ref() != Some(&self.record) {
            return Ok(false);
        }
        let now = generation.tensors_named(&self.tensors)?;
        Ok(self.tensors.iter().all(|(name, moved)| now.get(name.as_str()) == Some(&moved.before)))
    }

    pub(crate) fn moved(&self) -> impl Iterator<Item = (String, Option<TensorRecord>)> + '_ {
        self.tensors.iter().map(|(name, moved)| (name.clone(), Some(moved.after.clone())))
    }
}
