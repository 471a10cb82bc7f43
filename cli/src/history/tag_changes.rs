//! The tags that were made and removed since a store was looked at.

use std::collections::BTreeMap;
use std::io::Write;

use stridemap::Store;

use crate::error::Result;
use crate::names::shell_word;
use crate::ui::gap;

/// The tags of a store, with their generations.
pub(crate) type Tags = BTreeMap<String, u64>;

/// Returns the tags that a store has now.
pub(crate) fn tags(store: &Store) -> Result<Tags> {
    Ok(store.tags()?.into_iter().map(|tag| (tag.name, tag.generation)).collect())
}

/// How tags have changed.
pub(crate) struct TagChanges {
    /// Those that were made or moved.
    pub(crate) tagged: Tags,
    pub(crate) untagged: Vec<String>,
}

impl TagChanges {
    pub(crate) fn between(seen: &Tags, now: &Tags) -> Self {
        let is_new = |(name, at): &(&String, &u64)| seen.get(*name) != Some(*at);
        let tagged = now.iter().filter(is_new).map(|(name, at)| (name.clone(), *at)).collect();
        let untagged = seen.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
        TagChanges { tagged, untagged }
    }

    /// Prints them as the last parts of a line.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<()> {
        for (name, at) in &self.tagged {
            write!(out, "{}tagged {} ({at})", gap(), shell_word(name))?;
        }
        for name in &self.untagged {
            write!(out, "{}untagged {}", gap(), shell_word(name))?;
        }
        Ok(())
    }
}
