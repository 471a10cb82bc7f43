//! What a transaction has read of its generation, to find out at the commit whether the newest one still says the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use super::transaction_changes::{Change, Draft};
use super::{Generation, attributes_of, changes_between};
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

impl Draft {
    /// Lets the commit succeed whatever happens to what this transaction has read and will read.
    pub(crate) fn ignore_reads(&mut self) {
        self.reads.get_mut().unwrap_or_else(PoisonError::into_inner).are_ignored = true;
    }

    /// Notes that a name was looked up. What this transaction saved or removed itself is not a read.
    pub(crate) fn note_name(&self, name: &str, read: Read) {
        let source = match self.origins.get(name) {
            Some(origin) if read == Read::Headers => origin,
            _ if self.changed().contains_key(name) => return,
            _ => name,
        };
        self.note(|reads| deepen(&mut reads.names, source, read));
    }

    /// Notes that the names that begin with `prefix` were listed.
    pub(crate) fn note_prefix(&self, prefix: &str, read: Read) {
        self.note(|reads| {
            deepen(&mut reads.prefixes, prefix, read);
            let renamed = self.origins.range(prefix.to_owned()..);
            for (_, origin) in
                renamed.take_while(|(name, _)| read == Read::Headers && name.starts_with(prefix))
            {
                deepen(&mut reads.names, origin, read);
            }
        });
    }

    /// Notes that the attributes of a scope were read.
    pub(crate) fn note_attributes(&self, scope: &str) {
        // Attributes move with their names, so those of the scope may be those of a different one.
        let moves = |change: &Change| {
            matches!(change, Change::Rename { .. } | Change::Copy { .. } | Change::MoveAttributes { .. })
        };
        let may_have_moved = self.changes.requested.iter().any(|(change, _)| moves(change));
        self.note(|reads| {
            reads.all_attributes |= may_have_moved;
            if !reads.scopes.contains(scope) {
                reads.scopes.insert(scope.to_owned());
            }
        });
    }

    fn note(&self, note: impl FnOnce(&mut Reads)) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if !reads.are_ignored {
            note(&mut reads);
        }
    }

    /// Checks that everything that was read is the same in a newer generation.
    ///
    /// # Errors
    /// `Conflict` if it is not.
    pub(super) fn check_reads(&self, newest: &Generation) -> Result<()> {
        let (seen, reads) = (&**self.generation(), self.reads.lock().unwrap_or_else(PoisonError::into_inner));
        if reads.are_ignored || seen.number() == newest.number() {
            return Ok(());
        }
        match reads.first_change(seen, newest)? {
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
}

fn deepen(reads: &mut BTreeMap<String, Read>, name: &str, read: Read) {
    match reads.get_mut(name) {
        Some(known) => *known = read.max(*known),
        None => drop(reads.insert(name.to_owned(), read)),
    }
}

impl Reads {
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
