//! What crashed writers left is deleted by later commits.

use std::collections::BTreeMap;
use std::fs;

use stridemap::Store;

use crate::harness::{fast, filled, new_fast_store};

/// Finding leftovers takes a listing of all files, which each command would make with its only commit.
#[test]
fn of_many_files_only_some_commits_look_for_leftovers() {
    let (_dir, path, store) = new_fast_store();
    let leftover = path.join("storages/.stage-dead");
    let commit = |store: &Store| store.save("x", &filled(1, 1i64)).unwrap();
    // The first commit of a handle does so in a small store.
    fs::write(&leftover, [0; 100]).unwrap();
    commit(&fast().open(&path).unwrap());
    assert!(!leftover.exists());

    let count = 2100;
    (0..count).for_each(|i| store.save(&format!("t{i}"), &filled(1, i)).unwrap());
    let mut looked = BTreeMap::new();
    for _ in 0..9 {
        fs::write(&leftover, [0; 100]).unwrap();
        let store = fast().open(&path).unwrap();
        commit(&store);
        looked.insert(store.generation(), !leftover.exists());
    }
    let expected = looked.keys().map(|&generation| (generation, generation % 3 == 0)).collect();
    assert_eq!(looked, expected);
    // One handle does so once.
    let store = fast().open(&path).unwrap();
    for is_first in [true, false] {
        fs::write(&leftover, [0; 100]).unwrap();
        (0..3).for_each(|_| commit(&store));
        assert_eq!(leftover.exists(), !is_first);
    }
    store.gc().unwrap();
    assert!(!leftover.exists());
}
