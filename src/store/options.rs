//! Options for opening and creating stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::at::{At, find};
use super::handle::Store;
use super::transaction::Transaction;
use crate::disk::{Disk, ExternalFiles, RealDisk, StorePaths};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::generation::{self, Durability, IncompleteStore, OpenStore, Options, StoreDir, Unfilled};
use crate::storage::{MapPermit, OnWait};

/// Options for opening or creating a store, if the defaults of [`Store`] do not fit.
///
/// ```no_run
/// use std::time::Duration;
/// use stridemap::{Header, Durability, StoreOptions};
///
/// let store = StoreOptions::new()
///     .durability(Durability::Process)
///     .lock_timeout(Duration::from_secs(1))
///     .open("model.smap")?;
/// # Ok::<(), stridemap::Error>(())
/// ```
#[must_use = "options change nothing until a store is opened or created with them"]
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub(super) options: Options,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) at: Option<At>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { options: Options::default(), disk: Arc::new(RealDisk::default()), at: None }
    }
}

impl StoreOptions {
    /// Returns the defaults: [`Durability::Full`], and a lock timeout of 30 seconds.
    ///
    /// ```
    /// # use stridemap::StoreOptions;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = StoreOptions::new().create(&path)?; // the same as Store::create
    /// assert_eq!(store.generation(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which failures a commit survives after it has returned: see [`Durability`].
    ///
    /// ```
    /// # use stridemap::{Durability, Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = StoreOptions::new().durability(Durability::Process).create(&path)?;
    /// store.save("x", &1i32)?; // without a sync: survives the process, but perhaps not a power cut
    /// assert_eq!(Store::open(&path)?.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Opens an earlier generation: one that a tag names, or one with a number. The handle stays on it, and only reads:
    /// every write fails with [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). For a store that is created, this has no
    /// effect.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = Store::create(&path)?;
    /// store.save("x", &1i32)?;
    /// store.tag("v1")?;
    /// store.save("x", &2i32)?;
    /// let earlier = StoreOptions::new().at("v1").open(&path)?;
    /// assert_eq!(earlier.load("x")?.item::<i32>()?, 1);
    /// assert!(earlier.remove("x").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at(mut self, at: impl Into<At>) -> Self {
        self.at = Some(at.into());
        self
    }

    /// Sets how long a commit waits for another writer, an append for another append, and a guard for another guard,
    /// before it fails with [`ErrorKind::Busy`](crate::ErrorKind::Busy).
    ///
    /// ```
    /// # use stridemap::{ErrorKind, StorageKind, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # use std::time::Duration;
    /// let store = StoreOptions::new().lock_timeout(Duration::ZERO).create(&path)?;
    /// store.write(|txn| txn.save_as("x", &1i32, StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// let guard = x.lock_shared()?;
    /// let busy = std::thread::scope(|scope| scope.spawn(|| x.lock_exclusive().map(drop)).join().unwrap());
    /// assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy); // at once
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.options.lock_wait.timeout = timeout;
        self
    }

    /// Calls `callback` during a long wait for one of the locks of [`lock_timeout`](Self::lock_timeout). The first call
    /// comes after the wait has lasted for `after`, and the next ones about ten times a second. If another thread of
    /// this process holds the lock, the first call can be a second late. The callback gets the ids of the processes
    /// that hold the lock, or none if the system does not tell. It may panic, which ends the wait. By default nothing
    /// is called.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stridemap::StoreOptions;
    /// let options = StoreOptions::new().on_wait(Duration::from_secs(1), |processes| {
    ///     eprintln!("waiting for {processes:?}");
    /// });
    /// ```
    pub fn on_wait(mut self, after: Duration, callback: fn(&[u32])) -> Self {
        self.options.lock_wait.on_wait = Some(OnWait { after, callback });
        self
    }

    /// Sets where files outside the store may be opened. Tensors that were [adopted](crate::Transaction::adopt) have
    /// their elements in such files. By default none may be opened, and loading such a tensor fails with
    /// [`ErrorKind::NotAllowed`](crate::ErrorKind::NotAllowed).
    ///
    /// ```
    /// # use stridemap::import::ExternalFile;
    /// # use stridemap::{DType, ErrorKind, ExternalFiles, Header, Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # let file = dir.path().join("x.bin");
    /// # std::fs::write(&file, [1, 2])?;
    /// let store = StoreOptions::new().external(ExternalFiles::Beside).create(&path)?;
    /// # let header = Header::contiguous(DType::U8, &[2])?;
    /// store.write(|txn| {
    ///     let key = txn.adopt(&ExternalFile::open(&file)?, 0..2)?;
    ///     txn.save_header("x", &header, key)
    /// })?;
    /// assert_eq!(store.load("x")?.read::<u8>()?, [1, 2]);
    /// assert_eq!(Store::open(&path)?.load("x").unwrap_err().kind(), ErrorKind::NotAllowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn external(mut self, files: ExternalFiles) -> Self {
        self.options.access.allowed = files;
        self
    }

    /// Sets whether [`open_mapped`](Self::open_mapped) may map files on a file system that other machines may change:
    /// NFS, SMB, AFS, Coda, Ceph, Lustre, BeeGFS, GPFS, Panasas, OrangeFS and others; GFS2, OCFS2 and ACFS on shared
    /// disks; 9P and the shared folders of VirtualBox, VMware and Parallels. By default it fails with
    /// [`ErrorKind::NotAllowed`](crate::ErrorKind::NotAllowed); [`open`](Self::open) works there.
    ///
    /// On such a file system another machine can truncate or replace a file at any time: the next access to the
    /// mapping then raises `SIGBUS`, which ends the process; a read would return an error. Locks taken on one machine
    /// may not be visible on another, and its writes may not be visible in a mapping. Allow this only if at most one
    /// machine writes the store. File systems served by a program (FUSE, including `sshfs` and virtiofs) cannot be
    /// recognized, so they are mapped.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?.save("x", &[1i32, 2])?;
    /// // SAFETY: only stridemap writes this store, and only on this machine.
    /// let store = unsafe { StoreOptions::new().allow_network_mapping(true).open_mapped(&path)? };
    /// assert_eq!(store.load("x")?.as_slice::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allow_network_mapping(mut self, is_allowed: bool) -> Self {
        self.options.access.allows_network_mapping = is_allowed;
        self
    }

    /// Sets whether elements are verified when they are read or borrowed for the first time through this handle. By default
    /// they are not: what the disk has changed is then a wrong value, until [`verify`](Store::verify) finds it.
    ///
    /// Elements of sealed storages are verified by chunks of 1 MiB, each once for a handle, its clones and its snapshots.
    /// A view needs only the chunks that its elements are in. A chunk that was changed is an error, which names the file,
    /// the place and the tensors, and it is an error again each time. A first read takes one pass over the chunks more, at
    /// the speed of memory. [`Tensor::prefetch_all`](crate::Tensor::prefetch_all) makes this pass for many tensors at once.
    ///
    /// Mutable, live and external storages have no digests, so their elements are not verified. Nor is it noticed if the
    /// disk returns other bytes for a chunk later, when the kernel has dropped it from memory and reads it again.
    ///
    /// ```
    /// # use stridemap::{ErrorKind, Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// Store::create(&path)?.save("x", &[1u8, 2, 3])?;
    /// std::fs::write(path.join("storages/0000000000000001.bin"), [1, 2, 4])?;
    /// assert_eq!(Store::open(&path)?.load("x")?.read::<u8>()?, [1, 2, 4]); // wrong
    /// let damage = StoreOptions::new().verify_on_read(true).open(&path)?.load("x")?.read::<u8>().unwrap_err();
    /// assert_eq!(damage.kind(), ErrorKind::Corrupt);
    /// assert!(damage.to_string().starts_with("read \"x\": "));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify_on_read(mut self, is_wanted: bool) -> Self {
        self.options.verifies_reads = is_wanted;
        self
    }

    /// Sets the file system to use instead of the real one, for crash tests.
    #[cfg(feature = "simulation")]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = disk;
        self
    }

    /// Creates a store, like [`Store::create`].
    ///
    /// ```
    /// # use stridemap::{ErrorKind, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let options = StoreOptions::new();
    /// options.create(&path)?.save("x", &1i32)?;
    /// assert_eq!(options.create(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `ReadOnly`, `Io`, `CommitUnknown`, `Corrupt` and `Busy`, as for [`Store::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        let uuid = generation::create(&self.disk, path, self.options.durability == Durability::Full)?;
        let store = StoreOptions { at: None, ..self.clone() }.open_with(path, None)?;
        if store.loader.store.uuid != uuid {
            let message =
                format!("create {}: a different store has taken its place; open that one", path.display());
            return Err(Error::new(ErrorKind::Stale, message));
        }
        Ok(store)
    }

    /// Creates a store and fills it in one transaction. Returns its generation, as [`commit`](Transaction::commit)
    /// does. No process can open it before it is complete. If `fill` fails, or the process is killed, there is no
    /// store. A process that is killed can leave a directory beside the path, named `.stage-` and a hexadecimal number,
    /// which may be deleted.
    ///
    /// An existing empty directory cannot be replaced in this way. There, the store is created first, and then filled:
    /// other processes can open it while it is empty, and the store stays if the process is killed, or if other
    /// processes have committed to it.
    ///
    /// ```
    /// # use stridemap::{ErrorKind, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let options = StoreOptions::new();
    /// assert!(options.create_with(&path, |txn| txn.remove("x")).is_err());
    /// assert!(!path.exists());
    /// options.create_with(&path, |txn| txn.save("x", &1i32))?;
    /// assert_eq!(options.open(&path)?.names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `ReadOnly`, `Io`, `LimitExceeded` and `CommitUnknown`; those of `fill`. After each of these,
    /// this call leaves no store, except after `CommitUnknown`, in the cases above, and if an existing directory could
    /// not be synced. Files that others put into the directory stay.
    pub fn create_with<E: From<Error>>(
        &self,
        path: impl AsRef<Path>,
        fill: impl FnOnce(&mut Transaction<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let path = path.as_ref();
        if generation::is_empty_dir(&*self.disk, path)? {
            let store = self.create(path)?;
            let unfilled = Unfilled::new(&store.loader.store);
            let mut txn = store.begin()?;
            fill(&mut txn)?;
            let committed = txn.commit();
            if committed.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::CommitUnknown) {
                unfilled.keep();
            }
            return Ok(committed?);
        }
        let (incomplete, store) = IncompleteStore::open(&self.disk, path, self.options)?;
        let store = Store::new(Arc::clone(&self.disk), store, None);
        let mut txn = store.begin()?;
        fill(&mut txn)?;
        txn.commit().map_err(|e| generation::not_created(path, e))?;
        incomplete.finish(&store.loader.store)?;
        Ok(store.generation())
    }

    /// Opens a store, or creates an empty one, like [`Store::open_or_create`].
    ///
    /// ```
    /// # use stridemap::{Durability, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let options = StoreOptions::new().durability(Durability::Process);
    /// assert!(options.open_or_create(&path)?.names()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotAStore`, `UnsupportedVersion`, `Corrupt`, `Busy`, `ReadOnly`, `CommitUnknown` and `Io`.
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        match self.open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound || self.is_not_begun(&e, path) => {}
            opened => return opened,
        }
        match self.create(path) {
            // Another process was faster.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => self.open(path),
            created => created,
        }
    }

    fn is_not_begun(&self, refused: &Error, path: &Path) -> bool {
        refused.kind() == ErrorKind::NotAStore
            && generation::is_empty_dir(&*self.disk, path).is_ok_and(|is| is)
    }

    /// Opens a store, like [`Store::open`].
    ///
    /// ```
    /// # use stridemap::StoreOptions;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let options = StoreOptions::new();
    /// options.create(&path)?.save("x", &1i32)?;
    /// assert_eq!(options.open(&path)?.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`, `UnsupportedVersion`, `Corrupt`, `Busy` and `Io`, as for [`Store::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store> {
        self.open_with(path.as_ref(), None)
    }

    /// Opens a store whose elements can be borrowed, like [`Store::open_mapped`].
    ///
    /// ```
    /// # use stridemap::StoreOptions;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let options = StoreOptions::new();
    /// options.create(&path)?.save("x", &[1i32, 2])?;
    /// // SAFETY: only stridemap writes this store.
    /// let store = unsafe { options.open_mapped(&path)? };
    /// assert_eq!(store.load("x")?.as_slice::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The contract is that of [`Store::open_mapped`].
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`, `UnsupportedVersion`, `Corrupt`, `Busy` and `Io`; `NotAllowed`, unless
    /// [allowed](Self::allow_network_mapping).
    #[expect(
        unsafe_code,
        reason = "states the contract of mapping; the mapping itself is in storage/map/mapping.rs"
    )]
    pub unsafe fn open_mapped(&self, path: impl AsRef<Path>) -> Result<Store> {
        self.open_with(path.as_ref(), Some(MapPermit::by_contract_of_the_caller()))
    }

    pub(super) fn open_with(&self, path: &Path, permit: Option<MapPermit>) -> Result<Store> {
        let (disk, paths) = generation::open_dirs(&self.disk, path)?;
        let uuid = generation::check_store(&*disk, &paths)?;
        if permit.is_some() && !self.options.access.allows_network_mapping {
            check_local(&*disk, &paths)?;
        }
        let mut store = OpenStore::open(StoreDir::new(disk, paths, uuid), self.options)?;
        if let Some(at) = &self.at {
            let generation = find(&store, at)?;
            store = store.fixed_at(generation);
        }
        Ok(Store::new(Arc::clone(&self.disk), store, permit))
    }
}

fn check_local(disk: &dyn Disk, paths: &StorePaths) -> Result<()> {
    let dir = paths.storages_dir();
    if !disk.is_network(&dir).doing("examine the file system of", &dir)? {
        return Ok(());
    }
    let message = format!(
        "open_mapped {}: it is on a network file system, where another machine can truncate a mapped file, and end \
         this process; use open, or StoreOptions::allow_network_mapping if only one machine writes it",
        paths.root().display()
    );
    Err(Error::new(ErrorKind::NotAllowed, message))
}
