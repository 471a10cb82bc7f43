//! The differences between the tags of this store and those of a received generation.

use std::collections::BTreeMap;

use stridemap_format::{KeptGeneration, KeptKey, Rule, Tag};

use super::differences::Comparison;
use super::entries::{KeptEntry, TagEntry, insert, remove};
use super::merge::merge;
use crate::error::Result;

impl Comparison<'_> {
    /// Compares the tags, and the generations that have them.
    pub(super) fn tags(&mut self) -> Result<()> {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut before, mut after) = (self.newest.tags()?, self.incoming.tags()?);
        merge(&mut before, &mut after, |name: String, before: Option<Tag>, after: Option<Tag>| {
            if let Some(tag) = &after {
                *counts.entry(tag.generation).or_default() += 1;
            }
            match after {
                after if before == after => Ok(()),
                Some(tag) => {
                    insert::<TagEntry>(&mut self.done.next, name, tag);
                    Ok(())
                }
                None => remove::<TagEntry>(&mut self.done.next, self.tables, &name),
            }
        })?;
        let (mut before, mut after) = (self.newest.tagged(0)?, self.incoming.tagged(0)?);
        merge(&mut before, &mut after, |generation, before: Option<KeptGeneration>, after| {
            let [tagged, released] = [true, false].map(|is_tagged| KeptKey { is_tagged, generation });
            let Some(after) = after else {
                if let Some(before) = before {
                    remove::<KeptEntry>(&mut self.done.next, self.tables, &tagged)?;
                    let kept = KeptGeneration { tag_count: 0, ..before };
                    insert::<KeptEntry>(&mut self.done.next, released, kept);
                    self.done.released.push((generation, kept));
                }
                return Ok(());
            };
            if counts.remove(&generation) != Some(after.tag_count) {
                return Err(self.broken(Rule::RecordCount, "a kept generation miscounts its tags"));
            }
            if self.tagged.last().is_some_and(|(_, next_id)| *next_id > after.next_storage_id) {
                return Err(
                    self.broken(Rule::StorageId, "the next storage ids of its kept generations descend")
                );
            }
            self.tagged.push((generation, after.next_storage_id));
            match before {
                Some(before) if before == after => return Ok(()),
                Some(before) if before != (KeptGeneration { tag_count: before.tag_count, ..after }) => {
                    let detail = "a kept generation is a different one in this store";
                    return Err(self.broken(Rule::RecordCount, detail));
                }
                Some(_) => {}
                None => {
                    remove::<KeptEntry>(&mut self.done.next, self.tables, &released)?;
                    self.done.gained.push((generation, after));
                }
            }
            insert::<KeptEntry>(&mut self.done.next, tagged, after);
            Ok(())
        })?;
        match counts.is_empty() {
            true => Ok(()),
            false => Err(self.broken(Rule::RecordCount, "a tag names a generation that is not kept")),
        }
    }
}
