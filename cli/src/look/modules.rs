//! The tree of modules that the names of tensors describe: `encoder.layer.0.weight` is in the module `encoder.layer.0`, and
//! `encoder/weight` in `encoder/`.

use std::borrow::Cow;

use serde::Serialize;
use stridemap::{DType, TensorInfo};

use crate::names::{leading_digits, natural};

/// The maximum depth of a tree. Trees are visited recursively, and names in hostile files can have thousands of parts.
const MAX_DEPTH: usize = 64;

/// The characters that end the names of modules.
const SEPARATORS: [char; 2] = ['.', '/'];

/// The totals of a group of tensors.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct Totals {
    pub(crate) tensor_count: u64,
    pub(crate) numel: u64,
    #[serde(rename = "nbytes")]
    pub(crate) size_bytes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, info: &TensorInfo) {
        self.merge(Totals {
            tensor_count: 1,
            numel: info.header.numel() as u64,
            size_bytes: info.header.nbytes() as u64,
        });
    }

    pub(crate) fn merge(&mut self, other: Totals) {
        self.tensor_count += other.tensor_count;
        self.numel = self.numel.saturating_add(other.numel);
        self.size_bytes = self.size_bytes.saturating_add(other.size_bytes);
    }
}

/// A part of a name between the characters `.` and `/`: a tensor, or a module.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) totals: Totals,
    /// The dtype and size of a tensor.
    pub(crate) tensor: Option<(DType, Box<[usize]>)>,
    /// The parts of a module, each with its text, which ends with a `.` or `/` for a module. Equal texts are one part.
    parts: Vec<(Box<str>, Node)>,
}

/// A part of a module.
pub(crate) struct Part<'a> {
    /// The text in names of tensors. For a module, it ends with a `.` or `/`.
    pub(crate) text: Cow<'a, str>,
    pub(crate) node: &'a Node,
}

impl Node {
    /// Adds a tensor to the modules that its name describes. Tensors are added in ascending order of name, which brings
    /// those of one module together.
    pub(crate) fn add(&mut self, info: &TensorInfo) {
        let (mut node, mut rest) = (self, info.name.as_str());
        node.totals.add(info);
        for depth in 1.. {
            let end = rest.find(SEPARATORS).filter(|_| depth < MAX_DEPTH).map(|at| at + 1);
            let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
            let Some(part) = node.part(text) else { return };
            (node, rest) = (part, after);
            node.totals.add(info);
            if end.is_none() {
                break;
            }
        }
        node.tensor = Some((info.header.dtype(), info.header.size().into()));
    }

    /// Returns the part with this text, which is the last one or new.
    fn part(&mut self, text: &str) -> Option<&mut Node> {
        if self.parts.last().is_none_or(|(last, _)| **last != *text) {
            // Most modules with one part never get another.
            self.parts.reserve_exact(usize::from(self.parts.is_empty()));
            self.parts.push((text.into(), Node::default()));
        }
        self.parts.last_mut().map(|(_, node)| node)
    }

    /// Returns the parts of this module in natural order, a tensor before a module of the same name. A module that
    /// contains only another module is joined with it: `model.encoder`.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let mut parts: Vec<Part<'_>> =
            self.parts.iter().map(|(text, node)| Part::joined(text, node)).collect();
        parts.sort_by(|a, b| natural(a.name(), b.name()));
        parts
    }

    pub(crate) fn is_module(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns whether two nodes have the same parts, dtypes and sizes.
    fn is_like(&self, other: &Node) -> bool {
        self.tensor == other.tensor
            && self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(|((a, x), (b, y))| a == b && x.is_like(y))
    }
}

impl<'a> Part<'a> {
    fn joined(text: &'a str, mut node: &'a Node) -> Self {
        let mut text = Cow::Borrowed(text);
        while let [(part, only)] = &*node.parts
            && only.is_module()
        {
            text.to_mut().push_str(part);
            node = only;
        }
        Part { text, node }
    }

    /// Returns the text without the dot at the end of a module's. A `/` stays, as in the path of a directory.
    pub(crate) fn name(&self) -> &str {
        let is_module = self.node.is_module();
        self.text.strip_suffix('.').filter(|_| is_module).unwrap_or(&self.text)
    }

    /// Returns the texts before and after a number in which the next part differs by one, if they differ in nothing else.
    fn around_next_number(&self, next: &Part<'_>) -> Option<(&str, &str)> {
        let pairs = self.text.char_indices().zip(next.text.chars());
        let same = pairs.take_while(|((_, a), b)| a == b).last().map_or(0, |((at, c), _)| at + c.len_utf8());
        let before = self.text.get(..same)?.trim_end_matches(|c: char| c.is_ascii_digit());
        let (a, b) = (self.text.get(before.len()..)?, next.text.get(before.len()..)?);
        let (x, y) = (leading_digits(a), leading_digits(b));
        let (after, other_after) = (a.get(x.len()..)?, b.get(y.len()..)?);
        let is_next = x.parse::<u64>().ok()?.checked_add(1)? == y.parse::<u64>().ok()?;
        (is_next && after == other_after).then_some((before, after))
    }
}

/// Returns how many parts, from the first, are alike and have names that differ only in a number, which counts up by one.
pub(crate) fn alike_count(parts: &[Part<'_>]) -> usize {
    let mut around = None;
    let is_next = |pair: &&[Part<'_>]| {
        let [a, b] = pair else { return false };
        let Some(found) = a.around_next_number(b) else { return false };
        let found = (found.0.to_owned(), found.1.to_owned());
        *around.get_or_insert_with(|| found.clone()) == found && a.node.is_like(b.node)
    };
    parts.windows(2).take_while(is_next).count() + 1
}

#[cfg(test)]
mod tests {
    use stridemap::Header;

    use super::*;

    /// Returns the names of the top parts, those that are alike as one text.
    fn folded(names: &[&str]) -> Vec<String> {
        let mut root = Node::default();
        for &name in names {
            let header = Header::contiguous(DType::F32, &[2]).unwrap();
            root.add(&TensorInfo::new(name.to_owned(), header, 1));
        }
        let parts = root.parts();
        let (mut rest, mut folded) = (&*parts, Vec::new());
        while !rest.is_empty() {
            let alike;
            (alike, rest) = rest.split_at(alike_count(rest));
            let names: Vec<&str> = alike.iter().map(Part::name).collect();
            folded.push(names.join(" "));
        }
        folded
    }

    #[test]
    fn names_that_count_up_by_one_are_together() {
        for (names, expected) in [
            (&["a10", "a11", "a9"][..], &["a9 a10 a11"][..]),
            (&["a1", "a3", "a4"], &["a1", "a3 a4"]),
            // Through single modules, and with a number within a name.
            (&["0.x.w", "1.x.w", "2.y.w"], &["0.x 1.x", "2.y"]),
            (&["e0_up/w", "e1_up/w"], &["e0_up/ e1_up/"]),
            (&["a.1/b.w", "a.2/b.w"], &["a"]),
            // Only one number counts up.
            (&["a1_1", "a1_2", "a2_2", "b2_3"], &["a1_1 a1_2", "a2_2", "b2_3"]),
            // Other parts, another kind, and other characters.
            (&["0.w", "1.v"], &["0", "1"]),
            (&["0", "1.w"], &["0", "1"]),
            (&["0.w", "1/w"], &["0", "1/"]),
            (&["é1é", "é2é", "é2ë"], &["é1é é2é", "é2ë"]),
        ] {
            assert_eq!(folded(names), expected, "{names:?}");
        }
    }

    #[test]
    fn names_with_empty_parts_and_thousands_of_parts_are_kept() {
        assert_eq!(folded(&["", ".", "/", "a", "a.", "a/"]), ["", "", "/", "a", "a", "a/"]);
        let name = "a/".repeat(2000);
        assert_eq!(folded(&[&name])[0].len(), 2 * (MAX_DEPTH - 1));
    }
}
