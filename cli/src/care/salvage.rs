//! `salvage`: copies what is whole in a damaged store to a new store, and lists the rest.

use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use serde_json::{Value, json};
use stridemap::maintenance::{Loss, Salvaged};

use crate::args::{DryRun, External};
use crate::at::split;
use crate::error::{Error, Result};
use crate::input::{explain, reporting_waits};
use crate::names::{command_line, one_line, shell_word};
use crate::output_file::check_parent_dir;
use crate::remote::check_local;
use crate::ui::{advance, counted, examples, message, write_json};

/// Copy what is whole in a damaged store to a new store
///
/// The exit code is 1 if something is lost or left out; each line shows a lost tensor, its bytes, the damaged file and
/// the reason. It is 2 if no store could be made.
///
/// One generation is copied, without tags. Tags are left out even if their generations are whole: export STORE@TAG
/// NEW.smap copies such a generation. If the newest generation is whole, remove the damaged tags with tag -d, and
/// copy the store with export STORE NEW.smap --tags.
///
/// The damaged store is only read. Nothing is guessed: data that does not match its checksum is lost. If the newest
/// generation cannot be read, the newest one that can be read is copied. Other tensors in the same storage as a lost one
/// are kept, and a growable tensor keeps its rows before the damage. Whole storages share their blocks with the damaged
/// store if the file system can do that. A mutable tensor whose change was interrupted is copied as it is, and listed as
/// interrupted. NEW must not exist; it appears when it is complete. A killed salvage leaves a .stage-*
/// directory beside NEW; that directory can be deleted.
#[derive(clap::Args)]
#[command(after_help = examples(&["salvage model.smap -n", "salvage model.smap salvaged.smap"]))]
pub(crate) struct SalvageArgs {
    /// The damaged store
    pub(crate) store: PathBuf,
    /// The store to make
    #[arg(required_unless_present = "dry_run")]
    pub(crate) new: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    external: External,
}

/// Runs the command. Returns whether nothing is lost or left out.
pub(crate) fn run(args: &SalvageArgs, out: &mut impl Write) -> Result<bool> {
    check_local(&args.store)?;
    let new = args.new.as_deref().filter(|_| !args.dry_run.dry_run);
    if let Some(new) = new {
        check_parent_dir("salvage", new)?;
    }
    let options = reporting_waits(&args.external.options());
    if let Some((store, tag)) = split(&args.store) {
        let (store, new) = (store.to_string_lossy(), args.new.as_deref().unwrap_or(Path::new("NEW.smap")));
        return Err(Error::Refused(format!(
            "salvage {store}@{tag}: salvage takes a store, not a tag; name {store}, or copy the tagged generation, if it is whole: \
             {}",
            command_line("export", &[&args.store.to_string_lossy(), &new.to_string_lossy()])
        )));
    }
    let salvaged = options.salvage(&args.store, new, advance("salvage", 0));
    let salvaged = salvaged.map_err(|e| explain(&args.store, e))?;
    let is_complete = salvaged.losses.is_empty() && salvaged.tags.is_empty();
    if args.json {
        write_json(out, record(&salvaged))?;
        return Ok(is_complete);
    }
    for loss in &salvaged.losses {
        writeln!(out, "lost: {}", one_line(&loss.to_string()))?;
    }
    for name in &salvaged.interrupted {
        let line = format!("{name:?}: a change of the elements was interrupted, or may have been");
        writeln!(out, "interrupted: {}", one_line(&line))?;
    }
    for tag in &salvaged.tags {
        writeln!(out, "left out: tag {}", shell_word(tag))?;
    }
    out.flush()?;
    let Salvaged { generation, copied, losses, tags, .. } = &salvaged;
    let kept = counted(copied.tensor_count, "tensor");
    let names = losses.iter().filter(|loss| loss.name.is_some()).count() as u64;
    let lost = losses.iter().map(|loss| loss.lost_bytes).fold(0, u64::saturating_add);
    let lost = match (losses.is_empty(), names) {
        (true, _) => "nothing is lost".to_owned(),
        (_, 0) => "metadata is lost".to_owned(),
        _ => format!("{}, {}, lost", counted(names, "tensor"), HumanBytes(lost)),
    };
    message(&match new {
        Some(new) => {
            let new = one_line(&new.to_string_lossy());
            format!("salvaged {kept} of generation {generation} into {new}; {lost}")
        }
        None => format!("{kept} of generation {generation} can be salvaged; {lost}"),
    });
    if let Some(tag) = tags.first() {
        let path = args.store.to_string_lossy();
        message(&format!(
            "note: a salvage copies one generation, so {} {} left out, damaged or not; to keep the generation of one: {}; \
             to keep all, if the newest generation is whole: remove the damaged tags, {}, then {}",
            counted(tags.len() as u64, "tag"),
            if tags.len() == 1 { "is" } else { "are" },
            command_line("export", &[&format!("{path}@{tag}"), "NEW.smap"]),
            command_line("tag -d", &[&path, "TAG"]),
            command_line("export --tags", &[&path, "NEW.smap"])
        ));
    }
    Ok(is_complete)
}

fn record(salvaged: &Salvaged) -> Value {
    let loss = |loss: &Loss| {
        json!({
            "name": loss.name,
            "bytes": loss.lost_bytes,
            "file": loss.path.display().to_string(),
            "reason": loss.reason,
        })
    };
    json!({
        "generation": salvaged.generation,
        "tensor_count": salvaged.copied.tensor_count,
        "bytes_copied": salvaged.copied.copied_bytes,
        "bytes_shared": salvaged.copied.shared_bytes,
        "losses": salvaged.losses.iter().map(loss).collect::<Vec<_>>(),
        "tags": salvaged.tags,
        "interrupted": salvaged.interrupted,
    })
}
