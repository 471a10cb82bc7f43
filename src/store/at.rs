//! Finds an earlier generation.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use stridemap_format::{Error as FormatError, Rule};

use crate::error::{Error, ErrorKind, Result};
use crate::generation::{self, Generation};

/// A generation of a store, by the name of a tag or by its number.
///
/// ```
/// use stridemap::history::At;
///
/// assert_eq!(At::from("v1").to_string(), "\"v1\"");
/// assert_eq!(At::from(7).to_string(), "generation 7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The generation that a tag names.
    Tag(String),
    /// The generation with this number.
    Generation(u64),
}

impl From<&str> for At {
    fn from(tag: &str) -> Self {
        At::Tag(tag.to_owned())
    }
}

impl From<u64> for At {
    fn from(generation: u64) -> Self {
        At::Generation(generation)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Tag(tag) => write!(f, "{tag:?}"),
            At::Generation(generation) => write!(f, "generation {generation}"),
        }
    }
}

/// How often a tag is looked up again, if its generation is about to be moved or deleted.
const MAX_TRIES: u32 = 100;

/// Opens and pins a generation.
pub(super) fn find(store: &generation::OpenStore, at: &At) -> Result<Arc<Generation>> {
    store.check_process()?;
    let current = store.current();
    if *at == At::Generation(current.number()) {
        return Ok(current);
    }
    let mut kept = None;
    for tries in 0..MAX_TRIES {
        let newest = store.newest_of_all()?;
        // Generations of a different store, restored over this one, have the same numbers.
        let (number, is_tagged) = match at {
            At::Tag(name) => match newest.tag(name)? {
                Some(tag) => (tag.generation, true),
                None => {
                    let tags = newest.tags()?.filter_map(|entry| Some(entry.ok()?.0));
                    return Err(Error::tag_not_found("open tag", name, tags));
                }
            },
            At::Generation(number) => (*number, newest.is_tagged(*number)?),
        };
        for known in [&newest, &current] {
            if known.number() == number {
                return Ok(Arc::clone(known));
            }
        }
        let mut pinned = if is_tagged { None } else { generation::pin(store, number)? };
        // A reader may still use what a tag kept.
        if pinned.is_none() && (is_tagged || newest.is_released(number)?) {
            pinned = generation::pin_kept(store, number)?;
        }
        match pinned {
            Some(pinned) => return Ok(Arc::new(pinned)),
            None if is_tagged => {
                thread::sleep(Duration::from_millis(u64::from(tries > 1)));
                kept = Some(store.paths.kept_manifest(number));
            }
            None => {
                let message = format!(
                    "open generation {number} of {}: it is not on disk, because no tag, handle or snapshot keeps it; \
                     the newest is generation {}",
                    store.paths.root().display(),
                    newest.number()
                );
                return Err(Error::new(ErrorKind::Conflict, message));
            }
        }
    }
    if let Some(path) = kept
        && store.disk.stat(&path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    {
        let detail = "the manifest of a tagged generation is missing";
        return Err(Error::corrupt(&path, FormatError::new(Rule::MetadataFile, detail)));
    }
    let message = format!("open {at} of {}: it is locked; try again", store.paths.root().display());
    Err(Error::new(ErrorKind::Busy, message))
}

/// Opens and pins the same generation in a store with the same uuid, if it has it. A copy of the directory has the same
/// uuid, and other bytes under the same ids, except in the generations that both have had since before the copy. A pin in
/// one of the two keeps nothing in the other.
pub(super) fn find_same(
    store: &generation::OpenStore,
    generation: &Generation,
) -> Result<Option<Arc<Generation>>> {
    let found = match find(store, &At::Generation(generation.number())) {
        Err(e) if e.kind() == ErrorKind::Conflict => return Ok(None),
        found => found?,
    };
    let is_same = found.manifest().without_history() == generation.manifest().without_history();
    Ok(is_same.then_some(found))
}
