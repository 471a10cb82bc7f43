//! Where the bytes that views reach go in a smaller storage.
//!
//! What is kept keeps its order, and two places that were one stay one, so views share elements exactly as before. A
//! view must also stay a view: places that were at equal distances must end at equal distances. So gaps are dropped
//! where all that overlaps steps over them at one pace: the bytes between are cut into periods, of each of which the
//! same part is kept; and within a period the question is the same again, for shorter steps. What overlaps at several
//! paces is kept whole, from its first byte to its last.
//!
//! Nothing is enumerated: a column of ten million rows is one step.

use std::ops::Range;

use stridemap_format::{Result, limits};

use super::reach::{Reach, View};

/// What a kept stretch's place keeps its remainder by: a cache line, and more than any element's alignment.
const ALIGNMENT_BYTES: u64 = 64;

/// How many reaches are looked at before the rest is kept whole.
const MAX_WORK: u64 = 1 << 22;

/// How many lengths of a period are tried for one stretch.
const MAX_PERIODS: usize = 16;

/// How deep periods are cut into periods: as often as a view may have dimensions. Views that each step at a pace of their
/// own could ask for as many levels as there are views, and every level takes stack; what is deeper is kept whole.
const MAX_DEPTH: usize = limits::MAX_RANK;

/// A storage that is smaller, and how it is made from the old one.
#[derive(Debug)]
pub(crate) struct Repacked {
    /// The length of the new storage: at most that of the old.
    pub(crate) length_bytes: u64,
    /// The views over the new storage, in the order in which they were given.
    pub(crate) views: Vec<Placed>,
    segments: Vec<Segment>,
}

/// A view over the new storage; its sizes are what they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) stride: Vec<i64>,
    pub(crate) offset_elems: u64,
}

/// What may still be spent: a store is made by anybody, and neither time nor stack may be had without end.
#[derive(Debug, Default)]
struct Budget {
    /// How many reaches were looked at.
    work: u64,
    /// How many periods the one that is looked at is within.
    depth: usize,
}

/// A stretch of old bytes, and where what is kept of it begins.
#[derive(Debug)]
struct Segment {
    old: Range<u64>,
    new_start: u64,
    /// None for all of it.
    kept: Option<Periods>,
}

/// The part of each period that is kept. Its places are counted from the beginning of the period.
#[derive(Debug)]
struct Periods {
    period_bytes: u64,
    kept_bytes: u64,
    segments: Vec<Segment>,
    /// Where in its period the stretch begins, and where that is in what is kept of it.
    phase: (u64, u64),
}

/// Where the reachable bytes of a storage go in a smaller one.
///
/// # Errors
/// Those of [`stridemap_format::Extent::of`]: a view is not inside a storage of `length_bytes`.
pub(crate) fn repack(views: &[View<'_>], length_bytes: u64) -> Result<Repacked> {
    let reaches: Vec<Option<Reach>> =
        views.iter().map(|view| Reach::of(view, length_bytes)).collect::<Result<_>>()?;
    let (segments, length_bytes) =
        pack(reaches.iter().flatten().cloned().collect(), (ALIGNMENT_BYTES, 1), &mut Budget::default());
    let placed = views.iter().zip(&reaches).map(|(view, reach)| match reach {
        Some(reach) => placed(view, reach.lowest, &segments),
        // Nobody reads it; it stands inside the storage all the same.
        None => {
            let highest = length_bytes.checked_div(view.itemsize()).unwrap_or_default();
            Placed { stride: view.stride.to_vec(), offset_elems: view.offset_elems.min(highest) }
        }
    });
    let views = placed.collect();
    Ok(Repacked { length_bytes, views, segments })
}

impl Repacked {
    /// Gives every range of old bytes that is kept, and where it begins in the new storage, in order. What lies between
    /// them in the new storage is padding.
    pub(crate) fn each_move<E>(
        &self,
        visit: &mut dyn FnMut(Range<u64>, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.segments.iter().try_for_each(|segment| segment.each_move((0, 0), &(0..u64::MAX), visit))
    }
}

/// The same view where its bytes are now. All it reaches is kept, so the distances between places say the strides.
fn placed(view: &View<'_>, lowest: u64, segments: &[Segment]) -> Placed {
    let itemsize = view.itemsize();
    let new_lowest = place(segments, lowest);
    let mut offset_bytes = new_lowest;
    let stride = view.size.iter().zip(view.stride).map(|(&n, &stride)| {
        if n <= 1 || stride == 0 {
            return stride;
        }
        let next = lowest.saturating_add(stride.unsigned_abs().saturating_mul(itemsize));
        let new_bytes = place(segments, next).saturating_sub(new_lowest);
        let new_stride = new_bytes.checked_div(itemsize).unwrap_or_default() as i64;
        if stride > 0 {
            return new_stride;
        }
        offset_bytes = offset_bytes.saturating_add(new_bytes.saturating_mul(n.saturating_sub(1)));
        new_stride.saturating_neg()
    });
    let stride = stride.collect();
    Placed { stride, offset_elems: offset_bytes.checked_div(itemsize).unwrap_or_default() }
}

/// Where a byte that is kept goes.
fn place(segments: &[Segment], byte: u64) -> u64 {
    let after = segments.partition_point(|segment| segment.old.start <= byte);
    segments.get(after.saturating_sub(1)).map_or(0, |segment| segment.place(byte))
}

/// Puts what overlaps together, and one such stretch after the other; gives where the last of them ends. Stretches keep
/// their remainder by `alignment`, and what is within them by `unit` at least.
fn pack(mut reaches: Vec<Reach>, (alignment, unit): (u64, u64), budget: &mut Budget) -> (Vec<Segment>, u64) {
    reaches.sort_unstable();
    reaches.dedup();
    let mut segments = Vec::new();
    let mut new_end = 0u64;
    let mut rest = reaches.as_slice();
    while let Some(first) = rest.first() {
        let (mut end, mut count) = (first.end(), 1usize);
        while let Some(next) = rest.get(count).filter(|next| next.lowest < end) {
            end = end.max(next.end());
            count = count.saturating_add(1);
        }
        let (stretch, others) = rest.split_at(count);
        rest = others;
        let unit = stretch.iter().fold(unit, |unit, reach| unit.max(reach.unit));
        let old = first.lowest..end;
        let segment = Segment {
            new_start: next_like(new_end, old.start, alignment.max(unit)),
            kept: periods(stretch, &old, unit, budget),
            old,
        };
        new_end = segment.place(end.saturating_sub(1)).saturating_add(1);
        segments.push(segment);
    }
    (segments, new_end)
}

/// The first place from `at` on that leaves the remainder of `like`: at most `like`, where that is not below `at`.
fn next_like(at: u64, like: u64, modulus: u64) -> u64 {
    let rest = |n: u64| n.checked_rem(modulus).unwrap_or_default();
    let missing = rest(rest(like).saturating_add(modulus).saturating_sub(rest(at)));
    at.saturating_add(missing)
}

/// How gaps between the bytes that are reached can be dropped; none when all must be kept.
fn periods(reaches: &[Reach], old: &Range<u64>, unit: u64, budget: &mut Budget) -> Option<Periods> {
    if budget.depth >= MAX_DEPTH {
        return None;
    }
    let outermost = reaches.iter().filter_map(|reach| Some(reach.steps.first()?.stride));
    let mut candidates: Vec<u64> =
        reaches.iter().flat_map(|reach| reach.steps.iter().map(|step| step.stride)).collect();
    candidates.push(outermost.fold(0, gcd));
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    candidates.dedup();
    candidates.retain(|period| *period > unit && period.checked_rem(unit) == Some(0));
    // The longest at which something can be dropped: then shorter ones are tried within it.
    candidates
        .into_iter()
        .take(MAX_PERIODS)
        .find_map(|period| by_period(reaches, old, (period, unit), budget))
}

fn by_period(
    reaches: &[Reach],
    old: &Range<u64>,
    (period_bytes, unit): (u64, u64),
    budget: &mut Budget,
) -> Option<Periods> {
    let mut phase = 0;
    // Where periods begin matters only to what reaches over the end of one. Each try begins them at the one that did.
    for _ in 0..3 {
        budget.work = budget.work.saturating_add(reaches.len() as u64);
        if budget.work > MAX_WORK {
            return None;
        }
        match within_period(reaches, old.start, phase, period_bytes) {
            Ok(inner) => {
                // By one unit throughout, so that nothing comes between a period and the next.
                let inner = inner?;
                budget.depth = budget.depth.saturating_add(1);
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

/// What is reached within each period, by steps that are shorter: none when that is all of it, or no step is as long; and
/// the place of one that reaches over the end of a period.
fn within_period(
    reaches: &[Reach],
    start: u64,
    phase: u64,
    period_bytes: u64,
) -> std::result::Result<Option<Vec<Reach>>, u64> {
    let mut inner = Vec::with_capacity(reaches.len());
    for reach in reaches {
        let (_, steps): (Vec<_>, Vec<_>) =
            reach.steps.iter().partition(|step| step.stride.checked_rem(period_bytes) == Some(0));
        let from_origin = reach.lowest.saturating_sub(start).saturating_add(phase);
        let lowest = from_origin.checked_rem(period_bytes).unwrap_or_default();
        let part = Reach { lowest, steps, ..*reach };
        let end = part.end();
        if end <= period_bytes {
            inner.push(part);
        } else if !part.steps.is_empty() {
            return Err(reach.lowest);
        } else if part.run_bytes >= period_bytes {
            return Ok(None);
        } else {
            // A run may go on in the next period: its two parts then meet, for the end and the beginning are kept.
            let over = end.saturating_sub(period_bytes);
            inner.push(Reach { run_bytes: part.run_bytes.saturating_sub(over), ..part.clone() });
            inner.push(Reach { lowest: 0, run_bytes: over, ..part });
        }
    }
    Ok(Some(inner))
}

impl Segment {
    /// Where a byte of this stretch goes, that is kept.
    fn place(&self, byte: u64) -> u64 {
        let into = byte.saturating_sub(self.old.start);
        let kept_before = match &self.kept {
            None => into,
            Some(periods) => periods.place(into),
        };
        self.new_start.saturating_add(kept_before)
    }

    /// As [`Repacked::each_move`], with the places where the period that this is a part of begins, and cut to `within`.
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
        let Some(periods) = &self.kept else {
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
    /// How much is kept before a byte, counted from the beginning of the stretch.
    fn place(&self, into: u64) -> u64 {
        let (phase, kept_before) = self.phase;
        let from_origin = into.saturating_add(phase);
        let count = from_origin.checked_div(self.period_bytes).unwrap_or_default();
        let rest = from_origin.checked_rem(self.period_bytes).unwrap_or_default();
        let kept = count.saturating_mul(self.kept_bytes).saturating_add(place(&self.segments, rest));
        kept.saturating_sub(kept_before)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests;
