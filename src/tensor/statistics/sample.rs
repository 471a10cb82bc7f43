//! Which elements of a large tensor are sampled.

use std::ops::Range;

/// The limit on the sample. Quantiles of a sample of this size are wrong by far less than 0.2 % of the elements.
const MAX_SAMPLE: u64 = 1 << 20;

/// A sample: one element from each of many parts of nearly equal length. Its place in its part is drawn by a hash of
/// the number of the part. Equally spaced places would all be in one column of a matrix, or miss every one of a kind.
pub(super) struct Sample {
    element_count: u64,
    part_count: u64,
}

impl Sample {
    pub(super) fn of(element_count: u64) -> Self {
        // The lowest and the highest element are added to the sample, if it is not all elements.
        let part_count = if element_count <= MAX_SAMPLE { element_count } else { MAX_SAMPLE - 2 };
        Sample { element_count, part_count }
    }

    pub(super) fn has_all(&self) -> bool {
        self.part_count == self.element_count
    }

    /// Returns the places of the sampled elements in this range of elements, in ascending order.
    pub(super) fn places(&self, within: Range<u64>) -> impl Iterator<Item = u64> {
        let (elements, parts) = (u128::from(self.element_count), u128::from(self.part_count));
        let start = move |part: u128| (part * elements / parts) as u64;
        let part_of = move |place: u64| u128::from(place) * parts / elements;
        let touched = if within.is_empty() { 0..0 } else { part_of(within.start)..part_of(within.end) + 1 };
        touched.filter(move |&part| part < parts).filter_map(move |part| {
            let length = start(part + 1) - start(part);
            Some(start(part) + hash(part as u64) % length).filter(|place| within.contains(place))
        })
    }
}

/// SplitMix64: returns numbers that look random, the same in each call.
fn hash(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
