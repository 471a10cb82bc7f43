//! Writes elements to storages that are not committed yet.

use std::sync::Arc;

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{DType, StorageKind as RecordKind, TensorParts, TensorRecord};

use super::snapshot::StorageKind;
use super::transaction::Transaction;
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Change, Changes};
use crate::layout::Layout;
use crate::storage::{StagedStorage, StorageWriter};
use crate::tensor::{Source, is_live};

/// A tensor of at least this size has a storage of its own, which is freed when its last name is removed. Smaller
/// tensors of a transaction share one storage.
const OWN_STORAGE_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) enum Stage {
    Open(StorageWriter),
    Whole(StagedStorage),
}

impl Transaction<'_> {
    /// Saves a row-major tensor under a name. `stage` receives the size of the elements in bytes, and writes them.
    pub(super) fn put(
        &mut self,
        action: &str,
        name: &str,
        (dtype, layout): (DType, &Layout),
        stage: impl FnOnce(&mut Self, u64) -> Result<(u64, u64)>,
    ) -> Result<()> {
        let op = format!("{action} {name:?}");
        self.check_writable(&op)?;
        self.draft.check_new(action, name, self.changes.on_existing)?;
        let size_bytes =
            (layout.numel() as u64).checked_mul(dtype.itemsize() as u64).filter(|&n| n <= MAX_STORAGE_BYTES);
        let size_bytes = size_bytes.ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                format!("{op}: size {:?} of {dtype} is too large", layout.size()),
            )
        })?;
        let staged = stage(self, size_bytes).map_err(|e| e.context(&op));
        let (storage_id, offset_bytes) = self.kept(staged)?;
        let offset_elems = offset_bytes / dtype.itemsize() as u64;
        self.apply(Change::Put {
            name: name.to_owned(),
            record: record_of(action, dtype, layout, offset_elems, storage_id)?,
        })
    }

    /// Records a failure to write. The transaction can then no longer be committed.
    pub(super) fn kept<T>(&mut self, staged: Result<T>) -> Result<T> {
        if let Err(e) = &staged {
            self.failure = Some(e.clone());
        }
        self.loader.history.watched(staged)
    }

    /// Stages a finished storage, and returns its provisional id.
    pub(super) fn stage_whole(&mut self, whole: StagedStorage) -> u64 {
        self.staged.push(Stage::Whole(whole));
        Changes::provisional_id(self.staged.len() - 1)
    }

    /// Writes a storage for one tensor. Returns the provisional id, and 0, the offset of the tensor in bytes.
    pub(super) fn stage_alone(
        &mut self,
        create: impl FnOnce(&Arc<dyn Disk>, &StorePaths) -> Result<StorageWriter>,
        size_bytes: u64,
        write: impl FnOnce(&mut StorageWriter) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let history = &self.loader.history;
        let mut writer = create(&history.disk, &history.paths)?;
        writer.reserve(size_bytes)?;
        write(&mut writer)?;
        let whole = writer.finish(history.is_durable())?;
        Ok((self.stage_whole(whole), 0))
    }

    /// Like [`stage_alone`](Self::stage_alone), for a tensor whose elements are changed in place.
    pub(super) fn stage_in_place(
        &mut self,
        kind: RecordKind,
        size_bytes: u64,
        write: impl FnOnce(&mut StorageWriter) -> Result<()>,
    ) -> Result<(u64, u64)> {
        self.stage_alone(|disk, paths| StorageWriter::in_place(kind, disk, paths), size_bytes, write)
    }

    /// Writes elements to a sealed storage. Returns the provisional id of the storage, and their offset in it in
    /// bytes.
    pub(super) fn stage_elements(
        &mut self,
        source: &(impl Source + ?Sized),
        size_bytes: u64,
    ) -> Result<(u64, u64)> {
        let history = &self.loader.history;
        if size_bytes >= OWN_STORAGE_BYTES {
            return self.stage_alone(StorageWriter::sealed, size_bytes, |writer| {
                write_elements(source, size_bytes, |bytes| writer.write(bytes))
            });
        }
        let index = match self.pack {
            Some(index) => index,
            None => {
                self.staged.push(Stage::Open(StorageWriter::sealed(&history.disk, &history.paths)?));
                *self.pack.insert(self.staged.len() - 1)
            }
        };
        let Some(Stage::Open(writer)) = self.staged.get_mut(index) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the shared storage of this transaction is sealed",
            ));
        };
        let offset_bytes = writer.align()?;
        write_elements(source, size_bytes, |bytes| writer.write(bytes))?;
        Ok((Changes::provisional_id(index), offset_bytes))
    }
}

/// Returns the layout of a row-major copy.
pub(super) fn layout_for(source: &(impl Source + ?Sized)) -> Result<Layout> {
    let layout = Layout::contiguous(&source.size())?;
    match source.names().as_slice() {
        [] => Ok(layout),
        names => layout.rename(names),
    }
}

/// Returns the kind of record for elements of this dtype that are changed in place, or `None` for a sealed storage.
pub(super) fn in_place_kind(op: &str, kind: StorageKind, dtype: DType) -> Result<Option<RecordKind>> {
    let why = match kind {
        StorageKind::Sealed => return Ok(None),
        StorageKind::Mutable => return Ok(Some(RecordKind::Mutable)),
        StorageKind::Live if is_live(dtype) => {
            return Ok(Some(RecordKind::Live { access_bytes: dtype.itemsize() as u8 }));
        }
        StorageKind::Live => {
            format!(
                "elements of {dtype} cannot be live; those that can are integers of 8 to 64 bits, float16, bfloat16, \
                 float32 and float64"
            )
        }
        StorageKind::External => {
            "an external storage is a file outside the store; choose Mutable or Live, or save the elements as \
             Sealed"
                .to_owned()
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {why}")))
}

/// Calls `write` with a sink, and returns the first error of the sink even if `write` ignores it: what it has written
/// would not be what it was given.
pub(super) fn write_to_sink(
    mut sink: impl FnMut(&[u8]) -> Result<()>,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut failure = None;
    let written = write(&mut |bytes| match &failure {
        Some(e) => Err(Error::clone(e)),
        None => sink(bytes).inspect_err(|e| failure = Some(e.clone())),
    });
    failure.map_or(written, Err)
}

/// Passes all elements to `write`. They must be `size_bytes` bytes.
pub(super) fn write_elements(
    source: &(impl Source + ?Sized),
    size_bytes: u64,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut written_bytes = 0u64;
    let sink = |bytes: &[u8]| {
        written_bytes = written_bytes.saturating_add(bytes.len() as u64);
        if written_bytes > size_bytes { Ok(()) } else { write(bytes) }
    };
    write_to_sink(sink, |sink| source.write_to(sink))?;
    if written_bytes == size_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::SizeMismatch,
        format!("the size says {size_bytes} bytes of elements, but the source wrote {written_bytes}"),
    ))
}

pub(super) fn record_of(
    action: &str,
    dtype: DType,
    layout: &Layout,
    offset_elems: u64,
    storage_id: u64,
) -> Result<TensorRecord> {
    TensorRecord::new(TensorParts {
        dtype,
        size: layout.size().iter().map(|&n| n as u64).collect(),
        stride: layout.stride().iter().map(|&n| n as i64).collect(),
        offset_elems,
        storage_id,
        dim_names: layout
            .has_names()
            .then(|| layout.names().map(|name| name.as_deref().map(str::to_owned)).collect()),
    })
    .map_err(|e| Error::refused(action, e))
}
