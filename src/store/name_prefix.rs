//! Operations on all tensors whose names begin with a prefix.

use std::cmp::Reverse;

use stridemap_format::check_text;

use super::snapshot::TensorInfo;
use super::transaction::Transaction;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::generation::{self, Change, OnExisting, Read};
use crate::tensor::Tensor;

/// Operations on tensors whose names begin with a prefix: any text, or `""` for all tensors.
impl Transaction<'_> {
    /// Returns the headers of the tensors whose names begin with `prefix` in this transaction, by ascending name. A
    /// tensor that was saved in this transaction has a provisional storage id of 2^63 or more.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("head.bias", &[1f32, 2.])?;
    /// let sizes = txn.iter_tensors("head.")?.map(|info| Ok(info?.size().to_vec()));
    /// assert_eq!(sizes.collect::<stridemap::Result<Vec<_>>>()?, [[2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`. The call and each item can fail.
    pub fn iter_tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<TensorInfo>> + 'a> {
        self.loader.store.check_process()?;
        self.draft.note_prefix(prefix, Read::Headers);
        let entries = self.draft.tensors(prefix)?;
        Ok(entries.map(|entry| entry.map(|(name, record)| TensorInfo::of_record(name, &record))))
    }

    /// Returns the tensors whose names begin with `prefix` in this transaction, by ascending name.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("head.bias", &[1f32, 2.])?;
    /// for entry in txn.iter_loaded("head.")? {
    ///     assert_eq!(entry?.1.read::<f32>()?, [1., 2.]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata, `Stale` and `Io`, here and for each item; for each item also those of
    /// [`load`](Self::load).
    pub fn iter_loaded<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<(String, Tensor)>> + 'a> {
        self.loader.store.check_process()?;
        self.draft.note_prefix(prefix, Read::Headers);
        let entries = self.draft.tensors(prefix)?;
        Ok(entries.map(|entry| {
            let (name, record) = entry?;
            let tensor = self.tensor(&name, &record)?;
            Ok((name, tensor))
        }))
    }

    /// Removes the tensors whose names now begin with `prefix`, and returns their number. If another writer removes
    /// one of them before this transaction commits, the commit fails with `Conflict`, as for
    /// [`remove`](Self::remove). Attributes of scopes that begin with `prefix` are removed too.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// # store.save("epoch.1.weight", &1f32)?;
    /// let mut txn = store.begin()?;
    /// assert_eq!(txn.remove_prefix("epoch.")?, 1);
    /// assert!(txn.names()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn remove_prefix(&mut self, prefix: &str) -> Result<usize> {
        let names = self.names_with(prefix)?;
        let count = names.len();
        let removed = names.into_iter().try_for_each(|name| self.apply(Change::Remove { name }));
        self.record_failure(removed)?;
        for from in generation::scopes(self.draft.attributes(), prefix) {
            self.apply(Change::MoveAttributes { from, to: None })?;
        }
        Ok(count)
    }

    /// Renames the tensors whose names now begin with `from`, replacing that prefix with `to`. Returns their number.
    /// Either all of them are renamed or none. Attributes of scopes that begin with `from` move too; those of the store
    /// stay. If `to` is `""`, the attributes of `from` itself become the store's.
    ///
    /// ```
    /// # use stridemap::{ErrorKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("new.weight", &1f32)?;
    /// txn.save("weight", &2f32)?;
    /// assert_eq!(txn.rename_prefix("new.", "").unwrap_err().kind(), ErrorKind::NameExists);
    /// txn.remove("weight")?;
    /// assert_eq!(txn.rename_prefix("new.", "")?, 1);
    /// assert_eq!(txn.names()?, ["weight"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameExists`, unless [`OnExisting::Replace`] was chosen; `InvalidArgument` for an invalid new name; `Corrupt`,
    /// `Stale`, `Io`.
    pub fn rename_prefix(&mut self, from: &str, to: &str) -> Result<usize> {
        let mut names = self.names_with(from)?;
        let count = names.len();
        if from == to {
            return Ok(count);
        }
        let op = format!("rename_prefix {from:?} to {to:?}");
        let new_name = |name: &str| format!("{to}{}", &name[from.len()..]);
        let refuses_existing = self.on_existing_or(OnExisting::Refuse) == OnExisting::Refuse;
        for name in &names {
            let new = new_name(name);
            check_text("name", &new).refused_to(&op)?;
            // A name that is itself renamed becomes free.
            if refuses_existing && !new.starts_with(from) && self.draft.tensor(&new)?.is_some() {
                let message =
                    format!("{op}: the name {new:?} exists; choose a different one, or remove that tensor");
                return Err(Error::new(ErrorKind::NameExists, message));
            }
        }
        let mut scopes = generation::scopes(self.draft.attributes(), from);
        scopes.retain(|scope| names.binary_search(scope).is_err());
        for scope in &scopes {
            let new = new_name(scope);
            if !new.is_empty() {
                check_text("name", &new).refused_to(&op)?;
            }
        }
        names.append(&mut scopes);
        // If `a` becomes `aa` and `aa` exists, rename the longer name first; if names become shorter, the shorter
        // first.
        match to.len() > from.len() {
            true => names.sort_unstable_by_key(|name| Reverse(name.len())),
            false => names.sort_unstable_by_key(String::len),
        }
        let renamed = names.into_iter().try_for_each(|from| {
            let to = new_name(&from);
            let is_tensor = self.draft.tensor(&from)?.is_some();
            self.apply(match is_tensor {
                true => Change::Rename { from, to },
                false => Change::MoveAttributes { from, to: Some(to) },
            })
        });
        // After an error some tensors already have their new names, and that must not be committed.
        self.record_failure(renamed)?;
        Ok(count)
    }

    /// Returns the names in this transaction that begin with `prefix`, ascending.
    pub(super) fn names_with(&self, prefix: &str) -> Result<Vec<String>> {
        self.loader.store.check_process()?;
        self.draft.tensors(prefix)?.map(|entry| Ok(entry?.0)).collect()
    }
}
