//! Mutable storages: created, locked, changed in place.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use stridemap::{DType, Element, ErrorKind, OnExisting, StorageKind, Store, StoreOptions, Tensor};

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
    assert_eq!(store.verify(|_| ()).unwrap(), []);
}

#[test]
fn elements_of_a_mutable_tensor_are_not_verified_and_its_length_is() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.create_tensor("x", DType::U8, &[3 << 20], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap(), []);
    assert_eq!(Store::open(&path).unwrap().load("x").unwrap().get::<u8>(&[-1]).unwrap(), 7);
    fs::write(&file, [7; 9]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().len(), 1);
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
    assert_refused(create(StorageKind::Live), ErrorKind::InvalidArgument, &["not", "live", "Mutable"]);
    assert_refused(create(StorageKind::External), ErrorKind::InvalidArgument, &["external"]);
    let vector = Tensor::from_vec(vec![1u8], &[1]).unwrap();
    let saved = store.save_as("x", &vector, StorageKind::Live);
    assert_refused(saved, ErrorKind::InvalidArgument, &["save \"x\"", "live"]);
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

/// Both ways to open a store.
fn handles(path: &Path) -> [(&'static str, Store); 2] {
    // SAFETY: the tests write through the library only.
    let mapped = unsafe { Store::open_mapped(path).unwrap() };
    [("unmapped", Store::open(path).unwrap()), ("mapped", mapped)]
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
    let turned = x.t().unwrap().flip(&[0]).unwrap();
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
fn guards_of_two_handles_and_threads_exclude_each_other() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[2], StorageKind::Mutable).unwrap();
    let open = || StoreOptions::new().lock_timeout(Duration::from_millis(20)).open(&path).unwrap();
    let (x, y) = (open().load("x").unwrap(), open().load("x").unwrap());

    // This thread would wait for itself.
    let exclusive = x.lock_exclusive().unwrap();
    let before = Instant::now();
    assert_refused(y.lock_shared(), ErrorKind::Busy, &["this thread", "an exclusive guard", "drop it"]);
    assert_refused(x.lock_exclusive(), ErrorKind::Busy, &["this thread", "an exclusive guard"]);
    assert!(before.elapsed() < Duration::from_millis(20));
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
    assert_refused(x.lock_exclusive(), ErrorKind::LockReplaced, &["replaced", "load it again"]);
    store.remove("x").unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["lost", "new name"]);
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [0; 4]);
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
