//! Copies the part of a damaged storage that can be read.

use std::collections::BTreeMap;

use stridemap_format::{StorageRecord, TensorParts, TensorRecord};

use super::content::CopyPlan;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::OpenStore;
use crate::layout::repack;
use crate::storage::{GrowthLock, StagedStorage, VerifiedStorage};

/// A new storage with the bytes that tensors refer to in a damaged one.
pub(super) struct Copied {
    /// The lock of the damaged storage, so that it does not grow before the new one is published.
    pub(super) lock: GrowthLock,
    pub(super) storage: StagedStorage,
    /// The tensors in the new storage.
    pub(super) tensors: Vec<(String, TensorRecord)>,
}

/// Copies the bytes that tensors use in a storage to a new storage, which will have the id `new_id`. Verifies each
/// chunk once more.
pub(super) fn copy_storage(
    store: &OpenStore,
    (id, record): (u64, &StorageRecord),
    plan: &CopyPlan,
    tensors: &BTreeMap<String, TensorRecord>,
    new_id: u64,
) -> Result<Copied> {
    let (disk, paths) = (&store.disk, &store.paths);
    let path = paths.storage(id);
    let lock = take_growth_lock(store, id)?;
    let (corrected, damaged) = (&plan.corrected, &plan.damaged);
    let mut old = VerifiedStorage::open_salvaged(&**disk, paths, (id, record), corrected, damaged)?;
    let kept: Vec<(&String, &TensorRecord)> =
        tensors.iter().filter(|(_, tensor)| tensor.storage_id == id).collect();
    let views: Vec<&TensorParts> = kept.iter().map(|(_, tensor)| &***tensor).collect();
    let repacked = repack(&views, plan.length_bytes).map_err(|e| Error::corrupt(&path, e))?;
    let mut writer = old.start_copy(disk, paths, true)?;
    // None of these tensors has elements in a damaged chunk.
    writer.copy_from(&mut old, &repacked, &mut |_| ())?;
    let moved = kept.into_iter().zip(repacked.views).map(|((name, tensor), placed)| {
        let header = placed.header(tensor, new_id).map_err(|e| Error::refused("repair", e))?;
        Ok((name.clone(), header))
    });
    let tensors = moved.collect::<Result<_>>()?;
    Ok(Copied { lock, storage: writer.finish()?, tensors })
}

/// Takes the growth lock of a storage, so that no append changes its files while they are copied or replaced.
pub(super) fn take_growth_lock(store: &OpenStore, id: u64) -> Result<GrowthLock> {
    let path = store.paths.storage(id);
    GrowthLock::try_take(&store.disk, &path)?.ok_or_else(|| {
        let message = format!(
            "repair {}: another process is appending to this storage; repair again when the append is done",
            path.display()
        );
        Error::new(ErrorKind::Busy, message)
    })
}
