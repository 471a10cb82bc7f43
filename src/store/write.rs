//! Changes that are one commit each.

use std::sync::Arc;

use stridemap_format::DType;

use super::handle::Store;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::generation::Generation;
use crate::storage::StorageKind;
use crate::tensor::{Source, Tensor};

impl Store {
    /// Copies the elements of a tensor, a slice or an array into a new sealed storage, in row-major order, under a
    /// name. Saving under an existing name replaces that tensor.
    ///
    /// Only this name refers to the new storage. Other names of the old tensor keep the old elements: saving one of
    /// two tied weights unties them. To keep them tied, also save the other one again, with
    /// [`copy`](Transaction::copy) or [`save_view`](Self::save_view); or use
    /// [a mutable storage](Transaction::save_as), which is changed in place.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// store.save("column", &store.load("x")?.select(1, 0)?)?; // a copy of two elements
    /// assert_eq!(store.load("column")?.read::<f32>()?, [1., 3.]);
    ///
    /// store.write(|txn| txn.copy("x", "tied"))?;
    /// store.save("x", &[5f32])?;
    /// assert_eq!(store.load("tied")?.read::<f32>()?, [1., 2., 3., 4.]); // unchanged
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `InvalidArgument` for a name that is empty, too long or contains NUL.
    pub fn save(&self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        self.write(|txn| txn.save(name, source))
    }

    /// Creates a tensor of zeros under a name, with a mutable or live storage of its own, to be filled in place, so
    /// that large data need not fit in memory. Refuses an existing name.
    ///
    /// With [`Durability::Full`](crate::Durability::Full), the zeros and the name are durable when this returns; with
    /// `Process`, no later flush makes the name durable. Disk space is allocated for all elements. Later writes in
    /// place are not commits: after a power cut, elements written since the last flush may be any mix of old and new.
    /// A [`Snapshot`] isolates names, headers and sealed elements, but not these.
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
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NameExists`; `Io` if the disk is full; `LimitExceeded` if the size is too
    /// large; `InvalidArgument` for an invalid name, for a kind other than `Mutable` and `Live` (a sealed tensor can
    /// only be [saved](Self::save)), and for a dtype that cannot be [live](crate::LiveElement).
    pub fn create_tensor(
        &self,
        name: &str,
        dtype: DType,
        size: &[usize],
        kind: StorageKind,
    ) -> Result<Tensor> {
        let (_, generation) = self.publish(|txn| txn.create_tensor(name, dtype, size, kind))?;
        // Load from this commit, not from the handle: another commit may have replaced the name since.
        Snapshot::new(Arc::clone(&self.loader), generation).load(name)
    }

    /// Saves a view of a tensor of this store under a name: a header of about fifty bytes. No element is copied.
    /// Saving under an existing name replaces that tensor.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// let x = store.load("x")?;
    /// store.save_view("x_t", &x.t()?)?;
    /// let transposed = store.load("x_t")?;
    /// assert_eq!(transposed.read::<f32>()?, [1., 3., 2., 4.]);
    /// assert!(transposed.shares_storage(&x));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NeedsCopy` for a tensor whose storage does not belong to this store:
    /// [`save`](Self::save) copies its elements; `Conflict` if another writer has removed or replaced the storage: load
    /// the tensor again.
    pub fn save_view(&self, name: &str, tensor: &Tensor) -> Result<()> {
        let mut txn = self.begin_on_current()?;
        txn.save_view(name, tensor)?;
        txn.publish().map(drop)
    }

    /// Removes a name. The storage is deleted when no name, snapshot or handle needs it. Loaded tensors keep their
    /// elements.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// store.remove("x")?;
    /// assert!(!store.contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NameNotFound`.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.write(|txn| txn.remove(name))
    }

    /// Renames a tensor.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// store.rename("x", "y")?;
    /// assert_eq!(store.names()?, ["y"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `NameNotFound`; `NameExists` if a tensor has the new name (to replace it,
    /// rename it in a transaction with [`OnExisting::Replace`](Transaction::on_existing)); `InvalidArgument` for an
    /// invalid new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.write(|txn| txn.rename(from, to))
    }

    /// Runs `change` on a new transaction, commits it, and returns the result of `change`. If `change` fails, the
    /// store is unchanged.
    ///
    /// `change` runs once. If another writer commits meanwhile, the changes are repeated on that generation, or the
    /// commit fails with `Conflict`, as for every [`Transaction`](Transaction#other-writers).
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let count = store.write(|txn| {
    ///     txn.save("weight", &[[1f32, 2.], [3., 4.]])?;
    ///     txn.save("bias", &[0f32, 0.])?;
    ///     txn.set_attribute("", "license", "MIT")?;
    ///     txn.names().map(|names| names.len())
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
    /// `change` can fail with any type of error that a library error can be converted to, such as `anyhow::Error` or
    /// `Box<dyn Error>`. If `change` ends with `Ok(..)`, the compiler may need to be told the type:
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// # std::fs::write(dir.path().join("x.txt"), "1.5")?;
    /// let path = dir.path().join("x.txt");
    /// store.write(|txn| -> Result<(), Box<dyn std::error::Error>> {
    ///     let value: f32 = std::fs::read_to_string(path)?.parse()?;
    ///     txn.save("x", &value)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The errors of a [`Header`](crate::Header) are those of the format. [`Error::refused`] converts them:
    ///
    /// ```
    /// # use stridemap::{DType, Error, Header, Store};
    /// # fn main() -> stridemap::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     let storage = txn.stage(Some(4), |sink| sink(&[1, 2, 3, 4]))?;
    ///     let header = Header::new(DType::U8, [2], [2], 1);
    ///     txn.save_header("column", &header.map_err(|e| Error::refused("save column", e))?, storage)
    /// })?;
    /// assert_eq!(store.load("column")?.read::<u8>()?, [2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); those of `change`.
    pub fn write<R, E: From<Error>>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        Ok(self.publish(change)?.0)
    }

    fn publish<R, E: From<Error>>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<R, E>,
    ) -> Result<(R, Arc<Generation>), E> {
        let mut txn = self.begin()?;
        let value = change(&mut txn)?;
        Ok((value, txn.publish()?))
    }
}
