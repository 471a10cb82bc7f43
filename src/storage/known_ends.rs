//! The ends of storages that a handle has appended to.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stridemap_format::{Sealer, StorageRecord};

/// How many ends a handle remembers.
const MAX_KNOWN_ENDS: usize = 8;

/// The ends of the storages that one handle last appended to. The handle has digested the bytes of their last,
/// incomplete chunks, and need not read them again while the records are unchanged.
#[derive(Debug, Default)]
pub(crate) struct KnownEnds(Mutex<VecDeque<(u64, StorageRecord, Sealer)>>);

impl KnownEnds {
    fn ends(&self) -> MutexGuard<'_, VecDeque<(u64, StorageRecord, Sealer)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sealer(&self, id: u64, record: &StorageRecord) -> Option<Sealer> {
        let ends = self.ends();
        // The bytes of a published record never change, so equal digests mean that nobody has appended since.
        let is_end = |(known_id, known, _): &&(u64, StorageRecord, Sealer)| {
            *known_id == id && known.length_bytes == record.length_bytes && known.kind == record.kind
        };
        ends.iter().find(is_end).map(|(_, _, sealer)| sealer.clone())
    }

    pub(super) fn remember(&self, id: u64, record: &StorageRecord, sealer: &Sealer) {
        let mut ends = self.ends();
        ends.retain(|(known_id, ..)| *known_id != id);
        ends.truncate(MAX_KNOWN_ENDS - 1);
        ends.push_front((id, record.clone(), sealer.clone()));
    }
}
