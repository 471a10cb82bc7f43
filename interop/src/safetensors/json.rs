//! JSON from untrusted files. Keys must be unique, and the text is read in pieces, so that whitespace and skipped
//! values take no memory.

use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use stridemap::Result;

use crate::file::{Pieces, RawFile};

pub(super) fn parse<'a, T: Deserialize<'a>>(
    file: &RawFile,
    what: impl fmt::Display,
    json: &'a [u8],
) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| file.bad(format!("{what}: {e}")).with_source(e))
}

/// A header of at most this many bytes, of some hundred thousand tensors, is read whole, which is faster to parse.
const WHOLE_BYTES: usize = 16 << 20;

/// The bytes of a longer header in memory at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// A longer string or number is refused before the rest of it is read, because the parser keeps a whole token in
/// memory. Attributes have a limit of their own, which is a quarter of this.
const MAX_TOKEN_BYTES: usize = 4 << 20;

/// The maximum nesting. The parser keeps a byte for each level that it skips.
const MAX_DEPTH: usize = 128;

/// Reads JSON from a file in pieces. See [`parse`].
pub(super) fn parse_pieces<T: DeserializeOwned>(
    file: &RawFile,
    what: impl fmt::Display,
    mut pieces: Pieces<'_>,
) -> Result<T> {
    let length_bytes = usize::try_from(pieces.rest_bytes()).unwrap_or(usize::MAX);
    let mut guard =
        Guard { inner: &mut pieces, is_in_text: false, is_escaped: false, token_bytes: 0, depth: 0 };
    let parsed = if length_bytes <= WHOLE_BYTES {
        let mut whole = Vec::with_capacity(length_bytes);
        let read = guard.read_to_end(&mut whole).map_err(serde::de::Error::custom);
        read.and_then(|_| serde_json::from_slice(&whole))
    } else {
        serde_json::from_reader(BufReader::with_capacity(BUFFER_BYTES, guard))
    };
    match pieces.into_failure() {
        Some(failure) => Err(failure),
        None => parsed.map_err(|e| file.bad(format!("{what}: {e}")).with_source(e)),
    }
}

/// Checks JSON while it is read, and stops at tokens or nesting that would take too much memory.
struct Guard<R> {
    inner: R,
    is_in_text: bool,
    is_escaped: bool,
    token_bytes: usize,
    depth: usize,
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        for &byte in buf.iter().take(count) {
            self.token_bytes = self.token_bytes.saturating_add(1);
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => (self.is_in_text, self.token_bytes) = (!self.is_in_text, 0),
                _ if self.is_in_text => {}
                b'{' | b'[' => (self.depth, self.token_bytes) = (self.depth.saturating_add(1), 0),
                b'}' | b']' => (self.depth, self.token_bytes) = (self.depth.saturating_sub(1), 0),
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' => self.token_bytes = 0,
                _ => {}
            }
            let limit = match (self.token_bytes > MAX_TOKEN_BYTES, self.depth > MAX_DEPTH) {
                (false, false) => continue,
                (true, _) => format!("a string or number of more than {MAX_TOKEN_BYTES} bytes"),
                (_, true) => format!("it nests deeper than {MAX_DEPTH}"),
            };
            return Err(io::Error::new(io::ErrorKind::InvalidData, limit));
        }
        Ok(count)
    }
}

/// A JSON object whose keys are unique.
pub(super) struct Object<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Object<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry::<String, V>()? {
                    match object.entry(key) {
                        Entry::Vacant(place) => place.insert(value),
                        Entry::Occupied(taken) => {
                            return Err(A::Error::custom(format!("{:?} appears twice", taken.key())));
                        }
                    };
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
