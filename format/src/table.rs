//! Tables, `generations/<generation>.tab` and `meta/<generation>.his`: a manifest's reference to one, and encoding.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_NODE_LEVEL, MAX_NODE_PAGES};
use crate::node::{NODE_HEADER_BYTES, NodeHeader, SLOT_BYTES};
use crate::{Bounds, Entry, Error, PAGE_BYTES, Result, Rule, Tree, Uuid, codec, digest};

/// A manifest's reference to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRef {
    /// The generation that wrote the table. The table's file is named after it.
    pub generation: u64,
    /// The length of the file, in pages of [`PAGE_BYTES`](crate::PAGE_BYTES).
    pub page_count: u64,
    /// The trees, in the order of [`Tree::ALL`].
    pub trees: [TreeRef; Tree::ALL.len()],
}

impl TableRef {
    /// Returns the length of the table's file in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.page_count.saturating_mul(crate::PAGE_BYTES as u64)
    }

    /// Returns the number of entries in all trees.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.trees.iter().fold(0, |sum: u64, tree| sum.saturating_add(tree.entry_count))
    }

    /// Returns the reference to one of the trees.
    #[must_use]
    pub fn tree(&self, tree: Tree) -> TreeRef {
        self.trees.get(usize::from(tree.code())).copied().unwrap_or_default()
    }

    /// Checks the table of a manifest of `generation`.
    pub(crate) fn check(&self, generation: u64, is_history: bool) -> Result<()> {
        if self.generation > generation || self.generation == 0 {
            let detail = format!("generation {generation} with a table of generation {}", self.generation);
            return Err(Error::new(Rule::Generation, detail));
        }
        for (name, tree) in Tree::ALL.iter().zip(self.trees) {
            if tree.entry_count > 0 && name.is_history() != is_history {
                return Err(Error::new(Rule::NodeChild, format!("{name} in the wrong table")));
            }
            if tree.entry_count == 0 && tree.root_page > 0 {
                let detail = format!("no {name} in the table, but a root at page {}", tree.root_page);
                return Err(Error::new(Rule::NodeChild, detail));
            }
        }
        Ok(())
    }
}

/// A reference to one of the trees in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRef {
    /// The page at which the root begins. A tree without entries has no root, and 0 here.
    pub root_page: u64,
    /// The number of entries in the leaves.
    pub entry_count: u64,
}

/// An encoder of a table. Add the entries of each tree in the order of their keys, and the trees in the order of
/// [`Tree::ALL`].
///
/// A table is several trees of nodes. The bytes that [`push`](Self::push) and [`finish`](Self::finish) append are the
/// file, from its first byte to its last.
#[derive(Debug)]
pub struct TableEncoder {
    uuid: Uuid,
    bounds: Bounds,
    /// The page at which the next node begins.
    next_page: u64,
    /// The trees that are finished.
    trees: [TreeRef; Tree::ALL.len()],
    /// The tree that grows.
    tree: Tree,
    levels: Levels,
    /// The encoding of the last entry.
    last: Vec<u8>,
    /// A buffer for the encoding of the entry that is being added.
    entry: Vec<u8>,
}

/// The unfinished nodes of a tree: one of each level, leaves first.
#[derive(Debug, Default)]
struct Levels {
    nodes: Vec<Unfinished>,
    entry_count: u64,
}

/// A node that is not full yet.
#[derive(Debug, Default)]
struct Unfinished {
    /// The first key, encoded.
    first_key: Vec<u8>,
    /// The offset in `entries` at which each entry ends.
    ends: Vec<usize>,
    entries: Vec<u8>,
    /// The length of the key of the last entry.
    last_key_bytes: usize,
}

impl Unfinished {
    fn push(&mut self, entry: &[u8], key_bytes: usize) {
        if self.ends.is_empty() {
            self.first_key.extend(entry.iter().take(key_bytes));
        }
        self.entries.extend(entry);
        self.ends.push(self.entries.len());
        self.last_key_bytes = key_bytes;
    }

    /// Removes the last entry. Returns it, and the length of its key.
    fn pop(&mut self) -> Option<(Vec<u8>, usize)> {
        self.ends.pop()?;
        let start = self.ends.last().copied().unwrap_or_default();
        Some((self.entries.split_off(start), self.last_key_bytes))
    }

    /// Returns the length of the node with `count` more entries of `bytes` in total.
    fn length_with(&self, count: usize, bytes: usize) -> usize {
        let slots = self.ends.len().saturating_add(count).saturating_add(1).saturating_mul(SLOT_BYTES);
        NODE_HEADER_BYTES.saturating_add(slots).saturating_add(self.entries.len()).saturating_add(bytes)
    }
}

impl TableEncoder {
    /// Creates an encoder for the table of the generation whose manifest has these bounds.
    #[must_use]
    pub fn new(uuid: Uuid, bounds: Bounds) -> Self {
        TableEncoder {
            uuid,
            bounds,
            next_page: 0,
            trees: Default::default(),
            tree: Tree::Storages,
            levels: Levels::default(),
            last: Vec::new(),
            entry: Vec::new(),
        }
    }

    /// Adds an entry, and appends to `out` the nodes that are full.
    ///
    /// # Errors
    /// [`Rule::EntryOrder`] if the key or the tree does not ascend; and the rules of the key and the record.
    pub fn push<E: Entry>(&mut self, entry: &E, out: &mut Vec<u8>) -> Result<()> {
        entry.check(self.bounds)?;
        if E::TREE < self.tree {
            let detail = format!("{} after the first of {}", E::TREE, self.tree);
            return Err(Error::new(Rule::EntryOrder, detail));
        }
        if E::TREE > self.tree {
            self.finish_tree(out)?;
            self.tree = E::TREE;
        }
        if self.levels.entry_count > 0 && E::compare(&self.last, entry.key())? != Ordering::Less {
            let detail = format!("an entry of {} whose key does not follow the one before", E::TREE);
            return Err(Error::new(Rule::EntryOrder, detail));
        }
        let mut bytes = std::mem::take(&mut self.entry);
        bytes.clear();
        codec::encode_into(&mut bytes, entry, u64::MAX, Rule::NodeLayout)?;
        self.levels.entry_count = self.levels.entry_count.saturating_add(1);
        self.push_to(0, &bytes, E::key_length(&bytes)?, out)?;
        self.entry = std::mem::replace(&mut self.last, bytes);
        Ok(())
    }

    /// Appends the remaining nodes to `out`, and returns the manifest's reference to the table.
    ///
    /// # Errors
    /// [`Rule::NodeLayout`] for a table of more than 2^64 pages.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<TableRef> {
        self.finish_tree(out)?;
        let TableEncoder { bounds, next_page, trees, .. } = self;
        Ok(TableRef { generation: bounds.generation, page_count: next_page, trees })
    }

    /// Adds an entry to the unfinished node of a level. The first `key_bytes` of the entry are its key.
    fn push_to(&mut self, level: usize, entry: &[u8], key_bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.levels.nodes.len() <= level {
            self.levels.nodes.resize_with(level.saturating_add(1), Unfinished::default);
        }
        let Some(node) = self.levels.nodes.get_mut(level) else { return Ok(()) };
        if level == 0 {
            if !node.ends.is_empty() && node.length_with(1, entry.len()) > PAGE_BYTES {
                self.finish_node(level, out)?;
            }
        // F-23: an inner node has at least two children, however long their keys are. A child that no longer fits stays
        // in the node until another one comes, so that the next node begins with two. The last node of a level keeps it.
        } else if node.ends.len() > 2
            && node.length_with(0, 0) > PAGE_BYTES
            && let Some((moved, moved_key_bytes)) = node.pop()
        {
            self.finish_node(level, out)?;
            self.push_to(level, &moved, moved_key_bytes, out)?;
        }
        if let Some(node) = self.levels.nodes.get_mut(level) {
            node.push(entry, key_bytes);
        }
        Ok(())
    }

    /// Appends the unfinished node of a level to `out`, and adds it to its parent.
    fn finish_node(&mut self, level: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut child = self
            .levels
            .nodes
            .get_mut(level)
            .map(|node| std::mem::take(&mut node.first_key))
            .unwrap_or_default();
        let key_bytes = child.len();
        let page = self.write_node(level, out)?;
        codec::encode_into(&mut child, &page, u64::MAX, Rule::NodeLayout)?;
        self.push_to(level.saturating_add(1), &child, key_bytes, out)
    }

    /// Appends the unfinished nodes of the tree to `out`, the root last. A tree without entries has no nodes.
    fn finish_tree(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.levels.entry_count == 0 {
            return Ok(());
        }
        let mut level = 0usize;
        while level.saturating_add(1) < self.levels.nodes.len() {
            self.finish_node(level, out)?;
            level = level.saturating_add(1);
        }
        let root_page = self.write_node(level, out)?;
        let Levels { entry_count, .. } = std::mem::take(&mut self.levels);
        if let Some(tree) = self.trees.get_mut(usize::from(self.tree.code())) {
            *tree = TreeRef { root_page, entry_count };
        }
        Ok(())
    }

    /// Appends the unfinished node of a level to `out`, and returns its page.
    fn write_node(&mut self, level: usize, out: &mut Vec<u8>) -> Result<u64> {
        let node = self.levels.nodes.get_mut(level).map(std::mem::take).unwrap_or_default();
        let (start, length) = (out.len(), node.length_with(0, 0));
        let page_count = length.div_ceil(PAGE_BYTES);
        let too_large =
            || Error::new(Rule::NodeLayout, format!("a node of {page_count} pages at level {level}"));
        let to_u16 = |number: usize| u16::try_from(number).map_err(|_| too_large());
        if level > usize::from(MAX_NODE_LEVEL) {
            return Err(too_large());
        }
        let header = NodeHeader {
            uuid: self.uuid,
            generation: self.bounds.generation,
            page: self.next_page,
            tree: self.tree.code(),
            level: to_u16(level)?,
            count: to_u16(node.ends.len())?,
            page_count: to_u16(page_count)
                .and_then(|count| if count > MAX_NODE_PAGES { Err(too_large()) } else { Ok(count) })?,
        };
        out.extend([0; 16]);
        out.extend(header.encode());
        let entries_start = length.saturating_sub(node.entries.len());
        for end in [0].iter().chain(&node.ends) {
            out.extend(to_u16(entries_start.saturating_add(*end))?.to_le_bytes());
        }
        out.extend(&node.entries);
        out.resize(start.saturating_add(page_count.saturating_mul(PAGE_BYTES)), 0);
        if let Some((stated, covered)) =
            out.get_mut(start..).and_then(|node| node.split_first_chunk_mut::<16>())
        {
            *stated = digest(covered);
        }
        let page = self.next_page;
        self.next_page = page.checked_add(page_count as u64).ok_or_else(too_large)?;
        Ok(page)
    }
}
