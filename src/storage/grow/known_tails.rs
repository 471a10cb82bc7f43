//! The tails of storages that a handle has appended to.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stridemap_format::{Sealer, StorageRecord};

/// How many tails a handle remembers.
const MAX_KNOWN_TAILS: usize = 8;

/// The tails of the storages that one handle last appended to. The handle has digested the bytes of their last,
/// incomplete chunks, and need not read them again while the records are unchanged.
#[derive(Debug, Default)]
pub(crate) struct KnownTails(Mutex<VecDeque<Tail>>);

#[derive(Debug)]
struct Tail {
    storage_id: u64,
    record: StorageRecord,
    sealer: Sealer,
}

impl KnownTails {
    fn tails(&self) -> MutexGuard<'_, VecDeque<Tail>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::storage) fn sealer(&self, id: u64, record: &StorageRecord) -> Option<Sealer> {
        let tails = self.tails();
        // The bytes of a published record never change, so equal digests mean that nobody has appended since.
        let is_known = |Tail { storage_id, record: known, .. }: &&Tail| {
            *storage_id == id && known.length_bytes == record.length_bytes && known.kind == record.kind
        };
        tails.iter().find(is_known).map(|tail| tail.sealer.clone())
    }

    pub(in crate::storage) fn remember(&self, id: u64, record: &StorageRecord, sealer: &Sealer) {
        let mut tails = self.tails();
        tails.retain(|tail| tail.storage_id != id);
        tails.truncate(MAX_KNOWN_TAILS - 1);
        tails.push_front(Tail { storage_id: id, record: record.clone(), sealer: sealer.clone() });
    }
}
