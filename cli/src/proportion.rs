//! Proportions of integers. A floating-point product could round to an index past the end, and a product of 64 bits
//! could overflow: an expanded view can have more than 2^54 elements.

/// Divides a range of `whole` into `parts` equal parts, and returns the part in which the position `at` is. The last
/// part also contains positions past the end. The range must not be empty.
pub(crate) fn part_of(at: u64, whole: u64, parts: usize) -> usize {
    let part = u128::from(at) * parts as u128 / u128::from(whole.max(1));
    part.min((parts as u128).saturating_sub(1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first position in a part.
    fn start_of(part: usize, whole: u64, parts: usize) -> u64 {
        u64::try_from((part as u128 * u128::from(whole)).div_ceil(parts as u128)).unwrap()
    }

    #[test]
    fn parts_of_any_whole_are_exact() {
        for (whole, parts) in [(10, 3), (3, 10), (1 << 54, 8), (u64::MAX, 80), (7, 7)] {
            for part in (0..parts).filter(|&part| start_of(part, whole, parts) < whole) {
                let start = start_of(part, whole, parts);
                let first = part_of(start, whole, parts);
                assert!(first >= part && start_of(first, whole, parts) == start, "{whole} {parts} {part}");
                assert!(start == 0 || part_of(start - 1, whole, parts) < part, "{whole} {parts} {part}");
            }
            assert!(part_of(whole - 1, whole, parts) < parts);
            assert_eq!(part_of(whole, whole, parts), parts - 1);
        }
    }
}
