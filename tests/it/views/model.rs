//! What view operations give, by coordinates alone.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use stridemap::{Axes, Axis, ErrorKind, Index, Sections, Tensor};

/// What the model expects of an operation: this, or a refusal of this kind.
pub(super) type Expected<T> = Result<T, ErrorKind>;

/// The name of an axis, if it has one.
pub(super) type Name = Option<&'static str>;

/// A storage, and for each element of a tensor, in logical order, its place in there.
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

    /// Rank 0 has an axis, too, for operations that take nothing from it.
    pub(super) fn axis(&self, axis: Axis<'_>) -> Expected<usize> {
        match axis {
            Axis::At(position) => place(position, self.size.len().max(1)),
            Axis::Named(name) => {
                self.names.iter().position(|&own| own == Some(name)).ok_or(ErrorKind::OutOfRange)
            }
            other => panic!("{other:?} is not modelled"),
        }
    }

    /// An axis to take from, and its size.
    fn dim(&self, axis: Axis<'_>) -> Expected<(usize, usize)> {
        let axis = self.axis(axis)?;
        Ok((axis, *self.size.get(axis).ok_or(ErrorKind::OutOfRange)?))
    }

    fn listed<'a>(&self, axes: impl Into<Axes<'a>>) -> Vec<Axis<'a>> {
        match axes.into() {
            Axes::List(axes) => axes,
            _ => (0..self.size.len()).map(Axis::from).collect(),
        }
    }

    fn distinct<'a>(&self, axes: impl Into<Axes<'a>>) -> Expected<Vec<usize>> {
        let mut distinct = Vec::new();
        for axis in self.listed(axes) {
            let axis = self.axis(axis)?;
            if distinct.contains(&axis) {
                return Err(ErrorKind::InvalidArgument);
            }
            distinct.push(axis);
        }
        Ok(distinct)
    }

    /// Other axes, and for each of their coordinates the one that it has in this tensor.
    fn gathered(&self, dims: &[(usize, Name)], source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let (size, names): (Vec<usize>, Vec<Name>) = dims.iter().copied().unzip();
        let ids = coordinates(&size).map(|at| self.ids[number(&source(&at), &self.size)]).collect();
        Model { size, names, ids, ..self.clone() }
    }

    fn dims(&self) -> Vec<(usize, Name)> {
        self.size.iter().copied().zip(self.names.iter().copied()).collect()
    }

    /// The axes as they are, each with all of its positions.
    fn axes(&self) -> Vec<(usize, Vec<usize>)> {
        self.size.iter().enumerate().map(|(axis, &n)| (axis, (0..n).collect())).collect()
    }

    /// The axes in another order, each with some of its positions.
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

    /// Other positions along one axis.
    fn along(&self, axis: usize, positions: impl IntoIterator<Item = usize>) -> Model {
        let mut axes = self.axes();
        axes[axis].1 = positions.into_iter().collect();
        self.picked(&axes)
    }

    /// Without axes, of size 1.
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

/// The operations, by their names in `Tensor`: some of the elements, and other orders.
impl Model {
    pub(super) fn select(&self, axis: Axis<'_>, index: isize) -> Expected<Model> {
        let (axis, n) = self.dim(axis)?;
        Ok(self.along(axis, [place(index, n)?]).without(&[axis]))
    }

    pub(super) fn narrow(&self, axis: Axis<'_>, start: isize, length: usize) -> Expected<Model> {
        let (axis, n) = self.dim(axis)?;
        let start = (0..=n).find(|&i| means(start, i, n)).ok_or(ErrorKind::OutOfRange)?;
        if start + length <= n {
            Ok(self.along(axis, start..start + length))
        } else {
            Err(ErrorKind::OutOfRange)
        }
    }

    pub(super) fn slice(
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

    pub(super) fn diagonal(&self, offset: isize, axis0: Axis<'_>, axis1: Axis<'_>) -> Expected<Model> {
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

    pub(super) fn transpose(&self, axis0: Axis<'_>, axis1: Axis<'_>) -> Expected<Model> {
        let (axis0, axis1, mut axes) = (self.axis(axis0)?, self.axis(axis1)?, self.axes());
        if !axes.is_empty() {
            axes.swap(axis0, axis1);
        }
        Ok(self.picked(&axes))
    }

    pub(super) fn swapaxes(&self, axis0: Axis<'_>, axis1: Axis<'_>) -> Expected<Model> {
        self.transpose(axis0, axis1)
    }

    pub(super) fn t(&self) -> Expected<Model> {
        match self.size.len() {
            0 | 1 => Ok(self.clone()),
            2 => self.mt(),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    pub(super) fn mt(&self) -> Expected<Model> {
        match self.size.len() {
            0 => Ok(self.clone()),
            1 => Err(ErrorKind::InvalidArgument),
            rank => self.transpose((rank - 2).into(), (rank - 1).into()),
        }
    }

    pub(super) fn permute(&self, order: &[Axis<'_>]) -> Expected<Model> {
        if order.len() != self.size.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(self.reordered(&self.distinct(order)?))
    }

    pub(super) fn movedim<'a, A: Into<Axes<'a>>>(&self, source: A, destination: A) -> Expected<Model> {
        let (from, to) = (self.distinct(source)?, self.distinct(destination)?);
        if from.len() != to.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        // Those that stay, in order, and then each mover into its place, the first place first.
        let mut order: Vec<usize> = (0..self.size.len()).filter(|axis| !from.contains(axis)).collect();
        let mut moves: Vec<_> =
            to.into_iter().zip(from).filter(|&(_, axis)| axis < self.size.len()).collect();
        moves.sort_unstable();
        for (to, axis) in moves {
            order.insert(to, axis);
        }
        Ok(self.reordered(&order))
    }

    pub(super) fn flip(&self, flipped: &[Axis<'_>]) -> Expected<Model> {
        let (flipped, mut axes) = (self.distinct(flipped)?, self.axes());
        axes.iter_mut()
            .filter(|(axis, _)| flipped.contains(axis))
            .for_each(|(_, positions)| positions.reverse());
        Ok(self.picked(&axes))
    }
}

/// Other sizes.
impl Model {
    pub(super) fn squeeze<'a>(&self, axes: impl Into<Axes<'a>>) -> Expected<Model> {
        let mut gone = self.distinct(axes)?;
        gone.retain(|&axis| self.size.get(axis) == Some(&1));
        Ok(self.without(&gone))
    }

    pub(super) fn unsqueeze(&self, axis: isize) -> Expected<Model> {
        Ok(self.with_axis(place(axis, self.size.len() + 1)?, None))
    }

    pub(super) fn expand(&self, size: &[isize]) -> Expected<Model> {
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

    pub(super) fn broadcast_to(&self, size: &[isize]) -> Expected<Model> {
        self.expand(size)
    }

    pub(super) fn expand_as(&self, other: &Tensor) -> Expected<Model> {
        self.expand(&other.size().iter().map(|&n| n as isize).collect::<Vec<_>>())
    }

    pub(super) fn view(&self, size: &[isize]) -> Expected<Model> {
        self.viewed(&resolved(size, self.ids.len())?)
    }

    pub(super) fn view_as(&self, other: &Tensor) -> Expected<Model> {
        self.view(&other.size().iter().map(|&n| n as isize).collect::<Vec<_>>())
    }

    /// Strides can say it when along each axis all steps are equal. PyTorch's rule of runs comes to the same.
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

    /// An axis is neither joined nor parted when as many elements lie around it and along it as before.
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

    pub(super) fn reshape(&self, size: &[isize]) -> Expected<Model> {
        self.reshaped(&resolved(size, self.ids.len())?)
    }

    fn reshaped(&self, size: &[usize]) -> Expected<Model> {
        match self.viewed(size) {
            Err(ErrorKind::NeedsCopy) => self.clone_data()?.viewed(size),
            viewed => viewed,
        }
    }

    pub(super) fn flatten(&self, start: Axis<'_>, end: Axis<'_>) -> Expected<Model> {
        let (start, end) = (self.axis(start)?, self.axis(end)?);
        if start > end {
            return Err(ErrorKind::InvalidArgument);
        }
        let end = self.size.len().min(end + 1);
        let joined = self.size[start..end].iter().product();
        self.reshaped(&[&self.size[..start], &[joined], &self.size[end..]].concat())
    }

    pub(super) fn unflatten(&self, axis: Axis<'_>, sizes: &[isize]) -> Expected<Model> {
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

    pub(super) fn ravel(&self) -> Expected<Model> {
        self.contiguous()?.viewed(&[self.ids.len()])
    }

    pub(super) fn contiguous(&self) -> Expected<Model> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    pub(super) fn clone_data(&self) -> Expected<Model> {
        Ok(Model::new(self.values(), &self.size, &self.names, true))
    }

    pub(super) fn rename(&self, names: &[Name]) -> Expected<Model> {
        Ok(Model { names: names.to_vec(), ..self.clone() })
    }

    /// Names in their order, those that nobody has as new axes; `...` are the others.
    pub(super) fn align_to(&self, names: &[&'static str]) -> Expected<Model> {
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        let absent: Vec<_> =
            names.iter().filter(|&&name| name != "..." && !self.names.contains(&Some(name))).collect();
        let view = absent.iter().fold(self.clone(), |view, &&name| view.with_axis(0, Some(name)));
        let axis_of = |name: &&str| view.names.iter().position(|own| own.as_ref() == Some(name));
        let listed: Vec<usize> = names.iter().filter_map(axis_of).collect();
        let rest: Vec<usize> = (0..view.size.len()).filter(|axis| !listed.contains(axis)).collect();
        let places = names.iter().flat_map(|name| axis_of(name).map_or(rest.clone(), |axis| vec![axis]));
        Ok(view.reordered(&places.collect::<Vec<_>>()))
    }
}

/// Windows, and any strides.
impl Model {
    pub(super) fn unfold(&self, axis: Axis<'_>, size: usize, step: usize) -> Expected<Model> {
        let axis = self.axis(axis)?;
        if self.size.is_empty() {
            return self.with_axis(0, None).unfold(0.into(), size, step)?.select(0.into(), 0);
        }
        if step == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        let starts: Vec<usize> =
            (0..=self.size[axis]).step_by(step).filter(|start| start + size <= self.size[axis]).collect();
        if starts.is_empty() {
            return Err(ErrorKind::OutOfRange);
        }
        let mut dims = self.dims();
        dims[axis].0 = starts.len();
        dims.push((size, None));
        Ok(self.gathered(&dims, |at| {
            let mut source = at[..self.size.len()].to_vec();
            source[axis] = starts[at[axis]] + at[self.size.len()];
            source
        }))
    }

    pub(super) fn sliding_window_view<'a>(
        &self,
        window: &[usize],
        axes: impl Into<Axes<'a>>,
    ) -> Expected<Model> {
        let axes =
            self.listed(axes).into_iter().map(|axis| Ok(self.dim(axis)?.0)).collect::<Expected<Vec<_>>>()?;
        if axes.len() != window.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        axes.into_iter()
            .zip(window)
            .try_fold(self.clone(), |view, (axis, &size)| view.unfold(axis.into(), size, 1))
    }

    pub(super) fn as_strided(
        &self,
        size: &[usize],
        stride: &[isize],
        offset: Option<usize>,
    ) -> Expected<Model> {
        if size.len() != stride.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        let offset = offset.unwrap_or_else(|| self.ids[0]);
        let id = |at: Vec<usize>| {
            let way: i128 = at.iter().zip(stride).map(|(&i, &step)| i as i128 * step as i128).sum();
            usize::try_from(offset as i128 + way).ok().filter(|&id| id < self.storage.len())
        };
        let ids: Option<Vec<usize>> = coordinates(size).map(id).collect();
        let ids = ids.filter(|_| offset <= self.storage.len()).ok_or(ErrorKind::OutOfRange)?;
        Ok(Model { size: size.to_vec(), names: vec![None; size.len()], ids, ..self.clone() })
    }
}

/// Parts along an axis.
impl Model {
    fn parted(&self, axis: usize, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<Model> {
        parts.into_iter().map(|part| self.along(axis, part)).collect()
    }

    pub(super) fn chunk(&self, count: usize, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        match (count, n) {
            (0, _) => Err(ErrorKind::InvalidArgument),
            (_, 0) => Ok(vec![self.clone(); count]),
            _ => self.split(n.div_ceil(count).into(), axis.into()),
        }
    }

    pub(super) fn split(&self, sections: Sections, axis: Axis<'_>) -> Expected<Vec<Model>> {
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

    pub(super) fn tensor_split(&self, sections: Sections, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        match sections {
            Sections::Number(..1) => Err(ErrorKind::InvalidArgument),
            Sections::Number(count) => {
                // The larger parts first: each part in turn takes what is left, shared among those to come, rounded up.
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

    fn split_evenly(&self, sections: Sections, lowest_rank: usize, axis: usize) -> Expected<Vec<Model>> {
        let is_even = |count| count > 0 && self.size[axis].is_multiple_of(count as usize);
        match sections {
            _ if self.size.len() < lowest_rank => Err(ErrorKind::InvalidArgument),
            Sections::Number(count) if !is_even(count) => Err(ErrorKind::InvalidArgument),
            sections => self.tensor_split(sections, axis.into()),
        }
    }

    pub(super) fn hsplit(&self, sections: Sections) -> Expected<Vec<Model>> {
        self.split_evenly(sections, 1, usize::from(self.size.len() > 1))
    }

    pub(super) fn vsplit(&self, sections: Sections) -> Expected<Vec<Model>> {
        self.split_evenly(sections, 2, 0)
    }

    pub(super) fn dsplit(&self, sections: Sections) -> Expected<Vec<Model>> {
        self.split_evenly(sections, 3, 2)
    }

    pub(super) fn unbind(&self, axis: Axis<'_>) -> Expected<Vec<Model>> {
        let (axis, n) = self.dim(axis)?;
        (0..n).map(|i| self.select(axis.into(), i as isize)).collect()
    }
}

/// A size in which -1 stands for what is left of so many elements.
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
