//! What a transaction reads: the tensors as it has left them.

use std::sync::Arc;

use stridemap_format::TensorRecord;

use super::transaction::Transaction;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::generation::{Changes, Read};
use crate::tensor::Tensor;

/// Reads. The commit compares what they return with the newest generation.
impl Transaction<'_> {
    /// Returns all names in this transaction, ascending.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("x", &1i32)?;
    /// assert_eq!(txn.names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn names(&self) -> Result<Vec<String>> {
        self.loader.store.check_process()?;
        self.draft.note_prefix("", Read::Names);
        self.draft.tensors("")?.map(|entry| Ok(entry?.0)).collect()
    }

    /// Whether a tensor has this name in this transaction.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("x", &1i32)?;
    /// assert!(txn.contains("x")? && !store.contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn contains(&self, name: &str) -> Result<bool> {
        self.loader.store.check_process()?;
        self.draft.note_name(name, Read::Names);
        Ok(self.draft.tensor(name)?.is_some())
    }

    /// Loads a tensor as this transaction has left it. It may have been saved in this transaction.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("x", &[1i32, 2])?;
    /// assert_eq!(txn.load("x")?.read::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`, `Corrupt`, `NotAllowed`, `ExternalChanged`, `Stale` and `Io`, as for
    /// [`Store::load`](crate::Store::load); `Unsupported` for a tensor to which this transaction appended rows.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        self.loader.store.check_process()?;
        self.draft.note_name(name, Read::Headers);
        let record = self.draft.existing("load", name)?;
        self.tensor(name, &record)
    }

    /// Returns the tensor that a record of this transaction describes.
    pub(super) fn tensor(&self, name: &str, record: &TensorRecord) -> Result<Tensor> {
        self.check_failure("load")?;
        let Some(index) = Changes::staged_index(record.storage_id) else {
            let generation = self.draft.generation();
            if self.growths.contains_key(&record.storage_id)
                && let Some(storage) = generation.storage(record.storage_id)?
                && record.header.extent(storage.length_bytes).is_err()
            {
                // Uncommitted rows are overwritten after this transaction is dropped, but the tensor could outlive
                // it.
                let message = format!("load {name:?}: rows were appended in this transaction; commit first");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            return self.loader.tensor(self.draft.generation_with(record.storage_id)?, name, record);
        };
        let identity = (self.id, record.storage_id);
        let storage = self.staged.as_storage(index, identity)?.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("load {name:?}: its storage was not staged"))
        })?;
        Tensor::new(storage, Arc::clone(&record.header)).refused_to("load")
    }
}
