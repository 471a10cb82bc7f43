//! Verification: reads everything in a generation once, and reports what is wrong.

mod damage;
mod finding;
mod history;
mod interrupted;
mod storages;
mod survey;
mod table_damage;
mod tensors;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{Error as FormatError, Rule};

use super::external_check::check_external;
use super::inventory::{Inventory, ListedFile, SpareFile};
use crate::disk::{Access, Disk, StorePaths, is_not_regular, read_again};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::generation::{self, Generation, OpenStore, Options, StoreDir, check_store, open_dirs};
use crate::storage::Unreadable;
use finding::Findings;

pub(super) use damage::bytes_of_chunks;
pub use finding::Finding;
pub(super) use history::checked_metadata;
pub(super) use storages::{Damage, Files, check_all};
pub(super) use survey::Survey;
pub(crate) use tensors::verify_tensors;

/// What a verification found. See [`Store::verify`](crate::Store::verify).
#[must_use = "damage is reported here, and is not an error"]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Verification {
    /// Broken rules of the format. Empty for an undamaged store.
    pub findings: Vec<Finding>,
    /// The tensors of which a change was interrupted. They can be read with
    /// [`allow_interrupted`](crate::Tensor::allow_interrupted). At most about a million names are kept.
    pub interrupted: Vec<String>,
    /// Files that no process needs, which is not damage. They are not searched for if only some tensors are verified,
    /// or if the store is too damaged to be opened.
    pub orphans: Vec<SpareFile>,
    /// The external files that the handle may not open. They were not checked.
    pub unchecked_files: Vec<PathBuf>,
    /// How many bytes of storages were read.
    pub read_bytes: u64,
}

impl Verification {
    /// Returns what a verification finds of a store that is too damaged to be opened: the error, which affects every
    /// tensor. For a store in a directory, [`StoreOptions::verify`](crate::StoreOptions::verify) does this.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use stridemap::maintenance::Verification;
    /// # use stridemap::{Error, Rule};
    /// let broken = stridemap_format::Error::new(Rule::RemoteObject, "the object does not exist");
    /// let error = Error::corrupt(Path::new("s3://bucket/x/HEAD"), broken);
    /// assert!(Verification::of_unopened(error)?.findings[0].affects_all);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The error, if it is not about damage to a known file.
    pub fn of_unopened(error: Error) -> Result<Self> {
        let mut findings = Findings::default();
        findings.add_for_all(error)?;
        Ok(Verification { findings: findings.finish(), ..Verification::default() })
    }

    /// Whether neither damage nor an interrupted change was found. Files that are not needed or could not be checked do
    /// not matter.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1f32, 2.])?;
    /// assert!(store.verify(|_| ())?.is_whole());
    /// std::fs::write(store.path().join("storages/0000000000000001.bin"), [0; 8])?;
    /// assert!(!store.verify(|_| ())?.is_whole());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty() && self.interrupted.is_empty()
    }
}

/// Verifies the newest generation of the store in a directory, which may be too damaged to be opened.
pub(crate) fn verify_path(
    disk: &Arc<dyn Disk>,
    path: &Path,
    options: Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Verification> {
    let (disk, paths) = open_dirs(disk, path)?;
    let opened = check_store(&*disk, &paths)
        .map(|uuid| StoreDir::new(Arc::clone(&disk), paths.clone(), uuid))
        .and_then(|dir| OpenStore::open(dir, options));
    match opened {
        Ok(store) => verify(&store, &store.current(), progress),
        Err(e) => {
            let mut findings = Findings::default();
            findings.add_for_all(e)?;
            check_lock(&*disk, &paths, &mut findings)?;
            Ok(Verification { findings: findings.finish(), ..Verification::default() })
        }
    }
}

/// Reads everything in a generation, and every byte of its storages. External files are checked but not read.
pub(crate) fn verify(
    store: &OpenStore,
    generation: &Generation,
    progress: &mut dyn FnMut(u64),
) -> Result<Verification> {
    let mut findings = Findings::default();
    // Read from disk again, instead of using the handle's copy in memory.
    let reread = check_store(&*store.disk, &store.paths);
    let StoreDir { disk, paths, .. } = &**store;
    let reread = reread.and_then(|_| generation::reread(store, generation));
    if let Err(e) = reread {
        findings.add_for_all(e)?;
    }
    check_lock(&*store.disk, &store.paths, &mut findings)?;
    let table = generation.table().map(Arc::as_ref);
    let survey = Survey::of(generation.manifest(), table, Unreadable::Fail)?;
    check_metadata(store, generation, &survey, &mut findings)?;
    let storages = || survey.storages.iter().map(|(&id, storage)| (id, &storage.record));
    let mut read_bytes = 0;
    let files = Files { disk: &**disk, paths, unreadable: Unreadable::Fail };
    let damage = check_all(&files, storages(), &mut |bytes| {
        read_bytes += bytes;
        progress(bytes);
    })?;
    let (faults, mut unchecked_files) = check_external(store, storages())?;
    let damage = damage::report(store, &survey, &damage, faults, &mut findings)?;
    // The handle on an earlier generation is asked about that one.
    if !store.is_fixed()
        || store.disk.never_changes() && store.newest_of_all()?.number() == generation.number()
    {
        let checked = history::Checked { generation: generation.number(), survey: &survey, damage };
        unchecked_files.extend(history::check_history(store, &checked, &mut findings, &mut |bytes| {
            read_bytes += bytes;
            progress(bytes);
        })?);
        unchecked_files.sort_unstable();
        unchecked_files.dedup();
    }
    let orphans = match orphans(store) {
        // Nothing tells which files there are beside those that are needed.
        _ if store.disk.never_changes() => Vec::new(),
        Err(e) if e.kind() == ErrorKind::Corrupt => Vec::new(),
        orphans => orphans?,
    };
    let interrupted = interrupted::names(store, &survey)?;
    Ok(Verification { findings: findings.finish(), interrupted, orphans, unchecked_files, read_bytes })
}

/// Checks that LOCK exists. It has no content, but no commit can be made without it.
fn check_lock(disk: &dyn Disk, paths: &StorePaths, findings: &mut Findings) -> Result<()> {
    let path = paths.lock();
    match read_again(|| disk.open(&path, Access::Read)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound || is_not_regular(&e) => {
            let detail = format!("open LOCK: {e}; no commit can be made");
            findings.push(path, &FormatError::new(Rule::LockFile, detail));
        }
        opened => drop(opened.doing("open", &path)?),
    }
    Ok(())
}

/// Checks the table and the records of a generation.
fn check_metadata(
    store: &OpenStore,
    generation: &Generation,
    survey: &Survey<'_>,
    findings: &mut Findings,
) -> Result<()> {
    let table_path = generation.table().map_or_else(
        || store.paths.manifest(generation.number()),
        |table| store.paths.table(table.reference().generation),
    );
    let mut damage = BTreeMap::new();
    for (page, e) in survey.damage.errors() {
        damage.insert(page, findings.add_broken_rule(e)?);
    }
    if let Some(detail) = survey.miscount() {
        findings.push(&table_path, &FormatError::new(Rule::RecordCount, detail));
    }
    for (id, storage) in &survey.storages {
        if storage.tensor_count != storage.record.tensor_count && survey.damage.is_empty() {
            let detail = format!(
                "storage {id:016x} has {} tensors, but its record says {}",
                storage.tensor_count, storage.record.tensor_count
            );
            findings.push(&table_path, &FormatError::new(Rule::RecordCount, detail));
        }
    }
    survey.each_tensor(|tensor| {
        let (name, record) = (Arc::from(tensor.name), tensor.record);
        let damaged_pages = survey.damaged_pages_to(&tensor);
        for index in damaged_pages.iter().filter_map(|page| damage.get(page)) {
            findings.affect(*index, &name);
        }
        let broken = match survey.storages.get(&record.storage_id) {
            None if !damaged_pages.is_empty() => return Ok(()),
            None => {
                let detail = format!(
                    "tensor {name:?} refers to storage {:016x}, which has no record",
                    record.storage_id
                );
                FormatError::new(Rule::TensorStorage, detail)
            }
            Some(storage) => match record.header.extent(storage.record.length_bytes) {
                Ok(_) => return Ok(()),
                Err(e) => FormatError::new(e.rule(), format!("tensor {name:?}: {}", e.detail())),
            },
        };
        let index = findings.push(&table_path, &broken);
        findings.affect(index, &name);
        Ok(())
    })
}

/// Returns the files that no process needs.
fn orphans(store: &OpenStore) -> Result<Vec<SpareFile>> {
    let spare = Inventory::take(store)?.files.into_iter().filter_map(ListedFile::spare);
    Ok(spare.filter(|file| !file.reason.is_held()).collect())
}
