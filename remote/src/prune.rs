//! Prune: deletes objects that no generation of a remote needs any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::{Error, ErrorKind, Result};
use stridemap_format::remote::{Segment, object_path};

use crate::Remote;
use crate::index::Index;

/// How many generations a prune keeps, if no number is set.
const DEFAULT_KEPT: usize = 10;

/// How long a prune keeps what is not needed any more, if no time is set: readers may still use it.
const DEFAULT_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a prune.
#[must_use = "options change nothing until a remote is pruned with them"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    keep_last: usize,
    grace: Duration,
    orphans: bool,
    is_plan: bool,
}

impl Default for PruneOptions {
    fn default() -> Self {
        PruneOptions { keep_last: DEFAULT_KEPT, grace: DEFAULT_GRACE, orphans: false, is_plan: false }
    }
}

impl PruneOptions {
    /// Returns the defaults: what the last 10 generations and all tags need is kept, and everything for 24 hours.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many generations are kept besides those with tags, at least 1.
    pub fn keep_last(self, generations: usize) -> Self {
        PruneOptions { keep_last: generations.max(1), ..self }
    }

    /// Sets how long objects are kept after the push that made them unneeded, by the clock of the server.
    pub fn grace(self, grace: Duration) -> Self {
        PruneOptions { grace, ..self }
    }

    /// Also deletes objects that no generation names, which killed pushes left. This lists all objects. The grace must be
    /// longer than any push takes.
    pub fn orphans(self, orphans: bool) -> Self {
        PruneOptions { orphans, ..self }
    }

    /// Only finds out what would be deleted.
    pub fn plan(self, is_plan: bool) -> Self {
        PruneOptions { is_plan, ..self }
    }
}

/// The result of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of objects that were deleted, or would be.
    pub object_count: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// The number of objects that are not needed, but are kept until the grace period is over.
    pub waiting_count: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// The number of generations that can be read: the last ones.
    pub generation_count: u64,
}

impl Remote {
    /// Deletes objects that neither the last generations nor tags need, once the grace period is over.
    ///
    /// # Errors
    /// `NotFound` if there is no store at the URL; `Corrupt` for a damaged remote; `Io`. Objects that were deleted until
    /// then stay deleted, and nothing that is needed is.
    pub fn prune(&self, options: &PruneOptions) -> Result<Pruned> {
        let pruned = self.prune_with(options);
        pruned.map_err(|e| e.context(format!("prune {}", self.location())))
    }

    fn prune_with(&self, options: &PruneOptions) -> Result<Pruned> {
        let published = self.published()?.ok_or_else(|| self.not_found())?;
        let links = self.chain(&published)?;
        let now = self.server_time(options.is_plan)?;
        let fetch = |segments: &[Segment]| self.fetch_pages(segments);
        let mut needed = BTreeSet::new();
        for link in links.iter().take(options.keep_last) {
            needed.extend(Index::new(&link.manifest.pages).objects(&fetch)?);
        }
        let needed: BTreeSet<String> = needed.iter().map(object_path).collect();

        // By name, since when an object is not needed. A manifest was needed until the next one was put, and so was what
        // that one replaced.
        let mut unneeded: BTreeMap<String, SystemTime> = BTreeMap::new();
        let mut next_put = None;
        for (at, link) in links.iter().enumerate() {
            for name in link.manifest.replaced.iter().map(object_path).filter(|name| !needed.contains(name)) {
                unneeded.entry(name).or_insert(link.modified);
            }
            if at >= options.keep_last {
                unneeded.insert(link.name.clone(), next_put.unwrap_or(link.modified));
            }
            next_put = Some(link.modified);
        }
        if options.orphans {
            let known: BTreeSet<&String> = links.iter().map(|link| &link.name).collect();
            for dir in ["objects", "generations"] {
                for found in self.client.list(dir)? {
                    if !needed.contains(&found.name) && !known.contains(&found.name) {
                        unneeded.entry(found.name).or_insert(found.modified);
                    }
                }
            }
        }
        let generation_count = links.len().min(options.keep_last) as u64;
        let pruned = Pruned { generation_count, ..Pruned::default() };
        self.delete_unneeded(unneeded, now, options, pruned)
    }

    /// Deletes objects for which the grace period is over.
    fn delete_unneeded(
        &self,
        unneeded: BTreeMap<String, SystemTime>,
        now: SystemTime,
        options: &PruneOptions,
        mut pruned: Pruned,
    ) -> Result<Pruned> {
        // The manifests last, and the oldest of them first: while one is there, a prune finds what is older.
        let mut order: Vec<(String, SystemTime)> = unneeded.into_iter().collect();
        order.sort_by_key(|(name, since)| (name.starts_with("generations/"), *since, name.clone()));
        for (name, since) in order {
            let Some(info) = self.client.info(&name)? else { continue };
            // A push may just have put the object again.
            let since = since.max(info.modified);
            if now.duration_since(since).unwrap_or_default() < options.grace {
                pruned.waiting_count += 1;
                pruned.waiting_bytes += info.length_bytes;
                continue;
            }
            pruned.object_count += 1;
            pruned.freed_bytes += info.length_bytes;
            if !options.is_plan {
                self.client.delete(&name)?;
            }
        }
        Ok(pruned)
    }

    /// Returns the time of the server. A plan writes nothing, and takes the time of this machine.
    fn server_time(&self, is_plan: bool) -> Result<SystemTime> {
        if is_plan {
            return Ok(SystemTime::now());
        }
        let name = format!("PRUNE-{}", uuid::Uuid::new_v4().simple());
        self.client.put(&name, Bytes::from_static(b"asks for the time of the server"))?;
        let info = self.client.info(&name);
        self.client.delete(&name)?;
        let lost =
            || Error::new(ErrorKind::Conflict, format!("{name}: the object was deleted by someone else"));
        Ok(info?.ok_or_else(lost)?.modified)
    }
}
