use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{StorageRecord, TensorRecord};

use super::Generation;
use crate::disk::{Disk, Step};
use crate::error::Result;

/// A storage whose tensors move to another, byte for byte. Nobody is to notice, so it happens only when nothing about
/// either has changed since it was planned.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    /// Where the store is.
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) storage_id: u64,
    /// As it was planned. It counts the tensors: one more, and it is another.
    pub(crate) record: StorageRecord,
    /// Every tensor on the storage, by its name.
    pub(crate) tensors: BTreeMap<String, Moved>,
}

/// The header of a tensor before and after.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) before: TensorRecord,
    pub(crate) after: TensorRecord,
}

impl Relocation {
    /// Whether all is as it was planned: the storage's record, and every name's.
    pub(crate) fn is_up_to_date(&self, generation: &Generation) -> Result<bool> {
        if !Step::MoveIsUpToDate.is_taken(&*self.disk) {
            return Ok(true);
        }
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
