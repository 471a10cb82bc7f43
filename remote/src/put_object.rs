//! Puts objects so that no prune that runs at the same time deletes them.
//!
//! An object is named after its bytes, so it may be there already: a killed push left it, or it is garbage of an earlier
//! generation. A prune may have found that it is old, and be about to delete it, and neither a put nor a look at it would
//! stop that. So bytes that are there in an old object are put under another name, which no prune can have found yet.

use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::Result;
use stridemap_format::limits::{MAX_OBJECT_BYTES, MAX_SEGMENT_BYTES};
use stridemap_format::remote::{ObjectName, Segment, digests_length_bytes, object_path};

use crate::Remote;
use crate::client::Put;

/// How old an object may be, to be used again. This is by the clock of this machine, and so much less than the usual grace
/// period of a prune.
const MAX_REUSED_AGE: Duration = Duration::from_secs(60 * 60);

/// How many random bytes make an object a new one.
const SALT_BYTES: usize = 16;

/// The maximum length of a pack of several segments, with their digests.
pub(crate) const MAX_PACK_BYTES: u64 = MAX_SEGMENT_BYTES;

// The longest segment leaves room for the digests of its blocks, and for random bytes.
const _: () = assert!(
    MAX_SEGMENT_BYTES + digests_length_bytes(MAX_SEGMENT_BYTES) + SALT_BYTES as u64 <= MAX_OBJECT_BYTES
);

/// An object that was put, or was there.
pub(crate) struct Stored {
    object: ObjectName,
    is_reused: bool,
    pub(crate) sent_bytes: u64,
    pub(crate) object_count: u64,
}

impl Stored {
    /// Returns the object if an earlier push left it.
    pub(crate) fn reused(&self) -> Option<ObjectName> {
        self.is_reused.then_some(self.object)
    }

    /// Returns segments that are in the object.
    pub(crate) fn place(&self, segments: Vec<Segment>) -> Vec<Segment> {
        segments.into_iter().map(|segment| Segment { object: self.object, ..segment }).collect()
    }
}

impl Remote {
    /// Puts bytes into an object. If `may_exist` is set, an earlier push may have put it, and then it is not sent again.
    pub(crate) fn put_object(&self, bytes: &Bytes, may_exist: bool) -> Result<Stored> {
        let object = *blake3::hash(bytes).as_bytes();
        let (name, length_bytes) = (object_path(&object), bytes.len() as u64);
        let stored = |is_reused, sent_bytes| Stored {
            object,
            is_reused,
            sent_bytes,
            object_count: u64::from(sent_bytes > 0),
        };
        if may_exist && self.is_young(&name, length_bytes)? {
            return Ok(stored(true, 0));
        }
        match self.client.put_new(&name, bytes.clone())? {
            Put::Written(_) => Ok(stored(false, length_bytes)),
            // It may be from an attempt of this put whose answer was lost.
            Put::Exists if self.is_young(&name, length_bytes)? => Ok(stored(true, length_bytes)),
            Put::Exists => self.put_salted(bytes),
        }
    }

    /// Puts bytes, followed by random ones, into a new object.
    fn put_salted(&self, bytes: &Bytes) -> Result<Stored> {
        // Not copied: they may be long.
        let parts = vec![bytes.clone(), Bytes::copy_from_slice(uuid::Uuid::new_v4().as_bytes())];
        let mut hasher = blake3::Hasher::new();
        for part in &parts {
            hasher.update(part);
        }
        let object = *hasher.finalize().as_bytes();
        self.client.put_parts(&object_path(&object), parts)?;
        let sent_bytes = (bytes.len() + SALT_BYTES) as u64;
        Ok(Stored { object, is_reused: false, sent_bytes, object_count: 1 })
    }

    /// Whether an object is there, and was put a short time ago.
    fn is_young(&self, name: &str, length_bytes: u64) -> Result<bool> {
        let info = match self.client.info(name) {
            // Without the permission to list objects, S3 says this of an object that is not there.
            Err(e) if e.io_error().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) => None,
            info => info?,
        };
        let Some(info) = info else { return Ok(false) };
        let age = SystemTime::now().duration_since(info.modified).unwrap_or_default();
        Ok(info.length_bytes == length_bytes && age < MAX_REUSED_AGE)
    }
}
