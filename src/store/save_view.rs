//! Saving views, and checking that a commit can refer to their storages.

use std::io;
use std::sync::Arc;

use stridemap_format::{RecordKind, StorageRecord, TensorRecord};

use super::transaction::Transaction;
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::generation::{self, Change, OnExisting};
use crate::storage::Identity;
use crate::tensor::Tensor;

impl Transaction<'_> {
    /// Saves a view of a tensor of this store, or of this transaction, under a name. No element is copied.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("embedding", &[[1f32, 2.], [3., 4.]])?;
    /// txn.save_view("head", &txn.load("embedding")?.t()?)?;
    /// txn.commit()?;
    /// assert_eq!(store.load("head")?.read::<f32>()?, [1., 3., 2., 4.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NeedsCopy` for a tensor on any other storage; `Conflict` if another writer has removed or replaced the
    /// storage: load the tensor again; `InvalidArgument` for an invalid name; `NameExists` after
    /// [`OnExisting::Refuse`](crate::OnExisting::Refuse).
    pub fn save_view(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.loader.store.check_process()?;
        self.draft.check_new("save_view", name, self.on_existing_or(OnExisting::Replace))?;
        let foreign = |what: &str| {
            Err(Error::new(
                ErrorKind::NeedsCopy,
                format!(
                    "save_view {name:?}: the tensor is backed by {what}; use save, which copies its elements"
                ),
            ))
        };
        let storage_id = match tensor.storage().identity() {
            Identity::Stored { store, id, record } if *store == self.loader.store.uuid => {
                if !self.was_checked(*id, record) {
                    self.rebase_if_newer(name, (*id, record))?;
                    if self.is_of_a_copy(tensor, (*id, record))? {
                        return foreign(
                            "a storage of a copy of this store, or a file that no longer belongs to this store",
                        );
                    }
                    self.draft.changes.expected.insert(*id, record.clone());
                }
                *id
            }
            Identity::Staged { transaction, id } if *transaction == self.id => *id,
            Identity::Heap => return foreign("memory"),
            Identity::Foreign => {
                let file = tensor.storage().unmapped_file().map(|file| file.path().display().to_string());
                let message = format!(
                    "save_view {name:?}: the tensor is backed by {}, which is outside the store; import that file, \
                     which copies its elements, or adopt it, which does not",
                    file.as_deref().unwrap_or("a file")
                );
                return Err(Error::new(ErrorKind::NeedsCopy, message));
            }
            Identity::Stored { .. } => return foreign("a storage of a different store"),
            Identity::Staged { .. } => return foreign("a storage of a different transaction"),
        };
        let record = TensorRecord { header: Arc::clone(tensor.header()), storage_id };
        self.apply(Change::Put { action: "save_view", name: name.to_owned(), record })
    }

    /// Moves this transaction to the newest generation if its own generation lacks the tensor's storage, or has a
    /// shorter one. The tensor was then loaded from a newer generation.
    fn rebase_if_newer(&mut self, name: &str, (id, seen): (u64, &StorageRecord)) -> Result<()> {
        let known = self.draft.generation().storage(id)?;
        if known.is_some_and(|known| known.length_bytes >= seen.length_bytes) {
            return Ok(());
        }
        self.rebase()?;
        match self.draft.generation().storage(id)? {
            Some(_) => Ok(()),
            None => {
                let newest = self.draft.generation().number();
                Err(generation::storage_gone(format_args!("save_view {name:?}"), id, newest))
            }
        }
    }

    /// Whether the storage was already checked for an earlier view in this transaction. Always false for mutable and
    /// live storages: two different files can have equal records.
    fn was_checked(&self, id: u64, record: &StorageRecord) -> bool {
        is_identified_by_record(record) && self.draft.changes.expected.get(&id) == Some(record)
    }

    /// Whether the tensor's storage is a different file from this store's storage with the same id, as after copying
    /// the directory. Sealed or external storages with equal records have the same bytes, so this returns false for
    /// them. Otherwise it compares the files: each copy may have grown separately.
    fn is_of_a_copy(&self, tensor: &Tensor, (id, record): (u64, &StorageRecord)) -> Result<bool> {
        let has_equal_record =
            |now: StorageRecord| (now.length_bytes, &now.kind) == (record.length_bytes, &record.kind);
        if is_identified_by_record(record)
            && self.draft.generation().storage(id)?.is_some_and(has_equal_record)
        {
            return Ok(false);
        }
        let path = self.loader.store.paths.storage(id);
        match self.loader.store.disk.stat(&path) {
            // The commit finds out whether the storage is gone.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            stat => Ok(!tensor.storage().is_on_file(stat.doing("save_view: examine", &path)?)),
        }
    }
}

/// Whether an equal record means equal bytes. Not for storages that are changed in place.
fn is_identified_by_record(record: &StorageRecord) -> bool {
    matches!(record.kind, RecordKind::Sealed(_) | RecordKind::External(_))
}
