//! Elements of live tensors: their dtypes, and the operations on them.

use super::live;
use crate::harness::{assert_refused, new_path, new_store, open_mapped};
use crate::random::Random;
use half::{bf16, f16};
use std::fmt::Debug;
use stridemap::{DType, ErrorKind, LiveElement, LiveTensor, StorageKind, Store, Tensor};

/// Tests every operation on elements of one type. `sum` adds two elements.
fn elements_are_held<T: LiveElement + PartialEq + Debug>(elements: [T; 4], sum: impl Fn(T, T) -> T) {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let [a, b, c, d] = elements;
    let zero = T::default();
    let x = store.create_tensor("zeros", T::DTYPE, &[2, 2], StorageKind::Live).unwrap();
    let x = x.as_live::<T>().unwrap();
    assert_eq!(x.read().unwrap(), [zero; 4]);
    x.write_from(&[a, b, c, d]).unwrap();
    assert_eq!(x.get([0, 1]).unwrap(), b);
    assert_eq!(x.get([-1, -2]).unwrap(), c);
    x.set([1, 0], a).unwrap();
    assert_eq!(x.fetch_add([1, 1], b).unwrap(), d);
    assert_eq!(x.read().unwrap(), [a, b, a, sum(d, b)]);
    assert_eq!(x.compare_exchange([0, 0], b, c).unwrap(), Err(a));
    assert_eq!(x.compare_exchange([0, 0], a, c).unwrap(), Ok(a));
    let mut row = [zero; 2];
    x.view(|x| x.select(0, 0)).unwrap().read_into(&mut row).unwrap();
    assert_eq!(row, [c, b]);
    x.view(|x| x.select(0, -1)).unwrap().write_from(&[d, d]).unwrap();
    assert_eq!(x.read().unwrap(), [c, b, d, d]);
    x.view(|x| x.select(1, 1)).unwrap().fill(a);
    assert_eq!(x.read().unwrap(), [c, a, d, a]);
    x.flush().unwrap();

    let saved = live(&store, "saved", elements.to_vec(), &[4]);
    assert_eq!(saved.read().unwrap(), elements);
    // The bytes are those of any other storage of this dtype, and every way to copy returns them.
    let reopened = Store::open(&path).unwrap();
    assert_eq!(reopened.load("saved").unwrap().read::<T>().unwrap(), elements);
    assert_eq!(reopened.load("zeros").unwrap().t().unwrap().read::<T>().unwrap(), [c, d, a, a]);
    store.save("copy", x.tensor()).unwrap();
    x.fill(zero);
    assert_eq!(store.load("copy").unwrap().as_slice::<T>().unwrap(), [c, a, d, a]);
    let kinds: Vec<_> = store.snapshot().storages().map(|info| info.unwrap().kind).collect();
    assert_eq!(kinds, [StorageKind::Live, StorageKind::Live, StorageKind::Sealed]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn elements_of_every_live_dtype_can_be_read_written_and_added() {
    elements_are_held([1, 2, 3, u8::MAX], u8::wrapping_add);
    elements_are_held([1, 2, 3, u16::MAX], u16::wrapping_add);
    elements_are_held([1, 2, 3, u32::MAX], u32::wrapping_add);
    elements_are_held([1, 2, 3, u64::MAX], u64::wrapping_add);
    elements_are_held([-1, 2, -3, i8::MAX], i8::wrapping_add);
    elements_are_held([-1, 2, -3, i16::MAX], i16::wrapping_add);
    elements_are_held([-1, 2, -3, i32::MAX], i32::wrapping_add);
    elements_are_held([-1, -2, -3, i64::MIN], i64::wrapping_add);
    let halves = [0.1, -2.5, 3., 0.7];
    elements_are_held(halves.map(f16::from_f32), |a, b| f16::from_f32(a.to_f32() + b.to_f32()));
    elements_are_held(halves.map(bf16::from_f32), |a, b| bf16::from_f32(a.to_f32() + b.to_f32()));
    elements_are_held([0.1f32, -2.5, 3., 0.7], |a, b| a + b);
    elements_are_held([0.1f64, -2.5, 3., 0.7], |a, b| a + b);
}

#[test]
fn other_dtypes_cannot_be_live() {
    let (_dir, _, store) = new_store();
    let live = [
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
        "float32", "float64",
    ];
    let mut live_count = 0;
    for &dtype in DType::ALL {
        let name = dtype.name();
        let created = store.create_tensor(name, dtype, &[2], StorageKind::Live);
        let saved =
            store.write(|txn| txn.save_as(name, &Tensor::zeros(dtype, &[2]).unwrap(), StorageKind::Live));
        if live.contains(&name) {
            assert_eq!(created.unwrap().dtype(), dtype);
            saved.unwrap();
            live_count += 1;
        } else {
            let says = [&*format!("{name:?}"), "8 to 64 bits", "float16, bfloat16, float32 and float64"];
            assert_refused(created.map(drop), ErrorKind::InvalidArgument, &says);
            assert_refused(saved, ErrorKind::InvalidArgument, &says);
        }
    }
    assert_eq!(live_count, live.len());
}

/// Adds 16-bit floats of all kinds to each other. `sum` returns the bits of a sum.
fn sums_are_rounded<T: LiveElement>(of_bits: fn(u16) -> T, to_bits: fn(T) -> u16, sum: fn(u16, u16) -> u16) {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let x = live(&open_mapped(&path), "x", vec![T::default()], &[]);
    let mut random = Random::new(7);
    for _ in 0..100_000 {
        let (a, b) = (random.next() as u16, random.next() as u16);
        x.set((), of_bits(a)).unwrap();
        assert_eq!(to_bits(x.fetch_add((), of_bits(b)).unwrap()), a);
        assert_eq!(to_bits(x.get(()).unwrap()), sum(a, b), "{a:#x} and {b:#x}");
    }
}

#[test]
fn half_precision_sums_round_to_nearest() {
    // float64 keeps everything that matters before rounding. The bits of a NaN are unspecified.
    sums_are_rounded(f16::from_bits, f16::to_bits, |a, b| {
        let (a, b) = (f16::from_bits(a), f16::from_bits(b));
        if (a + b).is_nan() { (a + b).to_bits() } else { f16::from_f64(a.to_f64() + b.to_f64()).to_bits() }
    });
    sums_are_rounded(bf16::from_bits, bf16::to_bits, |a, b| {
        let (a, b) = (bf16::from_bits(a), bf16::from_bits(b));
        if (a + b).is_nan() { (a + b).to_bits() } else { bf16::from_f64(a.to_f64() + b.to_f64()).to_bits() }
    });
}

#[test]
fn elements_are_compared_by_their_bits() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let (nan, other_nan) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002));
    let x = live(&open_mapped(&path), "x", vec![nan, -0.], &[2]);
    let bits = |exchanged: Result<f32, f32>| exchanged.map(f32::to_bits).map_err(f32::to_bits);
    let exchange = |i, current, new| bits(x.compare_exchange([i], current, new).unwrap());
    assert_eq!(exchange(0, other_nan, 1.), Err(nan.to_bits()));
    assert_eq!(exchange(0, nan, other_nan), Ok(nan.to_bits()));
    assert_eq!(exchange(1, 0., 1.), Err((-0f32).to_bits()));
    assert_eq!(exchange(1, -0., 0.), Ok((-0f32).to_bits()));
    assert_eq!(x.read().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>(), [other_nan.to_bits(), 0]);
    // An addition to a NaN ends, although a NaN does not equal itself.
    assert!(x.fetch_add([0], 1.).unwrap().is_nan() && x.get([0]).unwrap().is_nan());
}

#[test]
fn live_tensor_can_be_sent_to_other_threads() {
    fn assert_sendable<T: Send + Sync + Clone + 'static>() {}
    assert_sendable::<LiveTensor<f32>>();
    assert_sendable::<LiveTensor<u8>>();
}

#[test]
fn tensor_without_elements_can_be_live() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let x = store.create_tensor("x", DType::F32, &[0, 3], StorageKind::Live).unwrap();
    let x = x.as_live::<f32>().unwrap();
    assert_eq!(x.read().unwrap(), [0.; 0]);
    x.write_from(&[]).unwrap();
    x.fill(1.);
    x.flush().unwrap();
    assert_refused(x.get([0, 0]), ErrorKind::OutOfRange, &["size 0"]);
    let scalar = live(&store, "scalar", vec![3i8], &[]);
    assert_eq!(scalar.fetch_add((), 4).unwrap(), 3);
    assert_eq!(scalar.read().unwrap(), [7]);
}
