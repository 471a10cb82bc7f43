//! `log`: lists the generations that are kept.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use stridemap::history::LogEntry;
use stridemap::{ErrorKind, NameChanges, Result as LibraryResult, Snapshot, Store, StoreOptions};

use super::of_one_generation;
use super::time::{time_cell, utc};
use super::watch;
use crate::at::still_kept;
use crate::error::{Error, Result};
use crate::input::open_to_look;
use crate::names::{one_line, shell_word};
use crate::ui::{Column, Table, bytes_cell, examples, warn, write_json};

/// List the tagged generations and the newest one, or print a line for each commit
///
/// Each line shows a generation, when it was published, its tags and its message; how many tensors were added (+),
/// changed (~) and removed (-) since the generation on the next line; and the bytes that only this generation has:
/// those that removing its tags frees, unless it is the newest. A tensor that was saved again counts as changed,
/// even if its elements are the same. The newest generation is left out if it has the tensors and attributes of the
/// last tagged one.
///
/// If a generation cannot be read, its line says so, the reason follows as a message, and the exit code is 1. The line before
/// it shows what has changed since the next generation that can be read.
///
/// On a terminal, times are in your time zone. In a pipe and in JSON, they are in UTC: 2026-01-31T12:00:00.000000000Z.
/// JSON has the names of the tensors.
///
/// With --follow, prints a line for each commit by any process from now on, until it is interrupted: the generation, the time
/// of the commit, and how many names were added (+), changed (~) or removed (-), with the first three of each (--verbose
/// prints all). Then come the tags that were made, each with its generation, and those that were removed. Commits that
/// arrive faster than they can be printed are combined: "7 since 4" shows the changes in generations 5 to 7. Changes in
/// place are not commits, and are not shown.
#[derive(clap::Args)]
#[command(after_help = examples(&["log model.smap", "log model.smap --json | jq -r .tags[]", "log model.smap --follow"]))]
pub(crate) struct LogArgs {
    /// The store, or its URL; with --follow a store on this machine, and the command follow is for a URL
    pub(crate) store: PathBuf,
    /// Print a line for each commit from now on
    #[arg(long)]
    follow: bool,
    /// With --follow, stop after N lines
    #[arg(long, value_name = "N", requires = "follow")]
    count: Option<u64>,
    /// Print one JSON object per generation, or per line
    #[arg(long)]
    json: bool,
}

impl LogArgs {
    /// Whether the command runs until a signal ends it.
    pub(crate) fn is_endless(&self) -> bool {
        self.follow
    }
}

const COLUMNS: [Column; 8] = [
    Column::new("generation").right(),
    Column::new("time").drop_order(1),
    Column::new("tags").shortenable_names(),
    Column::new("+").right().drop_order(2),
    Column::new("~").right().drop_order(2),
    Column::new("-").right().drop_order(2),
    Column::new("own bytes").right(),
    Column::new("message").shortenable().drop_order(0),
];

/// Runs the command. Returns whether all generations can be read.
pub(crate) fn run(args: &LogArgs, out: &mut impl Write) -> Result<bool> {
    if args.follow {
        return watch::run(&args.store, args.count, args.json, out).map(|()| true);
    }
    let store = open_to_look(&StoreOptions::new(), &args.store)?;
    let mut table = Table::new(&COLUMNS);
    let mut unreadable = Vec::new();
    each_entry(&store, |entry, changes| {
        if let Err(e) = changes {
            unreadable.push(format!("generation {} cannot be read: {e}", entry.generation));
        }
        if args.json {
            return write_json(out, record(entry, changes));
        }
        let tags: Vec<_> = entry.tags.iter().map(|tag| shell_word(tag)).collect();
        let text = one_line(entry.message.as_deref().unwrap_or_default());
        let (counts, text) = match changes {
            Ok(NameChanges { added, changed, removed, .. }) => {
                ([added, changed, removed].map(|names| names.len().to_string()), text)
            }
            Err(_) => {
                (["?", "?", "?"].map(str::to_owned), format!("(cannot be read) {text}").trim_end().to_owned())
            }
        };
        let first = [
            entry.generation.to_string(),
            time_cell(entry.time),
            if entry.tags.is_empty() { "(newest)".to_owned() } else { tags.join(", ") },
        ];
        table.add_row(first.into_iter().chain(counts).chain([bytes_cell(entry.own_bytes), text]));
        Ok(())
    })?;
    table.print_data(out)?;
    out.flush()?;
    unreadable.iter().for_each(|why| warn(why));
    Ok(unreadable.is_empty())
}

fn record(entry: &LogEntry, changes: &Result<NameChanges>) -> serde_json::Value {
    let error = changes.as_ref().err().map(ToString::to_string);
    let changes = changes.as_ref().ok();
    json!({
        "generation": entry.generation,
        "time": utc(entry.time),
        "tags": entry.tags,
        "message": entry.message,
        "added": changes.map(|changes| &changes.added),
        "changed": changes.map(|changes| &changes.changed),
        "removed": changes.map(|changes| &changes.removed),
        "own_bytes": entry.own_bytes,
        "error": error,
    })
}

/// Returns the log, the newest generation first, and the snapshot of that generation.
pub(super) fn entries(store: &Store) -> Result<(Snapshot, Vec<LogEntry>)> {
    of_one_generation(store, |newest| {
        let log = store.log()?;
        let is_of_newest = log.first().is_some_and(|first| first.generation == newest.generation());
        Ok(is_of_newest.then_some(log))
    })
}

/// Visits the entries of the log, each with what has changed since the next one that can be read, or with the reason that it
/// cannot be read.
fn each_entry(
    store: &Store,
    mut visit: impl FnMut(&LogEntry, &Result<NameChanges>) -> Result<()>,
) -> Result<()> {
    // Held, so that the newest generation stays until it has been visited.
    let (_newest, log) = entries(store)?;
    // The last entry that can be read, and those after it, which cannot.
    let mut last: Option<(LogEntry, Snapshot)> = None;
    let mut unreadable: Vec<(LogEntry, Result<NameChanges>)> = Vec::new();
    for entry in log {
        let snapshot = match unless_unreadable(still_kept(store, entry.generation))? {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => continue,
            Err(e) => {
                unreadable.push((entry, Err(e)));
                continue;
            }
        };
        if let Some(last) = &last {
            visit_between(last, Some(&snapshot), &mut visit)?;
        }
        unreadable.drain(..).try_for_each(|(entry, why)| visit(&entry, &why))?;
        last = Some((entry, snapshot));
    }
    if let Some(last) = &last {
        visit_between(last, None, &mut visit)?;
    }
    unreadable.iter().try_for_each(|(entry, why)| visit(entry, why))
}

/// Visits an entry with what has changed since an earlier generation. A newest one without a tag that is like the earlier one
/// is left out.
fn visit_between(
    (entry, snapshot): &(LogEntry, Snapshot),
    below: Option<&Snapshot>,
    visit: &mut impl FnMut(&LogEntry, &Result<NameChanges>) -> Result<()>,
) -> Result<()> {
    let changes = unless_unreadable(changes_between(snapshot, below))?;
    let is_like_below = |changes: &NameChanges| {
        changes.is_empty() && below.is_some_and(|below| snapshot.all_attributes() == below.all_attributes())
    };
    let is_left_out = entry.tags.is_empty() && changes.as_ref().is_ok_and(is_like_below);
    if is_left_out { Ok(()) } else { visit(entry, &changes) }
}

/// Returns what has changed since an earlier generation. Without one, all tensors are new.
fn changes_between(snapshot: &Snapshot, below: Option<&Snapshot>) -> LibraryResult<NameChanges> {
    let Some(below) = below else {
        let mut changes = NameChanges::default();
        changes.added = snapshot.names()?;
        return Ok(changes);
    };
    snapshot.changes_since(below)
}

/// Separates the failure to read a generation, which is the inner error.
pub(super) fn unless_unreadable<T>(read: LibraryResult<T>) -> Result<Result<T>> {
    match read {
        Err(e) if !matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => Err(e.into()),
        read => Ok(read.map_err(Error::from)),
    }
}
