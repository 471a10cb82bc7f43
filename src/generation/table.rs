//! Looks up and scans the entries of a table file.

use std::cmp::Ordering;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::limits::MAX_ENTRY_BYTES;
use stridemap_format::{
    self as format, Manifest, StorageRecord, TABLE_HEADER_BYTES, TableHeader, TableRef, TensorRecord,
};

use crate::disk::{Access, Disk, DiskFile, StorePaths};
use crate::error::{Error, Result};

/// How many entries a scan reads at a time.
const SCAN_ENTRIES: u64 = 512;

/// An open table. A lookup reads and checks only what it needs.
#[derive(Debug)]
pub(crate) struct Table {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    header: TableHeader,
    reference: TableRef,
    next_storage_id: u64,
}

impl Table {
    /// Opens the table of a manifest, if it has one.
    pub(crate) fn of(disk: &dyn Disk, paths: &StorePaths, manifest: &Manifest) -> Result<Option<Self>> {
        let Some(reference) = manifest.table else { return Ok(None) };
        let path = paths.table(reference.generation);
        let failed = |e| Error::io("open table", &path, e);
        let file = disk.open(&path, Access::Read).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Error::corrupt(
                &path,
                format::Error::new(format::Rule::TableHeader, format!("open table: {e}")),
            ),
            _ => failed(e),
        })?;
        let length_bytes = file.stat().map_err(failed)?.size_bytes;
        if length_bytes != reference.length_bytes {
            let detail = format!("{length_bytes} bytes, but the manifest says {}", reference.length_bytes);
            return Err(Error::corrupt(&path, format::Error::new(format::Rule::TableHeader, detail)));
        }
        let mut header = [0; TABLE_HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(failed)?;
        let header =
            TableHeader::decode(&header, manifest.uuid, &reference).map_err(|e| Error::corrupt(&path, e))?;
        Ok(Some(Table { file, path, header, reference, next_storage_id: manifest.next_storage_id }))
    }

    pub(crate) fn reference(&self) -> &TableRef {
        &self.reference
    }

    pub(crate) fn tensor_count(&self) -> u64 {
        self.header.tensor_count()
    }

    pub(crate) fn entry_count(&self) -> u64 {
        self.header.entry_count()
    }

    /// Checks the first slot, which no lookup reads if the table is empty.
    pub(crate) fn check_index(&self) -> Result<()> {
        let (offset_bytes, length_bytes) = self.header.slots(0, 0);
        let slots = self.read(offset_bytes, length_bytes)?;
        self.header.decode_slots(0, &slots).map(drop).map_err(|e| Error::corrupt(&self.path, e))
    }

    pub(crate) fn storage(&self, id: u64) -> Result<Option<StorageRecord>> {
        Ok(self.find(self.storages(), |found: &u64| found.cmp(&id))?.ok().map(|(_, record)| record))
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<TensorRecord>> {
        Ok(self
            .find(self.tensors(), |found: &String| found.as_str().cmp(name))?
            .ok()
            .map(|(_, record)| record))
    }

    pub(crate) fn scan_storages(&self) -> Scan<'_, u64, StorageRecord> {
        Scan::new(self, self.storages())
    }

    /// Returns the tensors with the name `start` or a later one.
    pub(crate) fn scan_tensors(&self, start: &str) -> Result<Scan<'_, String, TensorRecord>> {
        let mut ordinals = self.tensors();
        if !start.is_empty() {
            let before =
                |found: &String| if found.as_str() < start { Ordering::Less } else { Ordering::Greater };
            ordinals.start = self.find(ordinals.clone(), before)?.err().unwrap_or(ordinals.start);
        }
        Ok(Scan::new(self, ordinals))
    }

    /// The ordinals of the storages.
    pub(crate) fn storages(&self) -> Range<u64> {
        0..self.header.storage_count()
    }

    /// The ordinals of the tensors.
    pub(crate) fn tensors(&self) -> Range<u64> {
        self.header.storage_count()..self.header.entry_count()
    }

    /// Searches for an entry. Returns the entry that compares as equal, or the ordinal at which it would be.
    fn find<K, V>(&self, within: Range<u64>, compare: impl Fn(&K) -> Ordering) -> Result<Result<(K, V), u64>>
    where
        (K, V): Entry,
    {
        let Range { mut start, mut end } = within;
        while start < end {
            let middle = start + (end - start) / 2;
            let mut entry = self.entries(middle, 1)?;
            let Some((key, value)) = entry.pop() else { break };
            match compare(&key) {
                Ordering::Less => start = middle + 1,
                Ordering::Greater => end = middle,
                Ordering::Equal => return Ok(Ok((key, value))),
            }
        }
        Ok(Err(start))
    }

    /// Reads up to `count` entries from `ordinal` on: at least one, and no more than fit in a buffer.
    fn entries<E: Entry>(&self, ordinal: u64, count: u64) -> Result<Vec<E>> {
        let (slots_offset, slots_bytes) = self.header.slots(ordinal, count);
        let slots = self.read(slots_offset, slots_bytes)?;
        let mut places =
            self.header.decode_slots(ordinal, &slots).map_err(|e| Error::corrupt(&self.path, e))?;
        let Some(&(first_offset, _)) = places.first() else { return Ok(Vec::new()) };
        let buffer_bytes = MAX_ENTRY_BYTES.max(count * 256);
        places.retain(|&(offset, length)| offset + length - first_offset <= buffer_bytes);
        let total_bytes = places.last().map_or(0, |&(offset, length)| offset + length - first_offset);
        let bytes = self.read(first_offset, total_bytes)?;
        let mut rest = bytes.as_slice();
        let mut entries = Vec::with_capacity(places.len());
        for (ordinal, (offset, length)) in (ordinal..).zip(places) {
            let entry = rest.split_off(..length as usize).unwrap_or_default();
            let decoded = E::decode(&self.header, ordinal, self.next_storage_id, entry);
            entries.push(decoded.map_err(|e| Error::corrupt(&self.path, e.at(offset)))?);
        }
        Ok(entries)
    }

    /// Passes each entry to `visit` separately, so that a damaged entry does not hide the others.
    ///
    /// # Errors
    /// Those of `visit`; `Io`.
    pub(crate) fn each_one<E: Entry>(
        &self,
        mut ordinals: Range<u64>,
        mut visit: impl FnMut(u64, Result<E>) -> Result<()>,
    ) -> Result<()> {
        while !ordinals.is_empty() {
            let count = SCAN_ENTRIES.min(ordinals.end - ordinals.start);
            let batch: Vec<(u64, Result<E>)> = match self.entries(ordinals.start, count) {
                Ok(entries) => (ordinals.start..).zip(entries.into_iter().map(Ok)).collect(),
                Err(e) if e.broken().is_none() => return Err(e),
                Err(_) => (ordinals.start..ordinals.start + count)
                    .map(|ordinal| (ordinal, self.entry(ordinal)))
                    .collect(),
            };
            ordinals.start += batch.len() as u64;
            for (ordinal, entry) in batch {
                match entry {
                    Err(e) if e.broken().is_none() => return Err(e),
                    entry => visit(ordinal, entry)?,
                }
            }
        }
        Ok(())
    }

    fn entry<E: Entry>(&self, ordinal: u64) -> Result<E> {
        let missing = || {
            let detail = format!("no entry {ordinal}");
            Error::corrupt(&self.path, format::Error::new(format::Rule::TableIndex, detail))
        };
        self.entries(ordinal, 1)?.pop().ok_or_else(missing)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self, offset_bytes: u64, length_bytes: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length_bytes as usize];
        self.file
            .read_exact_at(&mut bytes, offset_bytes)
            .map_err(|e| Error::io("read table", &self.path, e))?;
        Ok(bytes)
    }

    fn out_of_order(&self, ordinal: u64) -> Error {
        let detail = format!("entry {ordinal} does not follow the one before it");
        Error::corrupt(&self.path, format::Error::new(format::Rule::EntryOrder, detail))
    }
}

/// Returns the ordinals that a lookup reads, in order, until `compare` returns `Equal` or `None`.
pub(crate) fn lookup_path(
    within: Range<u64>,
    compare: impl Fn(u64) -> Option<Ordering>,
) -> impl Iterator<Item = u64> {
    let mut rest = within;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let middle = rest.start + (rest.end - rest.start) / 2;
        match compare(middle) {
            Some(Ordering::Less) => rest.start = middle + 1,
            Some(Ordering::Greater) => rest.end = middle,
            // Found, or unreadable: the lookup ends here.
            Some(Ordering::Equal) | None => rest.end = rest.start,
        }
        Some(middle)
    })
}

/// An entry of a table: a key and its record.
pub(crate) trait Entry: Sized {
    fn decode(header: &TableHeader, ordinal: u64, next_id: u64, bytes: &[u8]) -> format::Result<Self>;
}

impl Entry for (u64, StorageRecord) {
    fn decode(header: &TableHeader, ordinal: u64, next_id: u64, bytes: &[u8]) -> format::Result<Self> {
        header.decode_storage(ordinal, next_id, bytes)
    }
}

impl Entry for (String, TensorRecord) {
    fn decode(header: &TableHeader, ordinal: u64, next_id: u64, bytes: &[u8]) -> format::Result<Self> {
        header.decode_tensor(ordinal, next_id, bytes)
    }
}

/// Iterates over entries in order, in batches, and checks their order.
pub(crate) struct Scan<'a, K, V> {
    table: &'a Table,
    ordinals: Range<u64>,
    batch: std::vec::IntoIter<(K, V)>,
    last: Option<K>,
}

impl<'a, K, V> Scan<'a, K, V> {
    fn new(table: &'a Table, ordinals: Range<u64>) -> Self {
        Scan { table, ordinals, batch: Vec::new().into_iter(), last: None }
    }
}

impl<K: Ord + Clone, V> Iterator for Scan<'_, K, V>
where
    (K, V): Entry,
{
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.len() == 0 && !self.ordinals.is_empty() {
            let count = SCAN_ENTRIES.min(self.ordinals.end - self.ordinals.start);
            match self.table.entries(self.ordinals.start, count) {
                Ok(entries) => {
                    self.ordinals.start += entries.len() as u64;
                    self.batch = entries.into_iter();
                }
                Err(e) => {
                    self.ordinals.start = self.ordinals.end;
                    return Some(Err(e));
                }
            }
        }
        let (key, value) = self.batch.next()?;
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            let ordinal = self.ordinals.start - self.batch.len() as u64 - 1;
            self.ordinals.start = self.ordinals.end;
            self.batch = Vec::new().into_iter();
            return Some(Err(self.table.out_of_order(ordinal)));
        }
        self.last = Some(key.clone());
        Some(Ok((key, value)))
    }
}
