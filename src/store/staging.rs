//! Writes elements to storages that are not committed yet.

use std::sync::atomic::{AtomicBool, Ordering};

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{Header, RecordKind, TensorRecord};

use super::transaction::{Stage, Transaction};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{Change, Changes, OnExisting, with_space};
use crate::parallel;
use crate::storage::{StagedStorage, StorageWriter};

/// A tensor of at least this size has a storage of its own, which is freed when its last name is removed. Smaller
/// tensors of a transaction share one storage.
pub(super) const OWN_STORAGE_BYTES: u64 = 4 << 20;

/// The maximum number of storages that are finished at a time. Most of that is waiting for the disk.
const MAX_FINISH_THREADS: usize = 8;

/// Finishes the storages of a commit. After an error no other is begun. If one of those that were being finished failed to
/// sync, that is the error.
pub(super) fn finish_stages(stages: Vec<Stage>, durable: bool) -> Result<Vec<StagedStorage>> {
    let open = || {
        stages.iter().filter_map(|stage| match stage {
            Stage::Open(writer) => Some(writer),
            Stage::Finished(_) => None,
        })
    };
    // The disk writes all of them while the first ones are digested.
    open().try_for_each(StorageWriter::start_writeback)?;
    let lengths = || open().map(StorageWriter::length_bytes);
    let (longest, total) = (lengths().max().unwrap_or(0), lengths().fold(0, u64::saturating_add));
    // Several threads digest a long storage, if no other is finished beside it.
    let is_divided = durable && longest <= total / 2 && open().all(StorageWriter::is_on_disk);
    let thread_count = match is_divided {
        true => parallel::waiting_thread_count(open().count().min(MAX_FINISH_THREADS)),
        false => 1,
    };
    let (has_failed, mut failure) = (AtomicBool::new(false), None::<Error>);
    let mut finished = Vec::with_capacity(stages.len());
    parallel::in_order(
        thread_count,
        |push| stages.into_iter().try_for_each(push),
        |stage| {
            let done = match stage {
                _ if has_failed.load(Ordering::Relaxed) => return None,
                Stage::Open(writer) => writer.finish(),
                Stage::Finished(staged) => Ok(staged),
            };
            has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
            Some(done)
        },
        |done| {
            match done {
                Some(Ok(staged)) => finished.push(staged),
                Some(Err(e)) if failure.is_none() || e.is_failed_sync() => failure = Some(e),
                _ => {}
            }
            Ok::<(), Error>(())
        },
    )?;
    failure.map_or(Ok(finished), Err)
}

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
        self.staged.push(Stage::Finished(finished));
        Changes::provisional_id(self.staged.len() - 1)
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
        let index = match self.shared_stage {
            Some(index) => index,
            None => {
                let writer = StorageWriter::sealed(&store.disk, &store.paths, store.is_durable())?;
                self.staged.push(Stage::Open(writer));
                *self.shared_stage.insert(self.staged.len() - 1)
            }
        };
        let Some(Stage::Open(writer)) = self.staged.get_mut(index) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the shared storage of this transaction is already finished",
            ));
        };
        let offset_bytes = writer.align()?;
        write(writer)?;
        Ok((Changes::provisional_id(index), offset_bytes))
    }
}
