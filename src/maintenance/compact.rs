//! Rewrites sealed storages without the bytes that no tensor refers to.

use std::time::Duration;

use stridemap_format::{Error as FormatError, RecordKind, Rule, StorageRecord};

use super::collect::collect_all;
use super::rewrite::{Compacted, Rewrite, Rewritten, SkipReason, rewrite_all, rewrite_group};
use super::rewrite_candidates::Candidate;
use super::storage_tensors::{RewriteGain, StorageTensors, each_storage, rewrite_gain};
use super::tagged::TaggedGenerations;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{OpenStore, holders};
use crate::layout::Repacked;
use crate::storage::{GrowthLock, VerifiedStorage, open_whole};

/// Rewrites sealed storages, dropping their unreferenced bytes, if that gains at least `least`.
pub(crate) fn compact(
    store: &OpenStore,
    least: RewriteGain,
    progress: &mut dyn FnMut(u64),
) -> Result<Compacted> {
    let mut compacted = Compacted { collected: collect_all(store)?, ..Compacted::default() };
    let mut compaction = Compaction { store, least, held: None, progress };
    let Found { candidates, are_restored } = candidates(store, least, &mut compacted)?;
    // One at a time, with no other growth lock held: otherwise this could wait for a process that is waiting for this
    // one.
    for candidate in rewrite_all(store, &mut compaction, candidates, &mut compacted)? {
        compaction.rewrite_busy(candidate, &mut compacted)?;
    }
    if are_restored {
        // Only a collection examines whether a tagged generation has a storage that was restored.
        collect_all(store)?;
    }
    compacted.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(compacted)
}

/// The storages to rewrite.
struct Found {
    candidates: Vec<Candidate>,
    /// Whether some of them were restored.
    are_restored: bool,
}

fn candidates(store: &OpenStore, least: RewriteGain, compacted: &mut Compacted) -> Result<Found> {
    let (mut candidates, mut restored) = (Vec::new(), Vec::new());
    let newest = store.newest()?;
    let visit = |storage: StorageTensors| {
        let (id, length_bytes) = (storage.id, storage.record.length_bytes);
        let new_bytes = match repacked(store, &storage) {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                compacted.skip(id, 0, SkipReason::Damaged(e.to_string()));
                return Ok(());
            }
            repacked => repacked?.length_bytes,
        };
        if rewrite_gain(length_bytes, new_bytes) < least {
            return Ok(());
        }
        let reason = match storage.record.kind {
            RecordKind::Mutable => SkipReason::Mutable,
            RecordKind::Live { .. } => SkipReason::Live,
            _ => {
                let tensor_count = storage.record.tensor_count;
                candidates.push(Candidate { id, length_bytes, new_bytes, tensor_count, names: None });
                restored.extend(storage.record.is_restored.then_some(id));
                return Ok(());
            }
        };
        compacted.skip(id, length_bytes - new_bytes, reason);
        Ok(())
    };
    each_storage(&newest, false, visit)?;
    let mut tagged = TaggedGenerations::list(&newest)?;
    tagged.find_restored(store, &newest, &restored, &[])?;
    candidates.retain(|candidate| {
        let last = tagged.with_storage(candidate.id).next_back();
        let skip = |generation| {
            compacted.skip(candidate.id, candidate.gain_bytes(), SkipReason::Tagged { generation });
        };
        last.map(skip).is_none()
    });
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

struct Compaction<'a> {
    store: &'a OpenStore,
    least: RewriteGain,
    /// The growth lock of the next storage, if it is held already.
    held: Option<GrowthLock>,
    progress: &'a mut dyn FnMut(u64),
}

impl Compaction<'_> {
    /// Rewrites a storage that a process was appending to. Even an appender that never pauses releases the lock
    /// between two appends. The storage is planned under the lock, when no process can append.
    fn rewrite_busy(&mut self, candidate: Candidate, compacted: &mut Compacted) -> Result<()> {
        let store = self.store;
        let (id, gain_bytes) = (candidate.id, candidate.gain_bytes());
        let path = store.paths.storage(id);
        let patience = store.options.lock_wait.at_most(PATIENCE);
        match GrowthLock::take(&store.disk, &path, patience) {
            Ok(Some(lock)) => {
                self.held = Some(lock);
                let newest = store.newest_for_certain()?;
                rewrite_group(store, self, (newest, [candidate].into()), compacted)?;
                self.held = None;
            }
            Ok(None) => compacted.skip(id, gain_bytes, SkipReason::Changed),
            Err(e) if e.kind() == ErrorKind::Busy => {
                compacted.skip(id, gain_bytes, SkipReason::Busy(holders(store, &path)));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

impl Rewrite for Compaction<'_> {
    fn is_wanted(&self, record: &StorageRecord, new_bytes: u64) -> bool {
        matches!(record.kind, RecordKind::Sealed(_))
            && rewrite_gain(record.length_bytes, new_bytes) >= self.least
    }

    fn copy(&mut self, storage: &StorageTensors, repacked: &Repacked) -> Result<Option<Rewritten>> {
        let (disk, paths) = (&self.store.disk, &self.store.paths);
        let path = paths.storage(storage.id);
        open_whole(&**disk, &path, storage.record.length_bytes)?;
        let lock = match self.held.take() {
            Some(lock) => Some(lock),
            None => GrowthLock::try_take(disk, &path)?,
        };
        let Some(lock) = lock else { return Ok(None) };
        let mut old = VerifiedStorage::open(&**disk, paths, storage.id, &storage.record)?;
        let mut writer = old.start_copy(disk, paths, self.store.is_durable())?;
        writer.copy_from(&mut old, repacked, self.progress)?;
        Ok(Some((writer.finish()?, Some(lock))))
    }
}
