//! The changes of a store that are a commit each.

use std::sync::Arc;

use stridemap_format::DType;

use super::handle::Store;
use super::snapshot::{Snapshot, StorageKind};
use super::transaction::Transaction;
use crate::error::Result;
use crate::generation::Generation;
use crate::tensor::{Source, Tensor};

impl Store {
    /// Copies the elements of a tensor, a slice or an array into a new sealed storage, in row-major order, under a name. A
    /// tensor of the same name is replaced.
    ///
    /// Only this name refers to the new storage. Other names of the old tensor keep the old elements: to save one of two
    /// tied weights again unties them. To keep them tied, save the other one again too, by
    /// [`copy`](Self::copy) or [`save_view`](Self::save_view); or use [a mutable storage](Self::save_as), which is changed
    /// in place.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// store.save("column", &store.load("x")?.select(1, 0)?)?; // a copy of two elements
    /// assert_eq!(store.load("column")?.read::<f32>()?, [1., 3.]);
    ///
    /// store.copy("x", "tied")?;
    /// store.save("x", &[5f32])?;
    /// assert_eq!(store.load("tied")?.read::<f32>()?, [1., 2., 3., 4.]); // as it was
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]; `InvalidArgument` for a name that is empty, too long or has a NUL.
    pub fn save(&self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        self.write(|txn| txn.save(name, source))
    }

    /// As [`save`](Self::save), into a storage of this kind: `Sealed`, or `Mutable`, whose elements can then be changed
    /// in place under a lock, or `Live`, whose elements everybody changes at the same time.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save_as("x", &[1f32, 2.], StorageKind::Mutable)?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.mul_(10)?;
    /// assert_eq!(x.read::<f32>()?, [10., 20.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Saves a view of a tensor of this store under a name: a header of some fifty bytes, no element is copied. A tensor of
    /// the same name is replaced.
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
    /// See [`Store`]; `ForeignStorage` for a tensor whose storage is not one of this store: [`save`](Self::save) copies its
    /// elements.
    pub fn save_view(&self, name: &str, tensor: &Tensor) -> Result<()> {
        self.write(|txn| txn.save_view(name, tensor))
    }

    /// Removes a name. The storage is deleted when no name, snapshot or handle needs it; tensors that are loaded keep
    /// their elements.
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
    /// See [`Store`]; `NameNotFound`.
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
    /// See [`Store`]; `NameNotFound`; `NameExists` when a tensor has the new name, which
    /// [`Transaction::on_existing`] can have replaced; `InvalidArgument` for the new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.write(|txn| txn.rename(from, to))
    }

    /// Gives a tensor a second name: its header, as it is. No element is copied.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("embedding", &[1f32, 2.])?;
    /// store.copy("embedding", "head")?;
    /// assert!(store.load("head")?.shares_storage(&store.load("embedding")?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
}
