//! Findings for damaged files of storages, with the tensors that they affect.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{CHUNK_BYTES, Error as FormatError, Rule, TensorRecord};

use super::finding::{FindingIndex, Findings};
use super::storages::Damage;
use super::survey::Survey;
use crate::error::Result;
use crate::generation::OpenStore;
use crate::layout::{Coverage, MAX_STEPS_TOGETHER};
use crate::maintenance::external_check::Fault;

/// The findings about one storage, each with the part of the storage that it affects.
#[derive(Clone, Debug, Default)]
pub(super) struct DamageIndex {
    /// Findings that affect every tensor on the storage.
    whole: Vec<FindingIndex>,
    /// The length of a file that is too short: it affects every tensor in the generations that need more.
    short: Option<(u64, FindingIndex)>,
    /// Findings that affect the tensors that reach a byte of the range, in ascending order.
    ranges: Vec<(Range<u64>, FindingIndex)>,
}

/// Adds findings for the damage to each storage and each external file, with the names of the tensors that each
/// affects. Returns the findings by storage.
pub(super) fn report(
    store: &OpenStore,
    survey: &Survey<'_>,
    damage: &[(u64, Damage)],
    faults: Vec<Fault>,
    findings: &mut Findings,
) -> Result<BTreeMap<u64, DamageIndex>> {
    let length_bytes = |id: &u64| survey.storages.get(id).map_or(0, |storage| storage.record.length_bytes);
    let mut indices: BTreeMap<u64, DamageIndex> = BTreeMap::new();
    for (id, damage) in damage {
        indices.insert(*id, add_findings(store, *id, length_bytes(id), damage, findings)?);
    }
    add_faults(faults, &mut indices, findings);
    if indices.is_empty() {
        return Ok(indices);
    }
    // Once no steps are left, a tensor counts as reaching everything between its first byte and its last.
    let mut steps_left = MAX_STEPS_TOGETHER;
    survey.each_tensor(|tensor| {
        let id = &tensor.record.storage_id;
        if let Some(index) = indices.get(id) {
            index.each_reached(tensor.record, length_bytes(id), &mut steps_left, |finding| {
                findings.affect(finding, &Arc::from(tensor.name));
            });
        }
        Ok(())
    })?;
    Ok(indices)
}

/// Adds a finding for each external file, and adds it to those by storage.
pub(super) fn add_faults(
    faults: Vec<Fault>,
    indices: &mut BTreeMap<u64, DamageIndex>,
    findings: &mut Findings,
) {
    for Fault { path, detail, ids } in faults {
        let finding = findings.push(path, &FormatError::new(Rule::ExternalFile, detail));
        for id in ids {
            indices.entry(id).or_default().whole.push(finding);
        }
    }
}

impl DamageIndex {
    /// Returns all findings.
    pub(super) fn findings(&self) -> impl Iterator<Item = FindingIndex> {
        let short = self.short.iter().map(|(_, finding)| *finding);
        let ranges = self.ranges.iter().map(|(_, finding)| *finding);
        self.whole.iter().copied().chain(short).chain(ranges)
    }

    /// Returns the findings that affect bytes before an end.
    pub(super) fn before(&self, end_bytes: u64) -> Self {
        let before = |(range, finding): &(Range<u64>, FindingIndex)| {
            let range = range.start..range.end.min(end_bytes);
            (!range.is_empty()).then_some((range, *finding))
        };
        let ranges = self.ranges.iter().filter_map(before).collect();
        DamageIndex { whole: self.whole.clone(), short: self.short, ranges }
    }

    /// Visits the findings that affect a tensor on the storage.
    pub(super) fn each_reached(
        &self,
        record: &TensorRecord,
        length_bytes: u64,
        steps_left: &mut u64,
        mut visit: impl FnMut(FindingIndex),
    ) {
        self.whole.iter().copied().for_each(&mut visit);
        let short = self.short.filter(|&(found_bytes, _)| found_bytes < length_bytes);
        short.into_iter().for_each(|(_, finding)| visit(finding));
        let Some(reached) = Coverage::of(&record.header, length_bytes) else { return };
        for (range, finding) in reached.near(&self.ranges) {
            if reached.overlaps(range, steps_left) {
                visit(*finding);
            }
        }
    }
}

/// Adds a finding for each defect of a storage's files. Returns these findings with the parts that they affect.
pub(super) fn add_findings(
    store: &OpenStore,
    id: u64,
    length_bytes: u64,
    damage: &Damage,
    findings: &mut Findings,
) -> Result<DamageIndex> {
    let path = store.paths.storage(id);
    let mut index = DamageIndex::default();
    if let Some(error) = &damage.file {
        let finding = findings.add_broken_rule(error.clone())?;
        match damage.found_bytes.filter(|&found_bytes| found_bytes < length_bytes) {
            Some(found_bytes) => index.short = Some((found_bytes, finding)),
            None => index.whole.push(finding),
        }
    }
    if let Some(sum) = &damage.sum {
        let finding = findings.add_broken_rule(sum.error.clone())?;
        match &sum.corrected {
            None => index.whole.push(finding),
            Some(corrected) => {
                let runs = runs(corrected.iter().map(|(chunk, _)| *chunk));
                index.ranges.extend(runs.map(|run| (bytes_of_chunks(&run, length_bytes), finding)));
            }
        }
    }
    for run in runs(damage.chunks.iter().map(|chunk| chunk.index)) {
        let range = bytes_of_chunks(&run, length_bytes);
        let range_bytes = range.end - range.start;
        let detail = match run.end - run.start {
            1 => format!("the {range_bytes}-byte chunk starting here was changed"),
            count => format!("the {count} chunks starting here ({range_bytes} bytes) were changed"),
        };
        let broken = FormatError::new(Rule::ChunkDigest, detail).at(range.start);
        index.ranges.push((range, findings.push(&path, &broken)));
    }
    Ok(index)
}

/// Returns the byte range of a run of chunks.
pub(crate) fn bytes_of_chunks(run: &Range<u64>, length_bytes: u64) -> Range<u64> {
    run.start * CHUNK_BYTES..run.end.saturating_mul(CHUNK_BYTES).min(length_bytes)
}

/// Joins consecutive numbers of an ascending sequence into ranges.
fn runs(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = Range<u64>> {
    let mut numbers = numbers.peekable();
    std::iter::from_fn(move || {
        let start = numbers.next()?;
        let mut end = start + 1;
        while numbers.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(start..end)
    })
}
