//! A handle to a store: opening, reading and moving between generations.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::loader::{CheckedStorages, Loader};
use super::options::StoreOptions;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::disk::Disk;
use crate::error::{ErrorKind, Result};
use crate::generation::{self, OpenStore};
use crate::storage::{KnownTails, MapPermit};
use crate::tensor::Tensor;

/// A store on disk: a directory of storages and a table of named tensors.
///
/// A handle is on one generation, so everything it reads is consistent. Its own commits move it on;
/// [`refresh`](Self::refresh) moves it to the newest commit of any process, and
/// [`wait_for_change`](Self::wait_for_change) waits until there is a new one.
///
/// Handles, transactions, snapshots and tensors are `Send` and `Sync`. Threads can share or clone them; a clone
/// copies no data. A guard stays on its thread.
///
/// All clones of a handle are on the same generation: a commit or a refresh by one moves all of them. A service that
/// answers requests on several threads takes a snapshot for each request, with [`latest`](Self::latest), so that one
/// request sees one generation.
///
/// Every method that changes names, elements or attributes is one atomic commit, which is durable when it returns, with
/// [`Durability::Full`](crate::Durability::Full). [`write`](Self::write) makes several changes in one commit.
/// [`compact`](Self::compact) and [`materialize`](Self::materialize) may make several commits.
///
/// # Disk space
/// A handle keeps the files of its generation on disk, as a [`Snapshot`] does, in any process. So an idle handle on an
/// old generation keeps the space of everything removed or replaced since. Drop it, or call `refresh` now and then. A
/// [tag](Self::tag) keeps the files of its generation, too, until it is [removed](Self::untag). A loaded tensor keeps the
/// space of its own storage until it is dropped. [`disk_usage`](Self::disk_usage) shows which
/// space is kept, and by which processes; [`gc`](Self::gc) deletes what is no longer kept, as does the next commit.
///
/// # Forks
/// A forked child shares the open files of its parent, and with them its locks. If the parent is killed, a lock
/// that it held at the fork is released only when the child ends or calls `exec`. Guards, and every method of a
/// store, a transaction or a snapshot that returns a [`Result`], fail with `Stale` on inherited values.
/// [Attributes](Self::attributes) are empty there. Dropping inherited values is harmless.
///
/// Three things are allowed in the child: reading a tensor that was loaded before, unless it is mutable, using a
/// [`LiveTensor`](crate::LiveTensor), and opening the store again to get a new handle. Opening takes locks within the
/// process, so it is allowed only if no other thread of the parent was using this library at the fork. After an `exec`
/// there is no such limit. Reads of an inherited mutable tensor need its lock, and fail with `Stale`.
///
/// # Errors
/// All methods can return `Stale`. All that write share these kinds of [`ErrorKind`](crate::ErrorKind): `Busy` if
/// other writers hold the store for longer than the timeout; `Conflict` if a commit changed what this one depends on;
/// `LimitExceeded` beyond a limit of the format; `Stale` if a file or directory of the store was deleted or
/// replaced; `Corrupt`; `ReadOnly`; `Io`, for example for a full disk; `CommitUnknown` and `Poisoned` if a sync
/// failed. Except after `CommitUnknown` the store is unchanged.
pub struct Store {
    pub(super) loader: Arc<Loader>,
}

/// A clone is on the same generation as the original, and moves with it. To see a generation that does not move, take a
/// [`snapshot`](Store::snapshot); for a second handle that moves by itself, [`open`](Store::open) the store again.
impl Clone for Store {
    fn clone(&self) -> Self {
        Store { loader: Arc::clone(&self.loader) }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?}, generation {})", self.path(), self.generation())
    }
}

impl Store {
    pub(super) fn new(disk: Arc<dyn Disk>, store: OpenStore, permit: Option<MapPermit>) -> Self {
        Store {
            loader: Arc::new(Loader {
                disk,
                store,
                permit,
                tails: KnownTails::default(),
                checked: CheckedStorages::default(),
            }),
        }
    }

    /// Creates an empty store at a path that does not exist, or in an empty directory, which keeps its owner and
    /// permissions. The store is durable when this returns.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("model.smap"))?;
    /// assert!(store.names()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists), `ReadOnly`, `Io`, `CommitUnknown`, `Corrupt` and
    /// `Busy`.
    pub fn create(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().create(path)
    }

    /// Opens a store, or creates an empty one if there is nothing at the path or an empty directory. If several processes
    /// create the store at once, all open the same one.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.smap");
    /// Store::open_or_create(&path)?.save("x", &1i32)?;
    /// assert_eq!(Store::open_or_create(&path)?.names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotAStore`, `UnsupportedVersion`, `Corrupt`, `Busy`, `ReadOnly`, `CommitUnknown` and `Io`, as for
    /// [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open_or_create(path)
    }

    /// Opens a store. Elements are copied out by positional reads, so nothing that another process does to the files
    /// can cause undefined behaviour. To borrow elements without a copy, use [`open_mapped`](Self::open_mapped).
    ///
    /// A handle keeps the files of sealed storages open for the next load, as `open_mapped` keeps mappings: at most 256, and a
    /// quarter of the files that the process may open, and none if this library lacks one.
    ///
    /// The handle stays on the directory that it opened, even if that is renamed, or if a link to it is changed.
    /// Error messages show the path by which it was opened.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// # store.save("x", &[1i32, 2])?;
    /// let path = dir.path().join("x.smap");
    /// assert_eq!(Store::open(&path)?.load("x")?.read::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// By [`ErrorKind`](crate::ErrorKind): `NotFound`; `NotAStore`; `UnsupportedVersion`; `Corrupt` if a part of the
    /// store is missing or the newest generation is invalid; `Busy` if commits replace the newest generation faster
    /// than it can be read; `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open(path)
    }

    /// Opens a store whose elements can be borrowed: by [`Tensor::as_slice`], [`Tensor::typed`] and an
    /// `ArrayView` of `ndarray`. Elements of mutable tensors are borrowed through the guards of [`Tensor::lock_shared`]
    /// and [`Tensor::lock_exclusive`]; those of live tensors are read and written through [`Tensor::as_live`].
    ///
    /// All processes share the pages. A sealed storage or an external file is mapped read-only, once per process,
    /// when a tensor on it is first loaded. A live storage is mapped once per process, at the first `as_live`. A
    /// mutable storage is mapped when a guard first borrows its elements, once per handle for reading and once for
    /// writing. A mapping lasts at least until the last tensor, guard or live tensor on it is dropped: it outlives the
    /// store, the snapshot and the name.
    ///
    /// A handle keeps sealed storages mapped for the next load. Loading, using and dropping a tensor in a loop
    /// therefore makes no system call and no page fault. A kept mapping that no tensor uses is released when
    /// - the handle moves to a generation without the storage;
    /// - the handle moves to a newer generation twice without a load from the storage;
    /// - the handle, its clones and its snapshots are dropped; or
    /// - the process has 4,096 kept mappings, and loads from one more storage.
    ///
    /// A kept mapping does not block a guard, an append, a compaction or a collection, and it keeps no file on disk
    /// that the handle's generation does not need.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// # store.save("x", &[1i32, 2])?;
    /// let path = dir.path().join("x.smap");
    /// // SAFETY: only stridemap writes this store.
    /// let store = unsafe { Store::open_mapped(&path)? };
    /// let x = store.load("x")?;
    /// assert_eq!(x.as_slice::<i32>()?, [1, 2]); // the pages of the file
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// While the store's files, and the external files that it opens, are mapped, nothing but this library may write,
    /// truncate or replace them, in any process.
    ///
    /// In addition, no sealed or mutable storage of the store, and no external file, may have a second name (a hard
    /// link) under which a store uses it as a file of a different kind. Only a malformed store has such names. Within
    /// one process, the library refuses such storages. It cannot detect another process that writes under the second
    /// name, because that process takes a different lock.
    ///
    /// External files are opened only if [allowed](crate::StoreOptions::external); by default none are.
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`, `UnsupportedVersion`, `Corrupt`, `Busy` and `Io`; `NotAllowed` on a network file
    /// system, unless [allowed](crate::StoreOptions::allow_network_mapping).
    #[expect(
        unsafe_code,
        reason = "states the contract of mapping; the mapping itself is in storage/map/mapping.rs"
    )]
    pub unsafe fn open_mapped(path: impl AsRef<Path>) -> Result<Store> {
        StoreOptions::new().open_with(path.as_ref(), Some(MapPermit::by_contract_of_the_caller()))
    }

    /// Returns the path by which the store was opened. The handle holds the directory itself, which may have been
    /// renamed since.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// assert_eq!(store.path(), dir.path().join("x.smap"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        self.loader.store.paths.root()
    }

    /// Returns the store's identity, as a hyphenated UUID.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// assert_eq!(Store::open(store.path())?.uuid(), store.uuid());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn uuid(&self) -> String {
        uuid::Uuid::from_bytes(self.loader.store.uuid).to_string()
    }

    /// Returns the number of the generation that this handle is on.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// assert_eq!(store.generation(), 1); // the empty store
    /// store.save("x", &1i32)?;
    /// assert_eq!(store.generation(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.loader.store.generation_number()
    }

    /// Moves to the newest generation, and returns whether that changed the generation. Files that only the old
    /// generation needed can then be deleted.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let other = Store::open(store.path())?;
    /// store.save("x", &1i32)?;
    /// assert!(!other.contains("x")?);
    /// assert!(other.refresh()?);
    /// assert!(other.contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if the newest generation is invalid; `UnsupportedVersion`; `Busy` as in [`open`](Self::open);
    /// `Stale` if the store was deleted or an older copy restored into it; `Io`. After an error the handle stays
    /// on its generation.
    pub fn refresh(&self) -> Result<bool> {
        Ok(self.loader.store.install(self.loader.store.newest()?))
    }

    /// Returns a snapshot of the generation that this handle is on. Its files stay on disk for as long as the
    /// snapshot lives.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let snapshot = store.snapshot();
    /// store.save("x", &2i32)?;
    /// assert_eq!(snapshot.load("x")?.item::<i32>()?, 1);
    /// assert_eq!(store.load("x")?.item::<i32>()?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.loader), self.loader.store.current())
    }

    /// Moves to the newest generation, like [`refresh`](Self::refresh), and returns a snapshot of it. A service takes one
    /// for each request.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let trainer = Store::open(store.path())?;
    /// trainer.save("x", &1i32)?;
    /// assert_eq!(store.latest()?.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt`, `UnsupportedVersion`, `Busy`, `Stale` and `Io`, as for [`refresh`](Self::refresh).
    pub fn latest(&self) -> Result<Snapshot> {
        let newest = self.loader.store.newest()?;
        self.loader.store.install(Arc::clone(&newest));
        Ok(Snapshot::new(Arc::clone(&self.loader), newest))
    }

    /// Returns all names, ascending.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("b", &1i32)?;
    /// store.save("a", &2i32)?;
    /// assert_eq!(store.names()?, ["a", "b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn names(&self) -> Result<Vec<String>> {
        self.snapshot().names()
    }

    /// Whether a tensor has this name.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// assert!(store.contains("x")? && !store.contains("y")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn contains(&self, name: &str) -> Result<bool> {
        self.snapshot().contains(name)
    }

    /// Loads a tensor: looks up its header and opens its storage. No element is read.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// let x = store.load("x")?;
    /// assert_eq!(x.size(), [2, 2]);
    /// assert_eq!(x.select(0, 1)?.read::<f32>()?, [3., 4.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`, `Corrupt`, `NotAllowed`, `ExternalChanged`, `Stale` and `Io`, as for [`Snapshot::load`].
    pub fn load(&self, name: &str) -> Result<Tensor> {
        let (store, current) = (&self.loader.store, self.loader.store.current());
        let mut loaded = self.loader.load(&current, name);
        if matches!(&loaded, Err(e) if e.kind() == ErrorKind::NameNotFound)
            && let Ok(newest) = store.newest()
            && let Ok(Some(_)) = newest.tensor(name)
        {
            let (own, newest) = (current.number(), newest.number());
            let advice = format!(
                "generation {newest} has it, and this handle is on generation {own}: refresh the handle"
            );
            loaded = loaded.map_err(|e| e.advised(advice));
        }
        loaded
    }

    /// Begins a transaction: several changes in one commit. It starts from the newest generation; nothing is locked. If
    /// another writer commits first, see [`Transaction`](Transaction#other-writers).
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("weight", &[[1f32, 2.], [3., 4.]])?;
    /// txn.save("bias", &[0f32, 0.])?;
    /// assert!(store.names()?.is_empty());
    /// txn.commit()?;
    /// assert_eq!(store.names()?, ["bias", "weight"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Poisoned`; `LimitExceeded` if the store has no storage ids left; those of [`refresh`](Self::refresh).
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.loader.store.check_process()?;
        self.loader.store.check_poison()?;
        let newest = self.loader.store.newest()?;
        generation::check_ids_left(&newest)?;
        Ok(Transaction::new(&self.loader, newest))
    }

    /// Like [`begin`](Self::begin), but waits for other writers, and lets no other writer commit until the transaction
    /// is committed or dropped. So what the transaction reads does not change, and its commit does not conflict.
    ///
    /// Readers, changes in place, and transactions that have not reached their commit go on meanwhile. Do not wait for
    /// other processes in such a transaction: one that holds a guard may itself be waiting to commit. So lock or read
    /// mutable tensors before the transaction begins. An append to a tensor that another process is appending to fails
    /// with `Busy` at once.
    ///
    /// ```
    /// use stridemap::{ErrorKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("count", &0i64)?;
    /// let mut txn = store.begin_exclusive()?;
    /// let count: i64 = txn.load("count")?.item()?;
    /// assert_eq!(store.save("count", &9i64).unwrap_err().kind(), ErrorKind::Busy); // by the same thread
    /// txn.save("count", &(count + 1))?;
    /// txn.commit()?;
    /// assert_eq!(store.load("count")?.item::<i64>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt`, `Stale`, `Io` and `Poisoned`; `Busy` if other writers hold the store for longer than the timeout, or
    /// at once if this thread has begun an exclusive transaction that has not ended; `ReadOnly`.
    pub fn begin_exclusive(&self) -> Result<Transaction<'_>> {
        let txn = Transaction::under_lock(&self.loader, Instant::now())?;
        generation::check_ids_left(txn.base())?;
        Ok(txn.held_by_this_thread())
    }

    /// Like [`begin`](Self::begin), but starts from the generation of this handle, for a change that reads no names and
    /// writes no elements. The commit repeats it on the newest generation.
    pub(super) fn begin_on_current(&self) -> Result<Transaction<'_>> {
        self.loader.store.check_process()?;
        self.loader.store.check_poison()?;
        Ok(Transaction::new(&self.loader, self.loader.store.current()))
    }
}
