//! Lists the files that a replica of a generation needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use stridemap_format::remote::{FileKey, FileKind};
use stridemap_format::{
    Digest, Error as FormatError, GarbageKey, KeptKey, Manifest, Marker, RecordKind, Rule, Sealed,
    StorageRecord, full_chunk_count,
};

use crate::disk::{Access, read_again, read_capped};
use crate::error::{Error, ErrorKind, FormatContext as _, IoContext as _, Result};
use crate::generation::{
    Entries, GarbageEntry, Generation, KeptEntry, OpenStore, StorageEntry, generation_stated_in, is_table_of,
    settle_sent,
};
use crate::maintenance::TaggedGenerations;
use crate::store::Snapshot;

/// The files that a replica of a generation needs, for [`Snapshot::replica_files`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaFiles {
    /// The bytes of `FORMAT`.
    pub format: Vec<u8>,
    /// The bytes of the manifest of the generation, `meta/<generation>.man`.
    pub manifest: Vec<u8>,
    /// The files that a replica of the earlier generation lacks, or has with other bytes: new ones, longer ones, and those
    /// that are changed in place.
    pub needed: BTreeMap<FileKey, NeededFile>,
    /// The files that a replica of the earlier generation may have, and that this generation does not need.
    pub removed: BTreeSet<FileKey>,
    /// Whether `needed` has all files of the generation, and a replica needs no other. Then `removed` is empty.
    pub is_complete: bool,
}

/// A file that a replica needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeededFile {
    /// How many bytes of the file, from its first, belong to the generation.
    pub length_bytes: u64,
    /// Whether the bytes may change without a commit: those of a mutable or live storage. Such a file is always listed.
    pub is_in_place: bool,
    /// Whether it is of a mutable storage, which changes only under its lock. Reads of several parts may still differ.
    pub has_lock: bool,
}

impl Snapshot {
    /// Lists the files that a replica of this generation needs, to push it to another place.
    /// [`open_replica_file`](Self::open_replica_file) opens each.
    ///
    /// A replica has the generation with all tags of the store, and what they keep: the manifest and its tables; the
    /// manifest and the table of each generation that a tag names; and the files of all storages, and of the garbage that
    /// tags keep. A snapshot [at](crate::Store::at) a tag has no tags, as the manifest that a tag keeps states none.
    ///
    /// `since` is the manifest of an earlier generation of this store. The other place has all files of that one. If the
    /// tables are still the same, only the differences between both generations are listed. A file that both have is
    /// listed if its storage has grown, or is changed in place.
    ///
    /// If the store has commits that were not synced, they are made durable first: a power cut cannot take back what another
    /// place has.
    ///
    /// The snapshot keeps the files of its generation. A file that only a tag keeps may be deleted after the tag is
    /// removed; opening it then fails with `Conflict`.
    ///
    /// ```
    /// use stridemap::Store;
    /// use stridemap::replica::{FileKey, FileKind};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1i32, 2])?;
    /// let first = store.snapshot().replica_files(None)?;
    /// let x = FileKey { kind: FileKind::Storage, number: 1 };
    /// assert!(first.is_complete && first.needed.keys().eq([&x]));
    ///
    /// store.save("x", &[3i64])?;
    /// let second = store.snapshot().replica_files(Some(&first.manifest))?;
    /// let new = FileKey { kind: FileKind::Storage, number: 2 };
    /// assert_eq!(second.needed[&new].length_bytes, 8);
    /// assert!(second.removed.contains(&x) && !second.is_complete);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotAllowed` for an external storage, whose file the store does not own; `InvalidArgument` if `since` is not the
    /// manifest of an earlier generation of this store; `Conflict` if a tag was removed meanwhile, and its files deleted;
    /// `Corrupt`, `Stale` and `Io`.
    pub fn replica_files(&self, since: Option<&[u8]>) -> Result<ReplicaFiles> {
        let (store, generation) = (&self.loader.store, self.pinned_generation());
        store.check_process()?;
        settle_sent(store)?;
        let own_path = store.paths.manifest(generation.number());
        let manifest = generation.manifest().encode().corrupt_in(&own_path)?;
        let earlier = since.map(|since| earlier_manifest(generation, since)).transpose()?;
        let mut listing = Listing { store, generation, needed: BTreeMap::new(), removed: BTreeSet::new() };
        let since = earlier.as_ref().and_then(|earlier| generation.entries_before(earlier));
        match since {
            Some(since) => listing.list_changes(since)?,
            None => listing.list_all()?,
        }
        let (path, Listing { needed, removed, .. }) = (store.paths.format_file(), listing);
        let read = || read_capped(&*store.disk.open(&path, Access::Read)?, Marker::LENGTH as u64);
        let format = read_again(read).doing("read", &path)?;
        generation.check_named(&*store.disk)?;
        Ok(ReplicaFiles { format, manifest, needed, removed, is_complete: since.is_none() })
    }
}

impl Snapshot {
    /// Returns the garbage that tags keep. It is read once, because many of its files are opened one after another.
    pub(super) fn tagged_garbage(&self) -> Result<&TaggedGarbage> {
        if let Some(found) = self.tagged_garbage.get() {
            return Ok(found);
        }
        let found = tagged_garbage(self.pinned_generation())?;
        Ok(self.tagged_garbage.get_or_init(|| found))
    }
}

fn earlier_manifest(generation: &Generation, since: &[u8]) -> Result<Manifest> {
    let (uuid, newest) = (generation.manifest().uuid, generation.number());
    let earlier = generation_stated_in(since);
    let decoded = Manifest::decode(since, uuid, earlier.unwrap_or_default()).map_err(|e| {
        let message = format!("list what a replica needs: the earlier manifest is none of this store: {e}");
        Error::new(ErrorKind::InvalidArgument, message).breaking(e)
    })?;
    if decoded.generation > newest {
        let message = format!(
            "list what a replica needs: the earlier manifest is of generation {}, and this is generation {newest}",
            decoded.generation
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(decoded)
}

/// The files of a storage, and their lengths.
fn files_of(id: u64, record: &StorageRecord) -> impl Iterator<Item = (FileKey, NeededFile)> {
    let has_lock = matches!(record.kind, RecordKind::Mutable);
    let is_in_place = has_lock || matches!(record.kind, RecordKind::Live { .. });
    let file = |kind, length_bytes| {
        (FileKey { kind, number: id }, NeededFile { length_bytes, is_in_place, has_lock })
    };
    let bytes = file(FileKind::Storage, record.file_bytes());
    let sum_bytes = sum_bytes(record);
    [Some(bytes), (sum_bytes > 0).then(|| file(FileKind::Sum, sum_bytes))].into_iter().flatten()
}

/// How many bytes of digests of full chunks a storage has.
pub(super) fn sum_bytes(record: &StorageRecord) -> u64 {
    match record.kind {
        RecordKind::Sealed(_) => {
            full_chunk_count(record.length_bytes).saturating_mul(size_of::<Digest>() as u64)
        }
        _ => 0,
    }
}

/// What states the bytes of a file of a sealed storage: its length, and digests.
type Content = (u64, Digest, Option<Digest>);

/// Returns `None` for a storage that is changed in place.
fn content_of(kind: FileKind, record: &StorageRecord) -> Option<Content> {
    let RecordKind::Sealed(Sealed { chunks, tail, .. }) = record.kind else { return None };
    Some(match kind {
        FileKind::Sum => (full_chunk_count(record.length_bytes), chunks, None),
        _ => (record.length_bytes, chunks, Some(tail)),
    })
}

/// Lists the files that a generation needs.
struct Listing<'a> {
    store: &'a OpenStore,
    generation: &'a Generation,
    needed: BTreeMap<FileKey, NeededFile>,
    removed: BTreeSet<FileKey>,
}

impl Listing<'_> {
    /// Lists all files.
    fn list_all(&mut self) -> Result<()> {
        let manifest = self.generation.manifest();
        for (kind, table) in [(FileKind::Table, manifest.table), (FileKind::History, manifest.history)] {
            if let Some(table) = table {
                self.add(FileKey { kind, number: table.generation }, table.length_bytes());
            }
        }
        for entry in self.generation.tagged(0)? {
            let (generation, kept) = entry?;
            self.add_whole(FileKind::KeptManifest, generation)?;
            kept.table.map_or(Ok(()), |table| self.add_whole(FileKind::Table, table))?;
        }
        self.each_storage(|listing, id, record| listing.needed.extend(files_of(id, record)))?;
        self.removed.clear();
        Ok(())
    }

    /// Lists what has changed since an earlier generation with the same tables. Its entries differ from those of this one
    /// only where one of the two manifests has a change.
    fn list_changes(&mut self, since: Entries<'_>) -> Result<()> {
        let now = self.generation.entries();
        let generations = since.changed_keys::<KeptEntry>(now).map(|key| key.generation);
        let generations: BTreeSet<u64> = generations.collect();
        let mut tables = BTreeSet::new();
        for generation in generations {
            let key = KeptKey { is_tagged: true, generation };
            let (before, after) = (since.find::<KeptEntry>(&key)?, now.find::<KeptEntry>(&key)?);
            tables.extend([&before, &after].into_iter().flatten().filter_map(|kept| kept.table));
            match (before.is_some(), after.is_some()) {
                (false, true) => self.add_whole(FileKind::KeptManifest, generation)?,
                (true, false) => {
                    self.removed.insert(FileKey { kind: FileKind::KeptManifest, number: generation });
                }
                _ => {}
            }
        }
        for table in tables {
            match (is_table_of(since, table)?, is_table_of(now, table)?) {
                (false, true) => self.add_whole(FileKind::Table, table)?,
                (true, false) => drop(self.removed.insert(FileKey { kind: FileKind::Table, number: table })),
                _ => {}
            }
        }
        self.list_changed_storages(since, now)
    }

    fn list_changed_storages(&mut self, since: Entries<'_>, now: Entries<'_>) -> Result<()> {
        let garbage: BTreeSet<GarbageKey> = since.changed_keys::<GarbageEntry>(now).copied().collect();
        let mut changed: BTreeSet<u64> = since.changed_keys::<StorageEntry>(now).copied().collect();
        changed.extend(garbage.iter().map(|key| key.id));
        let mut before: BTreeMap<FileKey, Option<Content>> = BTreeMap::new();
        let mut add = |id, record: StorageRecord| {
            before.extend(files_of(id, &record).map(|(key, _)| (key, content_of(key.kind, &record))));
        };
        for key in garbage.iter().filter(|key| key.is_tagged) {
            since.find::<GarbageEntry>(key)?.into_iter().for_each(|record| add(key.id, record));
        }
        for &id in &changed {
            since.find::<StorageEntry>(&id)?.into_iter().for_each(|record| add(id, record));
        }
        self.each_storage(|listing, id, record| {
            for (key, file) in files_of(id, record) {
                let is_same = match changed.contains(&id) {
                    true => before.remove(&key) == Some(content_of(key.kind, record)),
                    false => true,
                };
                if file.is_in_place || !is_same {
                    listing.needed.insert(key, file);
                }
            }
        })?;
        self.removed.extend(before.into_keys());
        Ok(())
    }

    /// Calls `visit` with each storage that the generation or a tag needs.
    fn each_storage(&mut self, mut visit: impl FnMut(&mut Self, u64, &StorageRecord)) -> Result<()> {
        let generation = self.generation;
        for entry in generation.storages()? {
            let (id, record) = entry?;
            check_own(id, &record)?;
            visit(self, id, &record);
        }
        let mut lost = BTreeMap::new();
        for (id, (dropped, record)) in tagged_garbage(generation)? {
            check_own(id, &record)?;
            if record.is_restored && self.is_lost(id)? {
                lost.insert(id, (dropped, record));
                continue;
            }
            visit(self, id, &record);
        }
        self.remove_lost(lost)
    }

    fn is_lost(&self, id: u64) -> Result<bool> {
        let path = self.store.paths.storage(id);
        match read_again(|| self.store.disk.stat(&path)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
            stat => stat.map(|_| false).doing("examine", &path),
        }
    }

    /// A collection deletes a storage that was restored and dropped again, if no tagged generation has it after all. The
    /// garbage does not tell.
    fn remove_lost(&mut self, lost: TaggedGarbage) -> Result<()> {
        let ids: Vec<u64> = lost.keys().copied().collect();
        let mut tagged = TaggedGenerations::list(self.generation)?;
        tagged.find_restored(self.store, self.generation, &ids, &[])?;
        for (id, (dropped, record)) in lost {
            if tagged.with_storage(id).next().is_some_and(|first| first < dropped) {
                return Err(missing(
                    self.store,
                    self.generation,
                    FileKey { kind: FileKind::Storage, number: id },
                ));
            }
            self.removed.extend(files_of(id, &record).map(|(key, _)| key));
        }
        Ok(())
    }

    fn add(&mut self, key: FileKey, length_bytes: u64) {
        self.needed.insert(key, NeededFile { length_bytes, is_in_place: false, has_lock: false });
    }

    /// Adds a file whose length no record states.
    fn add_whole(&mut self, kind: FileKind, number: u64) -> Result<()> {
        let key = FileKey { kind, number };
        if self.needed.contains_key(&key) {
            return Ok(());
        }
        let path = self.store.paths.root().join(key.path());
        match read_again(|| self.store.disk.stat(&path)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(missing(self.store, self.generation, key)),
            stat => {
                self.add(key, stat.doing("examine", &path)?.size_bytes);
                Ok(())
            }
        }
    }
}

/// The garbage that tags keep, by id: the generation that dropped it, and its record.
pub(in crate::store) type TaggedGarbage = BTreeMap<u64, (u64, StorageRecord)>;

fn tagged_garbage(generation: &Generation) -> Result<TaggedGarbage> {
    let start = GarbageKey { is_tagged: true, dropped: 0, id: 0 };
    let mut found = BTreeMap::new();
    for entry in generation.entries().scan::<GarbageEntry>(Some(&start))? {
        let (key, record) = entry?;
        // Only a malformed store lists a storage as garbage too. The record of the storage counts then.
        if generation.storage(key.id)?.is_none() {
            found.insert(key.id, (key.dropped, record));
        }
    }
    Ok(found)
}

/// Refuses an external storage.
fn check_own(id: u64, record: &StorageRecord) -> Result<()> {
    let RecordKind::External(external) = &record.kind else { return Ok(()) };
    let message = format!(
        "list what a replica needs: storage {id:016x} is in {:?}, outside the store, so a replica cannot have it; \
         materialize the store, which copies such tensors into it, and remove tags that keep such storages",
        external.path
    );
    Err(Error::new(ErrorKind::NotAllowed, message))
}

/// Returns the error for a file of the generation that does not exist.
pub(super) fn missing(store: &OpenStore, generation: &Generation, key: FileKey) -> Error {
    let manifest = generation.manifest();
    let (is_own, rule) = match key.kind {
        FileKind::KeptManifest => (false, Rule::MetadataFile),
        FileKind::Table => {
            (manifest.table.is_some_and(|table| table.generation == key.number), Rule::MetadataFile)
        }
        FileKind::History => (true, Rule::MetadataFile),
        FileKind::Storage | FileKind::Sum => {
            (generation.storage(key.number).is_ok_and(|found| found.is_some()), Rule::StorageFile)
        }
    };
    let is_newest = || store.newest_of_all().is_ok_and(|newest| newest.number() == generation.number());
    if is_own || is_newest() {
        let path = store.paths.root().join(key.path());
        return Error::corrupt(&path, FormatError::new(rule, "the file is missing"));
    }
    deleted(store, generation, key)
}

/// Returns the error for a file that only a tag kept, and that was deleted.
pub(super) fn deleted(store: &OpenStore, generation: &Generation, key: FileKey) -> Error {
    let message = format!(
        "{}: no tag keeps the file any more, which one did at generation {}, and it was deleted; push again",
        store.paths.root().join(key.path()).display(),
        generation.number()
    );
    Error::new(ErrorKind::Conflict, message)
}
