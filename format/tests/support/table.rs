//! Encodes and decodes whole tables. The crate itself reads and writes them in pieces, for use with files.

use std::collections::{BTreeMap, BTreeSet};

use stridemap_format::{
    Bounds, Entry, Error, GarbageKey, KeptGeneration, KeptKey, Node, PAGE_BYTES, Result, Rule, StorageRecord,
    TableEncoder, TableRef, Tag, TensorRecord, Tree, Uuid,
};

pub(crate) type StorageEntry = (u64, StorageRecord);
pub(crate) type TensorEntry = (String, TensorRecord);
pub(crate) type TagEntry = (String, Tag);
pub(crate) type KeptEntry = (KeptKey, KeptGeneration);
pub(crate) type GarbageEntry = (GarbageKey, StorageRecord);

/// The content of a table, and the bounds that the manifest which refers to it states. A table in a store has either the
/// first two trees or the other three.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) uuid: Uuid,
    pub(crate) bounds: Bounds,
    pub(crate) storages: BTreeMap<u64, StorageRecord>,
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
    pub(crate) tags: BTreeMap<String, Tag>,
    pub(crate) kept: BTreeMap<KeptKey, KeptGeneration>,
    pub(crate) garbage: BTreeMap<GarbageKey, StorageRecord>,
}

impl Table {
    pub(crate) fn empty(uuid: Uuid, bounds: Bounds) -> Self {
        Table {
            uuid,
            bounds,
            storages: BTreeMap::new(),
            tensors: BTreeMap::new(),
            tags: BTreeMap::new(),
            kept: BTreeMap::new(),
            garbage: BTreeMap::new(),
        }
    }

    pub(crate) fn encode(&self) -> (Vec<u8>, TableRef) {
        let mut encoder = TableEncoder::new(self.uuid, self.bounds);
        let mut bytes = Vec::new();
        push_all(&mut encoder, &self.storages, &mut bytes);
        push_all(&mut encoder, &self.tensors, &mut bytes);
        push_all(&mut encoder, &self.tags, &mut bytes);
        push_all(&mut encoder, &self.kept, &mut bytes);
        push_all(&mut encoder, &self.garbage, &mut bytes);
        let reference = encoder.finish(&mut bytes).unwrap();
        (bytes, reference)
    }

    /// Reads a whole table, like a verification.
    pub(crate) fn decode(bytes: &[u8], uuid: Uuid, reference: &TableRef, bounds: Bounds) -> Result<Table> {
        let file = TableFile::open(bytes, uuid, reference, bounds)?;
        let mut reached = BTreeSet::new();
        let table = Table {
            uuid,
            bounds,
            storages: file.scan::<StorageEntry>(&mut reached)?.into_iter().collect(),
            tensors: file.scan::<TensorEntry>(&mut reached)?.into_iter().collect(),
            tags: file.scan::<TagEntry>(&mut reached)?.into_iter().collect(),
            kept: file.scan::<KeptEntry>(&mut reached)?.into_iter().collect(),
            garbage: file.scan::<GarbageEntry>(&mut reached)?.into_iter().collect(),
        };
        let (mut counts, mut begun, mut page) = (BTreeMap::<Tree, u64>::new(), BTreeSet::new(), 0);
        while page < reference.page_count {
            let node = file.node(page)?;
            if node.level() == 0 {
                *counts.entry(node.tree()).or_default() += node.len() as u64;
            }
            begun.insert(page);
            page += node.pages();
        }
        if reached != begun {
            return Err(Error::new(Rule::NodeChild, format!("{reached:?} of the nodes at {begun:?}")));
        }
        let stated = |tree: &Tree| reference.tree(*tree).entry_count;
        if Tree::ALL.iter().any(|tree| counts.get(tree).copied().unwrap_or_default() != stated(tree)) {
            return Err(Error::new(Rule::RecordCount, format!("{counts:?} entries")));
        }
        Ok(table)
    }
}

fn push_all<K: Clone, V: Clone>(encoder: &mut TableEncoder, entries: &BTreeMap<K, V>, out: &mut Vec<u8>)
where
    (K, V): Entry,
{
    for (key, record) in entries {
        encoder.push(&(key.clone(), record.clone()), out).unwrap();
    }
}

/// The file of a table, and a manifest's reference to it.
pub(crate) struct TableFile<'a> {
    bytes: &'a [u8],
    uuid: Uuid,
    reference: TableRef,
    bounds: Bounds,
}

impl<'a> TableFile<'a> {
    pub(crate) fn open(bytes: &'a [u8], uuid: Uuid, reference: &TableRef, bounds: Bounds) -> Result<Self> {
        if bytes.len() as u64 != reference.length_bytes() {
            return Err(Error::new(Rule::TableFile, format!("{} bytes", bytes.len())));
        }
        Ok(TableFile { bytes, uuid, reference: *reference, bounds })
    }

    pub(crate) fn node(&self, page: u64) -> Result<Node> {
        if page >= self.reference.page_count {
            return Err(Error::new(Rule::NodeChild, format!("page {page} is outside the file")));
        }
        let rest = &self.bytes[page as usize * PAGE_BYTES..];
        let length = Node::page_count(&rest[..PAGE_BYTES]) as usize * PAGE_BYTES;
        Node::decode(rest[..length.min(rest.len())].into(), self.uuid, self.reference.generation, page)
    }

    /// Returns the root of a tree and its page, or `None` for a tree without entries.
    fn root<E: Entry>(&self) -> Result<Option<(u64, Node)>> {
        let tree = self.reference.tree(E::TREE);
        if tree.entry_count == 0 {
            return Ok(None);
        }
        let root = self.node(tree.root_page)?;
        root.check_child(E::TREE, None)?;
        Ok(Some((tree.root_page, root)))
    }

    fn child<E: Entry>(&self, parent: &Node, index: usize) -> Result<(u64, Node)> {
        let page = parent.child::<E>(index)?;
        let child = self.node(page)?;
        child.check_child(E::TREE, parent.level().checked_sub(1))?;
        Ok((page, child))
    }

    /// Looks up one key. Returns its entry and the number of nodes that were read.
    pub(crate) fn find<E: Entry>(&self, key: &E::Key) -> Result<(Option<E>, usize)> {
        let Some((_, mut node)) = self.root::<E>()? else { return Ok((None, 0)) };
        let mut node_count = 1;
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
        Ok((index.map(|index| node.entry(index, self.bounds)).transpose()?, node_count))
    }

    /// Returns all entries of a tree, after checking their order (F-24), and adds its nodes to those that are reached.
    pub(crate) fn scan<E: Entry>(&self, reached: &mut BTreeSet<u64>) -> Result<Vec<E>> {
        let mut scan = Scan { entries: Vec::new(), last_leaf: None, reached };
        if let Some((page, root)) = self.root::<E>()? {
            self.scan_below(page, &root, &mut scan)?;
        }
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
                let entry: E = node.entry(index, self.bounds)?;
                if scan.entries.last().is_some_and(|last| last.key() >= entry.key()) {
                    return out_of_order();
                }
                scan.entries.push(entry);
            } else {
                let (child_page, child) = self.child::<E>(node, index)?;
                // An error in the first entry itself comes before F-24.
                match child.level() {
                    0 => drop(child.entry::<E>(0, self.bounds)?),
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
