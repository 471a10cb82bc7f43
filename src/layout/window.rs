//! Windows, diagonals, and views with arbitrary strides.

use super::axis::{resolve_axis, resolve_dim};
use super::dims::{Dim, distance, overflow, to_dims, with_dims};
use stridemap_format::Header;

use super::Axis;
use crate::error::{Context, Error, ErrorKind, FormatContext, Result};

/// Returns all windows of `size` along an axis, `step` apart. The axis then has one position per window, and a new
/// last axis of length `size` holds the elements of each.
pub(crate) fn unfold(header: &Header, axis: Axis<'_>, size: usize, step: usize) -> Result<Header> {
    let op = format_args!("unfold({axis}, {size}, {step})");
    let axis = resolve_axis(header, op, axis)?;
    // A tensor without axes counts as an axis with one position.
    let (n, stride) = header.dims().nth(axis).unwrap_or((1, 1));
    let windows = n.checked_sub(size).and_then(|rest| rest.checked_div(step));
    let Some(count) = windows.and_then(|last| last.checked_add(1)) else {
        let (kind, why) = if step == 0 {
            (ErrorKind::InvalidArgument, "the step must not be 0".to_owned())
        } else {
            let why = format!("a window of {size} does not fit axis {axis} with size {n} (tensor: {header})");
            (ErrorKind::OutOfRange, why)
        };
        return Err(Error::new(kind, format!("{op}: {why}")));
    };
    let mut dims = to_dims(header);
    if let Some(dim) = dims.get_mut(axis) {
        // As for `slice`, the product can only overflow if there is one window, and then the stride is not used.
        let step = isize::try_from(step).unwrap_or(isize::MAX);
        (dim.size, dim.stride) = (count, stride.saturating_mul(step));
    }
    dims.push(Dim::new(size, stride));
    with_dims(header, op, dims, 0)
}

/// Returns all windows of the given size along each of the axes, 1 apart. New last axes, of these sizes,
/// hold the elements of each window.
pub(crate) fn sliding_window_view(header: &Header, window: &[usize], axes: &[Axis<'_>]) -> Result<Header> {
    let op = format_args!("sliding_window_view({window:?}, {axes:?})");
    // An axis may be listed twice, for windows of windows.
    let slid =
        axes.iter().map(|&axis| Ok(resolve_dim(header, op, axis)?.0)).collect::<Result<Vec<usize>>>()?;
    if slid.len() != window.len() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: {} window sizes for {} axes (tensor: {header})", window.len(), slid.len()),
        ));
    }
    let mut view = header.clone();
    for (axis, &size) in slid.into_iter().zip(window) {
        view = unfold(&view, axis.into(), size, 1).context(op)?;
    }
    Ok(view)
}

/// Returns the diagonal between two axes. It replaces both and becomes the last axis.
pub(crate) fn diagonal(header: &Header, offset: isize, axis0: Axis<'_>, axis1: Axis<'_>) -> Result<Header> {
    let op = format_args!("diagonal({offset}, {axis0}, {axis1})");
    let (axis0, n0, stride0) = resolve_dim(header, op, axis0)?;
    let (axis1, n1, stride1) = resolve_dim(header, op, axis1)?;
    if axis0 == axis1 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: the two axes of {header} must differ"),
        ));
    }
    let (skipped, stride) = (offset.unsigned_abs(), if offset < 0 { stride0 } else { stride1 });
    let n = if offset < 0 { n0.saturating_sub(skipped).min(n1) } else { n1.saturating_sub(skipped).min(n0) };
    let mut dims = to_dims(header);
    dims.remove(axis0.max(axis1));
    dims.remove(axis0.min(axis1));
    // With fewer than two elements, the sum does not matter.
    let step = if n > 1 { stride0.checked_add(stride1) } else { Some(stride0.saturating_add(stride1)) };
    dims.push(Dim::new(n, step.ok_or_else(|| overflow(op))?));
    with_dims(header, op, dims, distance(skipped, stride))
}

/// Returns a header with the given size, stride and offset. The caller checks that it stays inside the storage.
pub(crate) fn as_strided(
    header: &Header,
    size: &[usize],
    stride: &[isize],
    offset: Option<usize>,
) -> Result<Header> {
    let op = format!("as_strided({size:?}, {stride:?}, {})", offset.map_or("None".into(), |n| n.to_string()));
    if size.len() != stride.len() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: {} sizes and {} strides", size.len(), stride.len()),
        ));
    }
    Header::new(header.dtype(), size, stride, offset.unwrap_or(header.storage_offset())).refused_to(op)
}
