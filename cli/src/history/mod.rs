//! The history of a store: tags, the log, restore and prune, and tags in the arguments of other commands.

mod at;
mod before;
pub(crate) mod log;
pub(crate) mod prune;
mod recovery;
pub(crate) mod restore;
pub(crate) mod tag;
mod time;

use stridemap::maintenance::{DiskUsage, SpareFile};

pub(crate) use at::{check_untagged, snapshot_at, split};
pub(crate) use before::Before;
pub(crate) use recovery::{Replaced, kept_by_tags};

/// Returns the length of all storages, whatever keeps them. The difference of two shows what a change has freed.
fn storage_bytes(usage: &DiskUsage) -> u64 {
    let is_storage = |file: &&SpareFile| file.path.extension().is_some_and(|ending| ending == "bin");
    let spare = usage.spare.iter().filter(is_storage).map(|file| file.spare_bytes);
    spare.fold(usage.reachable_bytes, u64::saturating_add)
}
