//! `du`: the disk space of a store.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stridemap::maintenance::{DiskUsage, Reclaimable, SpaceReason, StorageDiskUsage};
use stridemap::{Store, StoreOptions};

use super::du_patterns;
use super::du_patterns::PatternUsage;
use crate::error::Result;
use crate::input::open_store;
use crate::names::{one_line, quoted};
use crate::ui::{
    Column, MAX_ROWS, Table, bytes_cell, counted, is_verbose, print_line, storage_id, width, write_json,
};

/// Show disk usage, and what could be freed
///
/// Bytes that a reader still uses, or a writer is writing, are held: they are not reclaimable now. Files that the same
/// process holds are one row of the table; -v lists them all.
///
/// With a GLOB or PREFIX, shows how many bytes the elements of these tensors take, and how many of these bytes are
/// shared with other tensors. Removing the tensors frees the storages that have no other tensors. In other storages,
/// the bytes that are not shared become unreachable, and compact frees them if at least a quarter of the storage, and
/// at least 4 KiB, is unreachable.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  stridemap du model.smap\n  stridemap du model.smap encoder. '*.bias'\n  stridemap du model.smap --json | jq .reclaimable_bytes"
)]
pub(crate) struct DuArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Only the tensors whose names match a glob, or begin with a prefix, in place of the whole store
    #[arg(value_name = "GLOB|PREFIX")]
    pub(crate) patterns: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &DuArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    if !args.patterns.is_empty() {
        let patterns = du_patterns::usages(&args.patterns, &store.snapshot())?;
        return if args.json {
            write_json(out, PatternsRecord { patterns })
        } else {
            du_patterns::print(&patterns, out)
        };
    }
    let usage = store.disk_usage()?;
    if args.json {
        write_json(out, DiskUsageRecord::new(&usage, store.path()))
    } else {
        print(&usage, &store, out)
    }
}

#[derive(Serialize)]
struct PatternsRecord {
    patterns: Vec<PatternUsage>,
}

#[derive(Serialize)]
struct DiskUsageRecord<'a> {
    generation: u64,
    folder_bytes: u64,
    metadata_bytes: u64,
    digest_bytes: u64,
    reachable_bytes: u64,
    padding_bytes: u64,
    unreachable_bytes: u64,
    garbage_bytes: u64,
    staging_bytes: u64,
    lost_found_bytes: u64,
    other_bytes: u64,
    is_exact: bool,
    /// Without the bytes that a process holds or writes.
    reclaimable_bytes: u64,
    held_bytes: u64,
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
    padding_bytes: u64,
    unreachable_bytes: u64,
    digest_bytes: u64,
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

impl<'a> DiskUsageRecord<'a> {
    fn new(usage: &'a DiskUsage, store: &Path) -> Self {
        DiskUsageRecord {
            generation: usage.generation,
            folder_bytes: usage.folder_bytes,
            metadata_bytes: usage.metadata_bytes,
            digest_bytes: usage.digest_bytes,
            reachable_bytes: usage.reachable_bytes,
            padding_bytes: usage.padding_bytes,
            unreachable_bytes: usage.unreachable_bytes,
            garbage_bytes: usage.garbage_bytes,
            staging_bytes: usage.staging_bytes,
            lost_found_bytes: usage.lost_found_bytes,
            other_bytes: usage.other_bytes,
            is_exact: usage.is_exact,
            reclaimable_bytes: usage.reclaimable_bytes().saturating_sub(held_bytes(usage)),
            held_bytes: held_bytes(usage),
            external_bytes: usage.external_bytes,
            storages: usage.storages.iter().map(|storage| StorageRecord::new(storage, store)).collect(),
        }
    }
}

impl<'a> StorageRecord<'a> {
    fn new(storage: &'a StorageDiskUsage, store: &Path) -> Self {
        StorageRecord {
            id: storage.id.map(storage_id),
            kind: storage.kind.map(|kind| kind.name()),
            file: file(storage, store),
            file_bytes: storage.file_bytes,
            length_bytes: storage.size_bytes,
            reachable_bytes: storage.reachable_bytes,
            padding_bytes: storage.padding_bytes,
            unreachable_bytes: storage.unreachable_bytes,
            digest_bytes: storage.digest_bytes,
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

/// Returns whether the bytes cannot be freed now, because a reader still uses them or a writer is writing them.
fn is_held(reclaimable: &Reclaimable) -> bool {
    matches!(reclaimable.reason, SpaceReason::Pinned { .. } | SpaceReason::Writing { .. })
}

fn held_bytes(usage: &DiskUsage) -> u64 {
    usage.reclaimable().filter(|it| is_held(it)).map(|it| it.bytes).fold(0, u64::saturating_add)
}

/// Returns the name of the file, relative to the store's directory.
fn file(storage: &StorageDiskUsage, store: &Path) -> String {
    storage.file.strip_prefix(store).unwrap_or(&storage.file).display().to_string()
}

fn print(usage: &DiskUsage, store: &Store, out: &mut impl Write) -> Result<()> {
    let at_most = if usage.is_exact { "" } else { "at most " };
    let mut line = |label: &str, value: &str| print_line(label, value, 13, out);
    line("generation", &usage.generation.to_string())?;
    for (what, bytes) in [
        ("metadata", usage.metadata_bytes),
        ("digests", usage.digest_bytes),
        ("reachable", usage.reachable_bytes),
        ("padding", usage.padding_bytes),
        ("unreachable", usage.unreachable_bytes),
        ("garbage", usage.garbage_bytes),
        ("staging", usage.staging_bytes),
        ("lost+found", usage.lost_found_bytes),
        ("other", usage.other_bytes),
    ] {
        let at_most = if what == "reachable" { at_most } else { "" };
        if bytes > 0 || what == "reachable" {
            line(what, &format!("{at_most}{}", bytes_cell(bytes)))?;
        }
    }
    line("folder", &bytes_cell(usage.folder_bytes))?;
    let held_bytes = held_bytes(usage);
    let reclaimable_bytes = usage.reclaimable_bytes().saturating_sub(held_bytes);
    line("reclaimable", &bytes_cell(reclaimable_bytes))?;
    // A pipe gets only the number.
    let explained = |bytes, why| format!("{}{}", bytes_cell(bytes), if width().is_some() { why } else { "" });
    if held_bytes > 0 {
        line("held", &explained(held_bytes, ", by readers or writers"))?;
    }
    if usage.external_bytes > 0 {
        line("external", &explained(usage.external_bytes, ", in files outside the store"))?;
    }
    let mut table = Table::new(&COLUMNS);
    let mut row_count = 0;
    let mut add = |row: [String; 8]| {
        row_count += 1;
        if row_count <= MAX_ROWS {
            table.add_row(row);
        }
    };
    let mut held = Vec::<Held<'_>>::new();
    for storage in &usage.storages {
        let nothing = (storage.reclaimable.is_empty() && is_verbose()).then_some(None);
        for reclaimable in storage.reclaimable.iter().map(Some).chain(nothing) {
            match reclaimable.filter(|it| is_held(it) && !is_verbose()) {
                Some(reclaimable) => Held::add(&mut held, storage, reclaimable),
                None => add(row(storage, reclaimable, store.path())),
            }
        }
    }
    held.iter().for_each(|held| add(held.row(store.path())));
    table.print_section(row_count as u64, "--json", out)
}

/// The files that the same processes hold. They are printed as one row.
struct Held<'a> {
    first: (&'a StorageDiskUsage, &'a Reclaimable),
    file_count: u64,
    file_bytes: u64,
    held_bytes: u64,
}

impl<'a> Held<'a> {
    fn add(all: &mut Vec<Held<'a>>, storage: &'a StorageDiskUsage, reclaimable: &'a Reclaimable) {
        let (file_bytes, held_bytes) = (storage.file_bytes, reclaimable.bytes);
        match all.iter_mut().find(|held| held.first.1.reason == reclaimable.reason) {
            Some(held) => {
                held.file_count += 1;
                held.file_bytes += file_bytes;
                held.held_bytes += held_bytes;
            }
            None => all.push(Held { first: (storage, reclaimable), file_count: 1, file_bytes, held_bytes }),
        }
    }

    fn row(&self, store: &Path) -> [String; 8] {
        let mut row = row(self.first.0, Some(self.first.1), store);
        if self.file_count > 1 {
            let [file, kind, bytes, reachable, tensors, names, reclaimable, _] = &mut row;
            *file = counted(self.file_count, "file");
            *bytes = self.file_bytes.to_string();
            *reclaimable = self.held_bytes.to_string();
            [kind, reachable, tensors, names].into_iter().for_each(String::clear);
        }
        row
    }
}

const COLUMNS: [Column; 8] = [
    Column::new("file").shortenable(),
    Column::new("kind").drop_order(1),
    Column::new("bytes").right().drop_order(2),
    Column::new("reachable").right().drop_order(3),
    Column::new("tensors").right().drop_order(0),
    Column::new("names").shortenable().drop_order(4),
    Column::new("reclaimable").right(),
    Column::new("why"),
];

fn row(storage: &StorageDiskUsage, reclaimable: Option<&Reclaimable>, store: &Path) -> [String; 8] {
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
        reclaimable.map_or(0, |reclaimable| reclaimable.bytes).to_string(),
        reclaimable.map(|reclaimable| reclaimable.reason.to_string()).unwrap_or_default(),
    ]
}
