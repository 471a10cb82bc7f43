//! What view operations give, by coordinates alone.

use std::collections::BTreeSet;
use std::rc::Rc;

use stridemap::{ErrorKind, Index};

/// What the model expects of an operation: this, or a refusal of this kind.
pub(super) type Expected<T> = Result<T, ErrorKind>;

/// A storage, and for each element of a tensor, in logical order, its place in there.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) storage: Rc<Vec<i64>>,
    pub(super) is_borrowable: bool,
    pub(super) size: Vec<usize>,
    pub(super) ids: Vec<usize>,
}

/// The operations, by their names in `Tensor`.
impl Model {
    pub(super) fn new(storage: Vec<i64>, size: &[usize], is_in_memory: bool) -> Self {
        let ids = (0..storage.len()).collect();
        Model { storage: Rc::new(storage), is_borrowable: is_in_memory, size: size.to_vec(), ids }
    }

    pub(super) fn values(&self) -> Vec<i64> {
        self.ids.iter().map(|&id| self.storage[id]).collect()
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.ids.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    /// Rank 0 has an axis, too, for operations that take nothing from it.
    pub(super) fn axis(&self, axis: isize) -> Expected<usize> {
        place(axis, self.size.len().max(1))
    }

    fn distinct(&self, axes: &[isize]) -> Expected<Vec<usize>> {
        let axes = axes.iter().map(|&axis| self.axis(axis)).collect::<Expected<Vec<_>>>()?;
        let is_distinct = axes.iter().collect::<BTreeSet<_>>().len() == axes.len();
        if is_distinct { Ok(axes) } else { Err(ErrorKind::InvalidArgument) }
    }

    /// The axes as they are, each with all of its positions.
    fn axes(&self) -> Vec<(usize, Vec<usize>)> {
        self.size.iter().enumerate().map(|(axis, &n)| (axis, (0..n).collect())).collect()
    }

    /// The axes in another order, each with some of its positions.
    fn picked(&self, axes: &[(usize, Vec<usize>)]) -> Model {
        let size: Vec<usize> = axes.iter().map(|(_, positions)| positions.len()).collect();
        let id = |at: Vec<usize>| {
            let mut source = at.clone();
            for ((axis, positions), i) in axes.iter().zip(at) {
                source[*axis] = positions[i];
            }
            self.ids[number(&source, &self.size)]
        };
        Model { ids: coordinates(&size).map(id).collect(), size, ..self.clone() }
    }

    /// Other positions along one axis.
    fn along(&self, axis: isize, positions: impl Fn(usize) -> Expected<Vec<usize>>) -> Expected<Model> {
        let (axis, mut axes) = (self.axis(axis)?, self.axes());
        let n = *self.size.get(axis).ok_or(ErrorKind::OutOfRange)?;
        axes[axis].1 = positions(n)?;
        Ok(self.picked(&axes))
    }

    pub(super) fn select(&self, axis: isize, index: isize) -> Expected<Model> {
        let mut view = self.along(axis, |n| Ok(vec![place(index, n)?]))?;
        view.size.remove(self.axis(axis)?);
        Ok(view)
    }

    pub(super) fn narrow(&self, axis: isize, start: isize, length: usize) -> Expected<Model> {
        self.along(axis, |n| {
            let start = (0..=n).find(|&i| means(start, i, n)).ok_or(ErrorKind::OutOfRange)?;
            (start..start + length).map(|i| if i < n { Ok(i) } else { Err(ErrorKind::OutOfRange) }).collect()
        })
    }

    pub(super) fn slice(
        &self,
        axis: isize,
        start: Option<isize>,
        end: Option<isize>,
        step: isize,
    ) -> Expected<Model> {
        if step == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        self.along(axis, |n| {
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
            Ok(positions.into_iter().step_by(step.unsigned_abs()).collect())
        })
    }

    pub(super) fn index(&self, subscript: &[Index]) -> Expected<Model> {
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
                Index::At(index) => view = view.select(axis as isize, index)?,
                Index::Slice { start, end, step } => view = view.slice(axis as isize, start, end, step)?,
                Index::NewAxis => view.size.insert(axis, 1),
                Index::Ellipsis => axis += self.size.len() - taken,
                other => panic!("{other:?} is not modelled"),
            }
            axis += usize::from(matches!(at, Index::Slice { .. } | Index::NewAxis));
        }
        Ok(view)
    }

    pub(super) fn transpose(&self, axis0: isize, axis1: isize) -> Expected<Model> {
        let (axis0, axis1, mut axes) = (self.axis(axis0)?, self.axis(axis1)?, self.axes());
        if !axes.is_empty() {
            axes.swap(axis0, axis1);
        }
        Ok(self.picked(&axes))
    }

    pub(super) fn t(&self) -> Expected<Model> {
        match self.size.len() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    pub(super) fn permute(&self, order: &[isize]) -> Expected<Model> {
        if order.len() != self.size.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        let axes: Vec<_> = self.distinct(order)?.iter().map(|&axis| self.axes()[axis].clone()).collect();
        Ok(self.picked(&axes))
    }

    pub(super) fn flip(&self, flipped: &[isize]) -> Expected<Model> {
        let (flipped, mut axes) = (self.distinct(flipped)?, self.axes());
        axes.iter_mut()
            .filter(|(axis, _)| flipped.contains(axis))
            .for_each(|(_, positions)| positions.reverse());
        Ok(self.picked(&axes))
    }

    /// Strides can say it when along each axis all steps are equal. PyTorch's rule of runs comes to the same.
    pub(super) fn view(&self, size: &[isize]) -> Expected<Model> {
        let size = self.resolved(size)?;
        let is_even = |axis: usize| {
            let steps = coordinates(&size).filter(|at| at[axis] + 1 < size[axis]).map(|mut at| {
                let id = self.ids[number(&at, &size)];
                at[axis] += 1;
                self.ids[number(&at, &size)] as isize - id as isize
            });
            steps.collect::<BTreeSet<_>>().len() <= 1
        };
        let can_stay = (0..size.len()).all(is_even);
        if can_stay { Ok(Model { size, ..self.clone() }) } else { Err(ErrorKind::NeedsCopy) }
    }

    fn resolved(&self, size: &[isize]) -> Expected<Vec<usize>> {
        let open = size.iter().filter(|&&n| n == -1).count();
        if open > 1 || size.iter().any(|&n| n < -1) {
            return Err(ErrorKind::InvalidArgument);
        }
        let known: usize = size.iter().filter(|&&n| n != -1).map(|&n| n as usize).product();
        let candidates = if open == 1 { 0..self.ids.len() + 2 } else { 1..2 };
        match candidates.filter(|left| left * known == self.ids.len()).collect::<Vec<_>>()[..] {
            [] => Err(ErrorKind::SizeMismatch),
            [left] => Ok(size.iter().map(|&n| if n == -1 { left } else { n as usize }).collect()),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    pub(super) fn reshape(&self, size: &[isize]) -> Expected<Model> {
        match self.view(size) {
            Err(ErrorKind::NeedsCopy) => self.clone_data()?.view(size),
            viewed => viewed,
        }
    }

    pub(super) fn contiguous(&self) -> Expected<Model> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    pub(super) fn clone_data(&self) -> Expected<Model> {
        Ok(Model::new(self.values(), &self.size, true))
    }
}

/// All coordinates, in row-major order.
pub(super) fn coordinates(size: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..size.iter().product()).map(move |mut number: usize| {
        let mut at = vec![0; size.len()];
        for (i, n) in at.iter_mut().zip(size).rev() {
            (*i, number) = (number % n, number / n);
        }
        at
    })
}

/// How many coordinates come before this one.
pub(super) fn number(at: &[usize], size: &[usize]) -> usize {
    at.iter().zip(size).fold(0, |number, (i, n)| number * n + i)
}

fn means(index: isize, i: usize, n: usize) -> bool {
    index == i as isize || index == i as isize - n as isize
}

pub(super) fn place(index: isize, n: usize) -> Expected<usize> {
    (0..n).find(|&i| means(index, i, n)).ok_or(ErrorKind::OutOfRange)
}
