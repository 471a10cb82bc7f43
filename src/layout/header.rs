use stridemap_format::limits::MAX_RANK;
use stridemap_format::{DType, Extent, check_numel};

use crate::error::{Error, ErrorKind, Result};

/// Sizes, strides and storage offset of a view, all in elements.
///
/// As many strides as sizes, at most 64, and a number of elements that fits in an `i64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    size: Vec<usize>,
    stride: Vec<isize>,
    offset: usize,
}

impl Layout {
    pub(crate) fn new(size: Vec<usize>, stride: Vec<isize>, offset: usize) -> Result<Self> {
        if size.len() > MAX_RANK || size.len() != stride.len() {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{} sizes and {} strides, where at most {MAX_RANK} of each can be",
                    size.len(),
                    stride.len()
                ),
            ));
        }
        check_numel(size.iter().map(|&n| n as u64))
            .map_err(|e| Error::refused(&format!("size {size:?}"), e))?;
        Ok(Layout { size, stride, offset })
    }

    /// The layout of a fresh tensor: row-major, from offset 0.
    pub(crate) fn contiguous(size: &[usize]) -> Result<Self> {
        Layout::new(size.to_vec(), contiguous_strides(size)?, 0)
    }

    pub(crate) fn size(&self) -> &[usize] {
        &self.size
    }

    pub(crate) fn stride(&self) -> &[isize] {
        &self.stride
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn rank(&self) -> usize {
        self.size.len()
    }

    /// Pairs of size and stride, outermost first.
    pub(crate) fn dims(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + Clone + '_ {
        self.size.iter().copied().zip(self.stride.iter().copied())
    }

    /// The number of elements; `new` saw that it fits.
    pub(crate) fn numel(&self) -> usize {
        if self.size.contains(&0) { 0 } else { self.size.iter().fold(1, |numel, &n| numel.saturating_mul(n)) }
    }

    /// PyTorch's rule: zero elements are contiguous, and strides of dimensions of size 1 do not matter.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1usize;
        self.numel() == 0
            || self.dims().rev().filter(|&(size, _)| size != 1).all(|(size, stride)| {
                let fits = usize::try_from(stride) == Ok(expected);
                expected = expected.saturating_mul(size);
                fits
            })
    }

    /// The bytes of a storage of `length_bytes` that the layout reaches.
    pub(crate) fn extent(&self, dtype: DType, length_bytes: u64) -> stridemap_format::Result<Extent> {
        let dims = self.dims().map(|(size, stride)| (size as i128, stride as i128));
        Extent::of(dims, self.offset as i128, dtype, length_bytes)
    }

    /// Turns an axis that may count from the end into a position. A rank of 0 has the axes -1 and 0, as in PyTorch,
    /// where the operation has a use for them.
    pub(crate) fn axis(&self, op: &str, axis: isize) -> Result<usize> {
        let rank = self.rank().max(1);
        let from_start = if axis < 0 { axis.checked_add_unsigned(rank) } else { Some(axis) };
        from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|&axis| axis < rank).ok_or_else(|| {
            let highest = rank.saturating_sub(1);
            Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "{op}: axis {axis} is out of range for size {:?}: axes go from -{rank} to {highest}",
                    self.size
                ),
            )
        })
    }

    /// The size and the stride at an axis that [`axis`](Self::axis) gave. A rank of 0 has neither.
    pub(crate) fn dim(&self, op: &str, axis: usize) -> Result<(usize, isize)> {
        self.dims().nth(axis).ok_or_else(|| {
            Error::new(ErrorKind::OutOfRange, format!("{op}: a tensor of rank 0 has no axis to take from"))
        })
    }

    /// The same storage under other dimensions, moved by `shift` elements.
    ///
    /// A view without elements does not move: its offset is read by nobody, and so stays inside the storage.
    pub(crate) fn moved(
        &self,
        op: &str,
        size: Vec<usize>,
        stride: Vec<isize>,
        shift: i128,
    ) -> Result<Layout> {
        let offset = if size.contains(&0) {
            self.offset
        } else {
            let moved =
                shift.checked_add(self.offset as i128).and_then(|offset| usize::try_from(offset).ok());
            moved.ok_or_else(|| overflow(op))?
        };
        Layout::new(size, stride, offset).map_err(|e| e.context(op))
    }
}

pub(crate) fn contiguous_strides(size: &[usize]) -> Result<Vec<isize>> {
    let mut step = 1isize;
    let mut strides = Vec::with_capacity(size.len());
    for (axis, &n) in size.iter().enumerate().rev() {
        strides.push(step);
        if axis > 0 {
            let next = isize::try_from(n.max(1)).ok().and_then(|n| step.checked_mul(n));
            step = next.ok_or_else(|| overflow(&format!("size {size:?}")))?;
        }
    }
    strides.reverse();
    Ok(strides)
}

pub(super) fn overflow(op: &str) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("{op}: a stride or an offset does not fit in 64 bits"))
}
