//! Transactions that began before others committed: what they append to and what their views stand on.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stridemap::{DType, Durability, ErrorKind, Source, Store, StoreOptions, Tensor};

use crate::hooked::Hooked;
use crate::refusals::assert_refused;
use crate::support::temporary;

fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

fn bytes(count: usize, value: u8) -> Tensor {
    Tensor::from_vec(vec![value; count], &[count]).unwrap()
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    store.load(name).unwrap().read().unwrap()
}

type During = Box<dyn FnOnce() + Send>;

/// A store on a disk on which something can happen during one listing of `meta/`.
fn listing_slowly(path: &Path) -> (Store, Arc<Mutex<Option<During>>>) {
    let armed: Arc<Mutex<Option<During>>> = Arc::default();
    let during = Arc::clone(&armed);
    let disk = Hooked::before(move |operation, path| {
        if operation == "list"
            && path.ends_with("meta")
            && let Some(act) = during.lock().unwrap().take()
        {
            act();
        }
        Ok(())
    });
    let disk = Hooked { lists_slowly: true, ..disk };
    (fast().disk(Arc::new(disk)).open(path).unwrap(), armed)
}

#[test]
fn open_beside_a_commit_that_a_listing_misses_sees_what_was_acknowledged_before() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let writer = fast().create(&path).unwrap();
    writer.save("x", &bytes(1, 1)).unwrap();
    // An older generation, which stays, and which a listing can show as if it were the newest.
    let _reader = writer.snapshot();
    writer.save("x", &bytes(1, 2)).unwrap();
    let is_due = AtomicBool::new(true);
    let disk = Hooked::before(move |operation, path| {
        if operation == "list" && path.ends_with("meta") && is_due.swap(false, Ordering::Relaxed) {
            writer.save("y", &bytes(1, 1)).unwrap();
        }
        Ok(())
    });
    let disk = Hooked { lists_slowly: true, ..disk };
    let store = fast().disk(Arc::new(disk)).open(&path).unwrap();
    assert_eq!(store.load("x").unwrap().read::<u8>().unwrap(), [2]);
}

#[test]
fn repair_of_a_store_in_use_looks_again_when_a_commit_takes_what_it_listed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let writer = fast().create(&path).unwrap();
    writer.save("x", &bytes(1, 1)).unwrap();
    let is_due = AtomicBool::new(true);
    let disk = Hooked::before(move |operation, path| {
        let is_manifest = path.extension().is_some_and(|extension| extension == "man");
        if operation == "open" && is_manifest && is_due.swap(false, Ordering::Relaxed) {
            writer.save("y", &bytes(1, 1)).unwrap();
        }
        Ok(())
    });
    let repair = fast().disk(Arc::new(disk)).repair(&path, |_| ()).unwrap();
    assert!(repair.is_empty(), "{repair:?}");
}

#[test]
fn repair_is_refused_when_a_reader_comes_that_needs_a_file_to_be_moved() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let writer = fast().create(&path).unwrap();
    writer.save("x", &bytes(9, 1)).unwrap();
    writer.save("y", &bytes(9, 2)).unwrap();
    let before = writer.generation();
    drop(writer);
    fs::write(path.join("storages/0000000000000001.bin"), [7; 9]).unwrap();
    let reader: Arc<Mutex<Option<Store>>> = Arc::default();
    let (opened, root) = (Arc::clone(&reader), path.clone());
    let disk = Hooked::before(move |operation, path| {
        // The repair has chosen the files to be moved, and no reader needed one.
        if operation == "create_dir" && path.ends_with("lost+found") {
            *opened.lock().unwrap() = Some(fast().open(&root).unwrap());
        }
        Ok(())
    });
    let options = fast().disk(Arc::new(disk));
    assert_refused(options.repair(&path, |_| ()), ErrorKind::Busy, &["a reader", "repair again"]);
    let store = reader.lock().unwrap().take().unwrap();
    assert!(!store.refresh().unwrap());
    assert_eq!((store.generation(), read(&store, "y")), (before, vec![2; 9]));
    drop(store);
    let repair = options.repair(&path, |_| ()).unwrap();
    assert_eq!(repair.losses.iter().flat_map(|loss| &loss.names).collect::<Vec<_>>(), ["x"]);
    assert_eq!(read(&fast().open(&path).unwrap(), "y"), [2; 9]);
}

#[test]
fn append_beside_a_commit_that_a_listing_misses_leaves_the_rows_of_others() {
    for is_committed in [true, false] {
        let dir = temporary();
        let path = dir.path().join("x.smap");
        let first = fast().create(&path).unwrap();
        first.create_growable("log", DType::U8, &[4], 0).unwrap();
        let (store, armed) = listing_slowly(&path);
        let mut txn = store.begin().unwrap();
        first.append("log", &bytes(6, 1)).unwrap();
        drop(first);
        // While `txn` looks for the newest generation, the one of those rows makes way for another, and its own stays.
        let another = path.clone();
        let commit = move || {
            // Unless it is kept out, which is the point.
            let at_once = fast().lock_timeout(Duration::ZERO).open(&another).unwrap();
            let _ = at_once.save("else", &bytes(1, 1));
        };
        *armed.lock().unwrap() = Some(Box::new(commit));
        let appended = txn.append("log", &bytes(3, 9));
        assert!(armed.lock().unwrap().is_none(), "nobody listed");
        let rows = match (appended, is_committed) {
            (Ok(rows), true) => txn.commit().map(|_| rows),
            (appended, _) => appended,
        };
        let fresh = Store::open(&path).unwrap();
        let expected: &[u8] = match (rows, is_committed) {
            (Ok(rows), true) => {
                assert_eq!(rows, 10..13);
                &[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 9, 9, 9]
            }
            _ => &[0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        };
        assert_eq!(read(&fresh, "log"), expected);
        assert_eq!(fresh.verify(|_| ()).unwrap().findings, []);
    }
}

#[test]
fn view_of_a_copy_is_refused_where_the_store_has_no_such_storage_yet() {
    let dir = temporary();
    let [path, copied] = ["x.smap", "copy.smap"].map(|name| dir.path().join(name));
    let store = fast().create(&path).unwrap();
    store.save("first", &bytes(4, 0)).unwrap();
    assert!(Command::new("cp").arg("-r").args([&path, &copied]).status().unwrap().success());
    let copy = fast().open(&copied).unwrap();
    copy.save("b", &bytes(8, 7)).unwrap();
    let mut txn = store.begin().unwrap();
    let refused = txn.save_view("v", &copy.load("b").unwrap());
    // Another writer would give the same id to something longer.
    fast().open(&path).unwrap().save("a", &bytes(16, 1)).unwrap();
    assert_refused(refused, ErrorKind::Conflict, &["save_view \"v\"", "0000000000000002", "gone"]);
    let late = txn.save_view("v", &copy.load("b").unwrap());
    assert_refused(late, ErrorKind::ForeignStorage, &["copy"]);
}

#[test]
fn view_of_a_later_generation_takes_its_transaction_there() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let mut txn = store.begin().unwrap();
    let other = fast().open(&path).unwrap();
    other.append("x", &bytes(2, 2)).unwrap();
    other.save("new", &bytes(3, 3)).unwrap();
    txn.save_view("longer", &other.load("x").unwrap()).unwrap();
    txn.save_view("newer", &other.load("new").unwrap()).unwrap();
    assert_eq!(txn.load("longer").unwrap().read::<u8>().unwrap(), [0, 0, 0, 0, 0, 2, 2]);
    assert_eq!(txn.load("newer").unwrap().read::<u8>().unwrap(), [3, 3, 3]);
    assert_eq!(txn.append("longer", &bytes(1, 9)).unwrap(), 7..8);
    txn.commit().unwrap();
    assert_eq!(read(&store, "longer"), [0, 0, 0, 0, 0, 2, 2, 9]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn view_of_a_storage_that_went_is_a_conflict_and_the_store_not_called_damaged() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let old = store.load("x").unwrap();
    store.save("x", &bytes(3, 1)).unwrap();
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
fn source_that_panics_leaves_a_transaction_that_can_only_be_dropped() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    store.create_growable("x", DType::U8, &[2], 0).unwrap();
    let mut txn = store.begin().unwrap();
    assert!(panic::catch_unwind(AssertUnwindSafe(|| txn.append("x", &Panics))).is_err());
    assert_refused(txn.save("other", &bytes(1, 1)), ErrorKind::InvalidArgument, &["begin a new one"]);
    drop(txn);
    assert_eq!(store.append("x", &bytes(1, 5)).unwrap(), 2..3);
    assert_eq!(read(&store, "x"), [0, 0, 5]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
