//! Model: parts along an axis.

use std::ops::Range;

use stridemap::{Axis, ErrorKind, Sections};

use super::{Expected, Model};

impl Model {
    fn parted(&self, axis: usize, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<Model> {
        parts.into_iter().map(|part| self.along(axis, part)).collect()
    }

    pub(in super::super) fn chunk(&self, count: usize, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        match (count, n) {
            (0, _) => Err(ErrorKind::InvalidArgument),
            (_, 0) => Ok(vec![self.clone(); count]),
            _ => self.split(n.div_ceil(count).into(), axis.into()),
        }
    }

    pub(in super::super) fn split(&self, sections: Sections, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        match sections {
            Sections::Number(..0) => Err(ErrorKind::InvalidArgument),
            Sections::Number(_) if n == 0 => Ok(vec![self.clone()]),
            Sections::Number(0) => Err(ErrorKind::InvalidArgument),
            Sections::Number(size) => {
                let starts = (0..n).step_by(size as usize);
                Ok(self.parted(axis, starts.map(|start| start..n.min(start + size as usize))))
            }
            Sections::List(sizes) if sizes.iter().any(|&size| size < 0) => Err(ErrorKind::InvalidArgument),
            Sections::List(sizes) => {
                let ends: Vec<usize> =
                    (0..=sizes.len()).map(|end| sizes[..end].iter().sum::<isize>() as usize).collect();
                if ends[sizes.len()] != n {
                    return Err(ErrorKind::SizeMismatch);
                }
                Ok(self.parted(axis, ends.windows(2).map(|pair| pair[0]..pair[1])))
            }
            other => panic!("{other:?} is not modelled"),
        }
    }

    pub(in super::super) fn tensor_split(&self, sections: Sections, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        match sections {
            Sections::Number(..1) => Err(ErrorKind::InvalidArgument),
            Sections::Number(count) => {
                // The larger parts are first: each part takes its share, rounded up, of what is left.
                let mut start = 0;
                Ok(self.parted(
                    axis,
                    (1..=count as usize).rev().map(|left| {
                        let part = start..start + (n - start).div_ceil(left);
                        start = part.end;
                        part
                    }),
                ))
            }
            Sections::List(cuts) => {
                let cuts: Vec<_> =
                    [None].into_iter().chain(cuts.into_iter().map(Some)).chain([None]).collect();
                cuts.windows(2).map(|pair| self.slice(axis.into(), pair[0], pair[1], 1)).collect()
            }
            other => panic!("{other:?} is not modelled"),
        }
    }

    pub(in super::super) fn unbind(&self, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        (0..n).map(|i| self.select(axis.into(), i as isize)).collect()
    }
}
