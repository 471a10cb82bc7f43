//! `log`: lists the generations that are kept.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use stridemap::history::LogEntry;
use stridemap::{NameChanges, Snapshot, Store, StoreOptions};

use super::of_one_generation;
use super::recovery::at;
use super::time::{time_cell, utc};
use crate::error::Result;
use crate::input::open_store;
use crate::names::{one_line, shell_word};
use crate::ui::{Column, Table, bytes_cell, examples, write_json};

/// List the tagged generations and the newest one, the newest first
///
/// Each line shows a generation, when it was published, its tags and its message; how many tensors were added (+), changed
/// (~) and removed (-) since the generation on the next line; and the bytes that only this generation has: those that
/// removing its tags frees, unless it is the newest. A tensor that was saved again counts as changed, even if its elements are the same. The newest
/// generation is left out if it has the tensors and attributes of the last tagged one.
///
/// On a terminal, times are in your time zone. In a pipe and in JSON, they are in UTC: 2026-01-31T12:00:00.000000000Z.
/// JSON has the names of the tensors.
#[derive(clap::Args)]
#[command(after_help = examples(&["log model.smap", "log model.smap --json | jq -r .tags[]"]))]
pub(crate) struct LogArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Print one JSON object per generation
    #[arg(long)]
    json: bool,
}

const COLUMNS: [Column; 8] = [
    Column::new("generation").right(),
    Column::new("time").drop_order(1),
    Column::new("tags").shortenable_names(),
    Column::new("+").right().drop_order(2),
    Column::new("~").right().drop_order(3),
    Column::new("-").right().drop_order(4),
    Column::new("own bytes").right(),
    Column::new("message").shortenable().drop_order(0),
];

pub(crate) fn run(args: &LogArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let mut table = Table::new(&COLUMNS);
    each_entry(&store, |entry, changes| {
        if args.json {
            return write_json(out, record(entry, changes));
        }
        let NameChanges { added, changed, removed, .. } = changes;
        let tags: Vec<_> = entry.tags.iter().map(|tag| shell_word(tag)).collect();
        let message = one_line(entry.message.as_deref().unwrap_or_default());
        let counts = [added, changed, removed].map(|names| names.len().to_string());
        let first = [
            entry.generation.to_string(),
            time_cell(entry.time),
            if entry.tags.is_empty() { "(newest)".to_owned() } else { tags.join(", ") },
        ];
        table.add_row(first.into_iter().chain(counts).chain([bytes_cell(entry.own_bytes), message]));
        Ok(())
    })?;
    table.print_data(out)
}

fn record(entry: &LogEntry, changes: &NameChanges) -> serde_json::Value {
    json!({
        "generation": entry.generation,
        "time": utc(entry.time),
        "tags": entry.tags,
        "message": entry.message,
        "added": changes.added,
        "changed": changes.changed,
        "removed": changes.removed,
        "own_bytes": entry.own_bytes,
    })
}

/// Visits the entries of the log, each with what has changed since the entry after it.
fn each_entry(store: &Store, mut visit: impl FnMut(&LogEntry, &NameChanges) -> Result<()>) -> Result<()> {
    let mut visit_between = |entry: &LogEntry, snapshot: &Snapshot, below: Option<&Snapshot>| {
        let changes = match below {
            Some(below) => snapshot.changes_since(below)?,
            None => {
                let mut changes = NameChanges::default();
                changes.added = snapshot.names()?;
                changes
            }
        };
        let is_like_below = || {
            changes.is_empty()
                && below.is_some_and(|below| snapshot.all_attributes() == below.all_attributes())
        };
        if entry.tags.is_empty() && is_like_below() { Ok(()) } else { visit(entry, &changes) }
    };
    let mut last: Option<(LogEntry, Snapshot)> = None;
    // Held, so that the newest generation stays until it has been visited.
    let (_newest, log) = of_one_generation(store, |newest| {
        let log = store.log()?;
        let is_of_newest = log.first().is_some_and(|first| first.generation == newest.generation());
        Ok(is_of_newest.then_some(log))
    })?;
    for entry in log {
        let Some(snapshot) = at(store, entry.generation)? else { continue };
        if let Some((above, above_snapshot)) = &last {
            visit_between(above, above_snapshot, Some(&snapshot))?;
        }
        last = Some((entry, snapshot));
    }
    last.map_or(Ok(()), |(entry, snapshot)| visit_between(&entry, &snapshot, None))
}
