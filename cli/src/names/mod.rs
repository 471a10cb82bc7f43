//! Names of tensors: how arguments refer to them, and how they are printed.

mod escape;
mod glob;
mod order;

use std::collections::BTreeSet;

use stridemap::{Result as LibraryResult, Snapshot, Tensor, Transaction};

use crate::error::{Error, Result};
use crate::expr::unquoted;
use crate::ui::message;

pub(crate) use escape::{listed, one_line, quoted};
pub(crate) use glob::Pattern;
pub(crate) use order::natural;

/// Tensors that have names.
pub(crate) trait Named {
    fn contains(&self, name: &str) -> LibraryResult<bool>;
    fn load(&self, name: &str) -> LibraryResult<Tensor>;
    /// Returns all names, ascending.
    fn names(&self) -> LibraryResult<Vec<String>>;
}

impl Named for Snapshot {
    fn contains(&self, name: &str) -> LibraryResult<bool> {
        self.contains(name)
    }

    fn load(&self, name: &str) -> LibraryResult<Tensor> {
        self.load(name)
    }

    fn names(&self) -> LibraryResult<Vec<String>> {
        self.names()
    }
}

impl Named for Transaction<'_> {
    fn contains(&self, name: &str) -> LibraryResult<bool> {
        self.contains(name)
    }

    fn load(&self, name: &str) -> LibraryResult<Tensor> {
        self.load(name)
    }

    fn names(&self) -> LibraryResult<Vec<String>> {
        self.names()
    }
}

/// Returns the name that an argument stands for: the argument itself if a tensor has this name, and otherwise the
/// argument without its quotes. A new name is found in the same way.
pub(crate) fn name(text: &str, tensors: &impl Named) -> Result<String> {
    let Some(name) = unquoted(text) else { return Ok(text.to_owned()) };
    if !tensors.contains(text)? {
        return Ok(name);
    }
    if tensors.contains(&name)? {
        message(&format!("note: {text:?} is used as the name of a tensor, not as {name:?} in quotes"));
    }
    Ok(text.to_owned())
}

/// Returns the names that arguments stand for, each once. A glob stands for the names that it matches.
pub(crate) fn names(texts: &[String], tensors: &impl Named) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for text in texts {
        let exact = name(text, tensors)?;
        let glob = Pattern::parse(text, |text| exact != text);
        if !glob.is_glob() || tensors.contains(&exact)? {
            found.insert(exact);
            continue;
        }
        let all = tensors.names()?;
        let matching: Vec<String> = all.into_iter().filter(|name| glob.matches(name)).collect();
        if matching.is_empty() {
            return Err(Error::NoMatch(format!("no tensor matches {text:?}")));
        }
        found.extend(matching);
    }
    Ok(found)
}
