//! Verifies the tags of a store, the generations that they keep, and the storages that only these need.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use stridemap_format::{
    CHUNK_BYTES, Error as FormatError, GarbageKey, KeptGeneration, RecordKind, Rule, StorageRecord,
    TensorRecord, full_chunk_count,
};

use super::check_metadata;
use super::damage::{DamageIndex, add_faults, add_findings};
use super::finding::{Finding, Findings};
use super::storages::{Files, check_all, check_chunks};
use super::survey::Survey;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{GarbageEntry, Generation, OpenStore, is_kept, pin_kept};
use crate::layout::MAX_STEPS_TOGETHER;
use crate::maintenance::external_check::check_external;
use crate::maintenance::needs::Needs;
use crate::storage::Unreadable;

/// What has been found of the generation of the handle.
pub(super) struct Checked<'a> {
    pub(super) generation: u64,
    pub(super) survey: &'a Survey<'a>,
    /// The findings by storage.
    pub(super) damage: BTreeMap<u64, DamageIndex>,
}

/// Verifies what the tags of the newest generation keep. Findings there name the tags that lose something. Returns the
/// external files that only they need and that the handle may not open.
pub(super) fn check_history(
    store: &OpenStore,
    checked: &Checked<'_>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PathBuf>> {
    let newest = match store.newest_of_all() {
        // The generation of the handle may be whole. What the newest has is a finding already.
        Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(Vec::new()),
        newest => newest?,
    };
    let Some(tags) = check_tags(store, &newest, findings)? else { return Ok(Vec::new()) };
    let before = findings.list.len();
    let unchecked_files = check_kept_by(store, &newest, (checked, &tags), findings, progress)?;
    // The files that only a removed tag kept may have been deleted meanwhile.
    let lost = lost_tags(&newest, &*store.newest_of_all()?)?;
    if !lost.is_empty() {
        let stat = |path: &Path| store.disk.stat(path);
        let is_gone = |path: &Path| stat(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        findings.drop_tags(before, &lost, is_gone);
    }
    Ok(unchecked_files)
}

/// Returns the tags that were removed or moved between a generation and a later one.
fn lost_tags(earlier: &Generation, later: &Generation) -> Result<BTreeSet<String>> {
    let mut lost = BTreeSet::new();
    if earlier.number() == later.number() {
        return Ok(lost);
    }
    for tag in earlier.tags()? {
        let (name, tag) = tag?;
        if later.tag(&name)?.is_none_or(|now| now.generation != tag.generation) {
            lost.insert(name);
        }
    }
    Ok(lost)
}

/// What the tags of a generation are.
struct Tags {
    /// The file with the list of them.
    path: PathBuf,
    /// By the generation that they name.
    names: BTreeMap<u64, Vec<String>>,
    kept: BTreeMap<u64, KeptGeneration>,
}

/// Checks the list of tags. Returns `None` if it is damaged.
fn check_tags(store: &OpenStore, newest: &Generation, findings: &mut Findings) -> Result<Option<Tags>> {
    let path = newest.history_path(&store.paths);
    if let Some(history) = newest.history() {
        let survey = Survey::of(newest.manifest(), Some(history), Unreadable::Fail)?;
        let damage = survey.damage.errors().map(|(_, e)| findings.add_broken_rule(e));
        let damage: Vec<_> = damage.collect::<Result<_>>()?;
        for name in survey.tags.keys() {
            if newest.tag(name).is_err() {
                damage.iter().for_each(|&finding| findings.affect_tags(finding, slice::from_ref(name)));
            }
        }
        if let (lost, Some(&finding)) = (survey.lost_tags(), damage.first())
            && lost > 0
        {
            findings.list[finding].detail += &format!("; {lost} tags cannot be read");
        }
        if let Some(detail) = survey.miscount() {
            findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
        }
        if !survey.damage.is_empty() {
            return Ok(None);
        }
    }
    let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for tag in newest.tags()? {
        let (name, tag) = tag?;
        names.entry(tag.generation).or_default().push(name);
    }
    let kept: BTreeMap<u64, KeptGeneration> = newest.tagged(0)?.collect::<Result<_>>()?;
    for entry in newest.released()? {
        let (generation, _) = entry?;
        if kept.contains_key(&generation) {
            let detail = format!("generation {generation} is listed both with tags and without");
            findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
        }
    }
    for (generation, names) in &names {
        if kept.get(generation).is_none_or(|kept| kept.tag_count != names.len() as u64) {
            let detail =
                format!("generation {generation} has {} tags, but its record says otherwise", names.len());
            findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
        }
    }
    if let Some((generation, _)) = kept.iter().find(|(generation, _)| !names.contains_key(generation)) {
        let detail = format!("generation {generation} has no tag, but its record says otherwise");
        findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
    }
    Ok(Some(Tags { path, names, kept }))
}

/// Verifies what these tags keep. Returns the external files that the handle may not open.
fn check_kept_by(
    store: &OpenStore,
    newest: &Generation,
    (checked, tags): (&Checked<'_>, &Tags),
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PathBuf>> {
    let needs = Needs::of(store, newest, Vec::new(), true)?;
    // The storages of tagged generations that have not been verified.
    let mut others: BTreeMap<u64, StorageRecord> = BTreeMap::new();
    let next_id = tags.kept.values().map(|kept| kept.next_storage_id).max().unwrap_or_default();
    for entry in newest.storages()? {
        // The handle may be on a generation without them, or in which they are shorter.
        let (id, record) = match entry {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                // That of the handle's own generation is a finding already.
                if newest.number() != checked.generation {
                    findings.add_broken_rule(e)?;
                }
                continue;
            }
            entry => entry?,
        };
        let is_verified = checked.survey.storages.get(&id).is_some_and(|known| {
            (known.record.length_bytes, &known.record.kind) == (record.length_bytes, &record.kind)
        });
        if id < next_id && !is_verified {
            others.insert(id, record);
        }
    }
    for entry in newest.entries().scan::<GarbageEntry>(None)? {
        let (GarbageKey { is_tagged, dropped, id }, record) = entry?;
        if is_tagged != is_kept(newest.entries(), id, dropped)? {
            let detail =
                format!("storage {id:016x} is garbage that tags keep, but its record says otherwise");
            findings.push(&tags.path, &FormatError::new(Rule::RecordCount, detail));
        }
        // A collection may have deleted a storage that was restored, dropped again, and is in no tagged generation.
        if is_tagged && needs.tagged_with(id, dropped).is_some() {
            others.insert(id, record);
        }
    }
    let files = Files { disk: &*store.disk, paths: &store.paths, unreadable: Unreadable::Fail };
    let mut damage = checked.damage.clone();
    for (id, found) in check_all(&files, others.iter().map(|(&id, record)| (id, record)), progress)? {
        let length_bytes = others.get(&id).map_or(0, |record| record.length_bytes);
        damage.insert(id, add_findings(store, id, length_bytes, &found, findings)?);
    }
    let (faults, unchecked_files) = check_external(store, others.iter().map(|(&id, record)| (id, record)))?;
    add_faults(faults, &mut damage, findings);
    let known = |id: &u64| checked.survey.storages.get(id).map(|storage| &storage.record);
    let longest = |id: &u64| others.get(id).or_else(|| known(id));
    let mut steps_left = MAX_STEPS_TOGETHER;
    for (&generation, &record) in &tags.kept {
        let Some(names) = tags.names.get(&generation) else { continue };
        let before = findings.list.len();
        check_kept(
            store,
            (generation, record),
            &longest,
            findings,
            progress,
            |tensor, storage, findings| {
                if let Some(index) = damage.get(&tensor.storage_id) {
                    let index = index.before(storage.shared_bytes);
                    index.each_reached(tensor, storage.length_bytes, &mut steps_left, |finding| {
                        findings.affect_tags(finding, names);
                    });
                }
            },
        )?;
        (before..findings.list.len()).for_each(|finding| findings.affect_tags(finding, names));
    }
    Ok(unchecked_files)
}

/// A storage of a tagged generation.
#[derive(Clone, Copy, Default)]
struct KeptStorage {
    length_bytes: u64,
    /// How many of its bytes the digests of the longest record are about. Its own digest is about the rest.
    shared_bytes: u64,
}

/// Verifies a tagged generation: its manifest, its table, and the digests that its records state where the storage has
/// grown since. `longest` returns the record whose bytes have been verified. Visits the tensors.
fn check_kept<'a>(
    store: &OpenStore,
    (number, stated): (u64, KeptGeneration),
    longest: &impl Fn(&u64) -> Option<&'a StorageRecord>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
    mut visit: impl FnMut(&TensorRecord, KeptStorage, &mut Findings),
) -> Result<()> {
    let path = store.paths.kept_manifest(number);
    let kept = match pin_kept(store, number) {
        Ok(Some(kept)) => kept,
        Ok(None) => {
            let detail = "the manifest of a tagged generation is missing";
            findings.push(path, &FormatError::new(Rule::MetadataFile, detail));
            return Ok(());
        }
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            findings.add_broken_rule(e)?;
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let head = kept.manifest();
    if (head.next_storage_id, head.table.map(|table| table.generation))
        != (stated.next_storage_id, stated.table)
    {
        let detail = "the manifest of a tagged generation differs from what the newest manifest says of it";
        findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
    }
    let (survey, storages) = check_records(store, &kept, longest, findings, progress)?;
    survey.each_tensor(|tensor| {
        let storage = storages.get(&tensor.record.storage_id).copied().unwrap_or_default();
        visit(tensor.record, storage, findings);
        Ok(())
    })
}

/// Verifies the metadata of a generation, and the digests that its records state where the storage has grown since.
/// `longest` returns the record whose bytes are verified elsewhere.
fn check_records<'a, 'k>(
    store: &OpenStore,
    generation: &'k Generation,
    longest: &impl Fn(&u64) -> Option<&'a StorageRecord>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<(Survey<'k>, BTreeMap<u64, KeptStorage>)> {
    let table = generation.table().map(AsRef::as_ref);
    let survey = Survey::of(generation.manifest(), table, Unreadable::Fail)?;
    check_metadata(store, generation, &survey, findings)?;
    let mut storages: BTreeMap<u64, KeptStorage> = BTreeMap::new();
    for (&id, storage) in &survey.storages {
        let record = &storage.record;
        let length_bytes = record.length_bytes;
        let mut shared_bytes = length_bytes;
        match longest(&id) {
            None => {
                let detail =
                    format!("storage {id:016x} of a tagged generation is neither used nor listed as garbage");
                let path = store.paths.kept_manifest(generation.number());
                findings.push(path, &FormatError::new(Rule::RecordCount, detail));
            }
            Some(longest) if longest.kind != record.kind && matches!(record.kind, RecordKind::Sealed(_)) => {
                let full = full_chunk_count(length_bytes);
                let is_tail = |chunk| chunk == full;
                let damage = check_chunks(&*store.disk, &store.paths, (id, record), is_tail, progress)?;
                match damage {
                    Some(damage) => drop(add_findings(store, id, length_bytes, &damage, findings)?),
                    None => shared_bytes = full.saturating_mul(CHUNK_BYTES),
                }
            }
            Some(_) => {}
        }
        storages.insert(id, KeptStorage { length_bytes, shared_bytes });
    }
    Ok((survey, storages))
}

/// Verifies the metadata of a generation before it is copied. Returns it.
///
/// # Errors
/// `Corrupt` for the first finding; `Io`.
pub(crate) fn checked_metadata<'a, 'k>(
    store: &OpenStore,
    generation: &'k Generation,
    longest: &impl Fn(&u64) -> Option<&'a StorageRecord>,
) -> Result<Survey<'k>> {
    let mut findings = Findings::default();
    let (survey, _) = check_records(store, generation, longest, &mut findings, &mut |_| ())?;
    match findings.list.into_iter().next() {
        None => Ok(survey),
        Some(Finding { path, offset_bytes, rule, detail, .. }) => {
            let broken = FormatError::new(rule, detail);
            Err(Error::corrupt(&path, offset_bytes.map_or(broken.clone(), |offset| broken.at(offset))))
        }
    }
}
