//! Tensors and files that cannot be live, and flushes that fail.

use crate::harness::hooked::Hooked;
use crate::harness::processes::run_to_end;
use crate::harness::{assert_refused, new_path, new_store, open_mapped};
use crate::simulated::SimulatedDisk;
use half::f16;
use ndarray::ArrayViewD;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

#[test]
fn tensors_that_cannot_be_live_are_refused() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let heap = Tensor::from_vec(vec![1f32; 6], &[2, 3]).unwrap();
    store.save("sealed", &heap).unwrap();
    store.write(|txn| txn.save_as("mutable", &heap, StorageKind::Mutable)).unwrap();
    store.write(|txn| txn.save_as("live", &heap, StorageKind::Live)).unwrap();
    let load = |name| store.load(name).unwrap();

    let not_live = ErrorKind::Unsupported;
    assert_refused(heap.as_live::<f32>(), not_live, &["as_live", "memory", "save_as", "StorageKind::Live"]);
    assert_refused(load("sealed").as_live::<f32>(), not_live, &["0000000000000001", "sealed", "save_as"]);
    assert_refused(load("mutable").as_live::<f32>(), not_live, &["mutable", "lock_exclusive", "save_as"]);
    let mut txn = store.begin().unwrap();
    let _ = txn.create_tensor("new", DType::F32, &[2], StorageKind::Live).unwrap();
    assert_refused(txn.load("new").unwrap().as_live::<f32>(), not_live, &["not committed", "load it"]);
    drop(txn);

    let x = load("live");
    let unmapped = Store::open(&path).unwrap().load("live").unwrap();
    assert_refused(unmapped.as_live::<f32>(), ErrorKind::Unsupported, &["as_live", "open_mapped"]);
    assert_refused(x.as_live::<i32>(), ErrorKind::DTypeMismatch, &["as_live::<i32>", "float32"]);
    let wide = x.narrow(1, 0, 2).unwrap().view_dtype(DType::F16).unwrap();
    assert_refused(wide.as_live::<f16>(), ErrorKind::DTypeMismatch, &["4 bytes at a time", "float16 has 2"]);
    let same_width = x.view_dtype(DType::I32).unwrap().as_live::<i32>().unwrap();
    assert_eq!(same_width.get([0, 0]).unwrap(), 1f32.to_bits() as i32);
    for view in [x.expand([2, 2, 3]).unwrap(), x.unfold(1, 2, 1).unwrap()] {
        let shown = format!("{:?}", view.stride());
        assert_refused(view.as_live::<f32>(), ErrorKind::Unsupported, &["as_live", &shown]);
    }

    let live = x.as_live::<f32>().unwrap();
    assert_refused(
        live.view(|_| Ok(load("mutable"))),
        ErrorKind::InvalidArgument,
        &["0000000000000002", "0000000000000003"],
    );
    assert_refused(live.view(|_| Ok(heap.clone())), ErrorKind::InvalidArgument, &["heap"]);
    assert_refused(live.view(|_| Ok(wide.clone())), ErrorKind::DTypeMismatch, &["view", "float16"]);
    assert_refused(live.view(|x| x.expand([2, 2, 3])), ErrorKind::Unsupported, &["view:"]);
    let shown = ["size [2, 3] with stride [3, 1]"];
    assert_refused(live.get([2, 0]), ErrorKind::OutOfRange, &["get([2, 0])", "index 2", "axis 0", shown[0]]);
    assert_refused(live.set([0, -4], 1.), ErrorKind::OutOfRange, &["set([0, -4])", "axis 1"]);
    assert_refused(
        live.fetch_add([0], 1.),
        ErrorKind::SizeMismatch,
        &["fetch_add([0])", "one position per axis", "rank 2"],
    );
    assert_refused(
        live.compare_exchange([0; 3], 1., 1.),
        ErrorKind::OutOfRange,
        &["one position per axis", "rank 2"],
    );
    assert_refused(
        live.read_into(&mut [0.; 5]),
        ErrorKind::SizeMismatch,
        &["read_into", "6 elements", "has length 5"],
    );
    assert_refused(
        live.write_from(&[0.; 7]),
        ErrorKind::SizeMismatch,
        &["write_from", "6 elements", "has length 7"],
    );
    let row = live.view(|live| live.select(0, 0)).unwrap();
    assert_refused(row.write_from(&[0.; 2]), ErrorKind::SizeMismatch, &["write_from", "3 elements"]);
    assert_eq!(live.read().unwrap(), [1.; 6]);

    for refused in [x.as_slice::<f32>().map(drop), ArrayViewD::<f32>::try_from(&x).map(drop)] {
        assert_refused(refused, ErrorKind::NeedsCopy, &["live storage", "as_live", "read"]);
    }
    for refused in [x.lock_shared().map(drop), x.lock_exclusive().map(drop)] {
        assert_refused(refused, ErrorKind::Unsupported, &["lock_", "live", "as_live"]);
    }

    let simulated = StoreOptions::new().disk(Arc::new(SimulatedDisk::new())).create("/x.smap").unwrap();
    let x = simulated.create_tensor("x", DType::I32, &[2], StorageKind::Live).unwrap();
    assert_refused(x.as_live::<i32>(), ErrorKind::Unsupported, &["as_live", "open_mapped"]);
}

#[test]
fn unnamed_or_renamed_storage_is_not_mapped_for_writing() {
    let (dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Live).unwrap();
    let file = path.join("storages/0000000000000001.bin");
    fs::hard_link(&file, dir.path().join("backup")).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Conflict, &["as_live", "2 names", "copy"]);
    fs::remove_file(dir.path().join("backup")).unwrap();
    let live = x.as_live::<u8>().unwrap();
    fs::copy(&file, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &file).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Stale, &["replaced", "load it again"]);
    let (reader, x) = (open_mapped(&path), open_mapped(&path).load("x").unwrap());
    let snapshot = reader.snapshot();
    store.remove("x").unwrap();
    assert_refused(
        x.as_live::<u8>(),
        ErrorKind::Conflict,
        &["no tensor of the newest generation", "new name"],
    );
    drop((snapshot, reader));
    // An open live tensor can still be used, but no other process can open it.
    live.fill(3);
    assert_eq!(live.read().unwrap(), [3; 4]);
}

#[test]
fn short_file_is_corrupt_and_holes_are_filled_before_mapping() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let x = store.create_tensor("x", DType::U8, &[1 << 20], StorageKind::Live).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    file.set_len(9).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Corrupt, &["as_live", "9 bytes", "1048576"]);
    file.set_len(1 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20, "no hole");
    let live = x.as_live::<u8>().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20, "a full disk would be a fault");
    assert_eq!(live.get([-1]).unwrap(), 0);
}

#[test]
fn read_only_file_can_be_read_but_is_not_live() {
    let (dir, path, store) = new_store();
    let vector = Tensor::from_vec(vec![7i64, 8], &[2]).unwrap();
    store.write(|txn| txn.save_as("x", &vector, StorageKind::Live)).unwrap();
    if fs::metadata(&path).unwrap().uid() != 0 {
        println!("skipped: only root can give its rights up");
        return;
    }
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    run_to_end("live as nobody", &path);
}

#[test]
fn failed_commit_refuses_the_flush_of_live_elements() {
    let (_dir, path) = new_path();
    let _ = Store::create(&path).unwrap().create_tensor("x", DType::I32, &[4], StorageKind::Live).unwrap();
    let disk = Hooked::before(|operation, path| match operation == "sync_dir" && path.ends_with("meta") {
        true => Err(io::Error::other("injected fault")),
        false => Ok(()),
    });
    // SAFETY: the tests write through the library only.
    let store = unsafe { StoreOptions::new().disk(Arc::new(disk)).open_mapped(&path).unwrap() };
    let x = store.load("x").unwrap().as_live::<i32>().unwrap();
    assert_refused(store.write(|txn| txn.copy("x", "y")), ErrorKind::CommitUnknown, &["injected fault"]);
    assert_refused(x.flush(), ErrorKind::Poisoned, &["this handle can no longer write", "injected fault"]);
    // Another handle of the process may flush, because no flush of the elements has failed.
    open_mapped(&path).load("x").unwrap().as_live::<i32>().unwrap().flush().unwrap();
}

#[test]
fn failed_flush_of_live_elements_is_reported_to_every_handle() {
    let (_dir, path) = new_path();
    let _ = Store::create(&path).unwrap().create_tensor("x", DType::I32, &[4], StorageKind::Live).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hook = {
        let fails = Arc::clone(&fails);
        move |operation: &str, _: &Path| match operation == "sync" && fails.load(Ordering::Relaxed) {
            true => Err(io::Error::other("injected fault")),
            false => Ok(()),
        }
    };
    let options = StoreOptions::new().disk(Arc::new(Hooked::before(hook)));
    // SAFETY: the tests write through the library only.
    let store = unsafe { options.open_mapped(&path).unwrap() };
    let x = store.load("x").unwrap().as_live::<i32>().unwrap();
    x.fill(1);
    x.flush().unwrap();
    fails.store(true, Ordering::Relaxed);
    assert_refused(x.flush(), ErrorKind::Io, &["flush", "0000000000000001.bin", "injected fault"]);
    fails.store(false, Ordering::Relaxed);
    assert_refused(x.flush(), ErrorKind::Poisoned, &["earlier flush", "lost"]);
    let live = store.load("x").unwrap().as_live::<i32>().map(drop);
    for refused in [store.write(|txn| txn.copy("x", "y")), store.remove("x"), live] {
        assert_refused(refused, ErrorKind::Poisoned, &["this handle can no longer write", "flush storage"]);
    }
    drop(x);
    let again = open_mapped(&path).load("x").unwrap().as_live::<i32>().unwrap();
    assert_refused(again.flush(), ErrorKind::Poisoned, &["earlier flush"]);
    again.set([0], 2).unwrap();
    assert_eq!(again.read().unwrap(), [2, 1, 1, 1]);
}
