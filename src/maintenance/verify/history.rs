//! Verifies the tags of a store, the generations that they keep, and the storages that only these need.

use std::collections::BTreeMap;

use stridemap_format::{
    Error as FormatError, GarbageKey, KeptGeneration, RecordKind, Rule, StorageRecord, TensorRecord,
    full_chunk_count,
};

use super::check_metadata;
use super::damage::{DamageIndex, add_findings};
use super::finding::Findings;
use super::storages::{Files, check_all, check_chunks};
use super::survey::Survey;
use crate::error::{ErrorKind, Result};
use crate::generation::{GarbageEntry, Generation, OpenStore, is_kept, pin_kept};
use crate::layout::MAX_STEPS_TOGETHER;
use crate::maintenance::inventory::Needs;
use crate::storage::Unreadable;

/// What has been found of the newest generation.
pub(super) struct Checked<'a> {
    pub(super) survey: &'a Survey<'a>,
    /// The findings by storage. Those of storages that only tags keep are added.
    pub(super) damage: BTreeMap<u64, DamageIndex>,
}

/// Verifies what the tags of a generation keep. Findings there name the tags that lose something.
pub(super) fn check_history(
    store: &OpenStore,
    newest: &Generation,
    checked: Checked<'_>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let path = newest.manifest().history.map_or_else(
        || store.paths.manifest(newest.number()),
        |history| store.paths.history(history.generation),
    );
    if let Some(history) = newest.history() {
        let survey = Survey::of(newest.manifest(), Some(history), Unreadable::Fail)?;
        for (_, e) in survey.damage.errors() {
            findings.add_broken_rule(e)?;
        }
        if let Some(detail) = survey.miscount() {
            findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
        }
        if !survey.damage.is_empty() {
            return Ok(());
        }
    }
    let mut tags: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for tag in newest.tags()? {
        let (name, tag) = tag?;
        tags.entry(tag.generation).or_default().push(name);
    }
    let mut miscounted = |detail| {
        findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
    };
    let mut kept: BTreeMap<u64, KeptGeneration> = BTreeMap::new();
    for entry in newest.tagged(0)? {
        let (key, record) = entry?;
        kept.insert(key.generation, record);
    }
    for (generation, names) in &tags {
        if kept.get(generation).is_none_or(|kept| kept.tag_count != names.len() as u64) {
            miscounted(format!(
                "generation {generation} has {} tags, but its record says otherwise",
                names.len()
            ));
        }
    }
    if let Some((generation, _)) = kept.iter().find(|(generation, _)| !tags.contains_key(generation)) {
        miscounted(format!("generation {generation} has no tag, but its record says otherwise"));
    }
    let needs = Needs::of(store, newest, Vec::new(), true)?;
    let mut garbage: BTreeMap<u64, StorageRecord> = BTreeMap::new();
    for entry in newest.entries().scan::<GarbageEntry>(None)? {
        let (GarbageKey { is_tagged, dropped, id }, record) = entry?;
        if is_tagged != is_kept(newest.entries(), id, dropped)? {
            miscounted(format!("storage {id:016x} is garbage that tags keep, but its record says otherwise"));
        }
        // A collection may have deleted a storage that was restored, dropped again, and is in no tagged generation.
        if is_tagged && needs.tagged_with(id, dropped).is_some() {
            garbage.insert(id, record);
        }
    }
    let files = Files { disk: &*store.disk, paths: &store.paths, unreadable: Unreadable::Fail };
    let Checked { survey, mut damage } = checked;
    for (id, found) in check_all(&files, garbage.iter().map(|(&id, record)| (id, record)), progress)? {
        let length_bytes = garbage.get(&id).map_or(0, |record| record.length_bytes);
        damage.insert(id, add_findings(store, id, length_bytes, &found, findings)?);
    }
    let longest =
        |id: &u64| survey.storages.get(id).map(|storage| &storage.record).or_else(|| garbage.get(id));
    let mut steps_left = MAX_STEPS_TOGETHER;
    for (generation, record) in kept {
        let Some(names) = tags.get(&generation) else { continue };
        let before = findings.list.len();
        check_kept(
            store,
            (generation, record),
            &longest,
            findings,
            progress,
            |tensor, length_bytes, findings| {
                if let Some(index) = damage.get(&tensor.storage_id) {
                    index.each_reached(tensor, length_bytes, &mut steps_left, |finding| {
                        findings.affect_tags(finding, names);
                    });
                }
            },
        )?;
        (before..findings.list.len()).for_each(|finding| findings.affect_tags(finding, names));
    }
    Ok(())
}

/// Verifies a tagged generation: its manifest, its table, and the digests that its records state where the storage has
/// grown since. `longest` returns the record whose bytes have been verified. Visits the tensors.
fn check_kept<'a>(
    store: &OpenStore,
    (number, stated): (u64, KeptGeneration),
    longest: &impl Fn(&u64) -> Option<&'a StorageRecord>,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
    mut visit: impl FnMut(&TensorRecord, u64, &mut Findings),
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
    let survey = Survey::of(head, kept.table().map(AsRef::as_ref), Unreadable::Fail)?;
    check_metadata(store, &kept, &survey, findings)?;
    for (&id, storage) in &survey.storages {
        let record = &storage.record;
        match longest(&id) {
            None => {
                let detail =
                    format!("storage {id:016x} of a tagged generation is neither used nor listed as garbage");
                findings.push(&path, &FormatError::new(Rule::RecordCount, detail));
            }
            Some(longest) if longest.kind != record.kind && matches!(record.kind, RecordKind::Sealed(_)) => {
                let is_tail = |chunk| chunk == full_chunk_count(record.length_bytes);
                let damage = check_chunks(&*store.disk, &store.paths, (id, record), is_tail, progress)?;
                if let Some(damage) = damage {
                    add_findings(store, id, record.length_bytes, &damage, findings)?;
                }
            }
            Some(_) => {}
        }
    }
    survey.each_tensor(|tensor| {
        let storage = survey.storages.get(&tensor.record.storage_id);
        visit(tensor.record, storage.map_or(0, |storage| storage.record.length_bytes), findings);
        Ok(())
    })
}
