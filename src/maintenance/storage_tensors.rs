//! Storages with all their tensors, and whether rewriting one pays off.

use std::collections::BTreeMap;

use stridemap_format::{Header, RecordKind, StorageRecord, TensorRecord};

use crate::error::{FormatContext, Result};
use crate::generation::{Generation, OpenStore};
use crate::layout::{Repacked, repack};

/// How many tensors are in memory at a time, unless one storage has more.
const BATCH_TENSORS: u64 = 1 << 20;

/// A storage and all its tensors.
#[derive(Debug)]
pub(crate) struct StorageTensors {
    pub(crate) id: u64,
    pub(crate) record: StorageRecord,
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
}

impl StorageTensors {
    pub(crate) fn views(&self) -> Vec<&Header> {
        self.tensors.values().map(|record| &*record.header).collect()
    }

    /// Returns the layout of the storage without its unreferenced bytes.
    ///
    /// # Errors
    /// `Corrupt` for a tensor that reaches past its storage.
    pub(crate) fn repacked(&self, store: &OpenStore) -> Result<Repacked> {
        repack(&self.views(), self.record.length_bytes).corrupt_in(&store.paths.storage(self.id))
    }
}

/// Visits either the external storages of a generation or all others, each with all its tensors.
///
/// The tensors are found by scanning. There may be millions, so each scan covers only some of the storages.
pub(crate) fn each_storage(
    generation: &Generation,
    is_external: bool,
    mut visit: impl FnMut(StorageTensors) -> Result<()>,
) -> Result<()> {
    let mut records = Vec::new();
    for entry in generation.storages()? {
        let (id, record) = entry?;
        if matches!(record.kind, RecordKind::External(_)) == is_external {
            records.push((id, record));
        }
    }
    let mut rest = records.into_iter().peekable();
    while rest.peek().is_some() {
        let mut batch: BTreeMap<u64, StorageTensors> = BTreeMap::new();
        let mut tensor_count = 0u64;
        while let Some((id, record)) = rest.next_if(|(_, record)| {
            tensor_count = tensor_count.saturating_add(record.tensor_count);
            tensor_count <= BATCH_TENSORS || batch.is_empty()
        }) {
            batch.insert(id, StorageTensors { id, record, tensors: BTreeMap::new() });
        }
        for entry in generation.tensors("")? {
            let (name, record) = entry?;
            if let Some(storage) = batch.get_mut(&record.storage_id) {
                storage.tensors.insert(name, record);
            }
        }
        batch.into_values().try_for_each(&mut visit)?;
    }
    Ok(())
}

/// Returns the storages with these ids, each with the given tensors that are still on it. If they are as many as its
/// record counts, no other tensor is on the storage. Leaves out deleted storages.
pub(crate) fn storages_with_tensors<'a>(
    generation: &Generation,
    storages: impl Iterator<Item = (u64, &'a [String])>,
) -> Result<BTreeMap<u64, StorageTensors>> {
    let (mut found, mut ids_of_names) = (BTreeMap::new(), BTreeMap::new());
    for (id, names) in storages {
        let Some(record) = generation.storage(id)? else { continue };
        found.insert(id, StorageTensors { id, record, tensors: BTreeMap::new() });
        ids_of_names.extend(names.iter().map(|name| (name.clone(), id)));
    }
    for (name, record) in generation.tensors_named(&ids_of_names)? {
        if let Some(storage) = found.get_mut(&record.storage_id) {
            storage.tensors.insert(name.to_owned(), record);
        }
    }
    Ok(found)
}

/// How much space a rewrite of a storage without its unreferenced bytes would free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum RewriteGain {
    Nothing,
    /// Less than the rewrite costs.
    Small,
    Enough,
}

/// The size of a file system block: freeing less than a whole block frees nothing.
const BLOCK_BYTES: u64 = 4096;

/// Returns how much a rewrite would free. `Enough` is at least one block, and at least a quarter of the storage. So at
/// most three bytes are copied for each byte freed.
pub(crate) fn rewrite_gain(before_bytes: u64, after_bytes: u64) -> RewriteGain {
    match before_bytes.saturating_sub(after_bytes) {
        0 => RewriteGain::Nothing,
        gain if gain >= BLOCK_BYTES && gain >= before_bytes / 4 => RewriteGain::Enough,
        _ => RewriteGain::Small,
    }
}
