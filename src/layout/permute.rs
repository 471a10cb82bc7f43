//! Reordering axes: `transpose`, `permute` and `movedim`.

use std::fmt::Arguments;

use stridemap_format::Header;

use super::Axis;
use super::axis::{resolve_axes, resolve_axis};
use super::dims::{to_dims, with_dims};
use crate::error::{Error, ErrorKind, Result};

/// Swaps two axes.
pub(crate) fn transpose(header: &Header, axis0: Axis<'_>, axis1: Axis<'_>) -> Result<Header> {
    let op = format_args!("transpose({axis0}, {axis1})");
    let (axis0, axis1) = (resolve_axis(header, op, axis0)?, resolve_axis(header, op, axis1)?);
    let mut dims = to_dims(header);
    if header.ndim() > 0 {
        dims.swap(axis0, axis1);
    }
    with_dims(header, op, dims, 0)
}

/// Swaps the axes of a matrix. A tensor of fewer than two axes is returned unchanged.
pub(crate) fn t(header: &Header) -> Result<Header> {
    match header.ndim() {
        0 | 1 => Ok(header.clone()),
        2 => transpose(header, Axis::At(0), Axis::At(1)),
        rank => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("t(): {header} has {rank} axes, but t takes at most 2; use transpose or permute"),
        )),
    }
}

/// Reorders the axes: axis `axes[i]` becomes axis `i`.
pub(crate) fn permute(header: &Header, axes: &[Axis<'_>]) -> Result<Header> {
    let op = format_args!("permute({axes:?})");
    if axes.len() != header.ndim() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: {} axes are listed, but {header} has {}", axes.len(), header.ndim()),
        ));
    }
    reordered(header, op, &resolve_axes(header, op, axes)?)
}

/// Moves axes to new positions. The other axes keep their order.
pub(crate) fn movedim(header: &Header, source: &[Axis<'_>], destination: &[Axis<'_>]) -> Result<Header> {
    let op = format_args!("movedim({source:?}, {destination:?})");
    let (from, to) = (resolve_axes(header, op, source)?, resolve_axes(header, op, destination)?);
    if from.len() != to.len() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: {} axes cannot move to {} positions (tensor: {header})", from.len(), to.len()),
        ));
    }
    if header.ndim() == 0 {
        return Ok(header.clone());
    }
    let mut others = (0..header.ndim()).filter(|axis| !from.contains(axis));
    let order = (0..header.ndim()).map(|place| {
        let moved = to.iter().position(|&to| to == place).and_then(|i| from.get(i).copied());
        moved.or_else(|| others.next()).unwrap_or_default()
    });
    reordered(header, op, &order.collect::<Vec<_>>())
}

fn reordered(header: &Header, op: Arguments<'_>, order: &[usize]) -> Result<Header> {
    let dims = to_dims(header);
    with_dims(header, op, order.iter().filter_map(|&axis| dims.get(axis).cloned()).collect(), 0)
}
