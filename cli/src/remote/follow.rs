//! `follow`: keeps a local store the same as the one at a URL.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use stridemap::{ErrorKind, StoreOptions};
use stridemap_remote::{Followed, Pulled};

use super::bar::Bar;
use super::conflict::with_commands;
use super::requests::{self, RequestArgs, parse_timeout};
use super::url::{check_local, check_order, check_untagged_url};
use crate::error::Result;
use crate::history::is_output_closed;
use crate::history::{TagChanges, Tags, tags, time_cell, utc};
use crate::input::reporting_waits;
use crate::interrupt;
use crate::output_file::check_parent_dir;
use crate::ui::{bytes_cell, examples, gap, message, width, write_json};

/// Pull the store at a URL whenever it changes
///
/// Runs until it is interrupted. Each line shows the generation that the store on this machine has now, the time, the bytes
/// that were received, and the tags that were made, each with its generation, and removed. Pushes that arrive faster than
/// they can be pulled are combined: "7 since 4" is the generation and the one before. Programs that have the store open see
/// each generation when it is complete.
///
/// If the server cannot be reached, or nothing was pushed yet, follow says so and tries again, after 30 seconds at
/// most, or 4 before the first push, unless --interval is longer. If the store has commits of its own, follow ends.
#[derive(clap::Args)]
#[command(after_help = examples(&["follow s3://bucket/model.smap model.smap", "follow s3://bucket/model.smap model.smap --json | jq .generation"]))]
pub(crate) struct FollowArgs {
    /// The URL of the store
    url: String,
    /// The path of the store on this machine; it is made if nothing is there
    store: PathBuf,
    /// How long to wait between two questions whether the remote has changed: 1s, 500ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    interval: Duration,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    requests: RequestArgs,
}

pub(crate) fn run(args: &FollowArgs, out: &mut impl Write) -> Result<()> {
    check_order("follow", Path::new(&args.url), &args.store)?;
    check_local(&args.store)?;
    check_parent_dir("follow", &args.store)?;
    check_untagged_url(Path::new(&args.url))?;
    let remote = args.requests.open(&args.url)?;
    message(&format!("following {} into {}", remote.location(), args.store.display()));
    let bar = Bar::new("pull");
    let options = reporting_waits(&StoreOptions::new());
    let (mut line_count, mut last_note) = (0, String::new());
    let mut printed = Ok(());
    let mut seen = tags_at(&args.store).unwrap_or_default();
    let mut report = |followed| {
        match followed {
            Followed::Pulled(pulled) => {
                bar.clear();
                last_note.clear();
                printed = tags_at(&args.store).and_then(|now| {
                    print_line(&pulled, &TagChanges::between(&seen, &now), args.json, out)?;
                    seen = now;
                    Ok(())
                });
                line_count += 1;
            }
            Followed::Failed(e, pause) => {
                let note = format!("note: {e}; trying again in {:.1} s", pause.as_secs_f64());
                // Until the first push, it would be the same every few seconds.
                if e.kind() != ErrorKind::NotFound || note != last_note {
                    bar.suspend(|| message(&note));
                }
                last_note = note;
            }
            _ if is_output_closed() => return Ok(false),
            _ => {}
        }
        let is_at_end = args.count.is_some_and(|count| line_count >= count);
        Ok(printed.is_ok() && !is_at_end && interrupt::exit_code().is_none())
    };
    let followed = remote.follow(&args.store, &options, args.interval, &|done| bar.show(done), &mut report);
    bar.clear();
    printed?;
    match followed {
        // A signal is the usual end.
        Err(_) if interrupt::has_stopped() => {}
        followed => followed.map_err(|e| with_commands(e, &args.store, remote.location()))?,
    }
    requests::report(&remote);
    Ok(())
}

/// Returns the tags of a store on this machine.
fn tags_at(store: &Path) -> Result<Tags> {
    tags(&StoreOptions::new().open(store)?)
}

/// Prints what was pulled.
fn print_line(pulled: &Pulled, changes: &TagChanges, is_json: bool, out: &mut impl Write) -> Result<()> {
    let Pulled { generation, previous, received_bytes, storage_count, .. } = *pulled;
    let now = SystemTime::now();
    if is_json {
        let record = json!({ "generation": generation, "since": previous, "time": utc(now),
            "received_bytes": received_bytes, "storages": storage_count, "tagged": changes.tagged,
            "untagged": changes.untagged });
        write_json(out, record)?;
    } else {
        let since = previous.filter(|previous| previous + 1 != generation);
        let since = since.map(|previous| format!(" since {previous}")).unwrap_or_default();
        // A pipe gets only the number.
        let received = if width().is_some() { " received" } else { "" };
        let (gap, time, bytes) = (gap(), time_cell(now), bytes_cell(received_bytes));
        write!(out, "{generation}{since}{gap}{time}{gap}{bytes}{received}")?;
        changes.print(out)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
