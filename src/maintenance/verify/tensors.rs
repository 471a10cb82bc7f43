//! Verifies only some tensors of a generation.

use std::cell::Cell;
use std::sync::Arc;

use stridemap_format::{Error as FormatError, RecordKind, Rule};

use super::Verification;
use super::damage::{add_findings, bytes_of_chunks};
use super::finding::Findings;
use super::storages::check_chunks;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Generation, OpenStore};
use crate::layout::{Coverage, MAX_STEPS_TOGETHER};
use crate::maintenance::external_check::{Fault, check_external};
use crate::storage::is_interrupted;

/// Verifies only the given tensors: the entries that their lookups read, and the chunks that they refer to.
///
/// # Errors
/// `NameNotFound`, `NotAllowed`, `UnsupportedVersion`, `Io`.
pub(crate) fn verify_tensors(
    store: &OpenStore,
    generation: &Generation,
    names: &[&str],
    progress: &mut dyn FnMut(u64),
) -> Result<Verification> {
    let (mut findings, mut interrupted, mut read_bytes) = (Findings::default(), Vec::new(), 0);
    let mut progress = |bytes| {
        read_bytes += bytes;
        progress(bytes);
    };
    for name in names {
        let name = Arc::from(*name);
        match verify_one(store, generation, &name, &mut findings, &mut progress) {
            Ok(true) => interrupted.push((*name).to_owned()),
            Ok(false) => {}
            Err(e) => {
                let finding = findings.add_broken_rule(e)?;
                findings.affect(finding, &name);
            }
        }
    }
    Ok(Verification { findings: findings.finish(), interrupted, read_bytes, ..Verification::default() })
}

/// Adds what is wrong with the files of a tensor to the findings. Damaged metadata of the tensor is an error. Returns
/// whether a change of its storage was interrupted.
fn verify_one(
    store: &OpenStore,
    generation: &Generation,
    name: &Arc<str>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<bool> {
    let record = generation.existing("verify", name)?;
    let id = record.storage_id;
    let wrong = |rule, detail| {
        Error::corrupt(&store.paths.manifest(generation.number()), FormatError::new(rule, detail))
    };
    let storage = generation.storage(id)?.ok_or_else(|| {
        wrong(
            Rule::TensorStorage,
            format!("tensor {name:?} refers to storage {id:016x}, which has no record"),
        )
    })?;
    record
        .header
        .extent(storage.length_bytes)
        .map_err(|e| wrong(e.rule(), format!("tensor {name:?}: {}", e.detail())))?;
    if matches!(storage.kind, RecordKind::External(_)) {
        let (faults, refused) = check_external(store, std::iter::once((id, &storage)))?;
        if let Some(path) = refused.first() {
            let message = format!("verify {name:?}: {} may not be opened by this handle", path.display());
            return Err(Error::new(ErrorKind::NotAllowed, message));
        }
        for Fault { path, detail, .. } in faults {
            let finding = findings.push(path, &FormatError::new(Rule::ExternalFile, detail));
            findings.affect(finding, name);
        }
        return Ok(false);
    }
    let reached = Coverage::of(&record.header, storage.length_bytes);
    let steps_left = Cell::new(MAX_STEPS_TOGETHER);
    let is_wanted = |index: u64| {
        let chunk = bytes_of_chunks(&(index..index + 1), storage.length_bytes);
        let mut steps = steps_left.get();
        let is_reached = reached.as_ref().is_some_and(|reached| reached.overlaps(&chunk, &mut steps));
        steps_left.set(steps);
        is_reached
    };
    let damage = check_chunks(&*store.disk, &store.paths, (id, &storage), is_wanted, progress)?;
    if let Some(damage) = damage {
        let index = add_findings(store, id, storage.length_bytes, &damage, findings)?;
        index.findings().for_each(|finding| findings.affect(finding, name));
        if damage.file.is_some() {
            return Ok(false);
        }
    }
    is_interrupted(&*store.disk, &store.paths.storage(id), &storage)
}
