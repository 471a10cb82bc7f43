//! Guards: locks, borrowed elements, and other threads.

use super::arithmetic::arange;
use super::handles;
use crate::harness::{assert_refused, new_path, new_store};
use ndarray::{ArrayViewD, ArrayViewMutD};
use std::thread;
use std::time::Duration;
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions};

#[test]
fn only_mutable_storages_are_locked() {
    let (_dir, _, store) = new_store();
    let heap = arange(&[2], |i| i);
    store.save("sealed", &heap).unwrap();
    let sealed = store.load("sealed").unwrap();
    assert_refused(
        sealed.lock_shared(),
        ErrorKind::Unsupported,
        &["lock_shared", "sealed", "save_as", "Mutable"],
    );
    assert_refused(sealed.lock_exclusive(), ErrorKind::Unsupported, &["0000000000000001", "save_as"]);
    assert_refused(heap.lock_exclusive(), ErrorKind::Unsupported, &["memory", "save_as"]);
    let mut txn = store.begin().unwrap();
    txn.save_as("x", &heap, StorageKind::Mutable).unwrap();
    assert_refused(txn.load("x").unwrap().lock_shared(), ErrorKind::Unsupported, &["commit"]);
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
fn elements_are_borrowed_only_under_a_guard_of_a_mapped_store() {
    let (_dir, path) = new_path();
    Store::create(&path)
        .unwrap()
        .write(|txn| txn.save_as("x", &arange(&[2, 3], |i| i as f32), StorageKind::Mutable))
        .unwrap();
    let [(_, unmapped), (_, mapped)] = handles(&path);
    let x = mapped.load("x").unwrap();
    assert_refused(x.as_slice::<f32>(), ErrorKind::NeedsCopy, &["as_slice", "lock_shared"]);
    assert_refused(ArrayViewD::<f32>::try_from(&x), ErrorKind::NeedsCopy, &["lock_shared"]);
    let y = unmapped.load("x").unwrap();
    assert_refused(y.lock_shared().unwrap().as_slice::<f32>(), ErrorKind::NeedsCopy, &["open_mapped"]);
    assert_refused(y.lock_exclusive().unwrap().as_slice_mut::<f32>(), ErrorKind::NeedsCopy, &["open_mapped"]);

    let mut guard = x.lock_exclusive().unwrap();
    guard.as_slice_mut::<f32>().unwrap()[1] = 10.;
    ArrayViewMutD::<f32>::try_from(&mut guard).unwrap()[[1, 2]] = 20.;
    let turned = x.t().unwrap().flip([0]).unwrap();
    let mut turned = guard.at(&turned).unwrap();
    assert_refused(turned.as_slice_mut::<f32>(), ErrorKind::NeedsCopy, &["ArrayViewMut"]);
    ArrayViewMutD::<f32>::try_from(&mut turned).unwrap()[[0, 0]] = 30.;
    assert_eq!(
        ArrayViewD::<f32>::try_from(&turned).unwrap().as_standard_layout().as_slice().unwrap(),
        [30., 20., 10., 4., 0., 3.]
    );
    assert_refused(guard.as_slice_mut::<f64>(), ErrorKind::DTypeMismatch, &["float64"]);
    assert_eq!(guard.as_slice::<f32>().unwrap(), [0., 10., 30., 3., 4., 20.]);
    guard.flush().unwrap();
    drop(guard);
    assert_eq!(y.read::<f32>().unwrap(), [0., 10., 30., 3., 4., 20.]);
    let shared = x.lock_shared().unwrap();
    let part = shared.at(&x.select(1, 0).unwrap()).unwrap();
    drop(shared);
    assert_eq!(
        ArrayViewD::<f32>::try_from(&part).unwrap().as_standard_layout().as_slice().unwrap(),
        [0., 3.]
    );
}

#[test]
fn tensor_without_elements_is_borrowed_and_changed_like_any_other() {
    let (_dir, path) = new_path();
    let _ =
        Store::create(&path).unwrap().create_tensor("x", DType::I64, &[0, 2], StorageKind::Mutable).unwrap();
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        assert_eq!(x.lock_shared().unwrap().as_slice::<i64>().unwrap(), [0; 0], "{how}");
        let mut guard = x.lock_exclusive().unwrap();
        assert_eq!(guard.as_slice::<i64>().unwrap(), [0; 0], "{how}");
        assert_eq!(ArrayViewD::<i64>::try_from(&guard).unwrap().shape(), [0, 2], "{how}");
        assert_eq!(guard.as_slice_mut::<i64>().unwrap(), [0; 0], "{how}");
        assert_eq!(ArrayViewMutD::<i64>::try_from(&mut guard).unwrap().shape(), [0, 2], "{how}");
        guard.fill_(1).unwrap().flush().unwrap();
    }
}

#[test]
fn view_that_ndarray_cannot_borrow_mutably_is_changed_by_the_guard() {
    let (_dir, path) = new_path();
    Store::create(&path)
        .unwrap()
        .write(|txn| txn.save_as("x", &arange(&[8], |i| i), StorageKind::Mutable))
        .unwrap();
    let [_, (_, store)] = handles(&path);
    let tangled = store.load("x").unwrap().as_strided([3, 2], [2, 3], 0).unwrap();
    let mut guard = tangled.lock_exclusive().unwrap();
    assert_refused(
        ArrayViewMutD::<i64>::try_from(&mut guard),
        ErrorKind::LimitExceeded,
        &["ndarray", "[2, 3]"],
    );
    guard.add_(10).unwrap();
    assert_eq!(guard.read::<i64>().unwrap(), [10, 13, 12, 15, 14, 17]);
    assert!(ArrayViewD::<i64>::try_from(&guard).unwrap().iter().eq(&[10, 13, 12, 15, 14, 17]));
}

#[test]
fn guards_of_two_handles_and_threads_exclude_each_other() {
    let (_dir, path) = new_path();
    let _ = Store::create(&path).unwrap().create_tensor("x", DType::I64, &[2], StorageKind::Mutable).unwrap();
    let open = || StoreOptions::new().lock_timeout(Duration::from_millis(20)).open(&path).unwrap();
    let (x, y) = (open().load("x").unwrap(), open().load("x").unwrap());

    // This thread would wait an hour for itself if it were not refused at once.
    let patient = StoreOptions::new().lock_timeout(Duration::from_secs(3600)).open(&path).unwrap();
    let patient = patient.load("x").unwrap();
    let exclusive = x.lock_exclusive().unwrap();
    assert_refused(patient.lock_shared(), ErrorKind::Busy, &["this thread", "an exclusive guard", "drop it"]);
    assert_refused(patient.lock_exclusive(), ErrorKind::Busy, &["this thread", "an exclusive guard"]);
    // Another thread waits until its timeout.
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
