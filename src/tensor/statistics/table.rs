//! Counts of numbers by range. The ranges adapt to the numbers that were seen.

use std::mem;

use super::BLOCK;
use crate::error::Result;
use crate::storage::zeroed;
use crate::tensor::kernel::with_wide_vectors;

/// Numbers between two values, both of which are in the range.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) lo: f64,
    pub(super) hi: f64,
    pub(super) count: u64,
}

/// A power of two.
const COUNTERS: usize = 1 << 17;

/// Returns the slot of each number of a block.
#[inline(always)]
fn slots<T: Copy>((block, slot): (&[T], impl Fn(T) -> u32)) -> [u32; BLOCK] {
    let mut slots = [0; BLOCK];
    slots.iter_mut().zip(block).for_each(|(to, &number)| *to = slot(number));
    slots
}

/// Counts of keys: integers that are in the order of the numbers they stand for.
///
/// A counter is for 2^`shift` keys. Where a key is beyond the counters, `shift` grows, and pairs of counters become
/// one. So `shift` depends only on the lowest and the highest key, and tables that were filled apart add up to the same
/// table in any order.
pub(super) struct Table {
    /// Counters by the low bits of `key >> shift`. There are fewer of these in use than counters.
    counts: Vec<u64>,
    /// Zeros, of the same length.
    spare: Vec<u64>,
    shift: u32,
    /// The lowest and the highest key, once there is one.
    range: Option<(u64, u64)>,
}

impl Table {
    pub(super) fn new() -> Result<Self> {
        Ok(Table { counts: zeroed(COUNTERS)?, spare: zeroed(COUNTERS)?, shift: 0, range: None })
    }

    /// Returns the lowest and the highest key.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        self.range
    }

    /// Counts the numbers of a block, which [`cover`](Self::cover) took note of. `slot` returns the low bits of a
    /// number's key, shifted to the right.
    pub(super) fn add<T: Copy>(&mut self, (lo, hi): (u64, u64), block: &[T], slot: impl Fn(T, u32) -> u32) {
        let shift = self.shift;
        let counts = &mut self.counts.as_chunks_mut::<COUNTERS>().0[0];
        if lo >> shift == hi >> shift {
            // Each increment of the same counter would wait for the last one.
            counts[(lo >> shift) as usize % COUNTERS] += block.len() as u64;
            return;
        }
        // Vector instructions compute the slots, but cannot increment the counters.
        let slots = with_wide_vectors(slots, (block, |number| slot(number, shift)));
        for &slot in &slots[..block.len()] {
            counts[slot as usize % COUNTERS] += 1;
        }
    }

    /// Adds the counts of another table.
    pub(super) fn merge(&mut self, other: &Table) {
        let Some((lo, hi)) = other.range else { return };
        self.cover(lo, hi);
        for (key, _, count) in other.used() {
            self.counts[(key >> self.shift) as usize % COUNTERS] += count;
        }
    }

    /// Returns the lowest key, the highest key and the count of each counter that is not 0, and of the first and the
    /// last one, in ascending order.
    pub(super) fn used(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let shift = self.shift;
        self.range.into_iter().flat_map(move |(lo, hi)| {
            let ends = [lo >> shift, hi >> shift];
            (ends[0]..=ends[1]).filter_map(move |at| {
                let (first, last) = (at << shift, (at << shift) | ((1 << shift) - 1));
                let count = self.counts[at as usize % COUNTERS];
                (count > 0 || ends.contains(&at)).then_some((first.max(lo), last.min(hi), count))
            })
        })
    }

    /// Makes the counters wide enough for keys of which these are the lowest and the highest.
    pub(super) fn cover(&mut self, lo: u64, hi: u64) {
        let (old_lo, old_hi) = self.range.unwrap_or((lo, hi));
        let (lo, hi) = (lo.min(old_lo), hi.max(old_hi));
        let mut shift = self.shift;
        while (hi >> shift) - (lo >> shift) >= COUNTERS as u64 {
            shift += 1;
        }
        if shift > self.shift && self.range.is_some() {
            for at in old_lo >> self.shift..=old_hi >> self.shift {
                let count = mem::take(&mut self.counts[at as usize % COUNTERS]);
                self.spare[(at >> (shift - self.shift)) as usize % COUNTERS] += count;
            }
            mem::swap(&mut self.counts, &mut self.spare);
        }
        (self.shift, self.range) = (shift, Some((lo, hi)));
    }
}
