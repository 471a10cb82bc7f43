//! The bytes that a removal of tensors frees, and those that stay because other tensors are on the same storage.

use std::collections::BTreeSet;
use std::path::Path;

use indicatif::HumanBytes;
use stridemap::{Result as LibraryResult, Snapshot, StorageInfo, StorageKind, TensorInfo};

use super::plan::info;
use crate::error::Result;
use crate::look::sharing::by_storage;
use crate::names::quoted;

/// The minimum number of kept bytes for a note.
const MIN_REPORTED_BYTES: u64 = 4096;

/// Without `--all`, `compact` rewrites a storage only if that frees at least this many bytes, and a quarter of it.
const MIN_COMPACTED_BYTES: u64 = 4096;

#[derive(Default)]
pub(crate) struct Freed {
    /// The storages in the store that lose all their tensors.
    storages: Vec<StorageInfo>,
    /// How many bytes of other sealed storages become unreachable.
    kept_bytes: u64,
    /// A tensor that remains on one of those storages.
    keeper: Option<String>,
    /// Whether `compact` needs `--all` to free all kept bytes.
    needs_all: bool,
}

impl Freed {
    /// Returns what the removal of these names frees. The snapshot is from before the removal.
    pub(crate) fn of(removed: &BTreeSet<String>, snapshot: &Snapshot) -> Result<Self> {
        let removed_infos = removed.iter().filter_map(|name| info(snapshot, name).transpose());
        let changed: BTreeSet<u64> =
            removed_infos.map(|info| Ok(info?.storage_id)).collect::<LibraryResult<_>>()?;
        let is_changed = |info: &LibraryResult<TensorInfo>| {
            info.as_ref().map_or(true, |info| changed.contains(&info.storage_id))
        };
        let mut by_storage = by_storage(snapshot.iter_tensors("")?.filter(is_changed))?;
        let mut freed = Freed::default();
        for storage in snapshot.storages() {
            let storage = storage?;
            let Some(all) = by_storage.remove(&storage.id) else { continue };
            let is_left = |info: &&TensorInfo| !removed.contains(&info.name);
            let rest: Vec<TensorInfo> = all.iter().filter(is_left).cloned().collect();
            let Some(keeper) = rest.first() else {
                if storage.kind != StorageKind::External {
                    freed.storages.push(storage);
                }
                continue;
            };
            // Tensors can be removed from a damaged storage too.
            let (Ok(before_bytes), Ok(after_bytes)) =
                (storage.compacted_bytes(&all), storage.compacted_bytes(&rest))
            else {
                continue;
            };
            let kept_bytes = before_bytes.saturating_sub(after_bytes);
            if storage.kind == StorageKind::Sealed && kept_bytes > 0 {
                freed.kept_bytes += kept_bytes;
                let unreachable_bytes = storage.size_bytes.saturating_sub(after_bytes);
                freed.needs_all |= unreachable_bytes < (storage.size_bytes / 4).max(MIN_COMPACTED_BYTES);
                freed.keeper.get_or_insert(keeper.name.clone());
            }
        }
        Ok(freed)
    }

    /// Returns the ids of the storages that lose all their tensors.
    pub(super) fn ids(&self) -> BTreeSet<u64> {
        self.storages.iter().map(|storage| storage.id).collect()
    }

    /// Returns the total length of the storages that are deleted. One that a reader or a tag still needs is not deleted
    /// yet.
    pub(super) fn bytes(&self, is_deleted: impl Fn(&StorageInfo) -> bool) -> u64 {
        self.storages.iter().filter(|storage| is_deleted(storage)).map(|storage| storage.size_bytes).sum()
    }

    /// Returns how many bytes of elements no tensor refers to afterwards.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.bytes(|_| true).saturating_add(self.kept_bytes)
    }

    /// Returns a note about the bytes that become unreachable and stay, if they are many.
    pub(super) fn note(&self, store: &Path) -> Option<String> {
        let keeper = self.keeper.as_ref().filter(|_| self.kept_bytes >= MIN_REPORTED_BYTES)?;
        let (bytes, keeper, store) = (HumanBytes(self.kept_bytes), quoted(keeper), store.display());
        let all = if self.needs_all { "--all " } else { "" };
        Some(format!(
            "note: {bytes} are now unused, but remain in storages of other tensors, such as {keeper}; free them with \
             stridemap compact {all}{store}"
        ))
    }
}
