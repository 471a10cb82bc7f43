//! Axes as arguments: a position or a name, or several of them.

use std::fmt;
use std::fmt::Arguments;

use stridemap_format::Header;

use super::Integer;
use super::names::axis_named;
use crate::error::{Error, ErrorKind, Result};

/// A dimension of a tensor, by position (negative from the end) or by name.
///
/// Methods that take an axis accept a number or a string: `x.select(-1, 0)`, `x.select("channel", 0)`. Those that take
/// several accept any iterator of these: `x.flip([0, 1])`, `x.squeeze(0..x.ndim())`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Axis<'a> {
    /// A position. -1 is the last dimension.
    At(isize),
    /// A name.
    Named(&'a str),
}

impl<N: Integer> From<N> for Axis<'_> {
    fn from(position: N) -> Self {
        Axis::At(position.to_isize())
    }
}

impl<'a> From<&'a str> for Axis<'a> {
    fn from(name: &'a str) -> Self {
        Axis::Named(name)
    }
}

impl<'a> From<&'a String> for Axis<'a> {
    fn from(name: &'a String) -> Self {
        Axis::Named(name)
    }
}

impl fmt::Display for Axis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Axis::At(position) => write!(f, "{position}"),
            Axis::Named(name) => write!(f, "{name:?}"),
        }
    }
}

/// As it is displayed, so that errors show a list as it was given.
impl fmt::Debug for Axis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the axes of an argument that lists several.
pub(crate) fn listed<'a>(axes: impl IntoIterator<Item = impl Into<Axis<'a>>>) -> Vec<Axis<'a>> {
    axes.into_iter().map(Into::into).collect()
}

/// Returns the position of an axis. A tensor of rank 0 accepts the axes -1 and 0, as in PyTorch.
pub(crate) fn resolve_axis(header: &Header, op: Arguments<'_>, axis: Axis<'_>) -> Result<usize> {
    let axis = match axis {
        Axis::At(axis) => axis,
        Axis::Named(name) => return axis_named(header, op, name),
    };
    let rank = header.ndim().max(1);
    position_in(axis, rank).ok_or_else(|| {
        let highest = rank.saturating_sub(1);
        Error::new(
            ErrorKind::OutOfRange,
            format!("{op}: axis {axis} is out of range for {header}: axes go from -{rank} to {highest}"),
        )
    })
}

/// Returns the position, size and stride of an axis. Fails for a tensor of rank 0, which has no axes.
pub(super) fn resolve_dim(
    header: &Header,
    op: Arguments<'_>,
    axis: Axis<'_>,
) -> Result<(usize, usize, isize)> {
    let at = resolve_axis(header, op, axis)?;
    header
        .dims()
        .nth(at)
        .map(|(size, stride)| (at, size, stride))
        .ok_or_else(|| Error::new(ErrorKind::OutOfRange, format!("{op}: a tensor of rank 0 has no axes")))
}

/// Returns the positions of several axes. Fails if an axis is listed twice.
pub(super) fn resolve_axes(header: &Header, op: Arguments<'_>, axes: &[Axis<'_>]) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(axes.len());
    for &axis in axes {
        let position = resolve_axis(header, op, axis)?;
        if positions.contains(&position) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{op}: axis {axis} is listed twice (tensor: {header})"),
            ));
        }
        positions.push(position);
    }
    Ok(positions)
}

/// Resolves an index into `n` positions. A negative index counts from the end.
pub(super) fn position_in(index: isize, n: usize) -> Option<usize> {
    let from_start = if index < 0 { index.checked_add_unsigned(n)? } else { index };
    usize::try_from(from_start).ok().filter(|&position| position < n)
}
