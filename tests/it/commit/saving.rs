//! Saving, loading, views, transactions, snapshots.

use std::fs;
use std::path::Path;

use ndarray::{ArrayViewD, array};
use num_complex::Complex;
use stridemap::{DType, Element, ErrorKind, Store, Tensor};

use crate::harness::{arange, new_path, new_store, open_mapped};

fn storages_bytes(path: &Path) -> u64 {
    fs::read_dir(path.join("storages")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn saved_tensor_and_its_views_can_be_loaded_after_reopening() {
    let (_dir, path, store) = new_store();
    store.save("points", &array![[1f32, 4.], [2., 1.], [3., 5.]]).unwrap();
    let points = store.load("points").unwrap();
    let bytes_before = storages_bytes(&path);
    store.save_view("points_t", &points.t().unwrap()).unwrap();
    store.save_view("reversed", &points.flip([0]).unwrap()).unwrap();
    assert_eq!(storages_bytes(&path), bytes_before, "a view moved data");
    drop(store);

    let store = Store::open(&path).unwrap();
    let transposed = store.load("points_t").unwrap();
    assert_eq!((transposed.size(), transposed.stride()), (&[2, 3][..], &[1, 2][..]));
    assert_eq!(transposed.read::<f32>().unwrap(), [1., 2., 3., 4., 1., 5.]);
    assert!(transposed.shares_storage(&store.load("points").unwrap()));
    assert_eq!(store.load("reversed").unwrap().read::<f32>().unwrap(), [3., 5., 2., 1., 1., 4.]);
}

#[test]
fn mapped_tensor_is_borrowed_without_a_copy() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap().save("points", &array![[1f32, 4.], [2., 1.], [3., 5.]]).unwrap();
    let mapped = open_mapped(&path);
    let other_handle = open_mapped(&path);
    let points = mapped.load("points").unwrap();
    assert_eq!(points.as_slice::<f32>().unwrap(), [1., 4., 2., 1., 3., 5.]);
    let view = points.t().unwrap().flip([1]).unwrap();
    let array = ArrayViewD::<f32>::try_from(&view).unwrap();
    assert_eq!(array, array![[3f32, 2., 1.], [5., 1., 4.]].into_dyn());
    let start = points.as_slice::<f32>().unwrap().as_ptr_range();
    assert!(start.contains(&array.as_ptr()), "the array is a copy");
    let again = other_handle.load("points").unwrap();
    assert_eq!(again.as_slice::<f32>().unwrap().as_ptr_range(), start, "the storage is mapped twice");
}

#[test]
fn borrowed_elements_outlive_their_name_and_their_store() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap().save("x", &arange(&[1000])).unwrap();
    let store = open_mapped(&path);
    let (mapped, read) = (store.load("x").unwrap(), Store::open(&path).unwrap().load("x").unwrap());
    store.remove("x").unwrap();
    store.gc().unwrap();
    drop(store);
    assert_eq!(storages_bytes(&path), 0);
    assert_eq!(mapped.as_slice::<i64>().unwrap()[999], 999);
    assert_eq!(read.get::<i64>(&[-1]).unwrap(), 999);
}

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(elements: &[T]) {
    let (_dir, _, store) = new_store();
    let tensor = Tensor::from_vec(elements.to_vec(), &[elements.len()]).unwrap();
    assert_eq!(tensor.dtype(), T::DTYPE);
    store.save("x", &tensor).unwrap();
    let loaded = store.load("x").unwrap();
    assert_eq!((loaded.dtype(), loaded.read::<T>().unwrap().as_slice()), (T::DTYPE, elements));
    assert_eq!(loaded.select(0, 1).unwrap().item::<T>().unwrap(), elements[1]);
}

#[test]
fn every_rust_element_type_round_trips() {
    round_trip(&[true, false, true]);
    round_trip(&[0u8, 255]);
    round_trip(&[0u16, u16::MAX]);
    round_trip(&[0u32, u32::MAX]);
    round_trip(&[0u64, u64::MAX]);
    round_trip(&[i8::MIN, i8::MAX]);
    round_trip(&[i16::MIN, i16::MAX]);
    round_trip(&[i32::MIN, i32::MAX]);
    round_trip(&[i64::MIN, i64::MAX]);
    round_trip(&[half::f16::from_f32(-1.5), half::f16::MAX]);
    round_trip(&[half::bf16::from_f32(-1.5), half::bf16::MAX]);
    round_trip(&[f32::MIN_POSITIVE, f32::INFINITY]);
    round_trip(&[f64::MIN_POSITIVE, -0.]);
    round_trip(&[Complex::new(1f32, -2.), Complex::new(0., 1.)]);
    round_trip(&[Complex::new(1f64, -2.), Complex::new(0., 1.)]);
}

#[test]
fn every_dtype_round_trips_as_bytes_and_one_commit_holds_them_all() {
    let (_dir, path, store) = new_store();
    let mut txn = store.begin().unwrap();
    let bytes_of = |dtype: DType| -> Vec<u8> { (0..3 * dtype.itemsize() as u8).map(|i| i % 2).collect() };
    for &dtype in DType::ALL {
        txn.save(dtype.name(), &Tensor::from_bytes(dtype, &[3], &bytes_of(dtype)).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 1, "small tensors share one storage");
    let store = Store::open(&path).unwrap();
    for &dtype in DType::ALL {
        let tensor = store.load(dtype.name()).unwrap();
        assert_eq!((tensor.dtype(), tensor.to_bytes().unwrap()), (dtype, bytes_of(dtype)));
        assert_eq!(tensor.storage_offset() * dtype.itemsize() % 64, 0, "{dtype} is not aligned to 64 bytes");
        assert_eq!(tensor.slice(0, None, None, -2).unwrap().numel(), 2);
    }
}

#[test]
fn empty_single_and_rank_zero_tensors_round_trip() {
    let (_dir, path, store) = new_store();
    store.save("empty", &Tensor::from_vec(Vec::<f64>::new(), &[3, 0, 2]).unwrap()).unwrap();
    store.save("scalar", &Tensor::from_vec(vec![7i32], &[]).unwrap()).unwrap();
    store.save("ones", &Tensor::from_vec(vec![7i32], &[1, 1, 1]).unwrap()).unwrap();
    for store in [Store::open(&path).unwrap(), open_mapped(&path)] {
        let empty = store.load("empty").unwrap();
        assert_eq!((empty.size(), empty.numel(), empty.is_contiguous()), (&[3, 0, 2][..], 0, true));
        assert!(empty.read::<f64>().unwrap().is_empty());
        let scalar = store.load("scalar").unwrap();
        assert_eq!((scalar.ndim(), scalar.item::<i32>().unwrap(), scalar.get::<i32>(()).unwrap()), (0, 7, 7));
        assert_eq!(store.load("ones").unwrap().t().unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(store.load("ones").unwrap().view(()).unwrap().item::<i32>().unwrap(), 7);
    }
    store.save_view("empty.view", &store.load("empty").unwrap().select(0, 2).unwrap()).unwrap();
    assert_eq!(store.load("empty.view").unwrap().size(), [0, 2]);
}

#[test]
fn transaction_reads_its_own_changes_and_saves_tied_tensors_in_one_commit() {
    let (_dir, _, store) = new_store();
    store.save("old", &arange(&[3])).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("small", &arange(&[12])).unwrap();
    txn.save("large", &arange(&[600_000])).unwrap();
    for name in ["small", "large"] {
        let tied = txn.load(name).unwrap();
        assert_eq!(tied.get::<i64>(&[5]).unwrap(), 5);
        txn.save_view(&format!("{name}.tied"), &tied.slice(0, Some(1), None, 2).unwrap()).unwrap();
    }
    txn.save("small.2", &arange(&[2])).unwrap();
    txn.rename("old", "new").unwrap();
    txn.remove("small").unwrap();
    txn.set_attribute("", "by", "test").unwrap();
    assert_eq!(txn.names().unwrap(), ["large", "large.tied", "new", "small.2", "small.tied"]);
    assert_eq!(store.names().unwrap(), ["old"], "seen before the commit");
    assert_eq!(txn.commit().unwrap(), 3);
    assert_eq!(store.names().unwrap(), ["large", "large.tied", "new", "small.2", "small.tied"]);
    assert_eq!(store.load("small.tied").unwrap().read::<i64>().unwrap(), [1, 3, 5, 7, 9, 11]);
    assert!(store.load("large").unwrap().shares_storage(&store.load("large.tied").unwrap()));
    assert!(!store.load("large").unwrap().shares_storage(&store.load("small.tied").unwrap()));
    assert_eq!(store.attributes("")["by"], "test");
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn storage_is_deleted_with_its_last_name_and_its_id_is_not_reused() {
    let (_dir, path, store) = new_store();
    store.save("a", &arange(&[10])).unwrap();
    store.save_view("b", &store.load("a").unwrap().select(0, 3).unwrap()).unwrap();
    store.remove("a").unwrap();
    assert_eq!(store.load("b").unwrap().item::<i64>().unwrap(), 3);
    store.rename("b", "c").unwrap();
    store.remove("c").unwrap();
    assert_eq!(storages_bytes(&path), 0, "the space did not come back with the commit");
    store.save("d", &arange(&[10])).unwrap();
    assert_eq!(store.load("d").unwrap().storage_id(), Some(2));
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn refresh_moves_a_handle_and_keeps_the_changes_of_other_writers() {
    let (_dir, path) = new_path();
    let (one, two) = (Store::create(&path).unwrap(), Store::open(&path).unwrap());
    let mut slow = two.begin().unwrap();
    slow.save("two", &arange(&[2])).unwrap();
    one.save("one", &arange(&[1])).unwrap();
    slow.commit().unwrap();
    assert_eq!(two.names().unwrap(), ["one", "two"], "the slower commit lost the faster one");
    assert_eq!(one.names().unwrap(), ["one"]);
    assert!(one.refresh().unwrap());
    assert!(!one.refresh().unwrap());
    assert_eq!(one.names().unwrap(), ["one", "two"]);

    let stale = two.load("one").unwrap();
    let mut late = two.begin().unwrap();
    late.save_view("late", &stale).unwrap();
    let mut remover = two.begin().unwrap();
    remover.remove("one").unwrap();
    one.remove("one").unwrap();
    assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(remover.commit().unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(Store::open(&path).unwrap().names().unwrap(), ["two"]);
}

#[test]
fn slices_arrays_vectors_and_scalars_can_be_saved() {
    let (_dir, _, store) = new_store();
    let list = vec![true, false, true];
    store.save("vector", &list).unwrap();
    store.save("slice", &list[1..]).unwrap();
    store.save("cube", &[[[1u8, 2], [3, 4]], [[5, 6], [7, 8]]]).unwrap();
    store.save("none", &[[0f64; 0]; 3]).unwrap();
    store.save("complex", &Complex::new(1f32, -1.)).unwrap();
    store.write(|txn| txn.save_as("live", &7i64, stridemap::StorageKind::Live)).unwrap();
    assert_eq!(store.load("vector").unwrap().read::<bool>().unwrap(), list);
    assert_eq!(store.load("slice").unwrap().read::<bool>().unwrap(), list[1..]);
    let cube = store.load("cube").unwrap();
    assert_eq!((cube.size(), cube.read::<u8>().unwrap()), (&[2, 2, 2][..], (1..=8).collect()));
    assert_eq!(store.load("none").unwrap().size(), [3, 0]);
    assert_eq!(store.load("complex").unwrap().item::<Complex<f32>>().unwrap(), Complex::new(1., -1.));
    assert_eq!(store.load("live").unwrap().item::<i64>().unwrap(), 7);

    store.save("log", &vec![[0f32; 2]; 1 << 20]).unwrap();
    assert_eq!(store.append("log", &[[1f32, 2.]]).unwrap(), 1 << 20..(1 << 20) + 1);
    assert_eq!(store.load("log").unwrap().select(0, -1).unwrap().read::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn handles_print_as_one_short_line() {
    let (_dir, path, store) = new_store();
    let matrix = Tensor::zeros(DType::F32, &[2, 3]).unwrap().refine_names(&["row", "..."]).unwrap();
    store.write(|txn| txn.save_as("x", &matrix, stridemap::StorageKind::Mutable)).unwrap();
    let x = store.load("x").unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("y", &matrix).unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    let on = format!("({path:?}, on generation 2, changes 2)");
    assert_eq!(format!("{store:#?}"), format!("Store({path:?}, generation 2)"));
    assert_eq!(format!("{:#?}", store.snapshot()), format!("Snapshot({path:?}, generation 2)"));
    assert_eq!(format!("{txn:#?}"), format!("Transaction{on}"));
    let header = "float32, size [2, 3], stride [3, 1], storage_offset 0, names [Some(\"row\"), None]";
    assert_eq!(format!("{matrix:#?}"), format!("Tensor({header}, storage heap)"));
    let header = format!("Tensor({header}, storage 0000000000000001)");
    assert_eq!(format!("{x:#?}"), header);
    assert_eq!(format!("{:#?}", x.lock_shared().unwrap()), format!("SharedGuard({header})"));
    assert_eq!(format!("{:#?}", x.lock_exclusive().unwrap()), format!("ExclusiveGuard({header})"));
}

#[test]
fn idle_handles_and_loaded_tensors_keep_the_space_of_removed_tensors() {
    let (_dir, path, store) = new_store();
    store.save("x", &vec![1u8; 1000]).unwrap();
    let idle = Store::open(&path).unwrap();
    let loaded = idle.load("x").unwrap();
    store.save("x", &2u8).unwrap();
    store.gc().unwrap();
    assert!(storages_bytes(&path) >= 1000, "the files of a handle's generation were deleted");
    assert!(idle.refresh().unwrap());
    store.gc().unwrap();
    assert!(storages_bytes(&path) < 1000);
    assert_eq!(loaded.read::<u8>().unwrap(), vec![1; 1000]);
}
