use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, StorageKind, StorageRecord, TensorParts, TensorRecord};

use super::content::PartialCopy;
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{View, repack};
use crate::storage::{GrowthLock, StagedStorage, StorageWriter, VerifiedStorage};

/// A new storage, without an id yet, with the bytes that tensors refer to in a damaged one.
pub(super) struct Copied {
    /// The lock of the damaged storage: it does not grow before the new one is published.
    pub(super) lock: GrowthLock,
    pub(super) storage: StagedStorage,
    /// The tensors, as laid out in the new storage.
    pub(super) tensors: Vec<(String, TensorParts)>,
}

/// Copies what the tensors on a storage refer to, and verifies each chunk once more.
pub(super) fn copy_storage(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    (id, record): (u64, &StorageRecord),
    copy: &PartialCopy,
    tensors: &BTreeMap<String, TensorRecord>,
) -> Result<Copied> {
    let path = paths.storage(id);
    let StorageKind::Sealed(sealed) = &record.kind else {
        return Err(Error::new(ErrorKind::NotGrowable, format!("copy {}: not sealed", path.display())));
    };
    let lock = GrowthLock::try_take(disk, &path)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Busy,
            format!("copy {}: another process is appending to it; repair again", path.display()),
        )
    })?;
    let stated = (record.length_bytes, sealed);
    let mut old = VerifiedStorage::open_corrected(&**disk, paths, id, stated, &copy.corrected)?;
    let kept: Vec<(&String, &TensorRecord)> =
        tensors.iter().filter(|(_, tensor)| tensor.storage_id == id).collect();
    let views: Vec<View<'_>> = kept.iter().map(|(_, tensor)| View::from(*tensor)).collect();
    let repacked = repack(&views, copy.length_bytes).map_err(|e| Error::corrupt(&path, e))?;
    let mut writer = StorageWriter::sealed(disk, paths)?;
    writer.reserve_address_space(sealed.reserved_bytes);
    writer.reserve(repacked.length_bytes)?;
    repacked.each_move(&mut |range, new_start| {
        writer.pad_to(new_start)?;
        let mut start = range.start;
        while start < range.end {
            let index = start / CHUNK_BYTES;
            let end = range.end.min((index + 1) * CHUNK_BYTES);
            if copy.damaged.contains(&index) {
                // No tensor has elements in these bytes.
                writer.zeros_up_to(writer.length_bytes() + (end - start))?;
            } else {
                old.read(start..end, |bytes| writer.write(bytes))?;
            }
            start = end;
        }
        Ok::<_, Error>(())
    })?;
    let moved = kept.into_iter().zip(repacked.views).map(|((name, tensor), placed)| {
        let mut parts = tensor.clone().into_parts();
        (parts.stride, parts.offset_elems) = (placed.stride, placed.offset_elems);
        (name.clone(), parts)
    });
    let tensors = moved.collect();
    Ok(Copied { lock, storage: writer.finish(disk, paths, true)?, tensors })
}
