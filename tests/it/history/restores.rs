//! Restores of all names and of a prefix, with the attributes, and views of tagged snapshots.

use std::collections::BTreeMap;

use stridemap::{ErrorKind, Snapshot, Store};

use super::save_tagged;
use crate::harness::{assert_refused, filled, new_fast_store, new_store};

fn attributes(snapshot: &Snapshot) -> BTreeMap<(String, String), String> {
    snapshot.all_attributes().clone()
}

/// Creates a store with the tag "v1", and changes everything after it.
fn changed_store() -> (tempfile::TempDir, Store) {
    let (dir, _, store) = new_store();
    store
        .write(|txn| {
            txn.save("encoder.w", &filled(10, 1i64))?;
            txn.save("encoder.gone", &filled(10, 2i64))?;
            txn.save("decoder.w", &filled(10, 3i64))?;
            txn.set_attribute("", "author", "Ada")?;
            txn.set_attribute("encoder.w", "unit", "m")?;
            txn.set_attribute("encoder", "depth", "2")?;
            txn.set_attribute("decoder.w", "unit", "s")?;
            txn.tag("v1")
        })
        .unwrap();
    store
        .write(|txn| {
            txn.save("encoder.w", &filled(10, 4i64))?;
            txn.remove("encoder.gone")?;
            txn.save("encoder.new", &filled(10, 5i64))?;
            txn.save("decoder.w", &filled(10, 6i64))?;
            txn.set_attribute("", "author", "Bob")?;
            txn.set_attribute("encoder.w", "unit", "cm")?;
            txn.set_attribute("encoder.new", "unit", "kg")?;
            txn.set_attribute("encoder", "depth", "3")?;
            txn.set_attribute("decoder.w", "unit", "min")
        })
        .unwrap();
    (dir, store)
}

fn first(store: &Store, name: &str) -> i64 {
    store.load(name).unwrap().read::<i64>().unwrap()[0]
}

#[test]
fn restore_of_all_brings_back_names_headers_and_attributes() {
    let (_dir, store) = changed_store();
    let v1 = store.at("v1").unwrap();
    store.restore(&v1).unwrap();
    assert_eq!(store.names().unwrap(), v1.names().unwrap());
    assert_eq!(attributes(&store.snapshot()), attributes(&v1));
    assert_eq!(["encoder.w", "encoder.gone", "decoder.w"].map(|name| first(&store, name)), [1, 2, 3]);
    assert!(store.snapshot().changes_since(&v1).unwrap().is_empty(), "no element was copied");
    // The tag stays, and so does the rest of the history.
    store.gc().unwrap();
    assert_eq!(store.tags().unwrap()[0].generation, 2);
    assert!(store.verify(|_| ()).unwrap().is_whole());
    // Restored names keep what the tag no longer does.
    drop(v1);
    store.untag("v1").unwrap();
    store.gc().unwrap();
    assert_eq!(["encoder.w", "encoder.gone", "decoder.w"].map(|name| first(&store, name)), [1, 2, 3]);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn restore_of_a_prefix_changes_nothing_else() {
    let (_dir, store) = changed_store();
    let (v1, before) = (store.at("v1").unwrap(), store.snapshot());
    store.write(|txn| txn.restore(&v1, "encoder.")).unwrap();
    assert_eq!(store.names().unwrap(), ["decoder.w", "encoder.gone", "encoder.w"]);
    assert_eq!(["encoder.w", "encoder.gone", "decoder.w"].map(|name| first(&store, name)), [1, 2, 6]);
    let mut expected = attributes(&before);
    expected.retain(|(scope, _), _| !scope.starts_with("encoder."));
    let own = attributes(&v1).into_iter().filter(|((scope, _), _)| scope.starts_with("encoder."));
    expected.extend(own);
    assert_eq!(attributes(&store.snapshot()), expected);
    assert_eq!(expected[&("encoder".to_owned(), "depth".to_owned())], "3", "not of the prefix");
}

#[test]
fn restore_of_a_prefix_without_names_is_refused() {
    let (_dir, store) = changed_store();
    let (v1, before) = (store.at("v1").unwrap(), store.generation());
    let refused = store.write(|txn| txn.restore(&v1, "encodr."));
    assert_refused(
        refused,
        ErrorKind::NameNotFound,
        &["restore \"encodr.\" from generation 2: no name begins with this"],
    );
    assert_eq!(store.generation(), before);
    // An empty generation has no names, and restoring all of it is no mistake.
    let (_dir, _, other) = new_fast_store();
    other.tag("empty").unwrap();
    other.save("x", &filled(1, 1i64)).unwrap();
    other.restore(&other.at("empty").unwrap()).unwrap();
    assert!(other.names().unwrap().is_empty());
}

#[test]
fn restore_keeps_rows_that_other_tags_have() {
    let (_dir, _, store) = new_store();
    store.create_growable("x", stridemap::DType::I64, &[0], 0).unwrap();
    store.append("x", &filled(100, 1i64)).unwrap();
    store.tag("a").unwrap();
    store.append("x", &filled(100, 2i64)).unwrap();
    store.tag("b").unwrap();
    store.remove("x").unwrap();
    store.restore(&store.at("a").unwrap()).unwrap();
    assert_eq!(store.append("x", &filled(50, 3i64)).unwrap(), 100..150);
    let rows = |store: &stridemap::Snapshot| store.load("x").unwrap().read::<i64>().unwrap();
    assert_eq!(rows(&store.at("a").unwrap()), [1; 100]);
    assert_eq!(rows(&store.at("b").unwrap()), [[1; 100], [2; 100]].concat());
    assert_eq!(rows(&store.snapshot()), [&[1; 100][..], &[3; 50]].concat());
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn view_of_a_tagged_snapshot_is_saved_if_the_newest_has_its_storage() {
    let (_dir, _, store) = new_store();
    save_tagged(&store, "x", &filled(100, 1i64), "v1");
    store.save("y", &filled(1, 2i64)).unwrap();
    let x = store.at("v1").unwrap().load("x").unwrap();
    store.save_view("half", &x.narrow(0, 50, 50).unwrap()).unwrap();
    assert!(store.load("half").unwrap().shares_storage(&store.load("x").unwrap()));
    // Only the tag has it now.
    store.write(|txn| ["x", "half"].iter().try_for_each(|name| txn.remove(name))).unwrap();
    let refused = store.save_view("half", &x.narrow(0, 50, 50).unwrap());
    assert_refused(
        refused,
        ErrorKind::Conflict,
        &["save_view \"half\"", "is gone from generation", "restore", "or save it"],
    );
    store.save("copied", &x.narrow(0, 50, 50).unwrap()).unwrap();
    assert_eq!(store.load("copied").unwrap().read::<i64>().unwrap(), [1; 50]);
    // After a restore, it has it again.
    let v1 = store.at("v1").unwrap();
    store.write(|txn| txn.restore(&v1, "x")).unwrap();
    store.save_view("half", &x.narrow(0, 50, 50).unwrap()).unwrap();
    assert_eq!(store.load("half").unwrap().read::<i64>().unwrap(), [1; 50]);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn restored_names_can_be_read_and_changed_in_the_same_transaction() {
    let (_dir, store) = changed_store();
    let v1 = store.at("v1").unwrap();
    let mut txn = store.begin().unwrap();
    txn.restore(&v1, "").unwrap();
    assert_eq!(txn.load("encoder.gone").unwrap().read::<i64>().unwrap(), [2; 10]);
    txn.rename("encoder.gone", "back").unwrap();
    let refused = txn.append("back", &filled(1, 9i64));
    assert_refused(
        refused,
        ErrorKind::Unsupported,
        &["\"back\"", "restored in this transaction; commit first"],
    );
    drop(txn);
    store
        .write(|txn| {
            txn.restore(&v1, "")?;
            txn.rename("encoder.gone", "back")?;
            txn.remove("decoder.w")
        })
        .unwrap();
    assert_eq!(store.names().unwrap(), ["back", "encoder.w"]);
    assert_eq!(first(&store, "back"), 2);
    assert_eq!(store.append("back", &filled(1, 9i64)).unwrap(), 10..11);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}
