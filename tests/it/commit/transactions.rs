//! Transactions that began before other commits: the storages of their views, and what ends them.

use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stridemap::{DType, ErrorKind, Source, Store};

use crate::harness::hooked::Hooked;
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path};
use crate::support::temporary;

fn read(store: &Store, name: &str) -> Vec<u8> {
    store.load(name).unwrap().read().unwrap()
}

#[test]
fn salvage_lists_again_when_a_commit_deletes_the_files_it_listed() {
    let (_dir, path) = new_path();
    let writer = fast().create(&path).unwrap();
    writer.save("x", &filled(1, 1u8)).unwrap();
    let is_due = AtomicBool::new(true);
    let disk = Hooked::before(move |operation, path| {
        let is_manifest = path.extension().is_some_and(|extension| extension == "man");
        if operation == "open" && is_manifest && is_due.swap(false, Ordering::Relaxed) {
            writer.save("y", &filled(1, 1u8)).unwrap();
        }
        Ok(())
    });
    let done = fast().disk(Arc::new(disk)).salvage(&path, None, |_| ()).unwrap();
    assert!(done.losses.is_empty() && done.copied.tensor_count == 2, "{done:?}");
}

#[test]
fn view_of_a_copied_store_is_refused_by_a_store_without_that_storage() {
    let dir = temporary();
    let [path, copied] = ["x.smap", "copy.smap"].map(|name| dir.path().join(name));
    let store = fast().create(&path).unwrap();
    store.save("first", &filled(4, 0u8)).unwrap();
    assert!(Command::new("cp").arg("-r").args([&path, &copied]).status().unwrap().success());
    let copy = fast().open(&copied).unwrap();
    copy.save("b", &filled(8, 7u8)).unwrap();
    let mut txn = store.begin().unwrap();
    let refused = txn.save_view("v", &copy.load("b").unwrap());
    // Another writer assigns the same id to a longer storage.
    fast().open(&path).unwrap().save("a", &filled(16, 1u8)).unwrap();
    assert_refused(refused, ErrorKind::Conflict, &["save_view \"v\"", "0000000000000002", "gone"]);
    let late = txn.save_view("v", &copy.load("b").unwrap());
    assert_refused(late, ErrorKind::NeedsCopy, &["copy"]);
}

#[test]
fn view_of_a_later_generation_moves_its_transaction_to_that_generation() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let mut txn = store.begin().unwrap();
    let other = fast().open(&path).unwrap();
    other.append("x", &filled(2, 2u8)).unwrap();
    other.save("new", &filled(3, 3u8)).unwrap();
    txn.save_view("longer", &other.load("x").unwrap()).unwrap();
    txn.save_view("newer", &other.load("new").unwrap()).unwrap();
    assert_eq!(txn.load("longer").unwrap().read::<u8>().unwrap(), [0, 0, 0, 0, 0, 2, 2]);
    assert_eq!(txn.load("newer").unwrap().read::<u8>().unwrap(), [3, 3, 3]);
    assert_eq!(txn.append("longer", &filled(1, 9u8)).unwrap(), 7..8);
    txn.commit().unwrap();
    assert_eq!(read(&store, "longer"), [0, 0, 0, 0, 0, 2, 2, 9]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn view_of_a_deleted_storage_is_a_conflict_and_not_damage() {
    let (_dir, _, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let old = store.load("x").unwrap();
    store.save("x", &filled(3, 1u8)).unwrap();
    assert_refused(store.save_view("v", &old), ErrorKind::Conflict, &["gone", "load the tensor again"]);
}

struct Panics;

impl Source for Panics {
    fn dtype(&self) -> DType {
        DType::U8
    }

    fn size(&self) -> Vec<usize> {
        vec![4]
    }

    fn write_to(&self, write: &mut dyn FnMut(&[u8]) -> stridemap::Result<()>) -> stridemap::Result<()> {
        write(&[1, 2])?;
        panic!("on purpose");
    }
}

#[test]
fn transaction_can_only_be_dropped_after_a_source_panics() {
    let (_dir, _, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[2], 0).unwrap();
    let mut txn = store.begin().unwrap();
    assert!(panic::catch_unwind(AssertUnwindSafe(|| txn.append("x", &Panics))).is_err());
    assert_refused(txn.save("other", &filled(1, 1u8)), ErrorKind::InvalidArgument, &["begin a new one"]);
    drop(txn);
    assert_eq!(store.append("x", &filled(1, 5u8)).unwrap(), 2..3);
    assert_eq!(read(&store, "x"), [0, 0, 5]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
