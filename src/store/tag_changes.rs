//! Tags and restores in a transaction.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use stridemap_format::{RecordKind, StorageRecord};

use super::at::find_same;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::generation::{Change, Generation, Tagged};

impl Transaction<'_> {
    /// Sets what the user says about the generation that this transaction publishes.
    /// [`Store::log`](crate::Store::log) shows it. An empty text says nothing.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.message("start of the run");
    ///     txn.save("x", &1i32)
    /// })?;
    /// assert_eq!(store.snapshot().message(), Some("start of the run"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// At the commit: `InvalidArgument` for a text of more than 4096 bytes, or with a NUL.
    pub fn message(&mut self, message: &str) {
        self.draft.changes.message = (!message.is_empty()).then(|| message.to_owned());
    }

    /// Tags the generation that this transaction publishes. Otherwise as [`Store::tag`](crate::Store::tag).
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.save("x", &1i32)?;
    ///     txn.tag("step1") // both or neither
    /// })?;
    /// assert_eq!(store.tags()?[0].generation, store.generation());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameExists`, unless [`OnExisting::Replace`](crate::OnExisting::Replace) was chosen; `InvalidArgument` for an
    /// invalid name.
    pub fn tag(&mut self, name: &str) -> Result<()> {
        self.add_tag(name, Tagged::Published)
    }

    /// Tags the generation just before this commit, so that what the transaction changes can be restored. If other writers
    /// commit first, that is the last of their generations.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("x", &2i32)?;
    /// txn.tag_previous("before")?;
    /// store.save("x", &1i32)?; // another commit
    /// txn.commit()?;
    /// assert_eq!(store.at("before")?.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameExists`, unless [`OnExisting::Replace`](crate::OnExisting::Replace) was chosen; `InvalidArgument` for an
    /// invalid name.
    pub fn tag_previous(&mut self, name: &str) -> Result<()> {
        self.add_tag(name, Tagged::Previous)
    }

    /// Tags the generation of a snapshot of this store.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let before = store.snapshot();
    /// store.write(|txn| {
    ///     txn.save("x", &2i32)?;
    ///     txn.tag_snapshot("before", &before)
    /// })?;
    /// assert_eq!(store.at("before")?.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameExists`, unless [`OnExisting::Replace`](crate::OnExisting::Replace) was chosen; `InvalidArgument` for an
    /// invalid name, or for a snapshot of a different store.
    pub fn tag_snapshot(&mut self, name: &str, snapshot: &Snapshot) -> Result<()> {
        let earlier = self.own_generation(format_args!("tag {name:?}"), snapshot)?;
        self.add_tag(name, Tagged::Earlier(earlier))
    }

    fn add_tag(&mut self, name: &str, of: Tagged) -> Result<()> {
        self.apply(Change::Tag { name: name.to_owned(), of })
    }

    /// Removes a tag, as [`Store::untag`](crate::Store::untag) does.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.tag("a")?;
    /// store.tag("b")?;
    /// store.write(|txn| {
    ///     txn.untag("a")?;
    ///     txn.untag("b")
    /// })?;
    /// assert!(store.tags()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`.
    pub fn untag(&mut self, name: &str) -> Result<()> {
        self.apply(Change::Untag { name: name.to_owned() })
    }

    /// Restores the names that begin with `prefix` from a snapshot of this store: their headers and attributes. Other names
    /// with this prefix are removed. No element is copied. The attributes of the store itself are restored only with the
    /// prefix `""`.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("encoder.x", &1i32)?;
    /// store.save("decoder.x", &1i32)?;
    /// store.tag("v1")?;
    /// store.save("encoder.x", &2i32)?;
    /// store.save("decoder.x", &2i32)?;
    /// let v1 = store.at("v1")?;
    /// store.write(|txn| txn.restore(&v1, "encoder."))?;
    /// assert_eq!(store.load("encoder.x")?.item::<i32>()?, 1);
    /// assert_eq!(store.load("decoder.x")?.item::<i32>()?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound` if no name of the snapshot begins with a prefix that is not empty; `InvalidArgument` for a snapshot
    /// of a different store; `ExternalChanged` if the file of an external tensor that is to be restored is missing or was
    /// changed, unless the handle may not open it; `Corrupt`; `Io`.
    pub fn restore(&mut self, snapshot: &Snapshot, prefix: &str) -> Result<()> {
        let from = self.own_generation("restore", snapshot)?;
        self.check_external(&from, prefix)?;
        self.apply(Change::Restore { from, prefix: prefix.to_owned() })
    }

    /// Checks the external files of the tensors that a restore would change.
    fn check_external(&self, from: &Generation, prefix: &str) -> Result<()> {
        let mut files = BTreeMap::new();
        for entry in from.storages()? {
            if let (id, StorageRecord { kind: RecordKind::External(file), .. }) = entry? {
                files.insert(id, file);
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        for entry in from.tensors(prefix)? {
            let (name, record) = entry?;
            if self.draft.tensor(&name)?.as_ref() == Some(&record) {
                continue;
            }
            let Some(file) = files.remove(&record.storage_id) else { continue };
            match self.loader.store.externals.open(&file) {
                Err(e) if e.kind() == ErrorKind::NotAllowed => {}
                opened => drop(opened.context(format!("restore {name:?}"))?),
            }
        }
        Ok(())
    }

    /// Returns the generation of a snapshot, pinned in the store of this transaction.
    fn own_generation(&self, action: impl fmt::Display, snapshot: &Snapshot) -> Result<Arc<Generation>> {
        let (own, other) = (&self.loader.store, &snapshot.loader.store);
        if ptr::eq(&**own, &**other) {
            return Ok(snapshot.generation_arc());
        }
        if own.uuid == other.uuid
            && let Some(found) = find_same(own, snapshot.pinned_generation())?
        {
            return Ok(found);
        }
        let what = if own.uuid == other.uuid { ", a copy with the same uuid" } else { "" };
        let message = format!(
            "{action}: the snapshot is of {}{what}, and this transaction changes {}; take the snapshot from the store \
             that is changed",
            other.paths.root().display(),
            own.paths.root().display()
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}
