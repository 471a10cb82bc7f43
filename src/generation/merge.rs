//! Two ascending sequences of entries, side by side.

use std::cmp::Ordering;

use crate::error::Result;

/// Calls `visit` with each key of two ascending sequences, and with its values in both.
pub(super) fn merge<K: Ord, V>(
    before: &mut dyn Iterator<Item = Result<(K, V)>>,
    after: &mut dyn Iterator<Item = Result<(K, V)>>,
    mut visit: impl FnMut(K, Option<V>, Option<V>) -> Result<()>,
) -> Result<()> {
    let (mut before, mut after) = (before.peekable(), after.peekable());
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return Ok(()),
            (Some(Ok((one, _))), Some(Ok((other, _)))) => one.cmp(other),
            (Some(Err(_)), _) | (_, None) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
        };
        let one = if order == Ordering::Greater { None } else { before.next().transpose()? };
        let other = if order == Ordering::Less { None } else { after.next().transpose()? };
        match (one, other) {
            (Some((key, value)), other) => visit(key, Some(value), other.map(|(_, value)| value))?,
            (None, Some((key, value))) => visit(key, None, Some(value))?,
            (None, None) => {}
        }
    }
}
