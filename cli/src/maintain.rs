//! `gc` and `verify`: the files of a store.

use std::io::Write;

use stridemap::{ErrorKind, StorageKind, Store, StoreOptions};

use crate::args::{StoreArgs, VerifyArgs};
use crate::error::Result;
use crate::output::{counted, message, one_line, progress};
use crate::source::{explained, open_store};
use crate::space::say_what_readers_hold;

pub(crate) fn gc(args: &StoreArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let collected = store.gc()?;
    let files = counted(collected.file_count, "file");
    writeln!(out, "deleted {files}, {}", counted(collected.size_bytes, "byte"))?;
    say_what_readers_hold(&store)
}

/// Gives whether the store is whole.
pub(crate) fn verify(args: &VerifyArgs, out: &mut impl Write) -> Result<bool> {
    let findings = findings(args)?;
    for finding in &findings {
        writeln!(out, "{}", one_line(finding))?;
    }
    if findings.is_empty() {
        writeln!(out, "ok")?;
    }
    Ok(findings.is_empty())
}

/// The files that were imported in place, and may not be opened.
fn say_what_is_not_checked(store: &Store) {
    // What metadata cannot be read is a finding already.
    let Ok(files) = store.unchecked_files() else { return };
    let Some(first) = files.first() else { return };
    message(&format!(
        "note: {} not checked, {} among them: --external says which may be opened",
        counted(files.len() as u64, "external file"),
        first.display()
    ));
}

/// A store too damaged to be opened or read through is a finding too.
fn findings(args: &VerifyArgs) -> Result<Vec<String>> {
    let found = args.external.options().open(&args.store).and_then(|store| {
        let snapshot = store.snapshot();
        let own = snapshot.storages().flatten().filter(|storage| storage.kind != StorageKind::External);
        let sizes = own.map(|storage| storage.size_bytes);
        let bar = progress("verify", sizes.fold(0, u64::saturating_add));
        let findings = store.verify(|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        say_what_is_not_checked(&store);
        Ok(findings)
    });
    match found {
        Ok(findings) => Ok(findings.iter().map(ToString::to_string).collect()),
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(vec![e.to_string()]),
        Err(e) => Err(explained(&args.store, e)),
    }
}
