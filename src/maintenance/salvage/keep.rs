//! Decides which storages and tensors of a damaged generation are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{
    CHUNK_BYTES, Digest, Header, RecordKind, StorageRecord, TensorRecord, full_chunk_count,
};

use super::newest::Newest;
use super::{Loss, reason_of};
use crate::disk::StorePaths;
use crate::error::{ErrorKind, Result};
use crate::generation::OpenStore;
use crate::layout::{Coverage, MAX_STEPS_TOGETHER};
use crate::maintenance::copy::Damaged;
use crate::maintenance::external_check::detail_of;
use crate::maintenance::verify::{Damage, Files, Survey, bytes_of_chunks, check_all};
use crate::storage::{Unreadable, is_interrupted};

/// The storages and tensors that are kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) storages: BTreeMap<u64, StorageRecord>,
    pub(super) tensors: BTreeMap<String, TensorRecord>,
    pub(super) damaged: BTreeMap<u64, Damaged>,
    /// The mutable storages whose change was interrupted, or may have been.
    pub(super) interrupted: BTreeSet<u64>,
    /// The growable storages that lost their last rows, each with the end of the rows that are left.
    shortened: BTreeMap<u64, u64>,
}

/// A damaged file, and what is wrong with it.
type Reason = Arc<(PathBuf, String)>;

/// What is left of a damaged storage.
#[derive(Default)]
struct Left {
    /// The bytes that are lost, in ascending order, and why.
    lost: Vec<(Range<u64>, Reason)>,
    /// Replacements for wrong digests in the `.sum` file. The record confirms them.
    corrected: Vec<(u64, Digest)>,
    length_bytes: u64,
    /// Whether the mark of a mutable storage says that a change of it was interrupted.
    is_interrupted: bool,
    /// Whether the mark of a mutable storage cannot be read.
    is_mark_lost: bool,
}

impl Left {
    fn of(paths: &StorePaths, id: u64, record: &StorageRecord, damage: Damage) -> Self {
        let path = paths.storage(id);
        let (length_bytes, full) = (record.length_bytes, full_chunk_count(record.length_bytes));
        let mut left = Left { length_bytes, ..Left::default() };
        match damage.sum.map(|sum| (sum.corrected, sum.error)) {
            Some((Some(corrected), _)) => left.corrected = corrected,
            Some((None, error)) => {
                let why = format!("{}; no chunk can be verified", reason_of(&error));
                // The tail can still be verified: its digest is in the record.
                left.lose(0..full * CHUNK_BYTES, Arc::new((paths.sum(id), why)));
            }
            None => {}
        }
        let changed = Arc::new((path.clone(), "elements have been changed since they were saved".to_owned()));
        for chunk in damage.chunks {
            let why = match chunk.found {
                Ok(_) => Arc::clone(&changed),
                Err(e) => Arc::new((path.clone(), reason_of(&e))),
            };
            left.lose(bytes_of_chunks(&(chunk.index..chunk.index + 1), length_bytes), why);
        }
        if let Some(error) = damage.file {
            let found_bytes = damage.found_bytes.unwrap_or_default().min(length_bytes);
            let kept_bytes = match record.kind {
                // A chunk that was cut off cannot be verified.
                RecordKind::Sealed(_) => full_chunk_count(found_bytes) * CHUNK_BYTES,
                _ => found_bytes,
            };
            if !matches!(record.kind, RecordKind::Sealed(_)) {
                left.length_bytes = kept_bytes;
            }
            // The mark is the last byte, so whatever is cut off, it is lost.
            left.is_mark_lost = record.kind == RecordKind::Mutable;
            let has_all_bytes = damage.found_bytes.is_some_and(|found_bytes| found_bytes >= length_bytes);
            if !has_all_bytes {
                left.lose(kept_bytes..u64::MAX, Arc::new((path, reason_of(&error))));
            }
        }
        left
    }

    fn nothing(path: PathBuf, why: String) -> Self {
        Left { lost: vec![(0..u64::MAX, Arc::new((path, why)))], ..Left::default() }
    }

    fn lose(&mut self, range: Range<u64>, why: Reason) {
        match self.lost.last_mut() {
            Some((last, reason)) if last.end == range.start && *reason == why => last.end = range.end,
            _ => self.lost.push((range, why)),
        }
    }
}

/// Reads all data of a generation, and decides what to keep. Adds what is lost.
pub(super) fn keep(
    store: &OpenStore,
    source: &Newest,
    losses: &mut Vec<Loss>,
    progress: &mut dyn FnMut(u64),
) -> Result<Kept> {
    let survey = Survey::of(&source.manifest, source.table.as_ref(), Unreadable::Skip)?;
    let metadata = source
        .table
        .as_ref()
        .map_or_else(|| store.paths.manifest(source.manifest.generation), |table| table.path().to_path_buf());
    let (storages, tensors) = survey.lost_entries();
    if storages + tensors > 0 {
        let what = survey.damage.errors().next().map(|(_, error)| reason_of(&error));
        let what = what.unwrap_or_else(|| "it has fewer than its manifest says".to_owned());
        // The manifest may remove or replace some of them.
        let lost =
            format!("the headers of up to {tensors} tensors and the records of up to {storages} storages");
        losses.push(Loss::of_metadata(metadata.clone(), format!("{lost} are lost: {what}")));
    }
    let left = what_is_left(store, &survey, progress)?;
    let mut kept = Kept::default();
    // As in a verification: once no steps are left, a tensor counts as reaching everything between its first byte and
    // its last. A single one cannot use up those of the others.
    let mut all_steps_left = MAX_STEPS_TOGETHER;
    survey.each_tensor(|tensor| {
        let (name, record, id) = (tensor.name, tensor.record, tensor.record.storage_id);
        let mut lose = |path: &Path, reason: String, lost_bytes| {
            losses.push(Loss { name: Some(name.to_owned()), path: path.to_path_buf(), reason, lost_bytes });
        };
        let storage = survey.storages.get(&id).map(|storage| &storage.record);
        let broken = storage.and_then(|storage| record.header.extent(storage.length_bytes).err());
        let unusable = match (storage, broken) {
            _ if kept.tensors.contains_key(name) => {
                "the name is repeated; its first header is used".to_owned()
            }
            (_, Some(e)) => format!("its header reaches outside its storage ({})", e.rule()),
            (None, _) => format!("no record of storage {id:016x} can be read"),
            (Some(storage), None) => {
                let own_steps = all_steps_left.min(MAX_STEPS_TOGETHER / 100);
                let mut steps_left = own_steps;
                let damage = left
                    .get(&id)
                    .and_then(|left| first_loss(record, storage.length_bytes, left, &mut steps_left));
                all_steps_left -= own_steps - steps_left;
                let rows = damage.as_ref().and_then(|(at, _)| rows_before(record, storage, *at));
                if let Some((_, reason)) = &damage {
                    let kept_bytes = rows.as_ref().map_or(0, bytes_of);
                    let count = rows.as_ref().and_then(|rows| rows.header.size().first());
                    let rest =
                        count.map_or(String::new(), |count| format!("; its first {count} rows are kept"));
                    lose(
                        &reason.0,
                        format!("{}{rest}", reason.1),
                        bytes_of(record).saturating_sub(kept_bytes),
                    );
                }
                if let Some(rows) = &rows {
                    let start = (rows.header.storage_offset() * rows.header.dtype().itemsize()) as u64;
                    kept.shortened.insert(id, start + bytes_of(rows));
                }
                let whole = damage.is_none().then(|| record.clone());
                kept.tensors.extend(rows.or(whole).map(|record| (name.to_owned(), record)));
                return Ok(());
            }
        };
        lose(&metadata, unusable, bytes_of(record));
        Ok(())
    })?;
    let used: BTreeSet<u64> = kept.tensors.values().map(|record| record.storage_id).collect();
    for id in used {
        let Some(storage) = survey.storages.get(&id) else { continue };
        let mut record = storage.record.clone();
        if let Some(left) = left.get(&id) {
            record.length_bytes = left.length_bytes;
            let (corrected, lost) =
                (left.corrected.clone(), left.lost.iter().map(|(range, _)| range.clone()));
            let is_mark_lost = left.is_mark_lost;
            if left.is_interrupted || is_mark_lost {
                kept.interrupted.insert(id);
            }
            kept.damaged.insert(id, Damaged { file_id: id, corrected, lost: lost.collect(), is_mark_lost });
        }
        kept.storages.insert(id, record);
    }
    kept.divide_shortened();
    Ok(kept)
}

/// Reads all storages. Returns what is left of those that are damaged, or whose last change was interrupted.
fn what_is_left(
    store: &OpenStore,
    survey: &Survey<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<BTreeMap<u64, Left>> {
    let records = || survey.storages.iter().map(|(&id, storage)| (id, &storage.record));
    let files = Files { disk: &*store.disk, paths: &store.paths, unreadable: Unreadable::Skip };
    let mut left = BTreeMap::new();
    for (id, damage) in check_all(&files, records(), progress)? {
        let Some(storage) = survey.storages.get(&id) else { continue };
        left.insert(id, Left::of(&store.paths, id, &storage.record, damage));
    }
    for (id, record) in records() {
        let whole = || Left { length_bytes: record.length_bytes, ..Left::default() };
        match is_interrupted(files.disk, &store.paths.storage(id), record) {
            Ok(false) => {}
            Ok(true) => left.entry(id).or_insert_with(whole).is_interrupted = true,
            Err(e) if Unreadable::Skip.skips(&e) => left.entry(id).or_insert_with(whole).is_mark_lost = true,
            Err(e) => return Err(e),
        }
        let RecordKind::External(external) = &record.kind else { continue };
        match store.externals.open(external) {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotAllowed | ErrorKind::ExternalChanged) => {
                let path = store.externals.path(external);
                let why = detail_of(&path, &e);
                left.insert(id, Left::nothing(path, why));
            }
            Err(e) if Unreadable::Skip.skips(&e) => {
                left.insert(id, Left::nothing(store.externals.path(external), reason_of(&e)));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(left)
}

/// Returns the first byte of a tensor that is lost, and why. Returns `None` if it is whole.
fn first_loss(
    record: &TensorRecord,
    length_bytes: u64,
    left: &Left,
    steps_left: &mut u64,
) -> Option<(u64, Reason)> {
    let Some(reached) = Coverage::of(&record.header, length_bytes) else {
        // A tensor without elements only needs a storage.
        let (range, reason) = left.lost.last()?;
        let has_no_place =
            range.start == 0 && range.end == u64::MAX || record.header.extent(left.length_bytes).is_err();
        return has_no_place.then(|| (range.start, Arc::clone(reason)));
    };
    let mut near = reached.near(&left.lost).iter();
    let (range, reason) = near.find(|(range, _)| reached.overlaps(range, steps_left))?;
    if *steps_left == 0 {
        let why = format!("{}; whether the tensor reaches it takes too long to find out", reason.1);
        return Some((range.start, Arc::new((reason.0.clone(), why))));
    }
    Some((range.start, Arc::clone(reason)))
}

/// Returns the header of the whole rows of a growable tensor that end before a byte of its storage, if there are any.
fn rows_before(record: &TensorRecord, storage: &StorageRecord, lost_from: u64) -> Option<TensorRecord> {
    let RecordKind::Sealed(sealed) = &storage.kind else { return None };
    let header = &record.header;
    let start = header.storage_offset().checked_mul(header.dtype().itemsize())? as u64;
    let is_growable = sealed.reserved_bytes > 0
        && header.is_contiguous()
        && start.checked_add(bytes_of(record))? == storage.length_bytes;
    let row_count = *header.size().first().filter(|_| is_growable)?;
    let row_bytes = bytes_of(record).checked_div(row_count as u64)?;
    let kept_count = lost_from.checked_sub(start)?.checked_div(row_bytes).filter(|&count| count > 0)?;
    let mut size = header.size().to_vec();
    *size.first_mut()? = kept_count as usize;
    let rows = Header::new(header.dtype(), size, header.stride(), header.storage_offset()).ok()?;
    let names = header.dim_names().unwrap_or_default().iter().cloned();
    let header = rows.with_dim_names(names).ok()?.into();
    Some(TensorRecord { header, storage_id: record.storage_id })
}

/// Returns the size of a tensor's elements in bytes.
fn bytes_of(record: &TensorRecord) -> u64 {
    record.header.nbytes() as u64
}

impl Kept {
    /// Moves the tensors behind the rows that are kept to a storage of their own, so that rows can be appended again.
    /// They share no byte with these rows.
    fn divide_shortened(&mut self) {
        let shortened = mem::take(&mut self.shortened);
        let behind = names_behind(&shortened, &self.storages, self.tensors.iter());
        let new_ids: Vec<u64> = free_ids(self.storages.keys().copied()).take(behind.len()).collect();
        for ((id, names), new_id) in behind.into_iter().zip(new_ids) {
            let (Some(record), Some(damaged)) = (self.storages.get(&id), self.damaged.get(&id)) else {
                continue;
            };
            let (corrected, lost) = (damaged.corrected.clone(), damaged.lost.clone());
            let record = record.clone();
            self.damaged.insert(new_id, Damaged { file_id: id, corrected, lost, is_mark_lost: false });
            self.storages.insert(new_id, record);
            for name in names {
                if let Some(tensor) = self.tensors.get_mut(&name) {
                    tensor.storage_id = new_id;
                }
            }
        }
    }
}

/// Returns the tensors behind the ends of the rows that shortened storages keep, by storage. Leaves out a storage with a
/// tensor that reaches both sides of its end.
fn names_behind<'a>(
    ends: &BTreeMap<u64, u64>,
    storages: &BTreeMap<u64, StorageRecord>,
    tensors: impl Iterator<Item = (&'a String, &'a TensorRecord)>,
) -> BTreeMap<u64, Vec<String>> {
    let (mut behind, mut crossed) = (BTreeMap::<u64, Vec<String>>::new(), BTreeSet::new());
    for (name, tensor) in tensors {
        let id = tensor.storage_id;
        let (Some(&end), Some(storage)) = (ends.get(&id), storages.get(&id)) else { continue };
        let Some(reached) = Coverage::of(&tensor.header, storage.length_bytes) else { continue };
        let span = reached.span();
        if span.start >= end {
            behind.entry(id).or_default().push(name.clone());
        } else if span.end > end {
            crossed.insert(id);
        }
    }
    behind.retain(|id, _| !crossed.contains(id));
    behind
}

/// Returns the ids that are not used, given those that are, in ascending order.
fn free_ids(used: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut used = used.peekable();
    (1..).filter(move |id| used.next_if_eq(id).is_none())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use stridemap_format::DType;

    use super::*;

    fn tensor(storage_id: u64, size: &[usize], stride: &[isize], offset: usize) -> TensorRecord {
        let header = Header::new(DType::U8, size, stride, offset).unwrap();
        TensorRecord { header: header.into(), storage_id }
    }

    #[test]
    fn hostile_views_share_their_steps() {
        let strides: Vec<isize> = (0..40).map(|i: isize| (1 << 35) + i * i * 7_919_003 + 1).collect();
        let (hostile, length_bytes) = (tensor(1, &[2; 40], &strides, 0), 1 << 50);
        let why: Reason = Arc::new((PathBuf::new(), String::new()));
        // Each of them is between two elements.
        let lost = (1..10_000u64).map(|i| (i << 21..(i << 21) + 1, Arc::clone(&why))).collect();
        let left = Left { lost, length_bytes, ..Left::default() };
        let mut steps_left = 3_000_000;
        let mut found_at = Vec::new();
        for _ in 0..1000 {
            found_at.push(first_loss(&hostile, length_bytes, &left, &mut steps_left).map(|(at, _)| at));
        }
        assert_eq!(steps_left, 0);
        // Without steps, the first lost byte between its first byte and its last is taken for one of it.
        assert_eq!(found_at.last(), Some(&Some(1 << 21)));
        // A tensor without gaps needs none.
        let whole = tensor(1, &[1 << 20], &[1], (5 << 21) + 1);
        assert!(first_loss(&whole, length_bytes, &left, &mut steps_left).is_none());
        let damaged = tensor(1, &[1 << 20], &[1], 5 << 21);
        assert_eq!(
            first_loss(&damaged, length_bytes, &left, &mut steps_left).map(|(at, _)| at),
            Some(5 << 21)
        );
    }

    #[test]
    fn each_tensor_and_each_id_is_visited_once_to_divide_shortened_storages() {
        const COUNT: u64 = 20_000;
        let mut kept = Kept::default();
        for id in (1..=COUNT).map(|i| 2 * i - 1) {
            let record = StorageRecord {
                length_bytes: 100,
                tensor_count: 3,
                kind: RecordKind::Mutable,
                is_restored: false,
            };
            kept.storages.insert(id, record);
            kept.damaged.insert(id, Damaged { file_id: id, ..Damaged::default() });
            kept.shortened.insert(id, 50);
            kept.tensors.insert(format!("rows {id}"), tensor(id, &[50], &[1], 0));
            kept.tensors.insert(format!("behind {id}"), tensor(id, &[10], &[1], 60));
            // Every tenth storage cannot be divided.
            let size = if id % 10 == 9 { [20] } else { [10] };
            kept.tensors.insert(format!("other {id}"), tensor(id, &size, &[1], 40));
        }
        let visits = Cell::new(0);
        let visited = kept.tensors.iter().inspect(|_| visits.set(visits.get() + 1));
        assert_eq!(names_behind(&kept.shortened, &kept.storages, visited).len() as u64, COUNT / 5 * 4);
        assert_eq!(visits.take(), kept.tensors.len());
        let used = kept.storages.keys().copied().inspect(|_| visits.set(visits.get() + 1));
        assert_eq!(free_ids(used).nth(COUNT as usize), Some(2 * COUNT + 1));
        assert_eq!(visits.take(), kept.storages.len());

        kept.divide_shortened();
        assert_eq!(kept.storages.len() as u64, COUNT + COUNT / 5 * 4);
        let id_of = |name: &str, id: u64| kept.tensors[&format!("{name} {id}")].storage_id;
        let mut new_ids = BTreeSet::new();
        for id in (1..=COUNT).map(|i| 2 * i - 1) {
            let new_id = id_of("behind", id);
            assert_eq!([id_of("rows", id), id_of("other", id)], [id; 2]);
            assert_eq!((new_id == id, kept.damaged[&new_id].file_id), (id % 10 == 9, id));
            assert!(new_ids.insert(new_id));
        }
    }
}
