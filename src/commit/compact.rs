use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{Sealed, StorageKind, TensorRecord};

use super::collect::{Collected, collect_all};
use super::publish::publish_taking;
use super::rebase::{Change, Changes, Draft, OnExisting, check_ids_left};
use super::relocate::{Moved, Relocation};
use super::standing::{Standing, Worth, each_standing, grouped, worth};
use super::{Generation, History, stats};
use crate::disk::{DiskFile, LockMode};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Placed, Repacked};
use crate::storage::{StagedStorage, StorageWriter, VerifiedStorage, open_whole};

/// How many bytes are copied for one commit, unless one storage has more; and how many headers changed. A commit gives the
/// old files back, so of a disk that is nearly full no more than this is needed at a time.
const COMMIT_BYTES: u64 = 64 << 20;
const COMMIT_TENSORS: u64 = 1 << 20;

/// What a compaction did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Compacted {
    /// How many storages were written again.
    pub storage_count: u64,
    /// Their lengths before, together.
    pub before_bytes: u64,
    /// Their lengths after.
    pub after_bytes: u64,
    /// What was deleted first, as by [`Store::gc`](crate::Store::gc).
    pub collected: Collected,
    /// The storages that have bytes to give back, and why they stayed as they are.
    pub skipped: Vec<Skipped>,
}

impl Compacted {
    /// How many bytes the storages are shorter.
    #[must_use]
    pub fn reclaimed_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }
}

/// A storage that a compaction left as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The storage's id.
    pub storage_id: u64,
    /// How many bytes it would have been shorter.
    pub reclaimable_bytes: u64,
    /// Why it was left.
    pub reason: SkipReason,
}

/// Why a compaction leaves a storage as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// It is changed in place: others may hold guards of its file, or have it mapped.
    Mutable,
    /// It is written by others at any time.
    Live,
    /// Somebody is appending to it, or compacting it: these processes, as far as the system says so.
    Busy(Vec<u32>),
    /// Another commit changed it, or a name on it, meanwhile: it can be compacted another time.
    Changed,
    /// Bytes that were to be kept are damaged: this is the finding. A copy would give the damage digests of its own.
    Damaged(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::Mutable => {
                f.write_str("mutable: its file is changed in place, and stays the same file")
            }
            SkipReason::Live => f.write_str("live: its file is written at any time, and stays the same file"),
            SkipReason::Busy(processes) => write!(f, "in use{}; try again", by(processes)),
            SkipReason::Changed => f.write_str("another commit changed it meanwhile; try again"),
            SkipReason::Damaged(finding) => write!(f, "damaged: {finding}"),
        }
    }
}

/// " by process 12 and 13", or nothing.
pub(crate) fn by(processes: &[u32]) -> String {
    let listed: Vec<String> = processes.iter().map(u32::to_string).collect();
    if listed.is_empty() { String::new() } else { format!(" by process {}", listed.join(" and ")) }
}

/// A storage to be written again.
struct Plan {
    standing: Standing,
    sealed: Sealed,
    repacked: Repacked,
}

/// Writes the sealed storages again of which much is reached by no tensor, without those bytes.
///
/// `progress` is called with the bytes written since the last call.
pub(crate) fn compact(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    history.watched(compact_all(history, progress))
}

fn compact_all(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    let mut compacted = Compacted { collected: collect_all(history)?, ..Compacted::default() };
    // Smaller ones first: on a full disk they make room for the others.
    let mut candidates = candidates(history, &mut compacted)?;
    candidates.sort_unstable_by_key(|&(id, size_bytes, _)| (size_bytes, id));
    for group in grouped(&candidates, (COMMIT_BYTES, COMMIT_TENSORS)) {
        compact_group(history, &group, progress, &mut compacted)?;
    }
    compacted.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(compacted)
}

/// Id, length to be and number of tensors of each storage that is worth it. Their names are forgotten until its turn comes.
fn candidates(history: &History, compacted: &mut Compacted) -> Result<Vec<(u64, u64, u64)>> {
    let mut candidates = Vec::new();
    each_standing(
        &*history.newest()?,
        |_| true,
        |standing| {
            let length_bytes = standing.record.length_bytes;
            let new_bytes = standing.repacked(history)?.length_bytes;
            if worth(length_bytes, new_bytes) != Worth::Much {
                return Ok(());
            }
            let reason = match standing.record.kind {
                StorageKind::Mutable => SkipReason::Mutable,
                StorageKind::Live { .. } => SkipReason::Live,
                _ => {
                    candidates.push((standing.id, new_bytes, standing.record.tensor_count));
                    return Ok(());
                }
            };
            compacted.skip(standing.id, length_bytes - new_bytes, reason);
            Ok(())
        },
    )?;
    Ok(candidates)
}

/// Some storages, in one commit. They are planned again, on the newest generation.
fn compact_group(
    history: &History,
    ids: &BTreeSet<u64>,
    progress: &mut dyn FnMut(u64),
    compacted: &mut Compacted,
) -> Result<()> {
    let newest = history.newest()?;
    check_ids_left(&newest)?;
    let plans = plans(history, &newest, ids)?;
    let (mut changes, mut staged, mut moved) = (Changes::default(), Vec::new(), Vec::new());
    // The locks are given back once the commit is done.
    let mut locks = Vec::new();
    for plan in plans {
        let (id, before_bytes) = (plan.standing.id, plan.standing.record.length_bytes);
        let after_bytes = plan.repacked.length_bytes;
        match rewrite(history, &plan, progress) {
            Ok(Ok((lock, storage))) => {
                let relocation = relocation(plan, Changes::provisional_id(staged.len()))?;
                changes.names.push((Change::Move(relocation), OnExisting::Replace));
                staged.push(storage);
                locks.push(lock);
                moved.push((id, before_bytes, after_bytes));
            }
            Ok(Err(reason)) => compacted.skip(id, before_bytes - after_bytes, reason),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                compacted.skip(id, before_bytes - after_bytes, SkipReason::Damaged(e.to_string()));
            }
            Err(e) => return Err(e),
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let mut draft = Draft::new(newest);
    for (change, on_existing) in &changes.names {
        draft.apply(change, *on_existing)?;
    }
    let (_, taken) = publish_taking(history, &changes, draft, staged)?;
    for (index, (id, before_bytes, after_bytes)) in moved.into_iter().enumerate() {
        if taken.contains(&index) {
            compacted.storage_count += 1;
            compacted.before_bytes += before_bytes;
            compacted.after_bytes += after_bytes;
        } else {
            compacted.skip(id, before_bytes - after_bytes, SkipReason::Changed);
        }
    }
    drop(locks);
    Ok(())
}

fn plans(history: &History, newest: &Generation, ids: &BTreeSet<u64>) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    each_standing(
        newest,
        |id| ids.contains(&id),
        |standing| {
            let repacked = standing.repacked(history)?;
            if let StorageKind::Sealed(sealed) = standing.record.kind
                && worth(standing.record.length_bytes, repacked.length_bytes) == Worth::Much
            {
                plans.push(Plan { standing, sealed, repacked });
            }
            Ok(())
        },
    )?;
    Ok(plans)
}

type Rewritten = (Arc<dyn DiskFile>, StagedStorage);

/// Copies what is kept of a storage into one that is staged, under the storage's growth lock, which is given too.
///
/// Every chunk is verified before a byte of it is copied.
fn rewrite(
    history: &History,
    plan: &Plan,
    progress: &mut dyn FnMut(u64),
) -> Result<std::result::Result<Rewritten, SkipReason>> {
    let Plan { standing: Standing { id, record, .. }, sealed, repacked } = plan;
    let path = history.paths.storage(*id);
    let lock = match open_whole(&*history.disk, &path, record.length_bytes) {
        // Somebody took its last name away, and nothing is left to do.
        Err(_) if history.newest()?.storage(*id)?.is_none() => return Ok(Err(SkipReason::Changed)),
        opened => opened?,
    };
    if !lock.try_lock(LockMode::Exclusive).map_err(|e| Error::io("lock storage", &path, e))? {
        return Ok(Err(SkipReason::Busy(stats::holders(&*lock))));
    }
    let mut old = VerifiedStorage::open(&*history.disk, &history.paths, *id, (record.length_bytes, sealed))?;
    let mut writer = StorageWriter::sealed(&history.disk, &history.paths)?;
    writer.reserve(repacked.length_bytes)?;
    let mut pending_bytes = 0;
    repacked.each_move(&mut |range: Range<u64>, new_start| {
        writer.pad_to(new_start)?;
        pending_bytes += range.end - range.start;
        old.read(range, |bytes| writer.write(bytes))?;
        if pending_bytes >= PROGRESS_BYTES {
            progress(std::mem::take(&mut pending_bytes));
        }
        Ok::<_, Error>(())
    })?;
    progress(pending_bytes);
    let mut staged = writer.finish(&history.disk, &history.paths, history.is_durable())?;
    staged.reserve_addresses(sealed.reserved_bytes);
    Ok(Ok((lock, staged)))
}

/// How many bytes are written before somebody is told.
const PROGRESS_BYTES: u64 = 1 << 20;

/// The headers of all tensors of a storage on another, of a provisional id.
fn relocation(plan: Plan, new_id: u64) -> Result<Relocation> {
    let Plan { standing: Standing { id, record, tensors }, repacked, .. } = plan;
    let moved = |((name, before), placed): ((String, TensorRecord), Placed)| {
        let mut parts = before.clone().into_parts();
        (parts.stride, parts.offset_elems, parts.storage_id) = (placed.stride, placed.offset_elems, new_id);
        let after = TensorRecord::new(parts).map_err(|e| Error::refused("compact", e))?;
        Ok((name, Moved { before, after }))
    };
    let tensors: BTreeMap<String, Moved> =
        tensors.into_iter().zip(repacked.views).map(moved).collect::<Result<_>>()?;
    Ok(Relocation { storage_id: id, record, tensors })
}

impl Compacted {
    fn skip(&mut self, storage_id: u64, reclaimable_bytes: u64, reason: SkipReason) {
        self.skipped.push(Skipped { storage_id, reclaimable_bytes, reason });
    }
}
