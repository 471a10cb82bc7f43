//! The storages that one commit stages: some have files of their own, and small ones share a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::{Disk, StorePaths};
use crate::error::{Error, ErrorKind, Result};
use crate::parallel;
use crate::storage::{ALIGNMENT_BYTES, StagedStorage, Storage, StorageWriter};

/// What has at least this size has a storage of its own, which is freed when its last name is removed. What is smaller
/// shares a storage with the rest of its commit, because very many small files are slow.
pub(crate) const OWN_STORAGE_BYTES: u64 = 4 << 20;

/// The maximum number of storages that are finished at a time. Most of that is waiting for the disk.
const MAX_FINISH_THREADS: usize = 8;

/// From this length on, the next small storages share another one, so that what is removed later can be freed by a rewrite
/// of this length.
const MAX_SHARED_BYTES: u64 = 64 << 20;

/// The storages that a commit stages, by index.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    stages: Vec<Stage>,
    /// The index of the storage that small tensors share.
    shared: Option<usize>,
    /// Whether a write to it has failed after it began, so that bytes that were written before may be missing.
    is_torn: bool,
}

#[derive(Debug)]
enum Stage {
    Open(StorageWriter),
    Finished(StagedStorage),
}

impl Stages {
    /// Returns the number of storages.
    pub(crate) fn len(&self) -> usize {
        self.stages.len()
    }

    /// Adds a finished storage, and returns its index.
    pub(crate) fn push(&mut self, finished: StagedStorage) -> usize {
        self.push_stage(Stage::Finished(finished))
    }

    /// Adds a storage that [`finish`](Self::finish) finishes, and returns its index.
    pub(crate) fn push_open(&mut self, writer: StorageWriter) -> usize {
        self.push_stage(Stage::Open(writer))
    }

    fn push_stage(&mut self, stage: Stage) -> usize {
        self.stages.push(stage);
        self.stages.len() - 1
    }

    /// Replaces a storage.
    pub(crate) fn replace(&mut self, index: usize, finished: StagedStorage) {
        if let Some(stage) = self.stages.get_mut(index) {
            *stage = Stage::Finished(finished);
        }
    }

    /// Returns a finished storage.
    pub(crate) fn finished(&self, index: usize) -> Option<&StagedStorage> {
        match self.stages.get(index)? {
            Stage::Open(_) => None,
            Stage::Finished(staged) => Some(staged),
        }
    }

    /// Returns the sealed storage that small tensors share, with its index. The first call creates it.
    pub(crate) fn shared(
        &mut self,
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        durable: bool,
    ) -> Result<(usize, &mut StorageWriter)> {
        let index = match self.shared {
            Some(index) => index,
            None => {
                let index = self.push_open(StorageWriter::sealed(disk, paths, durable)?);
                *self.shared.insert(index)
            }
        };
        match self.stages.get_mut(index) {
            Some(Stage::Open(writer)) => Ok((index, writer)),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the shared storage of this transaction is already finished",
            )),
        }
    }

    /// Writes bytes to a storage that small ones share, where a tensor may begin. Returns its index, the offset, and the bytes
    /// by which it became longer.
    ///
    /// # Errors
    /// If it [`is_torn`](Self::is_torn) then, what was written before cannot be committed either.
    pub(crate) fn write_shared(
        &mut self,
        (disk, paths, durable): (&Arc<dyn Disk>, &StorePaths, bool),
        bytes: &[u8],
    ) -> Result<(usize, u64, u64)> {
        let is_full = |writer: &StorageWriter| writer.length_bytes() >= MAX_SHARED_BYTES;
        if let Some(Stage::Open(writer)) = self.shared.and_then(|index| self.stages.get(index))
            && is_full(writer)
        {
            self.shared = None;
        }
        let (index, writer) = self.shared(disk, paths, durable)?;
        let old_bytes = writer.length_bytes();
        let offset_bytes = old_bytes.next_multiple_of(ALIGNMENT_BYTES);
        // If there is no space, nothing has been written yet.
        let added_bytes = offset_bytes - old_bytes + bytes.len() as u64;
        writer.reserve(added_bytes)?;
        let written = writer.align().and_then(|_| writer.write(bytes));
        self.is_torn |= written.is_err();
        written.map(|()| (index, offset_bytes, added_bytes))
    }

    /// Whether a write to the storage that small ones share has failed after it began.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Returns the bytes of a storage with a provisional identity, so that the transaction itself can read them. Returns
    /// `None` if there is no storage at the index.
    pub(crate) fn as_storage(&self, index: usize, identity: (u64, u64)) -> Result<Option<Arc<Storage>>> {
        Ok(match self.stages.get(index) {
            Some(Stage::Open(writer)) => Some(writer.as_storage(identity)?),
            Some(Stage::Finished(staged)) => Some(staged.as_storage(identity)),
            None => None,
        })
    }

    /// Finishes the storages. After an error no other is begun. If one of those that were being finished failed to sync,
    /// that is the error.
    pub(crate) fn finish(self, durable: bool) -> Result<Vec<StagedStorage>> {
        let stages = self.stages;
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
}
