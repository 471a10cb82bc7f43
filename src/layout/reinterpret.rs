//! Views of the same bytes as elements of a different width.

use std::cmp::Ordering;
use std::fmt::Arguments;

use super::Layout;
use super::size_and_stride::{Dim, overflow};
use crate::error::{Context, Error, ErrorKind, Result};

impl Layout {
    /// Applies PyTorch's rule for a view with a different dtype: the last dimension must be contiguous, and its size
    /// changes by the ratio of the widths.
    pub(crate) fn reinterpreted(
        &self,
        op: Arguments<'_>,
        from_bytes: usize,
        to_bytes: usize,
    ) -> Result<Layout> {
        let (narrower, wider) = (from_bytes.min(to_bytes), from_bytes.max(to_bytes));
        let ratio = wider.checked_div(narrower).and_then(|ratio| isize::try_from(ratio).ok()).unwrap_or(1);
        let refuse = |why: String| {
            let layout = format!("{self} and offset {}", self.offset());
            Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {layout}: {why}")))
        };
        if from_bytes == to_bytes {
            return Ok(self.clone());
        }
        match self.stride().last() {
            None => {
                return refuse(
                    "a tensor without axes cannot change its element width; unsqueeze(-1) adds an axis"
                        .into(),
                );
            }
            Some(&stride) if stride != 1 => {
                return refuse(format!(
                    "the last stride is {stride}, not 1; contiguous makes a copy with stride 1"
                ));
            }
            _ => {}
        }
        let mut dims = self.to_dims();
        let mut offset = isize::try_from(self.offset()).map_err(|_| overflow(op))?;
        let last = dims.pop();
        let strides = dims.iter_mut().map(|dim| &mut dim.stride).chain([&mut offset]);
        if to_bytes < from_bytes {
            // A product can only overflow if the axis has size 1 or the tensor is empty.
            for stride in strides {
                *stride = stride.saturating_mul(ratio);
            }
        } else {
            for stride in strides {
                if stride.checked_rem(ratio) != Some(0) {
                    return refuse(format!(
                        "the offset and all strides but the last must be multiples of {ratio}, but {stride} is \
                         not; clone_data makes a copy that begins at 0"
                    ));
                }
                *stride = stride.checked_div(ratio).unwrap_or_default();
            }
        }
        if let Some(Dim { size: n, name, .. }) = last {
            let ratio = ratio.unsigned_abs();
            let size = match to_bytes.cmp(&from_bytes) {
                Ordering::Less => n.checked_mul(ratio),
                _ if n.checked_rem(ratio) == Some(0) => n.checked_div(ratio),
                _ => return refuse(format!("the last size, {n}, is not a multiple of {ratio}")),
            };
            dims.push(Dim { size: size.ok_or_else(|| overflow(op))?, stride: 1, name });
        }
        Layout::of_dims(dims, usize::try_from(offset).map_err(|_| overflow(op))?).context(op)
    }

    /// Views complex numbers as pairs of their parts, along a last axis of size 2.
    pub(crate) fn as_pairs(&self, op: Arguments<'_>) -> Result<Layout> {
        let mut dims = self.to_dims();
        for dim in &mut dims {
            dim.stride = dim.stride.saturating_mul(2);
        }
        dims.push(Dim::new(2, 1));
        let offset = self.offset().checked_mul(2).ok_or_else(|| overflow(op))?;
        Layout::of_dims(dims, offset).context(op)
    }

    /// Views pairs along the last axis as complex numbers.
    pub(crate) fn of_pairs(&self, op: Arguments<'_>) -> Result<Layout> {
        let mut dims = self.to_dims();
        let pair = dims.pop().map(|dim| (dim.size, dim.stride));
        // As in PyTorch, the stride of an axis of size 1 is ignored. `view(dtype)` is stricter, in PyTorch and here.
        let is_even = dims.iter().all(|dim| dim.size == 1 || dim.stride.checked_rem(2) == Some(0))
            && self.offset().checked_rem(2) == Some(0);
        if pair != Some((2, 1)) || !is_even {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{op}: {self} and offset {}: the last axis must have size 2 and stride 1, and the other \
                     strides and the offset must be even",
                    self.offset()
                ),
            ));
        }
        for dim in &mut dims {
            dim.stride = dim.stride.checked_div(2).unwrap_or_default();
        }
        let offset = self.offset().checked_div(2).unwrap_or_default();
        Layout::of_dims(dims, offset).context(op)
    }
}
