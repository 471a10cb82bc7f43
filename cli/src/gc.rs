//! `gc`: deletes files that are no longer needed.

use std::io::Write;

use stridemap::StoreOptions;

use crate::args::StoreArgs;
use crate::error::Result;
use crate::output::counted;
use crate::source::open_store;
use crate::space::report_held_bytes;

pub(crate) fn run(args: &StoreArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let collected = store.gc()?;
    let files = counted(collected.file_count, "file");
    writeln!(out, "deleted {files}, {}", counted(collected.size_bytes, "byte"))?;
    report_held_bytes(&store)
}
