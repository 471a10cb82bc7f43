//! Encodes and decodes whole tables. The crate itself reads and writes them in pieces, for use with files.

use std::collections::{BTreeMap, BTreeSet};

use stridemap_format::{
    Entry, Error, Node, PAGE_BYTES, Result, Rule, StorageRecord, TableEncoder, TableRef, TensorRecord, Tree,
    Uuid,
};

/// The content of a table, and the next storage id of the manifest that refers to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) uuid: Uuid,
    pub(crate) generation: u64,
    pub(crate) next_storage_id: u64,
    pub(crate) storages: BTreeMap<u64, StorageRecord>,
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
}

impl Table {
    pub(crate) fn encode(&self) -> (Vec<u8>, TableRef) {
        let mut encoder = TableEncoder::new(self.uuid, self.generation, self.next_storage_id);
        let mut bytes = Vec::new();
        for (&id, record) in &self.storages {
            encoder.push_storage(id, record, &mut bytes).unwrap();
        }
        for (name, record) in &self.tensors {
            encoder.push_tensor(name, record, &mut bytes).unwrap();
        }
        let reference = encoder.finish(&mut bytes).unwrap();
        (bytes, reference)
    }

    /// Reads a whole table, like a verification.
    pub(crate) fn decode(
        bytes: &[u8],
        uuid: Uuid,
        reference: &TableRef,
        next_storage_id: u64,
    ) -> Result<Table> {
        let file = TableFile::open(bytes, uuid, reference, next_storage_id)?;
        let mut reached = BTreeSet::new();
        let storages: Vec<(u64, StorageRecord)> = file.scan(&mut reached)?;
        let tensors: Vec<(String, TensorRecord)> = file.scan(&mut reached)?;
        let (mut counts, mut begun, mut page) = ([0, 0], BTreeSet::new(), 0);
        while page < reference.page_count {
            let node = file.node(page)?;
            if node.level() == 0 {
                counts[usize::from(node.tree() == Tree::Tensors)] += node.len() as u64;
            }
            begun.insert(page);
            page += node.pages();
        }
        if reached != begun {
            return Err(Error::new(Rule::NodeChild, format!("{reached:?} of the nodes at {begun:?}")));
        }
        if counts != [reference.storages.entry_count, reference.tensors.entry_count] {
            return Err(Error::new(Rule::RecordCount, format!("{counts:?} entries")));
        }
        let (storages, tensors) = (storages.into_iter().collect(), tensors.into_iter().collect());
        Ok(Table { uuid, generation: reference.generation, next_storage_id, storages, tensors })
    }
}

/// The file of a table, and a manifest's reference to it.
pub(crate) struct TableFile<'a> {
    bytes: &'a [u8],
    uuid: Uuid,
    reference: TableRef,
    next_storage_id: u64,
}

impl<'a> TableFile<'a> {
    pub(crate) fn open(
        bytes: &'a [u8],
        uuid: Uuid,
        reference: &TableRef,
        next_storage_id: u64,
    ) -> Result<Self> {
        if bytes.len() as u64 != reference.length_bytes() {
            return Err(Error::new(Rule::TableFile, format!("{} bytes", bytes.len())));
        }
        Ok(TableFile { bytes, uuid, reference: *reference, next_storage_id })
    }

    pub(crate) fn node(&self, page: u64) -> Result<Node> {
        if page >= self.reference.page_count {
            return Err(Error::new(Rule::NodeChild, format!("page {page} is outside the file")));
        }
        let rest = &self.bytes[page as usize * PAGE_BYTES..];
        let length = Node::page_count(&rest[..PAGE_BYTES]) as usize * PAGE_BYTES;
        Node::decode(rest[..length.min(rest.len())].into(), self.uuid, self.reference.generation, page)
    }

    fn root<E: Entry>(&self) -> Result<Node> {
        let root = self.node(root_page(&self.reference, E::TREE))?;
        root.check_child(E::TREE, None)?;
        Ok(root)
    }

    fn child<E: Entry>(&self, parent: &Node, index: usize) -> Result<(u64, Node)> {
        let page = parent.child::<E>(index)?;
        let child = self.node(page)?;
        child.check_child(E::TREE, parent.level().checked_sub(1))?;
        Ok((page, child))
    }

    /// Looks up one key. Returns its entry and the number of nodes that were read.
    pub(crate) fn find<E: Entry>(&self, key: &E::Key) -> Result<(Option<E>, usize)> {
        let (mut node, mut node_count) = (self.root::<E>()?, 1);
        while node.level() > 0 {
            let index = match node.search::<E>(key)? {
                Ok(index) => index,
                Err(0) => return Ok((None, node_count)),
                Err(next) => next - 1,
            };
            (_, node) = self.child::<E>(&node, index)?;
            node_count += 1;
        }
        let index = node.find::<E>(key)?;
        Ok((index.map(|index| node.entry(index, self.next_storage_id)).transpose()?, node_count))
    }

    /// Returns all entries of a tree, after checking their order (F-24), and adds its nodes to those that are reached.
    pub(crate) fn scan<E: Entry>(&self, reached: &mut BTreeSet<u64>) -> Result<Vec<E>> {
        let mut scan = Scan { entries: Vec::new(), last_leaf: None, reached };
        let root = self.root::<E>()?;
        self.scan_below(root_page(&self.reference, E::TREE), &root, &mut scan)?;
        Ok(scan.entries)
    }

    fn scan_below<E: Entry>(&self, page: u64, node: &Node, scan: &mut Scan<'_, E>) -> Result<()> {
        let out_of_order = || Err(Error::new(Rule::EntryOrder, format!("page {page} is out of order")));
        scan.reached.insert(page);
        if node.level() == 0 && scan.last_leaf.replace(page) >= Some(page) {
            return out_of_order();
        }
        for index in 0..node.len() {
            if node.level() == 0 {
                let entry: E = node.entry(index, self.next_storage_id)?;
                if scan.entries.last().is_some_and(|last| last.key() >= entry.key()) {
                    return out_of_order();
                }
                scan.entries.push(entry);
            } else {
                let (child_page, child) = self.child::<E>(node, index)?;
                // An error in the first entry itself comes before F-24.
                match child.level() {
                    0 => drop(child.entry::<E>(0, self.next_storage_id)?),
                    _ => drop(child.child::<E>(0)?),
                }
                if child.key_bytes::<E>(0)? != node.key_bytes::<E>(index)? {
                    return out_of_order();
                }
                self.scan_below(child_page, &child, scan)?;
            }
        }
        Ok(())
    }
}

/// What a scan has found so far.
struct Scan<'a, E> {
    entries: Vec<E>,
    last_leaf: Option<u64>,
    reached: &'a mut BTreeSet<u64>,
}

fn root_page(reference: &TableRef, tree: Tree) -> u64 {
    match tree {
        Tree::Storages => reference.storages.root_page,
        Tree::Tensors => reference.tensors.root_page,
    }
}
