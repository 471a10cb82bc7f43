//! Growing tensors: rows are appended after existing bytes, so nothing that others have loaded changes.

use std::ops::Range;
use std::time::Instant;

use stridemap_format::limits::MAX_RESERVED_BYTES;
use stridemap_format::{DType, RecordKind, StorageRecord, TensorRecord};

use super::append_rows::{
    ShortRows, check_row_size, check_rows, end_bytes, grown_record, row_count, write_rows,
};
use super::handle::Store;
use super::transaction::Transaction;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{self, Change, Changes, Generation, OnExisting, Read};
use crate::layout;
use crate::storage::{Growth, GrowthLock};
use crate::tensor::Source;

impl Store {
    /// Appends rows to a tensor, along dimension 0. Returns the range of the new rows, which the caller cannot know in
    /// advance because other processes may append too. The rows are written after the last bytes of the tensor's
    /// storage; existing bytes are neither copied nor changed. The commit then extends only the tensor under this name.
    /// Loaded tensors, snapshots and other names keep their size. To see the new rows, [`refresh`](Self::refresh) and
    /// load again. Dimension names are kept. Appending no rows changes nothing.
    ///
    /// The tensor must be contiguous, and in a sealed storage. If it is not the last there, the first append copies it to a
    /// storage of its own: a tensor of less than 4 MiB, which shares its storage with others of its transaction, or one that is
    /// followed by bytes that no tensor reaches, as after a [`restore`](Self::restore) of fewer rows. Other tensors must be the
    /// last, as each is that was made by [`create_growable`](Self::create_growable) or saved with 4 MiB or more. A view of some
    /// rows of a tensor is not, unless they are the last ones. Ties and views of the rows that were there keep them.
    ///
    /// Appends to one storage wait for each other, in all processes, up to the lock timeout. Rows that were written
    /// but not committed are overwritten by the next append.
    ///
    /// ```
    /// use ndarray::array;
    /// use stridemap::{DType, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_growable("log", DType::F32, &[0, 2], 1_000_000)?;
    /// store.append("log", &array![[1f32, 2.], [3., 4.]])?;
    /// let log = store.load("log")?;
    /// assert_eq!(store.append("log", &array![[5f32, 6.]])?, 2..3);
    /// assert_eq!(log.size(), [2, 2]);
    /// assert_eq!(store.load("log")?.read::<f32>()?, [1., 2., 3., 4., 5., 6.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NameNotFound`; `DTypeMismatch`; `SizeMismatch` if the number of dimensions, or
    /// the size of any dimension except 0, differs; `Unsupported` for a tensor that cannot grow in its storage; `Busy`
    /// if another process or thread holds the storage for longer than the timeout, or at once if a transaction of this
    /// thread is appending to it; `Conflict` for a storage whose file has several hard links; `Corrupt` if the end of
    /// the storage is damaged.
    pub fn append(&self, name: &str, source: &(impl Source + ?Sized)) -> Result<Range<usize>> {
        let op = format!("append to {name:?}");
        let Some(rows) = ShortRows::of(source).context(&op)? else {
            return self.write(|txn| txn.append(name, source));
        };
        let store = &self.loader.store;
        store.check_process()?;
        // Rows of the wrong dtype or size are refused without waiting. The generation that this handle knows may be
        // older than the tensor, so the newest is tried next.
        let check = |generation: &Generation| {
            check_rows(&op, &generation.existing("append to", name)?, &rows).map(drop)
        };
        check(&store.current()).or_else(|_| check(&*store.newest()?))?;
        // A short append takes the writers' lock first, and then the storage's lock only if it is free. If it waited
        // for the writers' lock with the storage's lock held, other appenders to the storage would wait for all writers
        // in the queue.
        let mut txn = Transaction::under_lock(&self.loader, Instant::now())?;
        let record = txn.draft.existing("append to", name)?;
        // Other writers must not wait for a copy of the whole tensor.
        let must_copy = txn.must_copy_to_append(&op, name, &record)?;
        match (!must_copy).then(|| txn.append(name, &rows)) {
            // Another process holds the storage, and may need the writers' lock to finish: release that lock, and lock
            // the storage first, as a long append does.
            None => drop(txn),
            Some(Err(e)) if e.kind() == ErrorKind::Busy => drop(txn),
            Some(appended) => {
                let range = appended?;
                txn.publish()?;
                return Ok(range);
            }
        }
        self.write(|txn| txn.append(name, &rows))
    }

    /// Creates a tensor of zeros in a sealed storage of its own, for [`append`](Self::append). Its size in dimension 0 is
    /// usually 0. Refuses an existing name.
    ///
    /// `capacity`, in rows, is a hint for processes that open the store mapped: they reserve that much address space,
    /// and need not map the storage again until it is longer. It takes no disk space, and the tensor may outgrow it.
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_growable("log", DType::F32, &[0, 2], 1000)?;
    /// assert_eq!(store.load("log")?.size(), [0, 2]);
    /// assert_eq!(store.append("log", &[[1f32, 2.]])?, 0..1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `SizeMismatch` for a size without dimensions; `NameExists`; `LimitExceeded` for
    /// a size that is too large, or a capacity of more than 2^46 bytes; `InvalidArgument` for an invalid name.
    pub fn create_growable(&self, name: &str, dtype: DType, size: &[usize], capacity: usize) -> Result<()> {
        self.write(|txn| txn.create_growable(name, dtype, size, capacity))
    }
}

/// A tensor whose storage is locked, so that nothing else appends to it.
pub(super) enum Held {
    /// Rows follow its own.
    InPlace(TensorRecord),
    /// It must be copied first.
    ToCopy(TensorRecord),
}

impl Transaction<'_> {
    /// Appends rows to a tensor, like [`Store::append`]. They become part of it when this transaction commits.
    ///
    /// The transaction continues from the newest generation, and nothing else can append to the storage until it
    /// ends. Two transactions that append to the same two storages in opposite order wait for each other until one
    /// fails with `Busy`: append in the same order everywhere.
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_growable("inputs", DType::F32, &[0, 2], 1000)?;
    /// store.create_growable("labels", DType::U8, &[0], 1000)?;
    /// let mut txn = store.begin()?;
    /// assert_eq!(txn.append("inputs", &[[1f32, 2.], [3., 4.]])?, 0..2);
    /// assert_eq!(txn.append("labels", &[1u8, 0])?, 0..2);
    /// txn.commit()?; // both are longer from now on
    /// assert_eq!(store.load("labels")?.read::<u8>()?, [1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`, `DTypeMismatch`, `SizeMismatch`, `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Io` and
    /// `Poisoned`, as for [`Store::append`]; `Unsupported` also for a tensor that was saved in this transaction (commit
    /// it first); `Conflict` if an earlier change cannot be made on the newest generation; those of the source. After a
    /// failure to write, the transaction can only be dropped.
    pub fn append(&mut self, name: &str, source: &(impl Source + ?Sized)) -> Result<Range<usize>> {
        let op = format!("append to {name:?}");
        self.check_writable(&op)?;
        let record = self.draft.existing("append to", name)?;
        if check_rows(&op, &record, source)? == 0 {
            let end = row_count(&record);
            return Ok(end..end);
        }
        // Before the storage's lock: whoever has the source's lock may be about to append to the same storage.
        let source_lock = source.lock_to_read().context(&op)?;
        let record = match self.hold_to_append(&op, name, record)? {
            Held::InPlace(record) => record,
            Held::ToCopy(record) => return self.append_to_copy(&op, name, record, Some(source)),
        };
        // Another writer may have changed the tensor while this one waited.
        let rows = check_rows(&op, &record, source)?;
        let (to, size_bytes) = grown_record(&op, &record, rows)?;
        let Some(growth) = self.growths.get_mut(&record.storage_id) else {
            return Err(Error::new(ErrorKind::Conflict, format!("{op}: its storage is not held")));
        };
        write_rows(&op, growth, (source, size_bytes), &mut self.failure)
            .or_else(|e| self.loader.store.record_failure(Err(e)))?;
        drop(source_lock);
        let new_rows = row_count(&record)..row_count(&to);
        self.apply(Change::Grow { name: name.to_owned(), from: record, to })?;
        Ok(new_rows)
    }

    /// Creates a tensor of zeros that rows can be appended to once it is committed, like [`Store::create_growable`].
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.create_growable("inputs", DType::F32, &[0, 2], 1000)?;
    ///     txn.create_growable("labels", DType::U8, &[0], 1000)
    /// })?;
    /// assert_eq!(store.append("labels", &[1u8])?, 0..1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch` for a size without dimensions; `LimitExceeded` for a size or capacity that is too large;
    /// `InvalidArgument` for an invalid name; `NameExists`, unless [`OnExisting::Replace`] was chosen; `ReadOnly`, `Io`.
    pub fn create_growable(
        &mut self,
        name: &str,
        dtype: DType,
        size: &[usize],
        capacity: usize,
    ) -> Result<()> {
        let op = format!("create_growable {name:?}");
        let Some((_, row)) = size.split_first() else {
            let message = format!("{op}: a tensor without dimensions has no rows; use size [0] for a vector");
            return Err(Error::new(ErrorKind::SizeMismatch, message));
        };
        let header = layout::contiguous(dtype, size).context(&op)?;
        // At least one row, which marks the storage as one that grows.
        let elems = row.iter().try_fold(capacity.max(1) as u64, |n, &size| n.checked_mul(size as u64));
        let reserved_bytes = elems.and_then(|n| n.checked_mul(dtype.itemsize() as u64));
        let reserved_bytes = reserved_bytes.filter(|&n| n <= MAX_RESERVED_BYTES).ok_or_else(|| {
            let message = format!(
                "{op}: a capacity of {capacity} rows of {row:?} {dtype} is more than {MAX_RESERVED_BYTES} bytes \
                 of address space; choose a smaller one, which the tensor may outgrow"
            );
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let on_existing = self.on_existing_or(OnExisting::Refuse);
        self.put(("create_growable", on_existing), name, header, |txn, size_bytes| {
            txn.stage_own(None, size_bytes, |writer| {
                writer.reserve_address_space(reserved_bytes);
                writer.zeros_up_to(size_bytes)
            })
        })
    }

    /// Makes sure that rows can be appended to the tensor: creates it, as [`create_growable`](Self::create_growable)
    /// does, if there is none, and otherwise checks its dtype, the size of its rows, and that it can grow. `size` and
    /// `capacity` are used for a new tensor; an existing one keeps its rows.
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// for loss in [0.5f32, 0.25] {
    ///     store.write(|txn| txn.ensure_growable("loss", DType::F32, &[0], 1000))?;
    ///     store.append("loss", &[loss])?;
    /// }
    /// assert_eq!(store.load("loss")?.read::<f32>()?, [0.5, 0.25]);
    /// assert!(store.write(|txn| txn.ensure_growable("loss", DType::F64, &[0], 1000)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` and `SizeMismatch` for an existing tensor with other rows; `Unsupported` for one that cannot grow;
    /// `SizeMismatch` for a size without dimensions; `LimitExceeded` for a size or capacity that is too large;
    /// `InvalidArgument` for an invalid name; `ReadOnly`; `Stale`; `Corrupt`; `Io`. If another writer creates the tensor
    /// meanwhile, the commit fails with `Conflict`.
    pub fn ensure_growable(
        &mut self,
        name: &str,
        dtype: DType,
        size: &[usize],
        capacity: usize,
    ) -> Result<()> {
        self.loader.store.check_process()?;
        self.draft.note_name(name, Read::Headers);
        let Some(record) = self.draft.tensor(name)? else {
            return self.create_growable(name, dtype, size, capacity);
        };
        let op = format!("ensure_growable {name:?}");
        check_row_size(&op, &record, dtype, size)?;
        match Changes::staged_index(record.storage_id) {
            // It was made in this transaction.
            Some(_) => Ok(()),
            None if self.must_copy_to_append(&op, name, &record)? => Ok(()),
            None => {
                let length_bytes = self.storage_record(&op, record.storage_id)?.length_bytes;
                self.check_growable(&op, name, &record, length_bytes)
            }
        }
    }

    /// Takes the growth lock of the tensor's storage, unless this transaction holds it, and moves to the newest
    /// generation. Returns the tensor's record there, and checks that rows can be appended to it, in place or to a copy.
    pub(super) fn hold_to_append(&mut self, op: &str, name: &str, mut record: TensorRecord) -> Result<Held> {
        let store = &self.loader.store;
        let began = Instant::now();
        // The loop repeats if another writer has moved the tensor to a different storage, where others may follow it.
        loop {
            let id = record.storage_id;
            let must_copy = self.must_copy_to_append(op, name, &record)?;
            if must_copy && (Changes::staged_index(id).is_some() || self.copied.contains_key(&id)) {
                return Ok(Held::ToCopy(record));
            }
            if Changes::staged_index(id).is_some() {
                let message = format!("{op}: it was saved in this transaction; commit first, then append");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            if let Some(growth) = self.growths.get(&id) {
                self.check_growable(op, name, &record, growth.length_bytes())?;
                return Ok(Held::InPlace(record));
            }
            if !must_copy {
                // A tensor that cannot grow is refused without waiting for its storage.
                self.check_growable(op, name, &record, self.storage_record(op, id)?.length_bytes)?;
            }
            let path = store.paths.storage(id);
            let left = store.options.lock_wait.without(began.elapsed());
            let lock = match self.lock {
                None => GrowthLock::take(&store.disk, &path, left),
                Some(_) => GrowthLock::take_or_busy(&store.disk, &path),
            };
            let lock = lock.context(op)?;
            self.rebase()?;
            record = self.draft.existing("append to", name)?;
            if record.storage_id != id && !left.timeout.is_zero() {
                continue;
            }
            if record.storage_id != id {
                let message =
                    format!("{op}: its storage is replaced faster than it can be locked; try again");
                return Err(Error::new(ErrorKind::Busy, message));
            }
            if self.must_copy_to_append(op, name, &record)? {
                self.copied.extend(lock.map(|lock| (id, lock)));
                return Ok(Held::ToCopy(record));
            }
            let storage = self.storage_record(op, id)?;
            self.check_growable(op, name, &record, storage.length_bytes)?;
            let Some(lock) = lock else {
                let detail =
                    stridemap_format::Error::new(stridemap_format::Rule::StorageFile, "the file is missing");
                return Err(Error::corrupt(&path, detail).context(op));
            };
            let growth = Growth::begin(&store.paths, lock, (id, storage), &self.loader.tails);
            self.growths.insert(id, growth.context(op)?);
            return Ok(Held::InPlace(record));
        }
    }

    pub(super) fn storage_record(&self, op: &str, id: u64) -> Result<StorageRecord> {
        let generation = self.draft.generation();
        if self.draft.changes.expected.contains_key(&id) && generation.storage(id)?.is_none() {
            return Err(generation::storage_gone(op, id, generation.number()));
        }
        if self.draft.generation_with(id)?.number() != generation.number() {
            let message = format!("{op}: it was restored in this transaction; commit first, then append");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.loader.record(generation, id).context(op)
    }

    /// Checks that the tensor ends at `length_bytes` of its storage, so that rows appended there follow its own.
    fn check_growable(&self, op: &str, name: &str, record: &TensorRecord, length_bytes: u64) -> Result<()> {
        let header = &*record.header;
        let kind = self.storage_record(op, record.storage_id)?.kind;
        let end_bytes = end_bytes(header);
        let why = match kind {
            RecordKind::Mutable => {
                "its storage is mutable: it is changed in place, and its size is fixed".to_owned()
            }
            RecordKind::Live { .. } => "its storage is live: its size is fixed".to_owned(),
            RecordKind::External(_) => {
                "its storage is external: a file that does not belong to the store".to_owned()
            }
            RecordKind::Sealed(_) if !header.is_contiguous() => {
                let (stride, size) = (header.stride(), header.size());
                format!("it is a view with stride {stride:?} of size {size:?}, and not contiguous")
            }
            RecordKind::Sealed(_) if end_bytes != Some(length_bytes) => {
                self.why_not_last(name, record.storage_id, length_bytes)?
            }
            RecordKind::Sealed(_) => return Ok(()),
        };
        let empty_size: Vec<usize> = [0].iter().chain(header.size().iter().skip(1)).copied().collect();
        let copied_bytes = header.nbytes();
        let message = format!(
            "{op}: {why}; use create_growable for a new tensor of size {empty_size:?}, and append this one to it, which \
             copies {copied_bytes} bytes"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Explains what follows a tensor that is not last in its storage.
    fn why_not_last(&self, name: &str, storage_id: u64, length_bytes: u64) -> Result<String> {
        Ok(match self.follower(name, storage_id, length_bytes)? {
            Some(follower) => format!("{follower:?} follows it in the same storage"),
            None => "unreferenced bytes follow it in its storage".to_owned(),
        })
    }

    /// Returns a different tensor that reaches the end of a storage.
    pub(super) fn follower(&self, name: &str, storage_id: u64, length_bytes: u64) -> Result<Option<String>> {
        for entry in self.draft.tensors("")? {
            let (other_name, other) = entry?;
            if other.storage_id == storage_id
                && other_name != name
                && other.header.numel() > 0
                && other.header.extent(length_bytes).is_ok_and(|extent| extent.end_bytes() == length_bytes)
            {
                return Ok(Some(other_name));
            }
        }
        Ok(None)
    }
}
