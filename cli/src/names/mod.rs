//! Names of tensors: how arguments refer to them, and how they are printed.

mod escape;
mod glob;
mod new;
mod numbered;
mod order;

use std::collections::BTreeSet;
use std::path::Path;

use stridemap::{Result as LibraryResult, Snapshot, Tensor, Transaction};

use crate::error::{Error, Result};
use crate::expr::{is_operation, unquoted};
use crate::ui::{counted, message};

pub(crate) use escape::{
    argument, command_line, has_hidden, is_plain, listed, of_scope, one_line, quoted, shell_word,
};
pub(crate) use glob::Pattern;
pub(crate) use new::{is_like_a_file, new_name};
pub(crate) use numbered::{Numbered, PLACE, Run, fill};
pub(crate) use order::{leading_digits, natural};

/// Tensors that have names.
pub(crate) trait Named {
    fn contains(&self, name: &str) -> LibraryResult<bool>;
    fn load(&self, name: &str) -> LibraryResult<Tensor>;
    /// Returns all names, ascending.
    fn names(&self) -> LibraryResult<Vec<String>>;
}

macro_rules! named {
    ($($tensors:ty),*) => {$(
        impl Named for $tensors {
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
    )*};
}

named!(Snapshot, Transaction<'_>);

/// Returns the name that an argument stands for: the argument itself if a tensor has this name, and otherwise the
/// argument without its quotes. See [`new_name`] for the name of a tensor that does not exist yet.
pub(crate) fn name(text: &str, tensors: &impl Named) -> Result<String> {
    name_in(text, |name| tensors.contains(name))
}

/// Like [`name`], for a caller that can only tell whether a tensor has a name.
pub(crate) fn name_in(text: &str, contains: impl Fn(&str) -> LibraryResult<bool>) -> Result<String> {
    let Some(name) = unquoted(text) else { return Ok(text.to_owned()) };
    if !contains(text)? {
        return Ok(name);
    }
    if contains(&name)? {
        message(&format!("note: {text:?} is used as the name of a tensor, not as {name:?} in quotes"));
    }
    Ok(text.to_owned())
}

/// Returns the pattern that an argument stands for: the name of a tensor or a text in quotes is no glob and no prefix.
pub(crate) fn pattern(text: &str, tensors: &impl Named) -> Result<Pattern> {
    pattern_in(text, |name| tensors.contains(name))
}

/// Like [`pattern`], for a caller that can only tell whether a tensor has a name.
pub(crate) fn pattern_in(text: &str, contains: impl Fn(&str) -> LibraryResult<bool>) -> Result<Pattern> {
    let exact = name_in(text, &contains)?;
    let is_name = exact != text || contains(&exact)?;
    Pattern::parse(exact, is_name)
}

/// Returns the names that arguments stand for, each once. A glob or a prefix stands for the names that it matches.
pub(crate) fn names(texts: &[String], tensors: &impl Named) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for text in texts {
        let pattern = pattern(text, tensors)?;
        if pattern.is_name() {
            check_is_name(text, &pattern.text, tensors)?;
            found.insert(pattern.text);
            continue;
        }
        let all = tensors.names()?;
        let matching: Vec<String> = all.into_iter().filter(|name| pattern.matches(name)).collect();
        if matching.is_empty() {
            return Err(Error::NoMatch(format!("no tensor matches {text:?}")));
        }
        found.extend(matching);
    }
    Ok(found)
}

/// Refuses a view, or the beginning of names, in place of a name. Any other text is left to the command.
fn check_is_name(text: &str, name: &str, tensors: &impl Named) -> Result<()> {
    if is_operation(text, tensors)? {
        let advice = "save the view first (stridemap view), or write it with stridemap show --format npy";
        return Err(Error::Refused(format!("{text:?} is a view, and this command takes names; {advice}")));
    }
    selecting_hint(name, tensors)?.map_or(Ok(()), |why| Err(Error::Refused(why)))
}

/// Says what is wrong with a name that no tensor has, if that is known: it is the path of a file, or some names begin
/// with it or contain it, and a prefix or a glob selects them.
pub(crate) fn selecting_hint(name: &str, tensors: &impl Named) -> Result<Option<String>> {
    if tensors.contains(name)? {
        return Ok(None);
    }
    let path = Path::new(name);
    if is_like_a_file(path) && path.exists() {
        return Ok(Some(format!(
            "no tensor has the name {name:?}, which is the path of a file or store; this command takes one of these, and \
             then names of tensors in it; run it once for each"
        )));
    }
    let Some(why) = prefix_hint(name, tensors)? else { return part_hint(name, tensors) };
    let part = format!("{name}.");
    let is_module =
        tensors.names()?.iter().filter(|other| other.starts_with(name)).all(|other| other.starts_with(&part));
    let selector = if is_module { part } else { format!("{name}*") };
    Ok(Some(format!("{why}: '{selector}' selects them")))
}

/// Says that names contain a text, if some do, and how to select them.
fn part_hint(text: &str, tensors: &impl Named) -> Result<Option<String>> {
    let mut names = tensors.names()?;
    names.retain(|name| !text.is_empty() && name.contains(text));
    let Some(first) = names.first() else { return Ok(None) };
    let (count, contain) =
        (counted(names.len() as u64, "name"), if names.len() == 1 { "contains" } else { "contain" });
    let first = quoted(first);
    Ok(Some(format!(
        "no tensor has the name {text:?}, but {count} {contain} it, such as {first}: '*{text}*' selects them"
    )))
}

/// Says that names begin with this one, if some do.
pub(crate) fn prefix_hint(name: &str, tensors: &impl Named) -> Result<Option<String>> {
    let mut names = tensors.names()?;
    names.retain(|other| !name.is_empty() && other.starts_with(name));
    let Some(first) = names.first() else { return Ok(None) };
    let (count, begin) =
        (counted(names.len() as u64, "name"), if names.len() == 1 { "begins" } else { "begin" });
    let first = quoted(first);
    Ok(Some(format!("no tensor has the name {name:?}, but {count} {begin} with it, such as {first}")))
}
