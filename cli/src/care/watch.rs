//! `watch`: prints a line for each commit.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use signal_hook::flag;
use stridemap::{NameChanges, StoreOptions};

use crate::error::{Error, Result};
use crate::input::open_store;
use crate::interrupt;
use crate::names::quoted;
use crate::ui::{gap, is_verbose, message, write_json};

/// Print a line for each commit by any process
///
/// Runs until it is interrupted.
///
/// Each line shows the generation, and how many names were added (+), changed (~) or removed (-), with the first three
/// of each; --verbose prints all. Commits that arrive faster than they can be printed are combined: "7 since 4" shows
/// the changes in generations 5 to 7. Changes in place are not commits, and are not shown.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap watch model.smap --json | jq -c .added")]
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

/// The interval between checks whether standard output has been closed.
const OUTPUT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of names that are printed for one mark, unless `--verbose` is given.
const MAX_NAMES: usize = 3;

/// Runs the command. Returns false if the timeout expired.
pub(crate) fn run(args: &WatchArgs, out: &mut impl Write) -> Result<bool> {
    let signals = Signals::catch()?;
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let mut seen = store.snapshot();
    let mut line_count = 0;
    let mut began = Instant::now();
    message(&format!("watching {} from generation {}", store.path().display(), seen.generation()));
    while args.count.is_none_or(|count| line_count < count) {
        let left = args.timeout.map(|seconds| Duration::from_secs(seconds).saturating_sub(began.elapsed()));
        let has_changed = signals.run_interruptible(|| {
            store.wait_for_change(left.map_or(OUTPUT_CHECK_INTERVAL, |left| left.min(OUTPUT_CHECK_INTERVAL)))
        });
        let Some(has_changed) = has_changed else { return Ok(true) };
        if !has_changed? {
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            // With a timeout, the command ends anyway; ending here would change the exit code.
            if args.timeout.is_none() && is_output_closed() {
                return Ok(true);
            }
            continue;
        }
        let now = store.snapshot();
        let line = Line {
            generation: now.generation(),
            since: seen.generation(),
            changes: now.changes_since(&seen)?,
        };
        line.print(args.json, out)?;
        out.flush()?;
        seen = now;
        line_count += 1;
        began = Instant::now();
    }
    Ok(true)
}

/// The changes from one generation to another, usually those of one commit.
struct Line {
    generation: u64,
    since: u64,
    changes: NameChanges,
}

impl Line {
    fn print(&self, is_json: bool, out: &mut impl Write) -> Result<()> {
        let Line { generation, since, changes: NameChanges { added, changed, removed, .. } } = self;
        if is_json {
            let record = json!({ "generation": generation, "since": since, "added": added, "changed": changed,
                "removed": removed });
            return write_json(out, record);
        }
        write!(out, "{generation}")?;
        if since + 1 != *generation {
            write!(out, " since {since}")?;
        }
        let shown = if is_verbose() { usize::MAX } else { MAX_NAMES };
        for (mark, names) in [('+', added), ('~', changed), ('-', removed)] {
            if !names.is_empty() {
                let first: Vec<_> = names.iter().take(shown).map(|name| quoted(name)).collect();
                let rest = if names.len() > shown { ", ..." } else { "" };
                write!(out, "{}{mark}{} {}{rest}", gap(), names.len(), first.join(", "))?;
            }
        }
        Ok(writeln!(out)?)
    }
}

/// The signals that ask the process to end. While the process waits, a signal ends it at once. Otherwise, the process
/// ends after the line that it is printing.
struct Signals {
    is_waiting: Arc<AtomicBool>,
    has_arrived: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> Result<Self> {
        let signals = Signals { is_waiting: Arc::default(), has_arrived: Arc::default() };
        for number in interrupt::signals() {
            let caught = flag::register_conditional_shutdown(number, 0, Arc::clone(&signals.is_waiting))
                .and_then(|_| flag::register(number, Arc::clone(&signals.has_arrived)));
            caught.map_err(|e| Error::Refused(format!("catch termination signals: {e}")))?;
        }
        Ok(signals)
    }

    /// Runs `wait`, during which a signal ends the process. Returns `None` if a signal had already arrived.
    fn run_interruptible<T>(&self, wait: impl FnOnce() -> T) -> Option<T> {
        self.is_waiting.store(true, Ordering::SeqCst);
        let waited = (!self.has_arrived.load(Ordering::SeqCst)).then(wait);
        self.is_waiting.store(false, Ordering::SeqCst);
        waited
    }
}

/// Returns whether standard output is a pipe whose reader has closed it. Between commits nothing is written, so no
/// write would detect it.
fn is_output_closed() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
}
