//! Attributes of the store, of tensors, and of prefixes of their names.

use std::collections::BTreeMap;

use stridemap_format::check_text;

use super::handle::Store;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::{FormatContext, Result};
use crate::generation::{Change, attributes_of};

/// An attribute is text under a key. It belongs to a *scope*: the store itself, which is `""`, the name of a tensor, or
/// a prefix of names, such as `"encoder."`. No tensor needs to have that name or prefix. All attributes together are at
/// most 1 MiB: the bytes of their scopes, keys and values, and 16 more per attribute.
///
/// Attributes follow their name. Saving under an existing name keeps them, removing the tensor removes them, renaming
/// moves them, and copying copies them. If the new name already has attributes, only those with the same key are
/// replaced. The attributes of a prefix belong to no tensor, and stay until they are removed.
impl Store {
    /// Returns the attributes of a scope, by key.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.set_attribute("", "license", "MIT")?;
    ///     txn.save("depth", &[1.5f32, 2.])?;
    ///     txn.set_attribute("depth", "unit", "m")
    /// })?;
    /// assert_eq!(store.attributes("")["license"], "MIT");
    /// assert_eq!(store.attributes("depth")["unit"], "m");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn attributes(&self, scope: &str) -> BTreeMap<String, String> {
        self.snapshot().attributes(scope)
    }
}

/// Attributes of the store, of tensors and of prefixes; see [`Store::attributes`]. If another writer commits first,
/// these changes are repeated on that generation too, so the last value set for a key wins.
impl Transaction<'_> {
    /// Returns the attributes of a scope in this transaction, by key.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("depth", &[1.5f32, 2.])?;
    /// txn.set_attribute("depth", "unit", "m")?;
    /// txn.rename("depth", "range")?;
    /// assert_eq!(txn.attributes("range")["unit"], "m");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn attributes(&self, scope: &str) -> BTreeMap<String, String> {
        // A forked child could wait forever for the list of reads, and cannot commit.
        if self.loader.store.check_process().is_ok() {
            self.draft.note_attributes(scope);
        }
        attributes_of(self.draft.attributes(), scope)
    }

    /// Sets an attribute of a scope: of the store itself if it is `""`. An existing value is replaced.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.set_attribute("", "epoch", "3")?;
    /// txn.commit()?;
    /// assert_eq!(store.attributes("")["epoch"], "3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `LimitExceeded` beyond a limit of the format; `Stale`; `InvalidArgument` for an invalid key, and for a scope
    /// that is too long or contains NUL.
    pub fn set_attribute(&mut self, scope: &str, key: &str, value: &str) -> Result<()> {
        if !scope.is_empty() {
            check_text("attribute scope", scope).refused_to("set_attribute")?;
        }
        check_text("attribute key", key).refused_to("set_attribute")?;
        let (scope, key, value) = (scope.to_owned(), key.to_owned(), Some(value.to_owned()));
        self.apply(Change::SetAttribute { scope, key, value })
    }

    /// Removes an attribute of a scope, if it exists.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.set_attribute("depth", "unit", "m"))?;
    /// let mut txn = store.begin()?;
    /// txn.remove_attribute("depth", "unit")?;
    /// assert!(txn.attributes("depth").is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Stale`.
    pub fn remove_attribute(&mut self, scope: &str, key: &str) -> Result<()> {
        self.apply(Change::SetAttribute { scope: scope.to_owned(), key: key.to_owned(), value: None })
    }
}

impl Snapshot {
    /// Returns the attributes of a scope, by key.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.set_attribute("encoder.", "license", "MIT"))?;
    /// assert_eq!(store.snapshot().attributes("encoder.")["license"], "MIT");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn attributes(&self, scope: &str) -> BTreeMap<String, String> {
        attributes_of(self.all_attributes(), scope)
    }

    /// Returns all attributes, by scope and key.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.set_attribute("", "license", "MIT"))?;
    /// store.write(|txn| txn.set_attribute("encoder.", "license", "BSD"))?;
    /// let snapshot = store.snapshot();
    /// let all = snapshot.all_attributes().iter().map(|((scope, key), value)| (&**scope, &**key, &**value));
    /// assert!(all.eq([("", "license", "MIT"), ("encoder.", "license", "BSD")]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn all_attributes(&self) -> &BTreeMap<(String, String), String> {
        &self.pinned_generation().manifest().attributes
    }
}
