use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Error as FormatError, Rule, StorageKind, StorageRecord, TensorRecord};

use super::finding::{Affected, Finding, Findings};
use super::harms::bytes;
use crate::commit::outside::Outside;
use crate::commit::{Generation, History, not_found};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Touch;
use crate::storage::check_chunks;

/// Verifies some tensors alone: the entries that lead to each, and the chunks that it reaches.
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

/// What is wrong with the files of a tensor; an error is something wrong on the way to it.
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
            format!("tensor {name:?} stands on storage {id:016x}, which has no record"),
        )
    })?;
    record
        .extent(storage.length_bytes)
        .map_err(|e| wrong(e.rule(), format!("tensor {name:?}: {}", e.detail())))?;
    if let StorageKind::External(external) = &storage.kind {
        let mut outside = Outside::default();
        outside.add_storage(id, external);
        let (faults, refused) = outside.check(history);
        if let Some(path) = refused.first() {
            let message = format!("verify {name:?}: {} may not be opened by this handle", path.display());
            return Err(Error::new(ErrorKind::ExternalRefused, message));
        }
        let broken = |fault: crate::commit::outside::Fault| {
            Error::corrupt(&fault.path, FormatError::new(Rule::ExternalFile, fault.detail))
        };
        return Ok(faults.into_iter().map(broken).collect());
    }
    harm(history, (id, &storage), &record, progress)
}

fn harm(
    history: &History,
    (id, storage): (u64, &StorageRecord),
    record: &TensorRecord,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Error>> {
    let touch = Touch::of(record, storage.length_bytes);
    let is_wanted = |index: u64| {
        touch.as_ref().is_some_and(|touch| touch.reaches(&bytes(&(index..index + 1), storage.length_bytes)))
    };
    let harm = check_chunks(&*history.disk, &history.paths, (id, storage), is_wanted, progress)?;
    let Some(harm) = harm else { return Ok(Vec::new()) };
    let path = history.paths.storage(id);
    let chunks = harm.chunks.into_iter().map(|chunk| {
        let detail = chunk.unread.map_or("the chunk from here on was changed".to_owned(), |e| e.to_string());
        let broken = FormatError::new(Rule::ChunkDigest, detail).at(chunk.index * CHUNK_BYTES);
        Error::corrupt(&path, broken)
    });
    let files =
        harm.file.into_iter().chain(harm.sum.map(|sum| sum.error)).map(|error| match error.broken() {
            Some(_) => error,
            None => Error::corrupt(&path, FormatError::new(Rule::StorageFile, error.to_string())),
        });
    Ok(files.chain(chunks).collect())
}
