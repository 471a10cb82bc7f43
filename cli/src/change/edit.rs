//! `view` and `rm`: add and remove names. No elements are copied.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use serde_json::json;
use stridemap::{ErrorKind, Snapshot, StoreOptions, Tensor, Transaction};

use super::stack;
use super::stack::Planned;
use crate::args::{DryRun, Existing, External};
use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::held::report_held_bytes;
use crate::input::open_store;
use crate::names::{PLACE, name, names, new_name, one_line, quoted};
use crate::plan::{begin, header, info, replacing};
use crate::separator::has_separator;
use crate::ui::{counted, examples, joined, message, short_record, write_json};
use crate::undo::freed::{Freed, Frees};
use crate::undo::{Before, Replaced, kept_by_tags};

/// Save a tensor, or a view of one, under a new name, without copying elements
///
/// A NAME without operations gets a second name, with the same attributes.
///
/// With --stack, tensors whose names differ in a number, such as the experts of a layer, get one more name for all of them:
/// EXPR is a name with {} in the place of the number. The number becomes the first dimension. If there are several {}, the
/// last is this number, and NEW has the others. The tensors must lie at equal distances in one storage: import --fuse stores
/// them one after another. The reverse is an expression that ends with [{}], which stands for every position of the first dimension; NEW
/// then has a {} for it.
#[derive(clap::Args)]
#[command(after_help = expr::help(&[
    "view model.smap 'weight.t()' weight_t",
    "view model.smap encoder.weight decoder.weight",
    "view model.smap --stack 'layers.{}.experts.{}.up' 'layers.{}.experts.up'",
    "view model.smap 'experts.up[{}]' 'experts.{}.up'",
]))]
pub(crate) struct ViewArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensor or view to save
    pub(crate) expr: String,
    /// The new name
    pub(crate) new: String,
    /// Save one view of all tensors whose names are EXPR with a number in the place of each {}
    #[arg(long)]
    stack: bool,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    pub(crate) external: External,
}

/// Remove tensors in one commit: all or none
///
/// A storage is deleted with its last tensor, unless a tag keeps it. If other tensors remain on it, the bytes that
/// only the removed tensors used stay until compact frees them.
#[derive(clap::Args)]
#[command(after_help = examples(&["rm model.smap encoder.weight encoder.bias", "rm model.smap '*.bias' -n", "rm model.smap old. --tag before"]))]
pub(crate) struct RmArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensors to remove, by name, by glob ('*.weight') or by prefix ('encoder.')
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    dry_run: DryRun,
}

pub(crate) fn view(args: &ViewArgs, out: &mut impl Write) -> Result<()> {
    let options = (args.external.options(), &args.existing, &args.before);
    commit(&args.store, options, out, |txn, snapshot| {
        if let Some(old) = name_to_save(args, txn)? {
            return save_name(args, &old, (txn, snapshot));
        }
        let (mut lines, mut replaced) = (Vec::new(), BTreeSet::new());
        for Planned { what, view, new } in views_to_save(args, (txn, snapshot))? {
            let new = new_name("view", &new, txn)?;
            let replacing = replacing("view", &new, (txn, snapshot), &args.existing)?;
            txn.save_view(&new, &view)?;
            let (dtype, size) = (view.dtype(), view.size());
            lines.push(format!("{what} ({dtype} {size:?}) as {}{replacing}", quoted(&new)));
            replaced.insert(new);
        }
        let what = match &*lines {
            [one] => one.clone(),
            [first, ..] => format!("{}, such as {first}", counted(lines.len() as u64, "view")),
            [] => return Ok(None),
        };
        Ok(Some(Change { does: "save", did: "saved", what, lines, replaced }))
    })
}

/// Returns the views to save: more than one if the expression is a pattern.
fn views_to_save(args: &ViewArgs, (txn, snapshot): (&Transaction<'_>, &Snapshot)) -> Result<Vec<Planned>> {
    let texts = (args.expr.as_str(), args.new.as_str());
    if args.stack {
        return stack::stacks(texts, (txn, snapshot));
    }
    if let Some(parts) = stack::parts(texts, (txn, snapshot))? {
        return Ok(parts);
    }
    check_no_place(args, txn)?;
    let view = view_to_save(args, txn)?;
    Ok(vec![Planned { what: one_line(&args.expr), view, new: args.new.clone() }])
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
        Err(e) if args.expr.contains(PLACE) && is_about_names(&e) => {
            let e = e.to_string();
            let gap = if e.contains('\n') { "\n" } else { "; " };
            Err(Error::Refused(format!(
                "{e}{gap}{PLACE} stands for a number in names with --stack, and for each position in [{PLACE}] at the end"
            )))
        }
        view => Ok(view?.1),
    }
}

/// Whether an expression is wrong, or names no tensor.
fn is_about_names(e: &Error) -> bool {
    matches!(e, Error::Refused(_)) || matches!(e, Error::Library(e) if e.kind() == ErrorKind::NameNotFound)
}

/// Refuses a new name with `{}` for one view, for which an existing name, quotes or `--` say that it is meant.
fn check_no_place(args: &ViewArgs, txn: &Transaction<'_>) -> Result<()> {
    let is_meant =
        || Ok::<_, Error>(has_separator() || name(&args.new, txn)? != args.new || txn.contains(&args.new)?);
    if !args.new.contains(PLACE) || args.expr.contains(PLACE) || is_meant()? {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "view: the new name {:?} has {PLACE}, which stands for each position if the expression ends with [{PLACE}]; write \
         -- before the arguments if it is meant as a name",
        args.new
    )))
}

/// Returns the name to save if the expression has no operations. Swapped arguments are left to [`view_to_save`].
fn name_to_save(args: &ViewArgs, txn: &Transaction<'_>) -> Result<Option<String>> {
    if args.stack || expr::is_operation(&args.new, txn)? {
        return Ok(None);
    }
    let old = name(&args.expr, txn)?;
    if !txn.contains(&old)? {
        return Ok(None);
    }
    expr::note_name(&args.expr, txn)?;
    Ok(Some(old))
}

/// Saves a tensor under a second name, with its attributes. Its elements need not be readable.
fn save_name(
    args: &ViewArgs,
    old: &str,
    (txn, snapshot): (&mut Transaction<'_>, &Snapshot),
) -> Result<Option<Change>> {
    check_no_place(args, txn)?;
    let new = new_name("view", &args.new, txn)?;
    if new == old {
        return Ok(None);
    }
    let replacing = replacing("view", &new, (txn, snapshot), &args.existing)?;
    txn.copy(old, &new)?;
    let described = info(snapshot, old)?.map_or_else(String::new, |info| format!(" ({})", header(&info)));
    let what = format!("{}{described} as {}{replacing}", quoted(old), quoted(&new));
    Ok(Some(Change::of_one("save", "saved", what, new)))
}

pub(crate) fn rm(args: &RmArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let (mut txn, snapshot) = begin(&store, args.dry_run.dry_run)?;
    args.before.apply(&mut txn)?;
    let names = names(&args.names, &txn)?;
    names.iter().try_for_each(|name| txn.remove(name))?;
    let freed = Freed::of(&names, &snapshot)?;
    let replaced = Replaced::with(&names, &snapshot, &freed)?;
    let all_bytes = freed.bytes(|_| true);
    let mut tensors = Vec::new();
    for info in names.iter().filter_map(|name| info(&snapshot, name).transpose()).filter(|_| args.json) {
        let info = info?;
        tensors.push(short_record(&info.name, &info.header));
    }
    // A new tag keeps all of them.
    let tagged = || match args.before.tag {
        Some(_) => Ok(freed.ids()),
        None => kept_by_tags(&store, freed.ids()),
    };
    let record = |generation: Option<u64>, frees: &Frees| {
        let record = json!({ "is_dry_run": args.dry_run.dry_run, "generation": generation,
            "tag": args.before.tag, "tensors": tensors });
        joined(record, json!(frees))
    };
    if args.dry_run.dry_run {
        if !args.json {
            names.iter().try_for_each(|name| writeln!(out, "would remove {}", quoted(name)))?;
        }
        let frees = freed.frees(&tagged()?);
        if args.json {
            return write_json(out, record(None, &frees));
        }
        writeln!(out, "would free {frees}")?;
        return replaced.print_advice(&args.before, &store, &args.store, out);
    }
    drop(snapshot); // The commit deletes what no snapshot needs.
    let generation = txn.commit()?;
    let described = args.before.described(generation);
    let removed = match names.first() {
        Some(name) if names.len() == 1 => quoted(name).into_owned(),
        _ => counted(names.len() as u64, "tensor"),
    };
    let bytes = freed.bytes(|storage| !storage.file.exists());
    let and_freed = if bytes > 0 { format!(", freed {}", HumanBytes(bytes)) } else { String::new() };
    let tagged = tagged().ok();
    if args.json {
        let mut frees = freed.frees(tagged.as_ref().unwrap_or(&BTreeSet::new()));
        frees.freed_bytes = bytes;
        write_json(out, record(Some(generation), &frees))?;
    }
    message(&format!("removed {removed}{and_freed}{described}: generation {generation}"));
    if bytes < all_bytes
        && let Ok(usage) = store.disk_usage()
    {
        report_held_bytes(&usage);
    }
    replaced.report(&store, &args.store);
    // compact frees no bytes of a storage that a tag keeps.
    if let Some(tagged) = tagged {
        freed.note(&args.store, &tagged).iter().for_each(|note| message(note));
    }
    Ok(())
}

/// A change of names.
pub(super) struct Change {
    /// The verb, such as "save".
    pub(super) does: &'static str,
    /// The past tense of the verb, such as "saved".
    pub(super) did: &'static str,
    /// The rest of the message.
    pub(super) what: String,
    /// The same for each name, for a dry run.
    pub(super) lines: Vec<String>,
    /// The names of tensors that may have been replaced.
    pub(super) replaced: BTreeSet<String>,
}

impl Change {
    /// Returns the change of one name.
    pub(super) fn of_one(does: &'static str, did: &'static str, what: String, new: String) -> Self {
        Change { does, did, lines: vec![what.clone()], what, replaced: BTreeSet::from([new]) }
    }
}

/// Runs `change` on a store and commits it. `change` returns `None` if there is nothing to commit. A dry run prints the
/// message and commits nothing.
pub(super) fn commit(
    path: &Path,
    (options, existing, before): (StoreOptions, &Existing, &Before),
    out: &mut impl Write,
    change: impl FnOnce(&mut Transaction<'_>, &Snapshot) -> Result<Option<Change>>,
) -> Result<()> {
    let store = open_store(&options, path)?;
    let (mut txn, snapshot) = begin(&store, existing.is_dry_run())?;
    before.apply(&mut txn)?;
    txn.on_existing(existing.policy());
    let Some(Change { does, did, what, lines, replaced }) = change(&mut txn, &snapshot)? else {
        return Ok(());
    };
    let replaced = Replaced::of(&replaced, &snapshot)?;
    if existing.is_dry_run() {
        lines.iter().try_for_each(|line| writeln!(out, "would {does} {line}"))?;
        return replaced.print_advice(before, &store, path, out);
    }
    drop(snapshot); // The commit deletes what no snapshot needs.
    let generation = txn.commit()?;
    let tagged = before.described(generation);
    message(&format!("{did} {what}{tagged}: generation {generation}"));
    replaced.report(&store, path);
    replaced.note_left_behind(&store);
    Ok(())
}
