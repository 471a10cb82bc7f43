//! Which files a store's generations need: the newest, those that tags name, and older ones in use.

use std::collections::BTreeMap;

use stridemap_format::{Digest, GarbageKey, RecordKind, full_chunk_count};

use super::inventory::{SpaceReason, Spare};
use super::tagged::TaggedGenerations;
use crate::disk::StoreFile;
use crate::error::{ErrorKind, Result};
use crate::generation::{GarbageEntry, Generation, GenerationInUse, StoreDir};

/// The files that the newest generation, the tagged ones, and older ones in use need.
#[derive(Debug)]
pub(super) struct Needs {
    newest: u64,
    next_storage_id: u64,
    table: Option<u64>,
    history: Option<u64>,
    /// The storages of the newest generation: the length of a sealed one, `None` for one that is changed in place.
    storages: BTreeMap<u64, Option<u64>>,
    /// For each storage that is garbage: the generation that dropped it.
    dropped: BTreeMap<u64, u64>,
    tagged: TaggedGenerations,
    /// Whether part of the newest generation cannot be read, so that it may need any file.
    is_damaged: bool,
    pins: Vec<GenerationInUse>,
}

impl Needs {
    /// Collects what a generation and the pinned ones need. If `allows_damage` is set, a damaged generation may need
    /// every file.
    ///
    /// # Errors
    /// `Corrupt` for a damaged entry of the newest generation, unless `allows_damage` is set.
    pub(super) fn of(
        store: &StoreDir,
        newest: &Generation,
        pins: Vec<GenerationInUse>,
        allows_damage: bool,
    ) -> Result<Self> {
        let manifest = newest.manifest();
        let mut needs = Needs {
            newest: newest.number(),
            next_storage_id: manifest.next_storage_id,
            table: manifest.table.map(|table| table.generation),
            history: manifest.history.map(|history| history.generation),
            storages: BTreeMap::new(),
            dropped: BTreeMap::new(),
            tagged: TaggedGenerations::default(),
            is_damaged: false,
            pins,
        };
        match needs.add_history(store, newest) {
            Err(e) if allows_damage && e.kind() == ErrorKind::Corrupt => needs.is_damaged = true,
            added => added?,
        }
        for entry in newest.storages()? {
            let (id, record) = match entry {
                Err(e) if allows_damage && e.kind() == ErrorKind::Corrupt => {
                    needs.is_damaged = true;
                    continue;
                }
                entry => entry?,
            };
            let sealed_bytes = match record.kind {
                RecordKind::External(_) => continue,
                RecordKind::Sealed(_) => Some(record.length_bytes),
                RecordKind::Mutable | RecordKind::Live { .. } => None,
            };
            needs.storages.insert(id, sealed_bytes);
        }
        Ok(needs)
    }

    /// Adds what tags keep, and what is garbage.
    fn add_history(&mut self, store: &StoreDir, newest: &Generation) -> Result<()> {
        self.tagged = TaggedGenerations::list(newest)?;
        let mut restored = Vec::new();
        for garbage in newest.entries().scan::<GarbageEntry>(None)? {
            let (GarbageKey { dropped, id, .. }, record) = garbage?;
            self.dropped.insert(id, dropped);
            restored.extend(record.is_restored.then_some(id));
        }
        let in_use: Vec<u64> = self.pins.iter().map(|pin| pin.generation).collect();
        self.tagged.find_restored(store, newest, &restored, &in_use)
    }

    /// Returns the first tagged generation that needs a storage.
    pub(super) fn tagged_with(&self, id: u64, dropped: u64) -> Option<u64> {
        self.tagged.with_storage(id).next().filter(|first| *first < dropped)
    }

    /// Returns the sealed storages of the newest generation, with their lengths.
    pub(super) fn sealed_storages(&self) -> impl Iterator<Item = (u64, u64)> {
        self.storages.iter().filter_map(|(&id, &length_bytes)| Some((id, length_bytes?)))
    }

    /// Whether the file may be one that a commit in progress is about to publish.
    pub(super) fn may_be_published(&self, file: StoreFile) -> bool {
        match file {
            StoreFile::Table(number) | StoreFile::History(number) | StoreFile::KeptManifest(number) => {
                number > self.newest
            }
            StoreFile::Storage(id) | StoreFile::Digests(id) => id >= self.next_storage_id,
            _ => false,
        }
    }

    /// Returns the bytes of a file that the newest generation does not need, and why they exist. Ignores writers.
    pub(super) fn spare(&self, file: StoreFile, size_bytes: u64) -> Option<Spare> {
        let all = |reason| Some(Spare { bytes: size_bytes, reason });
        match file {
            StoreFile::Unfinished => all(SpaceReason::Garbage),
            StoreFile::Foreign => all(SpaceReason::Foreign),
            // A later generation was published meanwhile.
            StoreFile::Manifest(number) if number >= self.newest => None,
            StoreFile::Manifest(number) => all(self.reason(|pin| pin.generation == number)),
            _ if self.is_damaged && !self.has_storage(file) => None,
            StoreFile::KeptManifest(number) => {
                let first = self.tagged.first_from(number).filter(|(generation, _)| *generation == number);
                all(match first {
                    Some(_) => SpaceReason::Tagged { generation: number },
                    None => self.reason(|pin| pin.generation == number),
                })
            }
            StoreFile::Table(number) if Some(number) == self.table => None,
            StoreFile::Table(number) => {
                let first = self.tagged.first_from(number).filter(|(_, kept)| kept.table == Some(number));
                all(match first {
                    Some(&(generation, _)) => SpaceReason::Tagged { generation },
                    None => self.reason(|pin| pin.needs_table(number)),
                })
            }
            StoreFile::History(number) if Some(number) == self.history => None,
            StoreFile::History(number) => all(self.reason(|pin| pin.needs_history(number))),
            StoreFile::Storage(id) | StoreFile::Digests(id) => {
                let Some(&length_bytes) = self.storages.get(&id) else {
                    let dropped = self.dropped.get(&id).copied();
                    let needs = |pin: &GenerationInUse| {
                        pin.needs_storage(id, dropped.unwrap_or(u64::MAX))
                            && self.tagged.may_have(pin.generation, id)
                    };
                    return all(match dropped.and_then(|dropped| self.tagged_with(id, dropped)) {
                        Some(generation) => SpaceReason::Tagged { generation },
                        None => self.reason(needs),
                    });
                };
                let needed_bytes = match (file, length_bytes) {
                    (StoreFile::Storage(_), None) => return None,
                    (_, None) => return all(SpaceReason::Garbage),
                    (StoreFile::Storage(_), Some(length_bytes)) => length_bytes,
                    (_, Some(length_bytes)) => match full_chunk_count(length_bytes) {
                        0 => return all(SpaceReason::Garbage),
                        count => count * size_of::<Digest>() as u64,
                    },
                };
                let bytes = size_bytes.saturating_sub(needed_bytes);
                (bytes > 0).then_some(Spare { bytes, reason: SpaceReason::Garbage })
            }
        }
    }

    /// Whether a file of `storages/` or `generations/` can be deleted.
    pub(super) fn unneeded(&self, file: StoreFile) -> bool {
        // With the size 0, `Garbage` is returned only if no byte of the file is needed.
        let is_own = !matches!(file, StoreFile::Unfinished | StoreFile::Foreign);
        is_own && self.spare(file, 0).is_some_and(|spare| spare.reason == SpaceReason::Garbage)
    }

    /// Whether the file is of a storage of the newest generation.
    pub(super) fn has_storage(&self, file: StoreFile) -> bool {
        matches!(file, StoreFile::Storage(id) | StoreFile::Digests(id) if self.storages.contains_key(&id))
    }

    /// Returns `Pinned` if older generations need a file, otherwise `Garbage`.
    fn reason(&self, needs: impl Fn(&GenerationInUse) -> bool) -> SpaceReason {
        let pins = || self.pins.iter().filter(|pin| needs(pin));
        let Some(generation) = pins().map(|pin| pin.generation).min() else { return SpaceReason::Garbage };
        let mut processes: Vec<u32> = pins().flat_map(|pin| pin.processes.iter().copied()).collect();
        processes.sort_unstable();
        processes.dedup();
        SpaceReason::Pinned { generation, processes }
    }
}
