//! What a compaction says before it is done.

use std::fs;
use std::path::Path;

use stridemap::maintenance::{Compacted, SkipReason};
use stridemap::{DType, StorageKind, Store, Tensor};

use super::usage::folder_bytes;
use super::{content, vector};
use crate::harness::new_fast_store;

/// Leaves a third of a tensor of 120,000 bytes.
fn save_part(store: &Store, name: &str) {
    store.save("whole", &vector(30_000, 1)).unwrap();
    store.save_view(name, &store.load("whole").unwrap().narrow(0, 64, 10_000).unwrap()).unwrap();
    store.remove("whole").unwrap();
}

/// Has storages of each kind, with and without bytes to free, and garbage.
fn create(store: &Store, path: &Path) {
    save_part(store, "first");
    store.tag("v1").unwrap();
    store.save("second", &vector(1 << 18, 1)).unwrap();
    let all = store.create_tensor("all", DType::F32, &[100_000], StorageKind::Mutable).unwrap();
    store.save_view("part", &all.narrow(0, 0, 100).unwrap()).unwrap();
    store.remove("all").unwrap();
    for i in 0..5 {
        save_part(store, &format!("part.{i}"));
    }
    let large = Tensor::from_vec(vec![0u8; 9 << 20], &[9, 1 << 20]).unwrap();
    store.save("large", &large).unwrap();
    store.save_view("rows", &store.load("large").unwrap().narrow(0, 2, 5).unwrap()).unwrap();
    store.remove("large").unwrap();
    drop(all);
    store.gc().unwrap();
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
}

#[test]
fn plan_says_what_the_compaction_then_does_and_changes_nothing() {
    // "second" is only joined if all are compacted.
    for (all, storage_count) in [(false, 6), (true, 7)] {
        let (_dir, path, store) = new_fast_store();
        create(&store, &path);
        let state = || (store.latest().unwrap().id().unwrap(), folder_bytes(&path), content(&store));
        let before = state();
        let planned = store.plan_compact(all).unwrap();
        assert_eq!(state(), before);
        assert_eq!((planned.storage_count, planned.new_storage_count), (storage_count, 2), "{planned:?}");
        assert_eq!((planned.collected.file_count, planned.collected.size_bytes), (1, 1000));
        let reasons: Vec<_> = planned.skipped.iter().map(|skipped| skipped.reason.clone()).collect();
        assert!(matches!(reasons[..], [SkipReason::Tagged { .. }, SkipReason::Mutable]), "{reasons:?}");

        let done = store.compact(all, |_| ()).unwrap();
        let counts = |compacted: &Compacted| (compacted.storage_count, compacted.new_storage_count);
        assert_eq!(counts(&planned), counts(&done));
        assert_eq!((planned.before_bytes, planned.skipped), (done.before_bytes, done.skipped));
        assert_eq!(planned.collected, done.collected);
        let aligned = planned.after_bytes..planned.after_bytes + 6 * 64;
        assert!(aligned.contains(&done.after_bytes), "{aligned:?}, {}", done.after_bytes);
        let planned = store.plan_compact(all).unwrap();
        assert_eq!((counts(&planned), planned.collected.file_count), ((0, 0), 0), "{planned:?}");
    }
}

#[test]
fn plan_counts_the_storages_that_more_than_64_mib_of_small_ones_become() {
    let (_dir, _, store) = new_fast_store();
    for i in 0..40 {
        store.save(&format!("x{i}"), &vec![i as u8; 3_600_000]).unwrap();
    }
    let planned = store.plan_compact(false).unwrap();
    let done = store.compact(false, |_| ()).unwrap();
    assert_eq!((planned.storage_count, done.storage_count), (40, 40));
    assert_eq!((planned.new_storage_count, done.new_storage_count), (3, 3));
}
