//! A pinned generation, and lookups in it.

use std::collections::{BTreeMap, btree_map};
use std::io;
use std::iter::Peekable;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Manifest, StorageRecord, TensorRecord, Uuid};

use super::table::Table;
use crate::disk::{self, Disk, DiskFile, FileId, LockedFile, StorePaths, step};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// One generation of a store on disk. All lookups go through it.
///
/// While it is alive, a shared lock on its manifest keeps its files from being collected by any process.
#[derive(Debug)]
pub(crate) struct Generation {
    manifest: Manifest,
    table: Option<Arc<Table>>,
    pin: Option<Pin>,
    is_synced: bool,
}

/// A manifest's file, under a shared lock.
#[derive(Debug)]
pub(crate) struct Pin {
    lock: LockedFile,
    id: FileId,
}

impl Pin {
    /// Holds the lock that the caller has just taken on a manifest.
    pub(crate) fn new(file: &Arc<dyn DiskFile>) -> io::Result<Pin> {
        Ok(Pin { lock: LockedFile::new(file), id: file.stat()?.id() })
    }

    /// Records the identity of the file after a rename. On some FUSE file systems it depends on the name.
    pub(super) fn renamed(mut self) -> Pin {
        if let Ok(stat) = self.file().stat() {
            self.id = stat.id();
        }
        self
    }

    /// The manifest's file. Locking it replaces the shared lock.
    pub(super) fn file(&self) -> &Arc<dyn DiskFile> {
        self.lock.file()
    }

    /// Whether a path still leads to the file.
    pub(crate) fn is_named(&self, disk: &dyn Disk, path: &Path) -> Result<bool> {
        disk::is_named(disk, path, self.id).doing("examine", path)
    }
}

impl Generation {
    /// `is_synced` says whether the name of the manifest is known to be durable.
    pub(crate) fn new(manifest: Manifest, table: Option<Arc<Table>>, pin: Pin, is_synced: bool) -> Self {
        Generation { manifest, table, pin: Some(pin), is_synced }
    }

    /// Refuses a store whose files were deleted or replaced. The protocol never deletes a pinned manifest, so if this
    /// one no longer has its name, something else removed it.
    pub(crate) fn check_named(&self, disk: &dyn Disk, paths: &StorePaths) -> Result<()> {
        let Some(pin) = &self.pin else { return Ok(()) };
        let path = paths.manifest(self.number());
        // Without this check, a commit could build on a generation of another store, or of an older copy of this one.
        if step!("known-is-named", pin.is_named(disk, &path)?) {
            return Ok(());
        }
        let message = format!(
            "{}: the store was deleted or replaced while it was open: this manifest is gone, or another file has \
             its name; open the store again",
            path.display()
        );
        Err(Error::new(ErrorKind::Stale, message))
    }

    /// Returns a generation with a number but no content: for a forked child, where the store refuses all operations,
    /// and for a salvage.
    pub(crate) fn stand_in(uuid: Uuid, number: u64) -> Self {
        let manifest = Manifest { generation: number, ..Manifest::first(uuid) };
        Generation { manifest, table: None, pin: None, is_synced: false }
    }

    /// Returns the lock on the manifest, or `None` for a stand-in.
    pub(super) fn into_pin(self) -> Option<Pin> {
        self.pin
    }

    /// Whether the generation is known to survive a power cut.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced
    }

    pub(crate) fn number(&self) -> u64 {
        self.manifest.generation
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<TensorRecord>> {
        match (self.manifest.tensors.get(name), &self.table) {
            (Some(changed), _) => Ok(changed.clone()),
            (None, Some(table)) => table.tensor(name),
            (None, None) => Ok(None),
        }
    }

    /// Like [`tensor`](Self::tensor), but refuses a name that does not exist.
    pub(crate) fn existing(&self, action: &str, name: &str) -> Result<TensorRecord> {
        self.tensor(name)?.ok_or_else(|| not_found(action, name, self.tensors("")))
    }

    pub(crate) fn storage(&self, id: u64) -> Result<Option<StorageRecord>> {
        match (self.manifest.storages.get(&id), &self.table) {
            (Some(changed), _) => Ok(changed.clone()),
            (None, Some(table)) => table.storage(id),
            (None, None) => Ok(None),
        }
    }

    /// Returns the tensors whose name begins with `prefix`, in ascending order of name.
    pub(crate) fn tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<(String, TensorRecord)>> + 'a> {
        let base = self.table.as_ref().map(|table| table.scan_tensors(prefix)).transpose()?;
        let delta = self.manifest.tensors.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let merged = Merged::new(base.into_iter().flatten(), cloned(delta));
        Ok(merged.take_while(move |entry| entry.as_ref().map_or(true, |(name, _)| name.starts_with(prefix))))
    }

    /// Returns all storages, in ascending order of id.
    pub(crate) fn storages(&self) -> impl Iterator<Item = Result<(u64, StorageRecord)>> + '_ {
        let base = self.table.iter().flat_map(|table| table.scan_storages());
        Merged::new(base, cloned(self.manifest.storages.range(..)))
    }

    /// Returns the records of the tensors with these names. Many names are found by one scan, few by one lookup each.
    pub(crate) fn tensors_named<'a, T>(
        &self,
        names: &'a BTreeMap<String, T>,
    ) -> Result<BTreeMap<&'a str, TensorRecord>> {
        let table_count = self.table.as_ref().map_or(0, |table| table.reference().tensors.entry_count);
        let all_count = table_count.saturating_add(self.manifest.tensors.len() as u64);
        let lookup_cost = if table_count == 0 { 1 } else { LOOKUP_COST };
        let mut found = BTreeMap::new();
        if (names.len() as u64).saturating_mul(lookup_cost) < all_count {
            for name in names.keys() {
                if let Some(record) = self.tensor(name)? {
                    found.insert(name.as_str(), record);
                }
            }
        } else {
            for entry in self.tensors("")? {
                let (name, record) = entry?;
                if let Some((name, _)) = names.get_key_value(&name) {
                    found.insert(name.as_str(), record);
                }
            }
        }
        Ok(found)
    }
}

/// Returns the error for a name that is not among `tensors`.
pub(super) fn not_found<T>(
    action: &str,
    name: &str,
    tensors: Result<impl Iterator<Item = Result<(String, T)>>>,
) -> Error {
    let names = tensors.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.0));
    Error::name_not_found(action, name, names)
}

/// How many entries a scan reads in the time of one lookup in a table.
const LOOKUP_COST: u64 = 16;

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

/// Clones changes, to merge them.
pub(crate) fn cloned<'a, K: Clone, V: Clone>(
    changes: btree_map::Range<'a, K, Option<V>>,
) -> impl Iterator<Item = (K, Option<V>)> + use<'a, K, V> {
    changes.map(|(key, value)| (key.clone(), value.clone()))
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
