//! The one place that knows the crate behind the record encoding.

use std::fmt;
use std::marker::PhantomData;

use bincode::Options;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::MAX_RANK;
use crate::{Error, Result, Rule};

fn options() -> impl Options {
    // Little-endian, variable-length integers, trailing bytes refused.
    bincode::DefaultOptions::new()
}

pub(crate) fn encode(value: &impl Serialize, limit_bytes: u64, rule: Rule) -> Result<Vec<u8>> {
    options()
        .with_limit(limit_bytes)
        .serialize(value)
        .map_err(|e| Error::new(rule, format!("encoding a record within {limit_bytes} bytes: {e}")))
}

/// Decodes a value that must be the whole of `bytes`, in its one canonical encoding (F-14).
pub(crate) fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let limit_bytes = bytes.len() as u64;
    let value: T = options()
        .with_limit(limit_bytes)
        .deserialize(bytes)
        .map_err(|e| Error::new(broken_rule(&e), format!("decoding a record of {limit_bytes} bytes: {e}")))?;
    // Other readings of the same value (long integers, keys out of order or doubled) are refused, so that equal
    // records have equal digests and a reader need not say which of two keys wins.
    if encode(&value, limit_bytes, Rule::Canonical).ok().as_deref() == Some(bytes) {
        Ok(value)
    } else {
        Err(Error::new(Rule::Canonical, format!("a record of {limit_bytes} bytes is not in canonical form")))
    }
}

/// What an error says of a list that has more than a tensor has dimensions.
const TOO_MANY_DIMENSIONS: &str = "more than 64 dimensions";

/// Decodes a list of something for each dimension. One byte of a file can be twenty-four of memory here, so no more are kept
/// than a tensor may have (F-5); those behind are gone through all the same, for they may be no encoding (F-14).
pub(crate) fn dimensions<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Dimensions(PhantomData))
}

struct Dimensions<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Dimensions<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_RANK} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let (mut kept, mut is_too_long) = (Vec::new(), false);
        while let Some(value) = sequence.next_element()? {
            if kept.len() < MAX_RANK {
                kept.push(value);
            } else {
                is_too_long = true;
            }
        }
        if is_too_long { Err(A::Error::custom(TOO_MANY_DIMENSIONS)) } else { Ok(kept) }
    }
}

fn broken_rule(error: &bincode::ErrorKind) -> Rule {
    match error {
        // A number that the choice of a kind does not have: the only variants that are decoded, and the only 32-bit
        // integers. (The encoding's own errors are `Custom` too: bytes left over, integers of 128 bits.)
        bincode::ErrorKind::Custom(detail)
            if detail.contains("variant index") || detail.starts_with("Invalid u32") =>
        {
            Rule::StorageKind
        }
        bincode::ErrorKind::Custom(detail) if detail == TOO_MANY_DIMENSIONS => Rule::Rank,
        _ => Rule::Canonical,
    }
}
