//! New names for the tensors of files.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::names::name_in;

/// The tensors and values to rename, by name, and the patterns of others.
#[derive(Default)]
pub(super) struct Renames {
    names: BTreeMap<String, String>,
    patterns: Vec<PatternRename>,
}

impl Renames {
    /// Parses the texts `OLD=NEW`. Each must rename a tensor or a value that is kept.
    pub(super) fn of(
        texts: &[String],
        tensors: &BTreeSet<String>,
        is_kept: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let mut renames = Renames { names: BTreeMap::new(), patterns: Vec::new() };
        let refused = |why| Err(Error::Refused(why));
        for text in texts {
            let (old, new) = split(text, tensors)?;
            if !tensors.contains(&old) {
                let pattern = PatternRename { old, new };
                if !tensors.iter().any(|name| is_kept(name) && pattern.new_name(name).is_some()) {
                    let why = format!("import --rename: no tensor or value matches {:?}", pattern.old);
                    return Err(Error::NoMatch(why));
                }
                renames.patterns.push(pattern);
            } else if !is_kept(&old) {
                return refused(format!("import: {old:?} is both renamed and left out by --skip or --only"));
            } else if renames.names.insert(old.clone(), new).is_some() {
                return refused(format!("import --rename: {old:?} is renamed twice"));
            }
        }
        Ok(renames)
    }

    /// Returns the new name of a tensor or a value. A rename by name comes before patterns, and an earlier pattern before others.
    pub(super) fn new_name(&self, name: &str) -> String {
        let by_pattern = || self.patterns.iter().find_map(|pattern| pattern.new_name(name));
        self.names.get(name).cloned().or_else(by_pattern).unwrap_or_else(|| name.to_owned())
    }
}

/// Splits OLD=NEW after the name of a tensor or a pattern, because a name may contain "=".
fn split(text: &str, names: &BTreeSet<String>) -> Result<(String, String)> {
    let split = |(at, _)| {
        let old = name_in(&text[..at], |name| Ok(names.contains(name)))?;
        Ok((old, text[at + 1..].to_owned()))
    };
    let mut splits: Vec<(String, String)> = text.match_indices('=').map(split).collect::<Result<_>>()?;
    let refused = |why: String| Err(Error::Refused(format!("import --rename{why}")));
    let Some((first, _)) = splits.first() else { return refused(format!(" {text:?}: write OLD=NEW")) };
    let by_name = splits.iter().position(|(old, _)| names.contains(old));
    let Some(at) = by_name.or_else(|| splits.iter().position(|(old, _)| old.contains('*'))) else {
        return refused(format!(": no tensor or value is named {first:?}"));
    };
    let (old, new) = splits.swap_remove(at);
    let [in_old, in_new] = [&old, &new].map(|text| text.matches('*').count());
    if by_name.is_none() && in_old != in_new {
        return refused(format!(
            " {text:?}: the old name has {in_old} *, and the new one {in_new}; each stands for the same text in both"
        ));
    }
    Ok((old, new))
}

/// New names for all tensors that match a pattern.
pub(super) struct PatternRename {
    pub(super) old: String,
    pub(super) new: String,
}

impl PatternRename {
    /// Returns the new name of a tensor, if it matches. Each `*` but the last matches as little as possible.
    pub(super) fn new_name(&self, name: &str) -> Option<String> {
        let (first, rest_of_old) = self.old.split_once('*')?;
        let (last, middle) = match rest_of_old.rsplit_once('*') {
            Some((middle, last)) => (last, Some(middle)),
            None => (rest_of_old, None),
        };
        let mut rest = name.strip_prefix(first)?.strip_suffix(last)?;
        let mut matched = Vec::new();
        for literal in middle.into_iter().flat_map(|middle| middle.split('*')) {
            let (text, after) = rest.split_once(literal)?;
            matched.push(text);
            rest = after;
        }
        matched.push(rest);
        let (mut new, mut matched) = (String::new(), matched.into_iter());
        for (index, literal) in self.new.split('*').enumerate() {
            if index > 0 {
                new.push_str(matched.next().unwrap_or_default());
            }
            new.push_str(literal);
        }
        Some(new)
    }

    /// Returns whether a name matches in more than one way, so that it is not certain what each `*` stands for.
    pub(super) fn is_ambiguous(&self, name: &str) -> bool {
        let mut literals = self.old.split('*');
        let first = literals.next().unwrap_or_default();
        // For each end of what has matched so far: in how many ways.
        let mut ways = BTreeMap::from([(first.len(), u64::from(name.starts_with(first)))]);
        let literals: Vec<&str> = literals.collect();
        for (index, literal) in literals.iter().enumerate() {
            let mut next = BTreeMap::new();
            for (&start, &count) in &ways {
                for (at, _) in
                    name.char_indices().skip_while(|(at, _)| *at < start).chain([(name.len(), ' ')])
                {
                    let end = at + literal.len();
                    let is_end = index + 1 < literals.len() || end == name.len();
                    if is_end && name.get(at..).is_some_and(|rest| rest.starts_with(literal)) {
                        let ways: &mut u64 = next.entry(end).or_default();
                        *ways = ways.saturating_add(count);
                    }
                }
            }
            ways = next;
        }
        ways.values().any(|&count| count > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_the_same_text_in_both_names() {
        for (old, new, name, expected) in [
            ("module.*", "*", "module.a.b", Some("a.b")),
            ("module.*", "*", "module.", Some("")),
            ("module.*", "*", "modul", None),
            ("*", "p/*", "x", Some("p/x")),
            ("*.gamma", "*.weight", "a.b.gamma", Some("a.b.weight")),
            ("*.gamma", "*.weight", "gamma", None),
            ("layers.*.attn.*", "blocks.*.self.*", "layers.1.attn.q.attn.b", Some("blocks.1.self.q.attn.b")),
            ("a*b*c", "*-*", "axbybzc", Some("x-ybz")),
            ("a*a", "*", "a", None),
            ("a**", "*/*", "abc", Some("/bc")),
        ] {
            let pattern = PatternRename { old: old.to_owned(), new: new.to_owned() };
            assert_eq!(pattern.new_name(name).as_deref(), expected, "{old} {name}");
        }
    }

    #[test]
    fn a_name_that_matches_in_several_ways_is_ambiguous() {
        for (old, name, expected) in [
            ("a.*", "a.b.c", false),
            ("*.gamma", "a.gamma.gamma", false),
            ("*.*", "a.b", false),
            ("*.*", "a.b.c", true),
            ("layers.*.attn.*", "layers.1.attn.q", false),
            ("layers.*.attn.*", "layers.1.attn.q.attn.b", true),
            ("**", "é", true),
            ("a*b", "xb", false),
        ] {
            let pattern = PatternRename { old: old.to_owned(), new: old.to_owned() };
            assert_eq!(pattern.is_ambiguous(name), expected, "{old} {name}");
        }
    }
}
