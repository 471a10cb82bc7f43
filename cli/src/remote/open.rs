//! Remotes that are read in place.

use std::path::Path;

use stridemap::{ErrorKind, Snapshot, Store, StoreOptions};
use stridemap_remote::Remote;

use super::requests::RequestArgs;
use super::url::{check_untagged_url, split_url};
use crate::at::snapshot_at;
use crate::error::{Error, Result};

/// Opens the store at a URL, for a command that is about its newest generation, or about that of the options.
pub(crate) fn open_newest(options: &StoreOptions, url: &Path) -> Result<Store> {
    check_untagged_url(url)?;
    Ok(remote(url)?.store_with(options.clone())?)
}

/// Opens a store to look at it: for `URL@TAG` at the generation that the tag names, or that has this number.
pub(crate) fn open(options: &StoreOptions, argument: &Path) -> Result<(Store, Snapshot)> {
    let Some((url, tag)) = split_url(argument) else {
        let store = open_newest(options, argument)?;
        let snapshot = store.snapshot();
        return Ok((store, snapshot));
    };
    let remote = remote(url)?;
    let store = remote.store_with(options.clone())?;
    match (snapshot_at(&store, tag), tag.parse::<u64>()) {
        // An earlier generation without a tag, which was not pruned. The newest store has not all of its files.
        (Err(Error::Library(e)), Ok(generation)) if e.kind() == ErrorKind::Conflict => {
            let earlier = remote.store_at(generation)?;
            let snapshot = earlier.snapshot();
            Ok((earlier, snapshot))
        }
        (snapshot, _) => Ok((store, snapshot?)),
    }
}

fn remote(url: &Path) -> Result<Remote> {
    RequestArgs::of_environment()?.open(&url.to_string_lossy())
}
