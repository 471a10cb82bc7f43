use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use stridemap_format::{Rule, StorageKind, StorageRecord};

use super::outside::Outside;
use super::{Generation, History, read_marker, recover};
use crate::error::{Error, Result, one_line};
use crate::storage::{VerifiedStorage, open_whole};

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

/// Reads all of a generation, and every byte of its storages, and gives what breaks a rule. External files are looked at,
/// and not read.
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
    let mut outside = Outside::default();
    let mut storages: BTreeMap<u64, (StorageRecord, u64)> = BTreeMap::new();
    for entry in generation.storages() {
        match entry {
            Ok((id, record)) => {
                if let StorageKind::External(external) = &record.kind {
                    outside.add_storage(id, external);
                }
                storages.insert(id, (record, 0));
            }
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
        outside.add_tensor(record.storage_id, &name);
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
        verify_storage(history, id, &record, progress, &mut findings)?;
    }
    for fault in outside.check(history).0 {
        findings.push(&fault.path, None, Rule::ExternalFile, fault.detail);
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

    /// What stands in the way of reading elements is a finding as well: the others are still to be verified. That this
    /// process, or the machine, has no descriptors or no memory left says nothing of the store.
    fn storage(&mut self, path: &Path, error: Error) -> Result<()> {
        match (error.broken_path(), error.broken()) {
            (Some(path), Some(broken)) => {
                self.push(path, broken.offset_bytes(), broken.rule(), broken.detail().to_owned());
            }
            _ if error.is_for_want_of_resources() => return Err(error),
            _ => self.push(path, None, Rule::StorageFile, error.to_string()),
        }
        Ok(())
    }
}

fn verify_storage(
    history: &History,
    id: u64,
    record: &StorageRecord,
    progress: &mut dyn FnMut(u64),
    findings: &mut Findings,
) -> Result<()> {
    let path = history.paths.storage(id);
    let checked = match &record.kind {
        StorageKind::Sealed(sealed) => {
            let opened =
                VerifiedStorage::open(&*history.disk, &history.paths, id, (record.length_bytes, sealed));
            // To the end and one more, for the tail: that of no bytes has a digest too.
            let all = 0..record.length_bytes.saturating_add(1);
            opened.and_then(|mut storage| {
                storage.visit_chunks(all, |chunk| {
                    progress(chunk.bytes.len() as u64);
                    if chunk.is_damaged { findings.storage(&path, chunk.damage(&path)) } else { Ok(()) }
                })
            })
        }
        _ => open_whole(&*history.disk, &path, record.length_bytes).map(drop),
    };
    checked.or_else(|e| findings.storage(&path, e))
}
