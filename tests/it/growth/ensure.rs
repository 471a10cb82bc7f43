//! Tensors that are created for appending unless they exist.

use stridemap::{DType, ErrorKind, Result, StorageKind, Store, Tensor};

use crate::harness::{assert_refused, filled};
use crate::support::temporary;

fn ensure(store: &Store, name: &str, dtype: DType, size: &[usize]) -> Result<()> {
    store.write(|txn| txn.ensure_growable(name, dtype, size, 100))
}

#[test]
fn tensor_is_created_once_and_keeps_its_rows() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    for count in 1..4i64 {
        ensure(&store, "log", DType::I64, &[0, 2]).unwrap();
        let generation = store.generation();
        ensure(&store, "log", DType::I64, &[0, 2]).unwrap();
        assert_eq!(store.generation(), generation, "nothing is committed for a tensor that exists");
        store.append("log", &[[count, -count]]).unwrap();
    }
    assert_eq!(store.load("log").unwrap().read::<i64>().unwrap(), [1, -1, 2, -2, 3, -3]);
    // In the transaction that made it.
    store
        .write(|txn| {
            txn.ensure_growable("new", DType::U8, &[0], 0)?;
            txn.ensure_growable("new", DType::U8, &[0], 0)
        })
        .unwrap();
}

#[test]
fn tensor_with_other_rows_or_that_cannot_grow_is_refused() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    ensure(&store, "log", DType::I64, &[0, 2]).unwrap();
    assert_refused(ensure(&store, "log", DType::I32, &[0, 2]), ErrorKind::DTypeMismatch, &["log", "int64"]);
    assert_refused(ensure(&store, "log", DType::I64, &[0, 3]), ErrorKind::SizeMismatch, &["log", "[0, 3]"]);
    assert_refused(ensure(&store, "log", DType::I64, &[]), ErrorKind::SizeMismatch, &["log"]);
    assert_refused(ensure(&store, "none", DType::I64, &[]), ErrorKind::SizeMismatch, &["none"]);
    store.write(|txn| txn.save_as("mutable", &filled(4, 1i64), StorageKind::Mutable)).unwrap();
    assert_refused(ensure(&store, "mutable", DType::I64, &[0]), ErrorKind::Unsupported, &["mutable"]);
    let matrix = Tensor::from_vec(vec![1i64, 2, 3, 4], &[2, 2]).unwrap();
    store.save("matrix", &matrix).unwrap();
    store.save_view("turned", &store.load("matrix").unwrap().t().unwrap()).unwrap();
    assert_refused(ensure(&store, "turned", DType::I64, &[0, 2]), ErrorKind::Unsupported, &["turned"]);
    assert_eq!(store.names().unwrap(), ["log", "matrix", "mutable", "turned"]);
}

#[test]
fn two_writers_that_create_the_tensor_at_once_make_one() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let mut slower = store.begin().unwrap();
    slower.ensure_growable("log", DType::U8, &[0], 0).unwrap();
    ensure(&store, "log", DType::U8, &[0]).unwrap();
    store.append("log", &[7u8]).unwrap();
    let refused = slower.commit().unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.is_retryable(), "{refused}");
    ensure(&store, "log", DType::U8, &[0]).unwrap();
    assert_eq!(store.load("log").unwrap().read::<u8>().unwrap(), [7]);
}
