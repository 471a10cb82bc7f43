//! Copies external storages into the store.

use stridemap_format::{RecordKind, StorageRecord};

use super::compact::repacked;
use super::rewrite::{Compacted, Rewrite, Rewritten, rewrite_all};
use super::rewrite_candidates::Candidate;
use super::storage_tensors::{StorageTensors, each_storage};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::OpenStore;
use crate::layout::Repacked;
use crate::storage::{Storage, StorageWriter, UnverifiedStorage};

/// Copies the bytes that tensors refer to in external storages into sealed storages.
pub(crate) fn materialize(store: &OpenStore, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    store.check_poison()?;
    let mut candidates = Vec::new();
    each_storage(&*store.newest()?, true, |storage| {
        let StorageTensors { id, record, .. } = &storage;
        // Checked before any byte is copied: one file that may not be read fails the whole call.
        if let RecordKind::External(external) = &record.kind {
            store.externals.open(external).map_err(refused)?;
        }
        let new_bytes = repacked(store, &storage)?.length_bytes;
        let (length_bytes, tensor_count) = (record.length_bytes, record.tensor_count);
        candidates.push(Candidate { id: *id, length_bytes, new_bytes, tensor_count, names: None });
        Ok(())
    })?;
    let mut copied = Compacted::default();
    let mut materialization = Materialization { store, progress };
    rewrite_all(store, &mut materialization, candidates, &mut copied)?;
    copied.skipped.sort_by_key(|skipped| skipped.storage_id);
    // A copy of these would have freed nothing, because the external files are kept.
    copied.skipped.iter_mut().for_each(|skipped| skipped.reclaimable_bytes = 0);
    Ok(copied)
}

struct Materialization<'a> {
    store: &'a OpenStore,
    progress: &'a mut dyn FnMut(u64),
}

impl Rewrite for Materialization<'_> {
    fn is_wanted(&self, record: &StorageRecord, _new_bytes: u64) -> bool {
        matches!(record.kind, RecordKind::External(_))
    }

    /// Each read, including the last, is followed by a check that the file is still the one that was adopted.
    fn copy(&mut self, storage: &StorageTensors, repacked: &Repacked) -> Result<Option<Rewritten>> {
        let StorageTensors { record, .. } = storage;
        let RecordKind::External(external) = &record.kind else { return Ok(None) };
        let file = self.store.externals.open(external).map_err(refused)?;
        let range = Storage::of_range(&file, external.offset_bytes, record.length_bytes);
        let store = self.store;
        let mut writer = StorageWriter::sealed(&store.disk, &store.paths, store.is_durable())?;
        writer.copy_from(&mut UnverifiedStorage::new(&range), repacked, self.progress).map_err(refused)?;
        Ok(Some((writer.finish()?, None)))
    }
}

fn refused(e: Error) -> Error {
    match e.kind() {
        ErrorKind::NotAllowed | ErrorKind::ExternalChanged => e.context("materialize"),
        _ => e,
    }
}
