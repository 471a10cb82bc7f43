//! The one place that knows the crate behind the record encoding.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;

use bincode::Options;
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{MAX_ATTRIBUTES_BYTES, MAX_CHANGES, MAX_GARBAGE, MAX_RANK};
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
    if is_encoding_of(bytes, &value) {
        Ok(value)
    } else {
        Err(Error::new(Rule::Canonical, format!("a record of {limit_bytes} bytes is not in canonical form")))
    }
}

/// Decodes what `bytes` begin with.
pub(crate) fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let decoded = options().with_limit(bytes.len() as u64).allow_trailing_bytes().deserialize(bytes);
    decoded.map_err(|e| Error::new(broken_rule(&e), format!("decoding what a record begins with: {e}")))
}

/// Whether `bytes` are the encoding of a value, found out without making another.
pub(crate) fn is_encoding_of(bytes: &[u8], value: &impl Serialize) -> bool {
    let mut expected = Expected(bytes);
    options().serialize_into(&mut expected, value).is_ok() && expected.0.is_empty()
}

/// What is still to be written; anything else is an error.
struct Expected<'a>(&'a [u8]);

impl io::Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

/// What an error says of a map of changes that is too long.
const TOO_MANY_CHANGES: &str = "more than 4096 changes of storages, or of tensors";

/// Decodes a map of changes, of which no more are kept than a manifest may have (F-15).
pub(crate) fn changes<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut count = 0usize;
    let fits = |_: &K, _: &V| {
        count = count.saturating_add(1);
        count <= MAX_CHANGES
    };
    deserializer.deserialize_map(Map { fits, too_much: TOO_MANY_CHANGES, kept: BTreeMap::new() })
}

/// What an error says of garbage that is too much.
const TOO_MUCH_GARBAGE: &str = "more than 1048576 storages of garbage";

/// Decodes the garbage of a manifest, of which no more is kept than one may have (F-15).
pub(crate) fn garbage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u64, u64>, D::Error> {
    let mut count = 0usize;
    let fits = |_: &u64, _: &u64| {
        count = count.saturating_add(1);
        count <= MAX_GARBAGE
    };
    deserializer.deserialize_map(Map { fits, too_much: TOO_MUCH_GARBAGE, kept: BTreeMap::new() })
}

/// What an error says of attributes that are too long.
const TOO_LONG_ATTRIBUTES: &str = "attributes of more than 1048576 bytes";

/// Decodes the attributes of a store, of which no more are kept than there may be (F-19).
pub(crate) fn attributes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut total_bytes = 0usize;
    let fits = |key: &String, value: &String| {
        total_bytes = total_bytes.saturating_add(key.len()).saturating_add(value.len());
        total_bytes <= MAX_ATTRIBUTES_BYTES
    };
    deserializer.deserialize_map(Map { fits, too_much: TOO_LONG_ATTRIBUTES, kept: BTreeMap::new() })
}

/// A map whose entries are kept for as long as they fit. Those behind are gone through all the same, for they may be no
/// encoding (F-14), as with [`dimensions`].
struct Map<K, V, F> {
    fits: F,
    too_much: &'static str,
    kept: BTreeMap<K, V>,
}

impl<'de, K, V, F> Visitor<'de> for Map<K, V, F>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    F: FnMut(&K, &V) -> bool,
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of no {}", self.too_much)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<BTreeMap<K, V>, A::Error> {
        let mut is_too_much = false;
        while let Some((key, value)) = entries.next_entry()? {
            if is_too_much {
                continue;
            }
            if (self.fits)(&key, &value) {
                self.kept.insert(key, value);
            } else {
                is_too_much = true;
                self.kept.clear();
            }
        }
        if is_too_much { Err(A::Error::custom(self.too_much)) } else { Ok(self.kept) }
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
        bincode::ErrorKind::Custom(detail) => match detail.as_str() {
            TOO_MANY_DIMENSIONS => Rule::Rank,
            TOO_MANY_CHANGES | TOO_MUCH_GARBAGE => Rule::ManifestFrame,
            TOO_LONG_ATTRIBUTES => Rule::Attributes,
            _ => Rule::Canonical,
        },
        _ => Rule::Canonical,
    }
}
