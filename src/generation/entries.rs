//! The entries of a generation: those of its table, with the changes in its manifest.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;

use stridemap_format::{
    Entry, GarbageKey, KeptGeneration, KeptKey, Manifest, StorageRecord, Tag, TensorRecord,
};

use super::table::Table;
use crate::error::Result;

pub(crate) type StorageEntry = (u64, StorageRecord);
pub(crate) type TensorEntry = (String, TensorRecord);
pub(crate) type TagEntry = (String, Tag);
pub(crate) type KeptEntry = (KeptKey, KeptGeneration);
pub(crate) type GarbageEntry = (GarbageKey, StorageRecord);

/// An entry of one of the trees, and where a manifest has the changes of that tree.
pub(crate) trait Recorded: Entry {
    type Owned: Ord + Clone + Borrow<Self::Key> + 'static;
    type Record: Clone + 'static;

    fn changes(manifest: &Manifest) -> &BTreeMap<Self::Owned, Option<Self::Record>>;
    fn changes_mut(manifest: &mut Manifest) -> &mut BTreeMap<Self::Owned, Option<Self::Record>>;
    fn into_parts(self) -> (Self::Owned, Self::Record);
    fn of_parts(key: Self::Owned, record: Self::Record) -> Self;
}

macro_rules! recorded {
    ($key:ty, $record:ty, $changes:ident) => {
        impl Recorded for ($key, $record) {
            type Owned = $key;
            type Record = $record;

            fn changes(manifest: &Manifest) -> &BTreeMap<$key, Option<$record>> {
                &manifest.$changes
            }

            fn changes_mut(manifest: &mut Manifest) -> &mut BTreeMap<$key, Option<$record>> {
                &mut manifest.$changes
            }

            fn into_parts(self) -> ($key, $record) {
                self
            }

            fn of_parts(key: $key, record: $record) -> Self {
                (key, record)
            }
        }
    };
}

recorded!(u64, StorageRecord, storages);
recorded!(String, TensorRecord, tensors);
recorded!(String, Tag, tags);
recorded!(KeptKey, KeptGeneration, kept);
recorded!(GarbageKey, StorageRecord, garbage);

/// The entries of a generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) tables: Tables<'a>,
}

/// The tables of a generation: that of storages and tensors, and that of tags, kept generations and garbage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables<'a> {
    pub(super) table: Option<&'a Table>,
    pub(super) history: Option<&'a Table>,
}

impl<'a> Tables<'a> {
    fn of<E: Entry>(&self) -> Option<&'a Table> {
        if E::TREE.is_history() { self.history } else { self.table }
    }
}

impl<'a> Entries<'a> {
    /// Returns the keys that this manifest or another one changes. If both refer to the same tables, their generations
    /// differ in no other key.
    pub(crate) fn changed_keys<E: Recorded>(self, other: Entries<'a>) -> impl Iterator<Item = &'a E::Owned> {
        E::changes(self.manifest).keys().chain(E::changes(other.manifest).keys())
    }

    /// Returns the record of a key.
    pub(crate) fn find<E: Recorded>(&self, key: &E::Key) -> Result<Option<E::Record>> {
        match (E::changes(self.manifest).get(key), self.tables.of::<E>()) {
            (Some(changed), _) => Ok(changed.clone()),
            (None, Some(table)) => Ok(table.find::<E>(key)?.map(|entry| entry.into_parts().1)),
            (None, None) => Ok(None),
        }
    }

    /// Returns the entries in ascending order of key, from `start` on, or all.
    pub(crate) fn scan<E: Recorded>(
        &self,
        start: Option<&E::Key>,
    ) -> Result<impl Iterator<Item = Result<(E::Owned, E::Record)>> + use<'a, E>> {
        let base = self.tables.of::<E>().map(|table| table.scan::<E>(start)).transpose()?;
        let base = base.into_iter().flatten().map(|entry| entry.map(Recorded::into_parts));
        let from = start.map_or(Bound::Unbounded, Bound::Included);
        let changes = E::changes(self.manifest).range::<E::Key, _>((from, Bound::Unbounded));
        let changes = changes.map(|(key, value)| (key.clone(), value.clone()));
        Ok(Merged::new(base, changes))
    }

    /// Returns the last entry before a key.
    pub(crate) fn last_before<E: Recorded>(&self, key: &E::Key) -> Result<Option<(E::Owned, E::Record)>> {
        let mut changes = E::changes(self.manifest)
            .range::<E::Key, _>((Bound::Unbounded, Bound::Excluded(key)))
            .rev()
            .peekable();
        let mut before = key;
        loop {
            let base = self.tables.of::<E>();
            let base = base.map(|table| table.last_before::<E>(before)).transpose()?.flatten();
            let base = base.map(Recorded::into_parts);
            // A change hides the entry of the table that has its key.
            match (base, changes.next_if(|_| true)) {
                (base, None) => return Ok(base),
                (Some((base_key, record)), Some((changed, _))) if base_key > *changed => {
                    return Ok(Some((base_key, record)));
                }
                (_, Some((changed, Some(record)))) => return Ok(Some((changed.clone(), record.clone()))),
                (_, Some((changed, None))) => before = changed.borrow(),
            }
        }
    }
}

/// Adds or replaces the record of a key.
pub(super) fn insert<E: Recorded>(manifest: &mut Manifest, key: E::Owned, record: E::Record) {
    E::changes_mut(manifest).insert(key, Some(record));
}

/// Removes a key. Only an entry of the table needs a change that hides it.
pub(super) fn remove<E: Recorded>(manifest: &mut Manifest, tables: Tables<'_>, key: &E::Owned) -> Result<()> {
    let table = tables.of::<E>();
    let is_in_table = table.map(|table| table.find::<E>(key.borrow())).transpose()?.flatten().is_some();
    if is_in_table {
        E::changes_mut(manifest).insert(key.clone(), None);
    } else {
        E::changes_mut(manifest).remove(key.borrow());
    }
    Ok(())
}

/// Merges a sorted base with sorted changes. A change replaces the entry that has the same key. A change to `None`
/// removes that entry.
pub(crate) struct Merged<B: Iterator, D: Iterator> {
    base: Peekable<B>,
    delta: Peekable<D>,
}

impl<B: Iterator, D: Iterator> Merged<B, D> {
    pub(crate) fn new(base: B, delta: D) -> Self {
        Merged { base: base.peekable(), delta: delta.peekable() }
    }
}

impl<B, D, K, V> Iterator for Merged<B, D>
where
    B: Iterator<Item = Result<(K, V)>>,
    D: Iterator<Item = (K, Option<V>)>,
    K: Ord,
{
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((changed_key, _)) = self.delta.peek() else { return self.base.next() };
            match self.base.peek() {
                Some(Err(_)) => return self.base.next(),
                Some(Ok((base_key, _))) if base_key < changed_key => return self.base.next(),
                Some(Ok((base_key, _))) if base_key == changed_key => drop(self.base.next()),
                _ => {}
            }
            if let Some((key, Some(value))) = self.delta.next() {
                return Some(Ok((key, value)));
            }
        }
    }
}
