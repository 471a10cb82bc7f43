//! What is wrong with the files of storages, as findings; and whom it concerns.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use stridemap_format::{CHUNK_BYTES, Error as FormatError, Rule};

use super::finding::{Affected, Findings, Index};
use super::survey::{Survey, Tensor};
use crate::commit::History;
use crate::error::{Error, Result};
use crate::layout::Touch;
use crate::storage::{DamagedChunk, Harm};

/// How often it is found out exactly whether a tensor reaches a stretch; then what lies between its first byte and its
/// last counts.
const MOST_TOUCHES: u64 = 1 << 23;

/// What is wrong with a storage, for those who stand on it.
#[derive(Debug, Default)]
struct Concern {
    /// Concerns all.
    whole: Vec<Index>,
    /// Concerns who reaches a byte of the stretch. Ascending, and each with the finding that is about it.
    stretches: Vec<(Range<u64>, Index)>,
}

/// Adds findings for the harms, by the ids of their storages, and to each the names of the tensors that it affects.
pub(super) fn report(
    history: &History,
    survey: &Survey<'_>,
    harms: &[(u64, Harm)],
    findings: &mut Findings,
) -> Result<()> {
    let mut concerns: BTreeMap<u64, Concern> = BTreeMap::new();
    for (id, harm) in harms {
        let length_bytes = survey.storages.get(id).map_or(0, |standing| standing.record.length_bytes);
        concerns.insert(*id, concern(history, *id, length_bytes, harm, findings));
    }
    if concerns.is_empty() {
        return Ok(());
    }
    let mut touches = 0;
    survey.each_tensor(|tensor| {
        let Some(concern) = concerns.get(&tensor.record.storage_id) else { return Ok(()) };
        let standing = survey.storages.get(&tensor.record.storage_id);
        let length_bytes = standing.map_or(0, |standing| standing.record.length_bytes);
        affect(&tensor, length_bytes, concern, &mut touches, findings);
        Ok(())
    })
}

fn affect(
    tensor: &Tensor<'_>,
    length_bytes: u64,
    concern: &Concern,
    touches: &mut u64,
    findings: &mut Findings,
) {
    let name = tensor.shared_name();
    for &index in &concern.whole {
        findings.affect(index, &name);
    }
    let Some(touch) = Touch::of(tensor.record, length_bytes) else { return };
    let span = touch.span();
    for (stretch, index) in &concern.stretches {
        if stretch.start >= span.end || stretch.end <= span.start {
            continue;
        }
        *touches += 1;
        if *touches > MOST_TOUCHES || touch.reaches(stretch) {
            findings.affect(*index, &name);
        }
    }
}

fn concern(history: &History, id: u64, length_bytes: u64, harm: &Harm, findings: &mut Findings) -> Concern {
    let path = history.paths.storage(id);
    let mut concern = Concern::default();
    if let Some(error) = &harm.file {
        concern.whole.push(push(&path, error, findings));
    }
    if let Some(sum) = &harm.sum {
        let index = push(&path, &sum.error, findings);
        match &sum.right {
            None => concern.whole.push(index),
            Some(right) => {
                let runs = runs(right.iter().map(|(index, _)| *index));
                concern.stretches.extend(runs.map(|run| (bytes(&run, length_bytes), index)));
            }
        }
    }
    let (unread, changed): (Vec<&DamagedChunk>, Vec<_>) =
        harm.chunks.iter().partition(|chunk| chunk.unread.is_some());
    for chunk in unread {
        let run = bytes(&(chunk.index..chunk.index + 1), length_bytes);
        if let Some(error) = &chunk.unread {
            let at = FormatError::new(Rule::StorageFile, error.to_string()).at(run.start);
            concern.stretches.push((run, findings.push(&path, &at, Affected::NOTHING)));
        }
    }
    for run in runs(changed.into_iter().map(|chunk| chunk.index)) {
        let stretch = bytes(&run, length_bytes);
        let (what, was) = match run.end - run.start {
            1 => ("the chunk".to_owned(), "was"),
            count => (format!("{count} chunks"), "were"),
        };
        let detail = format!("{what} of {} bytes from here on {was} changed", stretch.end - stretch.start);
        let broken = FormatError::new(Rule::ChunkDigest, detail).at(stretch.start);
        concern.stretches.push((stretch, findings.push(&path, &broken, Affected::NOTHING)));
    }
    concern
}

/// What stands in the way of reading elements is a finding: the others are still to be verified.
fn push(path: &Path, error: &Error, findings: &mut Findings) -> Index {
    match (error.broken_path(), error.broken()) {
        (Some(path), Some(broken)) => findings.push(path, broken, Affected::NOTHING),
        _ => {
            let broken = FormatError::new(Rule::StorageFile, error.to_string());
            findings.push(path, &broken, Affected::NOTHING)
        }
    }
}

/// The bytes of some chunks.
pub(in crate::commit) fn bytes(run: &Range<u64>, length_bytes: u64) -> Range<u64> {
    run.start * CHUNK_BYTES..run.end.saturating_mul(CHUNK_BYTES).min(length_bytes)
}

/// Ascending numbers, those that follow each other together.
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
