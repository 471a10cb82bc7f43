//! The range of bytes that a view covers, and the number of its elements.

use crate::{DType, Error, Result, Rule};

/// The range of a storage's bytes that a view covers, from the start of its lowest element to the end of its highest.
///
/// Views are checked against their storages by [`Extent::of`]. This function computes in `i128`, in which no product of
/// two 64-bit numbers overflows, and returns an error for any other overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    start_bytes: u64,
    end_bytes: u64,
}

impl Extent {
    /// Returns the extent of a view. `dims` are pairs of size and stride, and `offset_elems` is the storage offset,
    /// all in elements.
    ///
    /// The extent of a view without elements is empty, and located at its offset.
    ///
    /// # Errors
    /// [`Rule::Extent`] if the view extends below 0 or past `length_bytes`; [`Rule::Numel`] if a size is negative.
    pub fn of(
        dims: impl IntoIterator<Item = (i128, i128)>,
        offset_elems: i128,
        dtype: DType,
        length_bytes: u64,
    ) -> Result<Extent> {
        let (mut lowest, mut highest, mut is_empty) = (Some(offset_elems), Some(offset_elems), false);
        for (size, stride) in dims {
            if size < 0 {
                return Err(Error::new(Rule::Numel, format!("size {size} is negative")));
            }
            is_empty |= size == 0;
            // An overflow (`None`) is not an error yet: a later size may be 0.
            let reach = size.saturating_sub(1).max(0).checked_mul(stride);
            let end = if stride < 0 { &mut lowest } else { &mut highest };
            *end = end.zip(reach).and_then(|(end, reach)| end.checked_add(reach));
        }
        if is_empty {
            (lowest, highest) = (Some(offset_elems), Some(offset_elems.saturating_sub(1)));
        }
        let (lowest, highest) = lowest.zip(highest).ok_or_else(overflow)?;
        let itemsize = dtype.itemsize() as i128;
        let start = lowest.checked_mul(itemsize).ok_or_else(overflow)?;
        let end = highest.checked_add(1).and_then(|end| end.checked_mul(itemsize)).ok_or_else(overflow)?;
        if start < 0 || end > i128::from(length_bytes) {
            return Err(Error::new(
                Rule::Extent,
                format!(
                    "elements {lowest} to {highest} of {dtype} are bytes {start} to {end} of a storage of \
                     {length_bytes} bytes"
                ),
            ));
        }
        match (u64::try_from(start), u64::try_from(end)) {
            (Ok(start_bytes), Ok(end_bytes)) => Ok(Extent { start_bytes, end_bytes }),
            _ => Err(overflow()),
        }
    }

    /// Returns the offset of the first byte.
    #[must_use]
    pub fn start_bytes(self) -> u64 {
        self.start_bytes
    }

    /// Returns the offset after the last byte, which equals the start if the extent is empty.
    #[must_use]
    pub fn end_bytes(self) -> u64 {
        self.end_bytes
    }

    /// Returns the length of the extent in bytes, including bytes that the view skips.
    #[must_use]
    pub fn span_bytes(self) -> u64 {
        self.end_bytes.saturating_sub(self.start_bytes)
    }
}

/// Returns the number of elements of a tensor of `size`: the product, or 1 without dimensions, or 0 if any size is 0.
///
/// # Errors
/// [`Rule::Numel`] if it exceeds `i64::MAX`.
pub fn check_numel(size: &[usize]) -> Result<usize> {
    if size.contains(&0) {
        return Ok(0);
    }
    let product = size.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    product.filter(|&numel| isize::try_from(numel).is_ok()).ok_or_else(|| {
        Error::new(Rule::Numel, "the product of the sizes does not fit in a signed 64-bit integer")
    })
}

fn overflow() -> Error {
    Error::new(Rule::Extent, "sizes and strides extend past 2^127 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(size: &[i128], stride: &[i128], offset: i128, length: u64) -> Result<(u64, u64)> {
        let dims = size.iter().copied().zip(stride.iter().copied());
        Extent::of(dims, offset, DType::F32, length).map(|e| (e.start_bytes(), e.end_bytes()))
    }

    #[test]
    fn extent_covers_lowest_to_highest_element() {
        assert_eq!(extent(&[3, 2], &[2, 1], 0, 24), Ok((0, 24)));
        assert_eq!(extent(&[3], &[-2], 4, 20), Ok((0, 20)));
        assert_eq!(extent(&[], &[], 5, 24), Ok((20, 24)));
        assert_eq!(extent(&[1000, 1], &[0, 999], 0, 4), Ok((0, 4)));
        assert_eq!(extent(&[0, 7], &[7, 1], 6, 24), Ok((24, 24)));
    }

    #[test]
    fn extent_outside_the_storage_is_refused() {
        for (size, stride, offset) in [
            (&[3, 2][..], &[2, 1][..], 1),
            (&[3], &[-2], 3),
            (&[], &[], 6),
            (&[0], &[1], 7),
            (&[1], &[1], -1),
        ] {
            let error = extent(size, stride, offset, 24).unwrap_err();
            assert_eq!(error.rule(), Rule::Extent, "{size:?} {stride:?} {offset}");
        }
    }

    #[test]
    fn extent_survives_numbers_that_overflow_64_bits() {
        let max = i128::from(u64::MAX);
        let stride = i128::from(i64::MAX);
        for (size, stride) in [
            (vec![max], vec![stride]),
            (vec![max; 3], vec![stride; 3]),
            (vec![max; 3], vec![i128::from(i64::MIN); 3]),
            (vec![max; 2], vec![stride, i128::from(i64::MIN)]),
        ] {
            assert_eq!(extent(&size, &stride, 0, u64::MAX).unwrap_err().rule(), Rule::Extent);
        }
    }

    #[test]
    fn numel_is_zero_before_it_overflows() {
        assert_eq!(check_numel(&[]), Ok(1));
        assert_eq!(check_numel(&[1 << 40, 0, 1 << 40]), Ok(0));
        assert_eq!(check_numel(&[1 << 62, 2]).unwrap_err().rule(), Rule::Numel);
        assert_eq!(check_numel(&[usize::MAX, usize::MAX]).unwrap_err().rule(), Rule::Numel);
    }
}
