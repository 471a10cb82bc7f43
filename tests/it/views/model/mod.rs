//! A model of view operations that uses only coordinates. The operations have the same names and files as in `Tensor`.

use std::collections::BTreeSet;
use std::rc::Rc;

use stridemap::{Axis, ErrorKind};

mod names;
mod select;
mod shape;
mod split;
mod window;

/// The expected result of an operation: a value, or the kind of a refusal.
pub(super) type Expected<T> = Result<T, ErrorKind>;

/// The name of an axis, if it has one.
pub(super) type Name = Option<&'static str>;

/// A storage, and the position in it of each element of a tensor, in logical order.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) storage: Rc<Vec<i64>>,
    pub(super) is_borrowable: bool,
    pub(super) size: Vec<usize>,
    pub(super) names: Vec<Name>,
    pub(super) ids: Vec<usize>,
}

impl Model {
    pub(super) fn new(storage: Vec<i64>, size: &[usize], names: &[Name], is_in_memory: bool) -> Self {
        Model {
            ids: (0..storage.len()).collect(),
            storage: Rc::new(storage),
            is_borrowable: is_in_memory,
            size: size.to_vec(),
            names: names.to_vec(),
        }
    }

    pub(super) fn values(&self) -> Vec<i64> {
        self.ids.iter().map(|&id| self.storage[id]).collect()
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.ids.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    pub(super) fn overlaps_itself(&self) -> bool {
        self.ids.iter().collect::<BTreeSet<_>>().len() < self.ids.len()
    }

    pub(super) fn shares_storage(&self, other: &Model) -> bool {
        Rc::ptr_eq(&self.storage, &other.storage)
    }

    pub(super) fn overlaps(&self, other: &Model) -> bool {
        let own: BTreeSet<_> = self.ids.iter().collect();
        self.shares_storage(other) && other.ids.iter().any(|id| own.contains(id))
    }

    /// Returns the index of an axis. A tensor of rank 0 has one axis for operations that select nothing from it.
    pub(super) fn axis(&self, axis: Axis<'_>) -> Expected<usize> {
        match axis {
            Axis::At(position) => place(position, self.size.len().max(1)),
            Axis::Named(name) => {
                self.names.iter().position(|&own| own == Some(name)).ok_or(ErrorKind::OutOfRange)
            }
            other => panic!("{other:?} is not modelled"),
        }
    }

    /// Returns an axis to select from, and its size.
    fn dim(&self, axis: Axis<'_>) -> Expected<(usize, usize)> {
        let axis = self.axis(axis)?;
        Ok((axis, *self.size.get(axis).ok_or(ErrorKind::OutOfRange)?))
    }

    fn distinct<'a>(&self, axes: impl IntoIterator<Item = Axis<'a>>) -> Expected<Vec<usize>> {
        let mut distinct = Vec::new();
        for axis in axes {
            let axis = self.axis(axis)?;
            if distinct.contains(&axis) {
                return Err(ErrorKind::InvalidArgument);
            }
            distinct.push(axis);
        }
        Ok(distinct)
    }

    /// Returns a model with other axes. `source` maps each of its coordinates to one of this tensor.
    fn gathered(&self, dims: &[(usize, Name)], source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let (size, names): (Vec<usize>, Vec<Name>) = dims.iter().copied().unzip();
        let ids = coordinates(&size).map(|at| self.ids[number(&source(&at), &self.size)]).collect();
        Model { size, names, ids, ..self.clone() }
    }

    fn dims(&self) -> Vec<(usize, Name)> {
        self.size.iter().copied().zip(self.names.iter().copied()).collect()
    }

    /// Returns all axes, each with all of its positions.
    fn axes(&self) -> Vec<(usize, Vec<usize>)> {
        self.size.iter().enumerate().map(|(axis, &n)| (axis, (0..n).collect())).collect()
    }

    /// Returns a model with these axes in order, each with these positions.
    fn picked(&self, axes: &[(usize, Vec<usize>)]) -> Model {
        let dims: Vec<_> = axes.iter().map(|(axis, places)| (places.len(), self.names[*axis])).collect();
        self.gathered(&dims, |at| {
            let mut source = at.to_vec();
            for ((axis, positions), &i) in axes.iter().zip(at) {
                source[*axis] = positions[i];
            }
            source
        })
    }

    fn reordered(&self, order: &[usize]) -> Model {
        self.picked(&order.iter().map(|&axis| self.axes()[axis].clone()).collect::<Vec<_>>())
    }

    /// Selects other positions along one axis.
    fn along(&self, axis: usize, positions: impl IntoIterator<Item = usize>) -> Model {
        let mut axes = self.axes();
        axes[axis].1 = positions.into_iter().collect();
        self.picked(&axes)
    }

    /// Removes axes of size 1.
    fn without(&self, gone: &[usize]) -> Model {
        let kept: Vec<_> = (0..self.size.len()).filter(|axis| !gone.contains(axis)).collect();
        let (size, names) = kept.iter().map(|&axis| (self.size[axis], self.names[axis])).unzip();
        Model { size, names, ..self.clone() }
    }

    fn with_axis(&self, at: usize, name: Name) -> Model {
        let mut view = self.clone();
        view.size.insert(at, 1);
        view.names.insert(at, name);
        view
    }
}

/// Returns all coordinates in row-major order.
pub(super) fn coordinates(size: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..size.iter().product()).map(move |mut number: usize| {
        let mut at = vec![0; size.len()];
        for (i, n) in at.iter_mut().zip(size).rev() {
            (*i, number) = (number % n, number / n);
        }
        at
    })
}

/// Returns the number of coordinates before this one.
pub(super) fn number(at: &[usize], size: &[usize]) -> usize {
    at.iter().zip(size).fold(0, |number, (i, n)| number * n + i)
}

fn means(index: isize, i: usize, n: usize) -> bool {
    index == i as isize || index == i as isize - n as isize
}

pub(super) fn place(index: isize, n: usize) -> Expected<usize> {
    (0..n).find(|&i| means(index, i, n)).ok_or(ErrorKind::OutOfRange)
}
