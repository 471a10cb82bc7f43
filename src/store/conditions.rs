//! Commits that are made only if the store is as their writer last saw it.

use super::handle::Store;
use super::transaction::Transaction;
use crate::commit::OnExisting;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Source;

impl Store {
    /// As [`save`](Self::save), under a name that no tensor has: of several writers that save a new name at the same time,
    /// one succeeds.
    ///
    /// # Errors
    /// Those of [`save`](Self::save); [`ErrorKind::Conflict`] when the name exists, or another writer was first to commit
    /// it. The source is then an [`Error`] of the kind [`ErrorKind::NameExists`].
    pub fn save_new(&self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        self.write(|txn| txn.save_new(name, source))
    }
}

impl Transaction<'_> {
    /// As [`save`](Self::save), under a name that no tensor has, now and when the transaction commits.
    ///
    /// # Errors
    /// Those of [`save`](Self::save); [`ErrorKind::Conflict`] when the name exists, with an [`Error`] of the kind
    /// [`ErrorKind::NameExists`] as its source. [`commit`](Self::commit) ends in the same when another writer was first.
    pub fn save_new(&mut self, name: &str, source: &(impl Source + ?Sized)) -> Result<()> {
        let on_existing = std::mem::replace(&mut self.changes.on_existing, OnExisting::Refuse);
        let saved = self.save(name, source);
        self.changes.on_existing = on_existing;
        saved.map_err(|e| match e.kind() {
            ErrorKind::NameExists => {
                let message =
                    format!("save_new: generation {} has the name: {e}", self.generation().number());
                Error::new(ErrorKind::Conflict, message).with_source(e)
            }
            _ => e,
        })
    }

    /// Commits only as the generation after `generation`, so that what was read there still holds; of several calls the last
    /// counts. Without it, a transaction is made again on whatever other writers have committed.
    ///
    /// ```
    /// use stridemap::{ErrorKind, Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?.save("count", &Tensor::from_vec(vec![1i64], &[])?)?;
    /// let store = Store::open(&path)?;
    /// loop {
    ///     store.refresh()?;
    ///     let seen = store.snapshot();
    ///     let count: i64 = seen.load("count")?.item()?;
    ///     let mut txn = store.begin()?;
    ///     txn.expect_generation(seen.generation());
    ///     txn.save("count", &Tensor::from_vec(vec![count + 1], &[])?)?;
    ///     match txn.commit() {
    ///         Err(e) if e.kind() == ErrorKind::Conflict => continue, // another writer was first: read again
    ///         committed => committed?,
    ///     };
    ///     break;
    /// }
    /// # assert_eq!(store.load("count")?.item::<i64>()?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`commit`](Self::commit) ends in [`ErrorKind::Conflict`] when another generation is the newest, and nothing has
    /// changed: the next append writes over what was appended until then, or [`Store::gc`] cuts it off.
    pub fn expect_generation(&mut self, generation: u64) {
        self.changes.expected_generation = Some(generation);
    }
}
