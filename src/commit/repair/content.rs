//! What of a store's content stays, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use stridemap_format::{CHUNK_BYTES, Digest, StorageKind, StorageRecord, TensorRecord, full_chunk_count};

use super::losses::Losses;
use super::metadata::Source;
use super::{Loss, Repair};
use crate::commit::verify::{Mended, Survey, bytes_of_chunks};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, Result};
use crate::layout::Touch;
use crate::storage::{Harm, check_all};

/// The storages and tensors that stay.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) storages: BTreeMap<u64, StorageRecord>,
    pub(super) tensors: BTreeMap<String, TensorRecord>,
    /// Of these storages what their tensors reach is copied into another, because their files are damaged elsewhere.
    pub(super) copies: BTreeMap<u64, Copy>,
    /// Of these copies the old file is whole: readers of older generations may go on with it.
    pub(super) outgrown: BTreeSet<u64>,
    /// Of these the chunk digests are written again: the wrong ones, and what they are.
    pub(super) sums: BTreeMap<u64, Vec<(u64, Digest)>>,
    /// These are needed no more: their files are moved away.
    pub(super) dropped: BTreeSet<u64>,
    /// Whether there is a storage of which nothing is known but perhaps its file.
    pub(super) has_lost_storages: bool,
    /// Whether the metadata must say something else than it does.
    pub(super) is_changed: bool,
}

/// What of a damaged storage can be read.
#[derive(Debug)]
pub(super) struct Copy {
    /// How much of it is in its file, in whole chunks when the file is short.
    pub(super) length_bytes: u64,
    /// Chunks of that which no tensor that stays reaches.
    pub(super) damaged: BTreeSet<u64>,
    /// Digests of others that are wrong in the `.sum` file, which stays as it is: what it says of the damaged ones is
    /// nowhere else.
    pub(super) right: Vec<(u64, Digest)>,
}

/// Why a tensor cannot stay.
type Reason = (PathBuf, String);

/// What a damaged storage still serves.
struct Rest {
    path: PathBuf,
    /// Why it does not serve all.
    reason: String,
    /// None of those that have an element here stays.
    lost: Vec<Range<u64>>,
    copy: Option<Copy>,
    /// A mutable or live storage, of which this much is there.
    shortened_to: Option<u64>,
}

/// Reads all data, and decides.
pub(super) fn content(
    disk: &dyn Disk,
    paths: &StorePaths,
    source: &Source,
    repair: &mut Repair,
    progress: &mut dyn FnMut(u64),
) -> Result<Content> {
    let survey = Survey::of(&source.manifest, source.table.as_ref())?;
    let mut content = Content { is_changed: !source.is_newest_whole, ..Content::default() };
    entries(source, &survey, &mut content, repair);
    let own = survey.storages.iter().map(|(&id, standing)| (id, &standing.record));
    let own = own.filter(|(_, record)| !matches!(record.kind, StorageKind::External(_)));
    content.has_lost_storages = survey.has_lost_storages();
    let mut rests = BTreeMap::new();
    for (id, harm) in check_all(disk, paths, own.collect(), progress)? {
        let Some(standing) = survey.storages.get(&id) else { continue };
        rests.extend(rest(paths, id, &standing.record, harm, &mut content, repair)?.map(|rest| (id, rest)));
    }
    let mut losses = Losses::default();
    survey.each_tensor(|tensor| {
        match keep(paths, source, &survey, &rests, tensor.record) {
            Err((path, reason)) => losses.add(&path, &reason, tensor.name),
            Ok(record) => drop(content.tensors.insert(tensor.name.to_owned(), record)),
        }
        Ok(())
    })?;
    storages(paths, &survey, rests, &mut content, repair);
    if !source.is_newest {
        outgrown(disk, paths, &mut content, repair)?;
    }
    let before = repair.losses.len();
    repair.losses.extend(losses.finish());
    content.is_changed |= repair.losses.len() > before;
    Ok(content)
}

/// What is wrong with the table's entries.
fn entries(source: &Source, survey: &Survey<'_>, content: &mut Content, repair: &mut Repair) {
    let Some(table) = &source.table else { return };
    let path = table.path();
    for (ordinal, broken) in &survey.broken {
        content.is_changed = true;
        let detail = broken.error.broken().map_or(String::new(), |broken| broken.detail().to_owned());
        match &broken.mended {
            Some(Mended::Storage(id)) => repair.remedy(
                path,
                format!("entry {ordinal}, storage {id:016x}: mended, its checksum confirms it: {detail}"),
            ),
            Some(Mended::Tensor(name, _)) => repair.remedy(
                path,
                format!("entry {ordinal}, tensor {name:?}: mended, its checksum confirms it: {detail}"),
            ),
            None => {
                let what = if table.storages().contains(ordinal) { "storage" } else { "tensor" };
                let reason = format!("entry {ordinal} cannot be read, a {what}, and is given up: {detail}");
                repair.losses.push(Loss { path: path.to_path_buf(), reason, names: Vec::new() });
            }
        }
    }
    if let Some(first) = survey.unordered.first() {
        content.is_changed = true;
        repair.remedy(path, format!("entries put in order, from entry {first} on"));
    }
    if survey.broken.is_empty() && table.check_index().is_err() {
        content.is_changed = true;
        repair.remedy(path, "the index is written again");
    }
}

/// What stays of a storage; none when all of it does.
fn rest(
    paths: &StorePaths,
    id: u64,
    record: &StorageRecord,
    harm: Harm,
    content: &mut Content,
    repair: &mut Repair,
) -> Result<Option<Rest>> {
    let path = paths.storage(id);
    if let Some(sum) = &harm.sum {
        match &sum.right {
            // What the system refuses, it may grant another time: nothing is given up for it.
            _ if sum.error.broken().is_none() => return Err(sum.error.clone()),
            Some(right) => {
                let detail =
                    format!("chunk digests written again, their record confirms them: {}", said(&sum.error));
                repair.remedy(paths.sum(id), detail);
                content.sums.insert(id, right.clone());
            }
            None => {
                let reason = format!("{}; no chunk can be told to be whole", said(&sum.error));
                let (path, full) = (paths.sum(id), full_chunk_count(record.length_bytes));
                // But the tail, whose digest is in the record.
                let is_tail_whole = harm.file.is_none() && harm.chunks.iter().all(|chunk| chunk.index < full);
                let (lost, copy) = match is_tail_whole {
                    true => (
                        std::iter::once(0..full * CHUNK_BYTES).collect(),
                        Some(Copy {
                            length_bytes: record.length_bytes,
                            damaged: (0..full).collect(),
                            right: Vec::new(),
                        }),
                    ),
                    false => (all_of_it(), None),
                };
                return Ok(Some(Rest { path, reason, lost, copy, shortened_to: None }));
            }
        }
    }
    let Some(error) = &harm.file else {
        if harm.chunks.is_empty() {
            return Ok(None);
        }
        let damaged: BTreeSet<u64> = harm.chunks.iter().map(|chunk| chunk.index).collect();
        let lost =
            damaged.iter().map(|&index| bytes_of_chunks(&(index..index + 1), record.length_bytes)).collect();
        let copy = Some(Copy { length_bytes: record.length_bytes, damaged, right: Vec::new() });
        let reason = "elements were changed since they were sealed".to_owned();
        return Ok(Some(Rest { path, reason, lost, copy, shortened_to: None }));
    };
    if error.broken().is_none() {
        return Err(error.clone());
    }
    let reason = said(error);
    let Some(found_bytes) = harm.found_bytes else {
        return Ok(Some(Rest { path, reason, lost: all_of_it(), copy: None, shortened_to: None }));
    };
    if !matches!(record.kind, StorageKind::Sealed(_)) {
        let lost = std::iter::once(found_bytes..u64::MAX).collect();
        return Ok(Some(Rest { path, reason, lost, copy: None, shortened_to: Some(found_bytes) }));
    }
    // The chunk that was cut has no digest to be checked by.
    let whole = full_chunk_count(found_bytes).min(full_chunk_count(record.length_bytes));
    let damaged: BTreeSet<u64> =
        harm.chunks.iter().map(|chunk| chunk.index).filter(|&index| index < whole).collect();
    let in_front = damaged.iter().map(|&index| bytes_of_chunks(&(index..index + 1), record.length_bytes));
    let length_bytes = whole * CHUNK_BYTES;
    let lost = in_front.chain(std::iter::once(length_bytes..u64::MAX)).collect();
    let copy = Some(Copy { length_bytes, damaged, right: Vec::new() });
    Ok(Some(Rest { path, reason, lost, copy, shortened_to: None }))
}

/// The record with which a tensor stays, or why it cannot.
fn keep(
    paths: &StorePaths,
    source: &Source,
    survey: &Survey<'_>,
    rests: &BTreeMap<u64, Rest>,
    record: &TensorRecord,
) -> Result<TensorRecord, Reason> {
    let metadata = || match &source.table {
        Some(table) => table.path().to_path_buf(),
        None => paths.manifest(source.manifest.generation),
    };
    let id = record.storage_id;
    let Some(standing) = survey.storages.get(&id) else {
        return Err((metadata(), format!("storage {id:016x} has no record")));
    };
    if let Err(e) = record.extent(standing.record.length_bytes) {
        return Err((metadata(), format!("a header reaches outside its storage ({})", e.rule())));
    }
    let Some(rest) = rests.get(&id) else { return Ok(record.clone()) };
    let Some(touch) = Touch::of(record, standing.record.length_bytes) else {
        // Nobody reads it; it stands at the beginning of what is there, when anything is.
        return match rest.copy.is_some() || rest.shortened_to.is_some() {
            true => at_the_beginning(record).ok_or_else(|| (rest.path.clone(), rest.reason.clone())),
            false => Err((rest.path.clone(), rest.reason.clone())),
        };
    };
    if rest.lost.iter().any(|range| touch.reaches(range)) {
        return Err((rest.path.clone(), rest.reason.clone()));
    }
    Ok(record.clone())
}

fn at_the_beginning(record: &TensorRecord) -> Option<TensorRecord> {
    let mut parts = record.clone().into_parts();
    parts.offset_elems = 0;
    TensorRecord::new(parts).ok()
}

/// The records of the storages that somebody still stands on.
fn storages(
    paths: &StorePaths,
    survey: &Survey<'_>,
    mut rests: BTreeMap<u64, Rest>,
    content: &mut Content,
    repair: &mut Repair,
) {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for record in content.tensors.values() {
        *counts.entry(record.storage_id).or_default() += 1;
    }
    for (&id, standing) in &survey.storages {
        let tensor_count = counts.get(&id).copied().unwrap_or_default();
        let rest = rests.remove(&id);
        content.is_changed |= rest.is_some() || tensor_count != standing.record.tensor_count;
        if standing.record.tensor_count != standing.tensor_count && !survey.has_lost_entries() {
            let detail = format!(
                "its record counts {} tensors, and {} stand on it: counted again",
                standing.record.tensor_count, standing.tensor_count
            );
            repair.remedy(paths.storage(id), detail);
        }
        if tensor_count == 0
            && (rest.is_some() || standing.tensor_count > 0 || standing.record.tensor_count > 0)
        {
            drop_storage(paths, id, rest.is_some(), content, repair);
            continue;
        }
        let mut record = StorageRecord { tensor_count, ..standing.record.clone() };
        if let Some(rest) = rest {
            if let Some(length_bytes) = rest.shortened_to {
                repair.remedy(&rest.path, format!("{}; kept with the length that it has", rest.reason));
                record.length_bytes = length_bytes;
            }
            if let Some(copy) = rest.copy {
                let detail =
                    format!("{}; what other tensors reach is copied into a new storage", rest.reason);
                repair.remedies.retain(|remedy| remedy.path != paths.sum(id));
                repair.remedy(&rest.path, detail);
                let right = content.sums.remove(&id).unwrap_or_default();
                content.copies.insert(id, Copy { right, ..copy });
            }
        }
        content.storages.insert(id, record);
    }
}

/// Has sealed storages copied that are longer than their records. A generation that is given up may have had longer ones,
/// and what it lent must stay as it is: the next append would write over it, and a collection cut it off.
fn outgrown(disk: &dyn Disk, paths: &StorePaths, content: &mut Content, repair: &mut Repair) -> Result<()> {
    for (&id, record) in &content.storages {
        let is_sealed = matches!(record.kind, StorageKind::Sealed(_));
        if !is_sealed || content.copies.contains_key(&id) {
            continue;
        }
        let path = paths.storage(id);
        let found_bytes = disk.stat(&path).map_err(|e| Error::io("look at storage", &path, e))?.size_bytes;
        if found_bytes > record.length_bytes {
            let detail = format!(
                "{found_bytes} bytes, where the record says {}: copied into a new storage, because a process may still \
                 read the rest",
                record.length_bytes
            );
            repair.remedies.retain(|remedy| remedy.path != paths.sum(id));
            repair.remedy(path, detail);
            let right = content.sums.remove(&id).unwrap_or_default();
            let copy = Copy { length_bytes: record.length_bytes, damaged: BTreeSet::new(), right };
            content.copies.insert(id, copy);
            content.outgrown.insert(id);
        }
    }
    Ok(())
}

fn drop_storage(paths: &StorePaths, id: u64, is_damaged: bool, content: &mut Content, repair: &mut Repair) {
    content.dropped.insert(id);
    content.sums.remove(&id);
    if is_damaged {
        repair.remedies.retain(|remedy| remedy.path != paths.sum(id));
        repair
            .remedy(paths.storage(id), "nothing stands on it any more; what is there is kept in lost+found");
    }
}

fn said(error: &Error) -> String {
    error.broken().map_or_else(|| error.to_string(), |broken| broken.detail().to_owned())
}

/// The names of a storage's files.
pub(super) fn files(paths: &StorePaths, id: u64) -> [PathBuf; 2] {
    [paths.storage(id), paths.sum(id)]
}

/// What is lost of a storage of which nothing can be told.
fn all_of_it() -> Vec<Range<u64>> {
    std::iter::once(0..u64::MAX).collect()
}
