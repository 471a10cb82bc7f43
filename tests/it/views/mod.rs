//! Chains of view operations, compared with a model that has no strides.
//!
//! `STRIDEMAP_TEST_RANDOM_INPUTS` sets the number of chains in each test. The default is 400.

use ndarray::{ArrayD, ArrayViewD, IxDyn};
use proptest::collection::vec;
use proptest::prelude::*;
use stridemap::{ErrorKind, Tensor};

mod conformance;
mod draws;
mod dtypes;
mod gather;
pub(crate) mod indexing;
mod live;
mod model;
mod queries;
use draws::{Draws, Step};
use model::{Expected, Model, coordinates, number, place};

use crate::harness::fast;
use crate::support::{scaled, temporary};

/// Checks everything that can be queried of a tensor.
fn check(tensor: &Tensor, model: &Model, draws: &mut Draws, trail: &str) {
    let (size, values) = (&model.size, model.values());
    assert_eq!((tensor.size(), tensor.numel()), (&size[..], values.len()), "{trail}");
    assert_eq!(tensor.names(), model.names, "{trail}");
    assert_eq!(tensor.read::<i64>().unwrap(), values, "{trail}");
    assert_eq!(tensor.is_contiguous(), model.is_contiguous(), "{trail}: {tensor:?}");

    assert_eq!(tensor.overlaps_itself(), model.overlaps_itself(), "{trail}: {tensor:?}");

    assert_eq!(tensor.storage_nbytes(), 8 * model.storage.len() as u64, "{trail}");
    assert!(is_inside(tensor, model.storage.len()), "{trail}: {tensor:?}");
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
        if model.is_borrowable || model.ids.is_empty() { Ok(()) } else { Err(ErrorKind::NeedsCopy) };
    let slice =
        if model.is_contiguous() { in_place.map(|()| &values[..]) } else { Err(ErrorKind::NeedsCopy) };
    assert_eq!(tensor.as_slice::<i64>().map_err(|e| e.kind()), slice, "{trail}");
    let array = in_place.map(|()| ArrayD::from_shape_vec(IxDyn(size), values.clone()).unwrap());
    let borrowed = ArrayViewD::<i64>::try_from(tensor).map(|array| array.to_owned());
    assert_eq!(borrowed.map_err(|e| e.kind()), array, "{trail}: {tensor:?}");
}

/// Returns whether every index, including those without an element, stays inside a storage of `length` elements.
fn is_inside(tensor: &Tensor, length: usize) -> bool {
    let (mut lowest, mut highest) = (tensor.storage_offset() as i128, tensor.storage_offset() as i128);
    for (&n, &step) in tensor.size().iter().zip(tensor.stride()).filter(|_| tensor.numel() > 0) {
        let way = (n as i128 - 1) * step as i128;
        (lowest, highest) = (lowest + way.min(0), highest + way.max(0));
    }
    let end = highest + i128::from(tensor.numel() > 0);
    0 <= lowest && end <= length as i128
}

/// Follows a chain, and checks every tensor. Returns the last one, and the number of steps.
fn follow(mut tensor: Tensor, mut model: Model, chain: &[u64]) -> (Tensor, Model, usize) {
    let (mut trail, mut step_count) = (format!("{:?}", model.size), 0);
    check(&tensor, &model, &mut Draws::new(0), &trail);
    for &seed in chain {
        let mut draws = Draws::new(seed);
        let Some(Step { op, viewed, expected }) = draws.step(&tensor, &model) else { continue };
        trail = format!("{trail}.{op}");
        match (viewed, expected) {
            (Ok(views), Ok(of_model)) => {
                assert_eq!(views.len(), of_model.len(), "{trail}");
                for (view, of_model) in views.iter().zip(&of_model) {
                    let (shares, overlaps) = (of_model.shares_storage(&model), of_model.overlaps(&model));
                    assert_eq!(view.shares_storage(&tensor), shares, "{trail}");
                    assert_eq!(view.overlaps(&tensor), overlaps, "{trail}: {view:?} of {tensor:?}");
                    check(view, of_model, &mut draws, &trail);
                }
                let picked = draws.below(views.len());
                let Some(next) = views.into_iter().zip(of_model).nth(picked) else { continue };
                ((tensor, model), step_count) = (next, step_count + 1);
            }
            (Err(refusal), Err(kind)) => assert_eq!(refusal.kind(), kind, "{trail}: {refusal}"),
            (viewed, expected) => panic!("{trail}: returned {viewed:?}, but the model returned {expected:?}"),
        }
    }
    (tensor, model, step_count)
}

/// Returns a tensor that counts up, with names for some axes, and its model.
fn counted(size: &[usize], seed: u64) -> (Tensor, Model) {
    let values: Vec<i64> = (0..size.iter().product::<usize>() as i64).collect();
    let names = Draws::new(seed).names(size.len());
    let tensor = Tensor::from_vec(values.clone(), size).unwrap().rename(&names).unwrap();
    (tensor, Model::new(values, size, &names, true))
}

fn config() -> ProptestConfig {
    let cases = scaled("STRIDEMAP_TEST_RANDOM_INPUTS", 400) as u32;
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Generates a size, and a chain of operations on a tensor of that size.
fn chains() -> impl Strategy<Value = (Vec<usize>, Vec<u64>)> {
    let n = prop_oneof![1 => Just(0), 8 => Just(1), 20 => 2..=5usize];
    let rank = prop_oneof![1 => 0..=1usize, 4 => 2..=4usize];
    let size = rank.prop_flat_map(move |rank| vec(n.clone(), rank));
    (size, vec(any::<u64>(), 1..=12))
}

#[test]
fn slice_with_a_huge_step_keeps_one_position() {
    let (base, _) = counted(&[3, 4], 0);
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
    #![proptest_config(config())]

    #[test]
    fn dimension_names_are_saved_and_can_replace_axis_numbers((size, chain) in chains()) {
        let (dir, options) = (temporary(), fast());
        let path = dir.path().join("names.smap");
        let (base, model) = counted(&size, chain[0]);
        let (view, model, _) = follow(base, model, &chain);
        let store = options.create(&path).unwrap();
        store.save("copy", &view).unwrap();
        store.save_view("header", &store.load("copy").unwrap()).unwrap();
        for name in ["copy", "header"] {
            let saved = options.open(&path).unwrap().load(name).unwrap();
            prop_assert_eq!(saved.names(), model.names.clone());
            for (axis, name) in model.names.iter().enumerate().filter_map(|(axis, name)| Some((axis, (*name)?))) {
                let (by_name, by_position) = (saved.flip([name]).unwrap(), saved.flip([axis]).unwrap());
                prop_assert_eq!(by_name.read::<i64>().unwrap(), by_position.read::<i64>().unwrap());
            }
            prop_assert_eq!(saved.flip(["nobody"]).unwrap_err().kind(), ErrorKind::OutOfRange);
        }
    }

    #[test]
    fn chain_on_the_heap_agrees_with_the_model((size, chain) in chains()) {
        let (base, model) = counted(&size, chain[0]);
        let _ = follow(base, model, &chain);
    }

    #[test]
    fn chain_on_a_store_agrees_with_the_model_and_can_be_saved((size, chain) in chains()) {
        let (dir, options) = (temporary(), fast());
        let path = dir.path().join("views.smap");
        let (base, of_base) = counted(&size, chain[0]);
        options.create(&path).unwrap().save("base", &base).unwrap();
        // SAFETY: no other process knows this directory.
        let mapped = unsafe { options.open_mapped(&path).unwrap() };
        for (store, is_mapped) in [(options.open(&path).unwrap(), false), (mapped, true)] {
            let of_base = Model { is_borrowable: is_mapped, ..of_base.clone() };
            let (view, model, _) = follow(store.load("base").unwrap(), of_base.clone(), &chain);
            let mut saved = Model { is_borrowable: false, ..model.clone() };
            if model.shares_storage(&of_base) {
                store.save_view("view", &view).unwrap();
            } else {
                prop_assert_eq!(store.save_view("view", &view).unwrap_err().kind(), ErrorKind::NeedsCopy);
                store.save("view", &view).unwrap();
                saved = Model::new(model.values(), &model.size, &model.names, false);
            }
            drop(store);
            let reopened = options.open(&path).unwrap().load("view").unwrap();
            check(&reopened, &saved, &mut Draws::new(0), "reopened");
        }
    }
}

#[test]
fn indices_of_any_integer_type_mean_the_same() {
    let x = Tensor::from_vec((0..24i64).collect(), &[2, 3, 4]).unwrap();
    let one = (1usize, 1isize, 1i64, 1u8);
    let picked = x.select(0, 1).unwrap();
    let same = [
        x.select(0, one.0),
        x.select(one.3 - 1, one.1),
        x.select(one.0 - 1, one.2),
        x.narrow(0, one.0, one.1),
        x.narrow(0, one.3, one.2),
        x.slice(0, one.0 as isize, None, one.3),
        x.slice(0, one.1, Some(2), one.2),
    ];
    for other in same {
        assert_eq!(other.unwrap().read::<i64>().unwrap(), picked.read::<i64>().unwrap());
    }
    let wide = [6usize, 4];
    for other in [x.view(wide), x.view(wide), x.view(wide.to_vec()), x.reshape(&wide[..]), x.view([6, -1])] {
        assert_eq!(other.unwrap().size(), wide);
    }
    assert_eq!(x.unflatten(2, [2usize, 2]).unwrap().size(), [2, 3, 2, 2]);
    assert_eq!(picked.expand(x.size()).unwrap().size(), x.size());
    assert_eq!(x.unfold(2, 2usize, 1i32).unwrap().size(), x.unfold(2, 2, 1).unwrap().size());
    assert_eq!(x.chunk(2usize, 0).unwrap().len(), x.chunk(2i64, 0).unwrap().len());
    assert_eq!(x.as_strided(wide, [4isize, 1], 0).unwrap().stride(), [4, 1]);
    assert_eq!(x.get::<i64>([1usize, 2, 3]).unwrap(), x.get::<i64>(&[-1, -1, -1]).unwrap());
    assert_eq!(x.view(-1).unwrap().get::<i64>(23usize).unwrap(), 23);
    assert_eq!(picked.select(0, 0).unwrap().select(0, 2).unwrap().get::<i64>(()).unwrap(), 14);
}
