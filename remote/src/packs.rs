//! Objects of many small segments, which are read as a whole if several of their segments are needed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use stridemap_format::remote::ObjectName;

/// How many reads of one object are made one by one, before the object is read as a whole.
const MAX_SINGLE_READS: u32 = 2;

/// Which objects are read how often, and the bytes of the one that was read last, at most 64 MiB.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reads: HashMap<ObjectName, u32>,
    kept: Option<(ObjectName, Bytes)>,
}

impl Packs {
    /// Returns bytes of an object that is in memory.
    pub(crate) fn get(&self, object: &ObjectName, range: &Range<u64>) -> Option<Bytes> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, bytes) = state.kept.as_ref().filter(|(kept, _)| kept == object)?;
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        (range.end <= bytes.len() && range.start <= range.end).then(|| bytes.slice(range))
    }

    /// Counts a read of a part of an object. Returns whether the object is to be read as a whole: once, because it may be
    /// needed again after others have taken its place in memory.
    pub(crate) fn is_frequent(&self, object: &ObjectName) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let reads = state.reads.entry(*object).or_insert(0);
        *reads = reads.saturating_add(1);
        *reads == MAX_SINGLE_READS + 1
    }

    /// Keeps the bytes of an object, in place of those before.
    pub(crate) fn keep(&self, object: ObjectName, bytes: Bytes) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).kept = Some((object, bytes));
    }
}
