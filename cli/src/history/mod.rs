//! The history of a store: tags, the log, restore and prune.

pub(crate) mod log;
pub(crate) mod prune;
pub(crate) mod restore;
pub(crate) mod tag;
mod tag_changes;
mod tagged;
mod time;
mod watch;

use stridemap::{Snapshot, Store};

use crate::error::{Error, Result};

#[cfg(feature = "remote")]
pub(crate) use tag_changes::{TagChanges, Tags, tags};
pub(crate) use tagged::each_tagged;
#[cfg(feature = "remote")]
pub(crate) use time::{parse_duration, time_cell, utc};
#[cfg(feature = "remote")]
pub(crate) use watch::is_output_closed;

/// How often something is read again, because another process commits meanwhile.
const MAX_TRIES: u32 = 1000;

/// After how many tries other processes are kept from committing.
const UNLOCKED_TRIES: u32 = 20;

/// Reads something that is always that of the newest generation on disk. `read` returns `None` if it is not that of the
/// snapshot, which is then taken again.
pub(crate) fn of_one_generation<T>(
    store: &Store,
    mut read: impl FnMut(&Snapshot) -> Result<Option<T>>,
) -> Result<(Snapshot, T)> {
    for tries in 0..MAX_TRIES {
        // Others may commit faster than this process can read.
        let _exclusive = if tries < UNLOCKED_TRIES { None } else { store.begin_exclusive().ok() };
        let newest = store.latest()?;
        if let Some(found) = read(&newest)? {
            return Ok((newest, found));
        }
    }
    let path = store.path().display();
    Err(Error::Refused(format!(
        "{path}: other processes commit faster than the store can be read; try again"
    )))
}
