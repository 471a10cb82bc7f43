//! The tensors of which a change was interrupted.

use std::collections::BTreeSet;

use super::finding::MAX_NAMES;
use super::survey::Survey;
use crate::error::Result;
use crate::generation::OpenStore;
use crate::storage::is_interrupted;

/// Returns their names.
pub(super) fn names(store: &OpenStore, survey: &Survey<'_>) -> Result<Vec<String>> {
    let mut ids = BTreeSet::new();
    for (&id, storage) in &survey.storages {
        let is_interrupted = match is_interrupted(&*store.disk, &store.paths.storage(id), &storage.record) {
            // Damage is a finding already.
            Err(e) if e.format_error().is_some() => false,
            found => found?,
        };
        if is_interrupted {
            ids.insert(id);
        }
    }
    let mut names = Vec::new();
    if ids.is_empty() {
        return Ok(names);
    }
    survey.each_tensor(|tensor| {
        if ids.contains(&tensor.record.storage_id) && names.len() < MAX_NAMES {
            names.push(tensor.name.to_owned());
        }
        Ok(())
    })?;
    names.sort_unstable();
    Ok(names)
}
