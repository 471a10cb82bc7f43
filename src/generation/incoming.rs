//! The metadata of a generation of the same store elsewhere: its tables and tagged generations, copied to this store.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Error as FormatError, KeptGeneration, Manifest, Rule, TableRef, limits};

use super::early::EarlyFiles;
use super::garbage::is_table_of;
use super::history::kept_of;
use super::table::Table;
use super::transfer::Transfer;
use super::{Generation, OpenStore, StoreDir};
use crate::disk::{Access, Staged, is_not_regular, step};
use crate::error::{Error, FormatContext, IoContext, Result};
use crate::storage::Unreadable;

/// A later generation of the same store, with its tables in this store.
pub(crate) struct Incoming {
    /// It has no pin: its files are not those of a generation of this store yet.
    pub(crate) generation: Generation,
    /// The table of its history, which is deleted when this is dropped: this store has a history of its own.
    _history: Option<Staged>,
}

/// Copies metadata from another store.
pub(crate) struct MetadataFetch<'a> {
    pub(crate) store: &'a OpenStore,
    /// The other store.
    pub(crate) from: &'a StoreDir,
    pub(crate) early: &'a EarlyFiles<'a>,
    pub(crate) transfer: &'a Transfer<'a>,
}

impl MetadataFetch<'_> {
    /// Copies the tables of a generation. That of storages and tensors gets its final name.
    pub(crate) fn tables(&self, of: &Generation) -> Result<Incoming> {
        let manifest = of.manifest();
        let (disk, paths) = (&*self.store.disk, &self.store.paths);
        if let Some(table) = &manifest.table {
            let known =
                self.early.newest().manifest().table.filter(|known| known.generation == table.generation);
            if known.is_some_and(|known| known != *table) {
                let detail = "the table of a generation that this store has too is a different one there";
                return Err(self.broken(of.number(), Rule::TableFile, detail));
            }
            self.table(table)?;
        }
        let table = Table::of(disk, paths, manifest)?.map(Arc::new);
        let mut history = None;
        let mut history_table = None;
        if let Some(reference) = &manifest.history {
            let staged =
                self.copy(&self.from.paths.history(reference.generation), reference.length_bytes())?;
            let copied = Table::at(disk, staged.path(), manifest, *reference)?;
            check_nodes(&copied, &self.from.paths.history(reference.generation))?;
            history_table = Some(Arc::new(copied));
            history = Some(staged);
        }
        let generation = Generation::without_pin(manifest.clone(), table, history_table);
        Ok(Incoming { generation, _history: history })
    }

    /// Copies the manifest of a tagged generation, and its table.
    pub(crate) fn tagged(&self, generation: u64, kept: &KeptGeneration) -> Result<()> {
        let path = self.from.paths.kept_manifest(generation);
        let file = self.from.disk.open(&path, Access::Read);
        let file = file.map_err(|e| unopened(&path, e))?;
        let length_bytes = file.stat().doing("open manifest", &path)?.size_bytes;
        if length_bytes > limits::MAX_MANIFEST_BYTES {
            return Err(Error::corrupt(
                &path,
                FormatError::new(Rule::ManifestFrame, "the manifest is too long"),
            ));
        }
        let mut bytes = Vec::new();
        let short =
            || Error::corrupt(&path, FormatError::new(Rule::ManifestFrame, "the file became shorter"));
        self.transfer.read((&*file, &path), 0..length_bytes, short, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let manifest = Manifest::decode_kept(&bytes, self.store.uuid, generation).corrupt_in(&path)?;
        if (KeptGeneration { tag_count: 0, ..*kept }) != kept_of(&manifest) {
            let detail = "the manifest of a tagged generation is not as the newest manifest states";
            return Err(Error::corrupt(&path, FormatError::new(Rule::RecordCount, detail)));
        }
        if let Some(table) = &manifest.table {
            self.table(table)?;
            // Its length and its roots.
            Table::of(&*self.store.disk, &self.store.paths, &manifest)?;
        }
        let dir = self.store.paths.generations_dir();
        let staged = Staged::create(&self.store.disk, &dir).doing("write a manifest in", &dir)?;
        staged.file().write_all_at(&bytes, 0).doing("write a manifest in", &dir)?;
        self.sync(&staged)?;
        self.early.publish_metadata(staged, &self.store.paths.kept_manifest(generation))
    }

    /// Copies a table of storages and tensors, unless this store has it.
    fn table(&self, table: &TableRef) -> Result<()> {
        let (number, disk) = (table.generation, &*self.store.disk);
        let target = self.store.paths.table(number);
        if is_table_of(self.early.newest().entries(), number)? || self.early.has(&target) {
            return Ok(());
        }
        let staged = self.copy(&self.from.paths.table(number), table.length_bytes())?;
        let bounds =
            Manifest { generation: number, next_storage_id: u64::MAX, ..Manifest::first(self.store.uuid) };
        check_nodes(&Table::at(disk, staged.path(), &bounds, *table)?, &self.from.paths.table(number))?;
        self.sync(&staged)?;
        self.early.publish_metadata(staged, &target)
    }

    /// Copies a file of this length to an unfinished file in `generations/`.
    fn copy(&self, path: &Path, length_bytes: u64) -> Result<Staged> {
        let file = self.from.disk.open(path, Access::Read).map_err(|e| unopened(path, e))?;
        let found_bytes = file.stat().doing("open table", path)?.size_bytes;
        if found_bytes != length_bytes {
            let detail = format!("{found_bytes} bytes, but the manifest says {length_bytes}");
            return Err(Error::corrupt(path, FormatError::new(Rule::TableFile, detail)));
        }
        let dir = self.store.paths.generations_dir();
        let staged = Staged::create(&self.store.disk, &dir).doing("write a table in", &dir)?;
        let mut offset_bytes = 0;
        let short = || Error::corrupt(path, FormatError::new(Rule::TableFile, "the file became shorter"));
        self.transfer.read((&*file, path), 0..length_bytes, short, &mut |bytes| {
            staged.file().write_all_at(bytes, offset_bytes).doing("write a table in", &dir)?;
            offset_bytes += bytes.len() as u64;
            Ok(())
        })?;
        Ok(staged)
    }

    fn sync(&self, staged: &Staged) -> Result<()> {
        if self.store.is_durable() {
            step!("sync-received-metadata", staged.file().sync()).syncing("sync", staged.path())?;
        }
        Ok(())
    }

    fn broken(&self, generation: u64, rule: Rule, detail: &str) -> Error {
        Error::corrupt(&self.from.paths.manifest(generation), FormatError::new(rule, detail))
    }
}

/// Verifies the digests of all nodes of a table that was copied from `path`.
fn check_nodes(copied: &Table, path: &Path) -> Result<()> {
    for node in copied.nodes(Unreadable::Fail) {
        let (_, node) = node?;
        node.map_err(|e| e.context(format!("received from {}", path.display())))?;
    }
    Ok(())
}

/// Returns the error for a file of the other store that could not be opened.
fn unopened(path: &Path, e: io::Error) -> Error {
    if e.kind() == io::ErrorKind::NotFound || is_not_regular(&e) {
        return Error::corrupt(path, FormatError::new(Rule::MetadataFile, e.to_string()));
    }
    Error::io("open", path, e)
}
