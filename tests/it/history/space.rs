//! Disk usage and compaction of stores with tags.

use stridemap::maintenance::{SkipReason, SpaceReason};
use stridemap::{StorageKind, Store};

use super::{save_many, save_tagged};
use crate::compaction::storage_bytes;
use crate::compaction::usage::checked;
use crate::harness::{filled, new_path, new_store};

#[test]
fn bytes_that_only_tags_keep_are_a_number_of_their_own() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10_000, 1u8), "v1");
    store
        .write(|txn| {
            txn.save("x", &filled(20_000, 2u8))?;
            txn.save_as("mutable", &filled(30_000, 2u8), StorageKind::Mutable)?;
            txn.tag("v2")
        })
        .unwrap();
    let usage = checked(&store, &path);
    // The storage of v1, and the two manifests.
    assert!((10_000..11_000).contains(&usage.tagged_bytes), "{usage:#?}");
    store.write(|txn| ["x", "mutable"].iter().try_for_each(|name| txn.remove(name))).unwrap();
    let usage = checked(&store, &path);
    assert!((60_000..62_000).contains(&usage.tagged_bytes), "{usage:#?}");
    assert_eq!((usage.reachable_bytes, usage.held_bytes), (0, 0), "{usage:#?}");
    let storages = usage.spare.iter().filter(|file| file.path.starts_with(path.join("storages")));
    let reasons: Vec<_> = storages.map(|file| (file.reason.to_string(), file.reason.name())).collect();
    let tagged = |generation: u64| (format!("generation {generation} is tagged"), "tagged");
    assert_eq!(reasons, [tagged(2), tagged(3), tagged(3)]);
    assert_eq!(store.gc().unwrap().file_count, 0);
    assert!(store.verify(|_| ()).unwrap().orphans.is_empty());

    // A reader of a generation without a tag holds bytes; those that a tag keeps too are counted once.
    store.save("z", &filled(5_000, 1u8)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.remove("z").unwrap();
    let usage = checked(&store, &path);
    assert!((5_000..6_500).contains(&usage.held_bytes), "{usage:#?}");
    assert!((60_000..62_000).contains(&usage.tagged_bytes), "{usage:#?}");
    drop(reader);

    // What the removal of a tag frees is what was said.
    let freed = store.freed_without(&["v2", "no tag"]).unwrap();
    assert_eq!(freed, 50_000);
    assert_eq!(store.freed_without(&["v1", "v2"]).unwrap(), 60_000);
    assert_eq!(store.freed_without(&[]).unwrap(), 0);
    store.gc().unwrap();
    let before = storage_bytes(&path);
    store.untag("v2").unwrap();
    store.gc().unwrap();
    // A mutable storage has a byte more.
    assert_eq!(before - storage_bytes(&path), freed + 1);
    let usage = checked(&store, &path);
    assert!((10_000..11_000).contains(&usage.tagged_bytes), "{usage:#?}");
}

#[test]
fn tables_that_tags_keep_are_tagged() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    save_many(&store, "a", 500);
    store.tag("v1").unwrap();
    save_many(&store, "b", 1500);
    store.write(|txn| (0..500).try_for_each(|i| txn.remove(&format!("a{i:04}")))).unwrap();
    store.gc().unwrap();
    let tables = super::files(&path, "generations", "tab");
    assert!(tables.len() >= 2, "{tables:?}");
    let usage = checked(&store, &path);
    let kept = usage.spare.iter().find(|file| file.path == tables[0]).unwrap();
    assert_eq!(kept.reason, SpaceReason::Tagged { generation: 3 });
    assert_eq!(store.at("v1").unwrap().names().unwrap().len(), 501);
    store.untag("v1").unwrap();
    store.gc().unwrap();
    assert_eq!(super::files(&path, "generations", "tab").len(), 1);
    assert_eq!(checked(&store, &path).tagged_bytes, 0);
}

#[test]
fn compaction_leaves_what_a_tag_keeps_and_says_so() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "all", &filled(100_000, 1u8), "v1");
    store.save_view("some", &store.load("all").unwrap().narrow(0, 0, 1000).unwrap()).unwrap();
    store.remove("all").unwrap();
    let usage = checked(&store, &path);
    let unreached = usage.spare.iter().find(|file| file.storage_id == Some(1)).unwrap();
    assert_eq!((&unreached.reason, unreached.spare_bytes), (&SpaceReason::Tagged { generation: 2 }, 99_000));
    let compacted = store.compact(true, |_| ()).unwrap();
    assert_eq!(compacted.storage_count, 0);
    let [skipped] = compacted.skipped.as_slice() else { panic!("{compacted:?}") };
    assert_eq!((skipped.storage_id, skipped.reclaimable_bytes), (1, 99_000));
    assert_eq!(skipped.reason, SkipReason::Tagged { generation: 2 });
    assert_eq!(skipped.reason.to_string(), "generation 2 has it and is tagged; a rewrite would free nothing");
    // Storages that are newer than the tag are rewritten.
    store.save("later", &filled(100_000, 2u8)).unwrap();
    store.save_view("part", &store.load("later").unwrap().narrow(0, 0, 1000).unwrap()).unwrap();
    store.remove("later").unwrap();
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.skipped.len()), (1, 1));
    store.untag("v1").unwrap();
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes, compacted.skipped.len()), (1, 1000, 0));
    assert_eq!(store.load("some").unwrap().read::<u8>().unwrap(), [1; 1000]);
    store.gc().unwrap();
    assert_eq!(checked(&store, &path).reachable_bytes, 2000);
}

#[test]
fn compaction_and_usage_know_which_tags_have_a_restored_storage() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "all", &filled(100_000, 1u8), "with");
    store.remove("all").unwrap();
    save_tagged(&store, "other", &filled(10, 1u8), "without");
    store.restore(&store.at("with").unwrap()).unwrap();
    store.save_view("some", &store.load("all").unwrap().narrow(0, 0, 1000).unwrap()).unwrap();
    store.remove("all").unwrap();
    let reason = || {
        let unreached = checked(&store, &path).spare.into_iter().find(|file| file.storage_id == Some(1));
        unreached.map(|file| (file.reason, file.spare_bytes)).unwrap()
    };
    // "without" is later, but lacks the storage.
    assert_eq!(reason(), (SpaceReason::Tagged { generation: 2 }, 99_000));
    let compacted = store.compact(false, |_| ()).unwrap();
    let reasons: Vec<_> = compacted.skipped.into_iter().map(|skipped| skipped.reason).collect();
    assert_eq!((compacted.storage_count, reasons), (0, vec![SkipReason::Tagged { generation: 2 }]));

    store.untag("with").unwrap();
    assert_eq!(reason(), (SpaceReason::Unreached, 99_000));
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes, compacted.skipped.len()), (1, 1000, 0));
    assert!(!path.join("storages/0000000000000001.bin").exists());
    assert_eq!(store.load("some").unwrap().read::<u8>().unwrap(), [1; 1000]);
    assert_eq!(store.gc().unwrap().file_count, 0);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn storage_that_was_restored_and_removed_counts_for_no_tag_that_lacks_it() {
    let (_dir, path, store) = new_store();
    for step in 1..=3u8 {
        save_tagged(&store, "x", &filled(10_000, step), &format!("v{step}"));
    }
    let own = |store: &Store| -> Vec<(u64, u64)> {
        store.log().unwrap().iter().map(|entry| (entry.generation, entry.own_bytes)).collect()
    };
    assert_eq!(own(&store), [(4, 10_000), (3, 10_000), (2, 10_000)]);
    store.restore(&store.at("v1").unwrap()).unwrap();
    assert_eq!(own(&store), [(5, 0), (4, 10_000), (3, 10_000), (2, 0)]);
    store.restore(&store.at("v3").unwrap()).unwrap();
    assert_eq!(own(&store), [(6, 0), (4, 0), (3, 10_000), (2, 10_000)]);
    store.untag("v1").unwrap();
    store.untag("v3").unwrap();
    // Before a collection and after it.
    for _ in 0..2 {
        assert_eq!(own(&store), [(8, 10_000), (3, 10_000)]);
        assert_eq!(store.freed_without(&["v2"]).unwrap(), 10_000);
        store.gc().unwrap();
    }
    let before = store.disk_usage().unwrap().tagged_bytes;
    assert!((10_000..11_000).contains(&before), "{before}");
    store.untag("v2").unwrap();
    assert_eq!(super::files(&path, "storages", "bin").len(), 1);
}
