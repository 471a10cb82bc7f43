//! Removing axes of size 1 and repeating them: `squeeze` and `expand`.

use super::axis::resolve_axes;
use super::dims::{Dim, overflow, to_dims, with_dims};
use stridemap_format::Header;

use super::Axis;
use crate::error::{Error, ErrorKind, Result};

/// Removes axes of size 1 and ignores axes of other sizes, as in PyTorch.
pub(crate) fn squeeze(header: &Header, axes: &[Axis<'_>]) -> Result<Header> {
    let op = format_args!("squeeze({axes:?})");
    let squeezed = resolve_axes(header, op, axes)?;
    let is_kept = |(axis, dim): &(usize, Dim)| dim.size != 1 || !squeezed.contains(axis);
    let dims = to_dims(header).into_iter().enumerate().filter(is_kept).map(|(_, dim)| dim);
    with_dims(header, op, dims.collect(), 0)
}

/// Adds leading axes and repeats axes of size 1, which then have a stride of 0. A size of -1 keeps the current
/// size.
pub(crate) fn expand(header: &Header, size: &[isize]) -> Result<Header> {
    let op = format_args!("expand({size:?})");
    let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
    let Some(added) = size.len().checked_sub(header.ndim()) else {
        return refuse(
            ErrorKind::SizeMismatch,
            format!("{} sizes for a tensor of rank {} ({header})", size.len(), header.ndim()),
        );
    };
    let own_dims = to_dims(header);
    let mut dims: Vec<Dim> = Vec::with_capacity(size.len());
    for (axis, &wanted) in size.iter().enumerate().rev() {
        let own = axis.checked_sub(added).and_then(|axis| own_dims.get(axis).cloned());
        let mut dim = match (own, dims.last(), wanted) {
            (Some(own), _, _) => own,
            (None, _, -1) => {
                return refuse(
                    ErrorKind::InvalidArgument,
                    format!(
                        "axis {axis} is new, so its size cannot be -1, which keeps an existing size \
                         (tensor: {header})"
                    ),
                );
            }
            // PyTorch gives a new axis this stride.
            (None, Some(inner), _) if header.ndim() > 0 => {
                let n = isize::try_from(inner.size).ok();
                let stride = n.and_then(|n| inner.stride.checked_mul(n));
                Dim::new(1, stride.ok_or_else(|| overflow(op))?)
            }
            (None, ..) => Dim::new(1, 0),
        };
        match usize::try_from(wanted) {
            Ok(n) if n == dim.size => {}
            Ok(n) if dim.size == 1 => (dim.size, dim.stride) = (n, 0),
            Err(_) if wanted == -1 => {}
            Err(_) => {
                return refuse(
                    ErrorKind::InvalidArgument,
                    format!(
                        "size {wanted} for axis {axis} is negative; only -1 is allowed, which keeps the size \
                         (tensor: {header})"
                    ),
                );
            }
            Ok(n) => {
                return refuse(
                    ErrorKind::SizeMismatch,
                    format!(
                        "axis {axis} cannot be expanded to size {n}: its size is {}, not 1 (tensor: {header})",
                        dim.size
                    ),
                );
            }
        }
        dims.push(dim);
    }
    dims.reverse();
    with_dims(header, op, dims, 0)
}
