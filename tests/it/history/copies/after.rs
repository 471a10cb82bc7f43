//! What is done with a copy later.

use stridemap::{DType, ErrorKind, Store};

use super::{copy_of, lengths};
use crate::compaction::storage_bytes;
use crate::harness::{assert_refused, filled, new_store};
use crate::history::{first_of, save_tagged, tag_names};

/// Creates a store with the tags "v1" to "v3", each with a value of `x` of its own, and with a log that grows.
fn tagged_store() -> (tempfile::TempDir, Store) {
    let (dir, _, store) = new_store();
    store.create_growable("log", DType::I64, &[0], 0).unwrap();
    for (tag, value) in [("v1", 1i64), ("v2", 2), ("v3", 3)] {
        store.append("log", &filled(10, value)).unwrap();
        save_tagged(&store, "x", &filled(10_000, value), tag);
    }
    (dir, store)
}

#[test]
fn removal_of_a_tag_frees_what_only_it_needs() {
    let (_dir, store) = tagged_store();
    let copy = copy_of(&store).1;
    for store in [&store, &copy] {
        assert_eq!(store.freed_without(&["v1"]).unwrap(), 80_000);
        let before = storage_bytes(store.path());
        store.untag("v1").unwrap();
        store.gc().unwrap();
        assert_eq!(before - storage_bytes(store.path()), 80_000);
        assert_refused(store.at("v1"), ErrorKind::NameNotFound, &["v1"]);
        assert_eq!(first_of(store, "v2", "x"), 2);
        assert!(store.verify(|_| ()).unwrap().is_whole());
    }
    assert_eq!(lengths(&copy, "generations"), lengths(&store, "generations"));
    copy.untag("v2").unwrap();
    copy.untag("v3").unwrap();
    copy.gc().unwrap();
    assert_eq!(lengths(&copy, "generations").len(), 0);
    assert_eq!(storage_bytes(copy.path()), 80_000 + 240);
    assert!(copy.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn copy_is_changed_like_any_store_and_the_original_stays() {
    let (_dir, store) = tagged_store();
    let copy = copy_of(&store).1;
    let before = lengths(&store, "storages");
    // A process that opened it before the first commit continues.
    let reader = Store::open(copy.path()).unwrap();
    assert_eq!(copy.append("log", &filled(5, 4i64)).unwrap(), 30..35);
    save_tagged(&copy, "y", &filled(100, 4i64), "v4");
    copy.restore(&copy.at("v1").unwrap()).unwrap();
    assert_eq!(copy.append("log", &filled(1, 9i64)).unwrap(), 10..11);
    assert_eq!(first_of(&copy, "v3", "x"), 3);
    assert_eq!(copy.at("v4").unwrap().load("log").unwrap().size(), [35]);
    assert_eq!(tag_names(&copy), ["v1", "v2", "v3", "v4"]);
    copy.save_view("some", &copy.load("x").unwrap().narrow(0, 0, 10).unwrap()).unwrap();
    copy.remove("x").unwrap();
    let compacted = copy.compact(true, |_| ()).unwrap();
    assert_eq!(compacted.skipped.len(), 1, "the tag keeps the whole storage: {compacted:?}");
    copy.gc().unwrap();
    assert_eq!(reader.load("x").unwrap().read::<i64>().unwrap(), [3; 10_000]);
    reader.refresh().unwrap();
    assert!(!reader.contains("x").unwrap());
    assert!(copy.verify(|_| ()).unwrap().is_whole());
    assert_eq!(lengths(&store, "storages"), before);
    assert_eq!(tag_names(&store), ["v1", "v2", "v3"]);
    assert!(store.verify(|_| ()).unwrap().is_whole());
    // It is a different store, although the generations have the same numbers.
    let refused = copy.restore(&store.at("v1").unwrap());
    assert_refused(refused, ErrorKind::InvalidArgument, &["the snapshot is of", "x.smap", "copy.smap"]);
}
