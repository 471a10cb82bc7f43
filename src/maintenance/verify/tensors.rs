use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Error as FormatError, Rule, StorageKind, StorageRecord, TensorRecord};

use super::damage::bytes_of_chunks;
use super::finding::{Affected, Finding, Findings};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Generation, History, not_found};
use crate::layout::ReachedBytes;
use crate::maintenance::external_check::{Fault, check_external};
use crate::storage::check_chunks;

/// Verifies only the given tensors: the entries that their lookups read, and the chunks that they refer to.
///
/// # Errors
/// `NameNotFound`, `Io`.
pub(crate) fn verify_tensors(
    history: &History,
    generation: &Generation,
    names: &[&str],
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Finding>> {
    let mut findings = Findings::default();
    for name in names {
        let affected = Affected::Tensors { names: vec![Arc::from(*name)], more: 0 };
        match verify_one(history, generation, name, progress) {
            Err(e) if e.broken().is_none() => return Err(e),
            Err(e) => drop(findings.metadata(e, affected)?),
            Ok(broken) => {
                for e in broken {
                    findings.metadata(e, affected.clone())?;
                }
            }
        }
    }
    Ok(findings.finish())
}

/// Returns what is wrong with the files of a tensor. Damaged metadata of the tensor is an error.
fn verify_one(
    history: &History,
    generation: &Generation,
    name: &str,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Error>> {
    let missing = || not_found("verify", name, |prefix| generation.tensors(prefix));
    let record = generation.tensor(name)?.ok_or_else(missing)?;
    let id = record.storage_id;
    let wrong = |rule, detail| {
        Error::corrupt(&history.paths.manifest(generation.number()), FormatError::new(rule, detail))
    };
    let storage = generation.storage(id)?.ok_or_else(|| {
        wrong(
            Rule::StorageMissing,
            format!("tensor {name:?} refers to storage {id:016x}, which has no record"),
        )
    })?;
    record
        .extent(storage.length_bytes)
        .map_err(|e| wrong(e.rule(), format!("tensor {name:?}: {}", e.detail())))?;
    if matches!(storage.kind, StorageKind::External(_)) {
        let (faults, refused) = check_external(history, std::iter::once((id, &storage)));
        if let Some(path) = refused.first() {
            let message = format!("verify {name:?}: {} may not be opened by this handle", path.display());
            return Err(Error::new(ErrorKind::ExternalRefused, message));
        }
        let broken =
            |fault: Fault| Error::corrupt(&fault.path, FormatError::new(Rule::ExternalFile, fault.detail));
        return Ok(faults.into_iter().map(broken).collect());
    }
    damage(history, (id, &storage), &record, progress)
}

/// Returns what is wrong with a storage, as far as it affects the elements of one tensor.
fn damage(
    history: &History,
    (id, storage): (u64, &StorageRecord),
    record: &TensorRecord,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Error>> {
    let reached = ReachedBytes::of(record, storage.length_bytes);
    let is_wanted = |index: u64| {
        let chunk = bytes_of_chunks(&(index..index + 1), storage.length_bytes);
        reached.as_ref().is_some_and(|reached| reached.reaches(&chunk))
    };
    let damage = check_chunks(&*history.disk, &history.paths, (id, storage), is_wanted, progress)?;
    let Some(damage) = damage else { return Ok(Vec::new()) };
    let path = history.paths.storage(id);
    let chunks = damage.chunks.into_iter().map(|chunk| {
        let detail =
            chunk.found.map_or_else(|e| e.to_string(), |_| "the chunk starting here was changed".to_owned());
        let broken = FormatError::new(Rule::ChunkDigest, detail).at(chunk.index * CHUNK_BYTES);
        Error::corrupt(&path, broken)
    });
    let files =
        damage.file.into_iter().chain(damage.sum.map(|sum| sum.error)).map(|error| match error.broken() {
            Some(_) => error,
            None => Error::corrupt(&path, FormatError::new(Rule::StorageFile, error.to_string())),
        });
    Ok(files.chain(chunks).collect())
}
