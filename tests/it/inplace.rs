//! Mutable storages: created, locked, changed in place.

use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use half::f16;
use num_complex::Complex;
use stridemap::disk::{Op, Outcome, SimulatedDisk};
use stridemap::{
    DType, Durability, Element, ErrorKind, ExclusiveGuard, OnExisting, Result, StorageKind, Store,
    StoreOptions, Tensor,
};

use crate::refusals::assert_refused;
use crate::support::temporary;

#[test]
fn created_and_saved_mutable_tensors_have_a_storage_of_their_own_each() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let zeros = store.create_tensor("zeros", DType::F32, &[2, 3], StorageKind::Mutable).unwrap();
    assert_eq!((zeros.size(), zeros.stride(), zeros.storage_offset()), (&[2, 3][..], &[3, 1][..], 0));
    assert_eq!(zeros.read::<f32>().unwrap(), [0.; 6]);

    let elements = Tensor::from_vec((0..6i16).collect(), &[2, 3]).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("sealed", &elements).unwrap();
    txn.save_as("mutable", &elements.t().unwrap(), StorageKind::Mutable).unwrap();
    txn.save_as("sealed too", &elements, StorageKind::Sealed).unwrap();
    txn.create_tensor("empty", DType::Bool, &[0, 4], StorageKind::Mutable).unwrap();
    assert_eq!(txn.load("mutable").unwrap().read::<i16>().unwrap(), [0, 3, 1, 4, 2, 5]);
    txn.commit().unwrap();

    let store = Store::open(&path).unwrap();
    let kinds: Vec<_> = store.snapshot().storages().map(|info| info.unwrap().kind).collect();
    assert_eq!(kinds.iter().filter(|&&kind| kind == StorageKind::Mutable).count(), 3);
    assert_eq!(kinds.iter().filter(|&&kind| kind == StorageKind::Sealed).count(), 1, "small tensors share");
    let mutable = store.load("mutable").unwrap();
    assert_eq!((mutable.size(), mutable.stride(), mutable.storage_nbytes()), (&[3, 2][..], &[2, 1][..], 12));
    assert_eq!(mutable.read::<i16>().unwrap(), [0, 3, 1, 4, 2, 5]);
    assert_eq!(store.load("empty").unwrap().size(), [0, 4]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn elements_of_a_mutable_tensor_are_not_verified_and_its_length_is() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.create_tensor("x", DType::U8, &[3 << 20], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(Store::open(&path).unwrap().load("x").unwrap().get::<u8>(&[-1]).unwrap(), 7);
    fs::write(&file, [7; 9]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
}

#[test]
fn mutable_storage_goes_with_its_last_name() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    store.save_view("tail", &x.narrow(0, 2, 2).unwrap()).unwrap();
    store.remove("x").unwrap();
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 1);
    store.remove("tail").unwrap();
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 0);
    assert_eq!(x.read::<u8>().unwrap(), [0; 4], "a loaded tensor keeps its file");
}

#[test]
fn kinds_that_cannot_be_created_are_refused() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let create = |kind| store.create_tensor("x", DType::F32, &[2], kind);
    assert_refused(create(StorageKind::Sealed), ErrorKind::InvalidArgument, &["\"x\"", "Mutable", "save"]);
    assert_refused(create(StorageKind::External), ErrorKind::InvalidArgument, &["external"]);
    let vector = Tensor::from_vec(vec![1u8], &[1]).unwrap();
    let saved = store.save_as("x", &vector, StorageKind::External);
    assert_refused(saved, ErrorKind::InvalidArgument, &["save \"x\"", "external", "Mutable or Live"]);
    let huge = store.create_tensor("x", DType::F64, &[1 << 62], StorageKind::Mutable);
    assert_refused(huge, ErrorKind::LimitExceeded, &["too large"]);
    store.save("x", &vector).unwrap();
    let mut txn = store.begin().unwrap();
    txn.on_existing(OnExisting::Refuse);
    let again = txn.create_tensor("x", DType::F32, &[2], StorageKind::Mutable);
    assert_refused(again, ErrorKind::NameExists, &["\"x\""]);
    assert_eq!(store.generation(), 2);
}

fn arange<T: Element>(size: &[usize], element: impl Fn(i64) -> T) -> Tensor {
    Tensor::from_vec((0..size.iter().product::<usize>() as i64).map(element).collect(), size).unwrap()
}

/// Views of a tensor of three axes in which no two indices are one element.
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

/// Both ways to open a store.
fn handles(path: &Path) -> [(&'static str, Store); 2] {
    // SAFETY: the tests write through the library only.
    let mapped = unsafe { Store::open_mapped(path).unwrap() };
    [("unmapped", Store::open(path).unwrap()), ("mapped", mapped)]
}

/// Does `change` to every view of a mutable tensor, opened either way, and holds the whole storage against the same done
/// by `model` to each element, which is given with its position in the view.
fn agrees<T: Element + PartialEq + Debug>(
    what: &str,
    size: &[usize],
    element: impl Fn(i64) -> T + Copy,
    change: impl Fn(&mut ExclusiveGuard<'_>) -> Result<()>,
    model: impl Fn(&Tensor) -> Vec<T>,
) {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = StoreOptions::new().durability(Durability::Process).create(&path).unwrap();
    store.save_as("x", &arange(size, element), StorageKind::Mutable).unwrap();
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
fn numbers_change_every_element_of_a_view_and_no_other() {
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
            // PyTorch rounds what is added to 16 bits first, and not what is multiplied by.
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
    /// One operand of the size of each view: some are strided, some broadcast.
    fn operands(size: &[usize]) -> Vec<Tensor> {
        let whole = arange(size, |i| i as f64 - 3.5);
        let backwards: Vec<isize> = (0..size.len() as isize).rev().collect();
        let turned: Vec<usize> = size.iter().rev().copied().collect();
        let strided = arange(&turned, |i| i as f64 * 0.25).permute(&backwards).unwrap();
        let mut operands = vec![whole.flip(&backwards).unwrap(), whole, strided];
        operands.push(arange(&[], |_| 2.5));
        if let Some(&last) = size.last() {
            operands.push(arange(&[last], |i| i as f64 * 2.));
        }
        if let Some((_, rest)) = size.split_first() {
            operands.push(arange(&[&[1], rest].concat(), |i| i as f64 / 8.));
        }
        operands
    }
    /// The operand's element for each index of the size, by the rule of broadcasting.
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
        // With dimensions on both sides the two meet in float64; without them on one, in float32, where these are exact.
        agrees("copy_", &SMALL, element, |x| x.copy_(&pick(x.size())).map(drop), model(|_, b| b));
        agrees("add_", &SMALL, element, |x| x.add_(&pick(x.size())).map(drop), model(|a, b| a + b));
        agrees("sub_", &SMALL, element, |x| x.sub_(&pick(x.size())).map(drop), model(|a, b| a - b));
        agrees("mul_", &SMALL, element, |x| x.mul_(&pick(x.size())).map(drop), model(|a, b| a * b));
    }
}

#[test]
fn views_of_several_pieces_are_changed_whole() {
    // Rows of 24 KB: stepped over, they are gaps that are not read.
    let size = [3, 125, 6000];
    let row = arange(&[6000], |i| (i % 13) as i32);
    agrees("fill_", &size, |i| i as i32, |x| x.fill_(-1).map(drop), |view| vec![-1; view.numel()]);
    agrees(
        "add_",
        &size,
        |i| i as i32,
        |x| x.add_(1).map(drop),
        |view| view.read::<i32>().unwrap().into_iter().map(|a| a + 1).collect(),
    );
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
fn operand_on_the_same_storage_counts_as_it_was_before() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().save_as("x", &arange(&[6], |i| i), StorageKind::Mutable).unwrap();
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
fn dtypes_meet_as_in_pytorch() {
    let dir = temporary();
    let store =
        StoreOptions::new().durability(Durability::Process).create(dir.path().join("x.smap")).unwrap();
    let own = |dtype: DType, size: &[usize]| {
        store.create_tensor("x", dtype, size, StorageKind::Mutable).unwrap().lock_exclusive().unwrap()
    };
    let other = |dtype: DType, size: &[usize]| arange(size, |i| i + 1).to_dtype(dtype).unwrap();
    use DType::{BF16, Bool, C64, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, U16};
    // What can be cast back is taken, whichever dtype the two meet in.
    for (dtype, theirs) in [
        (F32, F64),
        (F32, I64),
        (F16, BF16),
        (F16, I32),
        (BF16, F64),
        (I8, I64),
        (U8, I8),
        (C64, F64),
        (I32, Bool),
    ] {
        let mut x = own(dtype, &[3]);
        x.add_(&other(theirs, &[3])).unwrap();
        let expected = other(theirs, &[3]).to_dtype(dtype).unwrap();
        assert_eq!(x.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{dtype} and {theirs}");
    }
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
    // A tensor without dimensions does not widen one that has some; a number widens neither.
    own(F32, &[3]).add_(&other(F64, &[])).unwrap().add_(&other(I64, &[])).unwrap();
    own(U8, &[3]).add_(-1).unwrap();
    assert_refused(own(I64, &[]).add_(&other(F64, &[])), ErrorKind::DTypeMismatch, &["float64"]);
    // Rounded once, from float64.
    let mut x = own(F32, &[1]);
    x.fill_(1).unwrap().add_(&Tensor::from_vec(vec![2f64.powi(-24) * 1.5], &[1]).unwrap()).unwrap();
    assert_eq!(x.item::<f32>().unwrap(), 1. + f32::EPSILON);
}

#[test]
fn sizes_that_do_not_broadcast_are_refused() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
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
fn case_38_views_with_one_element_at_several_indices_are_read_and_not_written() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[3, 1], StorageKind::Mutable).unwrap();
    for (_, store) in handles(&path) {
        let x = store.load("x").unwrap();
        for view in [x.expand([3, 2]).unwrap(), x.view([3]).unwrap().unfold(0, 2, 1).unwrap()] {
            let shown = format!("{:?}", view.stride());
            let mut guard = view.lock_exclusive().unwrap();
            assert_refused(guard.fill_(1), ErrorKind::Overlapping, &["fill_", &shown]);
            assert_refused(guard.copy_(&arange(&[2], |i| i)), ErrorKind::Overlapping, &["copy_"]);
            assert_refused(guard.add_(1), ErrorKind::Overlapping, &["add_"]);
            assert_refused(guard.as_array_mut::<i64>(), ErrorKind::Overlapping, &["as_array_mut"]);
            assert!(guard.read::<i64>().unwrap().iter().all(|&element| element == 0));
        }
        x.lock_exclusive().unwrap().add_(&x.expand([3, 1]).unwrap()).unwrap();
    }
}

#[test]
fn names_of_dimensions_that_meet_must_agree() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Mutable).unwrap();
    let x = x.refine_names(&[Some("row"), Some("column")]).unwrap();
    let row = arange(&[3], |i| i);
    let named = |name| row.refine_names(&[Some(name)]).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.add_(&row).unwrap().copy_(&named("column")).unwrap();
    assert_refused(guard.add_(&named("row")), ErrorKind::NameMismatch, &["add_", "row", "column"]);
    assert_refused(guard.copy_(&named("depth")), ErrorKind::NameMismatch, &["copy_", "depth"]);
    assert_eq!(guard.read::<i64>().unwrap(), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn only_mutable_storages_are_locked() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let heap = arange(&[2], |i| i);
    store.save("sealed", &heap).unwrap();
    let sealed = store.load("sealed").unwrap();
    assert_refused(
        sealed.lock_shared(),
        ErrorKind::NotMutable,
        &["lock_shared", "sealed", "save_as", "Mutable"],
    );
    assert_refused(sealed.lock_exclusive(), ErrorKind::NotMutable, &["0000000000000001", "save_as"]);
    assert_refused(heap.lock_exclusive(), ErrorKind::NotMutable, &["memory", "save_as"]);
    let mut txn = store.begin().unwrap();
    txn.save_as("x", &heap, StorageKind::Mutable).unwrap();
    assert_refused(txn.load("x").unwrap().lock_shared(), ErrorKind::NotMutable, &["commit"]);
    txn.commit().unwrap();

    let x = store.load("x").unwrap();
    let y = store.create_tensor("y", DType::F32, &[2], StorageKind::Mutable).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    assert_refused(guard.at(&y), ErrorKind::InvalidArgument, &["0000000000000003", "0000000000000002"]);
    assert_refused(guard.at(&heap), ErrorKind::InvalidArgument, &["heap"]);
    drop(guard);
    assert_refused(x.lock_shared().unwrap().at(&sealed), ErrorKind::InvalidArgument, &["0000000000000001"]);
}

#[test]
fn elements_are_lent_under_a_guard_of_a_mapped_store_only() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().save_as("x", &arange(&[2, 3], |i| i as f32), StorageKind::Mutable).unwrap();
    let [(_, unmapped), (_, mapped)] = handles(&path);
    let x = mapped.load("x").unwrap();
    assert_refused(x.as_slice::<f32>(), ErrorKind::NotMapped, &["as_slice", "lock_shared"]);
    assert_refused(x.as_array::<f32>(), ErrorKind::NotMapped, &["lock_shared"]);
    let y = unmapped.load("x").unwrap();
    assert_refused(y.lock_shared().unwrap().as_slice::<f32>(), ErrorKind::NotMapped, &["open_mapped"]);
    assert_refused(y.lock_exclusive().unwrap().as_slice_mut::<f32>(), ErrorKind::NotMapped, &["open_mapped"]);

    let mut guard = x.lock_exclusive().unwrap();
    guard.as_slice_mut::<f32>().unwrap()[1] = 10.;
    guard.as_array_mut::<f32>().unwrap()[[1, 2]] = 20.;
    let turned = x.t().unwrap().flip([0]).unwrap();
    let mut turned = guard.at(&turned).unwrap();
    assert_refused(turned.as_slice_mut::<f32>(), ErrorKind::NotContiguous, &["as_array_mut"]);
    turned.as_array_mut::<f32>().unwrap()[[0, 0]] = 30.;
    assert_eq!(
        turned.as_array::<f32>().unwrap().as_standard_layout().as_slice().unwrap(),
        [30., 20., 10., 4., 0., 3.]
    );
    assert_refused(guard.as_slice_mut::<f64>(), ErrorKind::DTypeMismatch, &["float64"]);
    assert_eq!(guard.as_slice::<f32>().unwrap(), [0., 10., 30., 3., 4., 20.]);
    assert_eq!(y.read::<f32>().unwrap(), [0., 10., 30., 3., 4., 20.]);
    guard.flush().unwrap();
    drop(guard);
    let shared = x.lock_shared().unwrap();
    let part = shared.at(&x.select(1, 0).unwrap()).unwrap();
    drop(shared);
    assert_eq!(part.as_array::<f32>().unwrap().as_standard_layout().as_slice().unwrap(), [0., 3.]);
}

#[test]
fn case_40_tensor_without_elements_is_lent_and_changed_as_any_other() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[0, 2], StorageKind::Mutable).unwrap();
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        assert_eq!(x.lock_shared().unwrap().as_slice::<i64>().unwrap(), [0; 0], "{how}");
        let mut guard = x.lock_exclusive().unwrap();
        assert_eq!(guard.as_slice::<i64>().unwrap(), [0; 0], "{how}");
        assert_eq!(guard.as_array::<i64>().unwrap().shape(), [0, 2], "{how}");
        assert_eq!(guard.as_slice_mut::<i64>().unwrap(), [0; 0], "{how}");
        assert_eq!(guard.as_array_mut::<i64>().unwrap().shape(), [0, 2], "{how}");
        guard.fill_(1).unwrap().flush().unwrap();
    }
}

#[test]
fn view_whose_elements_ndarray_cannot_tell_apart_is_changed_by_the_guard() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().save_as("x", &arange(&[8], |i| i), StorageKind::Mutable).unwrap();
    let [_, (_, store)] = handles(&path);
    let tangled = store.load("x").unwrap().as_strided([3, 2], [2, 3], 0).unwrap();
    let mut guard = tangled.lock_exclusive().unwrap();
    assert_refused(guard.as_array_mut::<i64>(), ErrorKind::LimitExceeded, &["ndarray", "[2, 3]"]);
    guard.add_(10).unwrap();
    assert_eq!(guard.read::<i64>().unwrap(), [10, 13, 12, 15, 14, 17]);
    assert!(guard.as_array::<i64>().unwrap().iter().eq(&[10, 13, 12, 15, 14, 17]));
}

#[test]
fn case_23_guards_of_two_handles_and_threads_exclude_each_other() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[2], StorageKind::Mutable).unwrap();
    let open = || StoreOptions::new().lock_timeout(Duration::from_millis(20)).open(&path).unwrap();
    let (x, y) = (open().load("x").unwrap(), open().load("x").unwrap());

    // This thread would wait for itself: an hour, if it were not refused at once.
    let patient = StoreOptions::new().lock_timeout(Duration::from_secs(3600)).open(&path).unwrap();
    let patient = patient.load("x").unwrap();
    let exclusive = x.lock_exclusive().unwrap();
    assert_refused(patient.lock_shared(), ErrorKind::Busy, &["this thread", "an exclusive guard", "drop it"]);
    assert_refused(patient.lock_exclusive(), ErrorKind::Busy, &["this thread", "an exclusive guard"]);
    // Another thread waits, in vain.
    let elsewhere = || thread::scope(|scope| scope.spawn(|| y.lock_exclusive().map(drop)).join().unwrap());
    assert_refused(elsewhere(), ErrorKind::Busy, &["another thread", "20ms", "bin"]);
    drop(exclusive);
    elsewhere().unwrap();

    let shared = x.lock_shared().unwrap();
    let again = y.lock_shared().unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Busy, &["this thread", "a shared guard"]);
    drop(shared);
    assert_refused(elsewhere(), ErrorKind::Busy, &["another thread"]);
    thread::scope(|scope| drop(scope.spawn(|| y.lock_shared().map(drop).unwrap())));
    drop(again);
    elsewhere().unwrap();
}

#[test]
fn threads_that_add_under_the_guard_lose_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[3], StorageKind::Mutable).unwrap();
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        x.lock_exclusive().unwrap().fill_(0).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let x = handles(&path)[usize::from(how == "mapped")].1.load("x").unwrap();
                    for _ in 0..100 {
                        x.lock_exclusive().unwrap().add_(1).unwrap();
                    }
                });
            }
        });
        assert_eq!(x.read::<i64>().unwrap(), [400; 3], "{how}");
    }
}

#[test]
fn storage_that_lost_its_name_is_read_and_not_changed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::hard_link(&file, dir.path().join("backup")).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["2 names", "copy"]);
    fs::remove_file(dir.path().join("backup")).unwrap();
    drop(x.lock_exclusive().unwrap());
    fs::copy(&file, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &file).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Replaced, &["replaced", "load it again"]);
    store.remove("x").unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["lost", "new name"]);
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [0; 4]);
}

#[test]
fn storage_without_a_name_is_not_changed_though_a_reader_keeps_its_file() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    let (reader, writer) = (Store::open(&path).unwrap(), Store::open(&path).unwrap());
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        writer.copy("x", "tied").unwrap();
        writer.remove("x").unwrap();
        x.lock_exclusive()
            .unwrap_or_else(|e| panic!("{how}: another name stands on it: {e}"))
            .fill_(1)
            .unwrap();
        writer.rename("tied", "x").unwrap();
        drop(x.lock_exclusive().unwrap());
    }
    let x = reader.load("x").unwrap();
    writer.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["lost", "new name"]);
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [1; 4]);
    assert_eq!(writer.load("x").unwrap().read::<u8>().unwrap(), [0; 4]);
    assert!(reader.refresh().unwrap());
    reader.load("x").unwrap().lock_exclusive().unwrap().fill_(3).unwrap();
    assert_eq!(writer.load("x").unwrap().read::<u8>().unwrap(), [3; 4]);
}

#[test]
fn view_of_a_mutable_tensor_of_a_copied_store_is_foreign() {
    let dir = temporary();
    let (original, copy) = (dir.path().join("a.smap"), dir.path().join("b.smap"));
    let store = Store::create(&original).unwrap();
    store.save_as("x", &arange(&[4], |i| i), StorageKind::Mutable).unwrap();
    store.save("sealed", &arange(&[4], |i| i)).unwrap();
    assert!(Command::new("cp").arg("-r").args([&original, &copy]).status().unwrap().success());
    let other = Store::open(&copy).unwrap();
    let x = other.load("x").unwrap();
    x.lock_exclusive().unwrap().fill_(2).unwrap();
    assert_refused(store.save_view("view", &x), ErrorKind::ForeignStorage, &["copy", "use save"]);
    store.save_view("view", &store.load("x").unwrap()).unwrap();
    // The records are the same, and so the bytes.
    store.save_view("sealed view", &other.load("sealed").unwrap()).unwrap();
}

/// In a malformed store, one file is both a sealed storage, which is lent without a lock, and a mutable one.
#[test]
fn file_that_is_lent_as_a_sealed_storage_is_not_changed_as_a_mutable_one() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let bin = |id: u64| path.join(format!("storages/{id:016x}.bin"));
    store.save("short", &Tensor::from_vec(vec![1i64, 2], &[2]).unwrap()).unwrap();
    store.save("sealed", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[4]).unwrap()).unwrap();
    store.create_tensor("mutable", DType::I64, &[4], StorageKind::Mutable).unwrap();
    for id in [1, 3] {
        fs::remove_file(bin(id)).unwrap();
        fs::hard_link(bin(2), bin(id)).unwrap();
    }
    let [(_, unmapped), (_, mapped)] = handles(&path);
    let [changed, changed_unmapped] = [&mapped, &unmapped].map(|store| store.load("mutable").unwrap());
    let short = mapped.load("short").unwrap();
    let lent = short.as_slice::<i64>().unwrap();
    // A longer mapping of the same file comes and goes.
    drop(mapped.load("sealed").unwrap());
    for id in [1, 2] {
        fs::remove_file(bin(id)).unwrap();
    }
    for changed in [&changed, &changed_unmapped] {
        assert_refused(
            changed.lock_exclusive(),
            ErrorKind::Corrupt,
            &["mapped in this process as a sealed storage"],
        );
        assert_eq!(changed.lock_shared().unwrap().read::<i64>().unwrap(), [1, 2, 3, 4]);
    }
    assert_eq!(lent, [1, 2]);

    drop(short);
    let mut guard = changed.lock_exclusive().unwrap();
    fs::hard_link(bin(3), bin(2)).unwrap();
    assert_refused(
        mapped.load("sealed"),
        ErrorKind::Corrupt,
        &["locked in this process as a mutable storage"],
    );
    guard.fill_(9).unwrap();
}

#[test]
fn read_only_file_is_shared_and_not_changed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    if fs::OpenOptions::new().write(true).open(&file).is_ok() {
        println!("skipped the writer: permissions do not bind this user");
    } else {
        assert_refused(x.lock_exclusive(), ErrorKind::ReadOnly, &["open storage for writing"]);
    }
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [0; 4]);
}

#[test]
fn case_06_failed_flush_is_an_error_and_so_is_the_next() {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I32, &[4], StorageKind::Mutable).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.fill_(7).unwrap().flush().unwrap();
    disk.fail(|op| matches!(op, Op::Sync(_)));
    guard.fill_(8).unwrap();
    assert_refused(guard.flush(), ErrorKind::Io, &["flush storage", "0000000000000001.bin"]);
    assert_refused(guard.flush(), ErrorKind::Poisoned, &["earlier flush", "lost"]);
    // What was flushed survives a power cut, and so does the commit.
    let disk = SimulatedDisk::after_power_cut(&disk.log(), Outcome::EverythingLost);
    let store = StoreOptions::new().disk(Arc::new(disk)).open("/x.smap").unwrap();
    assert_eq!(store.load("x").unwrap().read::<i32>().unwrap(), [7; 4]);
}

#[test]
fn case_06_failed_flush_is_known_to_every_handle_and_after_loading_again() {
    let disk = SimulatedDisk::new();
    let options = StoreOptions::new().disk(Arc::new(disk.clone()));
    let store = options.create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I32, &[4], StorageKind::Mutable).unwrap();
    let other = store.create_tensor("other", DType::I32, &[4], StorageKind::Mutable).unwrap();
    let same = options.open("/x.smap").unwrap().load("x").unwrap();
    same.lock_exclusive().unwrap().fill_(9).unwrap();
    disk.fail(|op| matches!(op, Op::Sync(_)));
    assert_refused(x.lock_exclusive().unwrap().flush(), ErrorKind::Io, &["flush storage"]);
    assert_refused(same.lock_exclusive().unwrap().flush(), ErrorKind::Poisoned, &["earlier flush"]);
    drop((x, same));
    assert_refused(
        other.lock_exclusive(),
        ErrorKind::Poisoned,
        &["this handle can no longer write", "flush storage"],
    );
    let store = options.open("/x.smap").unwrap();
    let again = store.load("x").unwrap();
    assert_refused(again.lock_exclusive().unwrap().flush(), ErrorKind::Poisoned, &["earlier flush"]);
    let other = store.load("other").unwrap();
    other.lock_exclusive().unwrap().flush().unwrap();
    // The failure of either of the two files that are asked counts.
    let is_second = AtomicBool::new(false);
    disk.fail(move |op| matches!(op, Op::Sync(_)) && is_second.swap(true, Ordering::Relaxed));
    assert_refused(other.lock_exclusive().unwrap().flush(), ErrorKind::Io, &["flush storage"]);
    let other = options.open("/x.smap").unwrap().load("other").unwrap();
    assert_refused(other.lock_exclusive().unwrap().flush(), ErrorKind::Poisoned, &["earlier flush"]);
}

/// The rows of the tutorials that change elements, on a store that another handle reads.
#[test]
fn tutorials_of_changing_in_place() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let mutable = |name: &str, tensor: &Tensor| {
        store.save_as(name, tensor, StorageKind::Mutable).unwrap();
        store.load(name).unwrap()
    };
    let seen = |name: &str| Store::open(&path).unwrap().load(name).unwrap();

    // T-2: the storage's first element. T-6: a row's. T-7: a clone is another storage.
    let points = mutable("points", &Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2]).unwrap());
    points.view([6]).unwrap().select(0, 0).unwrap().lock_exclusive().unwrap().fill_(2).unwrap();
    assert_eq!(seen("points").read::<f32>().unwrap(), [2., 4., 2., 1., 3., 5.]);
    let second = points.select(0, 1).unwrap();
    second.select(0, 0).unwrap().lock_exclusive().unwrap().fill_(10).unwrap();
    assert_eq!(seen("points").read::<f32>().unwrap(), [2., 4., 10., 1., 3., 5.]);
    let clone = mutable("clone", &second.clone_data().unwrap());
    clone.lock_exclusive().unwrap().fill_(0).unwrap();
    assert_eq!(seen("points").read::<f32>().unwrap(), [2., 4., 10., 1., 3., 5.]);

    // T-12, T-14: in place keeps the storage, and a name for a view of it sees the change.
    let t1 = mutable("t1", &Tensor::from_vec(vec![6i64, 7, 8, 9], &[4]).unwrap());
    store.save_view("t2", &t1).unwrap();
    store.load("t2").unwrap().lock_exclusive().unwrap().add_(1).unwrap();
    assert_eq!(seen("t1").read::<i64>().unwrap(), [7, 8, 9, 10]);
    assert!(seen("t1").shares_storage(&seen("t2")) && seen("t2").storage_id() == t1.storage_id());

    // T-17: b = a[2:]; b[1] = 0.
    let a = mutable("a", &arange(&[5], |i| i));
    let b = a.slice(0, Some(2), None, 1).unwrap();
    b.select(0, 1).unwrap().lock_exclusive().unwrap().fill_(0).unwrap();
    assert_eq!(seen("a").read::<i64>().unwrap(), [0, 1, 2, 0, 4]);
    assert_eq!(b.read::<i64>().unwrap(), [2, 0, 4]);
}
