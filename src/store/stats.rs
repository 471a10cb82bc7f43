use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use stridemap_format::StorageKind as RecordKind;

use super::handle::Store;
use super::snapshot::StorageKind;
use crate::commit::{self, Generation, History, Pin, Standing, Worth};
use crate::disk::{STAGE_PREFIX, number_in};
use crate::error::{Error, Result};
use crate::layout::reached_bytes;

/// How many names are given of those that stand on a storage.
const MOST_NAMES: usize = 3;

/// How many runs of bytes are counted for one storage.
const MOST_RUNS: u64 = 1 << 20;

/// How often the files are listed again because a commit went by.
const MOST_TRIES: u32 = 10;

/// Where the space of a store is, and why what nobody reaches is still there: see [`Store::stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The generation that was looked at: the newest.
    pub generation: u64,
    /// The lengths of the store's files, together.
    pub file_bytes: u64,
    /// Of these the bytes of manifests and tables.
    pub metadata_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether that is exact, and not only a bound, for every storage.
    pub is_exact: bool,
    /// The lengths of external storages, together: bytes of files that are not the store's, which no other number here
    /// counts.
    pub external_bytes: u64,
    /// The storages and files that have bytes to give back, storages by ascending id and then unfinished files.
    pub storages: Vec<StorageStats>,
}

impl Stats {
    /// All bytes that could be given back, now or when what stands in the way is gone.
    #[must_use]
    pub fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable().map(|reclaimable| reclaimable.bytes).fold(0, u64::saturating_add)
    }

    /// What could be given back, of all storages.
    pub fn reclaimable(&self) -> impl Iterator<Item = &Reclaimable> {
        self.storages.iter().flat_map(|storage| &storage.reclaimable)
    }
}

/// A storage, or an unfinished file, that has bytes to give back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorageStats {
    /// Its id; none for an unfinished file.
    pub id: Option<u64>,
    /// How its bytes may change; none when no record says so any more.
    pub kind: Option<StorageKind>,
    /// The file of its bytes.
    pub file: PathBuf,
    /// The length of that file, and of the file of chunk digests beside it.
    pub file_bytes: u64,
    /// Its length by its record; 0 without one.
    pub length_bytes: u64,
    /// The bytes that some tensor reaches, each counted once.
    pub reachable_bytes: u64,
    /// Whether that is exact. Where the tensors reach more than a million separate runs of bytes it is the length to which
    /// the storage could be compacted.
    pub is_exact: bool,
    /// How many names stand on it.
    pub tensor_count: u64,
    /// The first few of them.
    pub names: Vec<String>,
    /// What could be given back, and why it has not been.
    pub reclaimable: Vec<Reclaimable>,
}

/// Bytes that could be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimable {
    /// How many.
    pub bytes: u64,
    /// Why they have not been.
    pub reason: SpaceReason,
}

/// Why bytes that no tensor of the newest generation reaches are still on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpaceReason {
    /// They lie between bytes that tensors reach: [`Store::compact`] gives them back.
    Unreached,
    /// As `Unreached`, but too few: compaction gives back a quarter of a storage or more, and no less than a block of 4 KiB.
    TooLittle,
    /// As `Unreached`, in a mutable storage, whose file is changed in place. Saved again under its names, the tensors get
    /// storages of their own.
    Mutable,
    /// As `Unreached`, in a live storage.
    Live,
    /// No name stands on the storage any more, but somebody is on a generation that has it. The next commit, or
    /// [`Store::gc`], deletes it once these processes, as far as the system says which, have moved on.
    Pinned {
        /// The oldest generation that needs it and that somebody is on.
        generation: u64,
        /// All processes that are on such a generation.
        processes: Vec<u32>,
    },
    /// No name stands on the storage, and nobody needs it: the next commit deletes it, or [`Store::gc`].
    Garbage,
    /// A commit that never came to be left the file: [`Store::gc`] deletes it. Or one is under way, of which the system
    /// does not say.
    Orphaned,
    /// The file is being written, by these processes as far as the system says so.
    Writing {
        /// Who writes.
        processes: Vec<u32>,
    },
    /// The writer of the file died: the first commit of another handle deletes it, or [`Store::gc`].
    Abandoned,
    /// The bytes are past the storage's end, from an append that never came to be: [`Store::gc`] cuts them off. Or one is
    /// under way, of which the system does not say.
    PastEnd,
}

impl SpaceReason {
    /// One word: `unreached`, `too_little`, `mutable`, `live`, `pinned`, `garbage`, `orphaned`, `writing`, `abandoned` or
    /// `past_end`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            SpaceReason::Unreached => "unreached",
            SpaceReason::TooLittle => "too_little",
            SpaceReason::Mutable => "mutable",
            SpaceReason::Live => "live",
            SpaceReason::Pinned { .. } => "pinned",
            SpaceReason::Garbage => "garbage",
            SpaceReason::Orphaned => "orphaned",
            SpaceReason::Writing { .. } => "writing",
            SpaceReason::Abandoned => "abandoned",
            SpaceReason::PastEnd => "past_end",
        }
    }

    /// The processes that are in the way, as far as the system says which.
    #[must_use]
    pub fn processes(&self) -> &[u32] {
        match self {
            SpaceReason::Pinned { processes, .. } | SpaceReason::Writing { processes } => processes,
            _ => &[],
        }
    }
}

/// With what gives the bytes back.
impl fmt::Display for SpaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpaceReason::Unreached => f.write_str("no tensor reaches them: compact"),
            SpaceReason::TooLittle => f.write_str("no tensor reaches them, but they are too few to compact"),
            SpaceReason::Mutable => {
                f.write_str("no tensor reaches them, in a mutable storage: save the tensors again")
            }
            SpaceReason::Live => {
                f.write_str("no tensor reaches them, in a live storage: save the tensors again")
            }
            SpaceReason::Pinned { generation, processes } => {
                write!(f, "generation {generation} is held{}", commit::by(processes))
            }
            SpaceReason::Garbage => f.write_str("no name, no reader: gc, or the next commit"),
            SpaceReason::Orphaned => f.write_str("left by a commit that never came to be: gc"),
            SpaceReason::Writing { processes } => write!(f, "being written{}", commit::by(processes)),
            SpaceReason::Abandoned => f.write_str("left by a writer that died: gc"),
            SpaceReason::PastEnd => f.write_str("past the end, from an append that never came to be: gc"),
        }
    }
}

/// The lengths of a storage's files.
#[derive(Clone, Copy, Debug, Default)]
struct Files {
    bin_bytes: Option<u64>,
    sum_bytes: u64,
}

impl Files {
    fn bytes(self) -> u64 {
        self.bin_bytes.unwrap_or_default().saturating_add(self.sum_bytes)
    }
}

/// What is on disk, beside what a generation says.
struct Found {
    newest: std::sync::Arc<Generation>,
    pins: Vec<Pin>,
    storages: BTreeMap<u64, Files>,
    unfinished: Vec<(PathBuf, u64)>,
    file_bytes: u64,
    metadata_bytes: u64,
}

impl Store {
    /// Where the space of the store is: which bytes no tensor of the newest generation reaches, and why they are still
    /// there. Goes through all headers and looks at every file; no element is read, and nothing is changed.
    ///
    /// The locks of commits and appends are not touched: who holds them is read from `/proc/locks`. Where that does not
    /// say, as for a process of another namespace, an append or a commit that is under way is taken for one that never
    /// came to be. On an older generation and on an unfinished file, of which it says nothing, a lock is tried and given
    /// back at once. A collection just then takes the one for in use, and leaves it to the next; a writer that has created
    /// the other but not locked it yet creates another.
    ///
    /// It shows the store while others write, so a file that a commit is just making or deleting can be among what it
    /// lists.
    ///
    /// # Errors
    /// `Corrupt` for metadata that breaks a rule, `Busy` as in [`open`](Self::open), `Io`.
    pub fn stats(&self) -> Result<Stats> {
        let history = &self.loader.history;
        history.check_process()?;
        let found = Found::look(history)?;
        let mut stats = Stats {
            generation: found.newest.number(),
            file_bytes: found.file_bytes,
            metadata_bytes: found.metadata_bytes,
            reachable_bytes: 0,
            is_exact: true,
            external_bytes: 0,
            storages: Vec::new(),
        };
        for entry in found.newest.storages() {
            let (_, record) = entry?;
            if matches!(record.kind, RecordKind::External(_)) {
                stats.external_bytes = stats.external_bytes.saturating_add(record.length_bytes);
            }
        }
        commit::each_standing(&found.newest, |standing| {
            let files = found.storages.get(&standing.id).copied().unwrap_or_default();
            let storage = of_standing(history, standing, files)?;
            stats.reachable_bytes = stats.reachable_bytes.saturating_add(storage.reachable_bytes);
            stats.is_exact &= storage.is_exact;
            stats.storages.extend(Some(storage).filter(|storage| !storage.reclaimable.is_empty()));
            Ok(())
        })?;
        for (&id, &files) in &found.storages {
            if found.newest.storage(id)?.is_none() {
                let reason = found.why_without_record(history, id);
                stats.storages.push(without_record(
                    Some(id),
                    history.paths.storage(id),
                    files.bytes(),
                    reason,
                ));
            }
        }
        stats.storages.sort_by_key(|storage| storage.id);
        for (path, bytes) in found.unfinished {
            let reason = match commit::unfinished_by(history, &path) {
                Some(processes) => SpaceReason::Writing { processes },
                None => SpaceReason::Abandoned,
            };
            stats.storages.push(without_record(None, path, bytes, reason));
        }
        Ok(stats)
    }
}

/// A storage with a record.
fn of_standing(history: &History, standing: Standing, files: Files) -> Result<StorageStats> {
    let path = history.paths.storage(standing.id);
    let length_bytes = standing.record.length_bytes;
    let compacted_bytes = standing.repacked(history)?.length_bytes;
    let reached = reached_bytes(&standing.views(), length_bytes, MOST_RUNS);
    let reached = reached.map_err(|e| Error::corrupt(&path, e))?;
    let kind = match standing.record.kind {
        RecordKind::Sealed(_) => StorageKind::Sealed,
        RecordKind::Mutable => StorageKind::Mutable,
        RecordKind::Live { .. } => StorageKind::Live,
        RecordKind::External(_) => StorageKind::External,
    };
    let mut reclaimable = Vec::new();
    let unreached = match (commit::worth(length_bytes, compacted_bytes), kind) {
        (Worth::Nothing, _) => None,
        (Worth::Little, _) => Some(SpaceReason::TooLittle),
        (Worth::Much, StorageKind::Mutable) => Some(SpaceReason::Mutable),
        (Worth::Much, StorageKind::Live) => Some(SpaceReason::Live),
        (Worth::Much, _) => Some(SpaceReason::Unreached),
    };
    reclaimable.extend(
        unreached.map(|reason| Reclaimable { bytes: length_bytes.saturating_sub(compacted_bytes), reason }),
    );
    let past_end = files.bin_bytes.unwrap_or_default().saturating_sub(length_bytes);
    if kind == StorageKind::Sealed && past_end > 0 {
        // Who appends holds the file's lock. It is not tried: somebody may come for it just then.
        let processes = commit::holders(history, &path);
        let reason = match processes.is_empty() {
            true => SpaceReason::PastEnd,
            false => SpaceReason::Writing { processes },
        };
        reclaimable.push(Reclaimable { bytes: past_end, reason });
    }
    Ok(StorageStats {
        id: Some(standing.id),
        kind: Some(kind),
        file: path,
        file_bytes: files.bytes(),
        length_bytes,
        reachable_bytes: reached.unwrap_or(compacted_bytes),
        is_exact: reached.is_some(),
        tensor_count: standing.record.tensor_count,
        names: standing.tensors.into_keys().take(MOST_NAMES).collect(),
        reclaimable,
    })
}

/// A file that stands for itself.
fn without_record(id: Option<u64>, file: PathBuf, bytes: u64, reason: SpaceReason) -> StorageStats {
    StorageStats {
        id,
        kind: None,
        file,
        file_bytes: bytes,
        length_bytes: 0,
        reachable_bytes: 0,
        is_exact: true,
        tensor_count: 0,
        names: Vec::new(),
        reclaimable: vec![Reclaimable { bytes, reason }],
    }
}

impl Found {
    /// Looks until no commit comes between the generation and the files.
    fn look(history: &History) -> Result<Found> {
        let mut tries = 0;
        loop {
            let found = Found::look_once(history)?;
            tries += 1;
            if tries == MOST_TRIES || history.newest()?.number() == found.newest.number() {
                return Ok(found);
            }
        }
    }

    fn look_once(history: &History) -> Result<Found> {
        let newest = history.newest()?;
        let pins = commit::pins(history, &newest)?;
        let paths = &history.paths;
        let mut found = Found {
            newest,
            pins,
            storages: BTreeMap::new(),
            unfinished: Vec::new(),
            file_bytes: 0,
            metadata_bytes: 0,
        };
        for path in [paths.marker(), paths.lock(), paths.unsynced()] {
            found.file_bytes = found.file_bytes.saturating_add(size_of(history, &path).unwrap_or_default());
        }
        for (dir, is_meta) in [(paths.meta_dir(), true), (paths.storages_dir(), false)] {
            for name in history.disk.list(&dir).map_err(|e| Error::io("list", &dir, e))? {
                let path = dir.join(&name);
                let Some(bytes) = size_of(history, &path) else { continue };
                found.file_bytes = found.file_bytes.saturating_add(bytes);
                if is_meta {
                    found.metadata_bytes = found.metadata_bytes.saturating_add(bytes);
                    continue;
                }
                match (number_in(&name, "bin"), number_in(&name, "sum")) {
                    (Some(id), _) => found.storages.entry(id).or_default().bin_bytes = Some(bytes),
                    (_, Some(id)) => found.storages.entry(id).or_default().sum_bytes = bytes,
                    _ if name.starts_with(STAGE_PREFIX) => found.unfinished.push((path, bytes)),
                    _ => {}
                }
            }
        }
        found.unfinished.sort_unstable();
        Ok(found)
    }

    fn why_without_record(&self, history: &History, id: u64) -> SpaceReason {
        let manifest = self.newest.manifest();
        let Some(&dropped) = manifest.garbage.get(&id) else {
            // The holder of the writers' lock may be about to publish it.
            let processes = match id >= manifest.next_storage_id {
                true => commit::holders(history, &history.paths.lock()),
                false => Vec::new(),
            };
            return match processes.is_empty() {
                true => SpaceReason::Orphaned,
                false => SpaceReason::Writing { processes },
            };
        };
        let pins: Vec<&Pin> = self.pins.iter().filter(|pin| pin.needs(id, dropped)).collect();
        let Some(generation) = pins.iter().map(|pin| pin.generation).min() else {
            return SpaceReason::Garbage;
        };
        let mut processes: Vec<u32> = pins.iter().flat_map(|pin| pin.processes.iter().copied()).collect();
        processes.sort_unstable();
        processes.dedup();
        SpaceReason::Pinned { generation, processes }
    }
}

/// None for a file that has gone since it was listed.
fn size_of(history: &History, path: &Path) -> Option<u64> {
    Some(history.disk.stat(path).ok()?.size_bytes)
}
