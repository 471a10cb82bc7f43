//! Copies external storages into the store.

use stridemap_format::RecordKind;

use super::compact::repacked;
use super::rewrite::{Compacted, rewrite_all};
use super::rewrite_candidates::Candidate;
use super::rewriting::{Rewriting, Wanted, is_packable, refused};
use super::storage_tensors::{StorageTensors, each_storage};
use crate::error::Result;
use crate::generation::OpenStore;

/// Copies the bytes that tensors refer to in external storages into sealed storages.
pub(crate) fn materialize(store: &OpenStore, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    store.check_poison()?;
    let candidates = candidates(store)?;
    let mut copied = Compacted::default();
    let mut rewriting = Rewriting { store, wanted: Wanted::External, held: None, progress };
    rewrite_all(&mut rewriting, candidates, &mut copied)?;
    copied.skipped.sort_by_key(|skipped| skipped.storage_id);
    // A copy of these would have freed nothing, because the external files are kept.
    copied.skipped.iter_mut().for_each(|skipped| skipped.reclaimable_bytes = 0);
    Ok(copied)
}

/// Returns what [`materialize`] would do, as far as other processes leave the store and the files as they are.
pub(crate) fn plan(store: &OpenStore) -> Result<Compacted> {
    store.check_poison()?;
    let mut planned = Compacted::default();
    planned.count(&candidates(store)?);
    Ok(planned)
}

fn candidates(store: &OpenStore) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    each_storage(&*store.newest()?, true, |storage| {
        let StorageTensors { record, .. } = &storage;
        // Checked before any byte is copied: one file that may not be read fails the whole call.
        if let RecordKind::External(external) = &record.kind {
            store.externals.open(external).map_err(refused)?;
        }
        let new_bytes = repacked(store, &storage)?.length_bytes;
        candidates.push(Candidate::of(&storage, new_bytes, is_packable(record, new_bytes)));
        Ok(())
    })?;
    Ok(candidates)
}
