//! Selecting parts of a view: `select`, `narrow`, `slice`, `flip`, and subscripts.

use std::fmt::Arguments;

use super::axis::{position_in, resolve_axes, resolve_dim};
use super::dims::{Dim, distance, overflow, to_dims, with_dims};
use super::subscript::Subscript;
use stridemap_format::Header;

use super::{Axis, Index, Integers};
use crate::error::{Context, Error, ErrorKind, Result};

/// Selects one position along an axis and removes the axis.
pub(crate) fn select(header: &Header, axis: Axis<'_>, index: isize) -> Result<Header> {
    let op = format_args!("select({axis}, {index})");
    let (axis, n, stride) = resolve_dim(header, op, axis)?;
    let position = resolve_index(header, op, axis, n, index)?;
    let mut dims = to_dims(header);
    dims.remove(axis);
    with_dims(header, op, dims, distance(position, stride))
}

/// Resolves an index on an axis of size `n`.
fn resolve_index(header: &Header, op: Arguments<'_>, axis: usize, n: usize, index: isize) -> Result<usize> {
    position_in(index, n).ok_or_else(|| out_of_range(header, op, axis, n, index))
}

fn out_of_range(header: &Header, op: Arguments<'_>, axis: usize, n: usize, index: isize) -> Error {
    Error::new(
        ErrorKind::OutOfRange,
        format!("{op}: index {index} is out of range for axis {axis} with size {n} (tensor: {header})"),
    )
}

/// Selects `length` positions along an axis, beginning at `start`. Unlike `slice`, this does not clamp.
pub(crate) fn narrow(header: &Header, axis: Axis<'_>, start: isize, length: usize) -> Result<Header> {
    let op = format_args!("narrow({axis}, {start}, {length})");
    let (axis, n, stride) = resolve_dim(header, op, axis)?;
    let from_start = if start < 0 { start.checked_add_unsigned(n) } else { Some(start) };
    let position = from_start.and_then(|start| usize::try_from(start).ok());
    let fits = position.filter(|start| start.checked_add(length).is_some_and(|end| end <= n));
    let Some(position) = fits else {
        return Err(Error::new(
            ErrorKind::OutOfRange,
            format!(
                "{op}: start {start} with length {length} is out of range for axis {axis} with size {n} \
                 (tensor: {header})"
            ),
        ));
    };
    resized(header, op, axis, length, stride, distance(position, stride))
}

/// Selects the positions of a Python slice along an axis. The step may be negative.
pub(crate) fn slice(
    header: &Header,
    axis: Axis<'_>,
    start: Option<isize>,
    end: Option<isize>,
    step: isize,
) -> Result<Header> {
    let op = format_args!("slice({axis}, {})", Index::Slice { start, end, step });
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: the step must not be 0")));
    }
    let (axis, n, stride) = resolve_dim(header, op, axis)?;
    let (first, count) = slice_positions(n, start, end, step);
    // The product can only overflow if there are fewer than two positions, and then the stride is not used.
    let new_stride = stride.saturating_mul(step);
    resized(header, op, axis, count, new_stride, distance(first, stride))
}

/// Reverses the order along each of the axes.
pub(crate) fn flip(header: &Header, axes: &[Axis<'_>]) -> Result<Header> {
    let op = format_args!("flip({axes:?})");
    let flipped = resolve_axes(header, op, axes)?;
    let (mut dims, mut shift) = (to_dims(header), 0i128);
    for (axis, dim) in dims.iter_mut().enumerate() {
        if flipped.contains(&axis) {
            shift = shift.saturating_add(distance(dim.size.saturating_sub(1), dim.stride));
            dim.stride = dim.stride.saturating_neg();
        }
    }
    with_dims(header, op, dims, shift)
}

/// Returns the storage offset of the element at an index, which has one position per axis.
pub(crate) fn offset_of(header: &Header, op: &str, index: &impl Integers) -> Result<usize> {
    let op = || format!("{op}({:?})", index.to_vec());
    let count = index.each().len();
    if count != header.ndim() {
        let kind = if count < header.ndim() { ErrorKind::SizeMismatch } else { ErrorKind::OutOfRange };
        let rank = header.ndim();
        let why = format!("{}: expected one position per axis of a tensor of rank {rank} ({header})", op());
        return Err(Error::new(kind, why));
    }
    let mut offset = header.storage_offset();
    for (axis, (index, (n, stride))) in index.each().zip(header.dims()).enumerate() {
        let position = position_in(index, n)
            .ok_or_else(|| out_of_range(header, format_args!("{}", op()), axis, n, index))?;
        // Only intermediate sums can wrap, because every element is inside the storage.
        offset = offset.wrapping_add_signed(stride.wrapping_mul(position.cast_signed()));
    }
    Ok(offset)
}

/// Applies a subscript. Each entry consumes an axis, skips some, or adds one.
pub(crate) fn index(header: &Header, subscript: &[Index]) -> Result<Header> {
    let subscript_text = Subscript(subscript);
    let op = format_args!("index {subscript_text}");
    let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
    let taken = subscript.iter().filter(|entry| matches!(entry, Index::At(_) | Index::Slice { .. })).count();
    if subscript.iter().filter(|&&entry| entry == Index::Ellipsis).count() > 1 {
        return refuse(ErrorKind::InvalidArgument, "`...` occurs more than once".into());
    }
    let Some(skipped) = header.ndim().checked_sub(taken) else {
        return refuse(
            ErrorKind::OutOfRange,
            format!("{taken} indices for a tensor of rank {} ({header})", header.ndim()),
        );
    };
    let mut own_axes = header.size().iter().copied().enumerate();
    let mut view = header.clone();
    let mut axis = 0usize;
    for entry in subscript {
        let at = Axis::from(axis);
        let kept = match *entry {
            Index::At(index) => {
                if let Some((own_axis, n)) = own_axes.next() {
                    resolve_index(header, op, own_axis, n, index)?;
                }
                view = select(&view, at, index)?;
                0
            }
            Index::Slice { start, end, step } => {
                own_axes.next();
                view = slice(&view, at, start, end, step).context(op)?;
                1
            }
            Index::Ellipsis => {
                own_axes.by_ref().take(skipped).for_each(drop);
                skipped
            }
            Index::NewAxis => {
                view = insert_axis(&view, axis)?;
                1
            }
        };
        axis = axis.saturating_add(kept);
    }
    Ok(view)
}

/// Inserts an axis of size 1 at position `axis` of the result.
pub(crate) fn unsqueeze(header: &Header, axis: isize) -> Result<Header> {
    let place_count = header.ndim().saturating_add(1);
    let at = position_in(axis, place_count).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfRange,
            format!(
                "unsqueeze({axis}): the position of a new axis must be from -{place_count} to {} (tensor: {header})",
                header.ndim()
            ),
        )
    })?;
    insert_axis(header, at)
}

/// Inserts an axis of size 1 before position `axis`, with PyTorch's stride for it.
fn insert_axis(header: &Header, axis: usize) -> Result<Header> {
    let op = format_args!("unsqueeze");
    let stride = match header.dims().nth(axis) {
        Some((n, stride)) => isize::try_from(n).ok().and_then(|n| stride.checked_mul(n)),
        None => Some(1),
    };
    let mut dims = to_dims(header);
    dims.insert(axis, Dim::new(1, stride.ok_or_else(|| overflow(op))?));
    with_dims(header, op, dims, 0)
}

/// Changes the size and stride of one axis.
pub(super) fn resized(
    header: &Header,
    op: Arguments<'_>,
    axis: usize,
    n: usize,
    stride: isize,
    shift: i128,
) -> Result<Header> {
    let mut dims = to_dims(header);
    if let Some(dim) = dims.get_mut(axis) {
        (dim.size, dim.stride) = (n, stride);
    }
    with_dims(header, op, dims, shift)
}

/// Returns the first position and the number of positions, like Python's `slice.indices`.
fn slice_positions(n: usize, start: Option<isize>, end: Option<isize>, step: isize) -> (usize, usize) {
    let n = n as i128;
    // The range that both bounds are clamped to, for a step in this direction.
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n.saturating_sub(1)) };
    let clamp = |bound: isize| {
        let bound = bound as i128;
        let from_start = if bound < 0 { bound.saturating_add(n) } else { bound };
        from_start.clamp(lowest, highest)
    };
    let (default_start, default_end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let first = start.map_or(default_start, clamp);
    let stop = end.map_or(default_end, clamp);
    let step = step as i128;
    let distance = if step > 0 { stop.saturating_sub(first) } else { first.saturating_sub(stop) };
    let count = if distance <= 0 {
        0
    } else {
        distance.saturating_sub(1).checked_div(step.abs()).unwrap_or_default().saturating_add(1)
    };
    (usize::try_from(first).unwrap_or_default(), usize::try_from(count).unwrap_or_default())
}
