//! Opens stores, by path or URL.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Access, access};
use stridemap::{ErrorKind, Snapshot, StorageKind, Store, StoreOptions};
use stridemap_interop::ForeignOptions;

use super::advice;
use crate::at::{check_untagged, snapshot_at, split};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::names::command_line;
use crate::remote::{self, is_url};
use crate::ui::message;

/// Opens a store, for a command that is about its newest generation. See [`explain`] for the error.
pub(crate) fn open_store(options: &StoreOptions, path: &Path) -> Result<Store> {
    check_untagged(path)?;
    reporting_waits(options).open(path).map_err(|refused| explain(path, refused))
}

/// Opens a store or a URL to look at its history.
pub(crate) fn open_to_look(options: &StoreOptions, path: &Path) -> Result<Store> {
    if is_url(path) { remote::open_newest(options, path) } else { open_store(options, path) }
}

/// Opens a store or a URL to look at it: at the newest generation, or for `STORE@TAG` or `URL@TAG` at the one that the tag names.
pub(crate) fn open_at(options: &StoreOptions, path: &Path) -> Result<(Store, Snapshot)> {
    if is_url(path) {
        return remote::open(options, path);
    }
    let Some((path, tag)) = split(path) else {
        let store = open_store(options, path)?;
        let snapshot = store.snapshot();
        return Ok((store, snapshot));
    };
    let store = open_store(options, path)?;
    let snapshot = snapshot_at(&store, tag)?;
    Ok((store, snapshot))
}

/// Returns the total length of the storages that are in external files, or of those inside the store.
pub(crate) fn stored_bytes(snapshot: &Snapshot, is_external: bool) -> Result<u64> {
    snapshot.storages().try_fold(0u64, |sum, storage| {
        let storage = storage?;
        let is_counted = (storage.kind == StorageKind::External) == is_external;
        Ok(sum.saturating_add(if is_counted { storage.size_bytes } else { 0 }))
    })
}

/// Refuses a dry run on a store that the command could not change.
pub(crate) fn check_writable(store: &Store) -> Result<()> {
    let path = store.path().join("meta");
    access(&path, Access::WRITE_OK).map_err(|e| {
        Error::Refused(format!("{} cannot be changed: {}: {e}", store.path().display(), path.display()))
    })
}

/// How long a command waits for a lock before it says so.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Returns options with which a command says which process it waits for.
pub(crate) fn reporting_waits(options: &StoreOptions) -> StoreOptions {
    options.clone().on_wait(SILENT_WAIT, report_wait)
}

/// Says once which process holds a lock. Ends the command if a signal has arrived.
fn report_wait(processes: &[u32]) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    interrupt::check();
    if IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let holder = match processes.first() {
        None => "another process".to_owned(),
        Some(id) => match fs::read_to_string(format!("/proc/{id}/comm")) {
            Ok(command) => format!("process {id} ({})", command.trim()),
            Err(_) => format!("process {id}"),
        },
    };
    message(&format!("note: waiting for {holder}, which is writing to the store"));
}

/// Adds a suggestion to an error about a store: to import the path if it is a file in another format, or to use a
/// different path if there is nothing at this one.
pub(crate) fn explain(path: &Path, refused: stridemap::Error) -> Error {
    if refused.kind() == ErrorKind::NotAStore
        && fs::metadata(path).is_ok_and(|found| found.is_file())
        && let Ok(file) = ForeignOptions::new().skip_unreadable(true).open(path)
    {
        let import = command_line("import", &[&path.to_string_lossy(), "STORE"]);
        let (path, format) = (path.display(), file.format());
        return Error::Refused(format!(
            "open {path}: a {format} file, not a store; import it first: {import}"
        ));
    }
    match refused.kind() {
        ErrorKind::NotFound => Error::Refused(format!("{refused}{}", advice(path))),
        _ => refused.into(),
    }
}
