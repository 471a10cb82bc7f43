//! What a store remembers: the generations that tags name, and the storages that only they need.

use serde::{Deserialize, Serialize};

use crate::entry::Bounds;
use crate::record::check_storage_id;
use crate::{Error, Result, Rule, check_text};

/// A name for a generation, which keeps the generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The generation.
    pub generation: u64,
    /// What the user says about it.
    pub message: Option<String>,
}

/// The key of a kept generation. Those without a tag come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptKey {
    /// Whether a tag names the generation. If none does, the tags were removed, but a reader may still use it.
    pub is_tagged: bool,
    /// The generation.
    pub generation: u64,
}

/// A generation whose manifest is in `generations`: what it needs, so that no commit opens that manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptGeneration {
    /// When the generation was published, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The next storage id of the generation.
    pub next_storage_id: u64,
    /// The generation that wrote its table, if it has one.
    pub table: Option<u64>,
    /// The number of tags that name it.
    pub tag_count: u64,
}

/// The key of a storage to which no tensor refers any more. Those that no tag keeps come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GarbageKey {
    /// Whether a tagged generation may need the storage.
    pub is_tagged: bool,
    /// The generation that dropped the storage: the first one without it.
    pub dropped: u64,
    /// The storage.
    pub id: u64,
}

impl Tag {
    pub(crate) fn check(&self, bounds: Bounds) -> Result<()> {
        check_generation("a tag", self.generation, bounds.generation)?;
        check_message(self.message.as_deref())
    }
}

impl KeptKey {
    pub(crate) fn check(self, bounds: Bounds) -> Result<()> {
        check_generation("a kept generation", self.generation, bounds.generation)
    }
}

impl KeptGeneration {
    pub(crate) fn check(&self, key: KeptKey, bounds: Bounds) -> Result<()> {
        if self.next_storage_id == 0 || self.next_storage_id > bounds.next_storage_id {
            let detail = format!(
                "generation {} with the next storage id {}; it must be at least 1 and at most {}",
                key.generation, self.next_storage_id, bounds.next_storage_id
            );
            return Err(Error::new(Rule::StorageId, detail));
        }
        if let Some(table) = self.table {
            check_generation("a table", table, key.generation)?;
        }
        if key.is_tagged != (self.tag_count > 0) {
            let kept = if key.is_tagged { "with" } else { "without" };
            let detail = format!("generation {} {kept} tags has {} tags", key.generation, self.tag_count);
            return Err(Error::new(Rule::RecordCount, detail));
        }
        Ok(())
    }
}

impl GarbageKey {
    pub(crate) fn check(self, bounds: Bounds) -> Result<()> {
        check_storage_id(self.id, bounds.next_storage_id)?;
        check_generation("garbage", self.dropped, bounds.generation)
    }
}

/// Checks that a generation is at least 1, and at most `last` (F-18).
fn check_generation(what: &str, generation: u64, last: u64) -> Result<()> {
    if generation == 0 || generation > last {
        let detail = format!("{what} of generation {generation}; it must be at least 1 and at most {last}");
        return Err(Error::new(Rule::Generation, detail));
    }
    Ok(())
}

/// Checks a message, if there is one (F-4).
pub(crate) fn check_message(message: Option<&str>) -> Result<()> {
    message.map_or(Ok(()), |message| check_text("message", message))
}
