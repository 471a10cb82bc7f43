//! Model: other sizes.

use std::collections::BTreeSet;

use stridemap::{Axis, ErrorKind};

use super::{Expected, Model, Name, coordinates, number, place};

impl Model {
    pub(in super::super) fn squeeze(&self, axes: Vec<Axis<'_>>) -> Expected<Model> {
        let mut gone = self.distinct(axes)?;
        gone.retain(|&axis| self.size.get(axis) == Some(&1));
        Ok(self.without(&gone))
    }

    pub(in super::super) fn unsqueeze(&self, axis: isize) -> Expected<Model> {
        Ok(self.with_axis(place(axis, self.size.len() + 1)?, None))
    }

    pub(in super::super) fn expand(&self, size: &[isize]) -> Expected<Model> {
        let added = size.len().checked_sub(self.size.len()).ok_or(ErrorKind::SizeMismatch)?;
        let own_dims = [vec![(1, None); added], self.dims()].concat();
        let mut dims = own_dims.clone();
        for (axis, &wanted) in size.iter().enumerate().rev() {
            dims[axis].0 = match (wanted, own_dims[axis].0) {
                (-1, n) if axis >= added => n,
                (..0, _) => return Err(ErrorKind::InvalidArgument),
                (wanted, n) if n == 1 || n == wanted as usize => wanted as usize,
                _ => return Err(ErrorKind::SizeMismatch),
            };
        }
        let of_own = |at: &[usize]| at.iter().zip(&self.size).map(|(&i, &n)| i.min(n - 1)).collect();
        Ok(self.gathered(&dims, |at| of_own(&at[added..])))
    }

    pub(in super::super) fn view(&self, size: &[isize]) -> Expected<Model> {
        self.viewed(&resolved(size, self.ids.len())?)
    }

    /// Strides can express it if all steps along each axis are equal. PyTorch's rule of runs is equivalent.
    fn viewed(&self, size: &[usize]) -> Expected<Model> {
        let is_even = |axis: usize| {
            let steps = coordinates(size).filter(|at| at[axis] + 1 < size[axis]).map(|mut at| {
                let id = self.ids[number(&at, size)];
                at[axis] += 1;
                self.ids[number(&at, size)] as isize - id as isize
            });
            steps.collect::<BTreeSet<_>>().len() <= 1
        };
        let can_stay = (0..size.len()).all(is_even);
        let names = self.names_under(size);
        if can_stay {
            Ok(Model { size: size.to_vec(), names, ..self.clone() })
        } else {
            Err(ErrorKind::NeedsCopy)
        }
    }

    /// An axis keeps its name if it is neither merged nor split: as many elements are before it and along it as in the
    /// old size.
    fn names_under(&self, size: &[usize]) -> Vec<Name> {
        if size == self.size {
            return self.names.clone();
        }
        let places = |size: &[usize]| -> Vec<(usize, usize)> {
            (0..size.len()).map(|axis| (size[..axis].iter().product(), size[axis])).collect()
        };
        let mut own: Vec<_> = places(&self.size).into_iter().zip(&self.names).collect();
        let mut name_at = |at| {
            let same = own.iter().position(|&(own_place, _)| own_place == at && !self.ids.is_empty())?;
            *own.remove(same).1
        };
        places(size).into_iter().map(&mut name_at).collect()
    }

    pub(in super::super) fn reshape(&self, size: &[isize]) -> Expected<Model> {
        self.reshaped(&resolved(size, self.ids.len())?)
    }

    fn reshaped(&self, size: &[usize]) -> Expected<Model> {
        match self.viewed(size) {
            Err(ErrorKind::NeedsCopy) => self.clone_data()?.viewed(size),
            viewed => viewed,
        }
    }

    pub(in super::super) fn flatten(&self, start: Axis<'_>, end: Axis<'_>) -> Expected<Model> {
        let (start, end) = (self.axis(start)?, self.axis(end)?);
        if start > end {
            return Err(ErrorKind::InvalidArgument);
        }
        let end = self.size.len().min(end + 1);
        let joined = self.size[start..end].iter().product();
        let mut view = self.reshaped(&[&self.size[..start], &[joined], &self.size[end..]].concat())?;
        let name = if end - start == 1 { self.names[start] } else { None };
        view.names = [&self.names[..start], &[name], &self.names[end..]].concat();
        Ok(view)
    }

    pub(in super::super) fn unflatten(&self, axis: Axis<'_>, sizes: &[isize]) -> Expected<Model> {
        let (axis, n) = self.dim(axis)?;
        if sizes.is_empty() {
            return Err(ErrorKind::InvalidArgument);
        }
        let sizes = resolved(sizes, n)?;
        let mut view = self.clone();
        if sizes.len() > 1 {
            view.names.splice(axis..=axis, sizes.iter().map(|_| None));
        }
        view.size.splice(axis..=axis, sizes);
        Ok(view)
    }

    pub(in super::super) fn contiguous(&self) -> Expected<Model> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    pub(in super::super) fn clone_data(&self) -> Expected<Model> {
        Ok(Model::new(self.values(), &self.size, &self.names, true))
    }
}

/// Replaces -1 in a size with what is left of `numel` elements.
fn resolved(size: &[isize], numel: usize) -> Expected<Vec<usize>> {
    let open = size.iter().filter(|&&n| n == -1).count();
    if open > 1 || size.iter().any(|&n| n < -1) {
        return Err(ErrorKind::InvalidArgument);
    }
    let known: usize = size.iter().filter(|&&n| n != -1).map(|&n| n as usize).product();
    let candidates = if open == 1 { 0..numel + 2 } else { 1..2 };
    match candidates.filter(|left| left * known == numel).collect::<Vec<_>>()[..] {
        [] => Err(ErrorKind::SizeMismatch),
        [left] => Ok(size.iter().map(|&n| if n == -1 { left } else { n as usize }).collect()),
        _ => Err(ErrorKind::InvalidArgument),
    }
}
