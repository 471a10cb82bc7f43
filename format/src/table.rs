//! Tables, `meta/<generation>.tab`: encoding.

use serde::Serialize;

use crate::limits::{MAX_NODE_LEVEL, MAX_NODE_PAGES};
use crate::node::{NODE_HEADER_BYTES, NodeHeader, SLOT_BYTES};
use crate::record::check_storage_id;
use crate::{
    Error, PAGE_BYTES, Result, Rule, StorageRecord, TableRef, TensorRecord, Tree, TreeRef, Uuid, check_text,
    codec, digest,
};

/// An encoder of a table. Add the storages by ascending id, then the tensors by ascending name.
///
/// A table is two trees of nodes. The bytes that [`push_storage`](Self::push_storage),
/// [`push_tensor`](Self::push_tensor) and [`finish`](Self::finish) append are the file, from its first byte to its
/// last.
#[derive(Debug)]
pub struct TableEncoder {
    uuid: Uuid,
    generation: u64,
    next_storage_id: u64,
    /// The page at which the next node begins.
    next_page: u64,
    storages: Option<TreeRef>,
    /// The tree that grows: the storages until they are finished, then the tensors.
    tree: Levels,
    last_id: u64,
    last_name: String,
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
    /// Creates an encoder for the table of a generation.
    #[must_use]
    pub fn new(uuid: Uuid, generation: u64, next_storage_id: u64) -> Self {
        TableEncoder {
            uuid,
            generation,
            next_storage_id,
            next_page: 0,
            storages: None,
            tree: Levels::default(),
            last_id: 0,
            last_name: String::new(),
            entry: Vec::new(),
        }
    }

    /// Adds a storage, and appends to `out` the nodes that are full.
    ///
    /// # Errors
    /// [`Rule::EntryOrder`] if the id does not ascend, or a tensor was added before; [`Rule::StorageId`]; and the rules
    /// of the record.
    pub fn push_storage(&mut self, id: u64, record: &StorageRecord, out: &mut Vec<u8>) -> Result<()> {
        check_storage_id(id, self.next_storage_id)?;
        record.check()?;
        if self.storages.is_some() {
            return Err(Error::new(Rule::EntryOrder, format!("storage {id} after the first tensor")));
        }
        if id <= self.last_id {
            return Err(Error::new(Rule::EntryOrder, format!("storage {id} after storage {}", self.last_id)));
        }
        self.last_id = id;
        self.push_entry(Tree::Storages, &id, record, out)
    }

    /// Adds a tensor, and appends to `out` the nodes that are full.
    ///
    /// # Errors
    /// [`Rule::EntryOrder`] if the name does not ascend; [`Rule::Text`]; [`Rule::StorageId`].
    pub fn push_tensor(&mut self, name: &str, record: &TensorRecord, out: &mut Vec<u8>) -> Result<()> {
        check_text("name", name)?;
        check_storage_id(record.storage_id, self.next_storage_id)?;
        if name <= self.last_name.as_str() {
            let detail = format!("tensor {name:?} after tensor {:?}", self.last_name);
            return Err(Error::new(Rule::EntryOrder, detail));
        }
        self.finish_storages(out)?;
        name.clone_into(&mut self.last_name);
        self.push_entry(Tree::Tensors, &name, record, out)
    }

    /// Appends the remaining nodes to `out`, and returns the manifest's reference to the table.
    ///
    /// # Errors
    /// [`Rule::NodeLayout`] for a table of more than 2^64 pages.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<TableRef> {
        let storages = self.finish_storages(out)?;
        let tensors = self.finish_tree(Tree::Tensors, out)?;
        Ok(TableRef { generation: self.generation, page_count: self.next_page, storages, tensors })
    }

    fn finish_storages(&mut self, out: &mut Vec<u8>) -> Result<TreeRef> {
        if let Some(storages) = self.storages {
            return Ok(storages);
        }
        let storages = self.finish_tree(Tree::Storages, out)?;
        self.storages = Some(storages);
        Ok(storages)
    }

    fn push_entry(
        &mut self,
        tree: Tree,
        key: &impl Serialize,
        value: &impl Serialize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut entry = std::mem::take(&mut self.entry);
        entry.clear();
        codec::encode_into(&mut entry, key, u64::MAX, Rule::NodeLayout)?;
        let key_bytes = entry.len();
        codec::encode_into(&mut entry, value, u64::MAX, Rule::NodeLayout)?;
        self.tree.entry_count = self.tree.entry_count.saturating_add(1);
        self.push(tree, 0, &entry, key_bytes, out)?;
        self.entry = entry;
        Ok(())
    }

    /// Adds an entry to the unfinished node of a level. The first `key_bytes` of the entry are its key.
    fn push(
        &mut self,
        tree: Tree,
        level: usize,
        entry: &[u8],
        key_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if self.tree.nodes.len() <= level {
            self.tree.nodes.resize_with(level.saturating_add(1), Unfinished::default);
        }
        let Some(node) = self.tree.nodes.get_mut(level) else { return Ok(()) };
        if level == 0 {
            if !node.ends.is_empty() && node.length_with(1, entry.len()) > PAGE_BYTES {
                self.finish_node(tree, level, out)?;
            }
        // F-23: an inner node has at least two children, however long their keys are. A child that no longer fits stays
        // in the node until another one comes, so that the next node begins with two. The last node of a level keeps it.
        } else if node.ends.len() > 2
            && node.length_with(0, 0) > PAGE_BYTES
            && let Some((moved, moved_key_bytes)) = node.pop()
        {
            self.finish_node(tree, level, out)?;
            self.push(tree, level, &moved, moved_key_bytes, out)?;
        }
        if let Some(node) = self.tree.nodes.get_mut(level) {
            node.push(entry, key_bytes);
        }
        Ok(())
    }

    /// Appends the unfinished node of a level to `out`, and adds it to its parent.
    fn finish_node(&mut self, tree: Tree, level: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut child = self
            .tree
            .nodes
            .get_mut(level)
            .map(|node| std::mem::take(&mut node.first_key))
            .unwrap_or_default();
        let key_bytes = child.len();
        let page = self.write_node(tree, level, out)?;
        codec::encode_into(&mut child, &page, u64::MAX, Rule::NodeLayout)?;
        self.push(tree, level.saturating_add(1), &child, key_bytes, out)
    }

    /// Appends the unfinished nodes of a tree to `out`, the root last.
    fn finish_tree(&mut self, tree: Tree, out: &mut Vec<u8>) -> Result<TreeRef> {
        let mut level = 0usize;
        while level.saturating_add(1) < self.tree.nodes.len() {
            self.finish_node(tree, level, out)?;
            level = level.saturating_add(1);
        }
        let root_page = self.write_node(tree, level, out)?;
        let Levels { entry_count, .. } = std::mem::take(&mut self.tree);
        Ok(TreeRef { root_page, entry_count })
    }

    /// Appends the unfinished node of a level to `out`, and returns its page.
    fn write_node(&mut self, tree: Tree, level: usize, out: &mut Vec<u8>) -> Result<u64> {
        let node = self.tree.nodes.get_mut(level).map(std::mem::take).unwrap_or_default();
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
            generation: self.generation,
            page: self.next_page,
            tree: tree.code(),
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
