//! Digests of blocks that were read, so that the next part of a segment needs no request for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use stridemap_format::remote::{ObjectName, Segment};

/// Writers put the digests of all segments of an object at its beginning, and these are not longer.
const MAX_DIGESTS_BYTES: u64 = 32 * 1024;

/// For how many objects they are kept.
const MAX_OBJECTS: usize = 512;

/// A range of an object that has digests of blocks, and its bytes once they were read.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) object: ObjectName,
    pub(crate) range: Range<u64>,
    pub(crate) bytes: Option<Bytes>,
}

impl Window {
    /// Returns what is read for a segment: if possible, the digests of the other segments of the object too.
    fn around(segment: &Segment) -> Self {
        let place = segment.digests_place();
        let beginning = 0..segment.offset_bytes.min(MAX_DIGESTS_BYTES);
        let range = if place.end <= beginning.end { beginning } else { place };
        Window { object: segment.object, range, bytes: None }
    }

    fn is_for(&self, segment: &Segment) -> bool {
        let place = segment.digests_place();
        self.object == segment.object && self.range.start <= place.start && place.end <= self.range.end
    }

    /// Returns the digests of a segment, which are not checked.
    fn digests(&self, segment: &Segment) -> Option<Bytes> {
        let place = segment.digests_place();
        let start = self.range.start;
        let bytes = self.bytes.as_ref().filter(|_| self.is_for(segment))?;
        let range = (place.start - start) as usize..(place.end - start) as usize;
        (range.end <= bytes.len()).then(|| bytes.slice(range))
    }
}

/// The digests that were read last.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    kept: Mutex<HashMap<ObjectName, Window>>,
}

impl Digests {
    /// Returns windows with the digests of some segments, each once. Those that are not kept have no bytes.
    pub(crate) fn windows<'a>(&self, segments: impl Iterator<Item = &'a Segment>) -> Vec<Window> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut windows: Vec<Window> = Vec::new();
        for segment in segments {
            if !windows.iter().any(|window| window.is_for(segment)) {
                let known = kept.get(&segment.object).filter(|window| window.is_for(segment));
                windows.push(known.cloned().unwrap_or_else(|| Window::around(segment)));
            }
        }
        windows
    }

    /// Forgets digests that are wrong.
    pub(crate) fn forget(&self, segment: &Segment) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&segment.object);
    }

    /// Keeps a window. Its digests are compared with the check of a segment whenever they are used.
    pub(crate) fn keep(&self, window: &Window) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_OBJECTS {
            kept.clear();
        }
        kept.insert(window.object, window.clone());
    }
}

/// Returns the digests of a segment from the window that has them, and the window.
pub(crate) fn digests_of<'a>(windows: &'a [Window], segment: &Segment) -> Option<(Bytes, &'a Window)> {
    windows.iter().find_map(|window| Some((window.digests(segment)?, window)))
}
