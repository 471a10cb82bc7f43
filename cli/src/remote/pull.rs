//! `pull`: makes a local store the same as the one at a URL.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use serde_json::{Value, json};
use stridemap::{Snapshot, StoreOptions};
use stridemap_remote::{Pulled, Remote};

use super::bar::Bar;
use super::conflict::with_commands;
use super::requests::{self, RequestArgs};
use super::url::{check_local, check_order, check_untagged_url};
use crate::args::DryRun;
use crate::error::{Error, Result};
use crate::input::reporting_waits;
use crate::names::names;
use crate::output_file::check_parent_dir;
use crate::ui::{advance, counted, examples, message, write_json};

/// Copy the store at a URL to this machine, or bring the copy up to date
///
/// If nothing is at the path, this makes a store there. It is the same store, with the same generations and tags. It can
/// be pulled again, which receives only what has changed, and it can be changed and pushed. Readers of the store see the
/// old generation or the new one. A store with commits of its own since its last push or pull is refused, because nothing
/// is merged: push it if the remote has nothing newer. Otherwise, keep one of both: push the store to another URL, or pull
/// to a new path.
///
/// With a NAME, this makes an independent store of these tensors, as export does, and receives only them. Nothing may be
/// at the path.
#[derive(clap::Args)]
#[command(after_help = examples(&["pull s3://bucket/model.smap model.smap", "pull s3://bucket/model.smap encoder.smap 'encoder.*'"]))]
pub(crate) struct PullArgs {
    /// The URL of the store
    url: String,
    /// The path of the store on this machine
    store: PathBuf,
    /// The tensors to copy, by name, by glob ('*.weight') or by prefix ('encoder.'); the whole store if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    requests: RequestArgs,
}

pub(crate) fn run(args: &PullArgs, out: &mut impl Write) -> Result<()> {
    check_order("pull", Path::new(&args.url), &args.store)?;
    check_local(&args.store)?;
    check_parent_dir("pull", &args.store)?;
    check_untagged_url(Path::new(&args.url))?;
    let remote = args.requests.open(&args.url)?;
    match args.names.is_empty() {
        true => pull(args, &remote, out)?,
        false => copy(args, &remote, out)?,
    }
    requests::report(&remote);
    Ok(())
}

fn pull(args: &PullArgs, remote: &Remote, out: &mut impl Write) -> Result<()> {
    let (path, location) = (args.store.display(), remote.location());
    let refused = |e| with_commands(e, &args.store, location);
    if args.dry_run.dry_run {
        let planned = remote.plan_pull(&args.store).map_err(refused)?;
        let (generation, bytes) = (planned.generation, HumanBytes(planned.received_bytes));
        return match args.json {
            true => write_json(out, record(args, &planned, remote)),
            false if planned.previous == Some(generation) => {
                Ok(writeln!(out, "{}", up_to_date(args, &planned))?)
            }
            false => {
                Ok(writeln!(out, "would pull generation {generation} of {location} into {path}: {bytes}")?)
            }
        };
    }
    let bar = Bar::new("pull");
    let options = reporting_waits(&StoreOptions::new());
    let pulled = remote.pull_with(&args.store, options, &|done| bar.show(done)).map_err(refused)?;
    bar.clear();
    if args.json {
        write_json(out, record(args, &pulled, remote))?;
    }
    let Pulled { generation, previous, received_bytes, .. } = pulled;
    message(&match previous == Some(generation) && received_bytes == 0 {
        true => up_to_date(args, &pulled),
        false => {
            format!(
                "pulled {location} into {path}, {} received: generation {generation}",
                HumanBytes(received_bytes)
            )
        }
    });
    Ok(())
}

fn up_to_date(args: &PullArgs, pulled: &Pulled) -> String {
    format!("{} is up to date: generation {}", args.store.display(), pulled.generation)
}

fn record(args: &PullArgs, pulled: &Pulled, remote: &Remote) -> Value {
    json!({
        "url": remote.location(),
        "is_dry_run": args.dry_run.dry_run,
        "generation": pulled.generation,
        "previous": pulled.previous,
        "received_bytes": pulled.received_bytes,
        "storages": pulled.storage_count,
        "requests": requests::record(remote),
    })
}

/// Makes an independent store of some tensors.
fn copy(args: &PullArgs, remote: &Remote, out: &mut impl Write) -> Result<()> {
    if args.store.symlink_metadata().is_ok() {
        let why = "some tensors are copied to a new store, and the path exists; choose a different path";
        return Err(Error::at("pull", &args.store, why));
    }
    let snapshot = remote.store()?.snapshot();
    let names = names(&args.names, &snapshot)?;
    let (path, location, generation) = (args.store.display(), remote.location(), snapshot.generation());
    if args.dry_run.dry_run {
        let bytes = element_bytes(&names, &snapshot)?;
        if args.json {
            return write_json(out, copy_record(args, remote, (generation, names.len() as u64, bytes)));
        }
        let (tensors, bytes) = (counted(names.len() as u64, "tensor"), HumanBytes(bytes));
        return Ok(writeln!(out, "would copy {tensors} of {location} into {path}: {bytes}")?);
    }
    let texts: Vec<&str> = names.iter().map(String::as_str).collect();
    let copied = snapshot.copy_to(&args.store, Some(&texts), advance("pull", 0))?;
    if args.json {
        write_json(out, copy_record(args, remote, (generation, copied.tensor_count, copied.copied_bytes)))?;
    }
    let (tensors, bytes) = (counted(copied.tensor_count, "tensor"), HumanBytes(copied.copied_bytes));
    message(&format!("copied {tensors} of {location}, {bytes}, into {path}, a store of its own"));
    Ok(())
}

/// Returns the bytes of the elements of tensors. Shared ones are counted for each.
fn element_bytes(names: &BTreeSet<String>, snapshot: &Snapshot) -> Result<u64> {
    names.iter().try_fold(0u64, |sum, name| Ok(sum.saturating_add(snapshot.load(name)?.nbytes() as u64)))
}

fn copy_record(args: &PullArgs, remote: &Remote, (generation, tensors, bytes): (u64, u64, u64)) -> Value {
    json!({
        "url": remote.location(),
        "is_dry_run": args.dry_run.dry_run,
        "generation": generation,
        "tensors": tensors,
        "bytes": bytes,
        "requests": requests::record(remote),
    })
}
