use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{
    CHUNK_BYTES, Digest, Error as FormatError, Rule, StorageKind, StorageRecord, TensorParts, TensorRecord,
    digest, digests_of_chunks, full_chunk_count,
};

use super::content::Copy;
use crate::disk::{Access, Disk, DiskFile, StorePaths, read_capped};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{View, repack};
use crate::storage::{GrowthLock, StagedStorage, StorageWriter};

const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// What tensors reach of a damaged storage, in one that has no id yet.
pub(super) struct Copied {
    /// Of the damaged one: it does not grow before the new one is published.
    pub(super) lock: GrowthLock,
    pub(super) storage: StagedStorage,
    /// The tensors, as they lie in it.
    pub(super) tensors: Vec<(String, TensorParts)>,
}

/// Copies, and verifies each chunk once more on the way.
pub(super) fn copy_storage(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    (id, record): (u64, &StorageRecord),
    copy: &Copy,
    tensors: &BTreeMap<String, TensorRecord>,
) -> Result<Copied> {
    let path = paths.storage(id);
    let StorageKind::Sealed(sealed) = &record.kind else {
        return Err(Error::new(ErrorKind::NotGrowable, format!("copy {}: not sealed", path.display())));
    };
    let lock = GrowthLock::try_take(disk, &path)?.ok_or_else(|| {
        Error::new(ErrorKind::Busy, format!("copy {}: somebody appends to it; try again", path.display()))
    })?;
    let mut old = Chunks {
        file: disk.open(&path, Access::Read).map_err(|e| Error::io("open storage", &path, e))?,
        path: path.clone(),
        length_bytes: record.length_bytes,
        digests: right_digests(&**disk, &paths.sum(id), copy.length_bytes, &copy.right)?,
        tail: sealed.tail,
        index: None,
        chunk: Vec::new(),
    };
    let standing: Vec<(&String, &TensorRecord)> =
        tensors.iter().filter(|(_, tensor)| tensor.storage_id == id).collect();
    let views: Vec<View<'_>> = standing.iter().map(|(_, tensor)| View::from(*tensor)).collect();
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
                // It is between elements, and of no meaning.
                writer.write_zeros(end - start)?;
            } else {
                let chunk = old.read(index)?;
                let within = (start % CHUNK_BYTES) as usize..(end - index * CHUNK_BYTES) as usize;
                writer.write(chunk.get(within).unwrap_or_default())?;
            }
            start = end;
        }
        Ok::<_, Error>(())
    })?;
    let moved = standing.into_iter().zip(repacked.views).map(|((name, tensor), placed)| {
        let mut parts = tensor.clone().into_parts();
        (parts.stride, parts.offset_elems) = (placed.stride, placed.offset_elems);
        (name.clone(), parts)
    });
    let tensors = moved.collect();
    Ok(Copied { lock, storage: writer.finish(disk, paths, true)?, tensors })
}

/// The chunks of a storage, each given only when it has its digest.
struct Chunks {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    length_bytes: u64,
    /// Of the full chunks, as in a `.sum` file.
    digests: Vec<u8>,
    tail: Digest,
    /// The chunk that was read last.
    index: Option<u64>,
    chunk: Vec<u8>,
}

impl Chunks {
    fn read(&mut self, index: u64) -> Result<&[u8]> {
        if self.index == Some(index) {
            return Ok(&self.chunk);
        }
        self.index = None;
        let offset_bytes = index * CHUNK_BYTES;
        let is_full = index < full_chunk_count(self.length_bytes);
        let stated =
            if is_full { digests_of_chunks(&self.digests).nth(index as usize) } else { Some(self.tail) };
        self.chunk.resize(self.length_bytes.saturating_sub(offset_bytes).min(CHUNK_BYTES) as usize, 0);
        let read = self.file.read_exact_at(&mut self.chunk, offset_bytes);
        read.map_err(|e| Error::io("read storage", &self.path, e))?;
        if stated != Some(digest(&self.chunk)) {
            let changed = "the chunk was changed since it was looked at; repair again";
            return Err(Error::corrupt(
                &self.path,
                FormatError::new(Rule::ChunkDigest, changed).at(offset_bytes),
            ));
        }
        self.index = Some(index);
        Ok(&self.chunk)
    }
}

/// The bytes of a `.sum` file with the right digests in it.
pub(super) fn right_digests(
    disk: &dyn Disk,
    path: &Path,
    length_bytes: u64,
    right: &[(u64, Digest)],
) -> Result<Vec<u8>> {
    let size_bytes = full_chunk_count(length_bytes) * DIGEST_BYTES;
    // What is not there is among the right ones.
    let mut bytes = match disk.open(path, Access::Read) {
        Ok(file) => read_capped(&*file, size_bytes).map_err(|e| Error::io("read", path, e))?,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Vec::new(),
        Err(e) => return Err(Error::io("open chunk digests", path, e)),
    };
    bytes.resize(usize::try_from(size_bytes).unwrap_or_default(), 0);
    for (index, digest) in right {
        let start = (index * DIGEST_BYTES) as usize;
        if let Some(place) = bytes.get_mut(start..start + digest.len()) {
            place.copy_from_slice(digest);
        }
    }
    Ok(bytes)
}
