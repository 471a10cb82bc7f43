//! Opens the storages of tensors, each once per handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stridemap_format::{Error as FormatError, RecordKind, Rule, StorageRecord, TensorRecord};

use crate::disk::Disk;
use crate::error::{Context, Error, Result};
use crate::generation::{self, Generation, OpenStore, StoreDir};
use crate::storage::{
    CheckedChunks, ChunkChecks, Identity, InPlaceContext, KnownTails, MapPermit, Storage, Stored,
};
use crate::tensor::Tensor;

/// Turns records into tensors. All tensors on a storage share one open file.
#[derive(Debug)]
pub(super) struct Loader {
    /// The disk that the caller passed. `store.disk` wraps it and keeps the store's directories open.
    pub(super) disk: Arc<dyn Disk>,
    pub(super) store: OpenStore,
    pub(super) permit: Option<MapPermit>,
    /// The digests of the last chunks of the storages that this handle has appended to.
    pub(super) tails: KnownTails,
    pub(super) checked: CheckedStorages,
}

/// The chunks that a handle which verifies what it reads has checked, by the id of their storage.
#[derive(Debug, Default)]
pub(super) struct CheckedStorages(Mutex<HashMap<u64, Arc<CheckedChunks>>>);

impl CheckedStorages {
    /// Returns the checked chunks of a storage. Now and then, drops those of storages that `is_needed` does not know.
    fn of(&self, id: u64, is_needed: impl Fn(u64) -> bool) -> Arc<CheckedChunks> {
        let mut checked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.len() == checked.capacity() && !checked.contains_key(&id) {
            checked.retain(|&id, chunks| Arc::strong_count(chunks) > 1 || is_needed(id));
        }
        Arc::clone(checked.entry(id).or_default())
    }
}

impl Loader {
    pub(super) fn load(&self, generation: &Generation, name: &str) -> Result<Tensor> {
        self.store.check_process()?;
        self.tensor(generation, name, &generation.existing("load", name)?)
    }

    pub(super) fn tensor(
        &self,
        generation: &Generation,
        name: &str,
        record: &TensorRecord,
    ) -> Result<Tensor> {
        let tensor = self.open_tensor(generation, record).context(format_args!("load {name:?}"))?;
        if let Some(checks) = tensor.storage().checks() {
            checks.note_loaded(name, &record.header);
        }
        Ok(tensor)
    }

    fn open_tensor(&self, generation: &Generation, record: &TensorRecord) -> Result<Tensor> {
        let &TensorRecord { ref header, storage_id: id } = record;
        // An open storage may be shorter than the tensor, because the file has grown since.
        let is_inside = |storage: &Arc<Storage>| header.extent(storage.length_bytes()).is_ok();
        let storage = match self.store.storages.get(id).filter(is_inside) {
            Some(storage) => {
                self.check_external(&storage)?;
                storage
            }
            None => self.open(generation, id)?,
        };
        // A load is too short to make the path for an error that it does not have.
        let outside = |e| Error::corrupt(&self.store.paths.storage(id), e);
        Tensor::new(storage, Arc::clone(header)).map_err(outside)
    }

    /// Checks that the file of an external storage that is already open has not changed since it was adopted. A mapping
    /// shows the bytes that are in the file now, and a file that was replaced is no longer the one at its path.
    fn check_external(&self, storage: &Storage) -> Result<()> {
        match storage.identity() {
            Identity::Stored {
                record: StorageRecord { kind: RecordKind::External(external), .. }, ..
            } => self.store.externals.open(external).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the record of a storage that a tensor refers to.
    pub(super) fn record(&self, generation: &Generation, id: u64) -> Result<StorageRecord> {
        generation.storage(id)?.ok_or_else(|| {
            let detail = format!("generation {} has no record of storage {id:016x}", generation.number());
            let path = self.store.paths.storage(id);
            Error::corrupt(&path, FormatError::new(Rule::TensorStorage, detail))
        })
    }

    pub(super) fn open(&self, generation: &Generation, id: u64) -> Result<Arc<Storage>> {
        let store = &self.store;
        let path = store.paths.storage(id);
        let record = self.record(generation, id)?;
        let kind = record.kind.clone();
        let is_needed = |id| !generation.storage(id).is_ok_and(|record| record.is_none());
        let checks = match store.options.verifies_reads {
            true => ChunkChecks::open(&*store.disk, &store.paths, (id, &record), || {
                self.checked.of(id, is_needed)
            }),
            false => Ok(None),
        };
        let stored = Stored { store: store.uuid, id, record };
        let storage = match kind {
            RecordKind::External(external) => {
                Storage::open_external(&store.externals, stored, &external, self.permit)
            }
            _ => Storage::open(&store.disk, &path, stored, self.permit, || {
                self.in_place_context(id, generation)
            }),
        };
        // The storage may be that of an older copy of the store, restored over this one. The manifest was then replaced
        // too, which this detects.
        generation.check_named(&*store.disk)?;
        let storage = storage?;
        if let Some(checks) = checks? {
            storage.verify_reads(checks);
        }
        store.storages.insert(generation.number(), id, &storage);
        Ok(storage)
    }

    /// Returns what a storage that is changed in place uses of this handle. It does not own the store: otherwise a tensor
    /// would pin the generation of the store for as long as it lives.
    fn in_place_context(&self, id: u64, generation: &Generation) -> InPlaceContext {
        let (dir, known) = (StoreDir::clone(&self.store), AtomicU64::new(generation.number()));
        let watch = Arc::clone(&self.store.newest_watch);
        let is_referenced = move || generation::newest_has_storage(&dir, &watch, id, &known);
        let dir = StoreDir::clone(&self.store);
        let is_durable = AtomicBool::new(generation.is_synced() || !self.store.is_durable());
        let make_durable = move || {
            if !is_durable.load(Ordering::Relaxed) {
                generation::settle_name(&dir)?;
                is_durable.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        InPlaceContext {
            lock_wait: self.store.options.lock_wait,
            poison: self.store.poison.clone(),
            is_referenced: Box::new(is_referenced),
            make_durable: Box::new(make_durable),
        }
    }
}
