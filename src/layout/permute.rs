//! Reordering axes: `transpose`, `permute` and `movedim`.

use std::fmt::Arguments;

use super::{Axis, Layout};
use crate::error::{Error, ErrorKind, Result};

impl Layout {
    /// Swaps two axes.
    pub(crate) fn transpose(&self, axis0: Axis<'_>, axis1: Axis<'_>) -> Result<Layout> {
        let op = format_args!("transpose({axis0}, {axis1})");
        let (axis0, axis1) = (self.axis(op, axis0)?, self.axis(op, axis1)?);
        let mut dims = self.to_dims();
        if self.rank() > 0 {
            dims.swap(axis0, axis1);
        }
        self.with_dims(op, dims, 0)
    }

    /// Swaps the axes of a matrix. A layout of fewer than two axes is returned unchanged.
    pub(crate) fn t(&self) -> Result<Layout> {
        match self.rank() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(Axis::At(0), Axis::At(1)),
            rank => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("t(): {self} has {rank} axes, but t takes at most 2; use transpose or permute"),
            )),
        }
    }

    /// Reorders the axes: axis `axes[i]` becomes axis `i`.
    pub(crate) fn permute(&self, axes: &[Axis<'_>]) -> Result<Layout> {
        let op = format_args!("permute({axes:?})");
        if axes.len() != self.rank() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{op}: {} axes are listed, but {self} has {}", axes.len(), self.rank()),
            ));
        }
        self.reordered(op, &self.axes(op, axes)?)
    }

    /// Moves axes to new positions. The other axes keep their order.
    pub(crate) fn movedim(&self, source: &[Axis<'_>], destination: &[Axis<'_>]) -> Result<Layout> {
        let op = format_args!("movedim({source:?}, {destination:?})");
        let (from, to) = (self.axes(op, source)?, self.axes(op, destination)?);
        if from.len() != to.len() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{op}: {} axes cannot move to {} positions (tensor: {self})", from.len(), to.len()),
            ));
        }
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        let mut others = (0..self.rank()).filter(|axis| !from.contains(axis));
        let order = (0..self.rank()).map(|place| {
            let moved = to.iter().position(|&to| to == place).and_then(|i| from.get(i).copied());
            moved.or_else(|| others.next()).unwrap_or_default()
        });
        self.reordered(op, &order.collect::<Vec<_>>())
    }

    fn reordered(&self, op: Arguments<'_>, order: &[usize]) -> Result<Layout> {
        let dims = self.to_dims();
        self.with_dims(op, order.iter().filter_map(|&axis| dims.get(axis).cloned()).collect(), 0)
    }
}
