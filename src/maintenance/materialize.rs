use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{External, StorageKind};

use super::compact::{PROGRESS_BYTES, relocation, repacked};
use super::compact_candidates::{Candidate, Candidates};
use super::storage_tensors::{StorageTensors, each_external, storages_named};
use super::{SkipReason, Skipped};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Change, Changes, Draft, Generation, History, OnExisting, check_ids_left, publish_taking,
};
use crate::layout::Repacked;
use crate::storage::{Externals, StagedStorage, StorageWriter};

/// How much of a file is held in memory at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// What [`Store::materialize`](crate::Store::materialize) did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Materialized {
    /// The number of external storages that were copied into the store.
    pub storage_count: u64,
    /// The total length of the new storages in bytes: the bytes that were copied, and up to 63 of padding between
    /// some of them.
    pub size_bytes: u64,
    /// The storages that stayed external, and why.
    pub skipped: Vec<Skipped>,
}

/// Copies what tensors refer to in external storages to sealed storages of the store.
///
/// `progress` is called with the bytes written since the last call.
pub(crate) fn materialize(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Materialized> {
    history.watched(materialize_all(history, progress))
}

fn materialize_all(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Materialized> {
    history.check_poison()?;
    let externals = Externals::new(&history.disk, history.paths.root(), history.options.externals);
    let mut candidates = Vec::new();
    each_external(&*history.newest()?, |standing| {
        let StorageTensors { id, record, .. } = &standing;
        // Checked before any byte is copied: one file that may not be read fails the whole call.
        if let StorageKind::External(external) = &record.kind {
            externals.open(external).map_err(refused)?;
        }
        let new_bytes = repacked(history, &standing)?.length_bytes;
        let (length_bytes, tensor_count) = (record.length_bytes, record.tensor_count);
        candidates.push(Candidate { id: *id, length_bytes, new_bytes, tensor_count, names: None });
        Ok(())
    })?;
    let mut rest = Candidates::new(candidates);
    let mut done = Materialized::default();
    while !rest.is_empty() {
        let newest = history.newest()?;
        let group = rest.next_group(&newest)?;
        materialize_some(history, &externals, (newest, group), progress, &mut done)?;
    }
    done.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(done)
}

/// Copies a group of storages in one commit.
fn materialize_some(
    history: &History,
    externals: &Externals,
    (newest, group): (Arc<Generation>, VecDeque<Candidate>),
    progress: &mut dyn FnMut(u64),
    done: &mut Materialized,
) -> Result<()> {
    check_ids_left(&newest)?;
    let names = group.iter().map(|candidate| (candidate.id, candidate.names.as_deref().unwrap_or_default()));
    let mut standings = storages_named(&newest, names)?;
    let (mut changes, mut staged, mut moved) = (Changes::default(), Vec::new(), Vec::new());
    for candidate in group {
        let Some(standing) = standings.remove(&candidate.id) else { continue };
        let StorageKind::External(external) = standing.record.kind.clone() else { continue };
        if standing.tensors.len() as u64 != standing.record.tensor_count {
            done.skip(candidate.id);
            continue;
        }
        let repacked = standing.repacked(history)?;
        staged.push(copy(history, externals, &external, &repacked, progress).map_err(refused)?);
        moved.push((candidate.id, repacked.length_bytes));
        let new_id = Changes::provisional_id(staged.len() - 1);
        let relocation = relocation(standing, repacked, new_id)?;
        changes.names.push((Change::Move(relocation), OnExisting::Replace));
    }
    if changes.is_empty() {
        return Ok(());
    }
    let mut draft = Draft::new(newest);
    for (change, on_existing) in &changes.names {
        draft.apply(change, *on_existing)?;
    }
    let (_, taken) = publish_taking(history, &changes, draft, staged, Vec::new())?;
    for (index, (id, size_bytes)) in moved.into_iter().enumerate() {
        if taken.contains(&index) {
            done.storage_count += 1;
            done.size_bytes += size_bytes;
        } else {
            done.skip(id);
        }
    }
    Ok(())
}

/// Copies the kept ranges of a file to a staged storage. Each read, including the last, is followed by a check that
/// the file is still the one that was adopted.
fn copy(
    history: &History,
    externals: &Externals,
    external: &External,
    repacked: &Repacked,
    progress: &mut dyn FnMut(u64),
) -> Result<StagedStorage> {
    let file = externals.open(external)?;
    let mut writer = StorageWriter::sealed(&history.disk, &history.paths)?;
    writer.reserve(repacked.length_bytes)?;
    let (mut piece, mut pending_bytes) = (Vec::new(), 0);
    repacked.each_move(&mut |range: Range<u64>, new_start| {
        writer.pad_to(new_start)?;
        let mut at = range.start;
        while at < range.end {
            let piece_bytes = (range.end - at).min(PIECE_BYTES);
            piece.resize(piece_bytes as usize, 0);
            file.read_exact_at(&mut piece, external.offset_bytes + at)?;
            writer.write(&piece)?;
            at += piece_bytes;
            pending_bytes += piece_bytes;
            if pending_bytes >= PROGRESS_BYTES {
                progress(std::mem::take(&mut pending_bytes));
            }
        }
        Ok::<_, Error>(())
    })?;
    progress(pending_bytes);
    writer.finish(&history.disk, &history.paths, history.is_durable())
}

fn refused(e: Error) -> Error {
    match e.kind() {
        ErrorKind::ExternalRefused | ErrorKind::ExternalChanged => e.context("materialize"),
        _ => e,
    }
}

impl Materialized {
    fn skip(&mut self, storage_id: u64) {
        self.skipped.push(Skipped { storage_id, reclaimable_bytes: 0, reason: SkipReason::Changed });
    }
}
