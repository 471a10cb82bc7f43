//! A pinned generation, and lookups in it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use stridemap_format::{
    Error as FormatError, KeptGeneration, KeptKey, Manifest, Rule, StorageRecord, Tag, TensorRecord, Tree,
    Uuid,
};

use super::entries::{Entries, KeptEntry, StorageEntry, Tables, TagEntry, TensorEntry};
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
    history: Option<Arc<Table>>,
    pin: Option<Pin>,
    /// Whether the generation is known to survive a power cut.
    is_synced: AtomicBool,
    /// The number of tensors, once it was counted.
    tensor_count: OnceLock<u64>,
}

/// A manifest's file, under a shared lock.
#[derive(Debug)]
pub(crate) struct Pin {
    lock: LockedFile,
    id: FileId,
    /// The manifest's path.
    path: PathBuf,
}

impl Pin {
    /// Holds the lock that the caller has just taken on the manifest at `path`.
    pub(crate) fn new(file: &Arc<dyn DiskFile>, path: PathBuf) -> io::Result<Pin> {
        Ok(Pin { lock: LockedFile::new(file), id: file.stat()?.id(), path })
    }

    /// Records the identity of the file after a rename to `path`. On some FUSE file systems it depends on the name.
    pub(super) fn renamed(mut self, path: PathBuf) -> Pin {
        self.path = path;
        if let Ok(stat) = self.file().stat() {
            self.id = stat.id();
        }
        self
    }

    /// The manifest's file. Locking it replaces the shared lock.
    pub(super) fn file(&self) -> &Arc<dyn DiskFile> {
        self.lock.file()
    }

    /// Whether the path of the manifest still leads to the file.
    pub(crate) fn is_named(&self, disk: &dyn Disk) -> Result<bool> {
        disk::is_named(disk, &self.path, self.id).doing("examine", &self.path)
    }
}

impl Generation {
    /// `is_synced` says whether the name of the manifest is known to be durable.
    pub(crate) fn new(
        manifest: Manifest,
        table: Option<Arc<Table>>,
        history: Option<Arc<Table>>,
        pin: Pin,
        is_synced: bool,
    ) -> Self {
        Generation {
            manifest,
            table,
            history,
            pin: Some(pin),
            is_synced: AtomicBool::new(is_synced),
            tensor_count: OnceLock::new(),
        }
    }

    /// Returns a generation that is not one of this store yet, so nothing keeps its files.
    pub(super) fn without_pin(
        manifest: Manifest,
        table: Option<Arc<Table>>,
        history: Option<Arc<Table>>,
    ) -> Self {
        Generation {
            manifest,
            table,
            history,
            pin: None,
            is_synced: AtomicBool::default(),
            tensor_count: OnceLock::new(),
        }
    }

    /// Refuses a store whose files were deleted or replaced. The protocol never deletes a pinned manifest, so if this
    /// one no longer has its name, something else removed it.
    pub(crate) fn check_named(&self, disk: &dyn Disk) -> Result<()> {
        let Some(pin) = &self.pin else { return Ok(()) };
        // Without this check, a commit could build on a generation of another store, or of an older copy of this one.
        if step!("known-is-named", pin.is_named(disk)?) {
            return Ok(());
        }
        let message = format!(
            "{}: the store was deleted or replaced while it was open: this manifest is gone, or another file has \
             its name; open the store again",
            pin.path.display()
        );
        Err(Error::new(ErrorKind::Stale, message))
    }

    /// Returns a generation with a number but no content: for a forked child, where the store refuses all operations,
    /// and for a salvage.
    pub(crate) fn stand_in(uuid: Uuid, number: u64) -> Self {
        let manifest = Manifest { generation: number, ..Manifest::first(uuid) };
        Generation {
            manifest,
            table: None,
            history: None,
            pin: None,
            is_synced: AtomicBool::default(),
            tensor_count: OnceLock::new(),
        }
    }

    /// Returns the generation with a table of storages and tensors.
    pub(super) fn with_table(self, table: Option<Arc<Table>>) -> Self {
        Generation { table, tensor_count: OnceLock::new(), ..self }
    }

    /// Returns the lock on the manifest, or `None` for a stand-in.
    pub(super) fn into_pin(self) -> Option<Pin> {
        self.pin
    }

    /// Whether the generation is known to survive a power cut.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Relaxed)
    }

    /// Records that the generation survives a power cut.
    pub(super) fn set_synced(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
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

    pub(crate) fn history(&self) -> Option<&Arc<Table>> {
        self.history.as_ref()
    }

    /// Returns the path of the table of the history, or of the manifest if that has the whole history.
    pub(crate) fn history_path(&self, paths: &StorePaths) -> PathBuf {
        match &self.manifest.history {
            Some(history) => paths.history(history.generation),
            None => paths.manifest(self.number()),
        }
    }

    pub(crate) fn entries(&self) -> Entries<'_> {
        Entries { manifest: &self.manifest, tables: self.tables() }
    }

    /// Returns the entries of an earlier generation, or `None` if its tables are others.
    pub(crate) fn entries_before<'a>(&'a self, earlier: &'a Manifest) -> Option<Entries<'a>> {
        let tables = |manifest: &Manifest| (manifest.table, manifest.history);
        let has_same = tables(earlier) == tables(&self.manifest);
        has_same.then(|| Entries { manifest: earlier, tables: self.tables() })
    }

    pub(crate) fn tables(&self) -> Tables<'_> {
        Tables { table: self.table.as_deref(), history: self.history.as_deref() }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<TensorRecord>> {
        self.entries().find::<TensorEntry>(name)
    }

    /// Like [`tensor`](Self::tensor), but refuses a name that does not exist.
    pub(crate) fn existing(&self, action: &str, name: &str) -> Result<TensorRecord> {
        self.tensor(name)?.ok_or_else(|| not_found(action, name, self.tensors("")))
    }

    pub(crate) fn storage(&self, id: u64) -> Result<Option<StorageRecord>> {
        self.entries().find::<StorageEntry>(&id)
    }

    pub(crate) fn tag(&self, name: &str) -> Result<Option<Tag>> {
        self.entries().find::<TagEntry>(name)
    }

    /// Returns the tensors whose name begins with `prefix`, in ascending order of name.
    pub(crate) fn tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<TensorEntry>> + 'a> {
        let start = (!prefix.is_empty()).then_some(prefix);
        let entries = self.entries().scan::<TensorEntry>(start)?;
        Ok(entries.take_while(move |entry| entry.as_ref().map_or(true, |(name, _)| name.starts_with(prefix))))
    }

    /// Returns the number of tensors, without a scan: that of the table, corrected by each change in the manifest. Counted
    /// once for each generation.
    pub(crate) fn tensor_count(&self) -> Result<u64> {
        if let Some(count) = self.tensor_count.get() {
            return Ok(*count);
        }
        let mut count = self.table_tensor_count();
        if let Some(table) = self.table.as_ref()
            && count > table.reference().length_bytes()
        {
            // Callers reserve memory for this many names.
            let detail = format!("{count} tensors in a table of {} bytes", table.reference().length_bytes());
            let root_page = table.reference().tree(Tree::Tensors).root_page;
            return Err(table.corrupt(root_page, FormatError::new(Rule::NodeChild, detail)));
        }
        for (name, change) in &self.manifest.tensors {
            let table = self.table.as_ref().map(|table| table.find::<TensorEntry>(name)).transpose()?;
            match (change, table.flatten()) {
                (Some(_), None) => count = count.saturating_add(1),
                (None, Some(_)) => count = count.saturating_sub(1),
                _ => {}
            }
        }
        Ok(*self.tensor_count.get_or_init(|| count))
    }

    fn table_tensor_count(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.reference().tree(Tree::Tensors).entry_count)
    }

    /// Returns all storages, in ascending order of id.
    pub(crate) fn storages(&self) -> Result<impl Iterator<Item = Result<StorageEntry>> + '_> {
        self.entries().scan::<StorageEntry>(None)
    }

    /// Returns all tags, in ascending order of name.
    pub(crate) fn tags(&self) -> Result<impl Iterator<Item = Result<TagEntry>> + '_> {
        self.entries().scan::<TagEntry>(None)
    }

    /// Returns the generations that tags name, from `first` on, in ascending order.
    pub(crate) fn tagged(
        &self,
        first: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, KeptGeneration)>> + '_> {
        let entries =
            self.entries().scan::<KeptEntry>(Some(&KeptKey { is_tagged: true, generation: first }))?;
        Ok(entries.map(|entry| entry.map(|(key, kept)| (key.generation, kept))))
    }

    /// Whether a tag names a generation.
    pub(crate) fn is_tagged(&self, generation: u64) -> Result<bool> {
        Ok(self.entries().find::<KeptEntry>(&KeptKey { is_tagged: true, generation })?.is_some())
    }

    /// Whether a generation is one that no tag names any more, but whose manifest may still be in `generations/`.
    pub(crate) fn is_released(&self, generation: u64) -> Result<bool> {
        Ok(self.entries().find::<KeptEntry>(&KeptKey { is_tagged: false, generation })?.is_some())
    }

    /// Returns the generations that no tag names any more, but whose manifests may still be in `generations/`.
    pub(crate) fn released(&self) -> Result<impl Iterator<Item = Result<(u64, KeptGeneration)>> + '_> {
        let entries = self.entries().scan::<KeptEntry>(None)?;
        let released = entries.take_while(|entry| entry.as_ref().map_or(true, |(key, _)| !key.is_tagged));
        Ok(released.map(|entry| entry.map(|(key, kept)| (key.generation, kept))))
    }

    /// Returns about how many files the store has: those of small stores are not counted.
    pub(crate) fn file_count(&self) -> u64 {
        let tables = [self.table(), self.history()].into_iter().flatten();
        let trees = [Tree::Storages, Tree::Generations, Tree::Garbage];
        let counts = tables.flat_map(|table| trees.map(|tree| table.reference().tree(tree).entry_count));
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the records of the tensors with these names. Many names are found by one scan, few by one lookup each.
    pub(crate) fn tensors_named<'a, T>(
        &self,
        names: &'a BTreeMap<String, T>,
    ) -> Result<BTreeMap<&'a str, TensorRecord>> {
        let table_count = self.table_tensor_count();
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
