//! Mutable storages: creating, locking, and changing in place.

mod arithmetic;
mod guards;
pub(crate) mod interrupted;
mod reading;
mod refused;
pub(crate) mod warm_locks;

use std::fs;
use std::path::Path;

use stridemap::{DType, StorageKind, Store, Tensor};

use crate::harness::{new_store, open_mapped};

#[test]
fn each_mutable_tensor_has_its_own_storage() {
    let (_dir, path, store) = new_store();
    let zeros = store.create_tensor("zeros", DType::F32, &[2, 3], StorageKind::Mutable).unwrap();
    assert_eq!((zeros.size(), zeros.stride(), zeros.storage_offset()), (&[2, 3][..], &[3, 1][..], 0));
    assert_eq!(zeros.read::<f32>().unwrap(), [0.; 6]);

    let elements = Tensor::from_vec((0..6i16).collect(), &[2, 3]).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("sealed", &elements).unwrap();
    txn.save_as("mutable", &elements.t().unwrap(), StorageKind::Mutable).unwrap();
    txn.save_as("sealed too", &elements, StorageKind::Sealed).unwrap();
    let _ = txn.create_tensor("empty", DType::Bool, &[0, 4], StorageKind::Mutable).unwrap();
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
fn verify_checks_the_length_of_a_mutable_tensor_but_not_its_elements() {
    let (_dir, path, store) = new_store();
    let _ = store.create_tensor("x", DType::U8, &[3 << 20], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::write(&file, [vec![7; 3 << 20], vec![0]].concat()).unwrap();
    assert!(store.verify(|_| ()).unwrap().is_whole());
    assert_eq!(Store::open(&path).unwrap().load("x").unwrap().get::<u8>(&[-1]).unwrap(), 7);
    fs::write(&file, [7; 9]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
}

#[test]
fn mutable_storage_is_deleted_with_its_last_name() {
    let (_dir, path, store) = new_store();
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    store.save_view("tail", &x.narrow(0, 2, 2).unwrap()).unwrap();
    store.remove("x").unwrap();
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 1);
    store.remove("tail").unwrap();
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 0);
    assert_eq!(x.read::<u8>().unwrap(), [0; 4], "a loaded tensor keeps its file");
}

/// Opens a store in both ways.
fn handles(path: &Path) -> [(&'static str, Store); 2] {
    let mapped = open_mapped(path);
    [("unmapped", Store::open(path).unwrap()), ("mapped", mapped)]
}
