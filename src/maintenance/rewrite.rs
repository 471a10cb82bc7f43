//! Moves tensors to new storages that have only the bytes that the tensors reach.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;

use stridemap_format::{Header, TensorRecord};

use super::rewrite_candidates::{COMMIT_BYTES, Candidate, Candidates};
use super::rewriting::{Rewriting, StagedCopy, is_packable, moved_by};
use super::storage_tensors::{StorageTensors, storages_with_tensors};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Change, Changes, Collected, Draft, Generation, Moved, OnExisting, Relocation, by_processes,
    check_ids_left, publish,
};
use crate::storage::Stages;

/// What a compaction did, or [`Store::materialize`](crate::Store::materialize), which rewrites external storages and
/// deletes nothing.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Compacted {
    /// The number of storages that were rewritten.
    pub storage_count: u64,
    /// The number of storages that they became: fewer, because small ones were joined.
    pub new_storage_count: u64,
    /// Their total length before, in bytes.
    pub before_bytes: u64,
    /// Their total length after, in bytes. In a storage that several were joined to, each begins at a multiple of 64 bytes.
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

    /// Counts storages as rewritten that are only planned to be.
    pub(super) fn count(&mut self, candidates: &[Candidate]) {
        let (mut joined_count, mut joined_bytes) = (0u64, 0u64);
        for candidate in candidates {
            self.storage_count += 1;
            if candidate.packed_by.is_some() {
                joined_count += 1;
                joined_bytes = joined_bytes.saturating_add(candidate.new_bytes);
            }
            self.before_bytes = self.before_bytes.saturating_add(candidate.length_bytes);
            self.after_bytes = self.after_bytes.saturating_add(candidate.new_bytes);
        }
        // A commit joins so much.
        let joined = joined_bytes.div_ceil(COMMIT_BYTES).max(1).min(joined_count);
        self.new_storage_count = self.storage_count - joined_count + joined;
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

/// Rewrites storages, one group per commit. Returns those that another process was appending to.
///
/// The small storages of one commit become one. If there are several commits, what they have made is merged again.
pub(super) fn rewrite_all(
    rewriting: &mut Rewriting<'_>,
    candidates: Vec<Candidate>,
    done: &mut Compacted,
) -> Result<Vec<Candidate>> {
    let store = rewriting.store;
    let (mut rest, mut packs, mut busy) = (Candidates::new(candidates), Vec::new(), Vec::new());
    let mut most_packs = usize::MAX;
    loop {
        while !rest.is_empty() {
            let newest = store.newest()?;
            let group = rest.next_group(&newest)?;
            let remaining = rewrite_group(rewriting, (newest, group), done)?;
            packs.extend(remaining.pack);
            busy.extend(remaining.busy);
            rest.put_back(remaining.without_room);
        }
        if packs.len() < 2 || packs.len() >= most_packs {
            return Ok(busy);
        }
        most_packs = packs.len();
        rest = Candidates::new(mem::take(&mut packs));
    }
}

/// The storages of a group that are still to be rewritten.
#[derive(Default)]
pub(super) struct Remaining {
    /// A process is appending to them.
    busy: Vec<Candidate>,
    /// The disk was full, but may have room after the commit.
    without_room: VecDeque<Candidate>,
    /// A small storage that can be merged with those of other commits: the one that the small ones of this commit share
    /// now.
    pack: Option<Candidate>,
}

/// A storage that was copied: it moves with the commit, unless another commit changes it before.
struct Moving {
    candidate: Candidate,
    /// The index of the staged storage, and whether it is the one that small storages share.
    index: usize,
    is_packed: bool,
    before_bytes: u64,
    after_bytes: u64,
}

/// Rewrites a group of storages in one commit, planned again on the newest generation. Only the names of the group
/// are looked up. If the tensors found are not as many as a storage's record counts, the storage has changed and is
/// skipped.
pub(super) fn rewrite_group(
    rewriting: &mut Rewriting<'_>,
    (newest, mut group): (Arc<Generation>, VecDeque<Candidate>),
    done: &mut Compacted,
) -> Result<Remaining> {
    let store = rewriting.store;
    check_ids_left(&newest)?;
    let only_joins = |candidate: &Candidate| candidate.packed_by.is_some() && !rewriting.is_worth(candidate);
    if group.len() == 1 && group.front().is_some_and(only_joins) {
        // There is nothing that it could share a storage with.
        let pack = group.pop_front().map(|alone| Candidate { names: None, ..alone });
        return Ok(Remaining { pack, ..Remaining::default() });
    }
    let names = group.iter().map(|candidate| (candidate.id, candidate.names.as_deref().unwrap_or_default()));
    let mut storages = storages_with_tensors(&newest, names)?;
    let mut remaining = Remaining::default();
    let mut draft = Draft::new(newest);
    let (mut stages, mut moving) = (Stages::default(), Vec::new());
    // The locks are released after the commit, before the writers' lock.
    let mut locks = Vec::new();
    while let Some(candidate) = group.pop_front() {
        let id = candidate.id;
        let Some(storage) = storages.remove(&id) else { continue };
        if storage.tensors.len() as u64 != storage.record.tensor_count {
            rewriting.skip_changed(&candidate, done);
            continue;
        }
        let repacked = storage.repacked(store)?;
        let (before_bytes, after_bytes) = (storage.record.length_bytes, repacked.length_bytes);
        // It may have changed, and no longer be worth a rewrite.
        let is_packed = candidate.packed_by.is_some() && is_packable(&storage.record, after_bytes);
        if !is_packed && !rewriting.is_wanted(&storage.record, after_bytes) {
            continue;
        }
        match rewriting.copy(&storage, (&repacked, is_packed), &mut stages) {
            Ok(Some(StagedCopy { index, offset_bytes, added_bytes, lock })) => {
                let place = (Changes::provisional_id(index), offset_bytes);
                let change = Change::Relocate(Box::new(relocation(storage, repacked.views, place)));
                draft.apply(change, OnExisting::Replace)?;
                locks.extend(lock);
                moving.push(Moving { candidate, index, is_packed, before_bytes, after_bytes: added_bytes });
            }
            Ok(None) => remaining.busy.push(candidate),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                let freed_bytes = before_bytes.saturating_sub(after_bytes);
                done.skip(id, freed_bytes, SkipReason::Damaged(e.to_string()));
            }
            // What was copied before is in the same file.
            Err(e) if stages.is_torn() => return Err(e),
            // Commit the storages copied so far, so that their copies are not lost. In a compaction, the commit also
            // frees space.
            Err(e) if is_disk_full(&e) && !e.is_failed_sync() && !moving.is_empty() => {
                group.push_front(candidate);
                remaining.without_room = group;
                break;
            }
            // A storage from which nothing is freed need not be readable now.
            Err(e)
                if !rewriting.is_worth(&candidate)
                    && !e.is_failed_sync()
                    && matches!(e.kind(), ErrorKind::Io | ErrorKind::ReadOnly) => {}
            Err(e) => return Err(e),
        }
    }
    if draft.changes.is_empty() {
        return Ok(remaining);
    }
    let staged = stages.finish(store.is_durable())?;
    let lock = store.lock_writers()?;
    let (generation, used_staged) = publish(store, draft, staged, Vec::new(), &lock)?;
    drop((locks, lock));
    let (mut pack, mut new_storages) = (None, BTreeSet::new());
    for Moving { candidate, index, is_packed, before_bytes, after_bytes } in moving {
        if !used_staged.contains(&index) || generation.storage(candidate.id)?.is_some() {
            rewriting.skip_changed(&candidate, done);
            continue;
        }
        new_storages.insert(index);
        if candidate.is_pack {
            // Its storages were counted when they were packed.
            done.after_bytes = done.after_bytes.saturating_sub(before_bytes);
            done.new_storage_count = done.new_storage_count.saturating_sub(1);
        } else {
            done.storage_count += 1;
            done.before_bytes += before_bytes;
        }
        done.after_bytes += after_bytes;
        if is_packed {
            pack = pack.or(candidate.packed_by);
        }
    }
    done.new_storage_count += new_storages.len() as u64;
    if let Some(name) = pack
        && let Some(TensorRecord { storage_id, .. }) = generation.tensor(&name)?
        && let Some(record) = generation.storage(storage_id)?
        && is_packable(&record, record.length_bytes)
    {
        let (length_bytes, tensor_count) = (record.length_bytes, record.tensor_count);
        remaining.pack = Some(Candidate {
            id: storage_id,
            length_bytes,
            new_bytes: length_bytes,
            tensor_count,
            packed_by: Some(name),
            is_pack: true,
            names: None,
        });
    }
    Ok(remaining)
}

fn is_disk_full(error: &Error) -> bool {
    error
        .io_error()
        .is_some_and(|e| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// Plans the move of a storage's tensors to the storage with a provisional id, where its bytes begin at an offset in
/// bytes.
fn relocation(storage: StorageTensors, views: Vec<Header>, (new_id, offset_bytes): (u64, u64)) -> Relocation {
    let StorageTensors { id, record, tensors } = storage;
    let moved = |((name, before), view): ((String, TensorRecord), Header)| {
        let header = moved_by(view, offset_bytes).into();
        (name, Moved { before, after: TensorRecord { header, storage_id: new_id } })
    };
    let tensors: BTreeMap<String, Moved> = tensors.into_iter().zip(views).map(moved).collect();
    Relocation { storage_id: id, record, tensors }
}
