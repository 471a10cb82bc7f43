//! Rewrites sealed storages without the bytes that no tensor refers to.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use stridemap_format::{Error as FormatError, Rule, Sealed, StorageKind, TensorRecord};

use super::collect::collect_all;
use super::compact_candidates::{Candidate, Candidates};
use super::storage_tensors::{StorageTensors, Worth, each_storage, storages_named, worth};
use crate::disk::Access;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Change, Changes, Collected, Draft, Generation, History, Moved, OnExisting, Relocation, by,
    check_ids_left, newest_for_certain, publish_taking,
};
use crate::layout::{Placed, Repacked};
use crate::storage::{GrowthLock, StagedStorage, StorageWriter, VerifiedStorage, open_whole};

/// What a compaction did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Compacted {
    /// The number of storages that were rewritten.
    pub storage_count: u64,
    /// Their total length before, in bytes.
    pub before_bytes: u64,
    /// Their total length after, in bytes.
    pub after_bytes: u64,
    /// What was deleted first, as by [`Store::gc`](crate::Store::gc).
    pub collected: Collected,
    /// The storages that have bytes to free but were not rewritten, and why.
    pub skipped: Vec<Skipped>,
}

impl Compacted {
    /// How many bytes were freed by rewriting storages.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// assert_eq!(store.compact(|_| ())?.reclaimed_bytes(), 9_900);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reclaimed_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }
}

/// A storage that a compaction did not rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The storage's id.
    pub storage_id: u64,
    /// How many bytes a rewrite would have freed.
    pub reclaimable_bytes: u64,
    /// Why it was not rewritten.
    pub reason: SkipReason,
}

/// Why a compaction does not rewrite a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// The storage is mutable: it is changed in place, and its file may be guarded or mapped.
    Mutable,
    /// The storage is live: other processes may write to it at any time.
    Live,
    /// A process is appending to it or compacting it: these processes, as far as the system reports them.
    Busy(Vec<u32>),
    /// Another commit changed the storage or its tensors meanwhile. A later compaction can rewrite it.
    Changed,
    /// Bytes that would be kept are damaged; this is the finding. A rewrite would give the damaged bytes valid
    /// digests.
    Damaged(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::Mutable => {
                f.write_str("mutable: its file is changed in place, and cannot be replaced")
            }
            SkipReason::Live => {
                f.write_str("live: its file may be written at any time, and cannot be replaced")
            }
            SkipReason::Busy(processes) => write!(f, "in use{}; try again", by(processes)),
            SkipReason::Changed => f.write_str("another commit changed it meanwhile; try again"),
            SkipReason::Damaged(finding) => write!(f, "damaged: {finding}"),
        }
    }
}

/// A storage to be rewritten.
struct Plan {
    standing: StorageTensors,
    sealed: Sealed,
    repacked: Repacked,
}

/// Rewrites sealed storages that have many unreferenced bytes, dropping those bytes.
///
/// `progress` is called with the bytes written since the last call.
pub(crate) fn compact(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    history.watched(compact_all(history, progress))
}

fn compact_all(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    let mut compacted = Compacted { collected: collect_all(history)?, ..Compacted::default() };
    let mut rest = candidates(history, &mut compacted)?;
    let mut busy = Vec::new();
    while !rest.is_empty() {
        let newest = history.newest()?;
        let group = rest.next_group(&newest)?;
        let left = compact_some(history, (newest, group), None, progress, &mut compacted)?;
        busy.extend(left.busy);
        rest.put_back(left.without_room);
    }
    // One at a time, with no other growth lock held: otherwise this could wait for a process that is waiting for this
    // one.
    for candidate in busy {
        compact_busy(history, candidate, progress, &mut compacted)?;
    }
    compacted.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(compacted)
}

fn candidates(history: &History, compacted: &mut Compacted) -> Result<Candidates> {
    let mut candidates = Vec::new();
    let visit = |standing: StorageTensors| {
        let (id, length_bytes) = (standing.id, standing.record.length_bytes);
        let new_bytes = match repacked(history, &standing) {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                compacted.skip(id, 0, SkipReason::Damaged(e.to_string()));
                return Ok(());
            }
            repacked => repacked?.length_bytes,
        };
        if worth(length_bytes, new_bytes) != Worth::Much {
            return Ok(());
        }
        let reason = match standing.record.kind {
            StorageKind::Mutable => SkipReason::Mutable,
            StorageKind::Live { .. } => SkipReason::Live,
            _ => {
                let tensor_count = standing.record.tensor_count;
                candidates.push(Candidate { id, length_bytes, new_bytes, tensor_count, names: None });
                return Ok(());
            }
        };
        compacted.skip(id, length_bytes - new_bytes, reason);
        Ok(())
    };
    each_storage(&*history.newest()?, visit)?;
    Ok(Candidates::new(candidates))
}

/// Returns the layout of a storage without its unreferenced bytes.
///
/// # Errors
/// `Corrupt` for a tensor that reaches past its storage, or a record with a wrong count of tensors.
pub(super) fn repacked(history: &History, standing: &StorageTensors) -> Result<Repacked> {
    let (stated, found) = (standing.record.tensor_count, standing.tensors.len());
    if stated != found as u64 {
        let detail = format!("{found} tensors and a record of {stated}");
        let path = history.paths.storage(standing.id);
        return Err(Error::corrupt(&path, FormatError::new(Rule::TensorCount, detail)));
    }
    standing.repacked(history)
}

/// Rewrites a group of storages in one commit. They are planned again, on the newest generation.
///
/// `held` is the growth lock of the only storage, if the caller holds it already.
fn compact_some(
    history: &History,
    (newest, mut group): (Arc<Generation>, VecDeque<Candidate>),
    mut held: Option<GrowthLock>,
    progress: &mut dyn FnMut(u64),
    compacted: &mut Compacted,
) -> Result<Left> {
    check_ids_left(&newest)?;
    let mut left = Left::default();
    let mut plans = plans(history, &newest, &group, compacted)?;
    let (mut changes, mut staged, mut moved) = (Changes::default(), Vec::new(), Vec::new());
    // The locks are released after the commit.
    let mut locks = Vec::new();
    while let Some(candidate) = group.pop_front() {
        // It may have changed, and no longer be worth a rewrite.
        let Some(plan) = plans.remove(&candidate.id) else { continue };
        let (id, before_bytes) = (candidate.id, plan.standing.record.length_bytes);
        let after_bytes = plan.repacked.length_bytes;
        let reason = match rewrite(history, &plan, held.take(), progress) {
            Ok(Some((lock, storage))) => {
                let new_id = Changes::provisional_id(staged.len());
                let relocation = relocation(plan.standing, plan.repacked, new_id)?;
                changes.names.push((Change::Move(relocation), OnExisting::Replace));
                staged.push(storage);
                locks.push(lock);
                moved.push((id, before_bytes, after_bytes));
                continue;
            }
            Ok(None) => {
                left.busy.push(candidate);
                continue;
            }
            Err(e) if e.kind() == ErrorKind::Corrupt => SkipReason::Damaged(e.to_string()),
            // The commit frees the space of the storages before it; then there may be room for the others.
            Err(e) if is_disk_full(&e) && !staged.is_empty() => {
                group.push_front(candidate);
                left.without_room = group;
                break;
            }
            Err(e) => return Err(e),
        };
        compacted.skip(id, before_bytes - after_bytes, reason);
    }
    if changes.is_empty() {
        return Ok(left);
    }
    let mut draft = Draft::new(newest);
    for (change, on_existing) in &changes.names {
        draft.apply(change, *on_existing)?;
    }
    let (_, taken) = publish_taking(history, &changes, draft, staged, Vec::new())?;
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
    Ok(left)
}

/// The storages of a group that are still to be rewritten.
#[derive(Default)]
struct Left {
    /// A process is appending to them.
    busy: Vec<Candidate>,
    /// The disk was full, but may have room after the commit.
    without_room: VecDeque<Candidate>,
}

/// How long a compaction waits for appenders, at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rewrites a storage that a process was appending to. Even an appender that never pauses releases the lock between
/// two appends. The storage is planned under the lock, when no process can append.
fn compact_busy(
    history: &History,
    candidate: Candidate,
    progress: &mut dyn FnMut(u64),
    compacted: &mut Compacted,
) -> Result<()> {
    let (id, gain_bytes) = (candidate.id, candidate.gain_bytes());
    let path = history.paths.storage(id);
    let patience = history.options.lock_timeout.min(PATIENCE);
    match GrowthLock::take(&history.disk, &path, patience) {
        Ok(Some(lock)) => {
            let newest = newest_for_certain(history)?;
            compact_some(history, (newest, [candidate].into()), Some(lock), progress, compacted)?;
        }
        Ok(None) => compacted.skip(id, gain_bytes, SkipReason::Changed),
        Err(e) if e.kind() == ErrorKind::Busy => {
            let holders =
                history.disk.open(&path, Access::Read).map_or(Vec::new(), |file| file.lock_holders());
            compacted.skip(id, gain_bytes, SkipReason::Busy(holders));
        }
        Err(e) => return Err(e),
    }
    Ok(())
}

fn is_disk_full(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|e| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// Plans the rewrite of a group. Only its own names are looked up: a storage that has other names by now has changed.
fn plans(
    history: &History,
    newest: &Generation,
    group: &VecDeque<Candidate>,
    compacted: &mut Compacted,
) -> Result<BTreeMap<u64, Plan>> {
    let names = group.iter().map(|candidate| (candidate.id, candidate.names.as_deref().unwrap_or_default()));
    let mut standings = storages_named(newest, names)?;
    let mut plans = BTreeMap::new();
    for candidate in group {
        let Some(standing) = standings.remove(&candidate.id) else { continue };
        if standing.tensors.len() as u64 != standing.record.tensor_count {
            compacted.skip(candidate.id, candidate.gain_bytes(), SkipReason::Changed);
            continue;
        }
        let repacked = standing.repacked(history)?;
        if let StorageKind::Sealed(sealed) = standing.record.kind
            && worth(standing.record.length_bytes, repacked.length_bytes) == Worth::Much
        {
            plans.insert(standing.id, Plan { standing, sealed, repacked });
        }
    }
    Ok(plans)
}

type Rewritten = (GrowthLock, StagedStorage);

/// Copies the kept bytes of a storage to a staged one, under the storage's growth lock. Returns the lock too, or
/// `None` if another process holds it.
///
/// Every chunk is verified before any of its bytes are copied.
fn rewrite(
    history: &History,
    plan: &Plan,
    held: Option<GrowthLock>,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Rewritten>> {
    let Plan { standing: StorageTensors { id, record, .. }, sealed, repacked } = plan;
    let path = history.paths.storage(*id);
    open_whole(&*history.disk, &path, record.length_bytes)?;
    let lock = match held {
        Some(lock) => Some(lock),
        None => GrowthLock::try_take(&history.disk, &path)?,
    };
    let Some(lock) = lock else { return Ok(None) };
    let mut old = VerifiedStorage::open(&*history.disk, &history.paths, *id, (record.length_bytes, sealed))?;
    let mut writer = StorageWriter::sealed(&history.disk, &history.paths)?;
    writer.reserve_address_space(sealed.reserved_bytes);
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
    let staged = writer.finish(&history.disk, &history.paths, history.is_durable())?;
    Ok(Some((lock, staged)))
}

/// How many bytes are written between two calls of `progress`.
pub(super) const PROGRESS_BYTES: u64 = 1 << 20;

/// Returns the move of a storage's tensors to the storage with the provisional id `new_id`.
pub(super) fn relocation(standing: StorageTensors, repacked: Repacked, new_id: u64) -> Result<Relocation> {
    let StorageTensors { id, record, tensors } = standing;
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
