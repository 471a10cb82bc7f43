//! `view`, `cp`, `mv` and `rm`: add, change and remove names. No elements are copied.

use std::path::Path;

use stridemap::{OnExisting, StoreOptions, Transaction};

use crate::args::{CpArgs, MvArgs, RmArgs, ViewArgs};
use crate::error::Result;
use crate::expr::{Copies, Expr};
use crate::source::open_store;

pub(crate) fn view(args: &ViewArgs) -> Result<()> {
    let expr: Expr = args.expr.parse()?;
    commit(&args.store, args.external.options(), args.existing.policy(), |txn| {
        let (_, view) = expr.view(|name| txn.load(name), Copies::Refused)?;
        Ok(txn.save_view(&args.new, &view)?)
    })
}

pub(crate) fn cp(args: &CpArgs) -> Result<()> {
    commit(
        &args.store,
        StoreOptions::new(),
        args.existing.policy(),
        |txn| Ok(txn.copy(&args.src, &args.dst)?),
    )
}

pub(crate) fn mv(args: &MvArgs) -> Result<()> {
    commit(&args.store, StoreOptions::new(), args.existing.policy(), |txn| {
        Ok(txn.rename(&args.old, &args.new)?)
    })
}

pub(crate) fn rm(args: &RmArgs) -> Result<()> {
    commit(&args.store, StoreOptions::new(), OnExisting::default(), |txn| {
        Ok(args.names.iter().try_for_each(|name| txn.remove(name))?)
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
