//! What a transaction has read of its generation, to find out at the commit whether the newest one still says the same.

use std::collections::{BTreeMap, BTreeSet};

use super::attributes::attributes_of;
use super::name_changes::changes_between;
use super::pinned::Generation;
use crate::error::{Error, ErrorKind, Result};

/// What was read about tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Read {
    /// Which names exist.
    Names,
    /// Also the headers, which say where the elements are.
    Headers,
}

/// What a transaction has read of its generation. Its own changes are not among it.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Whether the commit does not depend on what was read.
    are_ignored: bool,
    names: BTreeMap<String, Read>,
    prefixes: BTreeMap<String, Read>,
    /// The scopes whose attributes were read.
    scopes: BTreeSet<String>,
    /// Whether the attributes of every scope count as read.
    all_attributes: bool,
}

impl Reads {
    /// Lets the commit succeed whatever happens to what was read and will be read.
    pub(super) fn ignore(&mut self) {
        self.are_ignored = true;
    }

    pub(super) fn add_name(&mut self, name: &str, read: Read) {
        if !self.are_ignored {
            deepen(&mut self.names, name, read);
        }
    }

    pub(super) fn add_prefix(&mut self, prefix: &str, read: Read) {
        if !self.are_ignored {
            deepen(&mut self.prefixes, prefix, read);
        }
    }

    pub(super) fn add_scope(&mut self, scope: &str) {
        if !self.are_ignored && !self.scopes.contains(scope) {
            self.scopes.insert(scope.to_owned());
        }
    }

    pub(super) fn add_all_attributes(&mut self) {
        self.all_attributes = true;
    }

    /// Checks that everything that was read of `seen` is the same in a newer generation.
    ///
    /// # Errors
    /// `Conflict` if it is not.
    pub(super) fn check(&self, seen: &Generation, newest: &Generation) -> Result<()> {
        if self.are_ignored || seen.number() == newest.number() {
            return Ok(());
        }
        match self.first_change(seen, newest)? {
            None => Ok(()),
            Some(what) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "another commit, generation {}, came before this one, and {what}, which this transaction has \
                     read; begin a new transaction, and read it again",
                    newest.number()
                ),
            )),
        }
    }

    /// Describes something that was read, and that a newer generation has changed.
    fn first_change(&self, seen: &Generation, newest: &Generation) -> Result<Option<String>> {
        let (before, after) = (seen.tensors_named(&self.names)?, newest.tensors_named(&self.names)?);
        for (name, read) in &self.names {
            match (before.get(name.as_str()), after.get(name.as_str())) {
                (None, Some(_)) => return Ok(Some(format!("added {name:?}"))),
                (Some(_), None) => return Ok(Some(format!("removed {name:?}"))),
                (before, after) if *read == Read::Headers && before != after => {
                    return Ok(Some(format!("changed {name:?}")));
                }
                _ => {}
            }
        }
        for (prefix, read) in &self.prefixes {
            let changes = changes_between(seen, newest, prefix)?;
            let changed = changes.changed.first().filter(|_| *read == Read::Headers);
            let found = [
                ("added", changes.added.first()),
                ("removed", changes.removed.first()),
                ("changed", changed),
            ];
            if let Some((how, name)) = found.into_iter().find_map(|(how, name)| Some((how, name?))) {
                return Ok(Some(format!("{how} {name:?}")));
            }
        }
        let (before, after) = (&seen.manifest().attributes, &newest.manifest().attributes);
        if self.all_attributes && before != after {
            return Ok(Some("changed attributes".to_owned()));
        }
        let differs = |scope: &&String| attributes_of(before, scope) != attributes_of(after, scope);
        Ok(self.scopes.iter().find(differs).map(|scope| match scope.as_str() {
            "" => "changed the attributes of the store".to_owned(),
            scope => format!("changed the attributes of {scope:?}"),
        }))
    }
}

fn deepen(reads: &mut BTreeMap<String, Read>, name: &str, read: Read) {
    match reads.get_mut(name) {
        Some(known) => *known = read.max(*known),
        None => drop(reads.insert(name.to_owned(), read)),
    }
}
