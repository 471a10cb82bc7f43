//! `view`, `ln`, `mv` and `rm`: add, change and remove names. No elements are copied.

use std::path::{Path, PathBuf};

use stridemap::{ErrorKind, OnExisting, StoreOptions, Transaction};

use crate::args::{Existing, External};
use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::input::open_store;
use crate::names::{name, names};

/// Save a view of a tensor under a new name, without copying elements
#[derive(clap::Args)]
#[command(after_help = expr::help("view model.smap 'weight.t()' weight_t"))]
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

/// Save a tensor under a second name, without copying elements; replaces NEW if it exists
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap ln model.smap encoder.weight decoder.weight")]
pub(crate) struct LnArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name of the tensor
    pub(crate) src: String,
    /// The second name
    #[arg(value_name = "NEW")]
    pub(crate) dst: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Rename a tensor; replaces NEW if it exists
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap mv model.smap weight encoder.weight")]
pub(crate) struct MvArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name of the tensor
    pub(crate) old: String,
    /// The new name
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Remove tensors in one commit: all or none
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap rm model.smap encoder.weight encoder.bias")]
pub(crate) struct RmArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The names to remove
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

pub(crate) fn view(args: &ViewArgs) -> Result<()> {
    commit(&args.store, args.external.options(), args.existing.policy(), |txn| {
        let is_swapped = expr::is_operation(&args.new, txn)?;
        let hint = |e| Error::Refused(format!("{e}; the order is: stridemap view STORE EXPR NEW"));
        let (_, view) = match expr::view(&args.expr, txn, Copies::Refused) {
            Err(Error::Library(e))
                if e.kind() == ErrorKind::NameNotFound && (is_swapped || txn.contains(&args.new)?) =>
            {
                return Err(hint(e.to_string()));
            }
            view => view?,
        };
        if is_swapped {
            return Err(hint(format!(
                "view: the new name {:?} is an expression; put it in quotes if it is meant as a name",
                args.new
            )));
        }
        Ok(txn.save_view(&name(&args.new, txn)?, &view)?)
    })
}

pub(crate) fn ln(args: &LnArgs) -> Result<()> {
    commit(&args.store, StoreOptions::new(), args.existing.policy(), |txn| {
        Ok(txn.copy(&name(&args.src, txn)?, &name(&args.dst, txn)?)?)
    })
}

pub(crate) fn mv(args: &MvArgs) -> Result<()> {
    commit(&args.store, StoreOptions::new(), args.existing.policy(), |txn| {
        Ok(txn.rename(&name(&args.old, txn)?, &name(&args.new, txn)?)?)
    })
}

pub(crate) fn rm(args: &RmArgs) -> Result<()> {
    commit(&args.store, StoreOptions::new(), OnExisting::default(), |txn| {
        Ok(names(&args.names, txn)?.iter().try_for_each(|name| txn.remove(name))?)
    })
}

fn commit(
    store: &Path,
    options: StoreOptions,
    on_existing: OnExisting,
    change: impl FnOnce(&mut Transaction<'_>) -> Result<()>,
) -> Result<()> {
    let store = open_store(&options, store)?;
    let mut txn = store.begin()?;
    txn.on_existing(on_existing);
    change(&mut txn)?;
    txn.commit()?;
    Ok(())
}
