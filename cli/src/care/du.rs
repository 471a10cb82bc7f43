//! `du`: the disk space of a store.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use stridemap::maintenance::{DiskUsage, SpaceReason, SpareFile};
use stridemap::{Snapshot, Store, StoreOptions};

use super::{du_file, du_patterns};
use crate::args::Source;
use crate::at::split;
use crate::error::Result;
use crate::input::{Input, stored_bytes};
use crate::look::map::{self, MapOptions};
use crate::names::{one_line, quoted};
use crate::remote::is_url;
use crate::ui::{
    Column, MAX_ROWS, Table, bytes_cell, examples, is_verbose, print_line, storage_id, width, write_json,
};

/// Show disk usage, what could be freed, and which tensors share bytes
///
/// Of a file in another format, shows the bytes that tensors reach, those of its storages that no tensor reaches, the
/// length of the file or files, and the disk space that they take, which is less if they have holes.
///
/// Reachable bytes are those of tensors, and what a compaction keeps beside them. Tagged bytes are those that the newest
/// generation does not need, but a tag keeps. Held bytes are no longer needed, but a reader still uses them, or a writer
/// is writing them. Reclaimable bytes can be freed by compact. Everything else is metadata: headers, checksums, the
/// directories, and files that are not the store's. The sum is what du -sb prints. With -v, lists the files with bytes
/// that are not needed, and why they are there.
///
/// With STORE@TAG or a URL, shows the bytes of the storages of that generation, and how many of them only it has. In a store
/// on this machine, removing its tags frees these, unless it is the newest. For a URL, prune -n shows what could be freed.
///
/// With a NAME, shows how many bytes of the store the elements of these tensors take, and how many of these bytes are
/// shared with other tensors. Elements in files that were imported in place take none. The next columns say what removing the tensors frees: rm the storages that have no other
/// tensors, and compact after it what only these tensors use of other storages, with --all if that is less than a quarter of
/// a storage. What a tag keeps is freed only once the tag is removed, too. The last row of several NAMEs is that of all of
/// them together.
///
/// With --map, shows which tensors share which bytes. On a terminal, each storage is a bar, followed by a bar for each of its
/// tensors, in order of their first byte. █ are bytes of one tensor, ▓ bytes of several, ░ mostly bytes between the elements
/// of a view, and · bytes of no tensor: padding, which a compaction keeps, or unreachable bytes, which it can free. The last
/// lines name the tensors that share bytes. If there are more than 50 storages, those with at most one tensor and no
/// unreachable bytes are not drawn. If a storage has more than 50 tensors, those that share no byte are not drawn. A tensor
/// is compared with at most 64 earlier tensors. For many dimensions with unusual strides, it may not be determined whether
/// tensors share bytes; a note then says so.
#[derive(clap::Args)]
#[command(after_help = examples(&["du model.smap", "du model.smap encoder. '*.bias'", "du model.pt --map", "du model.smap --json | jq .reclaimable_bytes"]))]
pub(crate) struct DuArgs {
    /// Only these tensors, by name, by glob ('*.weight') or by prefix ('encoder.'), in place of the whole store; with
    /// --map, the storages that they are on
    #[arg(index = 2, value_name = "NAME")]
    patterns: Vec<String>,
    /// Show which tensors share which bytes
    #[arg(long)]
    map: bool,
    /// With --map, draw every storage and every tensor
    #[arg(long, requires = "map", conflicts_with = "json")]
    all: bool,
    /// Print one JSON object; with --map, it has all storages and all tensors
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

pub(crate) fn run(args: &DuArgs, out: &mut impl Write) -> Result<()> {
    let input = args.source.open(&StoreOptions::new())?;
    if args.map {
        let options = MapOptions { names: &args.patterns, all: args.all, json: args.json };
        return map::print(&input, &options, out);
    }
    let is_newest = !is_url(&args.source.path) && split(&args.source.path).is_none();
    if !args.patterns.is_empty() {
        let usages = du_patterns::usages(&args.patterns, &input, is_newest)?;
        return match args.json {
            true => write_json(out, json!(usages)),
            false => du_patterns::print(&usages, out),
        };
    }
    let (store, snapshot) = match input {
        Input::Store(store, snapshot, _) => (store, snapshot),
        Input::File(_) => return du_file::run(&input, args.json, out),
    };
    let external_bytes = stored_bytes(&snapshot, true)?;
    if !is_newest {
        return print_generation(args, (&store, &snapshot), external_bytes, out);
    }
    drop(snapshot); // It would be reported as a reader, once another process has committed.
    let usage = store.disk_usage()?;
    if !args.json {
        return print(&usage, external_bytes, store.path(), out);
    }
    let file = |file: &SpareFile| {
        json!({
            "file": name(file, store.path()),
            "bytes": file.size_bytes,
            "spare_bytes": file.spare_bytes,
            "reason": file.reason.name(),
            "generation": if let SpaceReason::Pinned { generation, .. } = file.reason { Some(generation) } else { None },
            "processes": file.reason.processes(),
            "storage": file.storage_id.map(storage_id),
            "names": file.names,
        })
    };
    write_json(
        out,
        json!({
            "generation": usage.generation,
            "reachable_bytes": usage.reachable_bytes,
            "tagged_bytes": usage.tagged_bytes,
            "held_bytes": usage.held_bytes,
            "reclaimable_bytes": usage.reclaimable_bytes,
            "metadata_bytes": usage.metadata_bytes,
            "folder_bytes": usage.folder_bytes(),
            "external_bytes": external_bytes,
            "files": usage.spare.iter().map(file).collect::<Vec<_>>(),
        }),
    )
}

/// Prints the bytes of a generation.
fn print_generation(
    args: &DuArgs,
    (store, snapshot): (&Store, &Snapshot),
    external_bytes: u64,
    out: &mut impl Write,
) -> Result<()> {
    let generation = snapshot.generation();
    let (all, own_bytes) = (stored_bytes(snapshot, false)?, own_bytes(store, generation)?);
    if args.json {
        let record = json!({ "generation": generation, "storage_bytes": all, "own_bytes": own_bytes,
            "external_bytes": external_bytes });
        return write_json(out, record);
    }
    print_line("generation", &generation.to_string(), 13, out)?;
    print_line("storages", &bytes_cell(all), 13, out)?;
    if let Some(own_bytes) = own_bytes {
        print_line("own", &bytes_cell(own_bytes), 13, out)?;
    }
    print_external(external_bytes, out)
}

/// Returns the bytes that only one generation has. `None` if no tag keeps it: the log does not have it then.
fn own_bytes(store: &Store, generation: u64) -> Result<Option<u64>> {
    let log = store.log()?;
    Ok(log.iter().find(|entry| entry.generation == generation).map(|entry| entry.own_bytes))
}

/// Prints the bytes in external files, if there are any.
fn print_external(bytes: u64, out: &mut impl Write) -> Result<()> {
    // A pipe gets only the number.
    let outside = if width().is_some() { ", in files outside the store" } else { "" };
    match bytes {
        0 => Ok(()),
        _ => print_line("external", &format!("{}{outside}", bytes_cell(bytes)), 13, out),
    }
}

/// Returns the name of a file, relative to the store's directory.
fn name(file: &SpareFile, store: &Path) -> String {
    file.path.strip_prefix(store).unwrap_or(&file.path).display().to_string()
}

const COLUMNS: [Column; 5] = [
    Column::new("file").shortenable(),
    Column::new("bytes").right().drop_order(0),
    Column::new("not needed").right(),
    Column::new("names").shortenable().drop_order(1),
    Column::new("why"),
];

fn print(usage: &DiskUsage, external_bytes: u64, store: &Path, out: &mut impl Write) -> Result<()> {
    let mut line = |label: &str, value: &str| print_line(label, value, 13, out);
    line("generation", &usage.generation.to_string())?;
    for (what, bytes) in [
        ("reachable", usage.reachable_bytes),
        ("tagged", usage.tagged_bytes),
        ("held", usage.held_bytes),
        ("reclaimable", usage.reclaimable_bytes),
        ("metadata", usage.metadata_bytes),
        ("folder", usage.folder_bytes()),
    ] {
        line(what, &bytes_cell(bytes))?;
    }
    print_external(external_bytes, out)?;
    if !is_verbose() {
        return Ok(());
    }
    let mut table = Table::new(&COLUMNS);
    for file in usage.spare.iter().take(MAX_ROWS) {
        let names: Vec<_> = file.names.iter().map(|name| quoted(name)).collect();
        table.add_row([
            one_line(&name(file, store)),
            file.size_bytes.to_string(),
            file.spare_bytes.to_string(),
            names.join(" "),
            file.reason.to_string(),
        ]);
    }
    table.print_section(usage.spare.len() as u64, "--json", out)
}
