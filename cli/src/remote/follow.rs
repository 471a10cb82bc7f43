//! `pull --follow`: keeps a local store the same as the one at a URL.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;
use stridemap::StoreOptions;
use stridemap_remote::{Followed, Pulled, Remote};

use super::bar::Bar;
use super::conflict::with_commands;
use crate::error::Result;
use crate::history::{TagChanges, Tags, is_output_closed, tags, time_cell, utc};
use crate::input::reporting_waits;
use crate::interrupt;
use crate::ui::{bytes_cell, gap, message, width, write_json};

/// How long to wait between two questions whether the remote has changed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Pulls whenever the remote changes, until a signal arrives, the output is closed, or `count` lines have been printed.
pub(super) fn run(
    remote: &Remote,
    store: &Path,
    count: Option<u64>,
    is_json: bool,
    out: &mut impl Write,
) -> Result<()> {
    message(&format!("following {} into {}", remote.location(), store.display()));
    let bar = Bar::new("pull");
    let options = reporting_waits(&StoreOptions::new());
    let mut line_count = 0;
    let mut printed = Ok(());
    let mut seen = tags_at(store).unwrap_or_default();
    let mut report = |followed| {
        match followed {
            Followed::Pulled(pulled) => {
                bar.clear();
                printed = tags_at(store).and_then(|now| {
                    print_line(&pulled, &TagChanges::between(&seen, &now), is_json, out)?;
                    seen = now;
                    Ok(())
                });
                line_count += 1;
            }
            Followed::Failed(e, pause) => {
                bar.suspend(|| message(&format!("note: {e}; trying again in {:.1} s", pause.as_secs_f64())));
            }
            _ if is_output_closed() => return Ok(false),
            _ => {}
        }
        let is_at_end = count.is_some_and(|count| line_count >= count);
        Ok(printed.is_ok() && !is_at_end && interrupt::exit_code().is_none())
    };
    let followed = remote.follow(store, &options, INTERVAL, &|done| bar.show(done), &mut report);
    bar.clear();
    printed?;
    match followed {
        // A signal is the usual end.
        Err(_) if interrupt::has_stopped() => {}
        followed => followed.map_err(|e| with_commands(e, store, remote.location()))?,
    }
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
