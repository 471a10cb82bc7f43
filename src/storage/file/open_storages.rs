//! The storages that a handle has opened.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use stridemap_format::StorageRecord;

use crate::disk::kept::{self, Keeper, KeptQuota, Kind};
use crate::storage::Storage;

/// The storages that a handle has opened, by id. All tensors on a storage share it.
///
/// A sealed storage of the store stays mapped, or its file open, after its last tensor is dropped, for the next load.
/// Only storages of the handle's generation are kept: the handle keeps their files in any case, so nothing is kept on
/// disk for longer. An external file may be changed by its owner once no tensor needs it, and a storage that is changed
/// in place may be replaced by one that must be loaded again, so these are shared only while a tensor on them exists.
#[derive(Debug)]
pub(crate) struct OpenStorages {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// The generation of the handle.
    generation: u64,
    kept: HashMap<u64, Kept>,
    opened: HashMap<u64, Weak<Storage>>,
}

#[derive(Debug)]
struct Kept {
    storage: Arc<Storage>,
    /// Whether a tensor on it was loaded since the handle moved to its generation.
    is_recent: AtomicBool,
    /// Whether the storage has grown in this generation. The next load opens it again and shares the mapping, which
    /// has room for more.
    has_grown: bool,
    share: KeptQuota,
}

impl OpenStorages {
    pub(crate) fn new(generation: u64) -> Arc<Self> {
        let (kept, opened) = (HashMap::new(), HashMap::new());
        let storages = Arc::new(OpenStorages { state: RwLock::new(State { generation, kept, opened }) });
        kept::register(&storages);
        storages
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a storage that is kept, or that a tensor uses.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Storage>> {
        let state = self.read();
        let Some(kept) = state.kept.get(&id) else {
            return state.opened.get(&id)?.upgrade().filter(|storage| !storage.has_failed());
        };
        // Written only once, so that threads share the cache line.
        if !kept.is_recent.load(Ordering::Relaxed) {
            kept.is_recent.store(true, Ordering::Relaxed);
        }
        (!kept.has_grown && !kept.storage.has_failed()).then(|| Arc::clone(&kept.storage))
    }

    /// Adds a storage that was opened for a generation.
    pub(crate) fn insert(&self, generation: u64, id: u64, storage: &Arc<Storage>) {
        let is_current = self.read().generation == generation;
        // Without the lock, because taking a quota may release all that is kept, and takes this lock to do so.
        let share = if is_current { storage.take_quota() } else { None };
        let mut state = self.write();
        if state.opened.len() == state.opened.capacity() {
            state.opened.retain(|_, storage| storage.strong_count() > 0);
        }
        state.opened.insert(id, Arc::downgrade(storage));
        let before = share.filter(|_| state.generation == generation).and_then(|share| {
            let (storage, is_recent) = (Arc::clone(storage), AtomicBool::new(true));
            state.kept.insert(id, Kept { storage, is_recent, has_grown: false, share })
        });
        drop(state);
        // Unmapping takes long, and locks the file registry.
        drop(before);
    }

    /// Moves to a newer generation of the handle. Releases what was not loaded since the last move, and what the new
    /// generation does not have. `record` looks up a storage in that generation.
    pub(crate) fn move_to(&self, generation: u64, record: impl Fn(u64) -> Option<StorageRecord>) {
        let mut state = self.write();
        if generation <= state.generation {
            return;
        }
        state.generation = generation;
        let idle = state.kept.extract_if(|_, kept| !mem::take(kept.is_recent.get_mut()));
        let released: Vec<Kept> = idle.map(|(_, kept)| kept).collect();
        let recent: Vec<(u64, u64)> =
            state.kept.iter().map(|(&id, kept)| (id, kept.storage.length_bytes())).collect();
        drop(state);
        // Without the lock, because a lookup may read, and unmapping takes long.
        drop(released);
        for (id, length_bytes) in recent {
            let now = record(id);
            if now.as_ref().is_some_and(|now| now.length_bytes == length_bytes) {
                continue;
            }
            let mut state = self.write();
            let gone = match state.kept.get_mut(&id) {
                Some(kept) if now.is_some() => {
                    kept.has_grown = true;
                    None
                }
                _ => state.kept.remove(&id),
            };
            drop(state);
            drop(gone);
        }
    }
}

impl Keeper for OpenStorages {
    fn release(&self, kind: Kind) -> bool {
        let kept: Vec<Kept> =
            self.write().kept.extract_if(|_, kept| kept.share.kind() == kind).map(|(_, kept)| kept).collect();
        !kept.is_empty()
    }
}
