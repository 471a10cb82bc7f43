//! Model: selections of elements, and orders of axes.

use stridemap::{Axis, ErrorKind, Index};

use super::{Expected, Model, coordinates, means, place};

impl Model {
    pub(in super::super) fn select(&self, axis: Axis<'_>, index: isize) -> Expected<Model> {
        let (axis, n) = self.dim(axis)?;
        Ok(self.along(axis, [place(index, n)?]).without(&[axis]))
    }

    pub(in super::super) fn narrow(&self, axis: Axis<'_>, start: isize, length: usize) -> Expected<Model> {
        let (axis, n) = self.dim(axis)?;
        let start = (0..=n).find(|&i| means(start, i, n)).ok_or(ErrorKind::OutOfRange)?;
        if start + length <= n {
            Ok(self.along(axis, start..start + length))
        } else {
            Err(ErrorKind::OutOfRange)
        }
    }

    pub(in super::super) fn slice(
        &self,
        axis: Axis<'_>,
        start: Option<isize>,
        end: Option<isize>,
        step: isize,
    ) -> Expected<Model> {
        if step == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        let (axis, n) = self.dim(axis)?;
        let is_before = |i: usize, bound: isize| {
            let (i, bound) = (i as isize, if bound < 0 { bound + n as isize } else { bound });
            if step > 0 { i < bound } else { i > bound }
        };
        let has_started = |&i: &usize| start.is_none_or(|start| !is_before(i, start));
        let goes_on = |&i: &usize| end.is_none_or(|end| is_before(i, end));
        let mut positions: Vec<usize> = (0..n).filter(has_started).filter(goes_on).collect();
        if step < 0 {
            positions.reverse();
        }
        Ok(self.along(axis, positions.into_iter().step_by(step.unsigned_abs())))
    }

    pub(in super::super) fn index(&self, subscript: &[Index]) -> Expected<Model> {
        let count = |is: fn(&Index) -> bool| subscript.iter().filter(|at| is(at)).count();
        let taken = count(|at| matches!(at, Index::At(_) | Index::Slice { .. }));
        if count(|&at| at == Index::Ellipsis) > 1 {
            return Err(ErrorKind::InvalidArgument);
        }
        if taken > self.size.len() {
            return Err(ErrorKind::OutOfRange);
        }
        let (mut view, mut axis) = (self.clone(), 0);
        for &at in subscript {
            match at {
                Index::At(index) => view = view.select(axis.into(), index)?,
                Index::Slice { start, end, step } => view = view.slice(axis.into(), start, end, step)?,
                Index::NewAxis => view = view.with_axis(axis, None),
                Index::Ellipsis => axis += self.size.len() - taken,
                other => panic!("{other:?} is not modelled"),
            }
            axis += usize::from(matches!(at, Index::Slice { .. } | Index::NewAxis));
        }
        Ok(view)
    }

    pub(in super::super) fn diagonal(
        &self,
        offset: isize,
        axis0: Axis<'_>,
        axis1: Axis<'_>,
    ) -> Expected<Model> {
        let ((row, n_rows), (column, n_columns)) = (self.dim(axis0)?, self.dim(axis1)?);
        if row == column {
            return Err(ErrorKind::InvalidArgument);
        }
        let on_it: Vec<Vec<usize>> = coordinates(&[n_rows, n_columns])
            .filter(|at| at[1] as isize - at[0] as isize == offset)
            .collect();
        let others: Vec<usize> = (0..self.size.len()).filter(|&axis| axis != row && axis != column).collect();
        let mut dims: Vec<_> = others.iter().map(|&axis| self.dims()[axis]).collect();
        dims.push((on_it.len(), None));
        Ok(self.gathered(&dims, |at| {
            let mut source = vec![0; self.size.len()];
            for (&axis, &i) in others.iter().zip(at) {
                source[axis] = i;
            }
            (source[row], source[column]) = (on_it[at[others.len()]][0], on_it[at[others.len()]][1]);
            source
        }))
    }

    pub(in super::super) fn transpose(&self, axis0: Axis<'_>, axis1: Axis<'_>) -> Expected<Model> {
        let (axis0, axis1, mut axes) = (self.axis(axis0)?, self.axis(axis1)?, self.axes());
        if !axes.is_empty() {
            axes.swap(axis0, axis1);
        }
        Ok(self.picked(&axes))
    }

    pub(in super::super) fn t(&self) -> Expected<Model> {
        match self.size.len() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0.into(), 1.into()),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    pub(in super::super) fn permute(&self, order: Vec<Axis<'_>>) -> Expected<Model> {
        if order.len() != self.size.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(self.reordered(&self.distinct(order)?))
    }

    pub(in super::super) fn movedim(
        &self,
        source: Vec<Axis<'_>>,
        destination: Vec<Axis<'_>>,
    ) -> Expected<Model> {
        let (from, to) = (self.distinct(source)?, self.distinct(destination)?);
        if from.len() != to.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        // The axes that stay, in order. Then each moved axis is inserted at its place, in ascending order of places.
        let mut order: Vec<usize> = (0..self.size.len()).filter(|axis| !from.contains(axis)).collect();
        let mut moves: Vec<_> =
            to.into_iter().zip(from).filter(|&(_, axis)| axis < self.size.len()).collect();
        moves.sort_unstable();
        for (to, axis) in moves {
            order.insert(to, axis);
        }
        Ok(self.reordered(&order))
    }

    pub(in super::super) fn flip(&self, flipped: Vec<Axis<'_>>) -> Expected<Model> {
        let (flipped, mut axes) = (self.distinct(flipped)?, self.axes());
        axes.iter_mut()
            .filter(|(axis, _)| flipped.contains(axis))
            .for_each(|(_, positions)| positions.reverse());
        Ok(self.picked(&axes))
    }
}
