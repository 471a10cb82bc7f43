use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::DType;

use super::loader::Loader;
use super::options::StoreOptions;
use super::snapshot::{Snapshot, StorageKind};
use super::transaction::Transaction;
use crate::commit::{self, Collected, Generation, History};
use crate::disk::Disk;
use crate::error::Result;
use crate::storage::MapPermit;
use crate::tensor::{Source, Tensor};

/// A store on disk: a directory of storages and a table of named tensors.
///
/// A handle is on one generation: what it reads was all true at once. Its own commits move it on;
/// [`refresh`](Self::refresh) moves it to what other processes have committed, and
/// [`wait_for_change`](Self::wait_for_change) waits until there is such a commit.
///
/// Handles, transactions, snapshots and tensors are `Send` and `Sync`: threads share them, or clone them at no cost. A
/// guard stays on its thread.
///
/// # Forks
/// A forked child shares the open files of its parent, and with them its locks. So what it inherits is refused there, with
/// `Forked`, by every method of a store, a transaction and a snapshot that returns a [`Result`], and by guards; and it
/// harms nothing when it is dropped; [`attributes`](Self::attributes) are empty. Three things are allowed: to read a tensor
/// that was loaded before, to go on with a [`LiveTensor`](crate::LiveTensor), and to open the store again, for a handle of
/// its own. The last takes locks within the process, and so wants a parent that had no other thread at work in this
/// library; after an `exec` there is no such limit.
///
/// Every method that changes the store is one commit, whole or not at all, and durable when it returns, with
/// [`Durability::Full`](crate::Durability::Full). For several changes in one commit there is [`begin`](Self::begin).
///
/// # Errors
/// All share `Forked`. All that write share these kinds of [`ErrorKind`](crate::ErrorKind): `Busy` when other writers hold
/// the store for longer than the timeout, `Conflict` when it changed what this commit stands on, `LimitExceeded` for what is past a
/// limit of the format, `Replaced` when a file or directory of the store is gone or another took its place, `Corrupt`, `ReadOnly`, `Io` (a full
/// disk among them), `CommitUnknown` and `Poisoned` when a sync failed. Except after `CommitUnknown` the store is as it
/// was.
#[derive(Clone)]
pub struct Store {
    pub(super) loader: Arc<Loader>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?}, generation {})", self.path(), self.generation())
    }
}

impl Store {
    pub(super) fn new(disk: Arc<dyn Disk>, history: History, permit: Option<MapPermit>) -> Self {
        Store { loader: Arc::new(Loader::new(disk, history, permit)) }
    }

    /// Creates an empty store at a path where nothing is, or in an empty directory, which keeps its owner and permissions.
    /// Durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists), `Io`, `ReadOnly`; those of [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().create(path)
    }

    /// Opens a store. Elements are copied out by positional reads, so nothing that another process does to the files
    /// can be undefined behaviour here; to borrow elements without a copy use [`open_mapped`](Self::open_mapped).
    ///
    /// The handle stays in the directory that it opened when that is renamed, or when a link to it is pointed elsewhere. Messages
    /// keep the path that it was opened by.
    ///
    /// # Errors
    /// By [`ErrorKind`](crate::ErrorKind): `NotFound`, `NotAStore`, `UnsupportedVersion`, `Corrupt` when a part of the
    /// store is missing or the newest generation does not validate, `Busy` when commits replace it faster than it can be
    /// read, `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open(path)
    }

    /// Opens a store whose elements can be borrowed: [`Tensor::as_slice`], [`Tensor::as_array`], and those of mutable
    /// tensors through the guards of [`Tensor::lock_shared`] and [`Tensor::lock_exclusive`]; or read and written beside
    /// everybody else, by [`Tensor::as_live`]. A sealed storage is mapped into memory once a process, read-only, and an
    /// external file, however many storages are ranges of it; a mutable
    /// one when a guard first lends it, once a handle for reading and once for writing; a live one when it is first asked
    /// for, once a process. All processes share the pages.
    ///
    /// # Safety
    /// While the store's files, and the external files that it opens, are mapped, nobody but this library writes, truncates
    /// or replaces them, in any process. And no file of it that is a sealed or a mutable storage, and no external file, has a
    /// second name (a hard link) under which it is a file of another kind in a store: only a store that lies has, and within
    /// a process that is refused of storages; but what another process writes under the other name, it writes under another
    /// lock. External files are opened only when [allowed](crate::StoreOptions::external); by default none is.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); `NetworkFileSystem` on one of those, unless
    /// [allowed](crate::StoreOptions::allow_network_mapping).
    #[expect(
        unsafe_code,
        reason = "states the contract of mapping; the mapping itself is in storage/mapping.rs"
    )]
    pub unsafe fn open_mapped(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open_with(path.as_ref(), Some(MapPermit::by_contract_of_the_caller()))
    }

    /// The path by which the store was opened. The handle holds the store's directory, which may have been renamed since.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.loader.history.paths.root()
    }

    /// The store's identity, as a hyphenated UUID.
    #[must_use]
    pub fn uuid(&self) -> String {
        uuid::Uuid::from_bytes(self.loader.history.uuid).to_string()
    }

    /// The number of the generation that this handle is on.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.loader.history.number()
    }

    /// Moves to the newest generation; gives whether that was another.
    ///
    /// # Errors
    /// `Corrupt` when the newest generation does not validate, `UnsupportedVersion`, `Busy` as in [`open`](Self::open),
    /// `Replaced` when the store was deleted or an older copy restored into it, `Io`. The handle stays where it was.
    pub fn refresh(&self) -> Result<bool> {
        Ok(self.loader.history.install(self.loader.history.newest()?))
    }

    /// The generation that this handle is on, for as long as the snapshot lives.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.loader), self.loader.history.current())
    }

    /// All names, ascending.
    ///
    /// # Errors
    /// Those of [`Snapshot::names`].
    pub fn names(&self) -> Result<Vec<String>> {
        self.snapshot().names()
    }

    /// Whether there is a tensor of this name.
    ///
    /// # Errors
    /// Those of [`Snapshot::contains`].
    pub fn contains(&self, name: &str) -> Result<bool> {
        self.snapshot().contains(name)
    }

    /// The tensor of a name: its header, and its storage opened. No element is read.
    ///
    /// # Errors
    /// Those of [`Snapshot::load`].
    pub fn load(&self, name: &str) -> Result<Tensor> {
        self.snapshot().load(name)
    }

    /// What was written on the store: text by key.
    #[must_use]
    pub fn attributes(&self) -> BTreeMap<String, String> {
        self.snapshot().attributes().clone()
    }

    /// Begins a transaction: many changes, one commit. It starts from the newest generation; nothing is locked.
    ///
    /// # Errors
    /// `Poisoned`; `LimitExceeded` when the store has no more storage ids; those of [`refresh`](Self::refresh).
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.loader.history.check_process()?;
        self.loader.history.check_poison()?;
        let newest = self.loader.history.newest()?;
        commit::check_ids_left(&newest)?;
        Ok(Transaction::new(&self.loader, newest))
    }

    /// Copies the elements of a tensor or an array into a sealed storage, in row-major order, and gives them a name. A
    /// tensor that had the name loses it.
    ///
    /// # Errors
    /// See [`Store`]; `InvalidArgument` for a name that is empty, too long or has a NUL.
    pub fn save(&self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        self.write(|txn| txn.save(name, source))
    }

    /// As [`save`](Self::save), into a storage of this kind: `Sealed`, or `Mutable`, whose elements can then be changed
    /// in place under a lock, or `Live`, whose elements everybody changes at the same time.
    ///
    /// # Errors
    /// Those of [`save`](Self::save); `InvalidArgument` for another kind, and for a dtype that cannot be
    /// [live](crate::LiveElement).
    pub fn save_as(&self, name: &str, source: &(impl Source + ?Sized), kind: StorageKind) -> Result<()> {
        self.write(|txn| txn.save_as(name, source, kind))
    }

    /// Creates a tensor of zeros under a name, with a mutable or live storage of its own, to be filled in place: large
    /// data need not exist in memory first. A tensor of the same name is replaced.
    ///
    /// The zeros and the name are durable when it returns, with [`Durability::Full`](crate::Durability::Full): with
    /// `Process` no later flush makes the name so. The disk has room for all elements. What is written in
    /// place later is not a commit: after a power cut any mix of old and new can be there, down to the last flush; and a
    /// [`Snapshot`] isolates names, headers and sealed elements, not these.
    ///
    /// ```
    /// use stridemap::{DType, StorageKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let counts = store.create_tensor("counts", DType::I64, &[1000, 1000], StorageKind::Mutable)?;
    /// assert_eq!(counts.get::<i64>([999, 999])?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]; `Io` when the disk is full; `LimitExceeded` for too large a size; `InvalidArgument` for the name,
    /// for a kind other than `Mutable` and `Live`, as a sealed tensor can only be [saved](Self::save), and for a dtype that
    /// cannot be [live](crate::LiveElement).
    pub fn create_tensor(
        &self,
        name: &str,
        dtype: DType,
        size: &[usize],
        kind: StorageKind,
    ) -> Result<Tensor> {
        self.commit_created(name, |txn| txn.create_tensor(name, dtype, size, kind))
    }

    /// Commits a tensor that `create` makes, and returns it as it was committed.
    pub(super) fn commit_created(
        &self,
        name: &str,
        create: impl FnOnce(&mut Transaction<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (_, generation) = self.publish(create)?;
        // Not from where the handle is now: another commit may have taken the name since.
        Snapshot::new(Arc::clone(&self.loader), generation).load(name)
    }

    /// Gives a view of a tensor of this store a name: a header of some fifty bytes, no element is copied. A tensor that
    /// had the name loses it.
    ///
    /// # Errors
    /// See [`Store`]; `ForeignStorage` for a tensor that does not stand on a storage of this store:
    /// [`save`](Self::save) copies its elements.
    pub fn save_view(&self, name: &str, tensor: &Tensor) -> Result<()> {
        self.write(|txn| txn.save_view(name, tensor))
    }

    /// Takes a name away. The storage goes when no name, snapshot or loaded tensor needs it.
    ///
    /// # Errors
    /// See [`Store`]; `NameNotFound`.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.write(|txn| txn.remove(name))
    }

    /// Gives a tensor another name.
    ///
    /// # Errors
    /// See [`Store`]; `NameNotFound`; `NameExists` when a tensor has the new name, which
    /// [`Transaction::on_existing`] can have replaced; `InvalidArgument` for the new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.write(|txn| txn.rename(from, to))
    }

    /// Gives a tensor a second name: its header, as it is. No element is copied.
    ///
    /// # Errors
    /// Those of [`rename`](Self::rename).
    pub fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.write(|txn| txn.copy(from, to))
    }

    /// Writes text on the store, under a key, in place of what was there. All attributes together are at most 1 MiB.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.set_attribute("license", "MIT")?;
    /// assert_eq!(store.attributes()["license"], "MIT");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]; `InvalidArgument` for a key that is empty, too long or has a NUL.
    pub fn set_attribute(&self, key: &str, value: &str) -> Result<()> {
        self.write(|txn| txn.set_attribute(key, value))
    }

    /// Removes the text under a key, if there is any.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.set_attribute("license", "MIT")?;
    /// store.remove_attribute("license")?;
    /// assert!(store.attributes().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn remove_attribute(&self, key: &str) -> Result<()> {
        self.write(|txn| {
            txn.remove_attribute(key);
            Ok(())
        })
    }

    /// Runs `change` on a new transaction and commits it. When `change` fails, nothing of the store has changed. Returns
    /// what `change` returned.
    ///
    /// It runs once. When another writer commits meanwhile, the changes that it made are repeated on what that one left, as
    /// for every [`Transaction`].
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let count = store.write(|txn| {
    ///     txn.save("weight", &[[1f32, 2.], [3., 4.]])?;
    ///     txn.save("bias", &[0f32, 0.])?;
    ///     txn.set_attribute("license", "MIT")?;
    ///     Ok(txn.names()?.len())
    /// })?;
    /// assert_eq!(count, 2);
    /// assert_eq!(store.generation(), 2); // one commit after the empty store
    ///
    /// let failed = store.write(|txn| {
    ///     txn.remove("weight")?;
    ///     txn.remove("no such name")
    /// });
    /// assert!(failed.is_err() && store.contains("weight")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `change`, of [`begin`](Self::begin) and of [`Transaction::commit`].
    pub fn write<R>(&self, change: impl FnOnce(&mut Transaction<'_>) -> Result<R>) -> Result<R> {
        Ok(self.publish(change)?.0)
    }

    fn publish<R>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<R>,
    ) -> Result<(R, Arc<Generation>)> {
        let mut txn = self.begin()?;
        let value = change(&mut txn)?;
        Ok((value, txn.publish()?))
    }

    /// Deletes every file that no generation needs that is the newest or held by a snapshot, in any process.
    ///
    /// Commits do so for what they leave behind themselves; this finds what a power cut or a killed writer left too. The
    /// handle moves to the newest generation, so that it does not hold an older one back.
    ///
    /// # Errors
    /// See [`Store`]. What had been deleted until then stays so.
    pub fn gc(&self) -> Result<Collected> {
        self.loader.history.check_process()?;
        commit::collect_all(&self.loader.history)
    }
}
