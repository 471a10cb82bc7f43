//! The attributes of a scope.

use std::collections::BTreeMap;

use stridemap_format::limits::MAX_ATTRIBUTES_BYTES;
use stridemap_format::{self as format, Attributes, Rule, attribute_size};

use crate::error::{Error, Result};

/// Returns the attributes of a scope, by key.
pub(crate) fn attributes_of(attributes: &Attributes, scope: &str) -> BTreeMap<String, String> {
    let from_scope = attributes.range((scope.to_owned(), String::new())..);
    let own = from_scope.take_while(|((found, _), _)| found == scope);
    own.map(|((_, key), value)| (key.clone(), value.clone())).collect()
}

/// Whether a scope has attributes.
pub(super) fn has_scope(attributes: &Attributes, scope: &str) -> bool {
    let from_scope = attributes.range((scope.to_owned(), String::new())..).next();
    from_scope.is_some_and(|((found, _), _)| found == scope)
}

/// Attributes that a manifest can hold.
#[derive(Debug)]
pub(super) struct BoundedAttributes {
    pub(super) entries: Attributes,
    size_bytes: usize,
}

impl BoundedAttributes {
    pub(super) fn new(entries: Attributes) -> Self {
        let size_bytes = entries.iter().map(|(at, value)| size_of_entry(at, value)).sum();
        BoundedAttributes { entries, size_bytes }
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `LimitExceeded` if a manifest cannot hold all attributes. Then nothing is changed.
    pub(super) fn set(&mut self, at: (String, String), value: &str) -> Result<()> {
        self.extend(vec![(at, value.to_owned())])
    }

    /// Adds the attributes of one scope to those of another. An attribute with the same key is replaced.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub(super) fn copy_scope(&mut self, from: &str, to: &str) -> Result<()> {
        let own = attributes_of(&self.entries, from).into_iter();
        self.extend(own.map(|(key, value)| ((to.to_owned(), key), value)).collect())
    }

    /// Moves the attributes of one scope to another. An attribute with the same key is replaced.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub(super) fn move_scope(&mut self, from: &str, to: &str) -> Result<()> {
        let own = attributes_of(&self.entries, from);
        self.remove_scope(from);
        let scoped = |scope: &str| {
            own.iter().map(|(key, value)| ((scope.to_owned(), key.clone()), value.clone())).collect()
        };
        // If they do not fit, put back what was removed, which fits.
        self.extend(scoped(to)).or_else(|e| self.extend(scoped(from)).and(Err(e)))
    }

    pub(super) fn remove_scope(&mut self, scope: &str) {
        for key in attributes_of(&self.entries, scope).into_keys() {
            self.remove(&(scope.to_owned(), key));
        }
    }

    pub(super) fn remove(&mut self, at: &(String, String)) {
        self.size_bytes -= self.entries.remove(at).map_or(0, |value| size_of_entry(at, &value));
    }

    /// Adds attributes, no two of which have the same scope and key. Adds none of them if they do not all fit.
    fn extend(&mut self, added: Vec<((String, String), String)>) -> Result<()> {
        let replaced = |at| self.entries.get(at).map_or(0, |value| size_of_entry(at, value));
        let replaced_bytes: usize = added.iter().map(|(at, _)| replaced(at)).sum();
        let added_bytes: usize = added.iter().map(|(at, value)| size_of_entry(at, value)).sum();
        let size_bytes = self.size_bytes - replaced_bytes + added_bytes;
        if size_bytes > MAX_ATTRIBUTES_BYTES {
            let detail =
                format!("attributes of {size_bytes} bytes; remove some, or save long text as a tensor");
            return Err(Error::refused("set attributes", format::Error::new(Rule::ManifestLimits, detail)));
        }
        self.size_bytes = size_bytes;
        self.entries.extend(added);
        Ok(())
    }
}

fn size_of_entry((scope, key): &(String, String), value: &str) -> usize {
    attribute_size(scope, key, value)
}
