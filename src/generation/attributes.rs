//! The attributes of one scope, and of all scopes that begin with a prefix.

use std::collections::BTreeMap;

use stridemap_format::Attributes;

use super::Draft;

/// Returns the attributes of the scopes that begin with `prefix`: scope, key and value, ascending.
fn beginning_with<'a>(
    attributes: &'a Attributes,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    let entries = attributes.range((prefix.to_owned(), String::new())..);
    let texts = entries.map(|((scope, key), value)| (scope.as_str(), key.as_str(), value.as_str()));
    texts.take_while(move |(scope, ..)| scope.starts_with(prefix))
}

/// Returns the attributes of a scope, by key.
pub(crate) fn attributes_of(attributes: &Attributes, scope: &str) -> BTreeMap<String, String> {
    let own = beginning_with(attributes, scope).take_while(|(found, ..)| *found == scope);
    own.map(|(_, key, value)| (key.to_owned(), value.to_owned())).collect()
}

impl Draft {
    /// Returns the scopes that begin with `prefix` and have attributes, ascending. The store itself is not among them.
    pub(crate) fn scopes(&self, prefix: &str) -> Vec<String> {
        let found = beginning_with(self.attributes(), prefix).map(|(scope, ..)| scope);
        let mut scopes: Vec<String> = found.filter(|scope| !scope.is_empty()).map(str::to_owned).collect();
        scopes.dedup();
        scopes
    }

    /// Sets an attribute, or removes it if there is no value.
    pub(super) fn set_attribute(&mut self, scope: &str, key: &str, value: Option<&str>) {
        let at = (scope.to_owned(), key.to_owned());
        match value {
            Some(value) => drop(self.attributes_mut().insert(at, value.to_owned())),
            None if self.attributes().contains_key(&at) => drop(self.attributes_mut().remove(&at)),
            None => {}
        }
    }

    /// Adds the attributes of one scope to those of another. An attribute with the same key is replaced.
    pub(super) fn copy_attributes(&mut self, from: &str, to: &str) {
        for (key, value) in attributes_of(self.attributes(), from) {
            self.set_attribute(to, &key, Some(&value));
        }
    }

    pub(super) fn remove_attributes(&mut self, scope: &str) {
        for key in attributes_of(self.attributes(), scope).into_keys() {
            self.set_attribute(scope, &key, None);
        }
    }
}
