//! Counts of numbers by range. The ranges adapt to the numbers that were seen.

use std::mem;

use crate::error::Result;
use crate::storage::zeroed;

/// Numbers between two values, both of which are in the range.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) lo: f64,
    pub(super) hi: f64,
    pub(super) count: u64,
}

/// Counts of keys: integers that are in the order of the numbers they stand for.
///
/// A counter is for 2^`shift` keys. Where a key is beyond the counters, `shift` grows, and pairs of counters become one.
/// So `shift` depends only on the lowest and the highest key, and tables that were filled apart add up to the same table
/// in any order.
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
    /// `counter_count` is a power of two.
    pub(super) fn new(counter_count: usize) -> Result<Self> {
        Ok(Table { counts: zeroed(counter_count)?, spare: zeroed(counter_count)?, shift: 0, range: None })
    }

    /// Returns the lowest and the highest key.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        self.range
    }

    /// Counts keys between `lo` and `hi`, which are among them.
    pub(super) fn add(&mut self, (lo, hi): (u64, u64), keys: impl ExactSizeIterator<Item = u64>) {
        self.cover(lo, hi);
        let (mask, shift) = (self.counts.len() - 1, self.shift);
        if lo >> shift == hi >> shift {
            // Each increment of the same counter would wait for the last one.
            self.counts[(lo >> shift) as usize & mask] += keys.len() as u64;
        } else {
            for key in keys {
                self.counts[(key >> shift) as usize & mask] += 1;
            }
        }
    }

    /// Adds the counts of a table with the same number of counters.
    pub(super) fn merge(&mut self, other: &Table) {
        let Some((lo, hi)) = other.range else { return };
        self.cover(lo, hi);
        let mask = self.counts.len() - 1;
        for (key, _, count) in other.used() {
            self.counts[(key >> self.shift) as usize & mask] += count;
        }
    }

    /// Returns the lowest key, the highest key and the count of each counter that is not 0, in ascending order.
    pub(super) fn used(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let (mask, shift) = (self.counts.len() - 1, self.shift);
        self.range.into_iter().flat_map(move |(lo, hi)| {
            (lo >> shift..=hi >> shift).filter_map(move |at| {
                let (first, last) = (at << shift, (at << shift) | ((1 << shift) - 1));
                let count = self.counts[at as usize & mask];
                (count > 0).then_some((first.max(lo), last.min(hi), count))
            })
        })
    }

    /// Makes the counters wide enough for these keys.
    fn cover(&mut self, lo: u64, hi: u64) {
        let (old_lo, old_hi) = self.range.unwrap_or((lo, hi));
        let (lo, hi) = (lo.min(old_lo), hi.max(old_hi));
        let mut shift = self.shift;
        while (hi >> shift) - (lo >> shift) >= self.counts.len() as u64 {
            shift += 1;
        }
        if shift > self.shift && self.range.is_some() {
            let mask = self.counts.len() - 1;
            for at in old_lo >> self.shift..=old_hi >> self.shift {
                let count = mem::take(&mut self.counts[at as usize & mask]);
                self.spare[(at >> (shift - self.shift)) as usize & mask] += count;
            }
            mem::swap(&mut self.counts, &mut self.spare);
        }
        (self.shift, self.range) = (shift, Some((lo, hi)));
    }
}
