//! Mutable and live tensors at a tag: their elements change, whatever names their storage.

use stridemap::{ErrorKind, StorageKind, Store};

use crate::harness::{assert_refused, filled, new_path, open_mapped};

/// Creates a store with a mutable and a live tensor, and the tag "v1".
fn tagged_store() -> (tempfile::TempDir, Store) {
    let (dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    store
        .write(|txn| {
            txn.save_as("mutable", &filled(10, 1i64), StorageKind::Mutable)?;
            txn.save_as("live", &filled(10, 1u64), StorageKind::Live)?;
            txn.tag("v1")
        })
        .unwrap();
    (dir, store)
}

#[test]
fn changes_in_place_are_seen_at_a_tag() {
    let (_dir, store) = tagged_store();
    let v1 = store.at("v1").unwrap();
    store.load("mutable").unwrap().lock_exclusive().unwrap().fill_(7).unwrap();
    store.load("live").unwrap().as_live::<u64>().unwrap().fetch_add(3, 5).unwrap();
    for snapshot in [&v1, &store.at("v1").unwrap()] {
        assert_eq!(snapshot.load("mutable").unwrap().read::<i64>().unwrap(), [7; 10]);
        assert_eq!(snapshot.load("live").unwrap().read::<u64>().unwrap()[3], 6);
    }
    // One that the newest generation has can be changed through either.
    v1.load("mutable").unwrap().lock_exclusive().unwrap().fill_(8).unwrap();
    assert_eq!(store.load("mutable").unwrap().read::<i64>().unwrap(), [8; 10]);
    // What is saved again is a new storage.
    store.write(|txn| txn.save_as("mutable", &filled(10, 2i64), StorageKind::Mutable)).unwrap();
    store.load("mutable").unwrap().lock_exclusive().unwrap().fill_(9).unwrap();
    assert_eq!(store.at("v1").unwrap().load("mutable").unwrap().read::<i64>().unwrap(), [8; 10]);
}

#[test]
fn tensors_that_only_a_tag_has_are_read_but_not_changed() {
    let (_dir, store) = tagged_store();
    store.write(|txn| ["mutable", "live"].iter().try_for_each(|name| txn.remove(name))).unwrap();
    store.gc().unwrap();
    let (path, v1) = (store.path().to_owned(), store.at("v1").unwrap());
    let (mutable, live) = (v1.load("mutable").unwrap(), v1.load("live").unwrap());
    assert_eq!(mutable.read::<i64>().unwrap(), [1; 10]);
    assert_eq!(mutable.lock_shared().unwrap().as_slice::<i64>().unwrap(), [1; 10]);
    assert_eq!(live.read::<u64>().unwrap(), [1; 10]);
    let words =
        ["no tensor of the newest generation is backed by the storage", "restore", "under a new name"];
    assert_refused(mutable.lock_exclusive(), ErrorKind::Conflict, &words);
    assert_refused(live.as_live::<u64>(), ErrorKind::Conflict, &words);
    // After a restore they are changed as before, and through the same tensors.
    store.restore(&v1).unwrap();
    mutable.lock_exclusive().unwrap().fill_(3).unwrap();
    live.as_live::<u64>().unwrap().fetch_add(0, 1).unwrap();
    assert_eq!(store.load("mutable").unwrap().read::<i64>().unwrap(), [3; 10]);
    assert_eq!(store.load("live").unwrap().read::<u64>().unwrap()[0], 2);
    assert!(store.verify(|_| ()).unwrap().is_whole());
    // Without a name and without a tag, they go.
    drop((mutable, live, v1));
    store.remove("mutable").unwrap();
    store.remove("live").unwrap();
    store.untag("v1").unwrap();
    store.gc().unwrap();
    assert!(super::files(&path, "storages", "bin").is_empty());
}

/// Leaves the mark of a change of `mutable` that did not end.
pub(super) fn interrupt_change(store: &Store) {
    let x = store.load("mutable").unwrap();
    let ended = std::thread::spawn(move || {
        let mut guard = x.lock_exclusive().unwrap();
        guard.fill_(5).unwrap();
        panic!("a bug");
    });
    assert!(ended.join().is_err());
}

#[test]
fn interrupted_change_is_reported_at_a_tag_too() {
    let (_dir, store) = tagged_store();
    interrupt_change(&store);
    store.remove("mutable").unwrap();
    let x = store.at("v1").unwrap().load("mutable").unwrap();
    assert_refused(x.read::<i64>(), ErrorKind::Interrupted, &[]);
    assert_eq!(x.allow_interrupted().read::<i64>().unwrap(), [5; 10]);
}
