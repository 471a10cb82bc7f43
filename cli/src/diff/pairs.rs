//! Pairs the tensors of two sources for comparison.

use std::cmp::Ordering;
use std::iter::{self, Peekable};

use stridemap::{Result, TensorInfo};

use crate::input::{Input, Items};

/// The tensors with the same name in A and in B. One of them may be missing.
pub(super) type Pair = (Option<TensorInfo>, Option<TensorInfo>);

/// Iterates over the pairs in ascending order of name. If both sources contain a single unnamed tensor, these two are
/// the only pair.
pub(super) fn pairs<'a>(a: &'a Input, b: &'a Input) -> Result<Box<dyn Iterator<Item = Result<Pair>> + 'a>> {
    if let (Some(a), Some(b)) = (a.unnamed_tensor(), b.unnamed_tensor()) {
        return Ok(Box::new(iter::once(Ok((Some(a), Some(b))))));
    }
    Ok(Box::new(Joined { a: a.tensors("")?.peekable(), b: b.tensors("")?.peekable() }))
}

struct Joined<'a> {
    a: Peekable<Items<'a, TensorInfo>>,
    b: Peekable<Items<'a, TensorInfo>>,
}

impl Iterator for Joined<'_> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.a.peek(), self.b.peek()) {
            (Some(Ok(a)), Some(Ok(b))) => a.name.cmp(&b.name),
            // An error on either side is returned first.
            (Some(Err(_)), _) | (Some(_), None) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let a = if order.is_le() { self.a.next().transpose() } else { Ok(None) };
        let b = if order.is_ge() { self.b.next().transpose() } else { Ok(None) };
        Some(a.and_then(|a| Ok((a, b?))))
    }
}
