//! Moves tensors to new storages that have only the bytes that the tensors reach.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;

use stridemap_format::{Header, StorageRecord, TensorRecord};

use super::rewrite_candidates::{Candidate, Candidates};
use super::storage_tensors::{StorageTensors, storages_with_tensors};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Change, Changes, Collected, Draft, Generation, Moved, OnExisting, OpenStore, Relocation, by_processes,
    check_ids_left, publish,
};
use crate::layout::Repacked;
use crate::storage::{GrowthLock, StagedStorage};

/// What a compaction did, or [`Store::materialize`](crate::Store::materialize), which rewrites external storages and
/// deletes nothing.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    pub(super) fn skip(&mut self, storage_id: u64, reclaimable_bytes: u64, reason: SkipReason) {
        self.skipped.push(Skipped { storage_id, reclaimable_bytes, reason });
    }
}

/// A storage that a compaction did not rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Skipped {
    /// The storage's id.
    pub storage_id: u64,
    /// The number of bytes that a rewrite would have freed.
    pub reclaimable_bytes: u64,
    /// Why it was not rewritten.
    pub reason: SkipReason,
}

/// Why a compaction does not rewrite a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SkipReason {
    /// The storage is mutable: it is changed in place, and its file may be locked by a guard or mapped.
    Mutable,
    /// The storage is live: other processes may write to it at any time.
    Live,
    /// Other processes are appending to it or compacting it. Contains their ids, as far as the system reports them.
    Busy(Vec<u32>),
    /// A tag keeps the storage, so a rewrite would free nothing.
    Tagged {
        /// The last generation with a tag that has the storage.
        generation: u64,
    },
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
            SkipReason::Busy(processes) => write!(f, "in use{}; try again", by_processes(processes)),
            SkipReason::Tagged { generation } => {
                write!(f, "generation {generation} has it and is tagged; a rewrite would free nothing")
            }
            SkipReason::Changed => f.write_str("another commit changed it meanwhile; try again"),
            SkipReason::Damaged(finding) => write!(f, "damaged: {finding}"),
        }
    }
}

/// A staged copy of a storage, and the lock that keeps the original from growing, if it can grow.
pub(super) type Rewritten = (StagedStorage, Option<GrowthLock>);

/// How storages of one kind are rewritten.
pub(super) trait Rewrite {
    /// Whether to rewrite a storage with this record, if that makes it `new_bytes` long.
    fn is_wanted(&self, record: &StorageRecord, new_bytes: u64) -> bool;

    /// Copies what `repacked` keeps to a staged storage. Returns `None` if another process is appending to the
    /// storage.
    fn copy(&mut self, storage: &StorageTensors, repacked: &Repacked) -> Result<Option<Rewritten>>;
}

/// Rewrites storages, one group per commit. Returns those that another process was appending to.
pub(super) fn rewrite_all(
    store: &OpenStore,
    rewrite: &mut dyn Rewrite,
    candidates: Vec<Candidate>,
    done: &mut Compacted,
) -> Result<Vec<Candidate>> {
    let (mut rest, mut busy) = (Candidates::new(candidates), Vec::new());
    while !rest.is_empty() {
        let newest = store.newest()?;
        let group = rest.next_group(&newest)?;
        let remaining = rewrite_group(store, rewrite, (newest, group), done)?;
        busy.extend(remaining.busy);
        rest.put_back(remaining.without_room);
    }
    Ok(busy)
}

/// The storages of a group that are still to be rewritten.
#[derive(Default)]
pub(super) struct Remaining {
    /// A process is appending to them.
    busy: Vec<Candidate>,
    /// The disk was full, but may have room after the commit.
    without_room: VecDeque<Candidate>,
}

/// Rewrites a group of storages in one commit, planned again on the newest generation. Only the names of the group
/// are looked up. If the tensors found are not as many as a storage's record counts, the storage has changed and is
/// skipped.
pub(super) fn rewrite_group(
    store: &OpenStore,
    rewrite: &mut dyn Rewrite,
    (newest, mut group): (Arc<Generation>, VecDeque<Candidate>),
    done: &mut Compacted,
) -> Result<Remaining> {
    check_ids_left(&newest)?;
    let names = group.iter().map(|candidate| (candidate.id, candidate.names.as_deref().unwrap_or_default()));
    let mut storages = storages_with_tensors(&newest, names)?;
    let mut remaining = Remaining::default();
    let mut draft = Draft::new(newest);
    let (mut staged, mut moved) = (Vec::new(), Vec::new());
    // The locks are released after the commit, before the writers' lock.
    let mut locks = Vec::new();
    while let Some(candidate) = group.pop_front() {
        let id = candidate.id;
        let Some(storage) = storages.remove(&id) else { continue };
        if storage.tensors.len() as u64 != storage.record.tensor_count {
            done.skip(id, candidate.gain_bytes(), SkipReason::Changed);
            continue;
        }
        let repacked = storage.repacked(store)?;
        let (before_bytes, after_bytes) = (storage.record.length_bytes, repacked.length_bytes);
        // It may have changed, and no longer be worth a rewrite.
        if !rewrite.is_wanted(&storage.record, after_bytes) {
            continue;
        }
        match rewrite.copy(&storage, &repacked) {
            Ok(Some((copy, lock))) => {
                let new_id = Changes::provisional_id(staged.len());
                let change = Change::Relocate(Box::new(relocation(storage, repacked.views, new_id)));
                draft.apply(change, OnExisting::Replace)?;
                staged.push(copy);
                locks.extend(lock);
                moved.push((id, before_bytes, after_bytes));
            }
            Ok(None) => remaining.busy.push(candidate),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                done.skip(id, before_bytes - after_bytes, SkipReason::Damaged(e.to_string()));
            }
            // Commit the storages copied so far, so that their copies are not lost. In a compaction, the commit also
            // frees space.
            Err(e) if is_disk_full(&e) && !e.is_failed_sync() && !staged.is_empty() => {
                group.push_front(candidate);
                remaining.without_room = group;
                break;
            }
            Err(e) => return Err(e),
        }
    }
    if draft.changes.is_empty() {
        return Ok(remaining);
    }
    let lock = store.lock_writers()?;
    let (_, used_staged) = publish(store, draft, staged, Vec::new(), &lock)?;
    drop((locks, lock));
    for (index, (id, before_bytes, after_bytes)) in moved.into_iter().enumerate() {
        if used_staged.contains(&index) {
            done.storage_count += 1;
            done.before_bytes += before_bytes;
            done.after_bytes += after_bytes;
        } else {
            done.skip(id, before_bytes - after_bytes, SkipReason::Changed);
        }
    }
    Ok(remaining)
}

fn is_disk_full(error: &Error) -> bool {
    error
        .io_error()
        .is_some_and(|e| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// Plans the move of a storage's tensors to the storage with the provisional id `new_id`.
fn relocation(storage: StorageTensors, views: Vec<Header>, new_id: u64) -> Relocation {
    let StorageTensors { id, record, tensors } = storage;
    let moved = |((name, before), header): ((String, TensorRecord), Header)| {
        let after = TensorRecord { header: header.into(), storage_id: new_id };
        (name, Moved { before, after })
    };
    let tensors: BTreeMap<String, Moved> = tensors.into_iter().zip(views).map(moved).collect();
    Relocation { storage_id: id, record, tensors }
}
