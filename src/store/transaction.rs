//! Several changes in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use stridemap_format::{DType, StorageRecord};

use super::loader::Loader;
use super::write_elements::{in_place_kind, row_major, write_elements};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{self, Change, Draft, Generation, OnExisting, WriterLock, unsynced};
use crate::layout;
use crate::storage::{
    ExternalFile, Grown, Growth, GrowthLock, OWN_STORAGE_BYTES, Stages, StorageKind, StorageWriter,
};
use crate::tensor::{Source, Tensor};

/// Several changes that are committed together or not at all.
///
/// Elements are written to disk as they are saved; [`commit`](Self::commit) makes the names visible. A transaction
/// that is dropped without a commit changes nothing.
///
/// # Other writers
/// If another writer commits first, the changes are repeated on that generation: the last save of a name wins, and
/// removing or renaming a name that no longer exists fails with `Conflict`.
///
/// The commit also fails with `Conflict`, and changes nothing, if another writer has changed what was read through this
/// transaction. Then begin a new transaction, and read again:
///
/// ```
/// use stridemap::{ErrorKind, Result, Store};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// store.save("count", &0i64)?;
/// let increment = || -> Result<u64> {
///     let mut txn = store.begin()?;
///     let count: i64 = txn.load("count")?.item()?;
///     txn.save("count", &(count + 1))?;
///     txn.commit()
/// };
/// while increment().is_err_and(|e| e.kind() == ErrorKind::Conflict) {}
/// # assert_eq!(store.load("count")?.item::<i64>()?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is compared is what the methods returned: [`load`](Self::load) and [`iter_tensors`](Self::iter_tensors) read
/// headers, [`contains`](Self::contains) and [`names`](Self::names) read which names exist, and
/// [`attributes`](Self::attributes) reads the attributes of one scope, or of all scopes if the transaction has renamed
/// or copied a tensor before. A name that does not exist counts as well. A tensor that the transaction itself has saved
/// or removed before does not.
/// - A tensor counts as changed if its name was saved again, renamed, removed or appended to, or if a compaction moved
///   its elements.
/// - Changes in place of mutable and live tensors are not commits, and are not noticed. Nor are reads through a
///   [`Store`](crate::Store) or a [`Snapshot`](crate::Snapshot).
/// - A transaction without changes has nothing to commit, and never conflicts: all it reads is of one generation.
///
/// [`ignore_reads`](Self::ignore_reads) turns this check off.
/// [`begin_exclusive`](crate::Store::begin_exclusive) waits for other writers instead: no other writer commits until
/// the transaction ends, so nothing it reads changes.
#[must_use = "without a commit, a transaction changes nothing"]
pub struct Transaction<'a> {
    pub(super) loader: &'a Loader,
    pub(super) id: u64,
    pub(super) draft: Draft,
    pub(super) staged: Stages,
    /// The storages that rows were appended to, by id, under their growth locks.
    pub(super) growths: BTreeMap<u64, Growth>,
    /// The growth locks of storages from which appends copy tensors, by id.
    pub(super) copied: BTreeMap<u64, GrowthLock>,
    /// The staged storages that appends have copied tensors to.
    pub(super) append_copies: BTreeSet<u64>,
    /// The last file that a range was adopted from, and the path that is recorded for it.
    pub(super) adopted: Option<(String, Arc<ExternalFile>)>,
    /// The failure that prevents a commit: a storage may contain half-written elements among those of other tensors.
    pub(super) failure: Option<Error>,
    /// The writers' lock, if this transaction has held it from the beginning. Such a transaction must not wait for the
    /// growth lock of a storage: its holder may be waiting for the writers' lock.
    pub(super) lock: Option<WriterLock>,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, generation) = (self.loader.store.paths.root(), self.generation());
        let change_count = self.draft.changes.requested.len();
        write!(f, "Transaction({path:?}, on generation {generation}, changes {change_count})")
    }
}

impl<'a> Transaction<'a> {
    pub(super) fn new(loader: &'a Loader, generation: Arc<Generation>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Transaction {
            loader,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            draft: Draft::new(generation),
            staged: Stages::default(),
            growths: BTreeMap::new(),
            copied: BTreeMap::new(),
            append_copies: BTreeSet::new(),
            adopted: None,
            failure: None,
            lock: None,
        }
    }

    /// Begins a transaction under the writers' lock. Waits for the lock until the lock timeout has passed since `began`.
    pub(super) fn under_lock(loader: &'a Loader, began: Instant) -> Result<Self> {
        let store = &loader.store;
        store.check_process()?;
        store.check_poison()?;
        let lock = WriterLock::take(store, store.options.lock_wait, began)?;
        let (newest, _) = store.newest_listed(&lock)?;
        Ok(Transaction { lock: Some(lock), ..Transaction::new(loader, newest) })
    }

    /// Lets other changes by this thread fail at once, instead of waiting for the lock that this transaction holds.
    pub(super) fn held_by_this_thread(mut self) -> Self {
        self.lock = self.lock.map(WriterLock::held_by_this_thread);
        self
    }

    /// Returns the number of the generation that the transaction began on: the newest one then.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # let store = Store::create(&path)?;
    /// Store::open(&path)?.save("x", &1i32)?;
    /// assert_eq!((store.generation(), store.begin()?.generation()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.base().number()
    }

    /// Lets the commit succeed even if another writer has changed what this transaction has read, or will read.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let mut txn = store.begin()?;
    /// txn.ignore_reads();
    /// println!("x is {}", txn.load("x")?.item::<i32>()?); // the commit does not depend on it
    /// txn.save("y", &2i32)?;
    /// store.save("x", &3i32)?;
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ignore_reads(&mut self) {
        self.draft.ignore_reads();
    }

    /// Sets whether later changes may replace an existing tensor. By default, saving replaces it; creating,
    /// renaming and copying refuse.
    ///
    /// A refused change fails with [`ErrorKind::NameExists`]: at once if the name exists, and at
    /// [`commit`](Self::commit) if another writer committed it first. So if several writers save the same new name at
    /// the same time, one succeeds.
    ///
    /// ```
    /// use stridemap::{ErrorKind, OnExisting, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let save_new = |value: i32| {
    ///     store.write(|txn| {
    ///         txn.on_existing(OnExisting::Refuse);
    ///         txn.save("x", &value)
    ///     })
    /// };
    /// save_new(1)?;
    /// assert_eq!(save_new(2).unwrap_err().kind(), ErrorKind::NameExists);
    ///
    /// store.save("y", &3)?;
    /// assert_eq!(store.rename("y", "x").unwrap_err().kind(), ErrorKind::NameExists);
    /// store.write(|txn| {
    ///     txn.on_existing(OnExisting::Replace);
    ///     txn.rename("y", "x")
    /// })?;
    /// assert_eq!(store.load("x")?.item::<i32>()?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_existing(&mut self, on_existing: OnExisting) {
        self.draft.changes.on_existing = Some(on_existing);
    }

    /// Copies elements into a sealed storage, under a name. Saving under an existing name replaces that tensor; its
    /// other names keep the old elements, as in [`Store::save`](crate::Store::save).
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("a", &[1f32, 2.])?;
    /// txn.save("b", &3f32)?;
    /// txn.commit()?;
    /// assert_eq!(store.load("a")?.storage_id(), store.load("b")?.storage_id()); // small ones share a file
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid name; `NameExists` after [`OnExisting::Refuse`]; `Io`, for example for a full
    /// disk; `SizeMismatch` if the source writes more or fewer bytes than its size says; `LimitExceeded` for more
    /// than a storage can hold; `ReadOnly`; those of the source. After a failure to write, the transaction can only
    /// be dropped.
    pub fn save(&mut self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        self.save_as(name, source, StorageKind::Sealed)
    }

    /// Like [`save`](Self::save), into a storage of the given kind: `Sealed`, or a `Mutable` or `Live` storage of its
    /// own.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save_as("counter", &0i64, StorageKind::Mutable)?;
    /// txn.commit()?;
    /// store.load("counter")?.lock_exclusive()?.add_(1)?;
    /// assert_eq!(store.load("counter")?.item::<i64>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`, `SizeMismatch`, `LimitExceeded`, `NameExists`, `ReadOnly` and `Io`, as for
    /// [`save`](Self::save); `InvalidArgument` for any other kind, and for a dtype that cannot be live.
    pub fn save_as(&mut self, name: &str, source: &(impl Source + ?Sized), kind: StorageKind) -> Result<()> {
        let op = format_args!("save {name:?}");
        let in_place = in_place_kind(op, kind, source.dtype())?;
        let header = row_major(source).context(op)?;
        let on_existing = self.on_existing_or(OnExisting::Replace);
        self.put(("save", on_existing), name, header, |txn, size_bytes| {
            let write =
                |writer: &mut StorageWriter| write_elements(source, size_bytes, |bytes| writer.write(bytes));
            match in_place {
                None if size_bytes < OWN_STORAGE_BYTES => txn.stage_small(write),
                kind => txn.stage_own(kind, size_bytes, write),
            }
        })
    }

    /// Creates a tensor of zeros with a mutable or live storage of its own, and returns it. The zeros are not held in
    /// memory. Views of the tensor can be saved in this transaction; to fill it in place, commit, and load it.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     let counts = txn.create_tensor("counts", DType::I64, &[3, 2], StorageKind::Mutable)?;
    ///     txn.save_view("first", &counts.select(0, 0)?)
    /// })?;
    /// store.load("first")?.lock_exclusive()?.fill_(7)?;
    /// assert_eq!(store.load("counts")?.read::<i64>()?, [7, 7, 0, 0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`, `SizeMismatch`, `LimitExceeded`, `NameExists`, `ReadOnly` and `Io`, as for
    /// [`save`](Self::save); `NameExists`, unless [`OnExisting::Replace`] was chosen; `LimitExceeded` if the size is
    /// too large; `InvalidArgument` for a kind other than `Mutable` and `Live`, and for a dtype that cannot be live.
    pub fn create_tensor(
        &mut self,
        name: &str,
        dtype: DType,
        size: &[usize],
        kind: StorageKind,
    ) -> Result<Tensor> {
        let op = format_args!("create_tensor {name:?}");
        let Some(kind) = in_place_kind(op, kind, dtype)? else {
            let message = format!(
                "{op}: a sealed storage cannot be filled later; create it as Mutable or Live, or save the elements"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let header = layout::contiguous(dtype, size).context(op)?;
        let on_existing = self.on_existing_or(OnExisting::Refuse);
        self.put(("create_tensor", on_existing), name, header, |txn, size_bytes| {
            txn.stage_own(Some(kind), size_bytes, |writer| writer.zeros_up_to(size_bytes))
        })?;
        self.load(name)
    }

    /// Removes a name.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let mut txn = store.begin()?;
    /// txn.remove("x")?;
    /// assert!(!txn.contains("x")? && store.contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.apply(Change::Remove { name: name.to_owned() })
    }

    /// Renames a tensor. Renaming it to its own name changes nothing.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let mut txn = store.begin()?;
    /// txn.rename("x", "old")?;
    /// txn.save("x", &2i32)?;
    /// txn.commit()?;
    /// assert_eq!(store.load("old")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`; `NameExists`, unless [`OnExisting::Replace`] was chosen; `InvalidArgument` for an invalid new
    /// name.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        if from == to {
            self.loader.store.check_process()?;
            return self.draft.existing("rename", from).map(drop);
        }
        self.apply(Change::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    /// Gives a tensor a second name by copying its header. No element is copied.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("embedding", &[1f32, 2.])?;
    /// txn.copy("embedding", "head")?;
    /// txn.commit()?;
    /// assert!(store.load("head")?.shares_storage(&store.load("embedding")?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`; `NameExists`, unless [`OnExisting::Replace`] was chosen; `InvalidArgument` for an invalid new
    /// name.
    pub fn copy(&mut self, from: &str, to: &str) -> Result<()> {
        self.apply(Change::Copy { from: from.to_owned(), to: to.to_owned() })
    }

    /// Returns what a change does to an existing tensor: what was [chosen](Self::on_existing), or its default.
    pub(super) fn on_existing_or(&self, default: OnExisting) -> OnExisting {
        self.draft.changes.on_existing.unwrap_or(default)
    }

    /// Repeats the changes on the newest generation.
    pub(super) fn rebase(&mut self) -> Result<()> {
        if self.lock.is_some() {
            return Ok(()); // no other writer has committed
        }
        let newest = self.loader.store.newest_for_certain()?;
        if newest.number() != self.generation() {
            self.draft.rebase(newest)?;
        }
        Ok(())
    }

    /// Returns the generation that the changes apply to until the commit.
    pub(super) fn base(&self) -> &Arc<Generation> {
        self.draft.generation()
    }

    pub(super) fn apply(&mut self, change: Change) -> Result<()> {
        self.loader.store.check_process()?;
        let default = match change {
            Change::Rename { .. } | Change::Copy { .. } | Change::Tag { .. } => OnExisting::Refuse,
            _ => OnExisting::Replace,
        };
        let on_existing = self.on_existing_or(default);
        self.draft.apply(change, on_existing)
    }

    /// Like [`check_failure`](Self::check_failure), and also refuses if a sync of this handle has failed.
    pub(super) fn check_writable(&self, action: impl fmt::Display) -> Result<()> {
        self.check_failure(action)?;
        self.loader.store.check_poison()
    }

    /// Refuses to continue in a forked child, or after a change that failed halfway.
    pub(super) fn check_failure(&self, action: impl fmt::Display) -> Result<()> {
        self.loader.store.check_process()?;
        match &self.failure {
            None => Ok(()),
            Some(first) => {
                let message = format!(
                    "{action}: an earlier change of this transaction failed; begin a new one; the first failure was: \
                     {first}"
                );
                Err(Error::new(first.kind(), message).caused_by(first))
            }
        }
    }

    /// Publishes all changes as one generation, and returns its number. With
    /// [`Durability::Full`](crate::Durability::Full), it and all earlier ones are durable when this returns, those of
    /// writers that do not sync too. Without changes no generation is published.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("x", &1i32)?;
    /// assert_eq!(txn.commit()?, store.generation());
    /// assert_eq!(store.begin()?.commit()?, store.generation()); // nothing to commit
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](crate::Store#errors).
    pub fn commit(self) -> Result<u64> {
        Ok(self.publish()?.number())
    }

    /// Like [`commit`](Self::commit), but returns the generation.
    pub(super) fn publish(mut self) -> Result<Arc<Generation>> {
        let store = &self.loader.store;
        self.check_writable("commit")?;
        if self.draft.changes.is_empty() {
            let generation = Arc::clone(self.draft.generation());
            if store.is_durable() && (!generation.is_synced() || unsynced::is_marked(store)?) {
                let lock = self.lock.map_or_else(|| store.lock_writers(), Ok);
                unsynced::settle_newest(store, &store.record_failure(lock)?)?;
            }
            return Ok(generation);
        }
        let staged = self.staged.finish(store.is_durable());
        // After a failed sync nothing else is begun to be synced, so return before the growths are.
        let staged = store.record_failure(staged)?;
        let finish = |growth: &mut Growth| growth.finish(&store.paths, store.is_durable()).context("append");
        let grown: Result<Vec<Grown>> = self.growths.values_mut().map(finish).collect();
        let grown = store.record_failure(grown)?;
        let grown_records: Vec<StorageRecord> = grown.iter().map(|grown| grown.to.clone()).collect();
        let lock = self.lock.map_or_else(|| store.lock_writers(), Ok);
        let lock = store.record_failure(lock)?;
        let (generation, _) = generation::publish(store, self.draft, staged, grown, &lock)?;
        // Released before the writers' lock, whose next holder may append to the same storage.
        for (growth, to) in self.growths.into_values().zip(grown_records) {
            growth.release(&to, &self.loader.tails);
        }
        Ok(generation)
    }
}
