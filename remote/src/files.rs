//! The files of a store that are objects of a remote.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use stridemap::Result;
use stridemap::replica::{FileReader, Files};
use stridemap_format::remote::{FileKey, FileKind, ObjectName, RemoteManifest, Segment};

use crate::client::Client;
use crate::digests::Digests;
use crate::fetch;
use crate::index::Index;
use crate::object_reader::ObjectReader;
use crate::packs::Packs;

/// The files of one generation. Its index is read when it is needed, and kept in memory.
#[derive(Debug)]
pub(crate) struct RemoteFiles {
    source: Arc<Source>,
    generation: u64,
    /// The bytes of `meta/<generation>.man`.
    manifest: Bytes,
    marker: Bytes,
    index: Mutex<Index>,
}

/// Where the bytes come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) client: Client,
    pub(crate) packs: Packs,
    pub(crate) digests: Digests,
}

/// A file in memory.
#[derive(Debug)]
struct InMemory(Bytes);

impl FileReader for InMemory {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let start = usize::try_from(offset_bytes).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(self.0.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl RemoteFiles {
    pub(crate) fn new(client: Client, manifest: &RemoteManifest) -> Self {
        RemoteFiles {
            source: Arc::new(Source { client, packs: Packs::default(), digests: Digests::default() }),
            generation: manifest.generation,
            manifest: Bytes::from(manifest.manifest.clone()),
            marker: Bytes::from(crate::Remote::marker(manifest)),
            index: Mutex::new(Index::new(&manifest.pages)),
        }
    }

    fn segments(&self, key: FileKey) -> Result<Option<Vec<Segment>>> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let found = index.get(key, &|segments| self.fetch(segments))?;
        Ok(found.map(<[Segment]>::to_vec))
    }

    fn fetch(&self, segments: &[Segment]) -> Result<Vec<Bytes>> {
        fetch::segments(&self.source.client, segments)
    }

    fn keys(&self, kind: FileKind) -> Result<Vec<FileKey>> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let key = |number| FileKey { kind, number };
        index.keys(key(0), key(u64::MAX), &|segments| self.fetch(segments))
    }

    fn object_reader(&self, key: FileKey) -> Result<Option<Arc<ObjectReader>>> {
        let Some(segments) = self.segments(key)? else { return Ok(None) };
        Ok(Some(Arc::new(ObjectReader::new(Arc::clone(&self.source), key, segments))))
    }

    /// Returns how many bytes a replica receives. It computes the digests of chunks itself.
    pub(crate) fn total_bytes(&self) -> Result<u64> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0u64;
        for (_, segments) in index.all(&|segments| self.fetch(segments))?.filter(is_received) {
            total = segments.iter().fold(total, |sum, segment| sum.saturating_add(segment.length_bytes));
        }
        Ok(total)
    }

    /// Returns how many of these bytes the other index does not have.
    pub(crate) fn bytes_since(&self, before: &mut Index) -> Result<u64> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let fetch = |segments: &[Segment]| self.fetch(segments);
        let known: HashSet<(ObjectName, u64)> = before
            .all(&fetch)?
            .flat_map(|(_, segments)| segments.iter().map(|segment| (segment.object, segment.offset_bytes)))
            .collect();
        let new = index.all(&fetch)?.filter(is_received).flat_map(|(_, segments)| segments);
        let new = new.filter(|segment| !known.contains(&(segment.object, segment.offset_bytes)));
        Ok(new.fold(0, |sum, segment| sum.saturating_add(segment.length_bytes)))
    }

    /// Returns the storages whose bytes are where the other index has them.
    pub(crate) fn unchanged_since(&self, before: &mut Index) -> Result<HashSet<u64>> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let fetch = |segments: &[Segment]| self.fetch(segments);
        let mut unchanged = HashSet::new();
        for (key, segments) in index.all(&fetch)?.filter(|(key, _)| key.kind == FileKind::Storage) {
            if before.get(key, &fetch)? == Some(segments) {
                unchanged.insert(key.number);
            }
        }
        Ok(unchanged)
    }
}

fn is_received((key, _): &(FileKey, &[Segment])) -> bool {
    key.kind != FileKind::Sum
}

impl Files for RemoteFiles {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let name = |key: FileKey| key.path().rsplit('/').next().unwrap_or_default().to_owned();
        match dir {
            "meta" => {
                let mut names = vec![format!("{:016x}.man", self.generation)];
                names.extend(self.keys(FileKind::History)?.into_iter().map(name));
                Ok(names)
            }
            "generations" => {
                let mut keys = self.keys(FileKind::KeptManifest)?;
                keys.extend(self.keys(FileKind::Table)?);
                Ok(keys.into_iter().map(name).collect())
            }
            "storages" => {
                let mut keys = self.keys(FileKind::Storage)?;
                keys.extend(self.keys(FileKind::Sum)?);
                Ok(keys.into_iter().map(name).collect())
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>> {
        if name == "FORMAT" {
            return Ok(Arc::new(InMemory(self.marker.clone())));
        }
        if name == format!("meta/{:016x}.man", self.generation) {
            return Ok(Arc::new(InMemory(self.manifest.clone())));
        }
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let key = FileKey::from_path(name).ok_or_else(not_found)?;
        Ok(self.object_reader(key)?.ok_or_else(not_found)?)
    }
}
