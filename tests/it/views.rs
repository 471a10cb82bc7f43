//! Chains of view operations, against a model that knows nothing of strides.
//!
//! `STRIDEMAP_TEST_CASES` sets how many chains each test runs; by default 400.

use std::rc::Rc;

use ndarray::{ArrayD, IxDyn};
use proptest::collection::vec;
use proptest::prelude::*;
use stridemap::{Durability, ErrorKind, Index, StoreOptions, Tensor};

use crate::support::{scaled, temporary};

mod model;
use model::{Expected, Model, coordinates, number, place};

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

    let in_place =
        if model.is_borrowable || model.ids.is_empty() { Ok(()) } else { Err(ErrorKind::NotMapped) };
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

#[test]
fn one_position_is_left_by_however_long_a_step() {
    let (base, _) = counted(&[3, 4]);
    for (step, row) in [(isize::MAX, 0), (isize::MIN, 2)] {
        let mut view = base.slice(0, None, None, step).unwrap();
        for _ in 0..2 {
            assert_eq!(view.size(), [1, 4]);
            assert_eq!(view.read::<i64>().unwrap(), base.select(0, row).unwrap().read::<i64>().unwrap());
            view = view.slice(0, None, None, step).unwrap().flip([0]).unwrap();
        }
    }
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
            let mut saved = Model { is_borrowable: false, ..model.clone() };
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
