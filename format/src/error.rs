//! The rules of `SPEC.md`, and the error that names the broken rule.

use std::fmt;

use serde::{Serialize, Serializer};

/// A result whose error names the broken [`Rule`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! rules {
    ($($variant:ident = $number:literal, $text:literal;)*) => {
        /// A rule of `SPEC.md`, with the same number.
        ///
        /// ```
        /// # use stridemap_format::Rule;
        /// assert_eq!((Rule::Rank.number(), Rule::Rank.to_string()), (5, "F-5".to_owned()));
        /// assert_eq!(Rule::DType.text(), "the dtype code is known");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = concat!("F-", $number, ": ", $text, ".")] $variant = $number,)*
        }

        impl Rule {
            /// All rules, in the order of `SPEC.md`.
            pub const ALL: &[Rule] = &[$(Rule::$variant,)*];

            /// Returns the text of the rule, as in `SPEC.md`.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Rule::$variant => $text,)* }
            }
        }
    };
}

rules! {
    MarkerMagic = 1, "FORMAT begins with the magic of a stridemap store";
    MarkerDigest = 2, "FORMAT is 48 bytes and ends with a matching digest";
    Version = 3, "the format version is one that this reader knows";
    Text = 4, "names, messages, attribute keys and external paths are 1 to 4096 bytes of UTF-8 without NUL";
    Rank = 5, "a tensor has at most 64 dimensions and a stride for each";
    DType = 6, "the dtype code is known";
    Numel = 7, "the number of elements fits in a signed 64-bit integer";
    Extent = 8, "every element lies inside the storage";
    DimNames = 9, "a list of dimension names has an entry for each dimension, a name or none; at least one is a name, and names are distinct identifiers";
    StorageKind = 10, "the storage kind is known, and accesses to a live storage are 1, 2, 4 or 8 bytes";
    StorageLength = 11, "a storage is at most 2^63 - 1 bytes, and its reserved_bytes are at most 2^46";
    StorageId = 12, "a storage id is at least 1 and below the next id";
    ManifestLimits = 13, "a manifest has at most 4096 changes of each tree and 1 MiB of attributes";
    Canonical = 14, "an encoding is canonical: shortest integers, ascending keys, nothing after the end";
    ManifestFrame = 15, "a manifest is a preamble, a body of the stated length and a digest, at most 16 MiB together";
    ManifestDigest = 16, "a manifest ends with the digest of all bytes before it";
    StoreUuid = 17, "a manifest or table carries the uuid of its store";
    Generation = 18, "a manifest or table states the same generation as its file name, and refers to no later generation";
    MetadataFile = 19, "the newest manifest exists, and so do its tables and the manifests of generations with tags";
    TableFile = 20, "a table's file has as many pages as the manifest states";
    NodeDigest = 21, "a table's node begins with the digest of its other bytes";
    NodeLayout = 22, "a table's node states the page at which it is, and its slots ascend from the first entry to the last";
    NodeChild = 23, "a child is a node of the same tree, one level lower";
    EntryOrder = 24, "the keys of a tree ascend, and those of an inner node are the first keys of its children";
    ChunkDigest = 25, "sealed bytes have the digests that their record states";
    StorageFile = 26, "a storage's file is a regular file at least as long as its record says";
    TensorStorage = 27, "a tensor's storage has a record";
    RecordCount = 28, "records count the tensors and tags that refer to them, and a manifest counts its tables' entries";
    ExternalFile = 29, "an external storage's file is the one that was adopted, and is not part of a store";
    LockFile = 30, "LOCK is a regular file";
}

impl Rule {
    /// Returns the number after `F-`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "F-{}", self.number())
    }
}

/// As its number: `F-25`.
impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An error for bytes or values that break a [`Rule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    rule: Rule,
    offset_bytes: Option<u64>,
    detail: String,
    is_mismatch: bool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}: {})", self.detail, self.rule, self.rule.text())
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Creates an error. `detail` describes the values that broke `rule`.
    pub fn new(rule: Rule, detail: impl Into<String>) -> Self {
        Error { rule, offset_bytes: None, detail: detail.into(), is_mismatch: false }
    }

    /// Creates an error for values that do not match each other.
    pub(crate) fn mismatch(rule: Rule, detail: impl Into<String>) -> Self {
        Error { is_mismatch: true, ..Error::new(rule, detail) }
    }

    /// Sets the offset in the file at which the value or the part that breaks the rule begins, in bytes, unless it is
    /// set already.
    #[must_use]
    pub fn at(mut self, offset_bytes: u64) -> Self {
        self.offset_bytes.get_or_insert(offset_bytes);
        self
    }

    /// Returns the broken rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns whether the rule was broken by values that do not match each other. Each of them may be allowed.
    ///
    /// ```
    /// # use stridemap_format::{DType, Header};
    /// assert!(Header::new(DType::U8, [2, 2], [1], 0).unwrap_err().is_mismatch());
    /// assert!(!Header::contiguous(DType::U8, &[1; 65]).unwrap_err().is_mismatch());
    /// ```
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        self.is_mismatch
    }

    /// Returns a description of the values that broke the rule.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the offset in the file at which the value or the part that broke the rule begins, in bytes, if it is
    /// known.
    #[must_use]
    pub fn offset_bytes(&self) -> Option<u64> {
        self.offset_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_numbered_from_one_without_a_gap() {
        for (position, rule) in Rule::ALL.iter().enumerate() {
            assert_eq!(usize::from(rule.number()), position + 1, "{}", rule.text());
        }
    }

    #[test]
    fn spec_states_every_rule_by_number_and_in_the_same_words() {
        let words: Vec<&str> = include_str!("../SPEC.md").split_whitespace().collect();
        let spec = words.join(" ");
        for rule in Rule::ALL {
            let heading = format!("**{rule}**: {}.", rule.text());
            assert!(spec.contains(&heading), "SPEC.md lacks `{heading}`");
        }
    }
}
