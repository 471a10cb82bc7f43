//! Names of dimensions, by the rules that PyTorch had until 2.13.

use std::fmt::Arguments;
use std::sync::Arc;

use super::dims::{Dim, names_of, to_dims, with_dims};
use crate::error::{Context, Error, ErrorKind, FormatContext, Result};
use stridemap_format::Header;

pub(crate) type DimName = Arc<str>;

/// Stands for all dimensions that a list of names does not contain.
const ELLIPSIS: Option<&str> = Some("...");

/// Returns the position of the dimension with a name.
pub(super) fn axis_named(header: &Header, op: Arguments<'_>, name: &str) -> Result<usize> {
    names_of(header).position(|own| own.as_deref() == Some(name)).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfRange,
            format!("{op}: no dimension is named {name:?}: {header} has the names {}", shown_names(header)),
        )
    })
}

/// Names unnamed dimensions. A dimension that already has a name must be listed under it.
pub(crate) fn refine_names(header: &Header, names: &[Option<&str>]) -> Result<Header> {
    let list = shown(names.iter().copied());
    let op = format_args!("refine_names({list})");
    let refined = filled_in(header, op, names)?;
    for (own, name) in names_of(header).zip(&refined) {
        if own.is_some() && own != name {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{op}: the names {} would change, but refine_names only adds names; use rename",
                    shown_names(header)
                ),
            ));
        }
    }
    header.clone().with_dim_names(refined).refused_to(op)
}

/// Replaces the names of all dimensions. `None` removes a name.
pub(crate) fn rename(header: &Header, names: &[Option<&str>]) -> Result<Header> {
    let list = shown(names.iter().copied());
    let op = format_args!("rename({list})");
    header.clone().with_dim_names(filled_in(header, op, names)?).refused_to(op)
}

/// Reorders dimensions to match a list of names. A name that no dimension has adds a dimension of size 1.
pub(crate) fn align_to(header: &Header, names: &[Option<&str>]) -> Result<Header> {
    let list = shown(names.iter().copied());
    let op = format_args!("align_to({list})");
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {why}")));
    if names.iter().filter(|&&name| name == ELLIPSIS).count() > 1 {
        return refuse("`...` is listed twice".into());
    }
    let (listed, rest): (Vec<Dim>, Vec<Dim>) = to_dims(header)
        .into_iter()
        .partition(|dim| dim.name.is_some() && names.contains(&dim.name.as_deref()));
    if !rest.is_empty() && !names.contains(&ELLIPSIS) {
        return refuse(format!(
            "the names {} are not all listed; add `...` for the others",
            shown_names(header)
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
            None => Dim { size: 1, stride: 1, name: Some(text.into()) },
        });
    }
    with_dims(header, op, dims, 0)
}

/// [`align_to`] the names of another tensor.
pub(crate) fn align_as(header: &Header, other: &Header) -> Result<Header> {
    align_to(header, &names_of(other).map(Option::as_deref).collect::<Vec<_>>()).context("align_as")
}

/// Checks that the names of two tensors allow elementwise operations. Dimensions are aligned from the last one.
/// Two aligned names must be equal, and no name may occur in both tensors without being aligned.
pub(crate) fn check_names_match(header: &Header, op: &str, other: &Header) -> Result<()> {
    let (Some(own), Some(others)) = (header.dim_names(), other.dim_names()) else { return Ok(()) };
    let is_elsewhere = |name: &Option<DimName>, place: usize, names: &[Option<DimName>]| {
        name.is_some() && names.iter().rev().enumerate().any(|(at, other)| at != place && other == name)
    };
    for place in 0..own.len().max(others.len()) {
        let [a, b] = [own, others].map(|names| names.iter().rev().nth(place).unwrap_or(&None));
        let differ = a.is_some() && b.is_some() && a != b;
        if differ || is_elsewhere(a, place, others) || is_elsewhere(b, place, own) {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!(
                    "{op}: dimensions named {} do not match those named {}; use align_as or rename",
                    shown_names(header),
                    shown_names(other)
                ),
            ));
        }
    }
    Ok(())
}

/// Replaces the `...` in a list, if there is one, so that the list has one entry for each dimension.
fn filled_in(header: &Header, op: Arguments<'_>, names: &[Option<&str>]) -> Result<Vec<Option<DimName>>> {
    let own: Vec<&Option<DimName>> = names_of(header).collect();
    let listed = names.iter().filter(|&&name| name != ELLIPSIS).count();
    let covered = match names.len().saturating_sub(listed) {
        0 if listed == own.len() => 0,
        1 if listed <= own.len() => own.len().saturating_sub(listed),
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{op}: {listed} names for a tensor of rank {} ({header})", own.len()),
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
            Some(name) => filled.push(Some(name.into())),
            None => filled.push(None),
        }
    }
    Ok(filled)
}

fn shown_names(header: &Header) -> String {
    shown(names_of(header).map(Option::as_deref))
}

fn shown<'a>(names: impl Iterator<Item = Option<&'a str>>) -> String {
    let names: Vec<String> =
        names.map(|name| name.map_or("None".into(), |name| format!("{name:?}"))).collect();
    format!("[{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stridemap_format::DType;

    fn named(names: &[Option<&str>]) -> Header {
        let size: Vec<usize> = (2..).take(names.len()).collect();
        rename(&Header::contiguous(DType::U8, &size).unwrap(), names).unwrap()
    }

    fn texts(header: &Header) -> Vec<Option<&str>> {
        names_of(header).map(Option::as_deref).collect()
    }

    #[test]
    fn refining_adds_names_and_changes_none() {
        let header = named(&[None, Some("c"), None]);
        let refined = refine_names(&header, &[Some("n"), Some("..."), Some("w")]).unwrap();
        assert_eq!(texts(&refined), [Some("n"), Some("c"), Some("w")]);
        assert_eq!(texts(&refine_names(&header, &[Some("...")]).unwrap()), [None, Some("c"), None]);
        let kind = |names: &[Option<&str>]| refine_names(&header, names).unwrap_err().kind();
        assert_eq!(kind(&[Some("n"), None, Some("w")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("x"), Some("w")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("c"), Some("n")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("n"), Some("c")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("..."), Some("...")]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some("a b"), Some("...")]), ErrorKind::InvalidArgument);
    }

    #[test]
    fn aligning_orders_and_adds_dimensions() {
        let header = named(&[Some("n"), Some("c"), Some("h")]);
        let aligned = align_to(&header, &[Some("h"), Some("w"), Some("...")]).unwrap();
        assert_eq!(texts(&aligned), [Some("h"), Some("w"), Some("n"), Some("c")]);
        assert_eq!((aligned.size(), aligned.stride()), (&[4, 1, 2, 3][..], &[1, 1, 12, 4][..]));
        assert_eq!(
            align_to(&header, &[Some("h"), Some("n")]).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert_eq!(align_to(&header, &[Some("..."), None]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn aligned_dimensions_must_have_equal_names() {
        let meet =
            |a: &[Option<&str>], b: &[Option<&str>]| check_names_match(&named(a), "add_", &named(b)).is_ok();
        assert!(meet(&[Some("n"), Some("c")], &[Some("c")]));
        assert!(meet(&[Some("n"), Some("c")], &[None]));
        assert!(meet(&[Some("n"), None], &[Some("n"), Some("c")]));
        assert!(!meet(&[Some("n"), Some("c")], &[Some("n")]));
        assert!(!meet(&[Some("n"), Some("c")], &[Some("c"), Some("n")]));
        assert!(!meet(&[Some("n"), None], &[None, Some("n")]));
    }
}
