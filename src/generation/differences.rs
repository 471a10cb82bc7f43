//! What this store lacks of a later generation of the same store elsewhere, and the manifest of that generation with the
//! history of this store.
//!
//! This store is at generation n, and receives m, which follows n. Between the two, the other store made commits that this
//! one never sees. So the history of this store is that of m, except for what its own readers may need: these have
//! generations up to n. What m lists as garbage without a tag, and this store never had, is left out. What this store has,
//! and m neither has nor keeps for a tag, is garbage here: dropped by n + 1, if n still has it. No tagged generation after n
//! needs that, because m lists all garbage that its tagged generations need (F-28).

use std::collections::BTreeMap;

use stridemap_format::{
    Error as FormatError, GarbageKey, KeptGeneration, Manifest, RecordKind, Rule, StorageRecord,
};

use super::Generation;
use super::early::EarlyFiles;
use super::entries::{GarbageEntry, Tables, insert, remove};
use super::incoming::Incoming;
use super::merge::merge;
use crate::disk::StorePaths;
use crate::error::{Error, ErrorKind, Result};

/// What is to be done for a storage of the received generation.
#[derive(Debug)]
pub(crate) enum Need {
    /// This store does not have it.
    New,
    /// This store has the beginning, with this record.
    Longer(StorageRecord),
    /// Its bytes may have changed in place.
    InPlace,
}

/// A storage whose bytes must come from the other store.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) id: u64,
    /// The record that the received generation has, among its storages or its garbage.
    pub(crate) record: StorageRecord,
    /// For garbage, the generation that dropped it.
    pub(crate) dropped: Option<u64>,
    pub(crate) need: Need,
}

/// The differences between the newest generation of this store and a received one.
pub(crate) struct Differences {
    /// The manifest of the received generation, with the history of this store.
    pub(super) next: Manifest,
    pub(crate) wanted: Vec<Wanted>,
    /// The generations that have tags now, and had none in this store.
    pub(crate) gained: Vec<(u64, KeptGeneration)>,
    /// Those that have none any more.
    pub(super) released: Vec<(u64, KeptGeneration)>,
}

/// The comparison of two generations.
pub(super) struct Comparison<'a> {
    pub(super) newest: &'a Generation,
    pub(super) incoming: &'a Generation,
    /// The tables of `next`.
    pub(super) tables: Tables<'a>,
    early: &'a EarlyFiles<'a>,
    paths: &'a StorePaths,
    /// The generations with tags, and their next storage ids.
    pub(super) tagged: Vec<(u64, u64)>,
    pub(super) done: Differences,
    /// The storages of this store that are no garbage with tags in the received generation, by id. The key is that of
    /// garbage of this store, or says that the storage is dropped now.
    spare: BTreeMap<u64, (GarbageKey, StorageRecord)>,
    /// The garbage that tags keep in the received generation, and that was none in this store.
    kept: BTreeMap<u64, (GarbageKey, StorageRecord)>,
}

/// Compares the newest generation of this store with a received one.
///
/// # Errors
/// `Corrupt` if the received generation contradicts itself or this store; `NotAllowed` for external storages.
pub(crate) fn differences(
    incoming: &Incoming,
    early: &EarlyFiles<'_>,
    paths: &StorePaths,
) -> Result<Differences> {
    let (newest, incoming) = (early.newest(), &incoming.generation);
    let own = newest.manifest();
    let next = Manifest {
        history: own.history,
        tags: own.tags.clone(),
        kept: own.kept.clone(),
        garbage: own.garbage.clone(),
        ..incoming.manifest().without_history()
    };
    let done = Differences { next, wanted: Vec::new(), gained: Vec::new(), released: Vec::new() };
    let tables = Tables { table: incoming.tables().table, history: newest.tables().history };
    let (tagged, spare, kept) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let mut comparison = Comparison { newest, incoming, tables, early, paths, tagged, done, spare, kept };
    if incoming.manifest().next_storage_id < own.next_storage_id {
        return Err(
            comparison.broken(Rule::StorageId, "its next storage id is lower than that of an earlier one")
        );
    }
    comparison.tags()?;
    comparison.garbage()?;
    comparison.storages()?;
    comparison.finish()?;
    Ok(comparison.done)
}

impl Comparison<'_> {
    /// Returns the error for a received generation that contradicts itself or this store.
    pub(super) fn broken(&self, rule: Rule, detail: impl Into<String>) -> Error {
        Error::corrupt(&self.paths.manifest(self.incoming.number()), FormatError::new(rule, detail))
            .context("received manifest")
    }

    /// Whether the tags of the received generation keep a storage that `dropped` dropped (F-28).
    fn is_kept(&self, id: u64, dropped: u64) -> bool {
        let before = self.tagged.partition_point(|(generation, _)| *generation < dropped);
        before.checked_sub(1).and_then(|at| self.tagged.get(at)).is_some_and(|(_, next_id)| id < *next_id)
    }

    /// Compares the garbage that tags keep in the received generation with all garbage of this store.
    fn garbage(&mut self) -> Result<()> {
        let first = GarbageKey { is_tagged: true, dropped: 0, id: 0 };
        let mut before = self.newest.entries().scan::<GarbageEntry>(None)?;
        let mut after = self.incoming.entries().scan::<GarbageEntry>(Some(&first))?;
        merge(&mut before, &mut after, |key: GarbageKey, before, after| {
            if after.is_some() && !self.is_kept(key.id, key.dropped) {
                let detail = format!("no tag keeps storage {:016x}, which is listed as kept", key.id);
                return Err(self.broken(Rule::RecordCount, detail));
            }
            if before == after {
                // A collection deletes the files if the storage was restored, and no tagged generation has it after all. One
                // that was tagged since may have it.
                return match after.filter(|record| record.is_restored) {
                    Some(record) if !self.has_files(key.id, &record)? => {
                        self.want(key.id, record, None, Some(key.dropped))
                    }
                    _ => Ok(()),
                };
            }
            if let Some(before) = before {
                self.spare.insert(key.id, (key, before));
            }
            if let Some(after) = after
                && self.kept.insert(key.id, (key, after)).is_some()
            {
                let detail = format!("storage {:016x} is garbage twice", key.id);
                return Err(self.broken(Rule::RecordCount, detail));
            }
            Ok(())
        })
    }

    /// Compares the storages.
    fn storages(&mut self) -> Result<()> {
        let dropped = self.newest.number().saturating_add(1);
        let (mut before, mut after) = (self.newest.storages()?, self.incoming.storages()?);
        merge(&mut before, &mut after, |id, before: Option<StorageRecord>, after| {
            let Some(after) = after else {
                if let Some(before) = before {
                    let record = StorageRecord { tensor_count: 0, ..before };
                    self.spare.insert(id, (GarbageKey { is_tagged: false, dropped, id }, record));
                }
                return Ok(());
            };
            if self.kept.contains_key(&id) {
                return Err(self.broken(Rule::RecordCount, format!("storage {id:016x} is also garbage")));
            }
            match before {
                Some(before) => self.want(id, after, Some(before), None),
                None => {
                    let spare = self.take_spare(id)?;
                    let spare = self.existing(id, spare)?;
                    self.want(id, after, spare, None)
                }
            }
        })
    }

    /// Returns the record of garbage of this store that is no garbage any more.
    fn take_spare(&mut self, id: u64) -> Result<Option<StorageRecord>> {
        let Some((key, record)) = self.spare.remove(&id) else { return Ok(None) };
        remove::<GarbageEntry>(&mut self.done.next, self.tables, &key)?;
        Ok(Some(record))
    }

    /// Returns the record of garbage if its files exist: a collection may have deleted them, or be about to.
    fn existing(&self, id: u64, own: Option<StorageRecord>) -> Result<Option<StorageRecord>> {
        match own {
            Some(own) if self.has_files(id, &own)? => Ok(Some(own)),
            _ => Ok(None),
        }
    }

    /// Adds a storage to the wanted ones, unless this store has all of it. `own` is its record here. For garbage, `dropped`
    /// is the generation that dropped it.
    fn want(
        &mut self,
        id: u64,
        record: StorageRecord,
        own: Option<StorageRecord>,
        dropped: Option<u64>,
    ) -> Result<()> {
        if matches!(record.kind, RecordKind::External(_)) {
            return Err(external_error(id));
        }
        let need = match own {
            None => Some(Need::New),
            Some(own) => match (&own.kind, &record.kind) {
                (RecordKind::Sealed(_), RecordKind::Sealed(_)) if own.length_bytes < record.length_bytes => {
                    Some(Need::Longer(own))
                }
                (before, after) if before != after || own.length_bytes != record.length_bytes => {
                    let detail = format!("storage {id:016x} is a different one in this store");
                    return Err(self.broken(Rule::ChunkDigest, detail));
                }
                (RecordKind::Sealed(_), _) => None,
                _ => Some(Need::InPlace),
            },
        };
        self.done.wanted.extend(need.map(|need| Wanted { id, record, dropped, need }));
        Ok(())
    }

    /// Whether the files of garbage exist. Then they must still exist when the commit is made.
    fn has_files(&self, id: u64, own: &StorageRecord) -> Result<bool> {
        let has_sum = matches!(own.kind, RecordKind::Sealed(_))
            && stridemap_format::full_chunk_count(own.length_bytes) > 0;
        let files = [Some(self.paths.storage(id)), has_sum.then(|| self.paths.sum(id))];
        for path in files.into_iter().flatten() {
            if !self.early.note_if_there(&path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the garbage of both.
    fn finish(&mut self) -> Result<()> {
        for (id, (key, record)) in std::mem::take(&mut self.kept) {
            let own = self.take_spare(id)?;
            let own = self.existing(id, own)?;
            self.want(id, record.clone(), own, Some(key.dropped))?;
            insert::<GarbageEntry>(&mut self.done.next, key, record);
        }
        for (id, (key, record)) in std::mem::take(&mut self.spare) {
            if self.is_kept(id, key.dropped) {
                let detail = format!("storage {id:016x} is missing from the garbage that tags keep");
                return Err(self.broken(Rule::RecordCount, detail));
            }
            if key.is_tagged {
                remove::<GarbageEntry>(&mut self.done.next, self.tables, &key)?;
            }
            insert::<GarbageEntry>(&mut self.done.next, GarbageKey { is_tagged: false, ..key }, record);
        }
        Ok(())
    }
}

fn external_error(id: u64) -> Error {
    let message = format!(
        "storage {id:016x} is external: it is in a file that does not belong to the store, so it cannot be received; \
         copy it into the other store first, with Store::materialize or stridemap materialize"
    );
    Error::new(ErrorKind::NotAllowed, message)
}
