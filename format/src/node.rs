//! The nodes of a table: decoding, and searching for a key.

use std::cmp::Ordering;
use std::ops::{Deref, Range};
use std::sync::OnceLock;
use std::sync::atomic::{self, AtomicBool};

use crate::entry::Bounds;
use crate::hints::{Hints, fingerprint, prefix_number};
use crate::limits::{MAX_NODE_LEVEL, MAX_NODE_PAGES};
use crate::preamble::take;
use crate::{Digest, Entry, Error, Result, Rule, Tree, Uuid, codec, digest};

/// The size of a page in bytes. A node begins at a page, and is a whole number of pages.
pub const PAGE_BYTES: usize = 4096;

pub(crate) const NODE_HEADER_BYTES: usize = 56;
pub(crate) const SLOT_BYTES: usize = 2;

/// The header of a node: its place in the tables of a store, its tree and level, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHeader {
    pub(crate) uuid: Uuid,
    pub(crate) generation: u64,
    pub(crate) page: u64,
    pub(crate) tree: u16,
    pub(crate) level: u16,
    pub(crate) count: u16,
    pub(crate) page_count: u16,
}

impl NodeHeader {
    fn decode(mut bytes: &[u8]) -> Option<(Digest, Self)> {
        let bytes = &mut bytes;
        let stated: Digest = take(bytes)?;
        let header = NodeHeader {
            uuid: take(bytes)?,
            generation: take(bytes).map(u64::from_le_bytes)?,
            page: take(bytes).map(u64::from_le_bytes)?,
            tree: take(bytes).map(u16::from_le_bytes)?,
            level: take(bytes).map(u16::from_le_bytes)?,
            count: take(bytes).map(u16::from_le_bytes)?,
            page_count: take(bytes).map(u16::from_le_bytes)?,
        };
        Some((stated, header))
    }

    /// Returns the header's bytes after the digest.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.uuid.to_vec();
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.page.to_le_bytes());
        for field in [self.tree, self.level, self.count, self.page_count] {
            bytes.extend(field.to_le_bytes());
        }
        bytes
    }

    /// Returns the tree that the node is part of.
    #[must_use]
    pub fn tree(&self) -> Tree {
        Tree::of(self.tree).unwrap_or(Tree::Storages) // a node of any other tree is not decoded
    }

    /// Returns the level: 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u16 {
        self.level
    }

    /// Returns the number of pages that the node takes.
    #[must_use]
    pub fn pages(&self) -> u64 {
        u64::from(self.page_count)
    }

    /// Returns the number of entries or children.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns whether the node has no entries. No valid node has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Checks that the node belongs to `tree`, is at `level`, and has enough entries: a leaf one, an inner node two.
    /// `level` is one less than the parent's. A root has no parent: then `level` is `None`, and any level up to the
    /// limit is right.
    ///
    /// # Errors
    /// [`Rule::NodeChild`].
    pub fn check_child(&self, tree: Tree, level: Option<u16>) -> Result<()> {
        let is_at_level = level.map_or(self.level <= MAX_NODE_LEVEL, |level| level == self.level);
        let least = if self.level == 0 { 1 } else { 2 };
        if self.tree() == tree && is_at_level && self.len() >= least {
            return Ok(());
        }
        let NodeHeader { page, level: found_level, count, .. } = *self;
        let expected = match level {
            Some(level) => format!("a node of {tree} at level {level} with at least {least} entries"),
            None => {
                format!("a root of {tree} at level {MAX_NODE_LEVEL} at most with at least {least} entries")
            }
        };
        let found = format!("a node of {} at level {found_level} with {count} entries", self.tree());
        let detail = format!("at page {page}, {expected} is expected, but {found} is there");
        Err(Error::new(Rule::NodeChild, detail))
    }
}

/// A node whose digest, place and slots were checked.
///
/// A leaf is at level 0 and contains entries. A node at a higher level contains the first key and the page of each
/// child.
#[derive(Debug)]
pub struct Node {
    bytes: Box<[u8]>,
    header: NodeHeader,
    hints: OnceLock<Hints>,
    /// Whether a key was looked up in this node before. Building the hints takes more time than they save in a single
    /// lookup, so they are built at the second.
    was_searched: AtomicBool,
}

impl Deref for Node {
    type Target = NodeHeader;

    fn deref(&self) -> &NodeHeader {
        &self.header
    }
}

impl Node {
    /// Returns the number of pages that the first page of a node states, clamped to the range that a valid node can
    /// have. The page is not checked.
    #[must_use]
    pub fn page_count(first_page: &[u8]) -> u64 {
        let stated = NodeHeader::decode(first_page).map_or(1, |(_, header)| header.page_count);
        u64::from(stated.clamp(1, MAX_NODE_PAGES))
    }

    /// Decodes the node at `page` in the table that generation `generation` of store `uuid` wrote.
    ///
    /// # Errors
    /// [`Rule::NodeDigest`], [`Rule::StoreUuid`], [`Rule::Generation`], [`Rule::NodeLayout`], and [`Rule::NodeChild`]
    /// for a tree that does not exist, in this order.
    pub fn decode(bytes: Box<[u8]>, uuid: Uuid, generation: u64, page: u64) -> Result<Self> {
        let refused =
            |rule, detail: String| Err(Error::new(rule, format!("the node at page {page} {detail}")));
        let Some((stated, header)) = NodeHeader::decode(&bytes) else {
            return refused(Rule::NodeDigest, "is cut short".into());
        };
        if bytes.get(size_of::<Digest>()..).map(digest) != Some(stated) {
            return refused(Rule::NodeDigest, "does not match its digest".into());
        }
        if header.uuid != uuid {
            return refused(Rule::StoreUuid, "belongs to a different store".into());
        }
        if header.generation != generation {
            return refused(Rule::Generation, format!("belongs to generation {}", header.generation));
        }
        let stated_bytes = usize::from(header.page_count).saturating_mul(PAGE_BYTES);
        if header.page != page || header.page_count > MAX_NODE_PAGES || stated_bytes != bytes.len() {
            let detail = format!("states page {} and a length of {stated_bytes} bytes", header.page);
            return refused(Rule::NodeLayout, detail);
        }
        let node = Node { bytes, header, hints: OnceLock::new(), was_searched: AtomicBool::new(false) };
        if !node.slots_are_valid() {
            return refused(Rule::NodeLayout, format!("has wrong slots for {} entries", header.count));
        }
        if Tree::of(header.tree).is_none() {
            let detail = format!("belongs to tree {}, and there are only 0 to 4", header.tree);
            return refused(Rule::NodeChild, detail);
        }
        Ok(node)
    }

    /// Returns whether the offsets in the slots ascend, from the byte after the slots to a byte in the last page, and
    /// only zeros follow the last entry.
    fn slots_are_valid(&self) -> bool {
        let mut last =
            NODE_HEADER_BYTES.saturating_add(self.len().saturating_add(1).saturating_mul(SLOT_BYTES));
        if self.slot(0) != Some(last) {
            return false;
        }
        for index in 1..=self.len() {
            match self.slot(index) {
                Some(end) if end > last => last = end,
                _ => return false,
            }
        }
        let is_in_last_page = last.div_ceil(PAGE_BYTES) == usize::from(self.header.page_count);
        is_in_last_page && self.bytes.get(last..).is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
    }

    /// Returns the offset at which an entry begins, or the end of the last entry.
    fn slot(&self, index: usize) -> Option<usize> {
        let offset = NODE_HEADER_BYTES.checked_add(index.checked_mul(SLOT_BYTES)?)?;
        let slot = self.bytes.get(offset..)?.first_chunk()?;
        Some(usize::from(u16::from_le_bytes(*slot)))
    }

    fn entry_bytes(&self, index: usize) -> &[u8] {
        let end = index.checked_add(1).and_then(|next| self.slot(next));
        let range = self.slot(index).zip(end).map(|(start, end)| start..end);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// Searches for a key. Returns the index of its entry, or the index at which it would be.
    ///
    /// # Errors
    /// [`Rule::Canonical`] for a key that cannot be decoded.
    pub fn search<E: Entry>(&self, key: &E::Key) -> Result<Result<usize, usize>> {
        self.search_in::<E>(self.range::<E>(key)?, key)
    }

    fn search_in<E: Entry>(
        &self,
        Range { mut start, mut end }: Range<usize>,
        key: &E::Key,
    ) -> Result<Result<usize, usize>> {
        while start < end {
            let middle = start.midpoint(end);
            match self.compare::<E>(middle, key)? {
                Ordering::Less => start = middle.saturating_add(1),
                Ordering::Greater => end = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(start))
    }

    /// Returns the hints about the names in this node, from its second lookup on. Only nodes of tensors have them. The
    /// hints take at most half as much memory as the node.
    fn hints(&self) -> Option<&Hints> {
        let is_second = self.was_searched.swap(true, atomic::Ordering::Relaxed);
        let uses_hints = is_second && self.tree() == Tree::Tensors;
        uses_hints.then(|| {
            self.hints.get_or_init(|| {
                let names = (0..self.len()).map(|index| codec::decode_first_text(self.entry_bytes(index)));
                match self.level {
                    0 => Hints::of_leaf(names),
                    _ => Hints::of_inner(names, self.bytes.len() / 2),
                }
            })
        })
    }

    /// Returns the range of indices in which a key is, or would be, if the keys ascend.
    fn range<E: Entry>(&self, key: &E::Key) -> Result<Range<usize>> {
        let (Some(name), Some(Hints::Prefixes { shared_bytes, prefixes })) = (E::name(key), self.hints())
        else {
            return Ok(0..self.len());
        };
        let first = codec::decode_first_text(self.entry_bytes(0))?;
        let (name_start, name_rest) = name.split_at_checked(*shared_bytes).unwrap_or((name, &[]));
        Ok(match name_start.cmp(first.get(..*shared_bytes).unwrap_or_default()) {
            Ordering::Less => 0..0,
            Ordering::Greater => self.len()..self.len(),
            Ordering::Equal => {
                let sought = prefix_number(name_rest);
                prefixes.partition_point(|&prefix| prefix < sought)
                    ..prefixes.partition_point(|&prefix| prefix <= sought)
            }
        })
    }

    /// Returns the index of the entry with this key in a leaf. From the second lookup in a node of names on, this is
    /// faster than [`search`](Self::search) if the node is not in the processor's caches, because it reads only the
    /// entries whose names have the same one-byte hash.
    ///
    /// # Errors
    /// [`Rule::Canonical`] for a key that cannot be decoded.
    pub fn find<E: Entry>(&self, key: &E::Key) -> Result<Option<usize>> {
        let (Some(name), Some(Hints::Fingerprints(fingerprints))) = (E::name(key), self.hints()) else {
            return Ok(self.search_in::<E>(0..self.len(), key)?.ok());
        };
        let sought = fingerprint(name);
        for (index, _) in fingerprints.iter().enumerate().filter(|(_, found)| **found == sought) {
            if self.compare::<E>(index, key)? == Ordering::Equal {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Compares the key of an entry, or the first key of a child, with `key`.
    ///
    /// # Errors
    /// [`Rule::Canonical`].
    pub fn compare<E: Entry>(&self, index: usize, key: &E::Key) -> Result<Ordering> {
        E::compare(self.entry_bytes(index), key)
    }

    /// Returns the encoded key of an entry, or the encoded first key of a child.
    ///
    /// # Errors
    /// [`Rule::Canonical`].
    pub fn key_bytes<E: Entry>(&self, index: usize) -> Result<&[u8]> {
        let bytes = self.entry_bytes(index);
        Ok(bytes.get(..E::key_length(bytes)?).unwrap_or_default())
    }

    /// Decodes an entry of a leaf.
    ///
    /// # Errors
    /// [`Rule::Canonical`], and the rules of the key and the record.
    pub fn entry<E: Entry>(&self, index: usize, bounds: Bounds) -> Result<E> {
        let entry = E::decode(self.entry_bytes(index))?;
        entry.check(bounds)?;
        Ok(entry)
    }

    /// Decodes the page of a child.
    ///
    /// # Errors
    /// [`Rule::Canonical`].
    pub fn child<E: Entry>(&self, index: usize) -> Result<u64> {
        let bytes = self.entry_bytes(index);
        codec::decode(bytes.get(E::key_length(bytes)?..).unwrap_or_default())
    }
}
