//! Finds out whether a range of a storage contains bytes of a tensor.

use std::ops::Range;

use stridemap_format::TensorRecord;

use super::Layout;

/// The bytes of a storage that the elements of one tensor cover.
#[derive(Debug)]
pub(crate) struct Coverage {
    layout: Layout,
    width: usize,
    span: Range<u64>,
}

impl Coverage {
    /// Returns `None` for a tensor without elements, or one that is not inside a storage of `length_bytes`.
    pub(crate) fn of(record: &TensorRecord, length_bytes: u64) -> Option<Self> {
        let extent = record.extent(length_bytes).ok().filter(|extent| extent.span_bytes() > 0)?;
        let start = extent.start_bytes();
        let span = start..start.saturating_add(extent.span_bytes());
        Some(Coverage { layout: Layout::of_record(record), width: record.dtype.itemsize(), span })
    }

    /// Returns the range from the first covered byte to the last, including gaps.
    pub(crate) fn span(&self) -> Range<u64> {
        self.span.clone()
    }

    /// Returns whether the range contains a byte of an element. For a view with many dimensions, or if no steps are left,
    /// this may be a false positive, but never a false negative.
    pub(crate) fn overlaps(&self, range: &Range<u64>, steps_left: &mut u64) -> bool {
        let (start, end) = (range.start.max(self.span.start), range.end.min(self.span.end));
        let Some(length) = end.checked_sub(start).filter(|&length| length > 0) else { return false };
        let stretch = Layout::new(vec![length as usize], vec![1], start as usize);
        stretch.is_ok_and(|stretch| {
            self.layout.overlaps_within(self.width, &stretch, 1, steps_left).unwrap_or(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stridemap_format::{DType, TensorParts};

    fn reached(size: &[u64], stride: &[i64], offset_elems: u64) -> Option<Coverage> {
        let (size, stride) = (size.to_vec().into(), stride.to_vec().into());
        let parts =
            TensorParts { dtype: DType::F32, size, stride, offset_elems, storage_id: 1, dim_names: None };
        Coverage::of(&TensorRecord::new(parts).unwrap(), 4000)
    }

    #[test]
    fn view_does_not_cover_its_gaps() {
        let column = reached(&[10], &[100], 3).unwrap();
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
        let reversed = reached(&[10], &[-100], 903).unwrap();
        assert!(reversed.overlaps(&(12..16), &mut 1000) && !reversed.overlaps(&(16..412), &mut 1000));
        assert!(reached(&[0], &[1], 3).is_none() && reached(&[1001], &[1], 0).is_none());
    }
}
