//! Segments of files.

use std::ops::Range;

use serde::de::SeqAccess;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::{ObjectName, object_hex};
use crate::limits::{MAX_OBJECT_BYTES, MAX_SEGMENT_BYTES};
use crate::{Error, Result, Rule, codec};

/// The length of a block of a segment in bytes. The last block of a segment may be shorter.
pub const BLOCK_BYTES: u64 = 64 * 1024;

/// The length of the digest of a block in bytes: it is the beginning of a BLAKE3 digest.
pub const BLOCK_DIGEST_BYTES: u64 = 16;

/// The only kind of segment, which is before its fields. Other kinds may follow.
const PLAIN: u64 = 0;

/// A run of bytes of a file, and where an object has them, and the digests of its blocks if it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The object.
    pub object: ObjectName,
    /// Where the segment begins in the object, in bytes.
    pub offset_bytes: u64,
    /// The length of the segment in bytes.
    pub length_bytes: u64,
    /// Where the digests of its blocks begin in the object, in bytes. 0 if it has only one block.
    pub digests_offset_bytes: u64,
    /// The digest of the only block; or the first 16 bytes of the BLAKE3 digest of the digests of all blocks.
    pub check: [u8; BLOCK_DIGEST_BYTES as usize],
}

impl Serialize for Segment {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        (PLAIN, self.object, self.offset_bytes, self.length_bytes, self.digests_offset_bytes, self.check)
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Segment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        codec::choice(deserializer)
    }
}

impl<'de> codec::Choice<'de> for Segment {
    fn decode_fields<A: SeqAccess<'de>>(number: u64, fields: &mut A) -> std::result::Result<Self, A::Error> {
        if number != PLAIN {
            return Err(codec::refuse(Rule::RemoteChoice, "it has an unknown kind of segment"));
        }
        let (object, offset_bytes, length_bytes, digests_offset_bytes, check) = codec::field(fields)?;
        Ok(Segment { object, offset_bytes, length_bytes, digests_offset_bytes, check })
    }
}

impl Segment {
    /// Returns where the bytes of the segment are in its object.
    #[must_use]
    pub fn place(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes.saturating_add(self.length_bytes)
    }

    /// Returns where the digests of its blocks are in its object. An only block has none there.
    #[must_use]
    pub fn digests_place(&self) -> Range<u64> {
        let start = self.digests_offset_bytes;
        start..start.saturating_add(digests_length_bytes(self.length_bytes))
    }

    /// Checks that the segment has bytes, at most 64 MiB, that these and the digests of its blocks are in the first 65 MiB
    /// of its object, and that there are digests only of several blocks (R-7).
    pub(super) fn validate(&self) -> Result<()> {
        let (offset, length) = (self.offset_bytes, self.length_bytes);
        let is_inside =
            [self.place(), self.digests_place()].iter().all(|place| place.end <= MAX_OBJECT_BYTES);
        let has_stray_digests = length <= BLOCK_BYTES && self.digests_offset_bytes != 0;
        if length == 0 || length > MAX_SEGMENT_BYTES || !is_inside || has_stray_digests {
            let object = object_hex(&self.object);
            let detail = format!(
                "a segment of {length} bytes at offset {offset} of object {object}, with digests at {}",
                self.digests_offset_bytes
            );
            return Err(Error::new(Rule::Segment, detail));
        }
        Ok(())
    }
}

/// Returns the length in bytes of the digests that the object of a segment of this length has.
///
/// ```
/// # use stridemap_format::remote::{BLOCK_BYTES, digests_length_bytes};
/// assert_eq!(digests_length_bytes(BLOCK_BYTES), 0);
/// assert_eq!(digests_length_bytes(BLOCK_BYTES + 1), 32);
/// ```
#[must_use]
pub const fn digests_length_bytes(length_bytes: u64) -> u64 {
    match length_bytes.div_ceil(BLOCK_BYTES) {
        0 | 1 => 0,
        count => count.saturating_mul(BLOCK_DIGEST_BYTES),
    }
}

/// Returns the length in bytes of a file with these segments.
#[must_use]
pub fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.length_bytes))
}
