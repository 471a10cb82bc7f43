//! Counts of numbers by range. The ranges adapt to the numbers that were seen.

use std::mem;

use super::BLOCK_ELEMS;
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

/// The number of counters in a table. It is a power of two.
const COUNTER_COUNT: usize = 1 << 17;

/// Returns the slot of each number of a block.
#[inline(always)]
fn slots<T: Copy>((block, slot): (&[T], impl Fn(T) -> u32)) -> [u32; BLOCK_ELEMS] {
    let mut slots = [0; BLOCK_ELEMS];
    slots.iter_mut().zip(block).for_each(|(to, &number)| *to = slot(number));
    slots
}

/// Counts of keys. A key is an integer that stands for a number; keys compare like their numbers.
///
/// Each counter counts 2^`shift` consecutive keys. If the range of keys becomes too wide for the counters, `shift`
/// grows, and neighboring counters are added together. So `shift` depends only on the lowest and the highest key, and
/// tables that were filled apart add up to the same table in any order.
pub(super) struct Table {
    /// The counter of a key is at `(key >> shift) % COUNTER_COUNT`. The range has at most `COUNTER_COUNT` different
    /// shifted keys, so no two of them share a counter.
    counts: Vec<u64>,
    /// Zeros, of the same length. `cover` swaps them with `counts`.
    spare: Vec<u64>,
    shift: u32,
    /// The lowest and the highest key, once there is one.
    range: Option<(u64, u64)>,
}

impl Table {
    pub(super) fn new() -> Result<Self> {
        Ok(Table { counts: zeroed(COUNTER_COUNT)?, spare: zeroed(COUNTER_COUNT)?, shift: 0, range: None })
    }

    /// Returns the lowest and the highest key.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        self.range
    }

    /// Counts the numbers of a block. The caller has passed its lowest and highest key to [`cover`](Self::cover).
    /// `slot` shifts a number's key to the right by its second argument, and returns the low 32 bits.
    pub(super) fn add<T: Copy>(&mut self, (lo, hi): (u64, u64), block: &[T], slot: impl Fn(T, u32) -> u32) {
        let shift = self.shift;
        let counts = &mut self.counts.as_chunks_mut::<COUNTER_COUNT>().0[0];
        if lo >> shift == hi >> shift {
            // All numbers have the same counter. Single increments would wait for each other.
            counts[(lo >> shift) as usize % COUNTER_COUNT] += block.len() as u64;
            return;
        }
        // Vector instructions compute the slots, but cannot increment the counters.
        let slots = with_wide_vectors(slots, (block, |number| slot(number, shift)));
        for &slot in &slots[..block.len()] {
            counts[slot as usize % COUNTER_COUNT] += 1;
        }
    }

    /// Adds the counts of another table.
    pub(super) fn merge(&mut self, other: &Table) {
        let Some((lo, hi)) = other.range else { return };
        self.cover(lo, hi);
        for (key, _, count) in other.used() {
            self.counts[(key >> self.shift) as usize % COUNTER_COUNT] += count;
        }
    }

    /// Returns the counters that are not 0, and the first and the last of the range, in ascending order: the lowest
    /// key, the highest key and the count of each.
    pub(super) fn used(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let shift = self.shift;
        self.range.into_iter().flat_map(move |(lo, hi)| {
            let ends = [lo >> shift, hi >> shift];
            (ends[0]..=ends[1]).filter_map(move |at| {
                let (first, last) = (at << shift, (at << shift) | ((1 << shift) - 1));
                let count = self.counts[at as usize % COUNTER_COUNT];
                (count > 0 || ends.contains(&at)).then_some((first.max(lo), last.min(hi), count))
            })
        })
    }

    /// Extends the range to the keys from `lo` to `hi`, and increases `shift` if needed.
    pub(super) fn cover(&mut self, lo: u64, hi: u64) {
        let (old_lo, old_hi) = self.range.unwrap_or((lo, hi));
        let (lo, hi) = (lo.min(old_lo), hi.max(old_hi));
        let mut shift = self.shift;
        while (hi >> shift) - (lo >> shift) >= COUNTER_COUNT as u64 {
            shift += 1;
        }
        if shift > self.shift && self.range.is_some() {
            for at in old_lo >> self.shift..=old_hi >> self.shift {
                let count = mem::take(&mut self.counts[at as usize % COUNTER_COUNT]);
                self.spare[(at >> (shift - self.shift)) as usize % COUNTER_COUNT] += count;
            }
            mem::swap(&mut self.counts, &mut self.spare);
        }
        (self.shift, self.range) = (shift, Some((lo, hi)));
    }
}
