//! `view`, `ln`, `mv` and `rm`: add, change and remove names. No elements are copied.

use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use stridemap::{ErrorKind, Snapshot, StoreOptions, Tensor, Transaction};

use super::freed::Freed;
use super::plan::replacing;
use crate::args::{DryRun, Existing, External};
use crate::care::compact::report_held_bytes;
use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::input::{check_writable, open_store};
use crate::names::{name, names, new_name, one_line, quoted};
use crate::ui::{counted, examples, message};

/// Save a view of a tensor under a new name, without copying elements
#[derive(clap::Args)]
#[command(after_help = expr::help(&["view model.smap 'weight.t()' weight_t"]))]
pub(crate) struct ViewArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The view to save
    pub(crate) expr: String,
    /// The new name
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) external: External,
}

// The arguments of `ln` and `mv`.
#[derive(clap::Args)]
pub(crate) struct NewNameArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name of the tensor
    #[arg(value_name = "NAME")]
    pub(crate) old: String,
    /// The new name
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Remove tensors in one commit: all or none
///
/// A storage is deleted with its last tensor. If other tensors remain on it, the bytes that only the removed tensors
/// used stay until compact frees them.
#[derive(clap::Args)]
#[command(after_help = examples(&["rm model.smap encoder.weight encoder.bias"]))]
pub(crate) struct RmArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The names to remove, or globs: 'encoder.*'
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

pub(crate) fn view(args: &ViewArgs, out: &mut impl Write) -> Result<()> {
    commit(&args.store, &args.external.options(), &args.existing, out, |txn, snapshot| {
        let view = view_to_save(args, txn)?;
        let new = new_name("view", &args.new, txn)?;
        let replacing = replacing("view", &new, (txn, snapshot), &args.existing)?;
        txn.save_view(&new, &view)?;
        let (expr, dtype, size) = (one_line(&args.expr), view.dtype(), view.size());
        Ok(Some(("save", "saved", format!("{expr} ({dtype} {size:?}) as {}{replacing}", quoted(&new)))))
    })
}

/// Returns the view to save. The refusal of swapped arguments states their order.
fn view_to_save(args: &ViewArgs, txn: &Transaction<'_>) -> Result<Tensor> {
    let is_swapped = expr::is_operation(&args.new, txn)?;
    let swapped = |e| Err(Error::Refused(format!("{e}; the order is: stridemap view STORE EXPR NEW")));
    match expr::view(&args.expr, txn, Copies::Refused) {
        Err(Error::Library(e))
            if e.kind() == ErrorKind::NameNotFound && (is_swapped || txn.contains(&args.new)?) =>
        {
            swapped(e.to_string())
        }
        Ok(_) if is_swapped => swapped(format!(
            "view: the new name {:?} is an expression; put it in quotes if it is meant as a name",
            args.new
        )),
        view => Ok(view?.1),
    }
}

pub(crate) fn ln(args: &NewNameArgs, out: &mut impl Write) -> Result<()> {
    commit(&args.store, &StoreOptions::new(), &args.existing, out, |txn, snapshot| {
        let (old, new) = (name(&args.old, txn)?, new_name("ln", &args.new, txn)?);
        if old == new && txn.contains(&old)? {
            return Ok(None);
        }
        let replacing = replacing("ln", &new, (txn, snapshot), &args.existing)?;
        txn.copy(&old, &new)?;
        Ok(Some(("add", "added", format!("{}, a second name of {}{replacing}", quoted(&new), quoted(&old)))))
    })
}

pub(crate) fn mv(args: &NewNameArgs, out: &mut impl Write) -> Result<()> {
    commit(&args.store, &StoreOptions::new(), &args.existing, out, |txn, snapshot| {
        let (old, new) = (name(&args.old, txn)?, new_name("mv", &args.new, txn)?);
        if old == new {
            txn.rename(&old, &new)?;
            return Ok(None);
        }
        let replacing = replacing("mv", &new, (txn, snapshot), &args.existing)?;
        txn.rename(&old, &new)?;
        Ok(Some(("rename", "renamed", format!("{} to {}{replacing}", quoted(&old), quoted(&new)))))
    })
}

pub(crate) fn rm(args: &RmArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let mut txn = store.begin()?;
    // A glob reads all names. One that is added meanwhile is not a reason to fail.
    txn.ignore_reads();
    let names = names(&args.names, &txn)?;
    names.iter().try_for_each(|name| txn.remove(name))?;
    let freed = Freed::of(&names, &store.snapshot())?;
    let all_bytes = freed.bytes(|_| true);
    if args.dry_run.dry_run {
        check_writable(&store)?;
        names.iter().try_for_each(|name| writeln!(out, "would remove {}", quoted(name)))?;
        if all_bytes > 0 {
            writeln!(out, "would free {}", HumanBytes(all_bytes))?;
        }
        return Ok(());
    }
    let generation = txn.commit()?;
    let removed = match names.first() {
        Some(name) if names.len() == 1 => quoted(name).into_owned(),
        _ => counted(names.len() as u64, "tensor"),
    };
    let bytes = freed.bytes(|file| !file.exists());
    let and_freed = if bytes > 0 { format!(", freed {}", HumanBytes(bytes)) } else { String::new() };
    message(&format!("removed {removed}{and_freed}: generation {generation}"));
    if bytes < all_bytes {
        report_held_bytes(&store.disk_usage()?);
    }
    freed.note(&args.store).iter().for_each(|note| message(note));
    Ok(())
}

/// Runs `change` on a store and commits it. `change` returns a verb in two forms, such as "save" and "saved", and the rest
/// of the message, or `None` if there is nothing to commit. A dry run prints the message and commits nothing.
fn commit(
    store: &Path,
    options: &StoreOptions,
    existing: &Existing,
    out: &mut impl Write,
    change: impl FnOnce(&mut Transaction<'_>, &Snapshot) -> Result<Option<(&'static str, &'static str, String)>>,
) -> Result<()> {
    let store = open_store(options, store)?;
    let mut txn = store.begin()?;
    txn.on_existing(existing.policy());
    let Some((does, did, what)) = change(&mut txn, &store.snapshot())? else { return Ok(()) };
    if existing.is_dry_run() {
        check_writable(&store)?;
        return Ok(writeln!(out, "would {does} {what}")?);
    }
    let generation = txn.commit()?;
    message(&format!("{did} {what}: generation {generation}"));
    Ok(())
}
