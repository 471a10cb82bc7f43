//! Random operations on a tensor, which follow from a number.

use stridemap::{Axis, DType, Index, Sections, Tensor};

use crate::random::Random;

use super::model::{Expected, Model, Name, place};

/// An operation with more elements in its result is not applied, because `expand` and `unfold` multiply elements.
const MOST_ELEMENTS: usize = 1000;

/// The result of one operation: one view, or several.
pub(super) struct Step {
    pub(super) op: String,
    pub(super) viewed: stridemap::Result<Vec<Tensor>>,
    pub(super) expected: Expected<Vec<Model>>,
}

/// Choices that follow from a number.
pub(super) struct Draws(Random);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Draws(Random::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.0.one_in(n as u64)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Draws one of `n` positions, from either end. Sometimes it is out of range.
    pub(super) fn position(&mut self, n: usize) -> isize {
        let end = n as isize;
        let is_wrong = n == 0 || self.one_in(24);
        if is_wrong {
            self.pick(&[end, -end - 1, isize::MAX, isize::MIN])
        } else {
            self.below(2 * n) as isize - end
        }
    }

    /// Draws an axis, by its position or its name.
    fn axis(&mut self, model: &Model) -> Axis<'static> {
        let position = self.position(model.size.len().max(1));
        let name = model.axis(position.into()).ok().and_then(|axis| *model.names.get(axis)?);
        match name {
            Some(name) if self.one_in(2) => Axis::Named(name),
            _ if self.one_in(100) => Axis::Named("nobody"),
            _ => Axis::At(position),
        }
    }

    /// Draws an optional name for each axis.
    pub(super) fn names(&mut self, rank: usize) -> Vec<Name> {
        let mut rest = vec!["a", "b", "c", "d", "e", "f", "g", "h"];
        (0..rank)
            .map(|_| (self.one_in(2) && !rest.is_empty()).then(|| rest.remove(self.below(rest.len()))))
            .collect()
    }

    fn slice(&mut self, n: usize) -> (Option<isize>, Option<isize>, isize) {
        let mut bound = || match self.below(16) {
            0..12 => None,
            12..15 => Some(self.below(2 * n + 5) as isize - n as isize - 2),
            _ => Some(self.pick(&[isize::MAX, isize::MIN])),
        };
        (bound(), bound(), self.pick(&[1, 1, -1, -1, 2, 2, 2, -2, -2, -2, 3, -3, 7, -7, 0]))
    }

    fn subscript(&mut self, size: &[usize]) -> Vec<Index> {
        let mut subscript = Vec::new();
        for &n in size {
            let (start, end, step) = self.slice(n);
            let (at, slice) = (Index::At(self.position(n)), Index::Slice { start, end, step });
            subscript.extend(self.pick(&[
                &[slice][..],
                &[at],
                &[Index::NewAxis, slice],
                &[at, Index::NewAxis],
                &[Index::Ellipsis],
                &[Index::Ellipsis, at],
                &[],
            ]));
        }
        subscript
    }

    /// Draws all axes in some order. Sometimes one is wrong or extra.
    fn order(&mut self, model: &Model) -> Vec<Axis<'static>> {
        let rank = model.size.len();
        let mut rest: Vec<isize> = (0..rank as isize).collect();
        let mut order: Vec<Axis<'static>> =
            (0..rank).map(|_| rest.remove(self.below(rest.len())).into()).collect();
        if self.one_in(12) {
            let replaced = self.below(2).min(rank);
            order.splice(..replaced, [self.axis(model)]);
        }
        for axis in &mut order {
            let Axis::At(position) = *axis else { continue };
            *axis = match model.names.get(position as usize) {
                Some(Some(name)) if self.one_in(3) => Axis::Named(name),
                _ if self.one_in(3) => Axis::At(position.saturating_sub_unsigned(rank)),
                _ => continue,
            };
        }
        order
    }

    /// Draws a size that is mostly reachable: with axes merged, split and inserted, and one left open.
    fn shape(&mut self, size: &[usize]) -> Vec<isize> {
        let mut shape = size.to_vec();
        for _ in 0..1 + self.below(6) {
            let at = self.below(shape.len());
            match (self.below(10), &shape[at..]) {
                (0..6, &[n, next, ..]) => drop(shape.splice(at..at + 2, [n * next])),
                (6..9, &[n, ..]) => {
                    let part = (1..=self.below(n) + 1).rev().find(|part| n % part == 0).unwrap_or(1);
                    shape.splice(at..=at, [part, n / part]);
                }
                (9, _) | (_, []) => shape.insert(at, 1),
                _ => {}
            }
        }
        let mut shape: Vec<isize> = shape.into_iter().map(|n| n as isize).collect();
        for (odds, sizes) in [(3, &[-1][..]), (8, &[-1, -2, 0, 3, 7])] {
            if !shape.is_empty() && self.one_in(odds) {
                let at = self.below(shape.len());
                shape[at] = self.pick(sizes);
            }
        }
        shape
    }

    /// Draws a size that is mostly reachable by repeating axes of size 1 and adding new ones in front.
    fn expanded(&mut self, size: &[usize]) -> Vec<isize> {
        let mut expanded: Vec<isize> = (0..self.below(3)).map(|_| self.pick(&[1, 2, 3])).collect();
        for &n in size {
            let n = if n == 1 { self.pick(&[1, 2, 3]) } else { n as isize };
            expanded.push(if self.one_in(4) { -1 } else { n });
        }
        if !expanded.is_empty() && self.one_in(12) {
            let at = self.below(expanded.len());
            expanded[at] = self.pick(&[-2, -1, 0, 7]);
        }
        expanded.split_off(usize::from(self.one_in(16)).min(expanded.len()))
    }

    /// Draws sizes of parts that mostly add up to `n`.
    fn sizes(&mut self, n: usize) -> Sections {
        if self.one_in(2) {
            return Sections::Number(self.below(n + 3) as isize - 1);
        }
        let mut sizes = Vec::new();
        let mut left = n as isize;
        while left > 0 {
            sizes.push(self.below(left as usize + 1).max(1) as isize);
            left -= sizes[sizes.len() - 1];
        }
        if self.one_in(6) {
            sizes.push(self.pick(&[0, 0, 0, 1, -1]));
        }
        Sections::List(sizes)
    }

    /// Draws a number of parts, or the positions of their ends.
    fn cuts(&mut self, n: usize) -> Sections {
        if self.one_in(2) {
            let dividing = (1..=n).filter(|&count| n.is_multiple_of(count)).nth(self.below(3)).unwrap_or(1);
            return Sections::Number(
                self.pick(&[dividing, dividing, n, 0, 1, 2, 3]) as isize - isize::from(self.one_in(12)),
            );
        }
        Sections::List((0..self.below(4)).map(|_| self.below(2 * n + 3) as isize - n as isize - 1).collect())
    }

    /// Draws sizes, strides and an offset that are mostly inside a storage.
    fn strided(&mut self, model: &Model) -> (Vec<usize>, Vec<isize>, Option<usize>) {
        let rank = self.below(4);
        let size = (0..rank).map(|_| self.pick(&[0, 1, 1, 2, 2, 2, 3, 4])).collect();
        let mut stride: Vec<isize> = (0..rank).map(|_| self.pick(&[-2, -1, 0, 1, 1, 2, 3, 4, 5])).collect();
        if self.one_in(24) {
            stride.push(1);
        }
        let offset = match self.below(8) {
            // Without elements, the model does not know the offset.
            0..2 if !model.ids.is_empty() => None,
            2 => Some(self.pick(&[model.storage.len(), model.storage.len() + 1, usize::MAX])),
            _ => Some(self.below(model.storage.len())),
        };
        (size, stride, offset)
    }

    /// Applies one operation to a tensor and to its model. Returns `None` if it would have too many elements.
    pub(super) fn step(&mut self, tensor: &Tensor, model: &Model) -> Option<Step> {
        macro_rules! both {
            ($op:ident($($argument:expr),*)) => {{
                let op = format!("{}{:?}", stringify!($op), ($($argument,)*));
                let viewed = tensor.$op($($argument),*).map(|view| Parts::from(view).0);
                let numel = |parts: &Vec<Tensor>| parts.iter().map(Tensor::numel).sum::<usize>();
                if viewed.as_ref().is_ok_and(|parts| numel(parts) > MOST_ELEMENTS) {
                    return None;
                }
                let expected = model.$op($($argument),*).map(|view| Parts::from(view).0);
                Some(Step { op, viewed, expected })
            }};
        }
        let (size, rank) = (&model.size, model.size.len());
        let (op, axis, other) = (self.below(103), self.axis(model), self.axis(model));
        let n_of = |axis| size.get(axis).copied().unwrap_or(1);
        let size_of = |axis| model.axis(axis).map_or(1, n_of);
        let n = size_of(axis);
        let (index, (start, end, step)) = (self.position(n), self.slice(n));
        let length = self.below(n - place(index, n).unwrap_or(0) + 2);
        let (order, places) = (self.order(model), self.order(model));
        let count = self.below(order.len() + 1);
        let (some, to) = (&order[..count], &places[..count.min(places.len())]);
        let (shape, parts, expanded) = (self.shape(size), self.shape(&[n]), self.expanded(size));
        let (sizes, subscript) = (self.sizes(n), self.subscript(size));
        let new_axis = self.position(rank + 1);
        let cuts = self.cuts(n_of(model.axis(axis).unwrap_or(0)));
        let (window, other_window) = (self.below(n + 2), self.below(size_of(other) + 2));
        let (names, (strided, stride, offset)) = (self.names(rank), self.strided(model));
        let refined: Vec<Name> = model.names.iter().zip(&names).map(|(own, name)| own.or(*name)).collect();
        let aligned: Vec<Name> =
            some.iter().filter_map(|axis| *model.names.get(model.axis(*axis).ok()?)?).map(Some).collect();
        let named = Tensor::zeros(DType::Bool, &vec![1; rank]).unwrap().rename(&names).unwrap();
        match op {
            0 => both!(t()),
            1..3 => both!(contiguous()),
            3..5 => both!(clone_data()),
            5..11 => both!(transpose(axis, other)),
            11..16 => both!(permute(order.clone())),
            16..18 => both!(movedim(vec![axis], vec![other])),
            18..21 => both!(movedim(some.to_vec(), to.to_vec())),
            21..23 => both!(select(axis, index)),
            23..25 => both!(narrow(axis, index, length)),
            25..31 => both!(slice(axis, start, end, step)),
            31..34 => both!(index(&subscript)),
            34..37 => both!(flip(some.to_vec())),
            37..40 => both!(diagonal(index, axis, other)),
            40..50 => both!(view(&shape)),
            50..56 => both!(reshape(&shape)),
            56..58 => both!(flatten(axis, other)),
            58..61 => both!(unflatten(axis, &parts)),
            61 => both!(squeeze((0..rank).map(Axis::from).collect::<Vec<_>>())),
            62 => both!(squeeze(vec![axis])),
            63 => both!(squeeze(some.to_vec())),
            64..67 => both!(unsqueeze(new_axis)),
            67..74 => both!(expand(&expanded)),
            74..77 => both!(unfold(axis, window, length)),
            77 => both!(sliding_window_view(&[window], vec![axis])),
            78 => both!(sliding_window_view(&[window, other_window], vec![axis, other])),
            79 => both!(sliding_window_view(
                &vec![window.min(2); rank],
                (0..rank).map(Axis::from).collect::<Vec<_>>()
            )),
            80..84 => both!(as_strided(&strided, &stride, offset)),
            84..86 => both!(chunk(length, axis)),
            86..88 => both!(split(sizes.clone(), axis)),
            88..97 => both!(tensor_split(cuts.clone(), axis)),
            97 => both!(unbind(axis)),
            98 => both!(rename(&names)),
            99 => both!(align_as(&named)),
            100..102 => both!(refine_names(&refined)),
            _ => both!(align_to(&[&aligned[..], &[Some("new"), Some("...")]].concat())),
        }
    }
}

/// One view, or several.
struct Parts<T>(Vec<T>);

impl From<Tensor> for Parts<Tensor> {
    fn from(view: Tensor) -> Self {
        Parts(vec![view])
    }
}

impl From<Model> for Parts<Model> {
    fn from(view: Model) -> Self {
        Parts(vec![view])
    }
}

impl<T> From<Vec<T>> for Parts<T> {
    fn from(parts: Vec<T>) -> Self {
        Parts(parts)
    }
}
