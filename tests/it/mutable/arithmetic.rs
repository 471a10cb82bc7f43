//! Arithmetic in place on views, compared with a model.

use super::handles;
use crate::harness::{assert_refused, fast, new_fast_store, new_path, new_store};
use crate::support::temporary;
use half::f16;
use ndarray::ArrayViewMutD;
use num_complex::Complex;
use std::fmt::Debug;
use stridemap::{DType, Element, ErrorKind, ExclusiveGuard, Result, StorageKind, Store, Tensor};

pub(super) fn arange<T: Element>(size: &[usize], element: impl Fn(i64) -> T) -> Tensor {
    Tensor::from_vec((0..size.iter().product::<usize>() as i64).map(element).collect(), size).unwrap()
}

/// Returns views of a three-dimensional tensor in which no two indices refer to the same element.
fn views(x: &Tensor) -> Vec<(&'static str, Tensor)> {
    let reversed = |axis| x.slice(axis, None, None, -1).unwrap();
    let stepped = x.slice(2, None, None, 3).unwrap();
    let sparse = x.slice(0, Some(1), None, 2).unwrap();
    vec![
        ("whole", x.clone()),
        ("transposed", x.transpose(1, 2).unwrap()),
        ("permuted", x.permute([2, 0, 1]).unwrap()),
        ("stepped", stepped.clone()),
        ("stepped, reversed, transposed", stepped.flip([1, 2]).unwrap().transpose(0, 2).unwrap()),
        ("reversed", reversed(1)),
        ("reversed whole", x.flip([0, 1, 2]).unwrap()),
        ("sparse", sparse),
        ("part", x.narrow(1, 1, 2).unwrap().narrow(2, 1, 2).unwrap()),
        ("row", x.select(0, 1).unwrap()),
        ("column", x.select(2, 1).unwrap().select(1, 0).unwrap()),
        ("element", x.select(0, 1).unwrap().select(0, 1).unwrap().select(0, 1).unwrap()),
        ("nothing", x.narrow(0, 1, 0).unwrap()),
    ]
}

/// Applies `change` to every view of a mutable tensor, opened in both ways. Compares the whole storage with the result
/// of `model`, which is called with each element and its position in the view.
fn agrees<T: Element + PartialEq + Debug>(
    what: &str,
    size: &[usize],
    element: impl Fn(i64) -> T + Copy,
    change: impl Fn(&mut ExclusiveGuard<'_>) -> Result<()>,
    model: impl Fn(&Tensor) -> Vec<T>,
) {
    let (_dir, path, store) = new_fast_store();
    store.write(|txn| txn.save_as("x", &arange(size, element), StorageKind::Mutable)).unwrap();
    let places = views(&arange(size, |i| i));
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        for ((name, view), (_, places)) in views(&x).into_iter().zip(&places) {
            x.lock_exclusive().unwrap().copy_(&arange(size, element)).unwrap();
            let mut expected: Vec<T> = x.read().unwrap();
            let changed = model(&view.clone_data().unwrap());
            for (place, changed) in places.read::<i64>().unwrap().into_iter().zip(changed) {
                expected[place as usize] = changed;
            }
            change(&mut view.lock_exclusive().unwrap())
                .unwrap_or_else(|e| panic!("{what} of {name}, {how}: {e}"));
            assert!(x.read::<T>().unwrap() == expected, "{what} of {name}, {how}");
        }
    }
}

const SMALL: [usize; 3] = [4, 5, 7];

#[test]
fn numbers_change_exactly_the_elements_of_a_view() {
    let f32s = |what, change: fn(&mut ExclusiveGuard<'_>) -> Result<()>, model: fn(f32) -> f32| {
        agrees(
            what,
            &SMALL,
            |i| i as f32 * 0.37,
            change,
            |view| view.read::<f32>().unwrap().into_iter().map(model).collect(),
        );
    };
    f32s("fill_", |x| x.fill_(2.5).map(drop), |_| 2.5);
    f32s("add_", |x| x.add_(0.1).map(drop), |a| a + 0.1);
    f32s("sub_", |x| x.sub_(3).map(drop), |a| a - 3.);
    f32s("mul_", |x| x.mul_(1.7).map(drop), |a| a * 1.7);
    f32s("div_", |x| x.div_(3).map(drop), |a| a / 3.);
    f32s("chain", |x| x.add_(1)?.mul_(2).map(drop), |a| (a + 1.) * 2.);
    agrees(
        "wrap",
        &SMALL,
        |i| i as i8,
        |x| x.mul_(100)?.add_(100).map(drop),
        |view| {
            let wrapped = |a: i8| a.wrapping_mul(100).wrapping_add(100);
            view.read::<i8>().unwrap().into_iter().map(wrapped).collect()
        },
    );
    agrees(
        "float16",
        &SMALL,
        |i| f16::from_f64(i as f64 * 0.3),
        |x| x.add_(0.1)?.mul_(0.1).map(drop),
        |view| {
            // PyTorch rounds an addend to 16 bits first, but not a factor.
            let sum = |a: f16| f16::from_f32(a.to_f32() + f16::from_f32(0.1).to_f32());
            view.read::<f16>().unwrap().into_iter().map(|a| f16::from_f32(sum(a).to_f32() * 0.1)).collect()
        },
    );
    agrees(
        "bool",
        &SMALL,
        |i| i % 3 == 0,
        |x| x.add_(true)?.mul_(true).map(drop),
        |view| vec![true; view.numel()],
    );
    let number = Complex::new(1., -2.);
    agrees(
        "complex",
        &SMALL,
        |i| Complex::new(i as f64, 1.),
        |x| x.mul_(number)?.div_(number).map(drop),
        |view| view.read().unwrap(),
    );
}

#[test]
fn tensors_change_a_view_element_by_element_broadcast_and_converted() {
    /// Returns operands of the size of each view, some strided and some broadcast.
    fn operands(size: &[usize]) -> Vec<Tensor> {
        let whole = arange(size, |i| i as f64 - 3.5);
        let backwards: Vec<isize> = (0..size.len() as isize).rev().collect();
        let turned: Vec<usize> = size.iter().rev().copied().collect();
        let strided = arange(&turned, |i| i as f64 * 0.25).permute(backwards.iter().copied()).unwrap();
        let mut operands = vec![whole.flip(backwards.iter().copied()).unwrap(), whole, strided];
        operands.push(arange(&[], |_| 2.5));
        if let Some(&last) = size.last() {
            operands.push(arange(&[last], |i| i as f64 * 2.));
        }
        if let Some((_, rest)) = size.split_first() {
            operands.push(arange(&[&[1], rest].concat(), |i| i as f64 / 8.));
        }
        operands
    }
    /// Returns the operand's element for each index of the size, by the rules of broadcasting.
    fn repeated(operand: &Tensor, size: &[usize]) -> Vec<f64> {
        let elements: Vec<f64> = operand.read().unwrap();
        let skipped = size.len() - operand.ndim();
        let numel = size.iter().product::<usize>();
        let at = |mut position: usize| {
            let (mut index, mut step) = (0, 1);
            for (axis, &n) in size.iter().enumerate().rev() {
                let i = position % n;
                position /= n;
                if axis >= skipped {
                    let own = operand.size()[axis - skipped];
                    index += if own == 1 { 0 } else { i } * step;
                    step *= own;
                }
            }
            elements[index]
        };
        (0..numel).map(at).collect()
    }
    for number in 0..6 {
        let pick = |size: &[usize]| operands(size).into_iter().cycle().nth(number).unwrap();
        let model = |of: fn(f64, f64) -> f64| {
            move |view: &Tensor| {
                let operand = operands(view.size()).into_iter().cycle().nth(number).unwrap();
                let own = view.read::<f32>().unwrap().into_iter().map(f64::from);
                own.zip(repeated(&operand, view.size())).map(|(a, b)| of(a, b) as f32).collect::<Vec<f32>>()
            }
        };
        let element = |i| i as f32;
        // If both sides have dimensions, the operation is computed in float64, and otherwise in float32, which is
        // exact here.
        agrees("copy_", &SMALL, element, |x| x.copy_(&pick(x.size())).map(drop), model(|_, b| b));
        agrees("add_", &SMALL, element, |x| x.add_(&pick(x.size())).map(drop), model(|a, b| a + b));
        agrees("sub_", &SMALL, element, |x| x.sub_(&pick(x.size())).map(drop), model(|a, b| a - b));
        agrees("mul_", &SMALL, element, |x| x.mul_(&pick(x.size())).map(drop), model(|a, b| a * b));
    }
}

#[test]
fn views_of_several_pieces_are_changed_completely() {
    // Rows of 24 KB: with a step, the rows between are gaps that are not read.
    let size = [3, 125, 6000];
    let row = arange(&[6000], |i| (i % 13) as i32);
    let add_row = |x: &mut ExclusiveGuard<'_>| {
        if x.size().last() == Some(&6000) { x.add_(&row).map(drop) } else { Ok(()) }
    };
    agrees(
        "add_ of a row",
        &size,
        |i| i as i32,
        add_row,
        |view| {
            let is_wide = view.size().last() == Some(&6000);
            let added = |(i, a): (usize, i32)| if is_wide { a + (i % 6000 % 13) as i32 } else { a };
            view.read::<i32>().unwrap().into_iter().enumerate().map(added).collect()
        },
    );
}

#[test]
fn operand_on_the_same_storage_is_read_before_it_changes() {
    let (_dir, path) = new_path();
    Store::create(&path)
        .unwrap()
        .write(|txn| txn.save_as("x", &arange(&[6], |i| i), StorageKind::Mutable))
        .unwrap();
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        let (head, tail) = (x.narrow(0, 0, 5).unwrap(), x.narrow(0, 1, 5).unwrap());
        tail.lock_exclusive().unwrap().copy_(&head).unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [0, 0, 1, 2, 3, 4], "{how}");
        x.lock_exclusive().unwrap().add_(&x.flip([0]).unwrap()).unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [4, 3, 3, 3, 3, 4], "{how}");
        x.lock_exclusive().unwrap().mul_(&x).unwrap().sub_(&x.select(0, 0).unwrap()).unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [0, -7, -7, -7, -7, 0], "{how}");
        x.lock_exclusive().unwrap().copy_(&arange(&[6], |i| i)).unwrap();
    }
}

#[test]
fn refused_dtypes_are_named() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    let own = |dtype: DType, size: &[usize]| {
        store
            .write(|txn| txn.save_as("x", &Tensor::zeros(dtype, size).unwrap(), StorageKind::Mutable))
            .unwrap();
        store.load("x").unwrap().lock_exclusive().unwrap()
    };
    let other = |dtype: DType, size: &[usize]| arange(size, |i| i + 1).to_dtype(dtype).unwrap();
    use DType::{Bool, C64, F8E5M2, F32, F64, I8, I16, I64, U8, U16};
    let refused = [
        (I64, F32, "result is float32"),
        (Bool, U8, "result is uint8"),
        (F64, C64, "result is complex128"),
        (U16, I16, "no common dtype"),
        (F8E5M2, F32, "to_dtype"),
        (F32, F8E5M2, "to_dtype"),
    ];
    for (dtype, theirs, says) in refused {
        let mut x = own(dtype, &[3]);
        assert_refused(x.mul_(&other(theirs, &[3])), ErrorKind::DTypeMismatch, &[dtype.name(), says]);
    }
    assert_refused(own(I64, &[3]).add_(1.5), ErrorKind::DTypeMismatch, &["add_", "float32", "int64"]);
    assert_refused(own(I64, &[3]).div_(2), ErrorKind::DTypeMismatch, &["div_", "float32"]);
    assert_refused(own(F32, &[3]).add_(Complex::new(1f32, 0.)), ErrorKind::DTypeMismatch, &["complex64"]);
    assert_refused(own(Bool, &[3]).sub_(true), ErrorKind::DTypeMismatch, &["bools"]);
    assert_refused(own(F32, &[3]).sub_(&other(Bool, &[3])), ErrorKind::DTypeMismatch, &["bools"]);
    assert_refused(own(I8, &[3]).fill_(300), ErrorKind::OutOfRange, &["300", "int8"]);
    assert_refused(own(U8, &[3]).fill_(-500), ErrorKind::OutOfRange, &["-500", "uint8"]);
    assert_refused(own(I64, &[]).add_(&other(F64, &[])), ErrorKind::DTypeMismatch, &["float64"]);
    // Rounded once, from float64.
    let mut x = own(F32, &[1]);
    x.fill_(1).unwrap().add_(&Tensor::from_vec(vec![2f64.powi(-24) * 1.5], &[1]).unwrap()).unwrap();
    assert_eq!(x.item::<f32>().unwrap(), 1. + f32::EPSILON);
}

#[test]
fn sizes_that_do_not_broadcast_are_refused() {
    let (_dir, _, store) = new_store();
    let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Mutable).unwrap();
    for size in [&[2][..], &[3, 2], &[1, 2, 3], &[0], &[2, 0]] {
        let operand = arange(size, |i| i);
        let shown = format!("{size:?}");
        let refused = x.lock_exclusive().unwrap().add_(&operand).map(drop);
        assert_refused(refused, ErrorKind::SizeMismatch, &["add_", &shown, "[2, 3]"]);
        assert_refused(
            x.lock_exclusive().unwrap().copy_(&operand),
            ErrorKind::SizeMismatch,
            &["copy_", &shown],
        );
    }
    assert_eq!(x.read::<i64>().unwrap(), [0; 6]);
}

#[test]
fn views_with_one_element_at_several_indices_are_read_and_not_written() {
    let (_dir, path) = new_path();
    let _ =
        Store::create(&path).unwrap().create_tensor("x", DType::I64, &[3, 1], StorageKind::Mutable).unwrap();
    for (_, store) in handles(&path) {
        let x = store.load("x").unwrap();
        for view in [x.expand([3, 2]).unwrap(), x.view([3]).unwrap().unfold(0, 2, 1).unwrap()] {
            let shown = format!("{:?}", view.stride());
            let mut guard = view.lock_exclusive().unwrap();
            assert_refused(guard.fill_(1), ErrorKind::Unsupported, &["fill_", &shown]);
            assert_refused(guard.copy_(&arange(&[2], |i| i)), ErrorKind::Unsupported, &["copy_"]);
            assert_refused(guard.add_(1), ErrorKind::Unsupported, &["add_"]);
            assert_refused(
                ArrayViewMutD::<i64>::try_from(&mut guard),
                ErrorKind::Unsupported,
                &["borrow as a mutable array"],
            );
            assert!(guard.read::<i64>().unwrap().iter().all(|&element| element == 0));
        }
        x.lock_exclusive().unwrap().add_(&x.expand([3, 1]).unwrap()).unwrap();
    }
}

#[test]
fn dimension_names_of_operands_must_agree() {
    let (_dir, _, store) = new_store();
    let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Mutable).unwrap();
    let x = x.refine_names(&[Some("row"), Some("column")]).unwrap();
    let row = arange(&[3], |i| i);
    let named = |name| row.refine_names(&[Some(name)]).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.add_(&row).unwrap().copy_(&named("column")).unwrap();
    assert_refused(guard.add_(&named("row")), ErrorKind::SizeMismatch, &["add_", "row", "column"]);
    assert_refused(guard.copy_(&named("depth")), ErrorKind::SizeMismatch, &["copy_", "depth"]);
    assert_eq!(guard.read::<i64>().unwrap(), [0, 1, 2, 0, 1, 2]);
}
