//! Handles that are opened at a tag.

use std::time::Duration;

use stridemap::history::Retention;
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions};

use super::{save_tagged, tag_names};
use crate::harness::{assert_refused, fast, filled, new_path, new_store};

/// Opens a store mapped, at a tag.
fn open_mapped_at(path: &std::path::Path, tag: &str) -> Store {
    // SAFETY: the tests write to a mapped store only through the library.
    unsafe { StoreOptions::new().at(tag).open_mapped(path).unwrap() }
}

#[test]
fn handle_at_a_tag_reads_its_generation_and_refuses_every_write() {
    let (_dir, path, store) = new_store();
    store
        .write(|txn| {
            txn.save("x", &filled(10, 1i64))?;
            txn.save_as("mutable", &filled(10, 1i64), StorageKind::Mutable)?;
            txn.save_as("live", &filled(10, 1u64), StorageKind::Live)?;
            txn.create_growable("rows", DType::I64, &[0], 0)?;
            txn.tag("v1")
        })
        .unwrap();
    save_tagged(&store, "x", &filled(10, 2i64), "v2");
    let mapped = open_mapped_at(&path, "v1");
    let refusal = format!(
        "{}: the store was opened at generation 2, to read it; open the newest generation to write",
        path.display()
    );
    let before = store.disk_usage().unwrap();
    for earlier in [StoreOptions::new().at("v1").open(&path).unwrap(), mapped] {
        assert_eq!(earlier.generation(), 2);
        assert_eq!(earlier.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
        let x = earlier.load("x").unwrap();
        let snapshot = earlier.at("v2").unwrap();
        assert_eq!(snapshot.load("x").unwrap().read::<i64>().unwrap(), [2; 10]);
        let refused: Vec<(&str, stridemap::Error)> = vec![
            ("save", earlier.save("y", &filled(1, 1i64)).unwrap_err()),
            ("save_view", earlier.save_view("y", &x).unwrap_err()),
            ("create", earlier.create_tensor("y", DType::U8, &[1], StorageKind::Mutable).unwrap_err()),
            ("create_growable", earlier.create_growable("y", DType::U8, &[0], 0).unwrap_err()),
            ("remove", earlier.remove("x").unwrap_err()),
            ("rename", earlier.rename("x", "y").unwrap_err()),
            ("append", earlier.append("rows", &filled(1, 1i64)).unwrap_err()),
            ("appender", earlier.appender("rows").err().unwrap()),
            ("begin", earlier.begin().err().unwrap()),
            ("begin_exclusive", earlier.begin_exclusive().err().unwrap()),
            ("tag", earlier.tag("v3").unwrap_err()),
            ("untag", earlier.untag("v1").unwrap_err()),
            ("restore", earlier.restore(&snapshot).unwrap_err()),
            (
                "retain",
                earlier
                    .retain(&Retention { keep_last: Some(1), ..Retention::default() }, |_| true)
                    .unwrap_err(),
            ),
            ("gc", earlier.gc().unwrap_err()),
            ("compact", earlier.compact(false, |_| ()).unwrap_err()),
            ("materialize", earlier.materialize(|_| ()).unwrap_err()),
            ("lock_exclusive", earlier.load("mutable").unwrap().lock_exclusive().err().unwrap()),
        ];
        for (what, refused) in refused {
            assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{what}: {refused}");
            assert!(refused.to_string().contains(&refusal), "{what}: {refused}");
        }
        assert_eq!(earlier.load("mutable").unwrap().lock_shared().unwrap().read::<i64>().unwrap(), [1; 10]);
        assert_eq!(earlier.load("live").unwrap().read::<u64>().unwrap(), [1; 10]);
        // It stays where it is, and sees the tags of now.
        assert!(!earlier.refresh().unwrap());
        let refused = earlier.wait_for_change(Duration::from_secs(60));
        assert_refused(refused, ErrorKind::Unsupported, &["opened at generation 2, and stays there"]);
        assert_eq!(earlier.latest().unwrap().generation(), 2);
        assert_eq!(tag_names(&earlier), ["v1", "v2"]);
        assert_eq!(earlier.log().unwrap(), store.log().unwrap());
        assert_eq!(earlier.freed_without(&["v1"]).unwrap(), store.freed_without(&["v1"]).unwrap());
    }
    let live = open_mapped_at(&path, "v1").load("live").unwrap().as_live::<u64>();
    assert_refused(live, ErrorKind::ReadOnly, &[&refusal]);
    assert_eq!(store.generation(), 3);
    assert_eq!(store.disk_usage().unwrap().folder_bytes(), before.folder_bytes());
}

#[test]
fn reports_of_a_handle_at_a_tag_are_about_the_store_of_now() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10_000, 1i64), "v1");
    store.save("x", &filled(20_000, 2i64)).unwrap();
    store.save("y", &filled(30_000, 3i64)).unwrap();
    let earlier = StoreOptions::new().at("v1").open(&path).unwrap();
    let (seen, now) = (earlier.disk_usage().unwrap(), store.disk_usage().unwrap());
    assert_eq!((seen.generation, seen.reachable_bytes), (4, 50_000 * 8), "{seen:#?}");
    assert_eq!(format!("{seen:?}"), format!("{now:?}"));
    let verified = earlier.verify(|_| ()).unwrap();
    assert!(verified.is_whole() && verified.orphans.is_empty(), "{verified:#?}");
}

#[test]
fn opening_at_a_tag_that_does_not_exist_is_refused() {
    let (_dir, path) = new_path();
    let options = fast().at("v1");
    // A new store has no tags, and is opened as it is.
    let store = options.open_or_create(&path).unwrap();
    save_tagged(&store, "x", &filled(1, 1i64), "v1");
    assert_eq!(options.open_or_create(&path).unwrap().generation(), 2);
    store.save("x", &filled(1, 2i64)).unwrap();
    assert_refused(fast().at("v2").open(&path), ErrorKind::NameNotFound, &["open tag \"v2\""]);
    assert_refused(
        fast().at(1).open(&path),
        ErrorKind::Conflict,
        &["open generation 1 of", "it is not on disk"],
    );
    assert_eq!(fast().at(2).open(&path).unwrap().generation(), 2);
    assert_eq!(fast().at(3).open(&path).unwrap().generation(), 3);
}

#[test]
fn handle_at_a_tag_keeps_its_generation_when_the_tag_goes() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    store.save("x", &filled(1000, 2i64)).unwrap();
    let earlier = StoreOptions::new().at("v1").open(&path).unwrap();
    store.untag("v1").unwrap();
    store.gc().unwrap();
    assert_eq!(earlier.load("x").unwrap().read::<i64>().unwrap(), [1; 1000]);
    assert_eq!(store.at(2).unwrap().load("x").unwrap().read::<i64>().unwrap(), [1; 1000], "by its number");
    assert_refused(store.at("v1"), ErrorKind::NameNotFound, &["no tag with this name"]);
    assert!(earlier.verify(|_| ()).unwrap().is_whole());
    drop(earlier);
    store.gc().unwrap();
    assert_eq!(super::files(&path, "storages", "bin").len(), 1);
    assert_refused(store.at(2), ErrorKind::Conflict, &["generation 2 of", "it is not on disk"]);
}
