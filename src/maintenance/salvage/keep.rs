//! Decides which storages and tensors of a damaged generation are kept.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::layout::Coverage;
use crate::maintenance::copy::Damaged;
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
                let damage = left.get(&id).and_then(|left| first_loss(record, storage.length_bytes, left));
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
    kept.divide_shortened()?;
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
                let why = e.to_string();
                let why = why.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&why).to_owned();
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
fn first_loss(record: &TensorRecord, length_bytes: u64, left: &Left) -> Option<(u64, Reason)> {
    // Not limited together with other tensors, because a tensor would be lost with its limit.
    let mut steps_left = u64::MAX;
    let Some(reached) = Coverage::of(&record.header, length_bytes) else {
        // A tensor without elements only needs a storage.
        let (range, reason) = left.lost.last()?;
        let has_no_place =
            range.start == 0 && range.end == u64::MAX || record.header.extent(left.length_bytes).is_err();
        return has_no_place.then(|| (range.start, Arc::clone(reason)));
    };
    let (range, reason) = left.lost.iter().find(|(range, _)| reached.overlaps(range, &mut steps_left))?;
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
    fn divide_shortened(&mut self) -> Result<()> {
        for (id, end) in std::mem::take(&mut self.shortened) {
            let (Some(record), Some(damaged)) = (self.storages.get(&id), self.damaged.get(&id)) else {
                continue;
            };
            let spans =
                |tensor: &TensorRecord| Some(Coverage::of(&tensor.header, record.length_bytes)?.span());
            let on_it = || self.tensors.iter().filter(|(_, tensor)| tensor.storage_id == id);
            let (mut behind, mut crosses) = (Vec::new(), false);
            for (name, span) in on_it().filter_map(|(name, tensor)| Some((name.clone(), spans(tensor)?))) {
                crosses |= span.start < end && span.end > end;
                behind.extend((span.start >= end).then_some(name));
            }
            if crosses || behind.is_empty() {
                continue;
            }
            let (corrected, lost) = (damaged.corrected.clone(), damaged.lost.clone());
            let record = record.clone();
            let Some(new_id) = (1..).find(|id| !self.storages.contains_key(id)) else { continue };
            self.damaged.insert(new_id, Damaged { file_id: id, corrected, lost, is_mark_lost: false });
            self.storages.insert(new_id, record);
            for name in behind {
                if let Some(tensor) = self.tensors.get_mut(&name) {
                    tensor.storage_id = new_id;
                }
            }
        }
        Ok(())
    }
}
