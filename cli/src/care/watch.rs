//! `watch`: prints a line for each commit.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use stridemap::{NameChanges, Snapshot, Store, StoreOptions};

use crate::error::Result;
use crate::history::{TagChanges, Tags, of_one_generation, tags, time_cell, utc};
use crate::input::open_store;
use crate::interrupt;
use crate::names::quoted;
use crate::ui::{examples, gap, is_verbose, message, write_json};

/// Print a line for each commit by any process
///
/// Runs until it is interrupted.
///
/// Each line shows the generation, the time of the commit, and how many names were added (+), changed (~) or removed (-), with the first three
/// of each (--verbose prints all). Then come the tags that were made, each with its generation, and those that were
/// removed. Commits that arrive faster than they can be printed are combined: "7 since 4" shows the changes in
/// generations 5 to 7. Changes in place are not commits, and are not shown.
#[derive(clap::Args)]
#[command(after_help = examples(&["watch model.smap --json | jq -c .added"]))]
pub(crate) struct WatchArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Stop with exit code 1 if no commit arrives for this long
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

/// The interval between checks whether a signal has arrived or standard output has been closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The maximum number of names that are printed for one mark, unless `--verbose` is given.
const MAX_NAMES: usize = 3;

/// Runs the command. Returns false if the timeout expired.
pub(crate) fn run(args: &WatchArgs, out: &mut impl Write) -> Result<bool> {
    interrupt::catch_signals();
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let (mut seen, mut seen_tags) = newest(&store)?;
    let mut line_count = 0;
    let mut began = Instant::now();
    message(&format!("watching {} from generation {}", store.path().display(), seen.generation()));
    while args.count.is_none_or(|count| line_count < count) {
        let left = args.timeout.map(|seconds| Duration::from_secs(seconds).saturating_sub(began.elapsed()));
        let wait = left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL));
        let has_changed = store.wait_for_change(wait)?;
        if interrupt::exit_code().is_some() {
            return Ok(true);
        }
        if !has_changed {
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            // With a timeout, the command ends anyway; ending here would change the exit code.
            if args.timeout.is_none() && is_output_closed() {
                return Ok(true);
            }
            continue;
        }
        let (now, now_tags) = newest(&store)?;
        print_line((&seen, &seen_tags), (&now, &now_tags), args.json, out)?;
        out.flush()?;
        (seen, seen_tags) = (now, now_tags);
        line_count += 1;
        began = Instant::now();
    }
    Ok(true)
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
