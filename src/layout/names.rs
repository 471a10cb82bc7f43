//! Names of dimensions, by the rules that PyTorch had until 2.13.

use std::fmt::Arguments;
use std::sync::Arc;

use stridemap_format::check_dim_name;

use super::Layout;
use super::size_and_stride::Dim;
use crate::error::{Context, Error, ErrorKind, FormatContext, Result};

pub(crate) type DimName = Arc<str>;

/// Stands for all dimensions that a list of names does not contain.
const ELLIPSIS: Option<&str> = Some("...");

impl Layout {
    /// Returns the position of the dimension with a name.
    pub(super) fn axis_named(&self, op: Arguments<'_>, name: &str) -> Result<usize> {
        self.names().position(|own| own.as_deref() == Some(name)).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfRange,
                format!("{op}: no dimension is named {name:?}: {self} has the names {}", self.shown_names()),
            )
        })
    }

    /// Names unnamed dimensions. A dimension that already has a name must be listed under it.
    pub(crate) fn refine_names(&self, names: &[Option<&str>]) -> Result<Layout> {
        let list = shown(names.iter().copied());
        let op = format_args!("refine_names({list})");
        let refined = self.filled_in(op, names)?;
        for (own, name) in self.names().zip(&refined) {
            if own.is_some() && own != name {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{op}: the names {} would change, but refine_names only adds names; use rename",
                        self.shown_names()
                    ),
                ));
            }
        }
        Ok(self.clone().named(refined.into_iter()))
    }

    /// Replaces the names of all dimensions. `None` removes a name.
    pub(crate) fn rename(&self, names: &[Option<&str>]) -> Result<Layout> {
        let list = shown(names.iter().copied());
        let op = format_args!("rename({list})");
        let names = self.filled_in(op, names)?;
        Ok(self.clone().named(names.into_iter()))
    }

    /// Reorders dimensions to match a list of names. A name that no dimension has adds a dimension of size 1.
    pub(crate) fn align_to(&self, names: &[Option<&str>]) -> Result<Layout> {
        let list = shown(names.iter().copied());
        let op = format_args!("align_to({list})");
        let refuse = |why: String| Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {why}")));
        check_distinct(op, names.iter().copied())?;
        let (listed, rest): (Vec<Dim>, Vec<Dim>) = self
            .to_dims()
            .into_iter()
            .partition(|dim| dim.name.is_some() && names.contains(&dim.name.as_deref()));
        if !rest.is_empty() && !names.contains(&ELLIPSIS) {
            return refuse(format!(
                "the names {} are not all listed; add `...` for the others",
                self.shown_names()
            ));
        }
        let mut dims = Vec::with_capacity(names.len());
        for &name in names {
            if name == ELLIPSIS {
                dims.extend(rest.iter().cloned());
                continue;
            }
            let Some(text) = name else { return refuse("each entry must be a name or `...`".into()) };
            let own = listed.iter().find(|dim| dim.name.as_deref() == name);
            dims.push(match own {
                Some(dim) => dim.clone(),
                None => Dim { size: 1, stride: 1, name: Some(checked(op, text)?) },
            });
        }
        self.with_dims(op, dims, 0)
    }

    /// [`align_to`](Self::align_to) the names of another layout.
    pub(crate) fn align_as(&self, other: &Layout) -> Result<Layout> {
        self.align_to(&other.names().map(Option::as_deref).collect::<Vec<_>>()).context("align_as")
    }

    /// Checks that the names of two tensors allow elementwise operations. Dimensions are aligned from the last one.
    /// Two aligned names must be equal, and no name may occur in both tensors without being aligned.
    pub(crate) fn check_names_match(&self, op: &str, other: &Layout) -> Result<()> {
        if !self.has_names() || !other.has_names() {
            return Ok(());
        }
        let from_last = |layout: &Layout| -> Vec<Option<DimName>> {
            let mut names: Vec<_> = layout.names().cloned().collect();
            names.reverse();
            names
        };
        let (own, others) = (from_last(self), from_last(other));
        let is_elsewhere = |name: &Option<DimName>, place: usize, names: &[Option<DimName>]| {
            name.is_some() && names.iter().enumerate().any(|(at, other)| at != place && other == name)
        };
        for place in 0..own.len().max(others.len()) {
            let (a, b) = (own.get(place).unwrap_or(&None), others.get(place).unwrap_or(&None));
            let differ = a.is_some() && b.is_some() && a != b;
            if differ || is_elsewhere(a, place, &others) || is_elsewhere(b, place, &own) {
                return Err(Error::new(
                    ErrorKind::SizeMismatch,
                    format!(
                        "{op}: dimensions named {} do not match those named {}; use align_as or rename",
                        self.shown_names(),
                        other.shown_names()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Replaces the `...` in a list, if there is one, so that the list has one entry for each dimension.
    fn filled_in(&self, op: Arguments<'_>, names: &[Option<&str>]) -> Result<Vec<Option<DimName>>> {
        let own: Vec<&Option<DimName>> = self.names().collect();
        let listed = names.iter().filter(|&&name| name != ELLIPSIS).count();
        let covered = match names.len().saturating_sub(listed) {
            0 if listed == own.len() => 0,
            1 if listed <= own.len() => own.len().saturating_sub(listed),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{op}: {listed} names for a tensor of rank {} ({self})", own.len()),
                ));
            }
        };
        let mut filled: Vec<Option<DimName>> = Vec::with_capacity(own.len());
        for &name in names {
            match name {
                ELLIPSIS => {
                    let start = filled.len();
                    filled.extend(own.iter().skip(start).take(covered).map(|&name| name.clone()));
                }
                Some(name) => filled.push(Some(checked(op, name)?)),
                None => filled.push(None),
            }
        }
        check_distinct(op, filled.iter().map(Option::as_deref))?;
        Ok(filled)
    }

    fn shown_names(&self) -> String {
        shown(self.names().map(Option::as_deref))
    }
}

fn checked(op: Arguments<'_>, name: &str) -> Result<DimName> {
    check_dim_name(name).refused_to(op)?;
    Ok(name.into())
}

fn check_distinct<'a>(op: Arguments<'_>, names: impl Iterator<Item = Option<&'a str>> + Clone) -> Result<()> {
    let twice = names
        .clone()
        .flatten()
        .enumerate()
        .find(|(at, name)| names.clone().flatten().take(*at).any(|n| n == *name));
    twice.map_or(Ok(()), |(_, name)| Err(doubled(op, name)))
}

fn doubled(op: Arguments<'_>, name: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{op}: {name:?} appears twice"))
}

fn shown<'a>(names: impl Iterator<Item = Option<&'a str>>) -> String {
    let names: Vec<String> =
        names.map(|name| name.map_or("None".into(), |name| format!("{name:?}"))).collect();
    format!("[{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[Option<&str>]) -> Layout {
        let size: Vec<usize> = (2..).take(names.len()).collect();
        Layout::contiguous(&size).unwrap().rename(names).unwrap()
    }

    fn names_of(layout: &Layout) -> Vec<Option<&str>> {
        layout.names().map(Option::as_deref).collect()
    }

    #[test]
    fn refining_adds_names_and_changes_none() {
        let layout = named(&[None, Some("c"), None]);
        let refined = layout.refine_names(&[Some("n"), Some("..."), Some("w")]).unwrap();
        assert_eq!(names_of(&refined), [Some("n"), Some("c"), Some("w")]);
        assert_eq!(names_of(&layout.refine_names(&[Some("...")]).unwrap()), [None, Some("c"), None]);
        let kind = |names: &[Option<&str>]| layout.refine_names(names).unwrap_err().kind();
        assert_eq!(kind(&[Some("n"), None, Some("w")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("x"), Some("w")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("c"), Some("n")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("c")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("..."), Some("...")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("a b"), Some("...")]), ErrorKind::InvalidArgument);
    }

    #[test]
    fn aligning_orders_and_adds_dimensions() {
        let layout = named(&[Some("n"), Some("c"), Some("h")]);
        let aligned = layout.align_to(&[Some("h"), Some("w"), Some("...")]).unwrap();
        assert_eq!(names_of(&aligned), [Some("h"), Some("w"), Some("n"), Some("c")]);
        assert_eq!((aligned.size(), aligned.stride()), (&[4, 1, 2, 3][..], &[1, 1, 12, 4][..]));
        assert_eq!(layout.align_to(&[Some("h"), Some("n")]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(layout.align_to(&[Some("..."), None]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn aligned_dimensions_must_have_equal_names() {
        let meet =
            |a: &[Option<&str>], b: &[Option<&str>]| named(a).check_names_match("add_", &named(b)).is_ok();
        assert!(meet(&[Some("n"), Some("c")], &[Some("c")]));
        assert!(meet(&[Some("n"), Some("c")], &[None]));
        assert!(meet(&[Some("n"), None], &[Some("n"), Some("c")]));
        assert!(!meet(&[Some("n"), Some("c")], &[Some("n")]));
        assert!(!meet(&[Some("n"), Some("c")], &[Some("c"), Some("n")]));
        assert!(!meet(&[Some("n"), None], &[None, Some("n")]));
    }
}
