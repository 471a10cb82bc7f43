use super::Layout;
use super::header::{contiguous_strides, overflow};
use crate::error::{Error, ErrorKind, Result};

impl Layout {
    /// The same elements in the same order under another size, without moving them. One size may be -1: what is left.
    ///
    /// # Errors
    /// `NeedsCopy` when no strides can say it.
    pub(crate) fn view(&self, size: &[isize]) -> Result<Layout> {
        let op = format!("view({size:?})");
        let size = self.infer_size(&op, size)?;
        let stride = self.view_strides(&op, &size)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NeedsCopy,
                format!(
                    "{op}: size {:?} with stride {:?} needs a copy; use reshape",
                    self.size(),
                    self.stride()
                ),
            )
        })?;
        self.moved(&op, size, stride, 0)
    }

    /// Resolves a -1 and checks that the number of elements stays.
    pub(crate) fn infer_size(&self, op: &str, size: &[isize]) -> Result<Vec<usize>> {
        let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
        let numel = self.numel();
        if size.iter().any(|&n| n < -1) {
            return refuse(ErrorKind::InvalidArgument, "a size is negative; only -1 has a meaning".into());
        }
        let known = || size.iter().filter_map(|&n| usize::try_from(n).ok());
        let product =
            if known().any(|n| n == 0) { Some(0) } else { known().try_fold(1usize, usize::checked_mul) };
        let left = match size.iter().filter(|&&n| n == -1).count() {
            0 => None,
            1 => match product.map(|product| (numel.checked_div(product), numel.checked_rem(product))) {
                Some((Some(left), Some(0))) => Some(left),
                Some((None, _)) if numel == 0 => {
                    return refuse(
                        ErrorKind::InvalidArgument,
                        "with zero elements -1 could be any size; say which".into(),
                    );
                }
                _ => return refuse(ErrorKind::SizeMismatch, self.holds(numel)),
            },
            _ => return refuse(ErrorKind::InvalidArgument, "-1 stands more than once".into()),
        };
        if left.is_none() && product != Some(numel) {
            return refuse(ErrorKind::SizeMismatch, self.holds(numel));
        }
        Ok(size.iter().map(|&n| usize::try_from(n).unwrap_or(left.unwrap_or_default())).collect())
    }

    fn holds(&self, numel: usize) -> String {
        format!("size {:?} holds {numel} elements", self.size())
    }

    /// PyTorch's rule. The old dimensions fall into runs in which each stride is the next size times the next stride;
    /// each run must be filled by whole new dimensions.
    fn view_strides(&self, op: &str, size: &[usize]) -> Result<Option<Vec<isize>>> {
        if self.numel() == 0 {
            let same = size == self.size();
            return if same { Ok(Some(self.stride().to_vec())) } else { contiguous_strides(size).map(Some) };
        }
        let mut strides = Vec::with_capacity(size.len());
        let mut new_dims = size.iter().rev().copied().peekable();
        let mut old_dims = self.dims().rev().peekable();
        while let Some((first, base)) = old_dims.next() {
            let mut run = first;
            while let Some((n, _)) = old_dims.next_if(|&(n, stride)| n == 1 || follows(stride, run, base)) {
                run = run.saturating_mul(n);
            }
            let mut filled = 1usize;
            while let Some(n) = new_dims.next_if(|&n| filled < run || n == 1) {
                let filled_elems = isize::try_from(filled).map_err(|_| overflow(op))?;
                strides.push(base.checked_mul(filled_elems).ok_or_else(|| overflow(op))?);
                filled = filled.saturating_mul(n);
            }
            if filled != run {
                return Ok(None);
            }
        }
        // Only sizes of 1 can be left: a tensor of rank 0 seen with axes.
        strides.extend(new_dims.map(|_| 1));
        strides.reverse();
        Ok(Some(strides))
    }
}

/// Whether a dimension of this stride continues a run of `run` elements that are `base` apart.
fn follows(stride: isize, run: usize, base: isize) -> bool {
    isize::try_from(run).ok().and_then(|run| base.checked_mul(run)) == Some(stride)
}
