//! Copying a store while others may write it.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Attributes, RecordKind, StorageRecord, TensorParts, TensorRecord};

use super::handle::Store;
use super::options::StoreOptions;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::{Context, Error, FormatContext, Result};
use crate::generation::Change;
use crate::layout::{Repacked, RepackedView, footprint_bytes, repack};
use crate::maintenance::Copied;
use crate::storage::{StagedStorage, UnverifiedStorage, VerifiedStorage};

/// The maximum number of storages that one commit copies: until the commit, each has two files open. The copy is
/// invisible before its last commit, so there can be several commits.
const MAX_COMMIT_STORAGES: usize = 64;

/// The maximum number of headers that are in memory at a time.
const MAX_COMMIT_TENSORS: usize = 1 << 17;

/// The maximum number of runs of bytes that are counted for the views of a storage. Views with more runs are assumed to
/// leave some bytes out.
const MAX_RUNS: u64 = 1 << 20;

impl Store {
    /// Copies the newest generation of this store to a path that does not exist; see [`Snapshot::copy_to`]. The
    /// handle stays on its generation.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1i64, 2])?;
    /// let copied = store.copy_to(dir.path().join("backup.smap"), |_| ())?;
    /// assert_eq!(copied.tensor_count, 1);
    /// assert_eq!(Store::open(dir.path().join("backup.smap"))?.names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `Corrupt`, `Busy`, `NotAllowed`, `ExternalChanged`, `ReadOnly` and `Io`, as for
    /// [`Snapshot::copy_to`]; `Stale`, as for [`refresh`](Self::refresh).
    pub fn copy_to(&self, path: impl AsRef<Path>, progress: impl FnMut(u64)) -> Result<Copied> {
        let newest = self.loader.store.newest()?;
        Snapshot::new(Arc::clone(&self.loader), newest).copy_to(path, progress)
    }
}

impl Snapshot {
    /// Copies this generation to a path that does not exist. Other processes may read and write the store meanwhile.
    /// The copy is a store with its own uuid. It appears whole or not at all, and is as durable as the handle's
    /// commits when this returns. A process that is killed leaves a directory beside the path, named `.stage-` and a
    /// hexadecimal number, which may be deleted.
    ///
    /// Copying only the files, with `cp -r`, is not safe while a process writes: it copies files of several
    /// generations, and the result often does not open. It also keeps the uuid, so each of the two stores is mistaken
    /// for the other.
    ///
    /// Names, strides, dimension names, attributes and reservations are kept. Tensors that share a storage also share
    /// it in the copy.
    /// - Sealed storages share their blocks with the originals if the file system can do that (btrfs, XFS), and are
    ///   copied otherwise. All their bytes are read and verified, so damage is an error here and does not get into
    ///   the copy.
    /// - Mutable storages are copied in their current state, each under a shared guard. Live ones are copied by
    ///   positional reads while others write, so an element may be half of one write and half of another. A snapshot
    ///   isolates neither kind.
    /// - External storages are adopted again: the copy records the paths of their files as seen from its own
    ///   location. This handle must be [allowed](crate::StoreOptions::external) to open them from there.
    ///
    /// `progress` is called with the bytes of elements read since the last call.
    ///
    /// ```
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// let store = Store::create(dir.join("x.smap"))?;
    /// store.save("x", &Tensor::from_vec(vec![1i64, 2], &[2])?)?;
    /// store.copy_to(dir.join("copy.smap"), |_| ())?;
    /// assert_eq!(Store::open(dir.join("copy.smap"))?.load("x")?.read::<i64>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists; `Corrupt` for damaged metadata and elements; `Busy` if a mutable tensor is
    /// locked for longer than the lock timeout, or by this thread; `NotAllowed` and `ExternalChanged`; `Io`, for
    /// example for a full disk; `ReadOnly`; `Stale`. After each of these nothing is left behind, unless the last
    /// sync failed.
    pub fn copy_to(&self, path: impl AsRef<Path>, progress: impl FnMut(u64)) -> Result<Copied> {
        self.loader.store.check_process()?;
        let entries = self.pinned_generation().tensors("")?;
        self.copy(path.as_ref(), BTreeMap::new(), entries, self.all_attributes().clone(), progress)
    }

    /// Like [`copy_to`](Self::copy_to), for the given tensors only. Sealed storages are copied without the bytes that
    /// a [compaction](Store::compact) would drop if the store had only these tensors, so strides and offsets may
    /// change. Other storages are copied whole. The attributes of the store, of these tensors, and of prefixes of
    /// their names are kept.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("model", &vec![[1f32; 100]; 1000])?;
    /// store.save_view("column", &store.load("model")?.select(1, 0)?)?;
    /// let part = dir.path().join("part.smap");
    /// let copied = store.snapshot().copy_tensors_to(&part, &["column"], |_| ())?;
    /// assert!(copied.copied_bytes < 5000); // of 400 000
    /// assert_eq!(Store::open(&part)?.load("column")?.size(), [1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `Corrupt`, `Busy`, `NotAllowed`, `ExternalChanged`, `ReadOnly`, `Stale` and `Io`, as for
    /// [`copy_to`](Self::copy_to); `NameNotFound`.
    pub fn copy_tensors_to(
        &self,
        path: impl AsRef<Path>,
        names: &[&str],
        progress: impl FnMut(u64),
    ) -> Result<Copied> {
        self.loader.store.check_process()?;
        let mut tensors: BTreeMap<String, TensorRecord> = BTreeMap::new();
        for &name in names {
            tensors.insert(name.to_owned(), self.pinned_generation().existing("copy", name)?);
        }
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for (name, record) in &tensors {
            parts.entry(record.storage_id).or_default().tensors.push((name.clone(), record.clone()));
        }
        let mut attributes = Attributes::new();
        // The store's own attributes are kept. They come first.
        let (mut last_scope, mut is_kept) = ("", true);
        for ((scope, key), value) in self.all_attributes() {
            if scope != last_scope {
                let from_scope = (Bound::Included(scope.as_str()), Bound::Unbounded);
                is_kept = match tensors.range::<str, _>(from_scope).next() {
                    Some((name, _)) if name == scope => true,
                    // An entry that cannot be read counts as a prefix: a damaged table must not prevent a copy.
                    Some((name, _)) if name.starts_with(scope) => {
                        !matches!(self.pinned_generation().tensor(scope), Ok(Some(_)))
                    }
                    _ => false,
                };
                last_scope = scope;
            }
            if is_kept {
                attributes.insert((scope.clone(), key.clone()), value.clone());
            }
        }
        self.copy(path.as_ref(), parts, tensors.into_iter().map(Ok), attributes, progress)
    }

    fn copy(
        &self,
        path: &Path,
        parts: BTreeMap<u64, Part>,
        tensors: impl Iterator<Item = Result<(String, TensorRecord)>>,
        attributes: Attributes,
        mut progress: impl FnMut(u64),
    ) -> Result<Copied> {
        let store = &self.loader.store;
        let copy = || {
            let options = StoreOptions { options: store.options, disk: Arc::clone(&self.loader.disk) };
            let (building, target) = options.build(path)?;
            let copied = self.fill(&target, parts, tensors, attributes, &mut progress)?;
            building.finish(&target.loader.store)?;
            Ok(copied)
        };
        copy().map_err(|e: Error| {
            e.context(format!("copy {} to {}", store.paths.root().display(), path.display()))
        })
    }

    fn fill(
        &self,
        target: &Store,
        mut parts: BTreeMap<u64, Part>,
        tensors: impl Iterator<Item = Result<(String, TensorRecord)>>,
        mut attributes: Attributes,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied> {
        let mut tensors = tensors.peekable();
        let mut copied = Copied::default();
        // Maps the storage ids of the source to those of the copy, which are provisional until the commit.
        let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
        loop {
            let mut txn = target.begin()?;
            for ((scope, key), value) in mem::take(&mut attributes) {
                txn.set_attribute_of(&scope, &key, &value)?;
            }
            // The storages of the source that this commit copies, each with a name that refers to it.
            let mut staged: Vec<(u64, String)> = Vec::new();
            let mut tensor_count = 0;
            while tensor_count < MAX_COMMIT_TENSORS
                && staged.len() < MAX_COMMIT_STORAGES
                && let Some(entry) = tensors.next()
            {
                let (name, record) = entry?;
                let id = record.storage_id;
                let part = parts.entry(id).or_default();
                let new_id = match ids.get(&id) {
                    Some(&new_id) => new_id,
                    None => {
                        let new_id = self.stage(&mut txn, id, part, &mut copied, progress);
                        let new_id = new_id.context(format!("{name:?}"))?;
                        ids.insert(id, new_id);
                        staged.push((id, name.clone()));
                        new_id
                    }
                };
                let (stride, offset_elems) = (record.stride.to_vec(), record.offset_elems);
                let placed = part.placed.remove(&name).unwrap_or(RepackedView { stride, offset_elems });
                let record = placed.header(&record, new_id).refused_to("copy")?;
                txn.apply(Change::Put { action: "copy", name, record })?;
                copied.tensor_count += 1;
                tensor_count += 1;
            }
            let generation = txn.publish()?;
            for (id, name) in staged {
                ids.extend(generation.tensor(&name)?.map(|record| (id, record.storage_id)));
            }
            if tensors.peek().is_none() {
                return Ok(copied);
            }
        }
    }

    /// Copies a storage, or the part of it that tensors reach, into a staged one. Returns its provisional id.
    fn stage(
        &self,
        txn: &mut Transaction<'_>,
        id: u64,
        part: &mut Part,
        copied: &mut Copied,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        let record = self.loader.record(self.pinned_generation(), id)?;
        match record.kind.clone() {
            RecordKind::External(external) => {
                let file = self.loader.store.externals.open(&external)?;
                let target = &txn.loader.store;
                let (path, file) = target.externals.adopt(&file, None)?;
                let adopted = StagedStorage::external(
                    &target.disk,
                    (path, &file),
                    external.offset_bytes,
                    record.length_bytes,
                );
                Ok(txn.stage_finished(adopted))
            }
            RecordKind::Sealed(_) => self.stage_sealed(txn, (id, &record), part, copied, progress),
            kind => {
                let storage = self.loader.open(self.pinned_generation(), id)?;
                let (new_id, _) = txn.stage_own(Some(kind), record.length_bytes, |writer| {
                    // A live storage has no lock: any process writes it at any time.
                    let lock = storage.lock_to_read()?;
                    let storage = lock.as_ref().map_or(&storage, |lock| &lock.storage);
                    writer.copy_from(
                        &mut UnverifiedStorage::new(storage),
                        &Repacked::whole(record.length_bytes),
                        progress,
                    )
                })?;
                copied.copied_bytes += record.length_bytes;
                Ok(new_id)
            }
        }
    }

    /// Copies a sealed storage, and shares its blocks if possible. Storages that are changed in place do not share
    /// blocks: a write to a shared block needs new space, and on a full disk a write through a mapping would end the
    /// process.
    fn stage_sealed(
        &self,
        txn: &mut Transaction<'_>,
        (id, record): (u64, &StorageRecord),
        part: &mut Part,
        copied: &mut Copied,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        let (source, target) = (&self.loader.store, &txn.loader.store);
        let length_bytes = record.length_bytes;
        let mut old = VerifiedStorage::open(&*source.disk, &source.paths, id, record)?;
        let views: Vec<&TensorParts> = part.tensors.iter().map(|(_, tensor)| &**tensor).collect();
        let broken = |e| Error::corrupt(&source.paths.storage(id), e);
        let is_whole = part.tensors.is_empty()
            || footprint_bytes(&views, length_bytes, MAX_RUNS).map_err(broken)? == Some(length_bytes);
        if is_whole {
            let mut writer = old.start_copy(&target.disk, &target.paths, target.is_durable())?;
            if writer.share_blocks(old.as_file(), length_bytes)? {
                writer.digest_shared(length_bytes, progress)?;
                let shared = writer.finish()?;
                // The kind of a sealed storage contains its digest. If the digests differ, the copy below reads the
                // storage chunk by chunk, and reports which chunk is damaged.
                if shared.record().kind == record.kind {
                    copied.shared_bytes += length_bytes;
                    return Ok(txn.stage_finished(shared));
                }
            }
        }
        let repacked = match is_whole {
            true => Repacked::whole(length_bytes),
            false => repack(&views, length_bytes).map_err(broken)?,
        };
        let mut writer = old.start_copy(&target.disk, &target.paths, target.is_durable())?;
        writer.copy_from(&mut old, &repacked, progress)?;
        copied.copied_bytes += writer.length_bytes();
        let names = part.tensors.iter().map(|(name, _)| name.clone());
        part.placed = names.zip(repacked.views).collect();
        Ok(txn.stage_finished(writer.finish()?))
    }
}

/// The part of a storage that is copied.
#[derive(Debug, Default)]
struct Part {
    /// The tensors that are copied; empty for all of them.
    tensors: Vec<(String, TensorRecord)>,
    /// The location of these tensors in the copied storage, if not all bytes are copied.
    placed: BTreeMap<String, RepackedView>,
}
