//! Changing the sizes of a view: `view`, `flatten` and `unflatten`.

use std::fmt::Arguments;

use super::names::DimName;
use super::size_and_stride::{Dim, contiguous_strides, overflow};
use super::{Axis, Layout};
use crate::error::{Error, ErrorKind, Result};

impl Layout {
    /// Returns the same elements in the same order with a different size, without moving them. One size may be -1 and
    /// is then inferred.
    ///
    /// # Errors
    /// `NeedsCopy` if no strides can express the view.
    pub(crate) fn view(&self, size: &[isize]) -> Result<Layout> {
        self.view_by(format_args!("view({size:?})"), size)
    }

    /// Does the same as [`view`](Self::view), with `op` as the name of the operation in errors.
    pub(crate) fn view_by(&self, op: Arguments<'_>, size: &[isize]) -> Result<Layout> {
        self.view_with_size(op, &self.infer_size(op, size, self.numel())?)
    }

    /// Joins the axes from `start` to `end`, inclusive. A layout of rank 0 becomes a vector of one.
    ///
    /// # Errors
    /// `NeedsCopy` if no strides can express the result.
    pub(crate) fn flatten(&self, start: Axis<'_>, end: Axis<'_>) -> Result<Layout> {
        let op = format_args!("flatten({start}, {end})");
        let (first, last) = (self.axis(op, start)?, self.axis(op, end)?);
        if first > last {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{op}: the start, axis {first}, comes after the end, axis {last} (tensor: {self})"),
            ));
        }
        if first == last && self.rank() > 0 {
            return Ok(self.clone());
        }
        let joined = self.size().iter().skip(first).take(last.saturating_sub(first).saturating_add(1));
        let joined = if joined.clone().any(|&n| n == 0) {
            0
        } else {
            joined.fold(1, |n: usize, &m| n.saturating_mul(m))
        };
        let outer = |axis: &usize| *axis < first || *axis > last;
        let kept = |axis: usize| (self.size().get(axis).copied(), self.names().nth(axis).cloned().flatten());
        let mut dims: Vec<_> = (0..self.rank()).filter(outer).map(kept).collect();
        dims.insert(first, (Some(joined), None));
        let (size, names): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let view = self.view_with_size(op, &size.into_iter().flatten().collect::<Vec<_>>())?;
        Ok(view.named(names.into_iter()))
    }

    /// Splits one axis into several. One size may be -1 and is then inferred.
    pub(crate) fn unflatten(&self, axis: Axis<'_>, sizes: &[isize]) -> Result<Layout> {
        let op = format_args!("unflatten({axis}, {sizes:?})");
        let (axis, n, _) = self.dim(op, axis)?;
        if sizes.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: no size is given")));
        }
        let parts = self.infer_size(op, sizes, n)?;
        let mut size = self.size().to_vec();
        size.splice(axis..=axis, parts.iter().copied());
        let view = self.view_with_size(op, &size)?;
        // With sizes of 1, the sizes alone do not determine which axis was split.
        let mut names: Vec<_> = self.names().cloned().collect();
        if parts.len() > 1 {
            names.splice(axis..=axis, parts.iter().map(|_| None));
        }
        Ok(view.named(names.into_iter()))
    }

    /// [`view`](Self::view) with known sizes, whose product is the number of elements.
    pub(crate) fn view_with_size(&self, op: Arguments<'_>, size: &[usize]) -> Result<Layout> {
        let stride = self.view_strides(op, size)?.ok_or_else(|| {
            Error::new(ErrorKind::NeedsCopy, format!("{op}: {self} needs a copy; use reshape"))
        })?;
        let dims = size.iter().zip(stride).map(|(&size, stride)| Dim::new(size, stride)).collect();
        Ok(self.with_dims(op, dims, 0)?.named(self.names_kept(size).into_iter()))
    }

    /// Infers a -1, and checks that the product of the sizes is `numel`: the number of elements, or the size of an
    /// axis.
    fn infer_size(&self, op: Arguments<'_>, size: &[isize], numel: usize) -> Result<Vec<usize>> {
        let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
        let count_mismatch = || match self.numel() == numel {
            true => format!("{self} holds {numel} elements"),
            false => format!("the axis has size {numel} (tensor: {self})"),
        };
        if size.iter().any(|&n| n < -1) {
            return refuse(
                ErrorKind::InvalidArgument,
                format!(
                    "a size is below -1; the only negative size allowed is -1, which is then inferred from {self}"
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
                    format!("-1 occurs more than once; only one size of {self} can be inferred"),
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
    fn view_strides(&self, op: Arguments<'_>, size: &[usize]) -> Result<Option<Vec<isize>>> {
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
        // Sizes remain only if the layout has rank 0, and all of them are 1.
        strides.extend(new_dims.map(|_| 1));
        strides.reverse();
        Ok(Some(strides))
    }

    /// Returns the names that dimensions keep in a view with a different size: those of dimensions that are neither
    /// joined nor split.
    fn names_kept(&self, size: &[usize]) -> Vec<Option<DimName>> {
        if !self.has_names() {
            return Vec::new();
        }
        if size == self.size() {
            return self.names().cloned().collect();
        }
        // A dimension is the same if its size and the product of the sizes before it are the same.
        let mut own: Vec<_> = places(self.size()).zip(self.names()).collect();
        let kept = places(size).map(|place| {
            let same = own.iter().position(|&(own_place, _)| own_place == place)?;
            own.remove(same).1.clone()
        });
        // The dimensions of an empty layout cannot be identified by their sizes.
        if self.numel() == 0 { vec![None; size.len()] } else { kept.collect() }
    }
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
