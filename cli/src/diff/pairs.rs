//! Pairs the tensors of two sources for comparison.

use std::cmp::Ordering;
use std::iter::{self, Peekable};

use stridemap::{Result, TensorInfo};

use super::DiffArgs;
use crate::error::{Error, Result as CommandResult};
use crate::input::{Input, Items};
use crate::names::{Named as _, Pattern, pattern_in};

/// Which tensors are compared.
pub(super) struct Selection {
    patterns: Vec<Pattern>,
    pub(super) prefix_a: String,
    prefix_b: String,
}

impl Selection {
    /// Returns what the arguments select. A pattern or a prefix that selects nothing is refused.
    pub(super) fn of(args: &DiffArgs, a: &Input, b: &Input) -> CommandResult<Self> {
        let (prefix_a, prefix_b) = split(&args.prefix, a, b)?;
        let contains = |name: &str| {
            Ok(a.contains(&format!("{prefix_a}{name}"))? || b.contains(&format!("{prefix_b}{name}"))?)
        };
        let patterns: Vec<Pattern> =
            args.names.iter().map(|text| pattern_in(text, contains)).collect::<CommandResult<_>>()?;
        let mut unmatched = vec![true; patterns.len()];
        for (input, prefix) in [(a, &prefix_a), (b, &prefix_b)] {
            let mut is_any = prefix.is_empty();
            for info in input.tensors(prefix)? {
                let info = info?;
                is_any = true;
                let name = &info.name[prefix.len()..];
                let matches =
                    patterns.iter().zip(&mut unmatched).filter(|(pattern, _)| pattern.matches(name));
                matches.for_each(|(_, unmatched)| *unmatched = false);
            }
            if !is_any {
                let (path, why) = (input.path().display(), format!("no name begins with {prefix:?}"));
                return Err(Error::Refused(format!("diff {path}: {why}; ls lists the names")));
            }
        }
        match patterns.iter().zip(unmatched).find(|(_, unmatched)| *unmatched) {
            Some((pattern, _)) => {
                Err(Error::Refused(format!("diff: no tensor of A or B matches {:?}", pattern.text)))
            }
            None => Ok(Selection { patterns, prefix_a, prefix_b }),
        }
    }

    /// Returns whether a tensor is compared, by its name without the prefix.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether only a part of the tensors may be compared.
    pub(super) fn is_partial(&self) -> bool {
        !(self.patterns.is_empty() && self.prefix_a.is_empty() && self.prefix_b.is_empty())
    }

    /// Returns the selected tensors of one side.
    fn tensors<'a>(&'a self, input: &'a Input, prefix: &'a str) -> Result<Items<'a, TensorInfo>> {
        let is_selected = |info: &Result<TensorInfo>| {
            info.as_ref().map_or(true, |info| self.contains(&info.name[prefix.len()..]))
        };
        Ok(Box::new(input.tensors(prefix)?.filter(move |info| is_selected(info))))
    }
}

/// Splits P or P=Q into the prefixes in A and in B. A name may contain "=", so this is what both sides have names for, and
/// otherwise the first part and the rest.
fn split(text: &str, a: &Input, b: &Input) -> Result<(String, String)> {
    let is_in = |input: &Input, prefix: &str| Ok(input.tensors(prefix)?.next().transpose()?.is_some());
    let splits = text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]));
    for (in_a, in_b) in [(text, text)].into_iter().chain(splits) {
        if is_in(a, in_a)? && is_in(b, in_b)? {
            return Ok((in_a.to_owned(), in_b.to_owned()));
        }
    }
    let (in_a, in_b) = text.split_once('=').unwrap_or((text, text));
    Ok((in_a.to_owned(), in_b.to_owned()))
}

/// The tensors with the same name in A and in B. One of them may be missing.
pub(super) type Pair = (Option<TensorInfo>, Option<TensorInfo>);

/// Iterates over the pairs in ascending order of name. If both sources contain a single unnamed tensor, these two are
/// the only pair.
pub(super) fn pairs<'a>(
    a: &'a Input,
    b: &'a Input,
    selection: &'a Selection,
) -> Result<Box<dyn Iterator<Item = Result<Pair>> + 'a>> {
    if let (Some(a), Some(b), false) = (a.unnamed_tensor(), b.unnamed_tensor(), selection.is_partial()) {
        return Ok(Box::new(iter::once(Ok((Some(a), Some(b))))));
    }
    let (prefix_a, prefix_b) = (selection.prefix_a.as_str(), selection.prefix_b.as_str());
    let (a, b) = (selection.tensors(a, prefix_a)?.peekable(), selection.tensors(b, prefix_b)?.peekable());
    Ok(Box::new(Joined { a, b, prefix_lens: [prefix_a.len(), prefix_b.len()] }))
}

struct Joined<'a> {
    a: Peekable<Items<'a, TensorInfo>>,
    b: Peekable<Items<'a, TensorInfo>>,
    /// How much of the names in A and in B is not compared.
    prefix_lens: [usize; 2],
}

impl Iterator for Joined<'_> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.a.peek(), self.b.peek()) {
            (Some(Ok(a)), Some(Ok(b))) => {
                let [len_a, len_b] = self.prefix_lens;
                a.name[len_a..].cmp(&b.name[len_b..])
            }
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
