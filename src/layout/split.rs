//! Views that split an axis.

use std::fmt;
use std::fmt::Arguments;

use super::axis::resolve_dim;
use super::sealed::List;
use super::slice::{narrow, select, slice};
use stridemap_format::Header;

use super::{Axis, Integer};
use crate::error::{Context, Error, ErrorKind, Result};

/// How to split an axis: one number, or a list of numbers. Each operation defines their meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sections {
    /// The number of parts, or their size.
    Number(isize),
    /// The ends of the parts, or the size of each.
    List(Vec<isize>),
}

impl<N: Integer> From<N> for Sections {
    fn from(number: N) -> Self {
        Sections::Number(number.to_isize())
    }
}

impl<N: Integer> From<&[N]> for Sections {
    fn from(list: &[N]) -> Self {
        Sections::List(List::to_vec(&list))
    }
}

impl<N: Integer> From<&Vec<N>> for Sections {
    fn from(list: &Vec<N>) -> Self {
        Sections::List(List::to_vec(&list))
    }
}

impl<N: Integer> From<Vec<N>> for Sections {
    fn from(list: Vec<N>) -> Self {
        Sections::List(List::to_vec(&list))
    }
}

impl<N: Integer, const LEN: usize> From<&[N; LEN]> for Sections {
    fn from(list: &[N; LEN]) -> Self {
        Sections::List(List::to_vec(&list))
    }
}

impl<N: Integer, const LEN: usize> From<[N; LEN]> for Sections {
    fn from(list: [N; LEN]) -> Self {
        Sections::List(List::to_vec(&list))
    }
}

impl fmt::Display for Sections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sections::Number(number) => write!(f, "{number}"),
            Sections::List(list) => write!(f, "{list:?}"),
        }
    }
}

/// The limit on the dimensions of all parts together. All parts are in memory at once.
const MAX_PART_DIMS: usize = 1 << 22;

/// Splits an axis into at most `count` parts of equal size. The last part may be smaller.
pub(crate) fn chunk(header: &Header, count: usize, axis: Axis<'_>) -> Result<Vec<Header>> {
    let op = format_args!("chunk({count}, {axis})");
    let (axis, n, _) = resolve_dim(header, op, axis)?;
    if count == 0 {
        return Err(no_parts(op));
    }
    match n.div_ceil(count) {
        // PyTorch returns as many empty parts as requested.
        0 => into_parts(header, op, axis, count, |_| (0, 0)),
        size => into_parts(header, op, axis, n.div_ceil(size), |i| equal_part(i, size, n)),
    }
}

/// Splits an axis into parts of one size (the last part may be smaller), or into parts of the given sizes, which
/// must add up to the size of the axis.
pub(crate) fn split(header: &Header, sections: &Sections, axis: Axis<'_>) -> Result<Vec<Header>> {
    let op = format_args!("split({sections}, {axis})");
    let (axis, n, _) = resolve_dim(header, op, axis)?;
    let refuse = |kind, why: &str| {
        let why = format!("{op}: {why}: axis {axis} has size {n} (tensor: {header})");
        Err(Error::new(kind, why))
    };
    match sections {
        Sections::Number(size) => match (usize::try_from(*size), n) {
            (Err(_), _) => refuse(ErrorKind::InvalidArgument, "a part has a negative size"),
            (Ok(0), 0) => into_parts(header, op, axis, 1, |_| (0, 0)),
            (Ok(0), _) => refuse(ErrorKind::InvalidArgument, "parts of size 0 cannot cover the axis"),
            (Ok(size), _) => {
                into_parts(header, op, axis, n.div_ceil(size).max(1), |i| equal_part(i, size, n))
            }
        },
        Sections::List(sizes) => {
            let mut parts = Vec::with_capacity(sizes.len());
            let mut start = 0usize;
            for &size in sizes {
                let Ok(size) = usize::try_from(size) else {
                    return refuse(ErrorKind::InvalidArgument, "a part has a negative size");
                };
                parts.push((start, size));
                start = start.saturating_add(size);
            }
            if start != n {
                return refuse(ErrorKind::SizeMismatch, &format!("the sizes of the parts add up to {start}"));
            }
            into_parts(header, op, axis, parts.len(), |i| parts.get(i).copied().unwrap_or_default())
        }
    }
}

/// Splits an axis into a number of parts whose sizes differ by at most 1, larger parts first, or splits it at the
/// given positions, which are bounds of Python slices.
pub(crate) fn tensor_split(header: &Header, sections: &Sections, axis: Axis<'_>) -> Result<Vec<Header>> {
    let op = format_args!("tensor_split({sections}, {axis})");
    let (axis, n, _) = resolve_dim(header, op, axis)?;
    match sections {
        Sections::Number(count) => {
            let count = usize::try_from(*count).unwrap_or(0);
            let (Some(size), Some(larger)) = (n.checked_div(count), n.checked_rem(count)) else {
                return Err(no_parts(op));
            };
            into_parts(header, op, axis, count, |i| {
                let start = i.saturating_mul(size).saturating_add(i.min(larger));
                (start, size.saturating_add(usize::from(i < larger)))
            })
        }
        Sections::List(ends) => {
            check_count(header, op, ends.len().saturating_add(1))?;
            let starts = std::iter::once(None).chain(ends.iter().map(|&at| Some(at)));
            let ends = ends.iter().map(|&at| Some(at)).chain([None]);
            let parts = starts.zip(ends).map(|(start, end)| slice(header, axis.into(), start, end, 1));
            parts.collect::<Result<_>>().context(op)
        }
    }
}

/// Returns one view for each position along an axis, without that axis.
pub(crate) fn unbind(header: &Header, axis: Axis<'_>) -> Result<Vec<Header>> {
    let op = format_args!("unbind({axis})");
    let (axis, n, _) = resolve_dim(header, op, axis)?;
    check_count(header, op, n)?;
    (0..n)
        .map(|position| select(header, axis.into(), isize::try_from(position).unwrap_or(isize::MAX)))
        .collect()
}

fn check_count(header: &Header, op: Arguments<'_>, count: usize) -> Result<()> {
    let most = MAX_PART_DIMS.checked_div(header.ndim()).unwrap_or(MAX_PART_DIMS);
    if count <= most {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "{op}: {count} parts of {header} exceed the limit of {most}; take individual parts with select or narrow"
        ),
    ))
}

/// Makes `count` parts. `part` returns the start and the size of each.
fn into_parts(
    header: &Header,
    op: Arguments<'_>,
    axis: usize,
    count: usize,
    part: impl Fn(usize) -> (usize, usize),
) -> Result<Vec<Header>> {
    check_count(header, op, count)?;
    let narrowed = |i| {
        let (start, size) = part(i);
        narrow(header, axis.into(), isize::try_from(start).unwrap_or(isize::MAX), size)
    };
    (0..count).map(narrowed).collect::<Result<_>>().context(op)
}

fn equal_part(i: usize, size: usize, n: usize) -> (usize, usize) {
    let start = i.saturating_mul(size);
    (start, size.min(n.saturating_sub(start)))
}

fn no_parts(op: Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{op}: the number of parts must be at least 1"))
}
