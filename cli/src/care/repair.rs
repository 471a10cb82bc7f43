//! `repair`: makes a damaged store usable again, or lists the repairs that are needed.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use stridemap::StoreOptions;
use stridemap::maintenance::Repair;

use crate::error::Result;
use crate::input::{explain, reporting_waits};
use crate::names::one_line;
use crate::ui::{message, progress, write_json};

/// Make a damaged store usable again
///
/// Without --apply, only list the repairs, and exit with 1 if there are any.
///
/// Nothing is guessed: data that does not match its checksum is lost, and reported. FORMAT, LOCK and files of digests
/// are rewritten if necessary. If the newest generation cannot be read, the store goes back to the newest generation
/// that can be read. Tensors with damaged bytes are lost; others in the same storage are copied to a new storage.
/// Removed and replaced files are moved to the lost+found directory of the store, and kept there. A repair is refused
/// while a reader needs a file that would be moved. An interrupted repair can be run again.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap repair model.smap\n  stridemap repair model.smap --apply")]
pub(crate) struct RepairArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Repair the store
    #[arg(long)]
    pub(crate) apply: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command. Returns whether nothing is left to repair.
pub(crate) fn run(args: &RepairArgs, out: &mut impl Write) -> Result<bool> {
    let options = reporting_waits(&StoreOptions::new());
    let bar = progress("repair", 0);
    let repair = match args.apply {
        true => options.repair(&args.store, |bytes| bar.inc(bytes)),
        false => options.plan_repair(&args.store, |bytes| bar.inc(bytes)),
    };
    bar.finish_and_clear();
    let repair = repair.map_err(|e| explain(&args.store, e))?;
    let is_done = args.apply || repair.is_empty();
    if args.json {
        write_json(out, Record::of(&repair, args.apply))?;
        return Ok(is_done);
    }
    for line in repair.losses.iter().map(ToString::to_string) {
        writeln!(out, "{}", one_line(&line))?;
    }
    for line in repair.remedies.iter().map(ToString::to_string) {
        writeln!(out, "{}", one_line(&line))?;
    }
    if repair.is_empty() {
        writeln!(out, "nothing to repair")?;
    } else if args.apply {
        for path in &repair.moved_files {
            writeln!(out, "kept: {}", one_line(&path.display().to_string()))?;
        }
        match repair.generation {
            Some(generation) => writeln!(out, "repaired: generation {generation}")?,
            None => writeln!(out, "repaired")?,
        }
    } else {
        out.flush()?;
        message("note: nothing was changed; use --apply to make these changes");
    }
    Ok(is_done)
}

#[derive(Serialize)]
struct Record<'a> {
    applied: bool,
    remedies: Vec<RemedyRecord<'a>>,
    losses: Vec<LossRecord<'a>>,
    generation: Option<u64>,
    kept: Vec<String>,
}

#[derive(Serialize)]
struct RemedyRecord<'a> {
    file: String,
    detail: &'a str,
}

#[derive(Serialize)]
struct LossRecord<'a> {
    file: String,
    reason: &'a str,
    names: &'a [String],
}

impl<'a> Record<'a> {
    fn of(repair: &'a Repair, applied: bool) -> Self {
        let remedies = repair.remedies.iter();
        let losses = repair.losses.iter();
        Record {
            applied: applied && !repair.is_empty(),
            remedies: remedies
                .map(|remedy| RemedyRecord {
                    file: remedy.path.display().to_string(),
                    detail: &remedy.detail,
                })
                .collect(),
            losses: losses
                .map(|loss| LossRecord {
                    file: loss.path.display().to_string(),
                    reason: &loss.reason,
                    names: &loss.names,
                })
                .collect(),
            generation: repair.generation,
            kept: repair.moved_files.iter().map(|path| path.display().to_string()).collect(),
        }
    }
}
