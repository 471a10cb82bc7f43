//! Segments of files.

use serde::de::SeqAccess;
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{ObjectName, object_hex};
use crate::limits::MAX_OBJECT_BYTES;
use crate::{Error, Result, Rule, codec};

/// A run of bytes of a file, and the object that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Segment {
    /// All bytes of an object. The name of the object is their check.
    Whole {
        /// The object.
        object: ObjectName,
        /// The length of the object in bytes.
        length_bytes: u64,
    },
    /// A part of an object that has other segments too.
    Part {
        /// The object.
        object: ObjectName,
        /// Where the segment begins in the object, in bytes.
        offset_bytes: u64,
        /// The length of the segment in bytes.
        length_bytes: u64,
        /// The first 16 bytes of the BLAKE3 digest of the segment, so that it can be checked without the rest of the
        /// object.
        check: [u8; 16],
    },
}

impl<'de> Deserialize<'de> for Segment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        codec::choice(deserializer)
    }
}

impl<'de> codec::Choice<'de> for Segment {
    fn decode_fields<A: SeqAccess<'de>>(number: u64, fields: &mut A) -> std::result::Result<Self, A::Error> {
        match number {
            0 => {
                let (object, length_bytes) = codec::field(fields)?;
                Ok(Segment::Whole { object, length_bytes })
            }
            1 => {
                let (object, offset_bytes, length_bytes, check) = codec::field(fields)?;
                Ok(Segment::Part { object, offset_bytes, length_bytes, check })
            }
            _ => Err(codec::refuse(Rule::RemoteChoice, "it has an unknown kind of segment")),
        }
    }
}

impl Segment {
    /// Returns the object that has the bytes.
    #[must_use]
    pub fn object(&self) -> ObjectName {
        match *self {
            Segment::Whole { object, .. } | Segment::Part { object, .. } => object,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        match *self {
            Segment::Whole { length_bytes, .. } | Segment::Part { length_bytes, .. } => length_bytes,
        }
    }

    /// Returns where the segment begins in its object, in bytes.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        match *self {
            Segment::Whole { .. } => 0,
            Segment::Part { offset_bytes, .. } => offset_bytes,
        }
    }

    /// Checks that the segment has bytes, all in the first 64 MiB of its object.
    pub(super) fn check(&self) -> Result<()> {
        let (offset, length) = (self.offset_bytes(), self.length_bytes());
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= MAX_OBJECT_BYTES);
        if length == 0 || !is_inside {
            let object = object_hex(&self.object());
            let detail = format!("a segment of {length} bytes at offset {offset} of object {object}");
            return Err(Error::new(Rule::Segment, detail));
        }
        Ok(())
    }
}

/// Returns the length in bytes of a file with these segments.
#[must_use]
pub fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.length_bytes()))
}
