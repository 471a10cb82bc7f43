//! Puts objects so that no prune that runs at the same time deletes them.
//!
//! An object is named after its bytes, so it may be there already: a killed push left it, or it is garbage of an earlier
//! generation. A prune may have found that it is old, and be about to delete it, and neither a put nor a look at it would
//! stop that. So bytes that are there in an old object are put under another name, which no prune can have found yet.

use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::Result;
use stridemap_format::limits::MAX_OBJECT_BYTES;
use stridemap_format::remote::{ObjectName, Segment, object_path};

use crate::Remote;
use crate::client::Put;

/// How old an object may be, to be used again. This is by the clock of this machine, and so much less than the usual grace
/// period of a prune.
const MAX_REUSED_AGE: Duration = Duration::from_secs(60 * 60);

/// How many random bytes make an object a new one.
const SALT_BYTES: usize = 16;

/// A pack of several pieces leaves room for the random bytes, so that it stays one object.
pub(crate) const MAX_PACK_BYTES: u64 = MAX_OBJECT_BYTES - SALT_BYTES as u64;

/// Where bytes are in a remote.
pub(crate) struct Stored {
    /// The objects that have them, one after another, with how many bytes of each.
    objects: Vec<(ObjectName, usize)>,
    /// Whether each object ends with random bytes.
    is_salted: bool,
    is_reused: bool,
    pub(crate) sent_bytes: u64,
    pub(crate) object_count: u64,
}

impl Stored {
    /// Returns the first object. A pack is in one.
    pub(crate) fn first(&self) -> ObjectName {
        self.objects.first().map(|(object, _)| *object).unwrap_or_default()
    }

    /// Returns the objects that an earlier push left.
    pub(crate) fn reused(&self) -> impl Iterator<Item = ObjectName> {
        self.objects.iter().filter(|_| self.is_reused).map(|(object, _)| *object)
    }

    /// Returns the segments of the bytes.
    pub(crate) fn segments(&self, mut bytes: &[u8]) -> Vec<Segment> {
        let mut segments = Vec::new();
        for &(object, length) in &self.objects {
            let (piece, rest) = bytes.split_at(length.min(bytes.len()));
            bytes = rest;
            segments.push(match self.is_salted {
                true => part(object, 0, piece),
                false => Segment::Whole { object, length_bytes: piece.len() as u64 },
            });
        }
        segments
    }
}

/// Returns the segment of some bytes of an object.
pub(crate) fn part(object: ObjectName, offset: usize, bytes: &[u8]) -> Segment {
    let mut check = [0; 16];
    check.copy_from_slice(blake3::hash(bytes).as_bytes().split_at(16).0);
    Segment::Part { object, offset_bytes: offset as u64, length_bytes: bytes.len() as u64, check }
}

impl Remote {
    /// Puts bytes into an object. If `may_exist` is set, an earlier push may have put it, and then it is not sent again.
    pub(crate) fn put_object(&self, bytes: &Bytes, may_exist: bool) -> Result<Stored> {
        let object = *blake3::hash(bytes).as_bytes();
        let (name, length_bytes) = (object_path(&object), bytes.len() as u64);
        let stored = |is_reused, sent_bytes| Stored {
            objects: vec![(object, bytes.len())],
            is_salted: false,
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

    /// Puts bytes into new objects: a short one into one object, and one that leaves no room for more bytes into two.
    fn put_salted(&self, bytes: &Bytes) -> Result<Stored> {
        let length = match bytes.len() as u64 > MAX_PACK_BYTES {
            true => bytes.len().div_ceil(2),
            false => bytes.len().max(1),
        };
        let mut stored =
            Stored { objects: Vec::new(), is_salted: true, is_reused: false, sent_bytes: 0, object_count: 0 };
        for piece in bytes.chunks(length) {
            // Not copied: it may be long.
            let parts = vec![bytes.slice_ref(piece), Bytes::copy_from_slice(uuid::Uuid::new_v4().as_bytes())];
            let mut hasher = blake3::Hasher::new();
            for part in &parts {
                hasher.update(part);
            }
            let object = *hasher.finalize().as_bytes();
            stored.sent_bytes += (piece.len() + SALT_BYTES) as u64;
            stored.object_count += 1;
            self.client.put_parts(&object_path(&object), parts)?;
            stored.objects.push((object, piece.len()));
        }
        Ok(stored)
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
