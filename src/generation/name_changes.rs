//! Compares the names of two generations.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use stridemap_format::TensorRecord;

use super::Generation;
use crate::error::Result;

/// The names that differ between two generations. Each list is in ascending order.
#[must_use = "this only reports"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NameChanges {
    /// Names that only the later generation has.
    pub added: Vec<String>,
    /// Names with a different header or storage.
    pub changed: Vec<String>,
    /// Names that only the earlier generation has.
    pub removed: Vec<String>,
}

impl NameChanges {
    /// Whether all names and headers are the same.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let earlier = store.snapshot();
    /// assert!(store.snapshot().changes_since(&earlier)?.is_empty());
    /// store.save("x", &1i32)?;
    /// assert!(!store.snapshot().changes_since(&earlier)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn note(&mut self, name: String, before: Option<&TensorRecord>, after: Option<&TensorRecord>) {
        match (before, after) {
            (None, Some(_)) => self.added.push(name),
            (Some(_), None) => self.removed.push(name),
            (before, after) if before != after => self.changed.push(name),
            _ => {}
        }
    }
}

/// Compares the names that begin with `prefix` in two generations of one store. If both have the same table, only the
/// names in their manifests can differ, so only those are compared. Otherwise all names are.
pub(crate) fn changes_between(earlier: &Generation, later: &Generation, prefix: &str) -> Result<NameChanges> {
    let mut changes = NameChanges::default();
    let table = |generation: &Generation| generation.manifest().table;
    if table(earlier) == table(later) {
        let mut candidates = BTreeSet::new();
        for generation in [earlier, later] {
            let names = generation.manifest().tensors.range(prefix.to_owned()..).map(|(name, _)| name);
            candidates.extend(names.take_while(|name| name.starts_with(prefix)).cloned());
        }
        for name in candidates {
            let (before, after) = (earlier.tensor(&name)?, later.tensor(&name)?);
            changes.note(name, before.as_ref(), after.as_ref());
        }
        return Ok(changes);
    }
    let (mut old, mut new) = (earlier.tensors(prefix)?.peekable(), later.tensors(prefix)?.peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return Ok(changes),
            (Some(Ok((before, _))), Some(Ok((after, _)))) => before.cmp(after),
            (Some(Err(_)), _) | (_, None) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
        };
        let before = if order == Ordering::Greater { None } else { old.next().transpose()? };
        let after = if order == Ordering::Less { None } else { new.next().transpose()? };
        match (before, after) {
            (Some((name, before)), after) => {
                changes.note(name, Some(&before), after.as_ref().map(|(_, after)| after));
            }
            (None, Some((name, after))) => changes.note(name, None, Some(&after)),
            (None, None) => {}
        }
    }
}
