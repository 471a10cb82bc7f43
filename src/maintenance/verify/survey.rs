//! The metadata of a generation that may be damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{Entry, Manifest, Node, StorageRecord, TensorRecord, Tree};

use crate::error::{Error, Result};
use crate::generation::{Table, out_of_order};

/// The metadata of a generation. All leaves of its table are read, even if a damaged node leads to them.
pub(crate) struct Survey<'a> {
    manifest: &'a Manifest,
    table: Option<&'a Table>,
    /// All storages whose record can be read.
    pub(crate) storages: BTreeMap<u64, SurveyedStorage>,
    /// What is wrong in the table, and where.
    pub(crate) broken: BTreeMap<Place, Error>,
    /// The leaves with a key that is not greater than the one before.
    pub(crate) unordered: Vec<u64>,
    /// How many storages and tensors of the table can be read.
    read_storages: u64,
    read_tensors: u64,
    /// The inner nodes that can be read, by page.
    inner: BTreeMap<u64, Node>,
    /// Whether a tensor refers to a storage without a record.
    has_unknown_storages: bool,
}

/// A node, by its page, or one of its entries or children.
pub(crate) type Place = (u64, Option<usize>);

#[derive(Debug)]
pub(crate) struct SurveyedStorage {
    pub(crate) record: StorageRecord,
    /// How many tensors refer to it, whatever its record says.
    pub(crate) tensor_count: u64,
}

/// A name and its record.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) record: &'a TensorRecord,
    /// Whether it is in the table, and not in the manifest.
    is_in_table: bool,
}

impl<'a> Survey<'a> {
    /// Surveys a manifest and its table.
    ///
    /// # Errors
    /// `Io`. A broken rule is not an error, but part of the survey.
    pub(crate) fn of(manifest: &'a Manifest, table: Option<&'a Table>) -> Result<Self> {
        let mut survey = Survey {
            manifest,
            table,
            storages: BTreeMap::new(),
            broken: BTreeMap::new(),
            unordered: Vec::new(),
            read_storages: 0,
            read_tensors: 0,
            inner: BTreeMap::new(),
            has_unknown_storages: false,
        };
        if let Some(table) = table {
            survey.read_nodes(table)?;
            survey.check_tree::<(u64, StorageRecord)>(table);
            survey.check_tree::<(String, TensorRecord)>(table);
        }
        for (&id, record) in &manifest.storages {
            survey.storages.remove(&id);
            if let Some(record) = record {
                survey.storages.insert(id, SurveyedStorage { record: record.clone(), tensor_count: 0 });
            }
        }
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        survey.each_tensor(|tensor| {
            *counts.entry(tensor.record.storage_id).or_default() += 1;
            Ok(())
        })?;
        for (id, count) in counts {
            match survey.storages.get_mut(&id) {
                Some(storage) => storage.tensor_count = count,
                None => survey.has_unknown_storages = true,
            }
        }
        Ok(survey)
    }

    /// Reads all nodes: keeps the inner nodes and the storages, and checks the tensors.
    fn read_nodes(&mut self, table: &Table) -> Result<()> {
        let (mut last_id, mut last_name) = (0, String::new());
        table.each_node(|page, node| {
            let node = match node {
                Err(e) => {
                    self.broken.insert((page, None), e);
                    return Ok(());
                }
                Ok(node) => node,
            };
            if node.level() > 0 {
                self.inner.insert(page, node);
            } else if node.is_in(Tree::Storages) {
                self.each_entry(table, page, &node, |survey, (id, record): (u64, StorageRecord)| {
                    survey.read_storages += 1;
                    survey.check_order(page, last_id < id);
                    last_id = id;
                    survey.storages.insert(id, SurveyedStorage { record, tensor_count: 0 });
                });
            } else {
                self.each_entry(table, page, &node, |survey, (name, _): (String, TensorRecord)| {
                    survey.read_tensors += 1;
                    survey.check_order(page, last_name < name);
                    last_name = name;
                });
            }
            Ok(())
        })
    }

    fn each_entry<E: Entry>(
        &mut self,
        table: &Table,
        page: u64,
        leaf: &Node,
        mut visit: impl FnMut(&mut Self, E),
    ) {
        for index in 0..leaf.len() {
            match table.entry(page, leaf, index) {
                Ok(entry) => visit(self, entry),
                Err(e) => drop(self.broken.insert((page, Some(index)), e)),
            }
        }
    }

    fn check_order(&mut self, page: u64, ascends: bool) {
        if !ascends && self.unordered.last() != Some(&page) {
            self.unordered.push(page);
        }
    }

    /// Checks that the root and each child are the nodes that a lookup expects there.
    fn check_tree<E: Entry>(&mut self, table: &Table) {
        let root = table.root_page(E::TREE);
        let mut wrong = BTreeMap::new();
        if let Err(e) = self.check_node::<E>(table, root, None) {
            wrong.insert((root, None), e);
        }
        for (&page, parent) in self.inner.iter().filter(|(_, node)| node.is_in(E::TREE)) {
            for index in 0..parent.len() {
                let checked = match parent.child::<E>(index) {
                    Err(e) => Err(table.corrupt(page, e)),
                    Ok(child) => self.check_node::<E>(table, child, Some((parent, index))),
                };
                if let Err(e) = checked {
                    wrong.insert((page, Some(index)), e);
                }
            }
        }
        self.broken.extend(wrong);
    }

    /// Checks the root, or a child against its parent. A node that cannot be read is known already.
    fn check_node<E: Entry>(&self, table: &Table, page: u64, parent: Option<(&Node, usize)>) -> Result<()> {
        if self.broken.contains_key(&(page, None)) {
            return Ok(());
        }
        let node = table.node(page)?;
        let failed = |e| table.corrupt(page, e);
        let Some((parent, index)) = parent else { return node.check_child(E::TREE, None).map_err(failed) };
        node.check_child(E::TREE, parent.level().checked_sub(1)).map_err(failed)?;
        if node.key_bytes::<E>(0).map_err(failed)? != parent.key_bytes::<E>(index).map_err(failed)? {
            return Err(failed(out_of_order()));
        }
        Ok(())
    }

    /// Visits all tensors whose record can be read, those of a table before those of its manifest.
    pub(crate) fn each_tensor(&self, mut visit: impl FnMut(Tensor<'_>) -> Result<()>) -> Result<()> {
        if let Some(table) = self.table {
            table.each_node(|page, node| {
                let Some(leaf) = node.ok().filter(|node| node.level() == 0 && node.is_in(Tree::Tensors))
                else {
                    return Ok(());
                };
                for index in 0..leaf.len() {
                    let entry: Result<(String, TensorRecord)> = table.entry(page, &leaf, index);
                    if let Ok((name, record)) = &entry
                        && !self.manifest.tensors.contains_key(name)
                    {
                        visit(Tensor { name, record, is_in_table: true })?;
                    }
                }
                Ok(())
            })?;
        }
        for (name, record) in &self.manifest.tensors {
            if let Some(record) = record {
                visit(Tensor { name, record, is_in_table: false })?;
            }
        }
        Ok(())
    }

    /// Returns where a lookup of a tensor, and of its storage, meets damage.
    pub(crate) fn damaged_lookups_of(&self, tensor: &Tensor<'_>) -> Vec<Place> {
        let (Some(table), false) = (self.table, self.broken.is_empty()) else { return Vec::new() };
        let by_name = || self.damaged_lookup::<(String, TensorRecord)>(table, tensor.name);
        let id = tensor.record.storage_id;
        let by_id = || self.damaged_lookup::<(u64, StorageRecord)>(table, &id);
        let by_name = tensor.is_in_table.then(by_name).flatten();
        let by_id = (!self.manifest.storages.contains_key(&id)).then(by_id).flatten();
        by_name.into_iter().chain(by_id).collect()
    }

    fn damaged_lookup<E: Entry>(&self, table: &Table, key: &E::Key) -> Option<Place> {
        let mut page = table.root_page(E::TREE);
        loop {
            if self.broken.contains_key(&(page, None)) {
                return Some((page, None));
            }
            let node = self.inner.get(&page)?;
            let index = node.search::<E>(key).ok()?.unwrap_or_else(|next| next.saturating_sub(1));
            if self.broken.contains_key(&(page, Some(index))) {
                return Some((page, Some(index)));
            }
            // A child that is at a lower level, or the place would be broken.
            page = node.child::<E>(index).ok()?;
        }
    }

    /// Returns how many storages and tensors the manifest counts in the table that cannot be read.
    pub(crate) fn lost_entries(&self) -> (u64, u64) {
        self.table.map_or((0, 0), |table| {
            let stated = table.reference();
            let storages = stated.storages.entry_count.saturating_sub(self.read_storages);
            (storages, stated.tensors.entry_count.saturating_sub(self.read_tensors))
        })
    }

    /// Returns how the table differs from the counts in the manifest, if no damage explains it.
    pub(crate) fn miscount(&self) -> Option<String> {
        let stated = self.table.filter(|_| self.broken.is_empty())?.reference();
        let counts = [stated.storages.entry_count, stated.tensors.entry_count];
        let found = [self.read_storages, self.read_tensors];
        (counts != found).then(|| {
            let ([storages, tensors], [stated_storages, stated_tensors]) = (found, counts);
            format!(
                "the table has {storages} storages and {tensors} tensors, but the manifest says {stated_storages} and \
                 {stated_tensors}"
            )
        })
    }

    /// Whether there may be storages that are not in [`storages`](Self::storages).
    pub(crate) fn has_lost_storages(&self) -> bool {
        self.lost_entries().0 > 0 || self.has_unknown_storages
    }
}

impl Tensor<'_> {
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::from(self.name)
    }
}
