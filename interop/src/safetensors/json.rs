//! JSON from untrusted files. Keys must be unique. A long text is read in pieces, so that its whitespace and skipped
//! values take no memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use stridemap::Result;

use crate::file::{FileRange, RawFile};

pub(super) fn parse<'a, T: Deserialize<'a>>(
    file: &RawFile,
    what: impl fmt::Display,
    json: &'a [u8],
) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| file.bad(format!("{what}: {e}")))
}

/// The maximum length of a header that is read whole, because that parses faster. It suffices for a few hundred
/// thousand tensors.
const WHOLE_BYTES: usize = 16 << 20;

/// The number of bytes of a longer header that are in memory at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// The maximum length of a string or number. A longer one is refused before the rest of it is read, because the parser
/// keeps a whole token in memory. Attributes have a limit of their own, which is a quarter of this.
const MAX_TOKEN_BYTES: usize = 4 << 20;

/// The maximum nesting. The parser keeps a byte for each level that it skips.
const MAX_DEPTH: usize = 128;

/// Reads JSON from a range of a file. Errors name the JSON as `what`.
pub(super) fn parse_pieces<T: DeserializeOwned>(
    file: &RawFile,
    what: impl fmt::Display,
    mut range: FileRange<'_>,
) -> Result<T> {
    let length_bytes = usize::try_from(range.rest_bytes()).unwrap_or(usize::MAX);
    let mut guard =
        LimitedReader { inner: &mut range, is_in_text: false, is_escaped: false, token_bytes: 0, depth: 0 };
    let parsed = if length_bytes <= WHOLE_BYTES {
        let mut whole = Vec::with_capacity(length_bytes);
        let read = guard.read_to_end(&mut whole).map_err(serde::de::Error::custom);
        read.and_then(|_| serde_json::from_slice(&whole))
    } else {
        serde_json::from_reader(BufReader::with_capacity(BUFFER_BYTES, guard))
    };
    match range.into_failure() {
        Some(failure) => Err(failure),
        None => parsed.map_err(|e| file.bad(format!("{what}: {e}"))),
    }
}

/// Checks JSON while it is read, and stops at tokens or nesting that would take too much memory.
struct LimitedReader<R> {
    inner: R,
    is_in_text: bool,
    is_escaped: bool,
    token_bytes: usize,
    depth: usize,
}

impl<R: Read> Read for LimitedReader<R> {
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
            let refusal = match (self.token_bytes > MAX_TOKEN_BYTES, self.depth > MAX_DEPTH) {
                (false, false) => continue,
                (true, _) => format!("a string or number of more than {MAX_TOKEN_BYTES} bytes"),
                (_, true) => format!("it nests deeper than {MAX_DEPTH}"),
            };
            return Err(io::Error::new(io::ErrorKind::InvalidData, refusal));
        }
        Ok(count)
    }
}

/// The contents of a JSON object, added one entry at a time.
pub(super) trait FromEntries<'de>: Default {
    /// The description in errors of what was expected.
    const EXPECTED: &'static str = "an object";

    /// Returns whether there is an entry with this key.
    fn has(&self, key: &str) -> bool;

    /// Reads the value of an entry, and keeps it.
    fn add<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error>;
}

/// A JSON object whose keys are unique.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: FromEntries<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: FromEntries<'de>> Visitor<'de> for Entries<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Object<T>, A::Error> {
                let mut contents = T::default();
                while let Some(key) = entries.next_key::<String>()? {
                    if contents.has(&key) {
                        return Err(A::Error::custom(format_args!("{key:?} appears twice")));
                    }
                    contents.add(key, &mut entries)?;
                }
                Ok(Object(contents))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<'de, V: Deserialize<'de>> FromEntries<'de> for BTreeMap<String, V> {
    fn has(&self, key: &str) -> bool {
        self.contains_key(key)
    }

    fn add<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error> {
        self.insert(key, entries.next_value()?);
        Ok(())
    }
}
