//! The files that no generation needs.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Result, one_line};
use crate::generation::OpenStore;
use crate::maintenance::inventory::{Inventory, SpaceReason};

/// A file in a store's directories, or the end of one, that no process needs. This is not damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Orphan {
    /// The file.
    pub path: PathBuf,
    /// How many of its bytes are not needed.
    pub size_bytes: u64,
    /// Why they exist.
    pub reason: SpaceReason,
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Orphan { path, size_bytes, reason } = self;
        f.write_str(&one_line(&format!("{}: {size_bytes} bytes: {reason}", path.display())))
    }
}

pub(super) fn orphans(store: &OpenStore) -> Result<Vec<Orphan>> {
    let files = Inventory::take(store)?.files.into_iter();
    let orphans = files.filter_map(|listed| {
        let unneeded = listed.unneeded()?.clone();
        Some(Orphan { path: listed.path, size_bytes: unneeded.bytes, reason: unneeded.reason })
    });
    Ok(orphans.collect())
}
