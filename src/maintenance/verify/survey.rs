//! The metadata of a generation that may be damaged.

use std::collections::{BTreeMap, btree_map};
use std::mem;

use stridemap_format::{
    Entry, Error as FormatError, Manifest, Node, NodeHeader, Rule, StorageRecord, Tag, TensorRecord, Tree,
};

use super::table_damage::TableDamage;
use crate::error::Result;
use crate::generation::{
    GarbageEntry, KeptEntry, StorageEntry, Table, TagEntry, TensorEntry, wrong_first_key, wrong_order,
};
use crate::storage::Unreadable;

/// The metadata of a generation. All leaves of its table are read, even if a damaged node leads to them.
pub(crate) struct Survey<'a> {
    manifest: &'a Manifest,
    table: Option<&'a Table>,
    /// All storages whose record can be read.
    pub(crate) storages: BTreeMap<u64, SurveyedStorage>,
    pub(crate) damage: TableDamage,
    /// The tags whose entries can be read, even if a damaged node leads to them.
    pub(crate) tags: BTreeMap<String, Tag>,
    /// How many records in the table repeat the id of an earlier record. The earlier one is used.
    pub(crate) repeated_storages: u64,
    /// How many entries of each tree of the table can be read.
    read: BTreeMap<Tree, u64>,
    /// The nodes that can be read, by page.
    nodes: BTreeMap<u64, SurveyedNode>,
}

#[derive(Debug)]
pub(crate) struct SurveyedStorage {
    pub(crate) record: StorageRecord,
    /// How many tensors refer to it, whatever its record says.
    pub(crate) tensor_count: u64,
    /// The leaf of the table with the record, unless it is in the manifest.
    leaf: Option<u64>,
}

/// What is kept of a node. Of a leaf, only its header and first key are kept, to compare with what its parent states.
struct SurveyedNode {
    header: NodeHeader,
    /// `None` if it cannot be decoded.
    first_key: Option<Box<[u8]>>,
    /// The node itself, unless it is a leaf.
    inner: Option<Node>,
    /// Whether a root leads to it.
    is_reached: bool,
}

/// A name and its record.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) record: &'a TensorRecord,
    /// Whether it is in the table, and not in the manifest.
    is_in_table: bool,
    /// The leaf in which a lookup finds it.
    leaf: Option<u64>,
}

/// Why a lookup cannot go from one node to the next.
enum Broken {
    /// Damage that [`read_nodes`](Survey::read_nodes) has found: in a run of damaged or unread pages, or in a node. The
    /// number is that of the first page of the run, or of the node.
    Known(u64),
    /// The next node is not the one that is expected.
    Wrong(FormatError),
}

impl From<FormatError> for Broken {
    fn from(error: FormatError) -> Self {
        Broken::Wrong(error)
    }
}

/// Inner nodes from a root down, each with the index of its next child.
type Path = Vec<(u64, usize)>;

impl<'a> Survey<'a> {
    /// Surveys a manifest and one of its tables. Each node is read once.
    ///
    /// # Errors
    /// `Io`. A broken rule is not an error, but part of the survey.
    pub(crate) fn of(
        manifest: &'a Manifest,
        table: Option<&'a Table>,
        unreadable: Unreadable,
    ) -> Result<Self> {
        let mut survey = Survey {
            manifest,
            table,
            storages: BTreeMap::new(),
            damage: TableDamage::default(),
            tags: BTreeMap::new(),
            repeated_storages: 0,
            read: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut count = |record: &TensorRecord| *counts.entry(record.storage_id).or_default() += 1;
        if let Some(table) = table {
            survey.read_nodes(table, unreadable, &mut count)?;
            survey.walk::<StorageEntry>(table);
            survey.walk::<TensorEntry>(table);
            survey.walk::<TagEntry>(table);
            survey.walk::<KeptEntry>(table);
            survey.walk::<GarbageEntry>(table);
        }
        for (name, tag) in &manifest.tags {
            survey.tags.remove(name);
            survey.tags.extend(tag.clone().map(|tag| (name.clone(), tag)));
        }
        for (&id, record) in &manifest.storages {
            survey.storages.remove(&id);
            if let Some(record) = record {
                let storage = SurveyedStorage { record: record.clone(), tensor_count: 0, leaf: None };
                survey.storages.insert(id, storage);
            }
        }
        manifest.tensors.values().flatten().for_each(count);
        for (id, count) in counts {
            if let Some(storage) = survey.storages.get_mut(&id) {
                storage.tensor_count = count;
            }
        }
        Ok(survey)
    }

    /// Reads all nodes: keeps the inner nodes and the storages, and counts the tensors.
    fn read_nodes(
        &mut self,
        table: &Table,
        unreadable: Unreadable,
        count: &mut impl FnMut(&TensorRecord),
    ) -> Result<()> {
        let (mut last_id, mut last_name, mut last_tag) = (0, String::new(), String::new());
        let (mut last_kept, mut last_garbage) = (None, None);
        for read in table.nodes(unreadable) {
            let (page, node) = match read? {
                (page, Ok(node)) => (page, node),
                (page, Err(e)) => {
                    self.damage.add_pages(page, 1, e);
                    continue;
                }
            };
            let first_key = match node.tree() {
                Tree::Storages => node.key_bytes::<StorageEntry>(0),
                Tree::Tensors => node.key_bytes::<TensorEntry>(0),
                Tree::Tags => node.key_bytes::<TagEntry>(0),
                Tree::Generations => node.key_bytes::<KeptEntry>(0),
                Tree::Garbage => node.key_bytes::<GarbageEntry>(0),
            };
            // A key that cannot be decoded is damage to its entry.
            let first_key = first_key.ok().map(Box::from);
            match node.tree() {
                Tree::Storages => self.read_entries(table, page, &node, |survey, (id, record)| {
                    let ascends = last_id < id;
                    last_id = id;
                    let storage = SurveyedStorage { record, tensor_count: 0, leaf: Some(page) };
                    match survey.storages.entry(id) {
                        btree_map::Entry::Vacant(place) => drop(place.insert(storage)),
                        btree_map::Entry::Occupied(_) => survey.repeated_storages += 1,
                    }
                    ascends
                }),
                Tree::Tensors => self.read_entries(table, page, &node, |survey, (name, record)| {
                    let ascends = last_name < name;
                    if !survey.manifest.tensors.contains_key(&name) {
                        count(&record);
                    }
                    last_name = name;
                    ascends
                }),
                Tree::Tags => self.read_entries(table, page, &node, |survey, (name, tag): TagEntry| {
                    let ascends = last_tag < name;
                    survey.tags.insert(name.clone(), tag);
                    last_tag = name;
                    ascends
                }),
                Tree::Generations => self.read_entries(table, page, &node, |_, (key, _): KeptEntry| {
                    last_kept.replace(key) < Some(key)
                }),
                Tree::Garbage => self.read_entries(table, page, &node, |_, (key, _): GarbageEntry| {
                    last_garbage.replace(key) < Some(key)
                }),
            }
            let header = *node;
            let inner = (node.level() > 0).then_some(node);
            self.nodes.insert(page, SurveyedNode { header, first_key, inner, is_reached: false });
        }
        Ok(())
    }

    /// Decodes the entries of a node, and visits those of a leaf. `visit` returns whether the key follows the one before it
    /// in the file.
    fn read_entries<E: Entry>(
        &mut self,
        table: &Table,
        page: u64,
        node: &Node,
        mut visit: impl FnMut(&mut Self, E) -> bool,
    ) {
        for index in 0..node.len() {
            let wrong = match node.level() {
                0 => match node.entry(index, self.manifest.bounds()) {
                    Err(e) => Some(e),
                    Ok(entry) => {
                        *self.read.entry(E::TREE).or_default() += 1;
                        (!visit(self, entry)).then(|| wrong_order(page, index))
                    }
                },
                _ => node.child::<E>(index).err(),
            };
            if let Some(e) = wrong {
                self.damage.add(page, table.corrupt(page, e));
            }
        }
    }

    /// Walks a tree, and checks that its root leads to all of its nodes, and to the leaves in the order of the file.
    /// `read_nodes` has checked that entries ascend in the order of the file. So if the tree visits the leaves in this
    /// order, they ascend in the tree too.
    fn walk<E: Entry>(&mut self, table: &Table) {
        let Some(root) = table.root_page(E::TREE) else { return self.check_reached(table, E::TREE) };
        let (mut path, mut last_leaf, mut is_whole) = (Path::new(), None, true);
        let mut link = Some((root, self.node_at::<E>(root, None).map(|_| root)));
        while let Some((parent, found)) = link {
            match found {
                Ok(page) => {
                    let Some(node) = self.nodes.get_mut(&page) else { break };
                    let is_again = mem::replace(&mut node.is_reached, true);
                    let is_leaf = node.inner.is_none();
                    if is_again || is_leaf && last_leaf.replace(page) > Some(page) {
                        let detail =
                            format!("the node at page {page} does not follow the one before it in the tree");
                        let broken = FormatError::new(Rule::EntryOrder, detail);
                        self.damage.add(parent, table.corrupt(parent, broken));
                    } else if !is_leaf {
                        path.push((page, 0));
                    }
                }
                Err(broken) => {
                    is_whole = false;
                    if let Broken::Wrong(e) = broken {
                        self.damage.add(parent, table.corrupt(parent, e));
                    }
                }
            }
            link = self.next_link::<E>(&mut path);
        }
        // Otherwise the damage explains why other nodes are not reached.
        if is_whole {
            self.check_reached(table, E::TREE);
        }
    }

    /// Checks that the root of a tree leads to all of its nodes.
    fn check_reached(&mut self, table: &Table, tree: Tree) {
        let is_left = |node: &&SurveyedNode| node.header.tree() == tree && !node.is_reached;
        for (&page, node) in self.nodes.iter().filter(|(_, node)| is_left(node)) {
            let detail = format!("no root leads to the node at page {page}");
            let broken = FormatError::new(Rule::NodeChild, detail);
            self.damage.add_pages(page, node.header.pages(), table.corrupt(page, broken));
        }
    }

    /// Returns the next child on a path, with the page of its parent.
    fn next_link<E: Entry>(&self, path: &mut Path) -> Option<(u64, Result<u64, Broken>)> {
        loop {
            let (page, next) = path.last_mut()?;
            let parent = self.nodes.get(page)?.inner.as_ref()?;
            let (page, index) = (*page, *next);
            if index < parent.len() {
                *next += 1;
                return Some((page, self.child_at::<E>(page, parent, index)));
            }
            path.pop();
        }
    }

    /// Returns the node that begins at a page, and checks that it is at `level`. A root may be at any level: `None`.
    fn node_at<E: Entry>(&self, page: u64, level: Option<u16>) -> Result<&SurveyedNode, Broken> {
        let Some(node) = self.nodes.get(&page) else {
            let absent =
                || FormatError::new(Rule::NodeChild, format!("no node begins at page {page}")).into();
            return Err(self.damage.run_at(page).map_or_else(absent, Broken::Known));
        };
        node.header.check_child(E::TREE, level)?;
        Ok(node)
    }

    /// Returns the page of a child.
    fn child_at<E: Entry>(&self, page: u64, parent: &Node, index: usize) -> Result<u64, Broken> {
        let child_page = parent.child::<E>(index).map_err(|_| Broken::Known(page))?;
        let child = self.node_at::<E>(child_page, parent.level().checked_sub(1))?;
        let stated = parent.key_bytes::<E>(index)?;
        match &child.first_key {
            Some(first_key) if **first_key != *stated => Err(wrong_first_key(page, child_page).into()),
            _ => Ok(child_page),
        }
    }

    /// Visits all tensors whose record can be read, those of a table before those of its manifest.
    pub(crate) fn each_tensor(&self, mut visit: impl FnMut(Tensor<'_>) -> Result<()>) -> Result<()> {
        let is_leaf = |node: &SurveyedNode| node.inner.is_none() && node.header.tree() == Tree::Tensors;
        let leaves = self.nodes.iter().filter(|(_, node)| is_leaf(node));
        for (table, &page) in
            self.table.iter().flat_map(|table| leaves.clone().map(move |(page, _)| (table, page)))
        {
            let leaf = table.node(page)?;
            let is_damaged = self.damage.is_at(page);
            for index in 0..leaf.len() {
                let (name, record): TensorEntry = match leaf.entry(index, self.manifest.bounds()) {
                    Ok(entry) => entry,
                    Err(_) if is_damaged => continue,
                    Err(e) => return Err(table.corrupt(page, e)),
                };
                if self.manifest.tensors.contains_key(&name) {
                    continue;
                }
                let is_found = !is_damaged || leaf.find::<TensorEntry>(&name) == Ok(Some(index));
                let leaf = is_found.then_some(page);
                visit(Tensor { name: &name, record: &record, is_in_table: true, leaf })?;
            }
        }
        for (name, record) in &self.manifest.tensors {
            if let Some(record) = record {
                visit(Tensor { name, record, is_in_table: false, leaf: None })?;
            }
        }
        Ok(())
    }

    /// Returns the damaged pages on the way to the header of a tensor, and to the record of its storage.
    pub(crate) fn damaged_pages_to(&self, tensor: &Tensor<'_>) -> Vec<u64> {
        let Some(table) = self.table.filter(|_| !self.damage.is_empty()) else { return Vec::new() };
        let by_name =
            || self.damaged_page_on_path::<TensorEntry>(table, tensor.name, |page| tensor.leaf == Some(page));
        let id = tensor.record.storage_id;
        let by_id = || {
            let storage = self.storages.get(&id);
            let is_leaf = |page| storage.is_none_or(|storage| storage.leaf == Some(page));
            self.damaged_page_on_path::<StorageEntry>(table, &id, is_leaf)
        };
        let by_name = tensor.is_in_table.then(by_name).flatten();
        let by_id = (!self.manifest.storages.contains_key(&id)).then(by_id).flatten();
        by_name.into_iter().chain(by_id).collect()
    }

    /// Looks a key up, as a reader does. Returns the damage that it meets, unless it reaches the leaf with the entry.
    fn damaged_page_on_path<E: Entry>(
        &self,
        table: &Table,
        key: &E::Key,
        is_leaf: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let (mut parent, mut met) = (table.root_page(E::TREE)?, None);
        let mut found = self.node_at::<E>(parent, None).map(|_| parent);
        loop {
            let page = match found {
                Ok(page) => page,
                Err(Broken::Known(page)) => return Some(page),
                Err(Broken::Wrong(_)) => return Some(parent),
            };
            met = self.damage.is_at(page).then_some(page).or(met);
            let Some(node) = self.nodes.get(&page).and_then(|node| node.inner.as_ref()) else {
                // If the tree is in disorder, any damage may be the cause.
                return if is_leaf(page) { None } else { met.or_else(|| self.damage.first_page()) };
            };
            let Ok(index) = node.search::<E>(key) else { return Some(page) };
            found = self.child_at::<E>(page, node, index.unwrap_or_else(|next| next.saturating_sub(1)));
            parent = page;
        }
    }

    /// Returns how many storages and tensors of the table cannot be read, by the counts of the manifest.
    pub(crate) fn lost_entries(&self) -> (u64, u64) {
        (self.lost_count(Tree::Storages), self.lost_count(Tree::Tensors))
    }

    /// Returns how many tags of the table cannot be read, by the count of the manifest.
    pub(crate) fn lost_tags(&self) -> u64 {
        self.lost_count(Tree::Tags)
    }

    fn lost_count(&self, tree: Tree) -> u64 {
        let stated = self.table.map_or(0, |table| table.reference().tree(tree).entry_count);
        stated.saturating_sub(self.read_count(tree))
    }

    fn read_count(&self, tree: Tree) -> u64 {
        self.read.get(&tree).copied().unwrap_or_default()
    }

    /// Returns how the table differs from the counts in the manifest, if no damage explains it.
    pub(crate) fn miscount(&self) -> Option<String> {
        let stated = self.table.filter(|_| self.damage.is_empty())?.reference();
        let is_wrong = |tree: &Tree| stated.tree(*tree).entry_count != self.read_count(*tree);
        let tree = Tree::ALL.into_iter().find(is_wrong)?;
        let (stated, found) = (stated.tree(tree).entry_count, self.read_count(tree));
        Some(format!("the table has {found} entries of {tree}, but the manifest says {stated}"))
    }
}
