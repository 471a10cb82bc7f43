use std::cmp::Reverse;

use crate::error::{Error, ErrorKind, Result};

/// How many names are looked at for a suggestion: a mistyped name should not cost a scan of a million.
const MAX_LOOKED_AT: usize = 2_000;

/// Longer names are not compared: it takes time that grows with the product of their lengths.
const MAX_COMPARED_BYTES: usize = 120;

/// The error for a name that is not there; it says which ones are nearest.
pub(crate) fn not_found<'a, I, T>(action: &str, name: &str, tensors: impl Fn(&'a str) -> Result<I>) -> Error
where
    I: Iterator<Item = Result<(String, T)>>,
{
    let mut message = format!("{action} {name:?}: no tensor of this name");
    let names = tensors("").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.0));
    let mut nearest: Vec<(f64, String)> = names
        .take(MAX_LOOKED_AT)
        .filter(|other| name.len().max(other.len()) <= MAX_COMPARED_BYTES)
        .map(|other| (strsim::normalized_damerau_levenshtein(name, &other), other))
        .filter(|(similarity, _)| *similarity > 0.5)
        .collect();
    nearest.sort_by_key(|(similarity, _)| Reverse((similarity * 1e6) as u64));
    nearest.truncate(3);
    if !nearest.is_empty() {
        let listed: Vec<String> = nearest.iter().map(|(_, other)| format!("{other:?}")).collect();
        message += &format!("; did you mean {}?", listed.join(" or "));
    }
    Error::new(ErrorKind::NameNotFound, message)
}
