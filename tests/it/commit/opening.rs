//! Opening a store or creating it, and snapshots of the newest generation.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use stridemap::{ErrorKind, Store};

use crate::harness::{assert_refused, filled};
use crate::support::temporary;

#[test]
fn store_that_does_not_exist_is_created_once_and_then_opened() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let uuids: BTreeSet<String> = thread::scope(|scope| {
        let open = || Store::open_or_create(&path).unwrap().uuid();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(uuids.len(), 1, "all opened the same store");
    let store = Store::open_or_create(&path).unwrap();
    store.save("x", &filled(3, 1i64)).unwrap();
    assert_eq!(Store::open_or_create(&path).unwrap().names().unwrap(), ["x"]);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["x.smap"], "no unfinished store is left");
}

#[test]
fn empty_directory_becomes_a_store_and_any_other_is_refused() {
    let dir = temporary();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(Store::open_or_create(&empty).unwrap().names().unwrap().is_empty());
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("notes.txt"), "mine").unwrap();
    assert_refused(Store::open_or_create(&other), ErrorKind::NotAStore, &["other"]);
    assert_refused(Store::open_or_create(other.join("notes.txt")), ErrorKind::NotAStore, &["notes.txt"]);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    // A damaged store is not replaced.
    fs::remove_file(empty.join("meta/0000000000000001.man")).unwrap();
    assert_refused(Store::open_or_create(&empty), ErrorKind::Corrupt, &["meta"]);
}

#[test]
fn latest_is_a_snapshot_of_the_newest_generation_and_moves_all_clones() {
    let dir = temporary();
    let writer = Store::create(dir.path().join("x.smap")).unwrap();
    let reader = Store::open(writer.path()).unwrap();
    let clone = reader.clone();
    writer.save("x", &filled(3, 1i64)).unwrap();
    assert_eq!(reader.snapshot().generation(), 1);
    let snapshot = reader.latest().unwrap();
    assert_eq!((snapshot.generation(), reader.generation(), clone.generation()), (2, 2, 2));
    writer.save("x", &filled(3, 2i64)).unwrap();
    assert_eq!(clone.latest().unwrap().load("x").unwrap().read::<i64>().unwrap(), [2; 3]);
    assert_eq!(reader.generation(), 3);
    // The snapshot of an earlier request stays where it is.
    assert_eq!(snapshot.load("x").unwrap().read::<i64>().unwrap(), [1; 3]);
}
