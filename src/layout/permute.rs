use super::Layout;
use crate::error::{Error, ErrorKind, Result};

impl Layout {
    /// Exchanges two axes.
    pub(crate) fn transpose(&self, axis0: isize, axis1: isize) -> Result<Layout> {
        let op = format!("transpose({axis0}, {axis1})");
        let (axis0, axis1) = (self.axis(&op, axis0)?, self.axis(&op, axis1)?);
        let (mut size, mut stride) = (self.size().to_vec(), self.stride().to_vec());
        if self.rank() > 0 {
            size.swap(axis0, axis1);
            stride.swap(axis0, axis1);
        }
        self.moved(&op, size, stride, 0)
    }

    /// Exchanges the axes of a matrix; fewer than two axes stay as they are.
    pub(crate) fn t(&self) -> Result<Layout> {
        match self.rank() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            rank => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "t(): size {:?} has {rank} axes, and t takes at most 2; use transpose or permute",
                    self.size()
                ),
            )),
        }
    }

    /// Puts the axes in another order: axis `axes[i]` becomes axis `i`.
    pub(crate) fn permute(&self, axes: &[isize]) -> Result<Layout> {
        let op = format!("permute({axes:?})");
        if axes.len() != self.rank() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{op}: {} axes are named, and size {:?} has {}",
                    axes.len(),
                    self.size(),
                    self.rank()
                ),
            ));
        }
        let mut seen = vec![false; self.rank()];
        let (mut size, mut stride) = (Vec::with_capacity(axes.len()), Vec::with_capacity(axes.len()));
        for &axis in axes {
            let position = self.axis(&op, axis)?;
            if seen.get_mut(position).is_none_or(|seen| std::mem::replace(seen, true)) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{op}: axis {axis} is named twice"),
                ));
            }
            let (n, step) = self.dim(&op, position)?;
            size.push(n);
            stride.push(step);
        }
        self.moved(&op, size, stride, 0)
    }
}
