//! Everything that a generation says and holds, read once.

mod finding;
mod harms;
mod orphans;
mod survey;
mod tensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{Error as FormatError, Rule, StorageKind};

use super::outside::Outside;
use super::{Generation, History, Options, hold, read_marker, recover};
use crate::disk::{Access, Disk, StorePaths};
use crate::error::{ErrorKind, Result};
use crate::storage::check_all;
use finding::{Findings, Index};

pub use finding::{Affected, Finding};
pub(super) use harms::bytes as bytes_of_chunks;
pub(super) use orphans::Needs;
pub use orphans::{Orphan, OrphanKind};
pub(super) use survey::{Mended, Survey};
pub(crate) use tensors::verify_tensors;

/// What a verification found: [`Store::verify`](crate::Store::verify).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// What breaks a rule of the format: nothing, for a whole store.
    pub findings: Vec<Finding>,
    /// Files that nobody needs, which is no damage. They are not looked for when only some tensors are verified, nor in a
    /// store that is too damaged to be opened.
    pub orphans: Vec<Orphan>,
    /// The external files that may not be opened, and were left alone.
    pub unchecked_files: Vec<PathBuf>,
    /// How many bytes of storages were read.
    pub read_bytes: u64,
}

impl Verification {
    /// Whether no damage was found. Files that nobody needs or that could not be checked are no damage.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Verifies the newest generation of the store in a directory, which may be too damaged to be opened.
pub(crate) fn verify_path(
    disk: &Arc<dyn Disk>,
    path: &Path,
    options: Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Verification> {
    let (disk, paths) = hold(disk, path)?;
    let opened = read_marker(&*disk, &paths)
        .and_then(|uuid| History::open(Arc::clone(&disk), paths.clone(), uuid, options));
    match opened {
        Ok(history) => verify(&history, &history.current(), progress),
        Err(e) => {
            let mut findings = Findings::default();
            findings.metadata(e, Affected::Everything)?;
            check_lock(&*disk, &paths, &mut findings);
            Ok(Verification { findings: findings.finish(), ..Verification::default() })
        }
    }
}

/// Reads all of a generation, and every byte of its storages. External files are looked at, and not read.
///
/// `progress` is called with the bytes read since the last call.
pub(crate) fn verify(
    history: &History,
    generation: &Generation,
    progress: &mut dyn FnMut(u64),
) -> Result<Verification> {
    let mut findings = Findings::default();
    // From the disk again, and not as this handle remembers them.
    let reread = read_marker(&*history.disk, &history.paths);
    let reread = reread.and_then(|_| recover::reread(history, generation));
    if let Err(e) = reread {
        findings.metadata(e, Affected::Everything)?;
    }
    check_lock(&*history.disk, &history.paths, &mut findings);
    let survey = match Survey::of(generation.manifest(), generation.table().map(Arc::as_ref)) {
        // A table that has become shorter since it was opened is found above.
        Err(_) if !findings.list.is_empty() => {
            return Ok(Verification { findings: findings.finish(), ..Verification::default() });
        }
        survey => survey?,
    };
    let mut outside = Outside::default();
    metadata(history, generation, &survey, &mut outside, &mut findings)?;
    let own = || {
        let all = survey.storages.iter().map(|(&id, standing)| (id, &standing.record));
        all.filter(|(_, record)| !matches!(record.kind, StorageKind::External(_)))
    };
    let mut read_bytes = 0;
    let harms = check_all(&*history.disk, &history.paths, own().collect(), &mut |bytes| {
        read_bytes += bytes;
        progress(bytes);
    })?;
    harms::report(history, &survey, &harms, &mut findings)?;
    let (faults, unchecked_files) = outside.check(history);
    for fault in faults {
        let affected = Affected::Tensors { names: fault.names, more: fault.more };
        findings.push(fault.path, &FormatError::new(Rule::ExternalFile, fault.detail), affected);
    }
    let orphans = match orphans::orphans(history) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Vec::new(),
        orphans => orphans?,
    };
    Ok(Verification { findings: findings.finish(), orphans, unchecked_files, read_bytes })
}

/// Nobody reads LOCK, and nobody commits without it.
fn check_lock(disk: &dyn Disk, paths: &StorePaths, findings: &mut Findings) {
    let path = paths.lock();
    let Err(e) = disk.open(&path, Access::Read) else { return };
    if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidInput) {
        let detail = format!("open LOCK: {e}; nobody can commit");
        findings.push(path, &FormatError::new(Rule::LockFile, detail), Affected::NOTHING);
    }
}

fn metadata(
    history: &History,
    generation: &Generation,
    survey: &Survey<'_>,
    outside: &mut Outside,
    findings: &mut Findings,
) -> Result<()> {
    let table_path = generation.table().map_or_else(
        || history.paths.manifest(generation.number()),
        |table| history.paths.table(table.reference().generation),
    );
    if let Some(Err(e)) = generation.table().map(|table| table.check_index())
        && survey.broken.is_empty()
    {
        findings.metadata(e, Affected::NOTHING)?;
    }
    let broken = broken_entries(survey, findings)?;
    let unordered = out_of_order(&table_path, survey, findings);
    for (id, standing) in &survey.storages {
        if let StorageKind::External(external) = &standing.record.kind {
            outside.add_storage(*id, external);
        }
        if standing.tensor_count != standing.record.tensor_count && !survey.has_lost_entries() {
            let detail = format!(
                "storage {id:016x} has {} tensors and a record of {}",
                standing.tensor_count, standing.record.tensor_count
            );
            findings.push(&table_path, &FormatError::new(Rule::TensorCount, detail), Affected::NOTHING);
        }
    }
    survey.each_tensor(|tensor| {
        let (name, record) = (tensor.shared_name(), tensor.record);
        outside.add_tensor(record.storage_id, &name);
        let in_the_way = survey.in_the_way_of(&tensor);
        for ordinal in &in_the_way {
            if let Some(&index) = broken.get(ordinal) {
                findings.affect(index, &name);
            }
        }
        if let Some(index) = unordered
            && !matches!(generation.tensor(&name), Ok(Some(found)) if found == *record)
        {
            findings.affect(index, &name);
        }
        let broken = match survey.storages.get(&record.storage_id) {
            None if !in_the_way.is_empty() => return Ok(()),
            None => {
                let detail = format!(
                    "tensor {name:?} stands on storage {:016x}, which has no record",
                    record.storage_id
                );
                FormatError::new(Rule::StorageMissing, detail)
            }
            Some(standing) => match record.extent(standing.record.length_bytes) {
                Ok(_) => return Ok(()),
                Err(e) => FormatError::new(e.rule(), format!("tensor {name:?}: {}", e.detail())),
            },
        };
        let index = findings.push(&table_path, &broken, Affected::NOTHING);
        findings.affect(index, &name);
        Ok(())
    })
}

fn broken_entries(survey: &Survey<'_>, findings: &mut Findings) -> Result<BTreeMap<u64, Index>> {
    let mut indices = BTreeMap::new();
    for (&ordinal, broken) in &survey.broken {
        let index = findings.metadata(broken.error.clone(), Affected::NOTHING)?;
        let was = match &broken.mended {
            None => "; which tensor or storage it was cannot be told".to_owned(),
            Some(Mended::Storage(id)) => format!("; it was storage {id:016x}, and one bit of it was flipped"),
            Some(Mended::Tensor(name, _)) => {
                format!("; it was tensor {name:?}, and one bit of it was flipped")
            }
        };
        if let Some(finding) = findings.list.get_mut(index) {
            finding.detail += &was;
        }
        indices.insert(ordinal, index);
    }
    Ok(indices)
}

fn out_of_order(path: &Path, survey: &Survey<'_>, findings: &mut Findings) -> Option<Index> {
    let first = survey.unordered.first()?;
    let more = match survey.unordered.len() {
        1 => String::new(),
        count => format!(", nor do {} others", count - 1),
    };
    let detail = format!("entry {first} does not follow the one before it{more}");
    Some(findings.push(path, &FormatError::new(Rule::EntryOrder, detail), Affected::NOTHING))
}
