//! How elements come to be in storages that wait for a commit.

use std::sync::Arc;

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{DType, StorageKind as RecordKind, TensorParts, TensorRecord};

use super::snapshot::StorageKind;
use super::transaction::Transaction;
use crate::commit::{Change, Changes};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
#[cfg(feature = "interop")]
use crate::storage::ExternalFile;
use crate::storage::{StagedStorage, StorageWriter};
use crate::tensor::{Source, is_live};

/// From this size on a tensor has a storage of its own, whose space comes back when its last name goes. Below, all
/// tensors of a transaction share one.
const OWN_STORAGE_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) enum Stage {
    Open(StorageWriter),
    Whole(StagedStorage),
}

impl Transaction<'_> {
    /// Gives a name to a row-major tensor that `stage` writes, of so many bytes.
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
        if let Err(e) = &staged {
            self.failure = Some(e.clone());
        }
        let (storage_id, offset_bytes) = self.loader.history.watched(staged)?;
        let offset_elems = offset_bytes / dtype.itemsize() as u64;
        self.apply(Change::Put {
            name: name.to_owned(),
            record: record_of(action, dtype, layout, offset_elems, storage_id)?,
        })
    }

    /// Gives a name to a tensor that stands alone in its bytes, in row-major or column-major order, which `source` gives.
    #[cfg(feature = "interop")]
    pub(crate) fn save_dense(
        &mut self,
        action: &str,
        name: &str,
        layout: &Layout,
        source: &impl Source,
    ) -> Result<()> {
        self.put(action, name, (source.dtype(), layout), |txn, size_bytes| txn.stage(source, size_bytes))
    }

    /// Writes a sealed storage of so many bytes, for as many tensors as will be; gives its provisional id.
    #[cfg(feature = "interop")]
    pub(crate) fn stage_storage(
        &mut self,
        action: &str,
        length_bytes: u64,
        write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<u64> {
        self.check_writable(action)?;
        let staged = self.stage_alone(StorageWriter::sealed, length_bytes, |writer| {
            write(&mut |bytes| writer.write(bytes))
        });
        let staged = staged.map_err(|e| e.context(action));
        if let Err(e) = &staged {
            self.failure = Some(e.clone());
        }
        Ok(self.loader.history.watched(staged)?.0)
    }

    /// Refuses a name that [`save_header`](Self::save_header) would refuse, before anything is written for it.
    #[cfg(feature = "interop")]
    pub(crate) fn check_free(&self, action: &str, name: &str) -> Result<()> {
        self.draft.check_new(action, name, self.changes.on_existing)
    }

    /// Stages a sealed storage that is all of a file and shares its blocks on the disk; gives its provisional id. None where
    /// the file system cannot share them.
    #[cfg(feature = "interop")]
    pub(crate) fn stage_shared(
        &mut self,
        action: &str,
        file: &ExternalFile,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<u64>> {
        self.check_writable(action)?;
        let history = &self.loader.history;
        let staged = StorageWriter::sharing(&history.disk, &history.paths, file, progress);
        let staged = staged.and_then(|writer| {
            writer.map(|it| it.finish(&history.disk, &history.paths, history.is_durable())).transpose()
        });
        let staged = staged.map_err(|e| e.context(action));
        if let Err(e) = &staged {
            self.failure = Some(e.clone());
        }
        Ok(history.watched(staged)?.map(|whole| self.stage_whole(whole)))
    }

    /// Stages a storage that is whole; gives its provisional id.
    pub(super) fn stage_whole(&mut self, whole: StagedStorage) -> u64 {
        self.staged.push(Stage::Whole(whole));
        Changes::provisional_id(self.staged.len() - 1)
    }

    /// Stages ranges of files that are not the store's, each from its offset on and of its length; gives their provisional
    /// ids. Nothing is written, and nothing staged before all files may be.
    #[cfg(feature = "interop")]
    pub(crate) fn stage_ranges<'f, R: IntoIterator<Item = (u64, u64)>>(
        &mut self,
        action: &str,
        files: impl Iterator<Item = (&'f ExternalFile, R)>,
    ) -> Result<Vec<u64>> {
        self.check_writable(action)?;
        let externals = &self.loader.externals;
        let files = files.map(|(file, ranges)| Ok((externals.adopt(file)?, ranges)));
        let files = files.collect::<Result<Vec<_>>>().map_err(|e| e.context(action))?;
        let mut ids = Vec::new();
        for ((path, file), ranges) in files {
            for (offset_bytes, length_bytes) in ranges {
                let disk = &self.loader.history.disk;
                let staged = StagedStorage::external(disk, (path.clone(), &file), offset_bytes, length_bytes);
                ids.push(self.stage_whole(staged));
            }
        }
        Ok(ids)
    }

    /// Gives a name to a header over a storage that this transaction has staged.
    #[cfg(feature = "interop")]
    pub(crate) fn save_header(
        &mut self,
        action: &str,
        name: &str,
        (dtype, layout): (DType, &Layout),
        storage_id: u64,
    ) -> Result<()> {
        let record = record_of(action, dtype, layout, layout.offset() as u64, storage_id)?;
        self.apply(Change::Put { name: name.to_owned(), record })
    }

    /// Writes a storage for one tensor; gives its provisional id, and that the tensor begins at its beginning.
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
        let whole = writer.finish(&history.disk, &history.paths, history.is_durable())?;
        Ok((self.stage_whole(whole), 0))
    }

    /// Writes a storage for one tensor whose elements are changed in place; as [`stage_alone`](Self::stage_alone).
    pub(super) fn stage_in_place(
        &mut self,
        kind: RecordKind,
        size_bytes: u64,
        write: impl FnOnce(&mut StorageWriter) -> Result<()>,
    ) -> Result<(u64, u64)> {
        self.stage_alone(|disk, paths| StorageWriter::in_place(kind, disk, paths), size_bytes, write)
    }

    /// Writes elements that will not change; gives the provisional id of their storage and where in it they begin.
    pub(super) fn stage(&mut self, source: &(impl Source + ?Sized), size_bytes: u64) -> Result<(u64, u64)> {
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

/// The layout of a row-major copy.
pub(super) fn layout_for(source: &(impl Source + ?Sized)) -> Result<Layout> {
    let layout = Layout::contiguous(&source.size())?;
    match source.names().as_slice() {
        [] => Ok(layout),
        names => layout.rename(names),
    }
}

/// The kind of storage that elements of this dtype are changed in place on; none for a sealed one.
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
            "an external storage is a file that is not the store's; choose Mutable or Live, or save the elements as \
             Sealed"
                .to_owned()
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {why}")))
}

/// Gives all elements to `write`, which are to be so many bytes.
pub(super) fn write_elements(
    source: &(impl Source + ?Sized),
    size_bytes: u64,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut written_bytes = 0u64;
    source.write_to(&mut |bytes| {
        written_bytes = written_bytes.saturating_add(bytes.len() as u64);
        if written_bytes > size_bytes { Ok(()) } else { write(bytes) }
    })?;
    if written_bytes == size_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::SizeMismatch,
        format!("the size says {size_bytes} bytes of elements, and {written_bytes} came"),
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
