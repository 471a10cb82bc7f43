//! The record encoding. Only this module uses bincode.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::iter;
use std::marker::PhantomData;

use bincode::Options;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{MAX_ATTRIBUTES_BYTES, MAX_CHANGES, MAX_PAGE_ENTRIES, MAX_RANK};
use crate::{Attributes, Error, Result, Rule, attribute_size};

fn options() -> impl Options {
    // Little-endian, variable-length integers; trailing bytes are rejected.
    bincode::DefaultOptions::new()
}

pub(crate) fn encode(value: &impl Serialize, limit_bytes: u64, rule: Rule) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, value, limit_bytes, rule)?;
    Ok(bytes)
}

/// Appends the encoding of a value. Fails with `rule` if it is longer than `limit_bytes`.
pub(crate) fn encode_into(
    bytes: &mut Vec<u8>,
    value: &impl Serialize,
    limit_bytes: u64,
    rule: Rule,
) -> Result<()> {
    let start = bytes.len();
    // The limit is checked afterwards, because bincode would encode the value twice to check it.
    let encoded = options().serialize_into(&mut *bytes, value).and_then(|()| {
        let is_within = bytes.len().saturating_sub(start) as u64 <= limit_bytes;
        if is_within { Ok(()) } else { Err(bincode::ErrorKind::SizeLimit.into()) }
    });
    encoded.map_err(|e| Error::new(rule, format!("encoding a record within {limit_bytes} bytes: {e}")))
}

/// Decodes a value. `bytes` must be its canonical encoding, with nothing after it (F-14).
pub(crate) fn decode<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    let limit_bytes = bytes.len() as u64;
    let what = || format!("a record of {limit_bytes} bytes");
    let value: T = deserialize(bytes).map_err(|e| decode_error(&e, &what()))?;
    // Other encodings of the same value (overlong integers, unsorted or duplicate keys) are rejected. Equal records
    // therefore have equal digests, and it need not be defined which duplicate key wins.
    match after_encoding_of(bytes, &value) {
        Some([]) => Ok(value),
        Some(_) => Err(Error::new(Rule::Canonical, what() + " cannot be decoded: bytes follow its end")),
        None => Err(Error::new(Rule::Canonical, what() + " is not in canonical form")),
    }
}

/// Decodes a value from the start of `bytes`, in any encoding.
fn deserialize<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> bincode::Result<T> {
    REFUSED.set(None);
    options().with_limit(bytes.len() as u64).allow_trailing_bytes().deserialize(bytes)
}

/// Decodes a value from the start of `bytes`. More bytes may follow.
pub(crate) fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    deserialize(bytes).map_err(|e| decode_error(&e, "the start of a record"))
}

/// Decodes the bytes of a text from the start of `bytes`. More bytes may follow.
pub(crate) fn decode_first_text(bytes: &[u8]) -> Result<&[u8]> {
    // A length below 251 is encoded as one byte. Lookups spend most of their time here.
    if let Some((&length @ ..251, rest)) = bytes.split_first()
        && let Some(text) = rest.get(..usize::from(length))
    {
        return Ok(text);
    }
    decode_first(bytes)
}

/// Returns the length in bytes of the value at the start of `bytes`, which must be in canonical form. More bytes may
/// follow.
pub(crate) fn first_length<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Result<usize> {
    let value: T = decode_first(bytes)?;
    let not_canonical = || Error::new(Rule::Canonical, "the start of a record is not in canonical form");
    let rest = after_encoding_of(bytes, &value).ok_or_else(not_canonical)?;
    Ok(bytes.len().saturating_sub(rest.len()))
}

/// Returns whether `bytes` are the encoding of `value`, without building a second encoding.
pub(crate) fn is_encoding_of(bytes: &[u8], value: &impl Serialize) -> bool {
    after_encoding_of(bytes, value).is_some_and(<[u8]>::is_empty)
}

/// Returns the bytes after the encoding of `value`, or `None` if `bytes` do not begin with it.
fn after_encoding_of<'a>(bytes: &'a [u8], value: &impl Serialize) -> Option<&'a [u8]> {
    let mut expected = Expected(bytes);
    options().serialize_into(&mut expected, value).ok()?;
    Some(expected.0)
}

/// The bytes that are still expected. Writing anything else is an error.
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

/// A rule that a decoded value breaks, and how. It is set by [`refuse`], because the errors of serde are only text.
pub(crate) type Refusal = (Rule, &'static str);

thread_local! {
    /// The refusal of the value that this thread decodes.
    static REFUSED: Cell<Option<Refusal>> = const { Cell::new(None) };
}

/// Returns the error of a value that breaks a rule other than F-14.
pub(crate) fn refuse<E: serde::de::Error>(rule: Rule, detail: &'static str) -> E {
    REFUSED.set(Some((rule, detail)));
    E::custom(detail)
}

/// Decodes a list with one item per dimension. One byte of a file can take 24 bytes in memory here, so at most
/// [`MAX_RANK`] items are kept (F-5). Items beyond the limit are still decoded, because an invalid encoding (F-14)
/// takes precedence.
pub(crate) fn dimensions<'de, T, C, D>(deserializer: D) -> Result<C, D::Error>
where
    T: Deserialize<'de>,
    C: FromIterator<T>,
    D: Deserializer<'de>,
{
    list(deserializer, MAX_RANK, (Rule::Rank, "more than 64 dimensions"))
}

/// Decodes a list, and keeps at most `limit` items. If there are more, it breaks the rule of `refusal`. Items
/// beyond the limit are still decoded, as in [`dimensions`].
pub(crate) fn list<'de, T, C, D>(deserializer: D, limit: usize, refusal: Refusal) -> Result<C, D::Error>
where
    T: Deserialize<'de>,
    C: FromIterator<T>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(List { limit, refusal, items: PhantomData })
}

struct List<T, C> {
    limit: usize,
    refusal: Refusal,
    items: PhantomData<(T, C)>,
}

impl<'de, T: Deserialize<'de>, C: FromIterator<T>> Visitor<'de> for List<T, C> {
    type Value = C;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} items", self.limit)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<C, A::Error> {
        let mut values = iter::from_fn(|| sequence.next_element::<T>().transpose());
        let kept = values.by_ref().take(self.limit).collect::<Result<C, _>>()?;
        // An error in the rest is reported first.
        let has_more = values.try_fold(false, |_, value| value.map(|_| true))?;
        let (rule, detail) = self.refusal;
        if has_more { Err(refuse(rule, detail)) } else { Ok(kept) }
    }
}

/// A choice: a number, and then the fields of that choice.
pub(crate) trait Choice<'de>: Sized {
    /// Decodes the fields of the choice with a number. A number that is not known is refused with [`refuse`].
    fn decode_fields<A: SeqAccess<'de>>(number: u64, fields: &mut A) -> Result<Self, A::Error>;
}

/// Decodes a choice.
pub(crate) fn choice<'de, T: Choice<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_tuple(2, ChoiceVisitor(PhantomData))
}

/// Decodes the next field of a choice. All fields of a choice are one value: a tuple if there are several.
pub(crate) fn field<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(fields: &mut A) -> Result<T, A::Error> {
    fields.next_element()?.ok_or_else(|| A::Error::custom("a choice without its fields"))
}

struct ChoiceVisitor<T>(PhantomData<T>);

impl<'de, T: Choice<'de>> Visitor<'de> for ChoiceVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a choice, and its fields")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<T, A::Error> {
        let number = field(&mut parts)?;
        T::decode_fields(number, &mut parts)
    }
}

/// Decodes a map of changes. At most [`MAX_CHANGES`] entries are kept (F-13).
pub(crate) fn changes<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let refusal = (Rule::ManifestLimits, "more than 4096 changes of one tree");
    limited_map(deserializer, MAX_CHANGES, refusal)
}

/// Decodes the files of a page of the index of a remote. At most [`MAX_PAGE_ENTRIES`] are kept.
pub(crate) fn page_entries<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    limited_map(deserializer, MAX_PAGE_ENTRIES, (Rule::IndexPage, "a page of more than 8192 files"))
}

/// Decodes a map, and keeps at most `limit` entries. If there are more, it breaks the rule of `refusal`.
fn limited_map<'de, K, V, D>(
    deserializer: D,
    limit: usize,
    refusal: Refusal,
) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut count = 0usize;
    let fits = |_: &K, _: &V| {
        count = count.saturating_add(1);
        count <= limit
    };
    deserializer.deserialize_map(Map { fits, refusal, kept: BTreeMap::new() })
}

/// Bytes as a list of bytes, which are copied together rather than one by one.
pub(crate) mod bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        <&[u8]>::deserialize(deserializer).map(<[u8]>::to_vec)
    }
}

/// Decodes the attributes of a store. At most [`MAX_ATTRIBUTES_BYTES`] are kept (F-13).
pub(crate) fn attributes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
    let mut total_bytes = 0usize;
    let fits = |(scope, key): &(String, String), value: &String| {
        total_bytes = total_bytes.saturating_add(attribute_size(scope, key, value));
        total_bytes <= MAX_ATTRIBUTES_BYTES
    };
    let refusal = (Rule::ManifestLimits, "attributes of more than 1048576 bytes");
    deserializer.deserialize_map(Map { fits, refusal, kept: BTreeMap::new() })
}

/// A map whose entries are kept until they exceed a limit. Entries beyond the limit are still decoded, as in
/// [`dimensions`].
struct Map<K, V, F> {
    fits: F,
    refusal: Refusal,
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
        write!(f, "a map without {}", self.refusal.1)
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
        let (rule, detail) = self.refusal;
        if is_too_much { Err(refuse(rule, detail)) } else { Ok(self.kept) }
    }
}

/// Returns the error for bytes that cannot be decoded. bincode's own messages are not used: they describe bincode's
/// types, not the file.
fn decode_error(error: &bincode::ErrorKind, what: &str) -> Error {
    use bincode::ErrorKind::{Custom, InvalidBoolEncoding, InvalidTagEncoding, InvalidUtf8Encoding};
    let (rule, detail) = match error {
        Custom(_) => REFUSED.take().unwrap_or((Rule::Canonical, "it has an invalid integer")),
        InvalidUtf8Encoding(_) => (Rule::Canonical, "it has text that is not UTF-8"),
        InvalidTagEncoding(_) | InvalidBoolEncoding(_) => {
            (Rule::Canonical, "it has an option or a flag that is neither 0 nor 1")
        }
        _ => (Rule::Canonical, "it ends early"),
    };
    Error::new(rule, format!("{what} cannot be decoded: {detail}"))
}
