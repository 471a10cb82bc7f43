//! Maintenance methods of a store: garbage collection, disk usage, compaction and materialization.

use super::handle::Store;
use crate::error::Result;
use crate::generation::Collected;
use crate::maintenance::{self, Compacted, DiskUsage, RewriteGain};

impl Store {
    /// Deletes the files that neither the newest generation, nor a tag, nor a handle or snapshot in any process needs.
    ///
    /// Each commit deletes the files that it makes unneeded. This also deletes what a power cut or a killed writer
    /// left behind. The handle moves to the newest generation, so that it does not keep the files of an older one.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let reader = Store::open(store.path())?;
    /// store.save("x", &[0u8; 1000])?;
    /// reader.refresh()?;
    /// store.remove("x")?;
    /// assert!(store.gc()?.size_bytes < 1000); // the reader's generation needs it
    /// reader.refresh()?;
    /// assert!(store.gc()?.size_bytes >= 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors). What was deleted before the error stays deleted.
    pub fn gc(&self) -> Result<Collected> {
        self.loader.store.check_process()?;
        maintenance::collect_all(&self.loader.store)
    }

    /// Returns the disk usage of the store, and the files with bytes that the newest generation does not need. Reads
    /// all headers and inspects every file, but reads no element and changes no file. Other processes can notice it:
    /// it holds some locks for a moment.
    ///
    /// Locks of commits and appends are not taken: their holders are read from `/proc/locks`. If a holder is not listed
    /// there, for example a process of another namespace, its append or commit in progress counts as aborted.
    /// `/proc/locks` says nothing about older generations and unfinished files, so this method tries to lock each of
    /// these, and unlocks it at once. A collection at that moment treats the locked generation as in use and keeps it
    /// until the next collection. A writer that has just created an unfinished file, and finds it locked, creates
    /// another.
    ///
    /// Other processes may write meanwhile, so the result can include a file that a commit is just creating or
    /// deleting.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// let reader = Store::open(store.path())?;
    /// store.remove("x")?;
    /// let usage = store.disk_usage()?;
    /// assert_eq!(usage.reachable_bytes, 0);
    /// assert!(usage.held_bytes >= 10_000); // by the reader
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if metadata breaks a rule; `Busy` as in [`open`](Self::open); `Io`.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        self.loader.store.check_process()?;
        maintenance::usage(&self.loader.store)
    }

    /// Rewrites sealed storages, dropping the bytes that no tensor reaches. A storage is rewritten if that frees at
    /// least a quarter of it, and at least a block of 4 KiB; with `all`, if it frees anything, which copies much more
    /// for little space. Tensors keep their names, sizes and elements, and share
    /// elements as before; their strides, offsets and storages change. `progress` is called with the bytes written
    /// since the last call.
    ///
    /// Small storages, of less than 4 MiB, are joined to one, in the order of their names: those that are rewritten, and all
    /// others too if there are 16 or more, or with `all` two or more. Each is a file, so a store of many is slow to read and to
    /// copy. What [`create_growable`](Self::create_growable) made stays alone. Other tensors can still grow: the first
    /// [`append`](Self::append) copies one of a joined storage to its own.
    ///
    /// It first collects garbage, as [`gc`](Self::gc) does. Then it copies storages, about 64 MiB, 192 small or 64 other ones
    /// per commit, smaller ones first, so that the space they free is available to the next. It needs free space for the
    /// copies of one commit: about 64 MiB, or the new length of the longest storage if that is more. Old files are
    /// deleted with each commit, or once no handle or snapshot in any process needs them. A storage that a tag keeps is not
    /// rewritten, because that would free nothing. Each commit is durable before
    /// its old files are deleted, unless the handle was opened with
    /// [`Durability::Process`](crate::Durability::Process): then a power cut may lose what was durable before.
    ///
    /// A tensor that was loaded before keeps its elements, but [`save_view`](Self::save_view) of it or of its views
    /// now fails with `Conflict`: load it again.
    ///
    /// A storage is left unchanged if it is damaged, if a tag keeps it, or if others are changing it.
    /// [`Compacted::skipped`] says why. Mutable and live storages are never rewritten.
    ///
    /// ```
    /// use stridemap::{Header, Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("all", &Tensor::from_vec(vec![1f32; 100_000], &[1000, 100])?)?;
    /// store.save_view("column", &store.load("all")?.select(1, 7)?)?;
    /// store.remove("all")?;
    /// let compacted = store.compact(false, |_| ())?;
    /// assert_eq!((compacted.before_bytes, compacted.after_bytes), (400_000, 4_028)); // 28 bytes keep the alignment
    /// assert_eq!(store.load("column")?.stride(), [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors). What was compacted before the error stays compacted, and nothing else has
    /// changed.
    pub fn compact(&self, all: bool, mut progress: impl FnMut(u64)) -> Result<Compacted> {
        let store = &self.loader.store;
        store.check_process()?;
        store.record_failure(maintenance::compact(store, least_gain(all), &mut progress))
    }

    /// Returns what [`compact`](Self::compact) would do now, without doing it. It is an estimate: a joined storage may become
    /// up to 63 bytes longer for each storage that is in it, and there may be one more for each 64 MiB. A damaged storage is
    /// not found if only a rewrite would read the damage, and neither is a process that appends. Files that only the
    /// generation of this handle needs, after another process has committed, are not counted as deleted: refresh the handle
    /// first.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("all", &vec![1f32; 100_000])?;
    /// store.save_view("part", &store.load("all")?.narrow(0, 0, 1000)?)?;
    /// store.remove("all")?;
    /// let planned = store.plan_compact(false)?;
    /// assert_eq!((planned.storage_count, planned.before_bytes, planned.after_bytes), (1, 400_000, 4_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if metadata breaks a rule; `Busy` as in [`open`](Self::open); `Poisoned`; `Unsupported` for a store that is
    /// not in a file system; `Io`.
    pub fn plan_compact(&self, all: bool) -> Result<Compacted> {
        let store = &self.loader.store;
        store.check_process()?;
        maintenance::plan_compact(store, least_gain(all))
    }

    /// Copies the bytes that tensors reach in external storages into sealed storages of the store, so that the newest
    /// generation no longer needs external files. Tagged generations still need theirs. Tensors keep their names, sizes
    /// and elements, and share elements as before;
    /// their storages change, and their strides and offsets can change, as in [`compact`](Self::compact), which also says how
    /// small storages are joined. `progress`
    /// is called with the bytes written since the last call.
    ///
    /// All external files are checked before the first byte is copied, and each is checked again after it is copied.
    /// Each commit copies about 64 MiB, 192 small or 64 other storages, and is durable with
    /// [`Durability::Full`](crate::Durability::Full). The external files are not changed. If another commit
    /// interferes, a storage stays external, and [`Compacted::skipped`] lists it. Nothing is
    /// collected.
    ///
    /// ```
    /// # use stridemap::import::ExternalFile;
    /// # use stridemap::{DType, ExternalFiles, Header, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// # std::fs::write(&path, [1, 2, 3, 4])?;
    /// # let store = StoreOptions::new().external(ExternalFiles::Beside).create(dir.path().join("x.smap"))?;
    /// # let header = Header::contiguous(DType::U8, &[4])?;
    /// store.write(|txn| {
    ///     let key = txn.adopt(&ExternalFile::open(&path)?, 0..4)?;
    ///     txn.save_header("x", &header, key)
    /// })?;
    /// assert_eq!(store.materialize(|_| ())?.storage_count, 1);
    /// std::fs::remove_file(&path)?; // the store has its own copy
    /// assert_eq!(store.load("x")?.read::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NotAllowed` if this handle may not open one of the files; `ExternalChanged` if
    /// a file changed since it was adopted. What was committed before the error stays.
    pub fn materialize(&self, mut progress: impl FnMut(u64)) -> Result<Compacted> {
        let store = &self.loader.store;
        store.check_process()?;
        store.record_failure(maintenance::materialize(store, &mut progress))
    }

    /// Returns what [`materialize`](Self::materialize) would do now, without doing it. No element is read.
    ///
    /// ```
    /// # use stridemap::import::ExternalFile;
    /// # use stridemap::{DType, ExternalFiles, Header, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// # std::fs::write(&path, [1, 2, 3, 4])?;
    /// # let store = StoreOptions::new().external(ExternalFiles::Beside).create(dir.path().join("x.smap"))?;
    /// # let header = Header::contiguous(DType::U8, &[4])?;
    /// store.write(|txn| {
    ///     let key = txn.adopt(&ExternalFile::open(&path)?, 0..4)?;
    ///     txn.save_header("x", &header, key)
    /// })?;
    /// let planned = store.plan_materialize()?;
    /// assert_eq!((planned.storage_count, planned.after_bytes), (1, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotAllowed` if this handle may not open one of the files; `ExternalChanged` if a file changed since it was adopted;
    /// `Corrupt` if metadata breaks a rule; `Busy` as in [`open`](Self::open); `Poisoned`; `Io`.
    pub fn plan_materialize(&self) -> Result<Compacted> {
        let store = &self.loader.store;
        store.check_process()?;
        maintenance::plan_materialize(store)
    }
}

/// Returns by how much a storage must become shorter to be rewritten.
fn least_gain(all: bool) -> RewriteGain {
    if all { RewriteGain::Small } else { RewriteGain::Enough }
}
