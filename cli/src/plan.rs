//! What the commands that change something have in common: what they may replace, and what `--dry-run` prints.

use stridemap::{Result as LibraryResult, Snapshot, Store, TensorInfo, Transaction};

use crate::args::Existing;
use crate::error::{Error, Result};
use crate::input::check_writable;
use crate::names::quoted;

/// Begins the transaction of a command that writes headers only. Returns the newest generation, too, to which the change
/// applies: no other process commits meanwhile. A dry run waits for nobody.
pub(crate) fn begin(store: &Store, is_dry_run: bool) -> Result<(Transaction<'_>, Snapshot)> {
    if is_dry_run {
        check_writable(store)?;
    }
    let txn = if is_dry_run { store.begin()? } else { store.begin_exclusive()? };
    Ok((txn, store.latest()?))
}

/// Refuses a name that is already taken, unless `--force` is given. Returns the end of the sentence that describes the
/// change.
pub(crate) fn replacing(
    command: &str,
    name: &str,
    (txn, snapshot): (&Transaction<'_>, &Snapshot),
    existing: &Existing,
) -> Result<String> {
    let there = if txn.contains(name)? { info(snapshot, name)? } else { None };
    match there.map(|info| header(&info)) {
        None => Ok(String::new()),
        Some(there) if existing.force => Ok(format!(", replacing {there}")),
        Some(there) => {
            Err(Error::Refused(format!("{command}: {name:?} exists, {there}; --force replaces it")))
        }
    }
}

/// Returns the header of the tensor with this name.
pub(crate) fn info(snapshot: &Snapshot, name: &str) -> LibraryResult<Option<TensorInfo>> {
    let first = snapshot.iter_tensors(name)?.next().transpose()?;
    Ok(first.filter(|info| info.name == name))
}

/// Formats the header of a tensor without its name: "float32 [3, 2]".
pub(crate) fn header(info: &TensorInfo) -> String {
    format!("{} {:?}", info.header.dtype(), info.header.size())
}

/// Formats a tensor in a list: "weight, float32 [3, 2]".
pub(crate) fn described(name: &str, info: &TensorInfo) -> String {
    format!("{}, {}", quoted(name), header(info))
}
