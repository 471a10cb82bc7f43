//! `gc`: deletes files that are no longer needed.

use std::io::Write;
use std::path::PathBuf;

use stridemap::StoreOptions;

use super::compact::{report_deleted, report_held_bytes};
use crate::error::Result;
use crate::input::open_store;
use crate::ui::examples;

/// Delete files that are no longer needed
#[derive(clap::Args)]
#[command(after_help = examples(&["gc model.smap"]))]
pub(crate) struct GcArgs {
    /// The store
    pub(crate) store: PathBuf,
}

pub(crate) fn run(args: &GcArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    report_deleted(store.gc()?, out)?;
    report_held_bytes(&store.disk_usage()?);
    Ok(())
}
