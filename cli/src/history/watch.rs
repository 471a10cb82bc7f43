//! `log --follow`: prints a line for each commit.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use stridemap::{NameChanges, Snapshot, Store, StoreOptions};

use super::of_one_generation;
use super::tag_changes::{TagChanges, Tags, tags};
use super::time::{time_cell, utc};
use crate::error::Result;
use crate::input::open_store;
use crate::interrupt;
use crate::names::quoted;
use crate::ui::{gap, is_verbose, message, write_json};

/// The interval between checks whether a signal has arrived or standard output has been closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The maximum number of names that are printed for one mark, unless `--verbose` is given.
const MAX_NAMES: usize = 3;

/// Prints a line for each commit, until a signal arrives, the output is closed, or `count` lines have been printed.
pub(super) fn run(path: &Path, count: Option<u64>, is_json: bool, out: &mut impl Write) -> Result<()> {
    interrupt::catch_signals();
    let store = open_store(&StoreOptions::new(), path)?;
    let (mut seen, mut seen_tags) = newest(&store)?;
    let mut line_count = 0;
    message(&format!("watching {} from generation {}", store.path().display(), seen.generation()));
    while count.is_none_or(|count| line_count < count) {
        let has_changed = store.wait_for_change(CHECK_INTERVAL)?;
        if interrupt::exit_code().is_some() || !has_changed && is_output_closed() {
            return Ok(());
        }
        if !has_changed {
            continue;
        }
        let (now, now_tags) = newest(&store)?;
        print_line((&seen, &seen_tags), (&now, &now_tags), is_json, out)?;
        out.flush()?;
        (seen, seen_tags) = (now, now_tags);
        line_count += 1;
    }
    Ok(())
}

/// Returns the newest generation with its tags.
fn newest(store: &Store) -> Result<(Snapshot, Tags)> {
    of_one_generation(store, |newest| {
        let tags = tags(store)?;
        Ok((store.latest()?.generation() == newest.generation()).then_some(tags))
    })
}

/// Prints the changes from one generation to another, usually those of one commit.
fn print_line(
    (seen, seen_tags): (&Snapshot, &Tags),
    (now, now_tags): (&Snapshot, &Tags),
    is_json: bool,
    out: &mut impl Write,
) -> Result<()> {
    let (since, generation) = (seen.generation(), now.generation());
    let NameChanges { added, changed, removed, .. } = now.changes_since(seen)?;
    let tag_changes = TagChanges::between(seen_tags, now_tags);
    if is_json {
        let record = json!({ "generation": generation, "since": since, "time": utc(now.time()), "added": added, "changed": changed,
            "removed": removed, "tagged": tag_changes.tagged, "untagged": tag_changes.untagged });
        return write_json(out, record);
    }
    write!(out, "{generation}")?;
    if since + 1 != generation {
        write!(out, " since {since}")?;
    }
    write!(out, "{}{}", gap(), time_cell(now.time()))?;
    let shown = if is_verbose() { usize::MAX } else { MAX_NAMES };
    for (mark, names) in [('+', added), ('~', changed), ('-', removed)] {
        if !names.is_empty() {
            let first: Vec<_> = names.iter().take(shown).map(|name| quoted(name)).collect();
            let rest = if names.len() > shown { ", ..." } else { "" };
            write!(out, "{}{mark}{} {}{rest}", gap(), names.len(), first.join(", "))?;
        }
    }
    tag_changes.print(out)?;
    Ok(writeln!(out)?)
}

/// Returns whether standard output is a pipe whose reader has closed it. Between commits nothing is written, so no
/// write would detect it.
pub(crate) fn is_output_closed() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
}
