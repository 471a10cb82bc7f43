//! Replays the changes of a transaction on the newest generation, which may not be the one that the transaction began
//! on. The result is the next manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use stridemap_format::{self as format, Manifest, RecordKind, Rule, StorageRecord, TensorRecord};

use super::Generation;
use super::changes::{Changes, FIRST_PROVISIONAL};
use super::draft::{Applied, Draft};
use super::entries::{StorageEntry, TensorEntry, insert, remove};
use super::history::{TagChanges, change_tags, drop_storage, is_about_earlier, take_garbage};
use super::new_store::now_ns;
use crate::disk::{if_test_omits_step, step};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Grown;

/// The manifest to publish next, and what must be on disk before it.
pub(crate) struct NextManifest {
    pub(crate) manifest: Manifest,
    /// The indices of the staged storages that it uses, with their final ids.
    pub(crate) used_staged: Vec<(usize, u64)>,
    /// The earlier generations that gain or lose their tags.
    pub(crate) tag_changes: TagChanges,
}

/// Applies a transaction to the newest generation.
pub(crate) fn replay(
    newest: &Arc<Generation>,
    draft: Draft,
    staged: &[StorageRecord],
    grown: &[Grown],
) -> Result<NextManifest> {
    let Applied { mut tensors, expected, attributes, tags, message, restored } = draft.apply_to(newest)?;
    check_ids_left(newest)?;
    let tables = newest.tables();
    let mut manifest = newest.manifest().clone();
    manifest.generation = manifest.generation.checked_add(1).ok_or_else(|| out_of_numbers("generations"))?;
    manifest.time_ns = now_ns();
    manifest.message = message;

    let is_unchanged = tensors.is_empty() && attributes.is_none() && grown.is_empty();

    let mut gains = tensor_gains(newest, &tensors)?;
    let grown = grown_storages(newest, grown)?;
    for &id in grown.keys() {
        gains.entry(id).or_default();
    }
    let mut taken = restored_storages(newest, &mut manifest, &gains, &restored)?;

    let (mut used_staged, mut new_ids, mut dropped) = (Vec::new(), BTreeMap::new(), Vec::new());
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
            None => match (grown.get(&id), taken.remove(&id)) {
                (Some(grown), _) => (id, Some(grown.clone())),
                (None, Some(taken)) => (id, Some(taken)),
                (None, None) => (id, expected_storage(newest, &expected, id)?),
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
            dropped.push((id, record));
        } else if gain != 0 || grown.contains_key(&id) {
            insert::<StorageEntry>(&mut manifest, id, record);
        }
    }
    let mut removed = Vec::new();
    for (name, record) in &mut tensors {
        match record {
            Some(record) => {
                record.storage_id = new_ids.get(&record.storage_id).copied().unwrap_or(record.storage_id);
            }
            None => removed.push(name.clone()),
        }
    }
    if manifest.tensors.is_empty() {
        manifest.tensors = tensors;
    } else {
        manifest.tensors.extend(tensors);
    }
    for name in removed {
        remove::<TensorEntry>(&mut manifest, tables, &name)?;
    }
    if let Some(attributes) = attributes {
        manifest.attributes = attributes;
    }
    let is_about_tags = is_unchanged && is_about_earlier(&tags);
    let tag_changes = change_tags(&mut manifest, tables, tags)?;
    if is_about_tags {
        // The tags have it. A later tag of this generation would otherwise have it too.
        manifest.message = None;
    }
    // After the tags, which decide what keeps them.
    for (id, record) in dropped {
        remove::<StorageEntry>(&mut manifest, tables, &id)?;
        drop_storage(&mut manifest, tables, id, record)?;
    }
    Ok(NextManifest { manifest, used_staged, tag_changes })
}

/// Takes back the storages that only earlier generations have, for the headers that are restored from those.
fn restored_storages(
    newest: &Generation,
    next: &mut Manifest,
    gains: &BTreeMap<u64, i64>,
    restored: &[Arc<Generation>],
) -> Result<BTreeMap<u64, StorageRecord>> {
    // The last of them that has each storage: one that none of them has may be deleted.
    let mut ids: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut seen: BTreeMap<u64, Vec<StorageRecord>> = BTreeMap::new();
    let is_wanted = |&(&id, &gain): &(&u64, &i64)| gain > 0 && Changes::staged_index(id).is_none();
    for (&id, _) in gains.iter().filter(|_| !restored.is_empty()).filter(is_wanted) {
        if newest.storage(id)?.is_some() {
            continue;
        }
        let mut last = None;
        for earlier in restored {
            let record = earlier.storage(id)?;
            let has_storage = record.is_some();
            if_test_omits_step!("restored-has-storage", has_storage = true);
            last = last.max(has_storage.then_some(earlier.number()));
            seen.entry(id).or_default().extend(record);
        }
        if let Some(last) = last {
            ids.entry(last).or_default().insert(id);
        }
    }
    let mut taken = BTreeMap::new();
    for (earlier, ids) in ids {
        taken.extend(take_garbage(next, newest.tables(), earlier, &ids)?);
    }
    for (id, record) in &taken {
        // The record is that of the last generation with the storage. It is at least as long as in any earlier one, so
        // a later append cannot write over rows that a different tag keeps.
        let holds = |seen: &Vec<StorageRecord>| seen.iter().all(|seen| still_holds(record, seen));
        if !seen.get(id).is_some_and(holds) {
            return Err(storage_gone("restore", *id, newest.number()));
        }
    }
    Ok(taken)
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
         removed, or moved by a compaction; load the tensor again, restore it, or save it, which copies its elements"
    );
    Error::new(ErrorKind::Conflict, message)
}
