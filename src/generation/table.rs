//! Looks up and scans the entries of a table.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{self as format, Bounds, Entry, Manifest, Node, Rule, TableRef, Tree};

use super::entries::{StorageEntry, TensorEntry};
use super::table_nodes::{Found, Nodes};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, Result};
use crate::storage::Unreadable;

/// An open table. A lookup reads and checks only the nodes on its way that are not in memory yet.
#[derive(Debug)]
pub(crate) struct Table {
    nodes: Arc<Nodes>,
    reference: TableRef,
    /// Those of the manifest.
    bounds: Bounds,
}

impl Table {
    /// Opens the table of storages and tensors of a manifest, if it has one, and reads the roots.
    pub(crate) fn of(disk: &dyn Disk, paths: &StorePaths, manifest: &Manifest) -> Result<Option<Self>> {
        let Some(table) = Self::open_unchecked(disk, paths, manifest)? else { return Ok(None) };
        table.root::<StorageEntry>()?;
        table.root::<TensorEntry>()?;
        Ok(Some(table))
    }

    /// Opens the table of storages and tensors of a manifest, if it has one. Its nodes may be damaged.
    pub(crate) fn open_unchecked(
        disk: &dyn Disk,
        paths: &StorePaths,
        manifest: &Manifest,
    ) -> Result<Option<Self>> {
        let open = |table: TableRef| Self::open(disk, paths.table(table.generation), manifest, table);
        manifest.table.map(open).transpose()
    }

    /// Opens the table of tags, kept generations and garbage of a manifest, if it has one. Its nodes may be damaged.
    pub(crate) fn of_history(
        disk: &dyn Disk,
        paths: &StorePaths,
        manifest: &Manifest,
    ) -> Result<Option<Self>> {
        let open = |table: TableRef| Self::open(disk, paths.history(table.generation), manifest, table);
        manifest.history.map(open).transpose()
    }

    /// Opens a table that does not have its final name yet.
    pub(super) fn at(disk: &dyn Disk, path: &Path, manifest: &Manifest, reference: TableRef) -> Result<Self> {
        Self::open(disk, path.to_owned(), manifest, reference)
    }

    fn open(disk: &dyn Disk, path: PathBuf, manifest: &Manifest, reference: TableRef) -> Result<Self> {
        let nodes = Nodes::open(disk, path, manifest.uuid, &reference)?;
        Ok(Table { nodes, reference, bounds: manifest.bounds() })
    }

    pub(crate) fn reference(&self) -> &TableRef {
        &self.reference
    }

    pub(crate) fn path(&self) -> &Path {
        self.nodes.path()
    }

    /// Returns the entries in ascending order of key, from `start` on, or all.
    pub(crate) fn scan<E: Entry>(&self, start: Option<&E::Key>) -> Result<Scan<'_, E>> {
        let mut scan = Scan::new(self);
        start.map_or(Ok(()), |start| scan.start_at(start))?;
        Ok(scan)
    }

    /// Reads the nodes of the file in order. The inner error is that of a damaged node, or of one that could not be read
    /// and is skipped. The search for the next begins one page later: the length of such a node is unknown.
    pub(crate) fn nodes(&self, unreadable: Unreadable) -> impl Iterator<Item = Result<(u64, Result<Node>)>> {
        let (mut next_page, mut announced) = (0, 0);
        std::iter::from_fn(move || {
            let page = next_page;
            if page >= announced {
                announced = page + MAX_ANNOUNCED_NODES;
                self.nodes.prefetch(page..announced);
            }
            let read = (page < self.nodes.page_count()).then(|| self.nodes.read(page))?;
            next_page += read.as_ref().map_or(1, |node| node.pages());
            Some(unreadable.damage_in(read).map(|read| (page, read)))
        })
    }

    /// If no leaf of a tree can be read, although the tree has entries, returns the error of the first node that is
    /// damaged or could not be read.
    pub(crate) fn lost_tree(&self) -> Result<Option<Error>> {
        let mut unseen = Tree::ALL.to_vec();
        unseen.retain(|&tree| self.reference.tree(tree).entry_count > 0);
        let mut first = None;
        for read in self.nodes(Unreadable::Skip) {
            match read? {
                (_, Ok(node)) if node.level() == 0 => unseen.retain(|&tree| tree != node.tree()),
                (_, Ok(_)) => {}
                (_, Err(e)) => drop(first.get_or_insert(e)),
            }
            if unseen.is_empty() {
                return Ok(None);
            }
        }
        let missing = |tree: Tree| {
            let broken = format::Error::new(Rule::NodeChild, format!("no leaf of {tree}"));
            self.corrupt(self.reference.tree(tree).root_page, broken)
        };
        Ok(first.or_else(|| unseen.pop().map(missing)))
    }

    /// Reads a node from the file, even if it is in memory.
    pub(crate) fn node(&self, page: u64) -> Result<Node> {
        self.nodes.read(page)
    }

    /// Decodes an entry of a leaf at `page`.
    fn entry<E: Entry>(&self, page: u64, leaf: &Node, index: usize) -> Result<E> {
        leaf.entry(index, self.bounds).map_err(|e| self.corrupt(page, e))
    }

    /// Returns the error for the node at `page`.
    pub(crate) fn corrupt(&self, page: u64, e: format::Error) -> Error {
        self.nodes.corrupt(page, e)
    }

    /// Returns the page of a tree's root, or `None` for a tree without entries.
    pub(crate) fn root_page(&self, tree: Tree) -> Option<u64> {
        let reference = self.reference.tree(tree);
        (reference.entry_count > 0).then_some(reference.root_page)
    }

    fn root<E: Entry>(&self) -> Result<Option<(u64, Found<'_>)>> {
        let Some(page) = self.root_page(E::TREE) else { return Ok(None) };
        let root = self.nodes.get(page)?;
        root.check_child(E::TREE, None).map_err(|e| self.corrupt(page, e))?;
        Ok(Some((page, root)))
    }

    /// Returns a child and its page.
    fn child<E: Entry>(&self, page: u64, parent: &Node, index: usize) -> Result<(u64, Found<'_>)> {
        let child_page = parent.child::<E>(index).map_err(|e| self.corrupt(page, e))?;
        let child = self.nodes.get(child_page)?;
        let checked = child.check_child(E::TREE, parent.level().checked_sub(1));
        checked.map_err(|e| self.corrupt(child_page, e))?;
        Ok((child_page, child))
    }

    /// Announces that children of a node at level 1 will be read soon. They are usually in the order of the file.
    fn announce<E: Entry>(&self, parent: &Node, children: Range<usize>) {
        let page = |index| parent.child::<E>(index).ok();
        if children.len() > 1
            && let (Some(first), Some(last)) = (page(children.start), page(children.end - 1))
            && last.checked_sub(first).is_some_and(|pages| pages < MAX_ANNOUNCED_NODES)
        {
            self.nodes.prefetch(first..last + 1);
        }
    }

    /// Returns the entry with a key.
    pub(crate) fn find<E: Entry>(&self, key: &E::Key) -> Result<Option<E>> {
        let Some((mut page, mut node)) = self.root::<E>()? else { return Ok(None) };
        loop {
            if node.level() == 0 {
                let found = node.find::<E>(key).map_err(|e| self.corrupt(page, e))?;
                return found.map(|index| self.entry(page, &node, index)).transpose();
            }
            // The last child whose first key is not greater.
            let index = match node.search::<E>(key).map_err(|e| self.corrupt(page, e))? {
                Ok(index) => index,
                Err(0) => return Ok(None),
                Err(next) => next - 1,
            };
            (page, node) = self.child::<E>(page, &node, index)?;
        }
    }

    /// Returns the last entry before a key.
    pub(crate) fn last_before<E: Entry>(&self, key: &E::Key) -> Result<Option<E>> {
        let Some((mut page, mut node)) = self.root::<E>()? else { return Ok(None) };
        loop {
            // The first entry that is not before the key. In an inner node, the child before it has the one sought.
            let (Ok(next) | Err(next)) = node.search::<E>(key).map_err(|e| self.corrupt(page, e))?;
            let Some(index) = next.checked_sub(1) else { return Ok(None) };
            if node.level() == 0 {
                return self.entry(page, &node, index).map(Some);
            }
            (page, node) = self.child::<E>(page, &node, index)?;
        }
    }
}

/// The limit on leaves, or on pages, that a scan announces at once: 4 MiB.
const MAX_ANNOUNCED_NODES: u64 = 1024;

/// Iterates over entries in order, and checks their order.
pub(crate) struct Scan<'a, E> {
    table: &'a Table,
    /// The nodes from the root to the current leaf, each with its page and the index of its next entry or child.
    path: Vec<(u64, Found<'a>, usize)>,
    /// The error of the root, which is returned by the first call.
    failed: Option<Error>,
    /// How many children of the last inner node were announced, and how many are announced next. A scan may end soon, so
    /// the number begins small and doubles.
    announced: (usize, usize),
    /// The leaf before the current one.
    previous: Option<Found<'a>>,
    entries: PhantomData<E>,
}

impl<'a, E: Entry> Scan<'a, E> {
    fn new(table: &'a Table) -> Self {
        let (path, failed) = match table.root::<E>() {
            Ok(root) => (root.into_iter().map(|(page, root)| (page, root, 0)).collect(), None),
            Err(e) => (Vec::new(), Some(e)),
        };
        Scan { table, path, failed, announced: (0, 16), previous: None, entries: PhantomData }
    }

    /// Moves to the first entry with this key or a later one. Must be called first.
    fn start_at(&mut self, key: &E::Key) -> Result<()> {
        self.announced.1 = 1;
        while let Some((page, node, next)) = self.path.last_mut() {
            let found = node.search::<E>(key).map_err(|e| self.table.corrupt(*page, e))?;
            if node.level() == 0 {
                *next = found.unwrap_or_else(|place| place);
                return Ok(());
            }
            // The last child whose first key is not greater may contain the key.
            *next = found.unwrap_or_else(|place| place.saturating_sub(1));
            self.descend()?;
        }
        Ok(())
    }

    /// Adds the next child of the last node in the path.
    fn descend(&mut self) -> Result<()> {
        let Some((page, parent, next)) = self.path.last_mut() else { return Ok(()) };
        let table = self.table;
        if parent.level() == 1 {
            let (announced, count) = &mut self.announced;
            if *next == 0 || *next >= *announced {
                *announced = parent.len().min(*next + *count);
                *count = (2 * *count).min(MAX_ANNOUNCED_NODES as usize);
                table.announce::<E>(parent, *next..*announced);
            }
        }
        let (child_page, child) = table.child::<E>(*page, parent, *next)?;
        // An error in the first entry itself comes before F-24.
        match child.level() {
            0 => table.entry::<E>(child_page, &child, 0).map(drop)?,
            _ => child.child::<E>(0).map(drop).map_err(|e| table.corrupt(child_page, e))?,
        }
        let first_key = child.key_bytes::<E>(0).map_err(|e| table.corrupt(child_page, e))?;
        if first_key != parent.key_bytes::<E>(*next).map_err(|e| table.corrupt(*page, e))? {
            return Err(table.corrupt(*page, wrong_first_key(*page, child_page)));
        }
        *next += 1;
        self.path.push((child_page, child, 0));
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<E>> {
        self.failed.take().map_or(Ok(()), Err)?;
        while let Some((page, node, next)) = self.path.last_mut() {
            if *next == node.len() {
                let left = self.path.pop();
                self.previous =
                    left.map(|(_, node, _)| node).filter(|node| node.level() == 0).or(self.previous.take());
            } else if node.level() > 0 {
                self.descend()?;
            } else {
                let entry: E = self.table.entry(*page, node, *next)?;
                let before = match (*next, &self.previous) {
                    (0, None) => Ok(Ordering::Less),
                    (0, Some(previous)) => {
                        previous.compare::<E>(previous.len().saturating_sub(1), entry.key())
                    }
                    (next, _) => node.compare::<E>(next - 1, entry.key()),
                };
                if before.map_err(|e| self.table.corrupt(*page, e))? != Ordering::Less {
                    return Err(self.table.corrupt(*page, wrong_order(*page, *next)));
                }
                *next += 1;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

impl<E: Entry> Iterator for Scan<'_, E> {
    type Item = Result<E>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.advance();
        if entry.is_err() {
            self.path.clear(); // an error ends the scan: what follows may be out of order
        }
        entry.transpose()
    }
}

/// Returns the error for a child that does not begin with the key that its parent states.
pub(crate) fn wrong_first_key(parent: u64, child: u64) -> format::Error {
    let detail = format!(
        "the node at page {child} does not begin with the key that its parent, at page {parent}, states"
    );
    format::Error::new(Rule::EntryOrder, detail)
}

/// Returns the error for an entry of a leaf whose key does not follow the one before it.
pub(crate) fn wrong_order(page: u64, index: usize) -> format::Error {
    let detail = format!("entry {index} of the leaf at page {page} does not follow the one before it");
    format::Error::new(Rule::EntryOrder, detail)
}
