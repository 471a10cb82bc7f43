//! Appends many batches of rows to one tensor.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::TensorRecord;

use super::append::Held;
use super::append_rows::{check_rows, grown_record, row_count, write_rows};
use super::handle::Store;
use super::loader::Loader;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{self, Change, Changes, Draft, OnExisting};
use crate::storage::Growth;
use crate::tensor::{Source, Tensor};

/// Appends rows to one tensor, batch after batch. Until it is dropped, nothing else can append to the tensor.
///
/// [`append`](Self::append) writes rows, and [`commit`](Self::commit) makes them part of the tensor. It costs less than
/// [`Store::append`] in a loop: the storage stays open and locked from one commit to the next, and its last, incomplete
/// chunk is read at most once.
///
/// Dropping an appender releases the storage and discards rows that were not committed. If the process ends, the same
/// happens as soon as all children that it forked meanwhile have ended too. While the storage is held, every other
/// append to it waits, up to the lock timeout, and then fails with `Busy`. An append by the thread that last used the
/// appender fails at once. Compaction skips the storage. Readers, and all other commits, are not affected.
///
/// ```
/// use stridemap::{DType, Store};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// store.create_growable("log", DType::F32, &[0, 2], 1_000_000)?;
/// let mut appender = store.appender("log")?;
/// for step in 0..100 {
///     appender.append(&[[step as f32, 0.5]])?;
///     if step % 10 == 9 {
///         appender.commit()?; // ten rows become visible at once
///     }
/// }
/// assert_eq!(store.load("log")?.size(), [100, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an appender holds its tensor until it is dropped, and changes nothing without a commit"]
pub struct Appender {
    loader: Arc<Loader>,
    name: String,
    /// The tensor as of the last commit.
    committed: TensorRecord,
    /// The same with the rows that were appended since.
    appended: TensorRecord,
    growth: Growth,
    /// The failure after which the appender can only be dropped.
    failure: Option<Error>,
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, committed) = (self.loader.store.paths.root(), row_count(&self.committed));
        let pending = row_count(&self.appended) - committed;
        write!(f, "Appender({:?} in {path:?}, {committed} rows, {pending} not committed)", self.name)
    }
}

impl Store {
    /// Returns an appender for a tensor, which holds the tensor's storage until it is dropped. Waits for others that
    /// append to the storage, up to the lock timeout. The tensor must be one that [`append`](Self::append) accepts.
    ///
    /// ```
    /// # use stridemap::{DType, ErrorKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_growable("log", DType::U8, &[0], 1000)?;
    /// let appender = store.appender("log")?;
    /// assert_eq!(store.append("log", &[1u8]).unwrap_err().kind(), ErrorKind::Busy);
    /// drop(appender);
    /// store.append("log", &[1u8])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`, `SizeMismatch` for a tensor without dimensions, `Unsupported`, `Busy`, `Conflict`, `Corrupt`,
    /// `Stale`, `ReadOnly`, `Io` and `Poisoned`, as for [`append`](Self::append).
    pub fn appender(&self, name: &str) -> Result<Appender> {
        let op = format!("append to {name:?}");
        let mut txn = self.begin()?;
        let mut record = txn.draft.existing("append to", name)?;
        if record.header.ndim() == 0 {
            let message = format!("{op}: the tensor has no dimensions, and therefore no rows");
            return Err(Error::new(ErrorKind::SizeMismatch, message));
        }
        let committed = loop {
            match txn.hold_to_append(&op, name, record)? {
                Held::InPlace(record) => break record,
                // A compaction may join it with others again before it is held.
                Held::ToCopy(found) => {
                    txn.append_to_copy(&op, name, found, None::<&Tensor>)?;
                    txn.commit()?;
                    txn = self.begin()?;
                    record = txn.draft.existing("append to", name)?;
                }
            }
        };
        let Some(growth) = txn.growths.remove(&committed.storage_id) else {
            return Err(Error::new(ErrorKind::Conflict, format!("{op}: its storage is not held")));
        };
        let (loader, name, appended) = (Arc::clone(&self.loader), name.to_owned(), committed.clone());
        Ok(Appender { loader, name, committed, appended, growth, failure: None })
    }
}

impl Appender {
    /// Writes rows after those appended before, and returns their range. They become part of the tensor with the next
    /// [`commit`](Self::commit).
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_growable("log", DType::U8, &[0], 1000)?;
    /// let mut appender = store.appender("log")?;
    /// assert_eq!(appender.append(&[1u8, 2])?, 0..2);
    /// assert_eq!(appender.append(&[3u8])?, 2..3);
    /// assert_eq!(store.load("log")?.size(), [0]); // nothing is committed yet
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` and `SizeMismatch`, as for [`Store::append`], which leave the appender as it was; `Io`,
    /// `LimitExceeded`, `Poisoned`, `Stale`; those of the source. After a failure to write, the appender can only be
    /// dropped.
    pub fn append(&mut self, source: &(impl Source + ?Sized)) -> Result<Range<usize>> {
        let op = format!("append to {:?}", self.name);
        self.prepare_to_write(&op)?;
        let rows = check_rows(&op, &self.appended, source)?;
        let before = row_count(&self.appended);
        if rows > 0 {
            let (to, size_bytes) = grown_record(&op, &self.appended, rows)?;
            write_rows(&op, &mut self.growth, (source, size_bytes), &mut self.failure)
                .or_else(|e| self.loader.store.record_failure(Err(e)))?;
            self.appended = to;
        }
        Ok(before..before + rows)
    }

    /// Publishes the rows appended since the last commit as one generation, and returns its number. With
    /// [`Durability::Full`](crate::Durability::Full), they are durable when this returns. The store's handle moves to
    /// that generation. Without new rows nothing is written.
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors). After `Busy`, `commit` can be called again. `Conflict` if the tensor was
    /// removed, renamed or replaced since the appender was opened: the rows are then discarded. After any error but
    /// `Busy`, the appender can only be dropped.
    pub fn commit(&mut self) -> Result<u64> {
        let op = format!("commit rows appended to {:?}", self.name);
        self.prepare_to_write(&op)?;
        if self.appended == self.committed {
            return Ok(self.loader.store.generation_number());
        }
        let published = self.publish().context(&op);
        match &published {
            // Nothing was published: rows can still be added.
            Err(e) if e.kind() == ErrorKind::Busy => self.failure = self.growth.allow_writes().err(),
            Err(e) => self.failure = Some(e.clone()),
            Ok(_) => {}
        }
        self.loader.store.record_failure(published)
    }

    fn publish(&mut self) -> Result<u64> {
        let store = &self.loader.store;
        let grown = self.growth.finish(&store.paths, store.is_durable()).context("append")?;
        let (from, to) = (self.committed.clone(), self.appended.clone());
        let change = Change::Grow { name: self.name.clone(), from, to };
        let changes = Changes { requested: vec![(change, OnExisting::Replace)], ..Changes::default() };
        let grown_record = grown.to.clone();
        let lock = store.lock_writers()?;
        let (newest, _) = store.newest_listed(&lock)?;
        let draft = Draft::rebased(changes, newest)?;
        let (generation, _) = generation::publish(store, draft, Vec::new(), vec![grown], &lock)?;
        self.committed = self.appended.clone();
        self.failure = self.growth.continue_from(&store.paths, grown_record).err();
        Ok(generation.number())
    }

    fn prepare_to_write(&mut self, action: &str) -> Result<()> {
        let store = &self.loader.store;
        store.check_process()?;
        self.growth.move_to_this_thread();
        if let Some(first) = &self.failure {
            let message = format!(
                "{action}: this appender has failed; drop it, and open another; the first failure was: {first}"
            );
            return Err(Error::new(first.kind(), message).caused_by(first));
        }
        store.check_poison()
    }
}
