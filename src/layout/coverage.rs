//! Finds out whether a range of a storage contains bytes of a tensor.

use std::ops::Range;

use stridemap_format::{DType, Header};

use super::overlaps_within;

/// The bytes of a storage that the elements of one tensor cover.
#[derive(Debug)]
pub(crate) struct Coverage<'a> {
    header: &'a Header,
    span: Range<u64>,
}

impl<'a> Coverage<'a> {
    /// Returns `None` for a tensor without elements, or one that is not inside a storage of `length_bytes`.
    pub(crate) fn of(header: &'a Header, length_bytes: u64) -> Option<Self> {
        let extent = header.extent(length_bytes).ok().filter(|extent| extent.span_bytes() > 0)?;
        Some(Coverage { header, span: extent.start_bytes()..extent.end_bytes() })
    }

    /// Returns the range from the first covered byte to the last, including gaps.
    pub(crate) fn span(&self) -> Range<u64> {
        self.span.clone()
    }

    /// Returns those of the ranges that overlap the span. The ranges must be in ascending order.
    pub(crate) fn near<'r, T>(&self, ranges: &'r [(Range<u64>, T)]) -> &'r [(Range<u64>, T)] {
        let start = ranges.partition_point(|(range, _)| range.end <= self.span.start);
        let end = ranges.partition_point(|(range, _)| range.start < self.span.end);
        ranges.get(start..end).unwrap_or_default()
    }

    /// Returns whether the range contains a byte of an element. For a view with many dimensions, or if no steps are left,
    /// this may be a false positive, but never a false negative.
    pub(crate) fn overlaps(&self, range: &Range<u64>, steps_left: &mut u64) -> bool {
        let (start, end) = (range.start.max(self.span.start), range.end.min(self.span.end));
        let Some(length) = end.checked_sub(start).filter(|&length| length > 0) else { return false };
        let stretch = Header::new(DType::U8, [length as usize], [1], start as usize);
        stretch.is_ok_and(|stretch| overlaps_within(self.header, &stretch, steps_left).unwrap_or(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(size: usize, stride: isize, offset: usize) -> Header {
        Header::new(DType::F32, [size], [stride], offset).unwrap()
    }

    #[test]
    fn view_does_not_cover_its_gaps() {
        let column = view(10, 100, 3);
        let column = Coverage::of(&column, 4000).unwrap();
        assert_eq!(column.span(), 12..3616);
        assert!(
            column.overlaps(&(12..13), &mut 1000)
                && column.overlaps(&(0..4000), &mut 1000)
                && column.overlaps(&(415..416), &mut 1000)
        );
        assert!(
            !column.overlaps(&(16..412), &mut 1000)
                && !column.overlaps(&(0..12), &mut 1000)
                && !column.overlaps(&(3616..4000), &mut 1000)
        );
        let near = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            let ranges: Vec<_> = ranges.iter().map(|range| (range.clone(), ())).collect();
            column.near(&ranges).iter().map(|(range, ())| range.clone()).collect()
        };
        let ranges = [0..5, 5..12, 12..13, 20..30, 3615..3616, 3616..3617, 5000..5001];
        assert_eq!(near(&ranges), ranges[2..5]);
        assert_eq!([near(&ranges[..2]), near(&ranges[5..]), near(&[])], [const { Vec::new() }; 3]);
        let all = [0..20, 20..u64::MAX];
        assert_eq!(near(&all), all);
        let reversed = view(10, -100, 903);
        let reversed = Coverage::of(&reversed, 4000).unwrap();
        assert!(reversed.overlaps(&(12..16), &mut 1000) && !reversed.overlaps(&(16..412), &mut 1000));
        assert!(
            Coverage::of(&view(0, 1, 3), 4000).is_none() && Coverage::of(&view(1001, 1, 0), 4000).is_none()
        );
    }
}
