//! Hints about the names in a node, so that a lookup reads few of the names themselves.
//!
//! In a table of a million names, a lookup spends most of its time waiting for memory. The names of a node are spread
//! over a page, and a binary search reads one after another. The hints of a node are next to each other.

use crate::{Result, digest};

/// Hints about the names in a node, in their order.
#[derive(Debug)]
pub(crate) enum Hints {
    /// No hints: a name cannot be decoded, or an inner node has no names or too many.
    None,
    /// For a leaf: one byte of a hash of each name.
    Fingerprints(Box<[u8]>),
    /// For an inner node: of each name, the first eight bytes after the prefix that all names share.
    Prefixes { shared_bytes: usize, prefixes: Box<[u64]> },
}

impl Hints {
    /// Returns the hints of a leaf, or none if a name cannot be decoded.
    pub(crate) fn of_leaf<'a>(names: impl Iterator<Item = Result<&'a [u8]>>) -> Self {
        names
            .map(|name| name.map(fingerprint))
            .collect::<Result<_>>()
            .map_or(Hints::None, Hints::Fingerprints)
    }

    /// Returns the hints of an inner node, or none if there are no names, if a name cannot be decoded, or if the hints
    /// would take more than `limit_bytes`.
    pub(crate) fn of_inner<'a>(names: impl Iterator<Item = Result<&'a [u8]>>, limit_bytes: usize) -> Self {
        let Ok(names) = names.collect::<Result<Vec<_>>>() else { return Hints::None };
        if names.len().saturating_mul(size_of::<u64>()) > limit_bytes {
            return Hints::None;
        }
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Hints::None };
        // The names ascend, so a prefix that the first and the last share is shared by all.
        let shared_bytes = first.iter().zip(*last).take_while(|(a, b)| a == b).count();
        let prefixes =
            names.iter().map(|name| prefix_number(name.get(shared_bytes..).unwrap_or_default())).collect();
        Hints::Prefixes { shared_bytes, prefixes }
    }
}

/// Returns one byte of a hash of a name.
pub(crate) fn fingerprint(name: &[u8]) -> u8 {
    let [fingerprint, ..] = digest(name);
    fingerprint
}

/// Returns the first eight bytes as a big-endian number. Numbers have the order of their texts, but different texts can
/// have equal numbers. Missing bytes count as zeros.
pub(crate) fn prefix_number(rest: &[u8]) -> u64 {
    rest.iter().chain(std::iter::repeat(&0)).take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}
