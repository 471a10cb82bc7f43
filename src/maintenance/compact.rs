//! Rewrites sealed storages without the bytes that no tensor refers to, and joins small ones.

use std::time::Duration;

use stridemap_format::{Error as FormatError, RecordKind, Rule};

use super::collect::collect_all;
use super::inventory::SpaceReason;
use super::rewrite::{Compacted, SkipReason, rewrite_all, rewrite_group};
use super::rewrite_candidates::Candidate;
use super::rewriting::{Rewriting, Wanted, is_packable};
use super::storage_tensors::{RewriteGain, StorageTensors, each_storage, rewrite_gain};
use super::tagged::TaggedGenerations;
use super::usage::{DiskUsage, usage};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Collected, OpenStore, holders};
use crate::layout::Repacked;
use crate::storage::GrowthLock;

/// How many small storages there must be for a compaction to copy them only to join them. A copy of fewer frees too few
/// files, and would be due again soon.
const MIN_JOINED: usize = 16;

/// Rewrites sealed storages, dropping their unreferenced bytes, if that gains at least `least`. Small ones become one:
/// those that are rewritten, and if there are enough of them all others too.
pub(crate) fn compact(
    store: &OpenStore,
    least: RewriteGain,
    progress: &mut dyn FnMut(u64),
) -> Result<Compacted> {
    let mut compacted = Compacted { collected: collect_all(store)?, ..Compacted::default() };
    let mut rewriting = Rewriting { store, wanted: Wanted::Sealed(least), held: None, progress };
    let Found { candidates, are_restored } = candidates(&rewriting, least, &mut compacted)?;
    // One at a time, with no other growth lock held: otherwise this could wait for a process that is waiting for this
    // one.
    for candidate in rewrite_all(&mut rewriting, candidates, &mut compacted)? {
        rewrite_busy(&mut rewriting, candidate, &mut compacted)?;
    }
    if are_restored {
        // Only a collection examines whether a tagged generation has a storage that was restored.
        collect_all(store)?;
    }
    compacted.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(compacted)
}

/// Returns what [`compact`] would do, as far as other processes leave the store as it is.
pub(crate) fn plan(store: &OpenStore, least: RewriteGain) -> Result<Compacted> {
    store.check_poison()?;
    let mut planned = Compacted { collected: collectable(&usage(store)?), ..Compacted::default() };
    let rewriting = Rewriting { store, wanted: Wanted::Sealed(least), held: None, progress: &mut |_| () };
    let Found { candidates, .. } = candidates(&rewriting, least, &mut planned)?;
    planned.count(&candidates);
    planned.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(planned)
}

/// Returns what a collection would delete now.
fn collectable(usage: &DiskUsage) -> Collected {
    let mut collected = Collected::default();
    for file in usage.spare.iter().filter(|file| file.reason == SpaceReason::Garbage) {
        collected.file_count += u64::from(file.spare_bytes == file.size_bytes);
        collected.size_bytes = collected.size_bytes.saturating_add(file.spare_bytes);
    }
    collected
}

/// The storages to rewrite.
struct Found {
    candidates: Vec<Candidate>,
    /// Whether some of them were restored.
    are_restored: bool,
}

fn candidates(rewriting: &Rewriting<'_>, least: RewriteGain, compacted: &mut Compacted) -> Result<Found> {
    let store = rewriting.store;
    let (mut candidates, mut restored) = (Vec::new(), Vec::new());
    let newest = store.newest()?;
    let visit = |storage: StorageTensors| {
        let (id, record) = (storage.id, &storage.record);
        let new_bytes = match repacked(store, &storage) {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                compacted.skip(id, 0, SkipReason::Damaged(e.to_string()));
                return Ok(());
            }
            repacked => repacked?.length_bytes,
        };
        let is_packed = is_packable(record, new_bytes);
        if !is_packed && rewrite_gain(record.length_bytes, new_bytes) < least {
            return Ok(());
        }
        let reason = match record.kind {
            RecordKind::Mutable => SkipReason::Mutable,
            RecordKind::Live { .. } => SkipReason::Live,
            _ => {
                candidates.push(Candidate::of(&storage, new_bytes, is_packed));
                restored.extend(record.is_restored.then_some(id));
                return Ok(());
            }
        };
        compacted.skip(id, record.length_bytes - new_bytes, reason);
        Ok(())
    };
    each_storage(&newest, false, visit)?;
    let mut tagged = TaggedGenerations::list(&newest)?;
    tagged.find_restored(store, &newest, &restored, &[])?;
    candidates.retain(|candidate| {
        let last = tagged.with_storage(candidate.id).next_back();
        if let Some(generation) = last.filter(|_| rewriting.is_worth(candidate)) {
            compacted.skip(candidate.id, candidate.gain_bytes(), SkipReason::Tagged { generation });
        }
        last.is_none()
    });
    let small_count = candidates.iter().filter(|candidate| candidate.packed_by.is_some()).count();
    if small_count < if least == RewriteGain::Small { 2 } else { MIN_JOINED } {
        candidates.retain(|candidate| rewriting.is_worth(candidate));
    }
    let are_restored = candidates.iter().any(|candidate| restored.contains(&candidate.id));
    Ok(Found { candidates, are_restored })
}

/// Returns the layout of a storage without its unreferenced bytes.
///
/// # Errors
/// `Corrupt` for a tensor that reaches past its storage, or a record with a wrong count of tensors.
pub(super) fn repacked(store: &OpenStore, storage: &StorageTensors) -> Result<Repacked> {
    let (stated, found) = (storage.record.tensor_count, storage.tensors.len());
    if stated != found as u64 {
        let detail = format!("{found} tensors, but the record says {stated}");
        let path = store.paths.storage(storage.id);
        return Err(Error::corrupt(&path, FormatError::new(Rule::RecordCount, detail)));
    }
    storage.repacked(store)
}

/// The longest time that a compaction waits for appenders.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rewrites a storage that a process was appending to. Even an appender that never pauses releases the lock between two
/// appends. The storage is planned under the lock, when no process can append.
fn rewrite_busy(
    rewriting: &mut Rewriting<'_>,
    candidate: Candidate,
    compacted: &mut Compacted,
) -> Result<()> {
    let store = rewriting.store;
    let (id, gain_bytes) = (candidate.id, candidate.gain_bytes());
    if !rewriting.is_worth(&candidate) {
        return Ok(());
    }
    let path = store.paths.storage(id);
    let patience = store.options.lock_wait.at_most(PATIENCE);
    match GrowthLock::take(&store.disk, &path, patience) {
        Ok(Some(lock)) => {
            rewriting.held = Some(lock);
            let newest = store.newest_for_certain()?;
            rewrite_group(rewriting, (newest, [candidate].into()), compacted)?;
            rewriting.held = None;
        }
        Ok(None) => compacted.skip(id, gain_bytes, SkipReason::Changed),
        Err(e) if e.kind() == ErrorKind::Busy => {
            compacted.skip(id, gain_bytes, SkipReason::Busy(holders(store, &path)));
        }
        Err(e) => return Err(e),
    }
    Ok(())
}
