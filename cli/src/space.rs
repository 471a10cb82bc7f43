//! `compact` and `stats`: the disk space of a store.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use indicatif::HumanBytes;
use serde::Serialize;
use stridemap::maintenance::{Reclaimable, SkipReason, SpaceReason, Stats, StorageStats};
use stridemap::{Store, StoreOptions};

use crate::args::{CompactArgs, StatsArgs};
use crate::error::Result;
use crate::expr::quoted;
use crate::inspect::{MAX_ROWS, columns, print_table};
use crate::output::{counted, message, one_line, progress, storage_id, write_json};
use crate::source::open_store;

/// Runs `compact`. Returns whether no damage was found.
pub(crate) fn compact(args: &CompactArgs, out: &mut impl Write) -> Result<bool> {
    let store = open_store(&args.external.options(), &args.store)?;
    if args.materialize {
        materialize(&store, out)?;
    }
    let bar = progress("compact", bytes_to_write(&store.stats()?));
    let compacted = store.compact(|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let deleted = compacted.collected;
    if deleted.file_count > 0 {
        writeln!(
            out,
            "deleted {}, {}",
            counted(deleted.file_count, "file"),
            counted(deleted.size_bytes, "byte")
        )?;
    }
    let storages = counted(compacted.storage_count, "storage");
    let (before, after) = (HumanBytes(compacted.before_bytes), HumanBytes(compacted.after_bytes));
    match compacted.storage_count {
        0 => writeln!(out, "compacted {storages}")?,
        _ => writeln!(out, "compacted {storages}: {before}, now {after}")?,
    }
    report_held_bytes(&store)?;
    let mut is_whole = true;
    for skipped in &compacted.skipped {
        is_whole &= !matches!(skipped.reason, SkipReason::Damaged(_));
        let (id, bytes) = (storage_id(skipped.storage_id), HumanBytes(skipped.reclaimable_bytes));
        message(&format!("skipped storage {id} ({bytes} reclaimable): {}", skipped.reason));
    }
    Ok(is_whole)
}

fn materialize(store: &Store, out: &mut impl Write) -> Result<()> {
    // Bytes that no tensor refers to are not copied, so the bar may end early.
    let bar = progress("materialize", store.stats()?.external_bytes);
    let done = store.materialize(|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let storages = counted(done.storage_count, "external storage");
    match done.storage_count {
        0 => writeln!(out, "materialized {storages}")?,
        _ => writeln!(out, "materialized {storages}: {}", HumanBytes(done.size_bytes))?,
    }
    for skipped in &done.skipped {
        message(&format!("skipped external storage {}: {}", storage_id(skipped.storage_id), skipped.reason));
    }
    Ok(())
}

/// Reports the bytes that cannot be deleted yet because readers hold them.
pub(crate) fn report_held_bytes(store: &Store) -> Result<()> {
    let stats = store.stats()?;
    let (mut bytes, mut holders) = (0u64, BTreeSet::<u32>::new());
    for reclaimable in stats.reclaimable() {
        if let SpaceReason::Pinned { processes, .. } = &reclaimable.reason {
            bytes = bytes.saturating_add(reclaimable.bytes);
            holders.extend(processes);
        }
    }
    if bytes > 0 {
        let holders: Vec<String> = holders.into_iter().map(|id| format!(" {id}")).collect();
        let bytes = HumanBytes(bytes);
        message(&format!(
            "{bytes} are held by readers on older generations (process{}); the next commit or gc after they end \
             frees them",
            holders.concat()
        ));
    }
    Ok(())
}

/// Returns the number of bytes that a compaction will write if no commit happens in the meantime.
fn bytes_to_write(stats: &Stats) -> u64 {
    let kept = stats.storages.iter().filter_map(|storage| {
        let unreached =
            storage.reclaimable.iter().find(|reclaimable| reclaimable.reason == SpaceReason::Unreached)?;
        Some(storage.size_bytes.saturating_sub(unreached.bytes))
    });
    kept.fold(0, u64::saturating_add)
}

pub(crate) fn stats(args: &StatsArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let stats = store.stats()?;
    if args.json {
        write_json(out, StatsRecord::new(&stats, store.path()))
    } else {
        print(&stats, &store, out)
    }
}

#[derive(Serialize)]
struct StatsRecord<'a> {
    generation: u64,
    file_bytes: u64,
    metadata_bytes: u64,
    reachable_bytes: u64,
    is_exact: bool,
    reclaimable_bytes: u64,
    external_bytes: u64,
    storages: Vec<StorageRecord<'a>>,
}

#[derive(Serialize)]
struct StorageRecord<'a> {
    id: Option<String>,
    kind: Option<&'static str>,
    file: String,
    file_bytes: u64,
    length_bytes: u64,
    reachable_bytes: u64,
    is_exact: bool,
    tensor_count: u64,
    names: &'a [String],
    reclaimable: Vec<ReclaimableRecord<'a>>,
}

#[derive(Serialize)]
struct ReclaimableRecord<'a> {
    bytes: u64,
    reason: &'static str,
    /// The generation whose readers pin the bytes, if that is the reason.
    generation: Option<u64>,
    processes: &'a [u32],
}

impl<'a> StatsRecord<'a> {
    fn new(stats: &'a Stats, store: &Path) -> Self {
        StatsRecord {
            generation: stats.generation,
            file_bytes: stats.file_bytes,
            metadata_bytes: stats.metadata_bytes,
            reachable_bytes: stats.reachable_bytes,
            is_exact: stats.is_exact,
            reclaimable_bytes: stats.reclaimable_bytes(),
            external_bytes: stats.external_bytes,
            storages: stats.storages.iter().map(|storage| StorageRecord::new(storage, store)).collect(),
        }
    }
}

impl<'a> StorageRecord<'a> {
    fn new(storage: &'a StorageStats, store: &Path) -> Self {
        StorageRecord {
            id: storage.id.map(storage_id),
            kind: storage.kind.map(|kind| kind.name()),
            file: file(storage, store),
            file_bytes: storage.file_bytes,
            length_bytes: storage.size_bytes,
            reachable_bytes: storage.reachable_bytes,
            is_exact: storage.is_exact,
            tensor_count: storage.tensor_count,
            names: &storage.names,
            reclaimable: storage.reclaimable.iter().map(ReclaimableRecord::from).collect(),
        }
    }
}

impl<'a> From<&'a Reclaimable> for ReclaimableRecord<'a> {
    fn from(reclaimable: &'a Reclaimable) -> Self {
        ReclaimableRecord {
            bytes: reclaimable.bytes,
            reason: reclaimable.reason.name(),
            generation: match reclaimable.reason {
                SpaceReason::Pinned { generation, .. } => Some(generation),
                _ => None,
            },
            processes: reclaimable.reason.processes(),
        }
    }
}

/// Returns the name of the file, relative to the store's directory.
fn file(storage: &StorageStats, store: &Path) -> String {
    storage.file.strip_prefix(store).unwrap_or(&storage.file).display().to_string()
}

fn print(stats: &Stats, store: &Store, out: &mut impl Write) -> Result<()> {
    let at_most = if stats.is_exact { "" } else { "at most " };
    writeln!(out, "generation   {}", stats.generation)?;
    writeln!(out, "files        {}", HumanBytes(stats.file_bytes))?;
    writeln!(out, "metadata     {}", HumanBytes(stats.metadata_bytes))?;
    writeln!(out, "reachable    {at_most}{}", HumanBytes(stats.reachable_bytes))?;
    writeln!(out, "reclaimable  {}", HumanBytes(stats.reclaimable_bytes()))?;
    if stats.external_bytes > 0 {
        writeln!(out, "external     {}, in files outside the store", HumanBytes(stats.external_bytes))?;
    }
    let mut table = columns(["file", "kind", "bytes", "reachable", "tensors", "names", "reclaimable", "why"]);
    let mut row_count = 0;
    for storage in &stats.storages {
        for reclaimable in &storage.reclaimable {
            row_count += 1;
            if row_count <= MAX_ROWS {
                table.add_row(row(storage, reclaimable, store.path()));
            }
        }
    }
    print_table(&table, row_count as u64, out)
}

fn row(storage: &StorageStats, reclaimable: &Reclaimable, store: &Path) -> [String; 8] {
    let mut names: Vec<String> = storage.names.iter().map(|name| quoted(name).into_owned()).collect();
    if storage.tensor_count > names.len() as u64 {
        names.push("...".to_owned());
    }
    let at_most = if storage.is_exact { "" } else { "<= " };
    [
        one_line(&file(storage, store)),
        storage.kind.map_or("", |kind| kind.name()).to_owned(),
        storage.file_bytes.to_string(),
        format!("{at_most}{}", storage.reachable_bytes),
        storage.tensor_count.to_string(),
        one_line(&names.join(" ")),
        reclaimable.bytes.to_string(),
        reclaimable.reason.to_string(),
    ]
}
