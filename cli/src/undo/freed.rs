//! The bytes that a removal of tensors frees, and those that stay because other tensors are on the same storage.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use indicatif::HumanBytes;
use serde::Serialize;
use stridemap::maintenance::{DiskUsage, SpaceReason, SpareFile};
use stridemap::{Result as LibraryResult, Snapshot, StorageInfo, StorageKind, Store, TensorInfo};

use crate::by_storage::by_storage;
use crate::error::Result;
use crate::look::sharing::MAX_STEPS;
use crate::names::{command_line, quoted};
use crate::plan::info;

/// The minimum number of kept bytes for a note.
const MIN_REPORTED_BYTES: u64 = 4096;

/// Without `--all`, `compact` rewrites a storage only if that frees at least this many bytes, and a quarter of it.
const MIN_COMPACTED_BYTES: u64 = 4096;

#[derive(Default)]
pub(crate) struct Freed {
    /// The storages in the store that lose all their tensors.
    storages: Vec<StorageInfo>,
    /// The sealed storages of which a part becomes unreachable.
    shared: Vec<Shared>,
    /// Why other storages lose no bytes; the first reason.
    kept: Option<Kept>,
}

/// Why a removal leaves all bytes of a storage.
enum Kept {
    /// Tensors that stay use some of them, such as this one.
    Shared(String),
    /// They are in a file that is changed in place, with those of other tensors.
    InPlace,
    /// They are in a file that was imported in place.
    External,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Shared(other) => write!(f, "other tensors use the bytes, such as {}", quoted(other)),
            Kept::InPlace => {
                f.write_str("the bytes are in files that are changed in place, with those of other tensors")
            }
            Kept::External => f.write_str("the bytes are in files that were imported in place"),
        }
    }
}

/// When the bytes that only removed tensors used become free.
#[derive(Serialize)]
pub(crate) struct Frees {
    /// With the removal.
    pub(crate) freed_bytes: u64,
    /// With `compact` after it.
    pub(crate) compact_bytes: u64,
    /// Not before tags are removed.
    pub(crate) tagged_bytes: u64,
    /// Whether `compact` needs `--all` for some of them.
    #[serde(skip)]
    needs_all: bool,
    /// Why it is nothing.
    #[serde(skip)]
    reason: String,
}

impl fmt::Display for Frees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compact = if self.needs_all { "after compact --all" } else { "after compact" };
        match [self.freed_bytes, self.compact_bytes] {
            [0, 0] => f.write_str("nothing")?,
            [now, 0] => write!(f, "{}", HumanBytes(now))?,
            [0, later] => write!(f, "{} {compact}", HumanBytes(later))?,
            [now, later] => write!(f, "{}, and {} {compact}", HumanBytes(now), HumanBytes(later))?,
        }
        match self.tagged_bytes {
            0 => f.write_str(&self.reason),
            bytes => write!(f, "; tags keep {}", HumanBytes(bytes)),
        }
    }
}

/// A storage that keeps some of its tensors.
struct Shared {
    id: u64,
    /// How many bytes become unreachable.
    kept_bytes: u64,
    /// A tensor that remains.
    keeper: String,
    /// Whether `compact` needs `--all` to free the bytes.
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
                match storage.kind {
                    StorageKind::External => freed.kept = freed.kept.or(Some(Kept::External)),
                    _ => freed.storages.push(storage),
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
                let unreachable_bytes = storage.size_bytes.saturating_sub(after_bytes);
                let needs_all = unreachable_bytes < (storage.size_bytes / 4).max(MIN_COMPACTED_BYTES);
                let keeper = keeper.name.clone();
                freed.shared.push(Shared { id: storage.id, kept_bytes, keeper, needs_all });
            } else {
                freed.kept = freed.kept.or_else(|| match storage.kind {
                    StorageKind::External => Some(Kept::External),
                    _ if kept_bytes > 0 => Some(Kept::InPlace),
                    _ => sharer(removed, &all, &rest).map(Kept::Shared),
                });
            }
        }
        Ok(freed)
    }

    /// Returns the ids of the storages that lose all or some of their tensors.
    pub(crate) fn ids(&self) -> BTreeSet<u64> {
        let whole = self.storages.iter().map(|storage| storage.id);
        whole.chain(self.shared.iter().map(|shared| shared.id)).collect()
    }

    /// Returns when the bytes become free. Tags keep the `tagged` storages.
    pub(crate) fn frees(&self, tagged: &BTreeSet<u64>) -> Frees {
        let mut frees = Frees {
            freed_bytes: 0,
            compact_bytes: 0,
            tagged_bytes: 0,
            needs_all: false,
            reason: String::new(),
        };
        let whole = self.storages.iter().map(|storage| (storage.id, storage.size_bytes, true));
        let parts = self.shared.iter().map(|shared| (shared.id, shared.kept_bytes, false));
        for (id, bytes, is_whole) in whole.chain(parts) {
            let sum = match (tagged.contains(&id), is_whole) {
                (true, _) => &mut frees.tagged_bytes,
                (false, true) => &mut frees.freed_bytes,
                (false, false) => &mut frees.compact_bytes,
            };
            *sum = sum.saturating_add(bytes);
        }
        let is_left = |shared: &Shared| shared.needs_all && !tagged.contains(&shared.id);
        frees.needs_all = self.shared.iter().any(is_left);
        if let (Some(kept), [0, 0, 0]) =
            (&self.kept, [frees.freed_bytes, frees.compact_bytes, frees.tagged_bytes])
        {
            frees.reason = format!(": {kept}");
        }
        frees
    }

    /// Returns the total length of the storages that are deleted. One that a reader or a tag still needs is not deleted
    /// yet.
    pub(crate) fn bytes(&self, is_deleted: impl Fn(&StorageInfo) -> bool) -> u64 {
        self.storages.iter().filter(|storage| is_deleted(storage)).map(|storage| storage.size_bytes).sum()
    }

    /// Returns how many bytes of elements no tensor refers to afterwards.
    pub(crate) fn lost_bytes(&self) -> u64 {
        let kept_bytes = self.shared.iter().map(|shared| shared.kept_bytes);
        kept_bytes.fold(self.bytes(|_| true), u64::saturating_add)
    }

    /// Returns a note about the bytes that become unreachable and stay, if they are many. `compact` does not free those of
    /// `tagged` storages, which a tag keeps.
    pub(crate) fn note(&self, store: &Path, tagged: &BTreeSet<u64>) -> Option<String> {
        let shared: Vec<&Shared> = self.shared.iter().filter(|shared| !tagged.contains(&shared.id)).collect();
        let kept_bytes = shared.iter().map(|shared| shared.kept_bytes).fold(0, u64::saturating_add);
        let first = shared.first().filter(|_| kept_bytes >= MIN_REPORTED_BYTES)?;
        Some(note(kept_bytes, &first.keeper, shared.iter().any(|shared| shared.needs_all), store))
    }
}

/// Returns a tensor of the `rest` that shares bytes with a removed one, if that does not take long to find out. Without one,
/// the removed tensors are empty, or their bytes are too few for a shorter storage.
fn sharer(removed: &BTreeSet<String>, all: &[TensorInfo], rest: &[TensorInfo]) -> Option<String> {
    let mut steps_left = MAX_STEPS;
    let removed = all.iter().filter(|info| info.header.numel() > 0 && removed.contains(&info.name));
    removed.take(4).find_map(|removed| {
        let shares = |other: &&TensorInfo| removed.overlaps_within(other, &mut steps_left) == Some(true);
        rest.iter().find(shares).map(|other| other.name.clone())
    })
}

/// Returns a note about bytes that no tag keeps any more, but which stay because other tensors are on the same storages, if
/// they are many. The disk usages are from before and after.
pub(crate) fn note_without_tags(store: &Store, before: &DiskUsage, after: &DiskUsage) -> Option<String> {
    let was_tagged = |file: &&SpareFile| {
        let is_of_tag = |reason: &SpaceReason| matches!(reason, SpaceReason::Tagged { .. });
        before.spare.iter().any(|old| old.path == file.path && is_of_tag(&old.reason))
    };
    let mut sealed = BTreeSet::new();
    for storage in store.latest().ok()?.storages() {
        let storage = storage.ok()?;
        sealed.extend((storage.kind == StorageKind::Sealed).then_some(storage.id));
    }
    let is_compacted = |file: &&SpareFile| {
        matches!(file.reason, SpaceReason::Unreached | SpaceReason::Kept)
            && file.storage_id.is_some_and(|id| sealed.contains(&id))
    };
    let files: Vec<&SpareFile> = after.spare.iter().filter(is_compacted).filter(was_tagged).collect();
    let bytes = files.iter().map(|file| file.spare_bytes).fold(0, u64::saturating_add);
    let keeper = files.first()?.names.first().filter(|_| bytes >= MIN_REPORTED_BYTES)?;
    Some(note(bytes, keeper, files.iter().any(|file| file.reason == SpaceReason::Kept), store.path()))
}

fn note(bytes: u64, keeper: &str, needs_all: bool, store: &Path) -> String {
    let compact =
        command_line(if needs_all { "compact --all" } else { "compact" }, &[&store.to_string_lossy()]);
    format!(
        "note: {} are now unused, but remain in storages of other tensors, such as {}; free them with {compact}",
        HumanBytes(bytes),
        quoted(keeper)
    )
}
