//! Mutable storages that cannot be changed, and flushes that fail.

use super::arithmetic::arange;
use super::handles;
use crate::harness::{assert_refused, new_path, new_store, open_mapped};
use crate::simulated::{Op, Outcome, SimulatedDisk};
use crate::support::temporary;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

#[test]
fn unnamed_storage_can_be_read_but_not_changed() {
    let (dir, _, store) = new_store();
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    let file = store.snapshot().storages().next().unwrap().unwrap().file;
    fs::hard_link(&file, dir.path().join("backup")).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["2 names", "copy"]);
    fs::remove_file(dir.path().join("backup")).unwrap();
    drop(x.lock_exclusive().unwrap());
    fs::copy(&file, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &file).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Stale, &["replaced", "load it again"]);
    store.remove("x").unwrap();
    assert_refused(
        x.lock_exclusive(),
        ErrorKind::Conflict,
        &["no tensor of the newest generation", "new name"],
    );
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [0; 4]);
}

#[test]
fn unnamed_storage_is_not_changed_even_if_a_reader_keeps_its_file() {
    let (_dir, path) = new_path();
    let _ = Store::create(&path).unwrap().create_tensor("x", DType::U8, &[4], StorageKind::Mutable).unwrap();
    let (reader, writer) = (Store::open(&path).unwrap(), Store::open(&path).unwrap());
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        writer.write(|txn| txn.copy("x", "tied")).unwrap();
        writer.remove("x").unwrap();
        x.lock_exclusive()
            .unwrap_or_else(|e| panic!("{how}: another name refers to it: {e}"))
            .fill_(1)
            .unwrap();
        writer.rename("tied", "x").unwrap();
        drop(x.lock_exclusive().unwrap());
    }
    let x = reader.load("x").unwrap();
    writer.write(|txn| txn.save_as("x", &[0u8; 4], StorageKind::Mutable)).unwrap();
    assert_refused(
        x.lock_exclusive(),
        ErrorKind::Conflict,
        &["no tensor of the newest generation", "new name"],
    );
    assert_eq!(x.lock_shared().unwrap().read::<u8>().unwrap(), [1; 4]);
    assert_eq!(writer.load("x").unwrap().read::<u8>().unwrap(), [0; 4]);
    assert!(reader.refresh().unwrap());
    reader.load("x").unwrap().lock_exclusive().unwrap().fill_(3).unwrap();
    assert_eq!(writer.load("x").unwrap().read::<u8>().unwrap(), [3; 4]);
}

#[test]
fn view_of_a_mutable_or_live_tensor_of_a_copied_store_is_refused() {
    let dir = temporary();
    let (original, copy) = (dir.path().join("a.smap"), dir.path().join("b.smap"));
    let store = Store::create(&original).unwrap();
    let kinds =
        [("mutable", StorageKind::Mutable), ("live", StorageKind::Live), ("sealed", StorageKind::Sealed)];
    for (name, kind) in kinds {
        store.write(|txn| txn.save_as(name, &arange(&[4], |i| i), kind)).unwrap();
    }
    assert!(Command::new("cp").arg("-r").args([&original, &copy]).status().unwrap().success());
    let (other, mapped) = (open_mapped(&copy), open_mapped(&original));
    other.load("mutable").unwrap().lock_exclusive().unwrap().fill_(2).unwrap();
    for name in ["mutable", "live"] {
        let refused = store.save_view("view", &other.load(name).unwrap());
        assert_refused(refused, ErrorKind::NeedsCopy, &["copy", "use save"]);
        store.save_view(&format!("{name} view"), &store.load(name).unwrap()).unwrap();
    }
    let live = mapped.load("live").unwrap().as_live::<i64>().unwrap();
    let refused = live.view(|_| other.load("live"));
    assert_refused(refused, ErrorKind::InvalidArgument, &["view", "0000000000000002"]);
    // The records are equal, and so are the bytes.
    store.save_view("sealed view", &other.load("sealed").unwrap()).unwrap();
}

/// In a malformed store, one file is both a sealed storage, whose bytes are borrowed without a lock, and a mutable
/// one.
#[test]
fn file_borrowed_as_a_sealed_storage_is_not_changed_as_a_mutable_one() {
    let (_dir, path, store) = new_store();
    let bin = |id: u64| path.join(format!("storages/{id:016x}.bin"));
    store.save("short", &Tensor::from_vec(vec![1i64, 2], &[2]).unwrap()).unwrap();
    store.save("sealed", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[4]).unwrap()).unwrap();
    let _ = store.create_tensor("mutable", DType::I64, &[4], StorageKind::Mutable).unwrap();
    // Room for the mark of the mutable storage.
    fs::File::options().write(true).open(bin(2)).unwrap().set_len(33).unwrap();
    for id in [1, 3] {
        fs::remove_file(bin(id)).unwrap();
        fs::hard_link(bin(2), bin(id)).unwrap();
    }
    let [(_, unmapped), (_, mapped)] = handles(&path);
    let [changed, changed_unmapped] = [&mapped, &unmapped].map(|store| store.load("mutable").unwrap());
    let short = mapped.load("short").unwrap();
    let lent = short.as_slice::<i64>().unwrap();
    // Maps more of the same file, and unmaps it.
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
fn read_only_file_can_be_read_but_not_changed() {
    let (_dir, _, store) = new_store();
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
fn failed_flush_is_an_error_and_so_is_the_next() {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I32, &[4], StorageKind::Mutable).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.fill_(7).unwrap().flush().unwrap();
    disk.fail(|op| matches!(op, Op::Sync(_)));
    guard.fill_(8).unwrap();
    assert_refused(guard.flush(), ErrorKind::Io, &["flush storage", "0000000000000001.bin"]);
    assert_refused(guard.flush(), ErrorKind::Poisoned, &["earlier flush", "lost"]);
    // The flushed elements survive a power cut, and so do the commit and the mark of the change.
    let disk = SimulatedDisk::after_power_cut(&disk.log(), Outcome::EverythingLost);
    let store = StoreOptions::new().disk(Arc::new(disk)).open("/x.smap").unwrap();
    let x = store.load("x").unwrap();
    assert_refused(x.read::<i32>(), ErrorKind::Interrupted, &["allow_interrupted"]);
    assert_eq!(x.allow_interrupted().read::<i32>().unwrap(), [7; 4]);
}

#[test]
fn failed_flush_is_reported_to_every_handle_and_after_reloading() {
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
    // A failure in either of the two synced files counts.
    let is_second = AtomicBool::new(false);
    disk.fail(move |op| matches!(op, Op::Sync(_)) && is_second.swap(true, Ordering::Relaxed));
    assert_refused(other.lock_exclusive().unwrap().flush(), ErrorKind::Io, &["flush storage"]);
    let other = options.open("/x.smap").unwrap().load("other").unwrap();
    assert_refused(other.lock_exclusive().unwrap().flush(), ErrorKind::Poisoned, &["earlier flush"]);
}
