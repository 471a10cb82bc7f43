//! Changing the sizes of a view: `view`, `flatten` and `unflatten`.

use std::fmt::Arguments;

use super::axis::{resolve_axis, resolve_dim};
use super::dims::{Dim, names_of, overflow, with_dims};
use super::names::DimName;
use stridemap_format::Header;

use super::Axis;
use crate::error::{Error, ErrorKind, FormatContext, Result};

/// Returns the same elements in the same order with a different size, without moving them. One size may be -1 and
/// is then inferred.
///
/// # Errors
/// `NeedsCopy` if no strides can express the view.
pub(crate) fn view(header: &Header, size: &[isize]) -> Result<Header> {
    view_by(header, format_args!("view({size:?})"), size)
}

/// Does the same as [`view`], with `op` as the name of the operation in errors.
pub(crate) fn view_by(header: &Header, op: Arguments<'_>, size: &[isize]) -> Result<Header> {
    view_with_size(header, op, &infer_size(header, op, size, header.numel())?)
}

/// Joins the axes from `start` to `end`, inclusive. A tensor of rank 0 becomes a vector of one.
///
/// # Errors
/// `NeedsCopy` if no strides can express the result.
pub(crate) fn flatten(header: &Header, start: Axis<'_>, end: Axis<'_>) -> Result<Header> {
    let op = format_args!("flatten({start}, {end})");
    let (first, last) = (resolve_axis(header, op, start)?, resolve_axis(header, op, end)?);
    if first > last {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{op}: the start, axis {first}, comes after the end, axis {last} (tensor: {header})"),
        ));
    }
    if first == last && header.ndim() > 0 {
        return Ok(header.clone());
    }
    let joined = header.size().iter().skip(first).take(last.saturating_sub(first).saturating_add(1));
    let joined =
        if joined.clone().any(|&n| n == 0) { 0 } else { joined.fold(1, |n: usize, &m| n.saturating_mul(m)) };
    let outer = |axis: &usize| *axis < first || *axis > last;
    let kept =
        |axis: usize| (header.size().get(axis).copied(), names_of(header).nth(axis).cloned().flatten());
    let mut dims: Vec<_> = (0..header.ndim()).filter(outer).map(kept).collect();
    dims.insert(first, (Some(joined), None));
    let (size, names): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
    let view = view_with_size(header, op, &size.into_iter().flatten().collect::<Vec<_>>())?;
    view.with_dim_names(names).refused_to(op)
}

/// Splits one axis into several. One size may be -1 and is then inferred.
pub(crate) fn unflatten(header: &Header, axis: Axis<'_>, sizes: &[isize]) -> Result<Header> {
    let op = format_args!("unflatten({axis}, {sizes:?})");
    let (axis, n, _) = resolve_dim(header, op, axis)?;
    if sizes.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: no size is given")));
    }
    let parts = infer_size(header, op, sizes, n)?;
    let mut size = header.size().to_vec();
    size.splice(axis..=axis, parts.iter().copied());
    let view = view_with_size(header, op, &size)?;
    // With sizes of 1, the sizes alone do not determine which axis was split.
    let mut names: Vec<_> = names_of(header).cloned().collect();
    if parts.len() > 1 {
        names.splice(axis..=axis, parts.iter().map(|_| None));
    }
    view.with_dim_names(names).refused_to(op)
}

/// [`view`] with known sizes, whose product is the number of elements.
pub(crate) fn view_with_size(header: &Header, op: Arguments<'_>, size: &[usize]) -> Result<Header> {
    let stride = view_strides(header, op, size)?.ok_or_else(|| {
        Error::new(ErrorKind::NeedsCopy, format!("{op}: {header} needs a copy; use reshape"))
    })?;
    let dims = size.iter().zip(stride).map(|(&size, stride)| Dim::new(size, stride)).collect();
    with_dims(header, op, dims, 0)?.with_dim_names(names_kept(header, size)).refused_to(op)
}

/// Infers a -1, and checks that the product of the sizes is `numel`: the number of elements, or the size of an
/// axis.
fn infer_size(header: &Header, op: Arguments<'_>, size: &[isize], numel: usize) -> Result<Vec<usize>> {
    let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
    let count_mismatch = || match header.numel() == numel {
        true => format!("{header} holds {numel} elements"),
        false => format!("the axis has size {numel} (tensor: {header})"),
    };
    if size.iter().any(|&n| n < -1) {
        return refuse(
            ErrorKind::InvalidArgument,
            format!(
                "a size is below -1; the only negative size allowed is -1, which is then inferred from {header}"
            ),
        );
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
                    "a -1 cannot be inferred beside a size of 0; give the size".into(),
                );
            }
            _ => return refuse(ErrorKind::SizeMismatch, count_mismatch()),
        },
        _ => {
            return refuse(
                ErrorKind::InvalidArgument,
                format!("-1 occurs more than once; only one size of {header} can be inferred"),
            );
        }
    };
    if left.is_none() && product != Some(numel) {
        return refuse(ErrorKind::SizeMismatch, count_mismatch());
    }
    Ok(size.iter().map(|&n| usize::try_from(n).unwrap_or(left.unwrap_or_default())).collect())
}

/// Applies PyTorch's rule. Old dimensions form a run if each stride is the next size times the next stride. One
/// or more new dimensions must fill each run exactly. Returns `None` if they do not.
fn view_strides(header: &Header, op: Arguments<'_>, size: &[usize]) -> Result<Option<Vec<isize>>> {
    if header.numel() == 0 {
        let same = size == header.size();
        let row_major = || Header::contiguous(header.dtype(), size).refused_to(op);
        return Ok(Some(if same { header.stride().to_vec() } else { row_major()?.stride().to_vec() }));
    }
    let mut strides = Vec::with_capacity(size.len());
    let mut new_dims = size.iter().rev().copied().peekable();
    let mut old_dims = header.dims().rev().peekable();
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
    // Sizes remain only if the tensor has rank 0, and all of them are 1.
    strides.extend(new_dims.map(|_| 1));
    strides.reverse();
    Ok(Some(strides))
}

/// Returns the names that dimensions keep in a view with a different size: those of dimensions that are neither
/// joined nor split.
fn names_kept(header: &Header, size: &[usize]) -> Vec<Option<DimName>> {
    if header.dim_names().is_none() {
        return Vec::new();
    }
    if size == header.size() {
        return names_of(header).cloned().collect();
    }
    // A dimension is the same if its size and the product of the sizes before it are the same.
    let mut own: Vec<_> = places(header.size()).zip(names_of(header)).collect();
    let kept = places(size).map(|place| {
        let same = own.iter().position(|&(own_place, _)| own_place == place)?;
        own.remove(same).1.clone()
    });
    // The dimensions of an empty tensor cannot be identified by their sizes.
    if header.numel() == 0 { vec![None; size.len()] } else { kept.collect() }
}

/// Returns a pair for each dimension: the product of the sizes before it, and its own size.
fn places(size: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    size.iter().scan(1usize, |before, &n| {
        let place = (*before, n);
        *before = before.saturating_mul(n);
        Some(place)
    })
}

/// Returns whether a dimension of this stride continues a run of `run` elements that are `base` apart.
fn follows(stride: isize, run: usize, base: isize) -> bool {
    isize::try_from(run).ok().and_then(|run| base.checked_mul(run)) == Some(stride)
}
