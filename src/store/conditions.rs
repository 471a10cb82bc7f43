//! Commits that are made only if the store is as their writer last saw it.

use super::transaction::Transaction;

impl Transaction<'_> {
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
    /// [`commit`](Self::commit) ends in [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when another generation is the newest, and nothing has
    /// changed: the next append writes over what was appended until then, or [`Store::gc`](crate::Store::gc) cuts it off.
    pub fn expect_generation(&mut self, generation: u64) {
        self.changes.expected_generation = Some(generation);
    }
}
