//! Decides which storages and tensors a repair keeps, and how.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use stridemap_format::{CHUNK_BYTES, Digest, RecordKind, StorageRecord, TensorRecord, full_chunk_count};

use super::metadata::Source;
use super::{Loss, Repair, detail_of};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, Result};
use crate::layout::Coverage;
use crate::maintenance::verify::{Survey, bytes_of_chunks};
use crate::storage::{Damage, check_all};

/// The storages and tensors that are kept.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) storages: BTreeMap<u64, StorageRecord>,
    pub(super) tensors: BTreeMap<String, TensorRecord>,
    /// The storages that are replaced by copies of only the bytes that their tensors refer to.
    pub(super) copies: BTreeMap<u64, CopyPlan>,
    /// Copied storages whose original file is whole. Readers of older generations can still use the original.
    pub(super) readable_originals: BTreeSet<u64>,
    /// The storages whose `.sum` files are written again.
    pub(super) sums: BTreeMap<u64, CorrectedSum>,
    /// The storages that are no longer needed. Their files are moved away.
    pub(super) dropped: BTreeSet<u64>,
    /// Whether some storages may have lost their records, so that only their files are left.
    pub(super) has_lost_storages: bool,
    /// Whether a new generation is needed.
    pub(super) is_changed: bool,
}

/// How to copy the part of a storage that can be read.
#[derive(Debug)]
pub(super) struct CopyPlan {
    /// How much of the storage its file holds, in whole chunks if the file is too short.
    pub(super) length_bytes: u64,
    /// Damaged chunks in that part. No kept tensor refers to them.
    pub(super) damaged: BTreeSet<u64>,
    /// Replacements for wrong digests in the `.sum` file. The file itself is kept unchanged, because the digests of the
    /// damaged chunks are nowhere else.
    pub(super) corrected: Vec<(u64, Digest)>,
}

/// Replacements for wrong or missing digests in a `.sum` file. The record confirms them.
#[derive(Debug)]
pub(super) struct CorrectedSum {
    error: Error,
    pub(super) corrected: Vec<(u64, Digest)>,
}

/// The file that caused the loss of a tensor, and the reason.
type Reason = (PathBuf, String);

/// What can be salvaged from a damaged storage.
struct Salvageable {
    path: PathBuf,
    /// Why part of it is lost.
    reason: String,
    /// Tensors with an element in these bytes are lost.
    lost: Vec<Range<u64>>,
    copy: Option<CopyPlan>,
    /// The new length of a mutable or live storage whose file is too short.
    shortened_to: Option<u64>,
}

/// Reads all data, and decides what to keep.
pub(super) fn content(
    disk: &dyn Disk,
    paths: &StorePaths,
    source: &Source,
    repair: &mut Repair,
    progress: &mut dyn FnMut(u64),
) -> Result<Content> {
    let survey = Survey::of(&source.manifest, source.table.as_ref())?;
    let mut content = Content { is_changed: !source.is_newest, ..Content::default() };
    record_table_damage(source, &survey, &mut content, repair);
    let records = survey.storages.iter().map(|(&id, storage)| (id, &storage.record));
    content.has_lost_storages = survey.has_lost_storages();
    let mut salvageable = BTreeMap::new();
    for (id, damage) in check_all(disk, paths, records, progress)? {
        let Some(storage) = survey.storages.get(&id) else { continue };
        let found = salvage(paths, id, &storage.record, damage, &mut content.sums);
        salvageable.extend(found.map(|found| (id, found)));
    }
    let mut lost: BTreeMap<Reason, Vec<String>> = BTreeMap::new();
    let mut repeated = Vec::new();
    survey.each_tensor(|tensor| {
        match keep(paths, source, &survey, &salvageable, tensor.record) {
            Err(reason) => lost.entry(reason).or_default().push(tensor.name.to_owned()),
            Ok(record) => match content.tensors.entry(tensor.name.to_owned()) {
                Entry::Vacant(place) => drop(place.insert(record)),
                Entry::Occupied(place) => repeated.push(place.key().clone()),
            },
        }
        Ok(())
    })?;
    if let Some(table) = &source.table
        && (!repeated.is_empty() || survey.repeated_storages > 0)
    {
        let (tensors, storages) = (repeated.len(), survey.repeated_storages);
        let reason = format!(
            "repeated keys in the table, {tensors} of tensors and {storages} of storages: only the first record of \
             each is kept"
        );
        let reason = (table.path().to_path_buf(), reason);
        lost.entry(reason).or_default().append(&mut repeated);
    }
    keep_storages(paths, &survey, salvageable, &mut content, repair);
    if !source.is_newest {
        copy_overlong_storages(disk, paths, &mut content, repair)?;
    }
    for (id, sum) in &content.sums {
        let detail =
            format!("chunk digests written again, confirmed by the record: {}", detail_of(&sum.error));
        repair.remedy(paths.sum(*id), detail);
    }
    content.is_changed |= !lost.is_empty();
    repair.losses.extend(lost.into_iter().map(|((path, reason), mut names)| {
        names.sort_unstable();
        Loss { path, reason, names }
    }));
    Ok(content)
}

/// Records damage to the table. The entries of all readable leaves are kept, even if their keys are out of order.
fn record_table_damage(source: &Source, survey: &Survey<'_>, content: &mut Content, repair: &mut Repair) {
    let Some(table) = &source.table else { return };
    let path = table.path();
    if let Some((_, error)) = survey.damage.errors().next() {
        content.is_changed = true;
        let places = match survey.damage.len() {
            1 => "damaged at 1 place".to_owned(),
            count => format!("damaged at {count} places, first"),
        };
        let what = format!("{places}: {} ({})", error.detail(), error.rule());
        match survey.lost_entries() {
            (0, 0) => repair.remedy(path, format!("written again without a loss; {what}")),
            (storages, tensors) => {
                // The manifest may remove or replace some of them.
                let lost = format!("the records of up to {tensors} tensors and {storages} storages are lost");
                repair.losses.push(Loss {
                    path: path.to_path_buf(),
                    reason: format!("{lost}; {what}"),
                    names: Vec::new(),
                });
            }
        }
    }
    if let Some(detail) = survey.miscount() {
        content.is_changed = true;
        repair.remedy(path, format!("written again with the right counts: {detail}"));
    }
}

/// Returns what can be salvaged from a damaged storage, or `None` if all of it is kept unchanged. A file that could not
/// be read is not damage: then there is no repair.
fn salvage(
    paths: &StorePaths,
    id: u64,
    record: &StorageRecord,
    damage: Damage,
    sums: &mut BTreeMap<u64, CorrectedSum>,
) -> Option<Salvageable> {
    let path = paths.storage(id);
    if let Some(sum) = damage.sum {
        match sum.corrected {
            Some(corrected) => drop(sums.insert(id, CorrectedSum { error: sum.error, corrected })),
            None => {
                let reason = format!("{}; no chunk can be verified", detail_of(&sum.error));
                let (path, full) = (paths.sum(id), full_chunk_count(record.length_bytes));
                // The tail can still be verified: its digest is in the record.
                let is_tail_whole =
                    damage.file.is_none() && damage.chunks.iter().all(|chunk| chunk.index < full);
                let copy = is_tail_whole.then(|| CopyPlan {
                    length_bytes: record.length_bytes,
                    damaged: (0..full).collect(),
                    corrected: Vec::new(),
                });
                let lost = if is_tail_whole { 0..full * CHUNK_BYTES } else { 0..u64::MAX };
                let lost = std::iter::once(lost).collect();
                return Some(Salvageable { path, reason, lost, copy, shortened_to: None });
            }
        }
    }
    let salvageable =
        |reason, lost, copy, shortened_to| Salvageable { path, reason, lost, copy, shortened_to };
    let chunks = damage.chunks.iter().map(|chunk| chunk.index);
    let bytes_of_chunk = |&index: &u64| bytes_of_chunks(&(index..index + 1), record.length_bytes);
    let Some(error) = damage.file else {
        if damage.chunks.is_empty() {
            return None;
        }
        let damaged: BTreeSet<u64> = chunks.collect();
        let lost = damaged.iter().map(bytes_of_chunk).collect();
        let copy = Some(CopyPlan { length_bytes: record.length_bytes, damaged, corrected: Vec::new() });
        let reason = "elements have been changed since they were sealed".to_owned();
        return Some(salvageable(reason, lost, copy, None));
    };
    let reason = detail_of(&error);
    let past_end = |length_bytes: u64| std::iter::once(length_bytes..u64::MAX);
    let Some(found_bytes) = damage.found_bytes else {
        return Some(salvageable(reason, past_end(0).collect(), None, None));
    };
    if !matches!(record.kind, RecordKind::Sealed(_)) {
        return Some(salvageable(reason, past_end(found_bytes).collect(), None, Some(found_bytes)));
    }
    // A chunk that was cut off cannot be verified.
    let whole = full_chunk_count(found_bytes).min(full_chunk_count(record.length_bytes));
    let damaged: BTreeSet<u64> = chunks.filter(|&index| index < whole).collect();
    let length_bytes = whole * CHUNK_BYTES;
    let lost = damaged.iter().map(bytes_of_chunk).chain(past_end(length_bytes)).collect();
    let copy = Some(CopyPlan { length_bytes, damaged, corrected: Vec::new() });
    Some(salvageable(reason, lost, copy, None))
}

/// Returns the record with which a tensor is kept, or why it is lost.
fn keep(
    paths: &StorePaths,
    source: &Source,
    survey: &Survey<'_>,
    salvageable: &BTreeMap<u64, Salvageable>,
    record: &TensorRecord,
) -> Result<TensorRecord, Reason> {
    let metadata = || match &source.table {
        Some(table) => table.path().to_path_buf(),
        None => paths.manifest(source.manifest.generation),
    };
    let id = record.storage_id;
    let Some(storage) = survey.storages.get(&id) else {
        return Err((metadata(), format!("storage {id:016x} has no record")));
    };
    let length_bytes = storage.record.length_bytes;
    if let Err(e) = record.extent(length_bytes) {
        return Err((metadata(), format!("a header reaches outside its storage ({})", e.rule())));
    }
    let Some(damaged) = salvageable.get(&id) else { return Ok(record.clone()) };
    // Not limited together with other tensors, because a tensor would be lost with its limit.
    let mut steps_left = u64::MAX;
    let is_kept = match Coverage::of(record, length_bytes) {
        Some(reached) => !damaged.lost.iter().any(|range| reached.overlaps(range, &mut steps_left)),
        // A tensor without elements moves to the start of what is left, if anything is.
        None if damaged.copy.is_some() || damaged.shortened_to.is_some() => {
            return at_the_beginning(record).ok_or_else(|| (damaged.path.clone(), damaged.reason.clone()));
        }
        None => false,
    };
    is_kept.then(|| record.clone()).ok_or_else(|| (damaged.path.clone(), damaged.reason.clone()))
}

fn at_the_beginning(record: &TensorRecord) -> Option<TensorRecord> {
    let mut parts = record.clone().into_parts();
    parts.offset_elems = 0;
    TensorRecord::new(parts).ok()
}

/// Keeps the storages that have tensors, and those that had none before.
fn keep_storages(
    paths: &StorePaths,
    survey: &Survey<'_>,
    mut salvageable: BTreeMap<u64, Salvageable>,
    content: &mut Content,
    repair: &mut Repair,
) {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for record in content.tensors.values() {
        *counts.entry(record.storage_id).or_default() += 1;
    }
    for (&id, storage) in &survey.storages {
        let stated_count = storage.record.tensor_count;
        let tensor_count = counts.get(&id).copied().unwrap_or_default();
        let damaged = salvageable.remove(&id);
        content.is_changed |= damaged.is_some() || tensor_count != stated_count;
        if stated_count != storage.tensor_count && survey.damage.is_empty() {
            let detail = format!(
                "its record counts {stated_count} tensors, but it has {}: corrected",
                storage.tensor_count
            );
            repair.remedy(paths.storage(id), detail);
        }
        if tensor_count == 0 && (damaged.is_some() || storage.tensor_count > 0 || stated_count > 0) {
            content.dropped.insert(id);
            content.sums.remove(&id);
            if damaged.is_some() {
                let detail =
                    "no tensor uses this storage after the repair; its files are moved to lost+found";
                repair.remedy(paths.storage(id), detail);
            }
            continue;
        }
        let mut record = StorageRecord { tensor_count, ..storage.record.clone() };
        if let Some(damaged) = damaged {
            if let Some(length_bytes) = damaged.shortened_to {
                repair.remedy(&damaged.path, format!("{}; kept with its current length", damaged.reason));
                record.length_bytes = length_bytes;
            }
            if let Some(copy) = damaged.copy {
                let detail = format!(
                    "{}; the bytes that the remaining tensors reach are copied into a new storage",
                    damaged.reason
                );
                repair.remedy(&damaged.path, detail);
                content.plan_copy(id, copy);
            }
        }
        content.storages.insert(id, record);
    }
}

impl Content {
    /// Schedules a storage to be copied. Its `.sum` file is not changed.
    fn plan_copy(&mut self, id: u64, copy: CopyPlan) {
        let corrected = self.sums.remove(&id).map(|sum| sum.corrected).unwrap_or_default();
        self.copies.insert(id, CopyPlan { corrected, ..copy });
    }
}

/// Schedules sealed storages to be copied if their files are longer than their records. A newer generation, now
/// discarded, may have used the rest, and its readers may still borrow those bytes: the next append would overwrite
/// them, and a collection would cut them off.
fn copy_overlong_storages(
    disk: &dyn Disk,
    paths: &StorePaths,
    content: &mut Content,
    repair: &mut Repair,
) -> Result<()> {
    let sealed = content.storages.iter().filter(|(_, record)| matches!(record.kind, RecordKind::Sealed(_)));
    let sealed: Vec<(u64, u64)> = sealed.map(|(&id, record)| (id, record.length_bytes)).collect();
    for (id, length_bytes) in sealed {
        if content.copies.contains_key(&id) {
            continue;
        }
        let path = paths.storage(id);
        let found_bytes = disk.stat(&path).map_err(|e| Error::io("examine storage", &path, e))?.size_bytes;
        if found_bytes > length_bytes {
            let detail = format!(
                "the file has {found_bytes} bytes, but the record says {length_bytes}: copied into a new storage, \
                 because a process may still read the rest"
            );
            repair.remedy(path, detail);
            let (damaged, corrected) = (BTreeSet::new(), Vec::new());
            content.plan_copy(id, CopyPlan { length_bytes, damaged, corrected });
            content.readable_originals.insert(id);
        }
    }
    Ok(())
}

pub(super) fn files(paths: &StorePaths, id: u64) -> [PathBuf; 2] {
    [paths.storage(id), paths.sum(id)]
}
