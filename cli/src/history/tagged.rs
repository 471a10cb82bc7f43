//! The generations that a pattern of tags selects.

use stridemap::{Snapshot, Store};

use super::log::{entries, unless_unreadable};
use crate::at::{still_kept, unknown};
use crate::error::{Error, Result};
use crate::names::{Pattern, one_line};

/// The pattern that also selects the newest generation if it has no tag.
const ALL: &str = "*";

/// Visits the generations with a tag that a name, a glob or a prefix selects, the oldest first: each with this tag, and
/// with the snapshot or the reason that it cannot be read. `*` also selects the newest generation, unless it has the
/// tensors of the last tagged one.
pub(crate) fn each_tagged(
    store: &Store,
    tags: &str,
    mut visit: impl FnMut(String, Result<Snapshot>) -> Result<()>,
) -> Result<()> {
    // Held, so that the newest generation stays until it has been visited.
    let (_newest, log) = entries(store)?;
    let is_tag = log.iter().any(|entry| entry.tags.iter().any(|tag| tag == tags));
    let pattern = Pattern::parse(tags.to_owned(), is_tag)?;
    let (mut last, mut is_any) = (None, false);
    for entry in log.iter().rev() {
        let tag = entry.tags.iter().find(|tag| pattern.matches(tag));
        let is_newest = entry.tags.is_empty() && tags == ALL;
        if tag.is_none() && !is_newest {
            continue;
        }
        is_any = true;
        let label = tag.map_or("(newest)".to_owned(), |tag| one_line(tag));
        let snapshot = match unless_unreadable(still_kept(store, entry.generation))? {
            Ok(None) => continue,
            Ok(Some(snapshot)) => Ok(snapshot),
            Err(e) => Err(e),
        };
        if let (true, Ok(snapshot), Some(last)) = (is_newest, &snapshot, &last)
            && unless_unreadable(snapshot.changes_since(last))?.is_ok_and(|changes| changes.is_empty())
        {
            continue;
        }
        last = snapshot.as_ref().ok().cloned().or(last);
        visit(label, snapshot)?;
    }
    match is_any {
        true => Ok(()),
        false if pattern.is_name() => Err(unknown(store, tags)?),
        false => Err(Error::NoMatch(format!("no tag matches {tags:?}"))),
    }
}
