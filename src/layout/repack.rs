//! Plans a smaller storage that contains only the bytes that views use.
//!
//! Kept bytes keep their order, and each has one new offset, so views share elements exactly as before. A repacked view
//! must still have strides, so elements at equal distances must stay at equal distances. So where the bytes of views
//! (their footprints) overlap, they are divided into periods of equal length, and a part of the period is dropped only
//! if no footprint uses that part of any period. What is kept of a period is then repacked in the same way, with
//! shorter periods. Overlapping footprints for which no such period is found are kept whole, from the first byte to the
//! last.
//!
//! Elements are not enumerated: a column of ten million rows is described by a single step.

use std::ops::Range;

use stridemap_format::{Dims, Header, Result, limits};

use super::dims::names_of;
use super::footprint::Footprint;
use super::overlap::gcd;

/// A kept stretch does not change its offset modulo this number: the size of a cache line, which is more than the
/// alignment of any element.
const ALIGNMENT_BYTES: u64 = 64;

/// The limit on footprints that are examined. Beyond it, the rest is kept whole.
const MAX_WORK: u64 = 1 << 22;

/// The limit on period lengths that are tried for one stretch.
const MAX_PERIODS: usize = 16;

/// The limit on nested periods: the highest rank of a view. Many views with different steps could otherwise nest one
/// level per view, and each level takes stack space. Deeper levels are kept whole.
const MAX_DEPTH: usize = limits::MAX_RANK;

/// A smaller storage, and how to make it from the old one.
#[derive(Debug)]
pub(crate) struct Repacked {
    /// The length of the new storage, at most that of the old one.
    pub(crate) length_bytes: u64,
    /// The headers of the views over the new storage, in the given order. Their sizes are unchanged.
    pub(crate) views: Vec<Header>,
    segments: Vec<Segment>,
}

/// The time and stack space used so far. Both are limited, because the store may be untrusted.
#[derive(Debug, Default)]
struct Budget {
    /// The number of footprints examined.
    work: u64,
    /// The number of periods that enclose the current one.
    depth: usize,
}

/// A stretch of old bytes, and the new offset of its kept bytes.
#[derive(Debug)]
struct Segment {
    old: Range<u64>,
    new_start: u64,
    /// `None` if all bytes are kept.
    periods: Option<Periods>,
}

/// The part of each period that is kept. The offsets of its segments are relative to the start of the period.
#[derive(Debug)]
struct Periods {
    period_bytes: u64,
    kept_bytes: u64,
    segments: Vec<Segment>,
    /// How far into a period the stretch begins, in old bytes and in kept bytes.
    phase: (u64, u64),
}

/// Plans a smaller storage for the bytes that the views use, and the views over it.
///
/// # Errors
/// Those of [`Header::extent`] if a view is not inside a storage of `length_bytes`.
pub(crate) fn repack(views: &[&Header], length_bytes: u64) -> Result<Repacked> {
    let footprints: Vec<Option<Footprint>> =
        views.iter().map(|view| Footprint::of(view, length_bytes)).collect::<Result<_>>()?;
    let (segments, length_bytes) =
        pack(footprints.iter().flatten().cloned().collect(), (ALIGNMENT_BYTES, 1), &mut Budget::default());
    let placed = views.iter().zip(&footprints).map(|(view, footprint)| match footprint {
        Some(footprint) => placed(view, footprint.lowest, &segments),
        // The offset of an empty view must also be inside the storage.
        None => {
            let highest = length_bytes.checked_div(view.dtype().itemsize() as u64).unwrap_or_default();
            Ok(Header::clone(view).with_storage_offset(view.storage_offset().min(highest as usize)))
        }
    });
    let views = placed.collect::<Result<_>>()?;
    Ok(Repacked { length_bytes, views, segments })
}

impl Repacked {
    /// Returns the plan that keeps every byte of a storage. It has no views, because no view moves.
    pub(crate) fn whole(length_bytes: u64) -> Self {
        let segments = vec![Segment { old: 0..length_bytes, new_start: 0, periods: None }];
        Repacked { length_bytes, views: Vec::new(), segments }
    }

    /// Visits every kept range of old bytes with its new offset, in order. Bytes between the ranges in the new
    /// storage are padding.
    pub(crate) fn each_move<E>(
        &self,
        visit: &mut dyn FnMut(Range<u64>, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.segments.iter().try_for_each(|segment| segment.each_move((0, 0), &(0..u64::MAX), visit))
    }
}

/// Returns the view over the new storage. All its bytes are kept, so the strides follow from their new offsets.
fn placed(view: &Header, lowest: u64, segments: &[Segment]) -> Result<Header> {
    let itemsize = view.dtype().itemsize() as u64;
    let new_lowest = place(segments, lowest);
    let mut offset_bytes = new_lowest;
    let stride = view.dims().map(|(n, stride)| {
        if n <= 1 || stride == 0 {
            return stride;
        }
        let next = lowest.saturating_add((stride.unsigned_abs() as u64).saturating_mul(itemsize));
        let new_bytes = place(segments, next).saturating_sub(new_lowest);
        let new_stride = new_bytes.checked_div(itemsize).unwrap_or_default() as isize;
        if stride > 0 {
            return new_stride;
        }
        offset_bytes = offset_bytes.saturating_add(new_bytes.saturating_mul((n as u64).saturating_sub(1)));
        new_stride.saturating_neg()
    });
    let stride: Dims<isize> = stride.collect();
    let offset = offset_bytes.checked_div(itemsize).unwrap_or_default() as usize;
    Header::new(view.dtype(), view.size(), stride, offset)?.with_dim_names(names_of(view).cloned())
}

/// Returns the new offset of a kept byte.
fn place(segments: &[Segment], byte: u64) -> u64 {
    let after = segments.partition_point(|segment| segment.old.start <= byte);
    segments.get(after.saturating_sub(1)).map_or(0, |segment| segment.place(byte))
}

/// Groups overlapping footprints into stretches, and places the stretches one after another. Returns the segments and
/// the end of the last one. A stretch keeps its offset modulo `alignment`. Its bytes move by multiples of the largest
/// of `unit` and the units of its footprints, so elements stay aligned.
fn pack(
    mut footprints: Vec<Footprint>,
    (alignment, unit): (u64, u64),
    budget: &mut Budget,
) -> (Vec<Segment>, u64) {
    footprints.sort_unstable();
    footprints.dedup();
    let mut segments = Vec::new();
    let mut new_end = 0u64;
    let mut rest = footprints.as_slice();
    while let Some(first) = rest.first() {
        let (mut end, mut count) = (first.end(), 1usize);
        while let Some(next) = rest.get(count).filter(|next| next.lowest < end) {
            end = end.max(next.end());
            count = count.saturating_add(1);
        }
        let (stretch, others) = rest.split_at(count);
        rest = others;
        let unit = stretch.iter().fold(unit, |unit, footprint| unit.max(footprint.unit));
        let old = first.lowest..end;
        let segment = Segment {
            new_start: next_congruent(new_end, old.start, alignment.max(unit)),
            periods: periods(stretch, &old, unit, budget),
            old,
        };
        new_end = segment.place(end.saturating_sub(1)).saturating_add(1);
        segments.push(segment);
    }
    (segments, new_end)
}

/// Returns the first offset that is at least `at` and congruent to `like` modulo `modulus`. If `like` is at least
/// `at`, the result is at most `like`.
fn next_congruent(at: u64, like: u64, modulus: u64) -> u64 {
    let rest = |n: u64| n.checked_rem(modulus).unwrap_or_default();
    let missing = rest(rest(like).saturating_add(modulus).saturating_sub(rest(at)));
    at.saturating_add(missing)
}

/// Finds a period whose gaps can be dropped. Returns `None` if everything must be kept.
fn periods(footprints: &[Footprint], old: &Range<u64>, unit: u64, budget: &mut Budget) -> Option<Periods> {
    if budget.depth >= MAX_DEPTH {
        return None;
    }
    let outermost = footprints.iter().filter_map(|footprint| Some(footprint.steps.first()?.stride));
    let mut candidates: Vec<u64> =
        footprints.iter().flat_map(|footprint| footprint.steps.iter().map(|step| step.stride)).collect();
    candidates.extend(u64::try_from(outermost.map(i128::from).fold(0, gcd)).ok());
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    candidates.dedup();
    candidates.retain(|period| *period > unit && period.checked_rem(unit) == Some(0));
    // Take the longest period that drops something. Shorter ones are then tried within it.
    candidates
        .into_iter()
        .take(MAX_PERIODS)
        .find_map(|period| try_period(footprints, old, (period, unit), budget))
}

fn try_period(
    footprints: &[Footprint],
    old: &Range<u64>,
    (period_bytes, unit): (u64, u64),
    budget: &mut Budget,
) -> Option<Periods> {
    let mut phase = 0;
    // The position of the periods matters only if a footprint crosses the end of one. Each retry starts a period at
    // the footprint that crossed.
    for _ in 0..3 {
        budget.work = budget.work.saturating_add(footprints.len() as u64);
        if budget.work > MAX_WORK {
            return None;
        }
        match within_period(footprints, old.start, phase, period_bytes) {
            Ok(inner) => {
                let inner = inner?;
                budget.depth = budget.depth.saturating_add(1);
                // Within a period, stretches keep their offsets modulo `unit` only.
                let (segments, end) = pack(inner, (unit, unit), budget);
                budget.depth = budget.depth.saturating_sub(1);
                let kept_bytes = end.checked_next_multiple_of(unit)?;
                let phase = (phase, place(&segments, phase));
                return (kept_bytes < period_bytes).then_some(Periods {
                    period_bytes,
                    kept_bytes,
                    segments,
                    phase,
                });
            }
            Err(lowest) => {
                let into = lowest.saturating_sub(old.start).checked_rem(period_bytes)?;
                phase = period_bytes.saturating_sub(into).checked_rem(period_bytes)?;
            }
        }
    }
    None
}

/// Returns the footprints within one period, with only the shorter steps, or `None` if a run covers a whole period.
/// The error is the offset of a footprint that crosses the end of a period and cannot be split.
fn within_period(
    footprints: &[Footprint],
    start: u64,
    phase: u64,
    period_bytes: u64,
) -> std::result::Result<Option<Vec<Footprint>>, u64> {
    let mut inner = Vec::with_capacity(footprints.len());
    for footprint in footprints {
        let (_, steps): (Vec<_>, Vec<_>) =
            footprint.steps.iter().partition(|step| step.stride.checked_rem(period_bytes) == Some(0));
        let from_origin = footprint.lowest.saturating_sub(start).saturating_add(phase);
        let lowest = from_origin.checked_rem(period_bytes).unwrap_or_default();
        let part = Footprint { lowest, steps, ..*footprint };
        let end = part.end();
        if end <= period_bytes {
            inner.push(part);
        } else if !part.steps.is_empty() {
            return Err(footprint.lowest);
        } else if part.run_bytes >= period_bytes {
            return Ok(None);
        } else {
            // A run may continue in the next period. Its two parts stay adjacent, because the end and the start of
            // each period are kept.
            let over = end.saturating_sub(period_bytes);
            inner.push(Footprint { run_bytes: part.run_bytes.saturating_sub(over), ..part.clone() });
            inner.push(Footprint { lowest: 0, run_bytes: over, ..part });
        }
    }
    Ok(Some(inner))
}

impl Segment {
    /// Returns the new offset of a kept byte of this stretch.
    fn place(&self, byte: u64) -> u64 {
        let into = byte.saturating_sub(self.old.start);
        let kept_before = match &self.periods {
            None => into,
            Some(periods) => periods.kept_before(into),
        };
        self.new_start.saturating_add(kept_before)
    }

    /// Like [`Repacked::each_move`], but for offsets relative to the start of the enclosing period, and only for the
    /// old bytes in `within`.
    fn each_move<E>(
        &self,
        (old_base, new_base): (i128, i128),
        within: &Range<u64>,
        visit: &mut dyn FnMut(Range<u64>, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let at = |base: i128, place: u64| base.saturating_add(i128::from(place));
        let (old_start, new_start) = (at(old_base, self.old.start), at(new_base, self.new_start));
        let start = old_start.max(i128::from(within.start));
        let end = at(old_base, self.old.end).min(i128::from(within.end));
        if start >= end {
            return Ok(());
        }
        let old = start as u64..end as u64;
        let Some(periods) = &self.periods else {
            let cut = start.saturating_sub(old_start);
            return visit(old, new_start.saturating_add(cut) as u64);
        };
        let (phase, kept_before) = periods.phase;
        let origin = old_start.saturating_sub(i128::from(phase));
        let new_origin = new_start.saturating_sub(i128::from(kept_before));
        let period = i128::from(periods.period_bytes);
        let index = |byte: i128| byte.saturating_sub(origin).checked_div(period).unwrap_or_default();
        for i in index(start)..=index(end.saturating_sub(1)) {
            let bases = (
                origin.saturating_add(i.saturating_mul(period)),
                new_origin.saturating_add(i.saturating_mul(i128::from(periods.kept_bytes))),
            );
            for segment in &periods.segments {
                segment.each_move(bases, &old, visit)?;
            }
        }
        Ok(())
    }
}

impl Periods {
    /// Returns how many bytes of the stretch are kept before the byte at offset `into` of the stretch.
    fn kept_before(&self, into: u64) -> u64 {
        let (phase, kept_at_phase) = self.phase;
        let from_origin = into.saturating_add(phase);
        let count = from_origin.checked_div(self.period_bytes).unwrap_or_default();
        let rest = from_origin.checked_rem(self.period_bytes).unwrap_or_default();
        let kept = count.saturating_mul(self.kept_bytes).saturating_add(place(&self.segments, rest));
        kept.saturating_sub(kept_at_phase)
    }
}

#[cfg(test)]
mod tests;
