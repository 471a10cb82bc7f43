//! Writes elements to storages that are not committed yet.

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{Header, RecordKind, TensorRecord};

use super::transaction::Transaction;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{Change, Changes, OnExisting, with_space};
use crate::storage::{StagedStorage, StorageWriter};

impl Transaction<'_> {
    /// Saves a row-major tensor under a name. `stage` receives the size of the elements in bytes and writes them. It
    /// returns the provisional id of the storage, and their offset in it in bytes.
    pub(super) fn put(
        &mut self,
        (action, on_existing): (&'static str, OnExisting),
        name: &str,
        header: Header,
        stage: impl FnOnce(&mut Self, u64) -> Result<(u64, u64)>,
    ) -> Result<()> {
        let op = format_args!("{action} {name:?}");
        self.check_writable(op)?;
        self.draft.check_new(action, name, on_existing)?;
        let (dtype, size_bytes) = (header.dtype(), header.nbytes() as u64);
        if size_bytes > MAX_STORAGE_BYTES {
            let message = format!("{op}: size {:?} of {dtype} is too large", header.size());
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let staged = stage(self, size_bytes).context(op);
        let (storage_id, offset_bytes) = self.record_failure(staged)?;
        let header = header.with_storage_offset(offset_bytes as usize / dtype.itemsize()).into();
        let record = TensorRecord { header, storage_id };
        self.draft.apply(Change::Put { action, name: name.to_owned(), record }, on_existing)
    }

    /// Returns the result of a write, and records a failure: the transaction can then no longer be committed.
    pub(super) fn record_failure<T>(&mut self, staged: Result<T>) -> Result<T> {
        if let Err(e) = &staged {
            self.failure = Some(e.clone());
        }
        self.loader.store.record_failure(staged)
    }

    /// Stages a finished storage, and returns its provisional id.
    pub(super) fn stage_finished(&mut self, finished: StagedStorage) -> u64 {
        Changes::provisional_id(self.staged.push(finished))
    }

    /// Writes a storage for one tensor: sealed, or of a `kind` that is changed in place. Returns the provisional id,
    /// and the offset of the tensor in bytes, which is 0.
    pub(super) fn stage_own(
        &mut self,
        kind: Option<RecordKind>,
        size_bytes: u64,
        write: impl FnOnce(&mut StorageWriter) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let store = &self.loader.store;
        let mut writer = with_space(store, || {
            let mut writer = match kind.clone() {
                None => StorageWriter::sealed(&store.disk, &store.paths, store.is_durable())?,
                Some(kind) => StorageWriter::in_place(kind, &store.disk, &store.paths, store.is_durable())?,
            };
            writer.reserve(size_bytes)?;
            Ok(writer)
        })?;
        write(&mut writer)?;
        let finished = writer.finish()?;
        Ok((self.stage_finished(finished), 0))
    }

    /// Writes to the sealed storage that small tensors share. Returns the provisional id of the storage, and the offset
    /// in it, in bytes, of what `write` writes.
    pub(super) fn stage_small(
        &mut self,
        write: impl FnOnce(&mut StorageWriter) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let store = &self.loader.store;
        let (index, writer) = self.staged.shared(&store.disk, &store.paths, store.is_durable())?;
        let offset_bytes = writer.align()?;
        write(writer)?;
        Ok((Changes::provisional_id(index), offset_bytes))
    }
}
