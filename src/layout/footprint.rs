//! The footprint of a view: the bytes of a storage that its elements occupy, as runs at regular steps.

use std::ops::Range;

use stridemap_format::{Header, Result};

/// `count` offsets that are `stride` bytes apart. `count` is at least 2, and `stride` at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) stride: u64,
    pub(super) count: u64,
}

impl Step {
    pub(super) fn reach(self) -> u64 {
        self.stride.saturating_mul(self.count.saturating_sub(1))
    }
}

/// The bytes that a view occupies: a run of `run_bytes` at each offset that is the sum of `lowest` and one offset of
/// each step.
///
/// All numbers are below the length of a storage, which fits in 63 bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Footprint {
    pub(super) lowest: u64,
    pub(super) run_bytes: u64,
    /// Longest stride first.
    pub(super) steps: Vec<Step>,
    /// The offsets of the elements, in bytes, are multiples of this.
    pub(super) unit: u64,
}

impl Footprint {
    /// Returns `None` for a view without elements.
    ///
    /// # Errors
    /// Those of [`Header::extent`].
    pub(super) fn of(view: &Header, length_bytes: u64) -> Result<Option<Self>> {
        let extent = view.extent(length_bytes)?;
        if extent.span_bytes() == 0 {
            return Ok(None);
        }
        let unit = view.dtype().itemsize() as u64;
        let dims = view.dims().map(|(n, stride)| Step {
            stride: (stride.unsigned_abs() as u64).saturating_mul(unit),
            count: n as u64,
        });
        let mut inner_first: Vec<Step> = dims.filter(|step| step.count > 1 && step.stride > 0).collect();
        inner_first.sort_unstable();
        let mut run_bytes = unit;
        let mut steps: Vec<Step> = Vec::new();
        for step in inner_first {
            match steps.last_mut() {
                // Repeated runs that touch form one run.
                None if step.stride <= run_bytes => run_bytes = run_bytes.saturating_add(step.reach()),
                // Repeated rows of offsets form one longer row if each continues the one before with the same stride.
                Some(row)
                    if step.stride.checked_rem(row.stride) == Some(0)
                        && step.stride <= row.stride.saturating_mul(row.count) =>
                {
                    let more = step.reach().checked_div(row.stride).unwrap_or_default();
                    row.count = row.count.saturating_add(more);
                }
                _ => steps.push(step),
            }
        }
        steps.reverse();
        Ok(Some(Footprint { lowest: extent.start_bytes(), run_bytes, steps, unit }))
    }

    pub(super) fn end(&self) -> u64 {
        let reached = self.steps.iter().fold(self.run_bytes, |sum, step| sum.saturating_add(step.reach()));
        self.lowest.saturating_add(reached)
    }

    fn run_count(&self) -> u64 {
        self.steps.iter().fold(1, |count, step| count.saturating_mul(step.count))
    }
}

/// Calls `body` with the ranges of bytes that a view occupies. Ranges that are at most `gap_bytes` apart are joined.
/// Usually the ranges are in ascending order. The ranges of a view that overlaps itself may repeat bytes, but
/// there are never more ranges than separate ones would fit into the storage.
///
/// # Errors
/// Those of [`Header::extent`].
pub(crate) fn for_each_range(
    view: &Header,
    length_bytes: u64,
    gap_bytes: u64,
    mut body: impl FnMut(Range<u64>),
) -> Result<()> {
    let Some(mut footprint) = Footprint::of(view, length_bytes)? else { return Ok(()) };
    while let Some(&inner) = footprint.steps.last() {
        let max_run_count = footprint.end().saturating_sub(footprint.lowest).checked_div(gap_bytes.max(1));
        let is_near = inner.stride.saturating_sub(footprint.run_bytes) <= gap_bytes;
        if !is_near && footprint.run_count() <= max_run_count.unwrap_or_default().saturating_add(1) {
            break;
        }
        footprint.run_bytes = footprint.run_bytes.saturating_add(inner.reach());
        footprint.steps.pop();
    }
    for_each_run(footprint.lowest, footprint.run_bytes, &footprint.steps, &mut body);
    Ok(())
}

fn for_each_run(start: u64, run_bytes: u64, steps: &[Step], body: &mut impl FnMut(Range<u64>)) {
    let Some((step, inner)) = steps.split_first() else {
        return body(start..start.saturating_add(run_bytes));
    };
    for i in 0..step.count {
        for_each_run(start.saturating_add(step.stride.saturating_mul(i)), run_bytes, inner, body);
    }
}

/// Returns the number of bytes of a storage that at least one view occupies. Returns `None` if the views have more
/// than `max_runs` runs, because counting would take too long.
///
/// # Errors
/// Those of [`Header::extent`].
pub(crate) fn footprint_bytes(views: &[&Header], length_bytes: u64, max_runs: u64) -> Result<Option<u64>> {
    let mut footprints = Vec::new();
    for view in views {
        footprints.extend(Footprint::of(view, length_bytes)?);
    }
    footprints.sort_unstable();
    footprints.dedup();
    if footprints.iter().fold(0u64, |sum, footprint| sum.saturating_add(footprint.run_count())) > max_runs {
        return Ok(None);
    }
    let mut runs = Vec::new();
    for footprint in &footprints {
        for_each_run(footprint.lowest, footprint.run_bytes, &footprint.steps, &mut |run| runs.push(run));
    }
    runs.sort_unstable_by_key(|run| run.start);
    let (mut bytes, mut counted_to) = (0u64, 0);
    for run in runs {
        bytes = bytes.saturating_add(run.end.saturating_sub(run.start.max(counted_to)));
        counted_to = counted_to.max(run.end);
    }
    Ok(Some(bytes))
}
