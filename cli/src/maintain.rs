//! `gc` and `verify`: the files of a store.

use std::io::Write;
use std::path::Path;

use stridemap::{ErrorKind, Store};

use crate::args::StoreArgs;
use crate::error::Result;
use crate::output::{counted, one_line, progress};
use crate::space::say_what_readers_hold;

pub(crate) fn gc(args: &StoreArgs, out: &mut impl Write) -> Result<()> {
    let store = Store::open(&args.store)?;
    let collected = store.gc()?;
    let files = counted(collected.file_count, "file");
    writeln!(out, "deleted {files}, {}", counted(collected.size_bytes, "byte"))?;
    say_what_readers_hold(&store)
}

/// Gives whether the store is whole.
pub(crate) fn verify(args: &StoreArgs, out: &mut impl Write) -> Result<bool> {
    let findings = findings(&args.store)?;
    for finding in &findings {
        writeln!(out, "{}", one_line(finding))?;
    }
    if findings.is_empty() {
        writeln!(out, "ok")?;
    }
    Ok(findings.is_empty())
}

/// A store too damaged to be opened or read through is a finding too.
fn findings(store: &Path) -> stridemap::Result<Vec<String>> {
    let found = Store::open(store).and_then(|store| {
        let snapshot = store.snapshot();
        let sizes = snapshot.storages().filter_map(|storage| Some(storage.ok()?.size_bytes));
        let bar = progress("verify", sizes.fold(0, u64::saturating_add));
        store.verify(|bytes| bar.inc(bytes))
    });
    match found {
        Ok(findings) => Ok(findings.iter().map(ToString::to_string).collect()),
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(vec![e.to_string()]),
        Err(e) => Err(e),
    }
}
