//! Which elements of a large tensor are sampled.

use std::ops::Range;

/// The limit on the sample. Quantiles of a sample of this size are wrong by far less than 0.2 % of the elements.
const MAX_SAMPLE: u64 = 1 << 20;

/// A sample: one element from each of many parts of equal length, which need not be a whole number of elements. Its
/// place in its part is drawn by a hash of the number of the part. Equally spaced places would all be in one column of a
/// matrix, or miss every one of a kind; so would parts whose lengths alternate.
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
        // A part, and how far into it, in parts of 2^32.
        let place_in = move |part: u128| {
            let drawn = part << 32 | u128::from(hash(part as u64) >> 32);
            (drawn * elements / (parts << 32)) as u64
        };
        let part_of = move |place: u64| u128::from(place) * parts / elements;
        let touched = if within.is_empty() { 0..0 } else { part_of(within.start)..part_of(within.end) + 1 };
        let places = touched.filter(move |&part| part < parts).map(place_in);
        places.filter(move |place| within.contains(place))
    }
}

/// SplitMix64: returns numbers that look random, the same in each call.
fn hash(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
