//! The rules of `SPEC.md` and `REMOTE.md`, and the error that names the broken rule.

use std::fmt;

use serde::{Serialize, Serializer};

/// A result whose error names the broken [`Rule`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The discriminant of a rule of `REMOTE.md` is this and its number.
const REMOTE: u8 = 100;

macro_rules! rules {
    (
        F { $($variant:ident = $number:literal, $text:literal;)* }
        R { $($remote:ident = $remote_number:literal, $remote_text:literal;)* }
    ) => {
        /// A rule of `SPEC.md` (F-1, F-2, and so on) or of `REMOTE.md` (R-1, R-2, and so on).
        ///
        /// ```
        /// # use stridemap_format::Rule;
        /// assert_eq!((Rule::Rank.number(), Rule::Rank.to_string()), (5, "F-5".to_owned()));
        /// assert_eq!(Rule::DType.text(), "the dtype code is known");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Rule {
            $(#[doc = concat!("F-", $number, ": ", $text, ".")] $variant = $number,)*
            $(#[doc = concat!("R-", $remote_number, ": ", $remote_text, ".")] $remote = REMOTE + $remote_number,)*
        }

        impl Rule {
            /// All rules: those of `SPEC.md`, then those of `REMOTE.md`, by number.
            pub const ALL: &[Rule] = &[$(Rule::$variant,)* $(Rule::$remote,)*];

            /// Returns the text of the rule, as in the document that defines it.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Rule::$variant => $text,)* $(Rule::$remote => $remote_text,)* }
            }
        }
    };
}

rules! {
    F {
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
    R {
        HeadMagic = 1, "HEAD begins with the magic of the head of a remote";
        HeadDigest = 2, "HEAD is 96 bytes and ends with a matching digest";
        RemoteUuid = 3, "HEAD and a remote manifest carry the uuid of FORMAT";
        RemoteGeneration = 4, "HEAD, the name of a remote manifest and the remote manifest state the same generation, at least 1";
        RemoteFrame = 5, "a remote manifest is a preamble and a body of the stated length, at most 64 MiB together, with a manifest of 1 byte to 16 MiB inside";
        RemoteChoice = 6, "the kinds of files, of segments and of places of pages are known";
        Segment = 7, "a segment is 1 byte to 64 MiB long; it and the digests of its blocks, if there are several, end in the first 65 MiB of its object";
        IndexPage = 8, "a page of the index is at most 4 MiB long and has 1 to 8192 files, as many as its remote manifest states";
        IndexOrder = 9, "the files of the index ascend from page to page, and a page begins with the file that its remote manifest states";
        RemoteLimits = 10, "a remote manifest has at most 65536 pages, and at most 1048576 replaced objects, whose names ascend";
        ObjectDigest = 11, "a remote manifest has the length and the BLAKE3 digest that are stated; a segment and the digests of its blocks have its check";
        RemoteObject = 12, "each object to which HEAD, a remote manifest or a page of its index refers exists";
    }
}

impl Rule {
    /// Returns the number after `F-` or `R-`.
    #[must_use]
    pub const fn number(self) -> u8 {
        // A rule of `SPEC.md` has a number below `REMOTE`.
        (self as u8) % REMOTE
    }

    /// Returns the document that defines the rule: `SPEC.md` or `REMOTE.md`.
    #[must_use]
    pub const fn document(self) -> &'static str {
        if (self as u8) < REMOTE { "SPEC.md" } else { "REMOTE.md" }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if (*self as u8) < REMOTE { 'F' } else { 'R' };
        write!(f, "{letter}-{}", self.number())
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
        for (document, letter) in [("SPEC.md", 'F'), ("REMOTE.md", 'R')] {
            let rules = Rule::ALL.iter().filter(|rule| rule.document() == document);
            for (position, rule) in rules.enumerate() {
                let number = position + 1;
                assert_eq!(usize::from(rule.number()), number, "{}", rule.text());
                assert_eq!(rule.to_string(), format!("{letter}-{number}"));
            }
        }
    }

    #[test]
    fn documents_state_every_rule_by_number_and_in_the_same_words() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (spec, remote) = (words(include_str!("../SPEC.md")), words(include_str!("../REMOTE.md")));
        for rule in Rule::ALL {
            let heading = format!("**{rule}**: {}.", rule.text());
            let text = if rule.document() == "SPEC.md" { &spec } else { &remote };
            assert!(text.contains(&heading), "{} lacks `{heading}`", rule.document());
        }
    }
}
