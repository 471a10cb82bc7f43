//! What the commands that change something have in common: what they may replace, and what `--dry-run` prints.

use stridemap::{Snapshot, TensorInfo, Transaction};

use crate::args::Existing;
use crate::error::{Error, Result};
use crate::names::quoted;

/// Refuses a new name that exists, unless `--force` is given. Returns the end of the sentence that describes the change.
pub(crate) fn replacing(
    command: &str,
    name: &str,
    (txn, snapshot): (&Transaction<'_>, &Snapshot),
    existing: &Existing,
) -> Result<String> {
    if !txn.contains(name)? {
        return Ok(String::new());
    }
    let there = match info(snapshot, name)? {
        Some(info) => header(&info),
        None => "a tensor of the same command".to_owned(),
    };
    if existing.force {
        return Ok(format!(", replacing {there}"));
    }
    Err(Error::Refused(format!("{command}: {name:?} exists, {there}; --force replaces it")))
}

/// Returns the header of the tensor with this name.
pub(crate) fn info(snapshot: &Snapshot, name: &str) -> Result<Option<TensorInfo>> {
    let first = snapshot.tensors(name)?.next().transpose()?;
    Ok(first.filter(|info| info.name == name))
}

/// Formats the header of a tensor without its name: "float32 [3, 2]".
pub(crate) fn header(info: &TensorInfo) -> String {
    format!("{} {:?}", info.dtype, info.size())
}

/// Formats a tensor in a list: "weight, float32 [3, 2]".
pub(crate) fn item(name: &str, info: &TensorInfo) -> String {
    format!("{}, {}", quoted(name), header(info))
}
