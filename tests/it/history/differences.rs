//! The names that differ between any two generations.

use std::collections::BTreeMap;

use stridemap::{ErrorKind, Snapshot, Store};

use super::{files, save_many};
use crate::harness::{assert_refused, filled, new_fast_store, new_path};

/// What two tensors of one store have in common if they are the same: the header, and the storage.
fn headers(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let infos = snapshot.iter_tensors("").unwrap().map(Result::unwrap);
    infos.map(|info| (info.name.clone(), format!("{:?} {}", info.header, info.storage_id))).collect()
}

#[track_caller]
fn assert_differences(earlier: &Snapshot, later: &Snapshot) {
    let (before, after) = (headers(earlier), headers(later));
    let changes = later.changes_since(earlier).unwrap();
    let added: Vec<_> = after.keys().filter(|name| !before.contains_key(*name)).cloned().collect();
    let removed: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
    let changed = before.iter().filter(|(name, header)| after.get(*name).is_some_and(|now| now != *header));
    let changed: Vec<_> = changed.map(|(name, _)| name.clone()).collect();
    assert_eq!((changes.added, changes.changed, changes.removed), (added, changed, removed));
}

#[test]
fn differences_between_any_two_tagged_generations_are_exact() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    store.tag("empty").unwrap();
    save_many(&store, "a", 300);
    store.tag("table").unwrap();
    // The same table, and changes over it.
    store.save("a0003", &filled(2, 7i64)).unwrap();
    store.remove("a0004").unwrap();
    store.tag("same table").unwrap();
    // A later table, in which most is the same.
    save_many(&store, "b", 700);
    store.write(|txn| (100..200).try_for_each(|i| txn.remove(&format!("a{i:04}")))).unwrap();
    store.tag("later table").unwrap();
    store.restore(&store.at("table").unwrap()).unwrap();
    store.tag("restored").unwrap();
    store.gc().unwrap();
    assert!(files(&path, "generations", "tab").len() >= 2);
    let other = Store::open(&path).unwrap();
    let names = ["empty", "table", "same table", "later table", "restored"];
    for (i, earlier) in names.iter().enumerate() {
        for (j, later) in names.iter().enumerate() {
            let (earlier, later) = (store.at(*earlier).unwrap(), other.at(*later).unwrap());
            assert_differences(&earlier, &later);
            let is_same = later.changes_since(&earlier).unwrap().is_empty();
            assert_eq!(is_same, i == j || [(1, 4), (4, 1)].contains(&(i, j)), "{i} {j}");
        }
        assert_differences(&store.at(*earlier).unwrap(), &store.snapshot());
    }
    let (_dir, _, foreign) = new_fast_store();
    let refused = foreign.snapshot().changes_since(&store.at("table").unwrap());
    assert_refused(refused, ErrorKind::InvalidArgument, &["compare two snapshots of one store"]);
}
