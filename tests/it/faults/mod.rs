//! Failing disk operations: the error, the content of the store, and the state of the handle.

pub(crate) mod full_disk;
mod poisoned;
mod refused;
mod writes;

use std::sync::Arc;

use crate::simulated::{Op, SimulatedDisk};
use stridemap::{ErrorKind, Store, StoreOptions};

use crate::harness::filled;

fn new_store() -> (SimulatedDisk, Store) {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("x").unwrap();
    store.save("old", &filled(5, 1i64)).unwrap();
    (disk, store)
}

fn names(disk: &SimulatedDisk) -> Vec<String> {
    StoreOptions::new().disk(Arc::new(disk.clone())).open("x").unwrap().names().unwrap()
}

/// Returns the operations of a commit that saves one small tensor.
fn operations_of_a_commit(disk: &SimulatedDisk, store: &Store) -> Vec<Op> {
    let before = disk.log().len();
    store.save("probe", &filled(5, 2i64)).unwrap();
    disk.log().split_off(before)
}

#[test]
fn any_failed_operation_leaves_the_old_or_new_content_and_a_usable_store() {
    let count = {
        let (disk, store) = new_store();
        operations_of_a_commit(&disk, &store).len()
    };
    let (mut refused, mut unknown, mut committed) = (0, 0, 0);
    for failing in 0..count {
        let (disk, store) = new_store();
        let seen = std::sync::atomic::AtomicUsize::new(0);
        disk.fail(move |_| seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == failing);
        match store.save("new", &filled(5, 3i64)) {
            Err(e) if e.kind() == ErrorKind::CommitUnknown => unknown += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                assert!(e.to_string().contains("injected fault"), "{e}");
                assert_eq!(names(&disk), ["old"], "operation {failing}: {e}");
                refused += 1;
            }
            Ok(()) => {
                assert_eq!(names(&disk), ["new", "old"], "operation {failing}");
                committed += 1;
            }
        }
        let another = StoreOptions::new().disk(Arc::new(disk.clone())).open("x").unwrap();
        another.save("later", &filled(5, 4i64)).unwrap();
        assert!(names(&disk).contains(&"later".to_owned()));
        assert_eq!(another.verify(|_| ()).unwrap().findings, [], "operation {failing}");
        assert_eq!(
            another.gc().unwrap().file_count,
            0,
            "operation {failing} left files that the next commit did not delete"
        );
    }
    println!(
        "{count} operations failed in turn: {refused} refused, {unknown} unknown, {committed} after the commit"
    );
    assert!(refused > 5 && unknown == 2 && committed > 0, "{refused} {unknown} {committed}");
}

#[test]
fn any_failed_operation_of_an_append_leaves_the_old_or_new_rows_and_a_growable_tensor() {
    let rows = |count: usize, value: u32| filled(count, value);
    let open = |disk: &SimulatedDisk| StoreOptions::new().disk(Arc::new(disk.clone())).open("x").unwrap();
    // Without chunk digests, with their first, and with more.
    for (before, count) in [(10, 10), (200_000, 100_000), (300_000, 300_000)] {
        let new_tensor = || {
            let (disk, store) = new_store();
            store.create_growable("x", stridemap::DType::U32, &[0], 0).unwrap();
            store.append("x", &rows(before, 1)).unwrap();
            (disk, store)
        };
        let operations = {
            let (disk, store) = new_tensor();
            let began = disk.log().len();
            store.append("x", &rows(count, 2)).unwrap();
            disk.log().len() - began
        };
        let (mut refused, mut unknown, mut committed) = (0, 0, 0);
        for failing in 0..operations {
            let (disk, store) = new_tensor();
            let seen = std::sync::atomic::AtomicUsize::new(0);
            disk.fail(move |_| seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == failing);
            match store.append("x", &rows(count, 2)) {
                Err(e) if e.kind() == ErrorKind::CommitUnknown => unknown += 1,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                    assert!(e.to_string().contains("injected fault"), "{e}");
                    assert_eq!(open(&disk).load("x").unwrap().size(), [before], "operation {failing}: {e}");
                    refused += 1;
                }
                Ok(_) => {
                    assert_eq!(open(&disk).load("x").unwrap().size(), [before + count]);
                    committed += 1;
                }
            }
            let another = open(&disk);
            let mut expected = another.load("x").unwrap().read::<u32>().unwrap();
            another.append("x", &rows(300_000, 3)).unwrap();
            expected.extend(vec![3; 300_000]);
            let x = another.load("x").unwrap();
            assert!(x.read::<u32>().unwrap() == expected, "operation {failing}");
            assert_eq!(another.verify(|_| ()).unwrap().findings, [], "operation {failing}");
            let collected = another.gc().unwrap();
            assert_eq!(
                (collected.file_count, collected.size_bytes),
                (0, 0),
                "operation {failing} left something that the next append did not write over"
            );
        }
        println!(
            "{operations} operations failed in turn: {refused} refused, {unknown} unknown, {committed} after the commit"
        );
        assert!(refused > 5 && unknown == 2 && committed > 0, "{refused} {unknown} {committed}");
    }
}

#[test]
fn failed_sync_of_the_manifest_directory_is_a_commit_of_unknown_fate() {
    let (disk, store) = new_store();
    let log = operations_of_a_commit(&disk, &store);
    let Some(Op::SyncDir(meta)) = log.iter().rev().find(|op| matches!(op, Op::SyncDir(_))).cloned() else {
        panic!("{log:?}");
    };
    disk.fail(move |op| *op == Op::SyncDir(meta));
    let unknown = store.save("new", &filled(5, 3i64)).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::CommitUnknown);
    assert!(unknown.to_string().contains("generation 4"), "{unknown}");
    assert_eq!(store.save("more", &filled(5, 3i64)).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(names(&disk), ["new", "old", "probe"], "reopening decides, and the manifest is there");
}

#[test]
fn transaction_can_only_be_dropped_after_a_failed_write() {
    let (disk, store) = new_store();
    let mut txn = store.begin().unwrap();
    txn.save("before", &filled(100_000, 0xaau8)).unwrap();
    disk.fail(|op| matches!(op, Op::Write { .. }));
    let first = txn.save("failing", &filled(1_500_000, 0xbbu8)).unwrap_err();
    let later = txn.save("after", &filled(5, 3i64)).unwrap_err();
    assert!(later.to_string().contains(&first.to_string()), "{later}");
    assert!(later.io_error().is_some(), "the first cause is lost");
    assert_eq!(txn.load("before").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(names(&disk), ["old"]);
    store.save("new", &filled(5, 3i64)).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
