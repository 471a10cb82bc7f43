//! Chains of view operations, against a model that knows nothing of strides.
//!
//! `STRIDEMAP_TEST_CASES` sets how many chains each test runs; by default 400.

use std::collections::BTreeSet;
use std::rc::Rc;

use ndarray::{ArrayD, IxDyn};
use proptest::collection::vec;
use proptest::prelude::*;
use stridemap::{Durability, ErrorKind, Index, StoreOptions, Tensor};

use crate::support::{scaled, temporary};

/// What the model expects of an operation: this, or a refusal of this kind.
type Expected<T> = Result<T, ErrorKind>;

/// A storage, and for each element of a tensor, in logical order, its place in there.
#[derive(Clone, Debug)]
struct Model {
    storage: Rc<Vec<i64>>,
    is_borrowable: bool,
    size: Vec<usize>,
    ids: Vec<usize>,
}

/// The operations, by their names in `Tensor`.
impl Model {
    fn new(storage: Vec<i64>, size: &[usize], is_in_memory: bool) -> Self {
        let ids = (0..storage.len()).collect();
        // Nothing can be borrowed from anywhere.
        let is_borrowable = is_in_memory || storage.is_empty();
        Model { storage: Rc::new(storage), is_borrowable, size: size.to_vec(), ids }
    }

    fn values(&self) -> Vec<i64> {
        self.ids.iter().map(|&id| self.storage[id]).collect()
    }

    fn is_contiguous(&self) -> bool {
        self.ids.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    /// Rank 0 has an axis, too, for operations that take nothing from it.
    fn axis(&self, axis: isize) -> Expected<usize> {
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

    fn select(&self, axis: isize, index: isize) -> Expected<Model> {
        let mut view = self.along(axis, |n| Ok(vec![place(index, n)?]))?;
        view.size.remove(self.axis(axis)?);
        Ok(view)
    }

    fn narrow(&self, axis: isize, start: isize, length: usize) -> Expected<Model> {
        self.along(axis, |n| {
            let start = (0..=n).find(|&i| means(start, i, n)).ok_or(ErrorKind::OutOfRange)?;
            (start..start + length).map(|i| if i < n { Ok(i) } else { Err(ErrorKind::OutOfRange) }).collect()
        })
    }

    fn slice(&self, axis: isize, start: Option<isize>, end: Option<isize>, step: isize) -> Expected<Model> {
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

    fn index(&self, subscript: &[Index]) -> Expected<Model> {
        let count = |is: fn(&Index) -> bool| subscript.iter().filter(|at| is(at)).count();
        let taken = count(|at| matches!(at, Index::At(_) | Index::Slice { .. }));
        if taken > self.size.len() || count(|&at| at == Index::Ellipsis) > 1 {
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

    fn transpose(&self, axis0: isize, axis1: isize) -> Expected<Model> {
        let (axis0, axis1, mut axes) = (self.axis(axis0)?, self.axis(axis1)?, self.axes());
        if !axes.is_empty() {
            axes.swap(axis0, axis1);
        }
        Ok(self.picked(&axes))
    }

    fn t(&self) -> Expected<Model> {
        match self.size.len() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    fn permute(&self, order: &[isize]) -> Expected<Model> {
        if order.len() != self.size.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        let axes: Vec<_> = self.distinct(order)?.iter().map(|&axis| self.axes()[axis].clone()).collect();
        Ok(self.picked(&axes))
    }

    fn flip(&self, flipped: &[isize]) -> Expected<Model> {
        let (flipped, mut axes) = (self.distinct(flipped)?, self.axes());
        axes.iter_mut()
            .filter(|(axis, _)| flipped.contains(axis))
            .for_each(|(_, positions)| positions.reverse());
        Ok(self.picked(&axes))
    }

    /// Strides can say it when along each axis all steps are equal. PyTorch's rule of runs comes to the same.
    fn view(&self, size: &[isize]) -> Expected<Model> {
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

    fn reshape(&self, size: &[isize]) -> Expected<Model> {
        match self.view(size) {
            Err(ErrorKind::NeedsCopy) => self.clone_data()?.view(size),
            viewed => viewed,
        }
    }

    fn contiguous(&self) -> Expected<Model> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    fn clone_data(&self) -> Expected<Model> {
        Ok(Model::new(self.values(), &self.size, true))
    }
}

/// All coordinates, in row-major order.
fn coordinates(size: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..size.iter().product()).map(move |mut number: usize| {
        let mut at = vec![0; size.len()];
        for (i, n) in at.iter_mut().zip(size).rev() {
            (*i, number) = (number % n, number / n);
        }
        at
    })
}

/// How many coordinates come before this one.
fn number(at: &[usize], size: &[usize]) -> usize {
    at.iter().zip(size).fold(0, |number, (i, n)| number * n + i)
}

fn means(index: isize, i: usize, n: usize) -> bool {
    index == i as isize || index == i as isize - n as isize
}

fn place(index: isize, n: usize) -> Expected<usize> {
    (0..n).find(|&i| means(index, i, n)).ok_or(ErrorKind::OutOfRange)
}

/// Choices that follow from a number.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// One of `n` positions, from either end; now and then none of them.
    fn position(&mut self, n: usize) -> isize {
        let end = n as isize;
        let is_wrong = n == 0 || self.one_in(24);
        if is_wrong {
            self.pick(&[end, -end - 1, isize::MAX, isize::MIN])
        } else {
            self.below(2 * n) as isize - end
        }
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

    /// All axes in some order; now and then one is wrong, or one too many.
    fn order(&mut self, rank: usize) -> Vec<isize> {
        let mut rest: Vec<isize> = (0..rank as isize).collect();
        let mut order: Vec<isize> = (0..rank).map(|_| rest.remove(self.below(rest.len()))).collect();
        if self.one_in(12) {
            let replaced = self.below(2).min(rank);
            order.splice(..replaced, [self.position(rank.max(1))]);
        }
        order
            .iter()
            .map(|&axis| if self.one_in(3) { axis.saturating_sub_unsigned(rank) } else { axis })
            .collect()
    }

    /// A size that can mostly be had from this one: axes joined, split and put in, and one left open.
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
}

/// Does one thing to a tensor and to its model.
fn step(
    draws: &mut Draws,
    tensor: &Tensor,
    model: &Model,
) -> (String, stridemap::Result<Tensor>, Expected<Model>) {
    macro_rules! both {
        ($op:ident($($argument:expr),*)) => {{
            let op = format!("{}{:?}", stringify!($op), ($($argument,)*));
            (op, tensor.$op($($argument),*), model.$op($($argument),*))
        }};
    }
    let (size, rank) = (&model.size, model.size.len());
    let (op, axis, other) = (draws.below(44), draws.position(rank.max(1)), draws.position(rank.max(1)));
    let n = model.axis(axis).ok().and_then(|axis| size.get(axis).copied()).unwrap_or(1);
    let (index, (start, end, step)) = (draws.position(n), draws.slice(n));
    let length = draws.below(n - place(index, n).unwrap_or(0) + 2);
    let (order, shape, subscript) = (draws.order(rank), draws.shape(size), draws.subscript(size));
    let flipped = &order[draws.below(order.len())..];
    match op {
        0 => both!(t()),
        1 => both!(contiguous()),
        2 => both!(clone_data()),
        3..=8 => both!(transpose(axis, other)),
        9..=10 => both!(select(axis, index)),
        11..=12 => both!(narrow(axis, index, length)),
        13..=18 => both!(slice(axis, start, end, step)),
        19..=21 => both!(index(&subscript)),
        22..=25 => both!(permute(&order)),
        26..=28 => both!(flip(flipped)),
        29..=38 => both!(view(&shape)),
        _ => both!(reshape(&shape)),
    }
}

/// All that a tensor can be asked.
fn check(tensor: &Tensor, model: &Model, draws: &mut Draws, trail: &str) {
    let (size, values) = (&model.size, model.values());
    assert_eq!((tensor.size(), tensor.numel()), (&size[..], values.len()), "{trail}");
    assert_eq!(tensor.read::<i64>().unwrap(), values, "{trail}");
    assert_eq!(tensor.is_contiguous(), model.is_contiguous(), "{trail}: {tensor:?}");

    assert_eq!(tensor.storage_nbytes(), 8 * model.storage.len() as u64, "{trail}");
    assert!(tensor.storage_offset() <= model.storage.len(), "{trail}: {tensor:?}");
    for (at, &id) in coordinates(size).zip(&model.ids) {
        let way: isize = at.iter().zip(tensor.stride()).map(|(&i, step)| i as isize * step).sum();
        assert_eq!(tensor.storage_offset() as isize + way, id as isize, "{trail}: {at:?} of {tensor:?}");
    }

    let index: Vec<isize> = size.iter().map(|&n| draws.position(n)).collect();
    let at: Expected<Vec<usize>> = index.iter().zip(size).map(|(&i, &n)| place(i, n)).collect();
    let element = at.map(|at| values[number(&at, size)]);
    assert_eq!(tensor.get(&index).map_err(|e| e.kind()), element, "{trail}: get({index:?})");
    let refusal_of = |index: &[isize]| tensor.get::<i64>(index).unwrap_err().kind();
    assert_eq!(refusal_of(&[&index[..], &[0]].concat()), ErrorKind::OutOfRange, "{trail}");
    if let Some((_, too_few)) = index.split_last() {
        assert_eq!(refusal_of(too_few), ErrorKind::SizeMismatch, "{trail}");
    }
    let only = if let [only] = values[..] { Ok(only) } else { Err(ErrorKind::SizeMismatch) };
    assert_eq!(tensor.item().map_err(|e| e.kind()), only, "{trail}");

    let in_place = if model.is_borrowable { Ok(()) } else { Err(ErrorKind::NotMapped) };
    let slice =
        if model.is_contiguous() { in_place.map(|()| &values[..]) } else { Err(ErrorKind::NotContiguous) };
    assert_eq!(tensor.as_slice::<i64>().map_err(|e| e.kind()), slice, "{trail}");
    let array = in_place.map(|()| ArrayD::from_shape_vec(IxDyn(size), values.clone()).unwrap());
    let borrowed = tensor.as_array::<i64>().map(|array| array.to_owned());
    assert_eq!(borrowed.map_err(|e| e.kind()), array, "{trail}: {tensor:?}");
}

/// Follows a chain and checks every tensor on the way.
fn follow(mut tensor: Tensor, mut model: Model, chain: &[u64]) -> (Tensor, Model) {
    let mut trail = format!("{:?}", model.size);
    check(&tensor, &model, &mut Draws(0), &trail);
    for &seed in chain {
        let mut draws = Draws(seed);
        let (op, viewed, expected) = step(&mut draws, &tensor, &model);
        trail = format!("{trail}.{op}");
        match (viewed, expected) {
            (Ok(view), Ok(of_model)) => {
                let shares = Rc::ptr_eq(&of_model.storage, &model.storage);
                assert_eq!(view.shares_storage(&tensor), shares, "{trail}");
                check(&view, &of_model, &mut draws, &trail);
                (tensor, model) = (view, of_model);
            }
            (Err(refusal), Err(kind)) => assert_eq!(refusal.kind(), kind, "{trail}: {refusal}"),
            (viewed, expected) => panic!("{trail}: gives {viewed:?}; the model gives {expected:?}"),
        }
    }
    (tensor, model)
}

fn counted(size: &[usize]) -> (Tensor, Vec<i64>) {
    let values: Vec<i64> = (0..size.iter().product::<usize>() as i64).collect();
    (Tensor::from_vec(values.clone(), size).unwrap(), values)
}

/// A size, and what to do to a tensor of that size.
fn chains() -> impl Strategy<Value = (Vec<usize>, Vec<u64>)> {
    let n = prop_oneof![1 => Just(0), 8 => Just(1), 20 => 2..=5usize];
    let rank = prop_oneof![1 => 0..=1usize, 4 => 2..=4usize];
    let size = rank.prop_flat_map(move |rank| vec(n.clone(), rank));
    (size, vec(any::<u64>(), 3..=8))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled("STRIDEMAP_TEST_CASES", 400) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn chain_on_the_heap_gives_what_the_model_gives((size, chain) in chains()) {
        let (base, values) = counted(&size);
        follow(base, Model::new(values, &size, true), &chain);
    }

    #[test]
    fn chain_on_a_store_gives_what_the_model_gives_and_can_be_saved((size, chain) in chains()) {
        let (dir, options) = (temporary(), StoreOptions::new().durability(Durability::Process));
        let path = dir.path().join("views.smap");
        let (base, values) = counted(&size);
        options.create(&path).unwrap().save("base", &base).unwrap();
        // SAFETY: nobody else knows this directory.
        let mapped = unsafe { options.open_mapped(&path).unwrap() };
        for (store, is_mapped) in [(options.open(&path).unwrap(), false), (mapped, true)] {
            let of_base = Model::new(values.clone(), &size, is_mapped);
            let (view, model) = follow(store.load("base").unwrap(), of_base.clone(), &chain);
            let mut saved = Model { is_borrowable: values.is_empty(), ..model.clone() };
            if Rc::ptr_eq(&model.storage, &of_base.storage) {
                store.save_view("view", &view).unwrap();
            } else {
                prop_assert_eq!(store.save_view("view", &view).unwrap_err().kind(), ErrorKind::ForeignStorage);
                store.save("view", &view).unwrap();
                saved = Model::new(model.values(), &model.size, false);
            }
            drop(store);
            let reopened = options.open(&path).unwrap().load("view").unwrap();
            check(&reopened, &saved, &mut Draws(0), "reopened");
        }
    }
}
