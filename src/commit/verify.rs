use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{
    CHUNK_BYTES, Digest, Digester, Rule, StorageKind, StorageRecord, digest, digests_of_chunks, is_chunked,
};

use super::{Generation, History, read_marker, recover};
use crate::disk::{Access, DiskFile};
use crate::error::{Error, Result, one_line};

/// One thing that is wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The file that is damaged or missing.
    pub path: PathBuf,
    /// Where in it, when that is known.
    pub offset_bytes: Option<u64>,
    /// The rule of the format that is broken.
    pub rule: Rule,
    /// What stands there, in words.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.offset_bytes.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let Finding { path, rule, detail, .. } = self;
        let line = format!("{}{place}: {detail} ({rule}: {})", path.display(), rule.text());
        f.write_str(&one_line(&line))
    }
}

/// Reads all of a generation, and every byte of its storages, and gives what breaks a rule.
///
/// `progress` is called with the bytes of data read since the last call.
pub(crate) fn verify(
    history: &History,
    generation: &Generation,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Finding>> {
    let mut findings = Findings(Vec::new());
    let table_path = generation.table().map_or_else(
        || history.paths.manifest(generation.number()),
        |table| history.paths.table(table.reference().generation),
    );
    // From the disk again, and not as this handle remembers them.
    let reread = read_marker(&*history.disk, &history.paths);
    let reread = reread.and_then(|_| recover::newest(&*history.disk, &history.paths, history.uuid, None));
    if let Err(e) = reread {
        findings.metadata(e)?;
    }
    if let Some(Err(e)) = generation.table().map(|table| table.check_index()) {
        findings.metadata(e)?;
    }
    let mut storages: BTreeMap<u64, (StorageRecord, u64)> = BTreeMap::new();
    for entry in generation.storages() {
        match entry {
            Ok((id, record)) => drop(storages.insert(id, (record, 0))),
            Err(e) => findings.metadata(e)?,
        }
    }
    for entry in generation.tensors("")? {
        let (name, record) = match entry {
            Ok(entry) => entry,
            Err(e) => {
                findings.metadata(e)?;
                continue;
            }
        };
        match storages.get_mut(&record.storage_id) {
            None => {
                let detail = format!(
                    "tensor {name:?} stands on storage {:016x}, which has no record",
                    record.storage_id
                );
                findings.push(&table_path, None, Rule::StorageMissing, detail);
            }
            Some((storage, tensor_count)) => {
                *tensor_count += 1;
                if let Err(e) = record.extent(storage.length_bytes) {
                    findings.push(&table_path, None, e.rule(), format!("tensor {name:?}: {}", e.detail()));
                }
            }
        }
    }
    for (id, (record, tensor_count)) in storages {
        if tensor_count != record.tensor_count {
            let detail = format!(
                "storage {id:016x} has {tensor_count} tensors and a record of {}",
                record.tensor_count
            );
            findings.push(&table_path, None, Rule::TensorCount, detail);
        }
        if matches!(record.kind, StorageKind::External(_)) {
            continue;
        }
        verify_storage(history, id, &record, progress, &mut findings);
    }
    Ok(findings.0)
}

struct Findings(Vec<Finding>);

impl Findings {
    fn push(&mut self, path: &Path, offset_bytes: Option<u64>, rule: Rule, detail: String) {
        self.0.push(Finding { path: path.to_path_buf(), offset_bytes, rule, detail });
    }

    /// A broken rule is a finding; what the operating system refuses is an error of the verification.
    fn metadata(&mut self, error: Error) -> Result<()> {
        match (error.broken_path(), error.broken()) {
            (Some(path), Some(broken)) => {
                self.push(path, broken.offset_bytes(), broken.rule(), broken.detail().to_owned());
                Ok(())
            }
            _ => Err(error),
        }
    }
}

fn verify_storage(
    history: &History,
    id: u64,
    record: &StorageRecord,
    progress: &mut dyn FnMut(u64),
    findings: &mut Findings,
) {
    let path = history.paths.storage(id);
    let failed = |e: io::Error| (path.clone(), None, Rule::StorageFile, e.to_string());
    let found = (|| {
        let file = history.disk.open(&path, Access::Read).map_err(failed)?;
        let length_bytes = file.stat().map_err(failed)?.size_bytes;
        if length_bytes < record.length_bytes {
            let detail = format!("{length_bytes} bytes, where the record says {}", record.length_bytes);
            return Err((path.clone(), None, Rule::StorageFile, detail));
        }
        let StorageKind::Sealed(root) = record.kind else { return Ok(Vec::new()) };
        let stated = chunk_digests(history, id, record, root)?;
        let mut damaged = Vec::new();
        let mut chunk = vec![0; CHUNK_BYTES as usize];
        for (index, stated) in (0..).zip(stated) {
            let offset_bytes = index * CHUNK_BYTES;
            let chunk_bytes = (record.length_bytes - offset_bytes).min(CHUNK_BYTES);
            chunk.truncate(chunk_bytes as usize);
            file.read_exact_at(&mut chunk, offset_bytes).map_err(failed)?;
            if digest(&chunk) != stated? {
                damaged.push((offset_bytes, chunk_bytes));
            }
            progress(chunk_bytes);
        }
        Ok(damaged)
    })();
    match found {
        Ok(damaged) => {
            for (offset_bytes, chunk_bytes) in damaged {
                let detail = format!("the chunk of {chunk_bytes} bytes from here on was changed");
                findings.push(&path, Some(offset_bytes), Rule::ChunkDigest, detail);
            }
        }
        Err((path, offset_bytes, rule, detail)) => findings.push(&path, offset_bytes, rule, detail),
    }
}

type Broken = (PathBuf, Option<u64>, Rule, String);

/// What the digest of each chunk should be, read as it is asked for: a record may claim any number of chunks.
fn chunk_digests(
    history: &History,
    id: u64,
    record: &StorageRecord,
    root: Digest,
) -> Result<Box<dyn Iterator<Item = Result<Digest, Broken>>>, Broken> {
    if !is_chunked(record.length_bytes) {
        return Ok(Box::new(iter::once(Ok(root))));
    }
    let path = history.paths.sum(id);
    let failed = |e: io::Error| (path.clone(), None, Rule::StorageFile, e.to_string());
    let file = history.disk.open(&path, Access::Read).map_err(failed)?;
    let length_bytes = record.length_bytes.div_ceil(CHUNK_BYTES) * size_of::<Digest>() as u64;
    let found_bytes = file.stat().map_err(failed)?.size_bytes;
    if found_bytes < length_bytes {
        let detail = format!("{found_bytes} bytes, where the storage has {length_bytes} bytes of digests");
        return Err((path, None, Rule::StorageFile, detail));
    }
    let mut all = Digester::default();
    for piece in pieces(Arc::clone(&file), length_bytes) {
        all.update(&piece.map_err(failed)?);
    }
    if all.finish() != root {
        return Err((path, None, Rule::ChunkDigest, "the chunk digests were changed".to_owned()));
    }
    Ok(Box::new(pieces(file, length_bytes).flat_map(move |piece| match piece {
        Ok(piece) => digests_of_chunks(&piece).map(Ok).collect::<Vec<_>>(),
        Err(e) => vec![Err((path.clone(), None, Rule::StorageFile, e.to_string()))],
    })))
}

/// The bytes of a file, a few at a time.
fn pieces(file: Arc<dyn DiskFile>, length_bytes: u64) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    const PIECE_BYTES: usize = 4096;
    (0..length_bytes).step_by(PIECE_BYTES).map(move |offset_bytes| {
        let mut piece = vec![0; (length_bytes - offset_bytes).min(PIECE_BYTES as u64) as usize];
        file.read_exact_at(&mut piece, offset_bytes)?;
        Ok(piece)
    })
}
