//! Replays the changes of a transaction on the newest generation, which may not be the one that the transaction began
//! on. The result is the next manifest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use stridemap_format::{self as format, Manifest, RecordKind, Rule, StorageRecord, TensorRecord};

use super::Generation;
use super::changes::{Changes, FIRST_PROVISIONAL};
use super::draft::{Applied, Draft};
use crate::disk::step;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Grown;

/// The manifest to publish next, and the indices of the staged storages that it uses, with their final ids.
pub(crate) struct NextManifest {
    pub(crate) manifest: Manifest,
    pub(crate) used_staged: Vec<(usize, u64)>,
}

/// Applies a transaction to the newest generation.
pub(crate) fn replay(
    newest: &Arc<Generation>,
    draft: Draft,
    staged: &[StorageRecord],
    grown: &[Grown],
) -> Result<NextManifest> {
    let Applied { mut tensors, expected, attributes } = draft.apply_to(newest)?;
    check_ids_left(newest)?;
    let mut manifest = newest.manifest().clone();
    manifest.generation = manifest.generation.checked_add(1).ok_or_else(|| out_of_numbers("generations"))?;

    let mut gains = tensor_gains(newest, &tensors)?;
    let grown = grown_storages(newest, grown)?;
    for &id in grown.keys() {
        gains.entry(id).or_default();
    }

    let (mut used_staged, mut new_ids) = (Vec::new(), BTreeMap::new());
    for (&id, &gain) in &gains {
        let (id, record) = match Changes::staged_index(id) {
            Some(_) if gain == 0 => continue,
            Some(index) => {
                let new_id = manifest.next_storage_id;
                manifest.next_storage_id += 1;
                used_staged.push((index, new_id));
                new_ids.insert(id, new_id);
                (new_id, staged.get(index).cloned())
            }
            None => match grown.get(&id) {
                Some(grown) => (id, Some(grown.clone())),
                None => (id, expected_storage(newest, &expected, id)?),
            },
        };
        let broken = |rule, detail| {
            let broken = format::Error::new(rule, format!("{detail} {id:016x}"));
            Error::new(ErrorKind::Corrupt, format!("{broken}; verify the store")).breaking(broken)
        };
        let mut record =
            record.ok_or_else(|| broken(Rule::TensorStorage, "there is no record of storage"))?;
        record.tensor_count = record
            .tensor_count
            .checked_add_signed(gain)
            .filter(|&count| count > 0 || gain < 0)
            .ok_or_else(|| broken(Rule::RecordCount, "more tensors than counted refer to storage"))?;
        if record.tensor_count == 0 {
            manifest.garbage.insert(id, manifest.generation);
            manifest.storages.insert(id, None);
        } else if gain != 0 || grown.contains_key(&id) {
            manifest.storages.insert(id, Some(record));
        }
    }
    for record in tensors.values_mut() {
        if let Some(record) = record
            && let Some(&new_id) = new_ids.get(&record.storage_id)
        {
            record.storage_id = new_id;
        }
    }
    if manifest.tensors.is_empty() {
        manifest.tensors = tensors;
    } else {
        manifest.tensors.extend(tensors);
    }
    if manifest.table.is_none() {
        // Without a table, a removal has no entry to hide.
        manifest.tensors.retain(|_, record| record.is_some());
        manifest.storages.retain(|_, record| record.is_some());
    }
    if let Some(attributes) = attributes {
        manifest.attributes = attributes;
    }
    Ok(NextManifest { manifest, used_staged })
}

/// Returns how many tensors each storage gains or loses by these changes. `None` removes a tensor.
fn tensor_gains(
    newest: &Generation,
    changes: &BTreeMap<String, Option<TensorRecord>>,
) -> Result<BTreeMap<u64, i64>> {
    let before = newest.tensors_named(changes)?;
    let mut gains = BTreeMap::new();
    for (name, after) in changes {
        for (record, gain) in [(before.get(name.as_str()), -1), (after.as_ref(), 1)] {
            if let Some(record) = record {
                *gains.entry(record.storage_id).or_default() += gain;
            }
        }
    }
    Ok(gains)
}

/// Checks that real ids are still below the provisional ones. Only a malformed store has used that many.
pub(crate) fn check_ids_left(generation: &Generation) -> Result<()> {
    if generation.manifest().next_storage_id < FIRST_PROVISIONAL {
        return Ok(());
    }
    Err(out_of_numbers("storage ids"))
}

fn out_of_numbers(what: &str) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("this store has no {what} left; export its tensors, and import them into a new store"),
    )
}

/// Returns the new records of the storages that have grown. Their growth locks have been held since their records
/// were read, and their bytes must be the same in the newest generation.
fn grown_storages(newest: &Generation, grown: &[Grown]) -> Result<BTreeMap<u64, StorageRecord>> {
    // Where locks work, the growth lock ensures this.
    let is_as_before = |now: &StorageRecord, from: &StorageRecord| {
        step!("grown-is-as-before", now.length_bytes == from.length_bytes && now.kind == from.kind)
    };
    let record = |grown: &Grown| match newest.storage(grown.id)? {
        Some(now) if is_as_before(&now, &grown.from) => {
            Ok((grown.id, StorageRecord { tensor_count: now.tensor_count, ..grown.to.clone() }))
        }
        _ => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "append: storage {:016x} has changed in generation {} since the rows were written; append them again",
                grown.id,
                newest.number()
            ),
        )),
    };
    grown.iter().map(record).collect()
}

/// Whether a storage is unchanged or has only grown.
fn still_holds(now: &StorageRecord, seen: &StorageRecord) -> bool {
    let is_longer_sealed = matches!((&now.kind, &seen.kind), (RecordKind::Sealed(_), RecordKind::Sealed(_)))
        && now.length_bytes > seen.length_bytes;
    is_longer_sealed || (now.kind == seen.kind && now.length_bytes >= seen.length_bytes)
}

/// Returns the record of a storage. If a view refers to it, the newest generation must still have it.
fn expected_storage(
    newest: &Generation,
    expected: &BTreeMap<u64, StorageRecord>,
    id: u64,
) -> Result<Option<StorageRecord>> {
    let found = newest.storage(id)?;
    // Without this check, the header of a view could refer to nothing.
    if let Some(expected) = expected.get(&id)
        && !step!("expected-storage", found.as_ref().is_some_and(|now| still_holds(now, expected)))
    {
        return Err(storage_gone("save a view", id, newest.number()));
    }
    Ok(found)
}

pub(crate) fn storage_gone(action: impl fmt::Display, id: u64, generation: u64) -> Error {
    let message = format!(
        "{action}: storage {id:016x}, which it refers to, is gone from generation {generation}: its tensors were \
         removed, or moved by a compaction; load the tensor again, or save it, which copies its elements"
    );
    Error::new(ErrorKind::Conflict, message)
}
