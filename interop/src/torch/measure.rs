//! Decides which plain values become attributes. A store holds a limited number of bytes of attributes, so the largest
//! lists, dicts and texts of a checkpoint become tensors of bytes instead.

use stridemap_format::attribute_size;

use super::tree::{MAX_DEPTH, entries, is_container, is_unknown_object, key_text, visits};
use super::value::{Arena, Node, Value};
use crate::budget::Budget;
use crate::contents::{ATTRIBUTE_BYTES, MAX_ATTRIBUTES_BYTES};

/// A list or dict with a value of at least this size is not made one text: what is small beside it stays an attribute.
const LARGE_BYTES: usize = MAX_ATTRIBUTES_BYTES / 16;

/// What a container takes as attributes, in the order in which containers are visited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// The number of bytes, or `None` if the container cannot become one text: not all of it is plain values.
    pub(super) bytes: Option<usize>,
    /// The index of the next container that is not within this one.
    pub(super) end: usize,
}

/// The measures of all containers.
#[derive(Debug, Default)]
pub(super) struct Measures {
    pub(super) containers: Vec<Measure>,
    /// Values that take more than this do not become attributes.
    pub(super) most_bytes: usize,
    /// The number of values of exactly that size that become attributes. The store has no room for the others.
    pub(super) most_count: usize,
}

impl Measures {
    pub(super) fn of(
        arena: &Arena<'_>,
        root: Value,
        visits: usize,
        budget: &mut Budget,
    ) -> Result<Self, String> {
        let mut measuring = Measuring {
            arena,
            path: Vec::new(),
            name_bytes: 0,
            remaining_visits: visits,
            text_budget: *budget,
            budget,
            store_bytes: 0,
            containers: Vec::new(),
            outermost: Vec::new(),
        };
        measuring.visit(root)?;
        let is_all_kept = measuring.store_bytes <= MAX_ATTRIBUTES_BYTES;
        let (containers, mut outermost) = (measuring.containers, measuring.outermost);
        outermost.sort_unstable();
        let mut rest_bytes = if is_all_kept { usize::MAX } else { MAX_ATTRIBUTES_BYTES };
        let (mut most_bytes, mut most_count) = (usize::MAX, 0usize);
        for same in outermost.chunk_by(|a, b| a == b) {
            let Some(&bytes) = same.first() else { continue };
            let count = rest_bytes.checked_div(bytes).unwrap_or(usize::MAX);
            if count < same.len() {
                (most_bytes, most_count) = (bytes, count);
                break;
            }
            rest_bytes = rest_bytes.saturating_sub(bytes.saturating_mul(same.len()));
        }
        Ok(Measures { containers, most_bytes, most_count })
    }

    /// Returns whether the next value of this size becomes an attribute, or several if it is a container.
    pub(super) fn fit(&mut self, bytes: usize) -> bool {
        if bytes == self.most_bytes {
            let rest = self.most_count.checked_sub(1);
            self.most_count = rest.unwrap_or(0);
            return rest.is_some();
        }
        bytes < self.most_bytes
    }
}

struct Measuring<'a> {
    arena: &'a Arena<'a>,
    path: Vec<Value>,
    name_bytes: usize,
    remaining_visits: usize,
    budget: &'a mut Budget,
    /// What copies of keys and texts are charged to. They are made again, and charged for good, when they get names.
    text_budget: Budget,
    /// What all plain values take in a store if each is an attribute.
    store_bytes: usize,
    containers: Vec<Measure>,
    /// The sizes of the values that become one attribute or one text, or that a text includes no other of.
    outermost: Vec<usize>,
}

impl Measuring<'_> {
    /// Returns the number of bytes that a value takes as attributes, or `None` if it cannot be part of a text.
    fn visit(&mut self, value: Value) -> Result<Option<usize>, String> {
        self.remaining_visits =
            self.remaining_visits.checked_sub(visits(self.arena, value)).ok_or(TOO_MANY_VISITS)?;
        let arena = self.arena;
        if !is_container(arena, value) {
            let Some(bytes) = text_bytes(arena, value) else { return Ok(None) };
            self.text_budget.charge(bytes)?;
            let in_store = attribute_size("", "", "").saturating_add(self.name_bytes).saturating_add(bytes);
            self.store_bytes = self.store_bytes.saturating_add(in_store);
            let bytes = attribute_bytes(self.name_bytes, bytes);
            self.budget.extend(&mut self.outermost, &[bytes])?;
            return Ok(Some(bytes));
        }
        if self.path.contains(&value) || self.path.len() >= MAX_DEPTH {
            return Ok(None);
        }
        let (index, first) = (self.containers.len(), self.outermost.len());
        self.budget.extend(&mut self.containers, &[Measure { bytes: None, end: 0 }])?;
        self.path.push(value);
        let mut sum = Some(0usize).filter(|_| !is_unknown_object(arena, value));
        for (key, child) in entries(arena, value) {
            let Ok(key) = key_text(arena, &key) else {
                sum = None;
                continue;
            };
            self.text_budget.charge(key.len())?;
            let name_bytes = self.name_bytes;
            let dot_bytes = usize::from(name_bytes > 0);
            self.name_bytes = name_bytes.saturating_add(dot_bytes).saturating_add(key.len());
            let bytes = self.visit(child)?.filter(|&bytes| bytes < LARGE_BYTES);
            self.name_bytes = name_bytes;
            sum = sum.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        }
        self.path.pop();
        let is_root = self.path.is_empty();
        let sum = sum.filter(|_| !is_root);
        if let Some(bytes) = sum {
            self.outermost.truncate(first);
            self.budget.extend(&mut self.outermost, &[bytes])?;
        }
        let end = self.containers.len();
        if let Some(measure) = self.containers.get_mut(index) {
            *measure = Measure { bytes: sum, end };
        }
        Ok(sum)
    }
}

/// Returns what an attribute counts as, by the lengths of its name and its text.
pub(super) fn attribute_bytes(name_bytes: usize, text_bytes: usize) -> usize {
    ATTRIBUTE_BYTES.saturating_add(name_bytes).saturating_add(text_bytes)
}

pub(super) const TOO_MANY_VISITS: &str = "it repeats the same lists or dicts too many times";

/// Returns the number of bytes of a plain value as text, without making the text of a long `torch.Size`.
pub(super) fn text_bytes(arena: &Arena<'_>, value: Value) -> Option<usize> {
    match arena.node(value) {
        Some(&Node::Size(tuple) | &Node::Device(tuple)) => {
            let items = arena.tuple(tuple).unwrap_or_default();
            let lengths = items.iter().map(|&item| text_bytes(arena, item).unwrap_or(0).saturating_add(1));
            Some(lengths.fold(2, usize::saturating_add))
        }
        Some(_) => None,
        None => super::tree::plain_text(arena, value).map(|text| text.len()),
    }
}
