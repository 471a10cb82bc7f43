//! Prune: deletes objects that no generation of a remote needs any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::{Error, ErrorKind, Result};
use stridemap_format::remote::{ObjectName, manifest_from_path, object_from_path, object_path};

use crate::Remote;
use crate::chain::Link;
use crate::index::Index;
use crate::remote::{MAX_HEAD_BYTES, Published};

/// How many generations a prune keeps, if no number is set.
const DEFAULT_KEPT: usize = 10;

/// How long a prune keeps what is not needed any more, if no time is set: readers may still use it.
const DEFAULT_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// The object that is put to learn the time of the server. One that a killed prune left is replaced and deleted by the next.
const TIME_OBJECT: &str = "PRUNE";

/// How often it is put, if other prunes delete it.
const MAX_TIME_TRIES: u32 = 5;

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
        let now = self.server_time(options.is_plan)?;
        let mut unneeded = self.unneeded(&published, options)?;
        self.keep_newer(published, &mut unneeded)?;
        self.delete_unneeded(unneeded, now, options)
    }

    /// Finds what the last generations and tags do not need.
    fn unneeded(&self, published: &Published, options: &PruneOptions) -> Result<Unneeded> {
        let mut found = Unneeded::default();
        let (mut needed, mut replaced) = (BTreeSet::new(), BTreeMap::new());
        let (mut known, mut next_put) = (BTreeSet::new(), None);
        // A remote manifest may have 64 MiB, so one at a time is in memory.
        for link in self.links(published) {
            let link = link?;
            let is_kept = found.generation_count < options.keep_last as u64;
            if is_kept {
                needed.extend(self.needed_by(&link)?);
                found.generation_count += 1;
            }
            // What a manifest replaced was needed until it was put.
            for object in &link.manifest.replaced {
                if is_kept || !needed.contains(object) {
                    replaced.entry(*object).or_insert(link.modified);
                }
            }
            if !is_kept {
                // It was needed until the next one was put.
                found.since.insert(link.name.clone(), next_put.unwrap_or(link.modified));
            }
            if options.orphans {
                known.insert(link.name);
            }
            next_put = Some(link.modified);
        }
        replaced.retain(|object, _| !needed.contains(object));
        found.since.extend(replaced.into_iter().map(|(object, since)| (object_path(&object), since)));
        if options.orphans {
            known.extend(needed.iter().map(object_path));
            for dir in ["objects", "generations"] {
                for listed in self.client.list(dir)? {
                    // Others may keep objects of their own in a directory of this name.
                    let is_own = object_from_path(&listed.name).is_some()
                        || manifest_from_path(&listed.name).is_some();
                    if is_own && !known.contains(&listed.name) {
                        found.since.entry(listed.name).or_insert(listed.modified);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Keeps what was pushed since the remote was examined.
    fn keep_newer(&self, mut examined: Published, unneeded: &mut Unneeded) -> Result<()> {
        while let Some(head) = self.client.get_if_changed("HEAD", &examined.head.version, MAX_HEAD_BYTES)?
            && head.bytes != examined.head.bytes
        {
            let newer = self.published_by(head)?;
            let known = examined.head_record.manifest_path();
            for link in self.links(&newer) {
                let link = link?;
                if link.name == known {
                    break;
                }
                unneeded.since.remove(&link.name);
                for object in self.needed_by(&link)? {
                    unneeded.since.remove(&object_path(&object));
                }
            }
            examined = newer;
        }
        Ok(())
    }

    /// Returns the objects that a generation needs.
    fn needed_by(&self, link: &Link) -> Result<BTreeSet<ObjectName>> {
        Index::new(&link.manifest.pages).objects(&|segments| self.fetch_pages(segments))
    }

    /// Deletes objects for which the grace period is over.
    fn delete_unneeded(&self, unneeded: Unneeded, now: SystemTime, options: &PruneOptions) -> Result<Pruned> {
        let mut pruned = Pruned { generation_count: unneeded.generation_count, ..Pruned::default() };
        // What is put later than this, as by a push that has just put an object again, is kept.
        let before = now.checked_sub(options.grace);
        // The manifests last, and the oldest of them first: while one is there, a prune finds what is older.
        let mut order: Vec<(String, SystemTime)> = unneeded.since.into_iter().collect();
        order.sort_by_key(|(name, since)| (name.starts_with("generations/"), *since, name.clone()));
        let mut oldest_waiting = None;
        for (name, since) in order {
            // Only the manifest that replaced an object names it, and it was needed longer than the object.
            let is_named_by_it = |waiting: SystemTime| name.starts_with("generations/") && since > waiting;
            let before =
                before.filter(|before| since <= *before && !oldest_waiting.is_some_and(is_named_by_it));
            let info = match before {
                Some(before) if !options.is_plan => self.client.delete_if_older(&name, before)?,
                _ => self.client.info(&name)?,
            };
            let Some(info) = info else { continue };
            if before.is_some_and(|before| info.modified <= before) {
                pruned.object_count += 1;
                pruned.freed_bytes += info.length_bytes;
            } else {
                oldest_waiting = Some(oldest_waiting.map_or(since, |oldest: SystemTime| oldest.min(since)));
                pruned.waiting_count += 1;
                pruned.waiting_bytes += info.length_bytes;
            }
        }
        Ok(pruned)
    }

    /// Returns the time of the server. A plan writes nothing, and takes the time of this machine.
    fn server_time(&self, is_plan: bool) -> Result<SystemTime> {
        if is_plan {
            return Ok(SystemTime::now());
        }
        for _ in 0..MAX_TIME_TRIES {
            self.client.put(TIME_OBJECT, Bytes::from_static(b"asks for the time of the server"))?;
            let info = self.client.info(TIME_OBJECT);
            self.client.delete(TIME_OBJECT)?;
            // Another prune may have deleted it.
            if let Some(info) = info? {
                return Ok(info.modified);
            }
        }
        let message =
            format!("{TIME_OBJECT}: other prunes delete the object again and again; prune again later");
        Err(Error::new(ErrorKind::Conflict, message))
    }
}

/// What neither the last generations nor tags need.
#[derive(Default)]
struct Unneeded {
    /// By name, since when an object is not needed.
    since: BTreeMap<String, SystemTime>,
    /// How many generations are kept.
    generation_count: u64,
}
