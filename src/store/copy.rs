//! Copying a store while others may write it.

use std::collections::BTreeMap;
use std::path::Path;

use super::at::{At, find};
use super::handle::Store;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::{Context, ErrorKind, Result};
use crate::generation::{Change, OnExisting};
use crate::maintenance::{Copied, Original};

impl Store {
    /// Copies the newest generation and all [tagged](Self::tag) ones to a path that does not exist. To copy one generation
    /// without tags, use [`Snapshot::copy_to`]; all that it says about the copy, its storages and its path holds here too,
    /// except that each small storage keeps a file of its own.
    ///
    /// The copied generations keep their numbers, times, messages and tags. Each storage is copied once, however many
    /// generations have it. So the copy takes the space that the newest generation and the tags need in this store. Its
    /// tags can be removed and its states restored, as in this store. A mutable or live storage has its current elements
    /// in every generation. An external file that only a tag needs must be unchanged too.
    ///
    /// Other processes may make and remove tags meanwhile. New tags are not copied. A tag that is removed, or moved to
    /// another generation, is missing in the copy if its generation is deleted before it is copied. The generations are
    /// copied from the oldest on, and the next hundred are held, so in a store with fewer tags none goes missing.
    ///
    /// `progress` is called with the bytes of elements read since the last call.
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// let store = Store::create(dir.join("run.smap"))?;
    /// store.save("frozen", &vec![0f32; 100_000])?;
    /// for step in 1..4 {
    ///     store.write(|txn| {
    ///         txn.save("trained", &vec![step as f32; 1000])?;
    ///         txn.tag(&format!("step{step}"))
    ///     })?;
    /// }
    /// let copied = store.copy_with_tags(dir.join("copy.smap"), |_| ())?;
    /// assert_eq!(copied.tag_count, 3);
    /// assert_eq!(copied.copied_bytes + copied.shared_bytes, 400_000 + 3 * 4000);
    ///
    /// let copy = Store::open(dir.join("copy.smap"))?;
    /// assert_eq!(copy.log()?, store.log()?);
    /// copy.restore(&copy.at("step1")?)?;
    /// assert_eq!(copy.load("trained")?.read::<f32>()?[0], 1.);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::copy_to`], except `NameNotFound`, for the newest generation and for what tags keep; `Busy`
    /// also if the manifest of a tagged generation stays locked. The message says which tag needs what could not be copied.
    pub fn copy_with_tags(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Copied> {
        let store = &self.loader.store;
        store.check_process()?;
        let newest = Snapshot::new(self.loader.clone(), store.newest_of_all()?);
        let pin = |number| match find(store, &At::Generation(number)) {
            Err(e) if e.kind() == ErrorKind::Conflict => Ok(None),
            found => found.map(Some),
        };
        newest.original()?.copy_with_tags(path.as_ref(), &pin, &mut progress)
    }
}

impl Snapshot {
    /// Copies this generation to a path that does not exist. Tags are not copied:
    /// [`Store::copy_with_tags`](crate::Store::copy_with_tags) copies them too. Other processes may read and write the
    /// store meanwhile. The copy is a store with its own uuid. It appears whole or not at all, and is as durable as the handle's
    /// commits when this returns. A process that is killed leaves a directory beside the path, named `.stage-` and a
    /// hexadecimal number, which may be deleted.
    ///
    /// Copying only the files, with `cp -r`, is not safe while a process writes: it copies files of several
    /// generations, and the result often does not open. It also keeps the uuid, so each of the two stores is mistaken
    /// for the other.
    ///
    /// Names, strides, dimension names, attributes and reservations are kept. Tensors that share a storage also share
    /// it in the copy.
    /// - Sealed storages share their blocks with the originals if the file system can do that (btrfs, XFS), and are copied
    ///   otherwise. Those of which less than 4 MiB are copied, without a reservation, get a storage that they share, so
    ///   the offsets of their tensors change. All bytes are read and verified, so damage is an error here and does not get
    ///   into the copy.
    /// - Mutable storages are copied in their current state, each under a shared guard. Live ones are copied by
    ///   positional reads while others write, so an element may be half of one write and half of another. A snapshot
    ///   isolates neither kind.
    /// - External storages are adopted again: the copy records the paths of their files as seen from its own
    ///   location. This handle must be [allowed](crate::StoreOptions::external) to open them from there.
    ///
    /// With `names`, only those tensors are copied. Sealed storages are then copied without the bytes that a
    /// [compaction](crate::Store::compact) would drop if the store had only these tensors, so strides and offsets may
    /// change. Other storages are copied whole. The attributes of the store, of these tensors, and of prefixes of
    /// their names are kept.
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
    /// store.latest()?.copy_to(dir.join("copy.smap"), None, |_| ())?;
    /// assert_eq!(Store::open(dir.join("copy.smap"))?.load("x")?.read::<i64>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("model", &vec![[1f32; 100]; 1000])?;
    /// store.save_view("column", &store.load("model")?.select(1, 0)?)?;
    /// let part = dir.path().join("part.smap");
    /// let copied = store.snapshot().copy_to(&part, Some(&["column"]), |_| ())?;
    /// assert!(copied.copied_bytes < 5000); // of 400 000
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists; `NameNotFound`; `Corrupt` for damaged metadata and elements; `Busy` if a
    /// mutable tensor is locked for longer than the lock timeout, or by this thread; `Interrupted` if a writer ended in
    /// the middle of a change ([`StoreOptions::salvage`](crate::StoreOptions::salvage) copies the elements as they are);
    /// `NotAllowed` and `ExternalChanged`; `Io`, for example for a full disk; `ReadOnly`; `Stale`. After each of these
    /// nothing is left behind. `CommitUnknown` if the last sync failed: the copy may exist.
    pub fn copy_to(
        &self,
        path: impl AsRef<Path>,
        names: Option<&[&str]>,
        mut progress: impl FnMut(u64),
    ) -> Result<Copied> {
        let original = self.original()?;
        let done = match names {
            Some(names) => original.copy_tensors(path.as_ref(), names, &mut progress)?,
            None => original.copy(path.as_ref(), &mut progress)?,
        };
        Ok(done.copied)
    }

    fn original(&self) -> Result<Original<'_>> {
        let (disk, store) = (&self.loader.disk, &self.loader.store);
        store.check_process()?;
        let generation = self.pinned_generation();
        Ok(Original { action: "copy", disk, store, generation, damaged: BTreeMap::new(), is_salvage: false })
    }
}

impl Transaction<'_> {
    /// Copies tensors of another store into this one, each from a name there to a name here, with the attributes of the
    /// tensor.
    ///
    /// Each storage is copied once, and the tensors that share it also share it here. [`Snapshot::copy_to`] with names says
    /// which of its bytes are copied, verified, or shared on disk, and that holds here too.
    ///
    /// `progress` is called with the bytes of elements read since the last call.
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// let model = Store::create(dir.join("model.smap"))?;
    /// model.save("embed", &[[1f32, 2.], [3., 4.]])?;
    /// model.save_view("head", &model.load("embed")?.t()?)?;
    ///
    /// let other = Store::create(dir.join("other.smap"))?;
    /// other.write(|txn| {
    ///     let names = [("embed", "first.embed"), ("head", "first.head")];
    ///     txn.copy_from(&model.snapshot(), &names, |_| ()).map(drop)
    /// })?;
    /// assert_eq!(other.load("first.head")?.read::<f32>()?, [1., 3., 2., 4.]);
    /// assert!(other.load("first.head")?.shares_storage(&other.load("first.embed")?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameExists`, unless [`OnExisting::Replace`] was chosen; `NameNotFound`; `InvalidArgument` for an invalid new name;
    /// `Corrupt`, `Busy`, `Interrupted`, `NotAllowed`, `ExternalChanged`, `Io`, `ReadOnly` and `Stale`, as for
    /// [`Snapshot::copy_to`]. After an error of one of these kinds the transaction can only be dropped.
    pub fn copy_from(
        &mut self,
        source: &Snapshot,
        names: &[(&str, &str)],
        mut progress: impl FnMut(u64),
    ) -> Result<Copied> {
        self.check_writable("copy_from")?;
        let on_existing = self.on_existing_or(OnExisting::Refuse);
        names.iter().try_for_each(|(_, new)| self.draft.check_new("copy_from", new, on_existing))?;
        let original = source.original()?;
        let olds: Vec<&str> = names.iter().map(|(old, _)| *old).collect();
        let tensors = original.tensors(&olds)?;
        let target = (&self.loader.store, &mut self.staged);
        let staged = original.stage_tensors(target, tensors, &mut progress);
        let from = original.store.paths.root().display();
        let staged = self.record_failure(staged.context(format!("copy from {from}")))?;
        for (old, new) in names {
            let Some(record) = staged.tensors.get(*old) else { continue };
            let put = Change::Put { action: "copy_from", name: (*new).to_owned(), record: record.clone() };
            self.draft.apply(put, on_existing)?;
            let attributes = source.attributes(old);
            for key in self.attributes(new).into_keys().filter(|key| !attributes.contains_key(key)) {
                self.remove_attribute(new, &key)?;
            }
            for (key, value) in attributes {
                self.set_attribute(new, &key, &value)?;
            }
        }
        Ok(staged.copied)
    }
}
