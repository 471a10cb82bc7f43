//! Rewrites sealed storages without the bytes that no tensor refers to.

use std::fmt;
use std::time::Duration;

use stridemap_format::{Error as FormatError, Rule, StorageKind, StorageRecord};

use super::candidates::Candidate;
use super::collect::collect_all;
use super::rewrite::{Copied, Rewrite, rewrite_all, rewrite_group};
use super::storage_tensors::{StorageTensors, Worth, each_storage, worth};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Collected, History, by, holders, newest_for_certain};
use crate::layout::Repacked;
use crate::storage::{GrowthLock, VerifiedStorage, open_whole};

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

/// Rewrites sealed storages that have many unreferenced bytes, dropping those bytes.
///
/// `progress` is called with the bytes written since the last call.
pub(crate) fn compact(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    history.watched(compact_all(history, progress))
}

fn compact_all(history: &History, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    let mut compacted = Compacted { collected: collect_all(history)?, ..Compacted::default() };
    let mut compaction = Compaction { history, held: None, progress };
    let candidates = candidates(history, &mut compacted)?;
    // One at a time, with no other growth lock held: otherwise this could wait for a process that is waiting for this
    // one.
    for candidate in rewrite_all(history, &mut compaction, candidates, &mut compacted)? {
        compaction.rewrite_busy(candidate, &mut compacted)?;
    }
    compacted.skipped.sort_by_key(|skipped| skipped.storage_id);
    Ok(compacted)
}

fn candidates(history: &History, compacted: &mut Compacted) -> Result<Vec<Candidate>> {
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
    Ok(candidates)
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

/// How long a compaction waits for appenders, at most.
const PATIENCE: Duration = Duration::from_secs(2);

struct Compaction<'a> {
    history: &'a History,
    /// The growth lock of the next storage, if it is held already.
    held: Option<GrowthLock>,
    progress: &'a mut dyn FnMut(u64),
}

impl Compaction<'_> {
    /// Rewrites a storage that a process was appending to. Even an appender that never pauses releases the lock
    /// between two appends. The storage is planned under the lock, when no process can append.
    fn rewrite_busy(&mut self, candidate: Candidate, compacted: &mut Compacted) -> Result<()> {
        let history = self.history;
        let (id, gain_bytes) = (candidate.id, candidate.gain_bytes());
        let path = history.paths.storage(id);
        let patience = history.options.lock_timeout.min(PATIENCE);
        match GrowthLock::take(&history.disk, &path, patience) {
            Ok(Some(lock)) => {
                self.held = Some(lock);
                let newest = newest_for_certain(history)?;
                rewrite_group(history, self, (newest, [candidate].into()), compacted)?;
                self.held = None;
            }
            Ok(None) => compacted.skip(id, gain_bytes, SkipReason::Changed),
            Err(e) if e.kind() == ErrorKind::Busy => {
                compacted.skip(id, gain_bytes, SkipReason::Busy(holders(history, &path)));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

impl Rewrite for Compaction<'_> {
    fn is_wanted(&self, record: &StorageRecord, new_bytes: u64) -> bool {
        matches!(record.kind, StorageKind::Sealed(_)) && worth(record.length_bytes, new_bytes) == Worth::Much
    }

    fn copy(&mut self, storage: &StorageTensors, repacked: &Repacked) -> Result<Option<Copied>> {
        let (disk, paths) = (&self.history.disk, &self.history.paths);
        let path = paths.storage(storage.id);
        open_whole(&**disk, &path, storage.record.length_bytes)?;
        let lock = match self.held.take() {
            Some(lock) => Some(lock),
            None => GrowthLock::try_take(disk, &path)?,
        };
        let Some(lock) = lock else { return Ok(None) };
        let mut old = VerifiedStorage::open(&**disk, paths, storage.id, &storage.record)?;
        let mut writer = old.start_copy(disk, paths)?;
        writer.copy_from(&mut old, repacked, self.progress)?;
        Ok(Some((writer.finish(self.history.is_durable())?, Some(lock))))
    }
}

impl Compacted {
    pub(super) fn skip(&mut self, storage_id: u64, reclaimable_bytes: u64, reason: SkipReason) {
        self.skipped.push(Skipped { storage_id, reclaimable_bytes, reason });
    }
}
