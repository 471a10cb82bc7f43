//! Hints about the names in a node, so that a lookup reads few of the names themselves.
//!
//! In a table of a million names, a lookup spends most of its time waiting for memory. The names of a node are spread
//! over a page, and a binary search reads one after another. The hints of a node are next to each other.

use crate::{Result, digest};

/// Hints about the names in a node, in their order.
#[derive(Debug)]
pub(crate) enum Hints {
    /// No hints: a name cannot be decoded, or there are no names or too many.
    None,
    /// For a leaf: one byte of a hash of each name.
    Marks(Box<[u8]>),
    /// For an inner node: the eight bytes of each name that follow the start that all names share.
    Heads { shared_bytes: usize, heads: Box<[u64]> },
}

impl Hints {
    /// Returns the hints of a leaf, or none if a name cannot be decoded.
    pub(crate) fn of_leaf<'a>(names: impl Iterator<Item = Result<&'a [u8]>>) -> Self {
        names.map(|name| name.map(mark)).collect::<Result<_>>().map_or(Hints::None, Hints::Marks)
    }

    /// Returns the hints of an inner node, or none if a name cannot be decoded or the hints would take more than
    /// `limit_bytes`.
    pub(crate) fn of_inner<'a>(names: impl Iterator<Item = Result<&'a [u8]>>, limit_bytes: usize) -> Self {
        let Ok(names) = names.collect::<Result<Vec<_>>>() else { return Hints::None };
        if names.len().saturating_mul(size_of::<u64>()) > limit_bytes {
            return Hints::None;
        }
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Hints::None };
        // The names ascend, so what the first and the last share, all share.
        let shared_bytes = first.iter().zip(*last).take_while(|(a, b)| a == b).count();
        let heads = names.iter().map(|name| head(name.get(shared_bytes..).unwrap_or_default())).collect();
        Hints::Heads { shared_bytes, heads }
    }
}

/// Returns one byte of a hash of a name.
pub(crate) fn mark(name: &[u8]) -> u8 {
    let [mark, ..] = digest(name);
    mark
}

/// Returns the first eight bytes as a number: a text that is smaller never has a greater number. Missing bytes count
/// as zeros.
pub(crate) fn head(rest: &[u8]) -> u64 {
    rest.iter().chain(std::iter::repeat(&0)).take(8).fold(0, |head, &byte| head << 8 | u64::from(byte))
}
