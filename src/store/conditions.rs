//! Conditional commits.

use super::transaction::Transaction;

impl Transaction<'_> {
    /// Lets the commit succeed only if `generation` is still the newest, so that what was read from it still holds. If
    /// called again, the last call counts. Without this condition, the commit applies the changes to the newest
    /// generation, whatever other writers have committed.
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
    /// If a different generation is the newest, [`commit`](Self::commit) fails with
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and changes nothing. Rows that the transaction appended
    /// are overwritten by the next append, or cut off by [`Store::gc`](crate::Store::gc).
    pub fn expect_generation(&mut self, generation: u64) {
        self.draft.changes.expected_generation = Some(generation);
    }
}
