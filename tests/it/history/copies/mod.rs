//! Copies of a store with its tags.

mod after;
mod refused;
mod removed;

use std::collections::BTreeMap;
use std::fs;

use stridemap::maintenance::Copied;
use stridemap::{DType, ErrorKind, Snapshot, StorageKind, Store};

use super::{save_many, save_tagged};
use crate::copies::names_in;
use crate::external::{Adopted, external_anywhere};
use crate::harness::{arange, assert_refused, fast, filled, new_path, new_store, open_mapped};

pub(super) use removed::run_role;

/// Copies a store with its tags, to a path beside it.
fn copy_of(store: &Store) -> (Copied, Store) {
    let path = store.path().with_file_name("copy.smap");
    let copied = store.copy_with_tags(&path, |_| ()).unwrap();
    (copied, Store::open(path).unwrap())
}

/// Returns the name and the length of each file in a directory of a store.
fn lengths(store: &Store, dir: &str) -> BTreeMap<String, u64> {
    let files = fs::read_dir(store.path().join(dir)).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len())).collect()
}

/// Asserts that a generation of one store is that of the other: headers, ids, attributes and elements.
#[track_caller]
fn assert_same_generation(copy: &Snapshot, original: &Snapshot) {
    assert_eq!((copy.generation(), copy.time()), (original.generation(), original.time()));
    assert_eq!(copy.message(), original.message());
    assert_eq!(copy.all_attributes(), original.all_attributes());
    let tensors = |snapshot: &Snapshot| -> Vec<_> {
        let tensors = snapshot.iter_tensors("").unwrap().map(Result::unwrap);
        tensors.map(|tensor| (tensor.name, tensor.header, tensor.storage_id)).collect()
    };
    assert_eq!(tensors(copy), tensors(original));
    let storages = |snapshot: &Snapshot| -> Vec<_> {
        let storages = snapshot.storages().map(Result::unwrap);
        let record =
            |it: stridemap::StorageInfo| (it.id, it.kind, it.size_bytes, it.offset_bytes, it.tensor_count);
        storages.map(record).collect()
    };
    assert_eq!(storages(copy), storages(original));
    for name in &original.names().unwrap() {
        let bytes = |snapshot: &Snapshot| snapshot.load(name).unwrap().to_bytes().unwrap();
        assert!(bytes(copy) == bytes(original), "{name} of generation {}", copy.generation());
    }
}

/// Asserts that a store, which nothing has changed since it was made, is a copy of another one with its tags, and has no
/// file more.
#[track_caller]
fn assert_copy(copy: &Store, original: &Store) {
    let verified = copy.verify(|_| ()).unwrap();
    assert!(verified.is_whole() && verified.orphans.is_empty(), "{verified:#?}");
    let log = original.log().unwrap();
    assert_eq!(copy.log().unwrap(), log);
    assert_eq!(copy.tags().unwrap(), original.tags().unwrap());
    for entry in &log {
        let at = |store: &Store| store.at(entry.generation).unwrap();
        assert_same_generation(&at(copy), &at(original));
    }
    // The original has no leftovers either. Of a live or mutable storage, all bytes are copied.
    original.gc().unwrap();
    assert_eq!(lengths(copy, "storages"), lengths(original, "storages"));
    // The path of an external file may be longer in the copy.
    let names = |store: &Store| lengths(store, "generations").into_keys().collect::<Vec<_>>();
    assert_eq!(names(copy), names(original));
    let manifests = |store: &Store| -> Vec<_> {
        lengths(store, "meta").into_keys().filter(|name| name.ends_with(".man")).collect()
    };
    assert_eq!(manifests(copy), manifests(original));
    assert_eq!(copy.generation(), original.generation());
}

#[test]
fn copy_has_every_tagged_state() {
    let (dir, _, store) = new_store();
    let named = arange(&[3, 4]).refine_names(&["row", "column"]).unwrap();
    store
        .write(|txn| {
            txn.save("frozen", &filled(300_000, 1i64))?;
            txn.save("encoder.w", &named)?;
            txn.set_attribute("", "author", "Ada")?;
            txn.set_attribute("encoder", "depth", "2")?;
            txn.message("as downloaded");
            txn.tag("base")
        })
        .unwrap();
    store.save_view("encoder.t", &store.load("encoder.w").unwrap().t().unwrap()).unwrap();
    store
        .write(|txn| {
            txn.save("encoder.w", &filled(12, 7.5f32))?;
            txn.set_attribute("", "author", "Bob")?;
            txn.tag("step1")
        })
        .unwrap();
    // A generation that no tag keeps, and two tags of one, with messages of their own.
    store.save("encoder.b", &filled(1000, 1u8)).unwrap();
    store.remove("encoder.b").unwrap();
    store.remove("encoder.t").unwrap();
    store
        .write(|txn| {
            txn.message("the best so far");
            txn.tag_snapshot("best", &store.at("step1")?)?;
            txn.tag_snapshot("also", &store.at("step1")?)
        })
        .unwrap();
    store.write(|txn| txn.save("none", &filled(0, 1f64))).unwrap();
    // The newest generation has a tag, too.
    save_tagged(&store, "scalar", &crate::harness::scalar(5), "newest");

    let (copied, copy) = copy_of(&store);
    let stored: u64 = lengths(&store, "storages")
        .into_iter()
        .filter(|(name, _)| name.ends_with(".bin"))
        .map(|(_, len)| len)
        .sum();
    assert_eq!((copied.tensor_count, copied.tag_count), (4, 5));
    assert_eq!(copied.copied_bytes + copied.shared_bytes, stored);
    assert_copy(&copy, &store);
    // The newest without a tag, and a copy of the copy.
    store.untag("newest").unwrap();
    let again = dir.path().join("again.smap");
    assert_eq!(store.copy_with_tags(&again, |_| ()).unwrap().tag_count, 4);
    assert_copy(&Store::open(&again).unwrap(), &store);
    let last = dir.path().join("last.smap");
    Store::open(&again).unwrap().copy_with_tags(&last, |_| ()).unwrap();
    assert_copy(&Store::open(&last).unwrap(), &store);
}

#[test]
fn storages_that_grew_are_copied_once() {
    let (_dir, _, store) = new_store();
    store.create_growable("log", DType::I64, &[0, 2], 1_000_000).unwrap();
    let rows =
        |value: i64, count: usize| stridemap::Tensor::from_vec(vec![value; 2 * count], &[count, 2]).unwrap();
    // The last one is of several chunks, and ends within one.
    for (step, count) in [(1, 10), (2, 100), (3, 200_000)] {
        store
            .write(|txn| {
                txn.append("log", &rows(step, count))?;
                txn.tag(&format!("step{step}"))
            })
            .unwrap();
    }
    let (copied, copy) = copy_of(&store);
    assert_eq!(copied.copied_bytes + copied.shared_bytes, 200_110 * 16);
    assert_copy(&copy, &store);
    // The newest generation is a state that is shorter than an earlier one.
    store.restore(&store.at("step1").unwrap()).unwrap();
    store.append("log", &rows(4, 5)).unwrap();
    store.tag("again").unwrap();
    store.remove("log").unwrap();
    let path = copy.path().with_file_name("shorter.smap");
    let copied = store.copy_with_tags(&path, |_| ()).unwrap();
    assert_eq!(copied.copied_bytes + copied.shared_bytes, (200_110 + 15) * 16);
    let copy = Store::open(path).unwrap();
    assert_copy(&copy, &store);
    assert_eq!(copy.at("step2").unwrap().load("log").unwrap().size(), [110, 2]);
    // Address space is reserved as before, and rows follow the last ones.
    copy.restore(&copy.at("step3").unwrap()).unwrap();
    assert_eq!(copy.append("log", &rows(5, 1)).unwrap(), 200_110..200_111);
    assert_eq!(lengths(&copy, "storages")["0000000000000001.bin"], 200_111 * 16);
    assert!(copy.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn storage_that_was_dropped_and_restored_is_copied() {
    let (_dir, _, store) = new_store();
    save_tagged(&store, "x", &filled(10_000, 1i64), "with");
    store
        .write(|txn| {
            txn.remove("x")?;
            txn.tag("without")
        })
        .unwrap();
    store.restore(&store.at("with").unwrap()).unwrap();
    store.tag("again").unwrap();
    assert_copy(&copy_of(&store).1, &store);
    // Dropped for the second time: only tags have it, and not the one between.
    store.remove("x").unwrap();
    store.untag("with").unwrap();
    let path = store.path().with_file_name("dropped.smap");
    store.copy_with_tags(&path, |_| ()).unwrap();
    let copy = Store::open(path).unwrap();
    assert_copy(&copy, &store);
    assert!(copy.at("without").unwrap().names().unwrap().is_empty());
    copy.restore(&copy.at("again").unwrap()).unwrap();
    copy.untag("again").unwrap();
    copy.untag("without").unwrap();
    copy.gc().unwrap();
    assert_eq!(copy.load("x").unwrap().read::<i64>().unwrap(), [1; 10_000]);
    assert!(copy.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn storages_that_change_in_place_are_copied_as_they_are_now() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    for tag in ["v1", "v2"] {
        store
            .write(|txn| {
                txn.save_as("mutable", &filled(10, 1i64), StorageKind::Mutable)?;
                txn.save_as("live", &filled(10, 1u64), StorageKind::Live)?;
                txn.tag(tag)
            })
            .unwrap();
    }
    store.tag("same").unwrap();
    store.load("mutable").unwrap().lock_exclusive().unwrap().fill_(7).unwrap();
    store.load("live").unwrap().as_live::<u64>().unwrap().fetch_add(3, 5).unwrap();
    let (copied, copy) = copy_of(&store);
    assert_eq!((copied.copied_bytes, copied.shared_bytes), (4 * 80, 0));
    assert_copy(&copy, &store);
    assert_eq!(copy.at("v1").unwrap().load("mutable").unwrap().read::<i64>().unwrap(), [1; 10]);
    // The two stores are separate from now on, and one storage of the copy is one in all generations.
    let copy = open_mapped(copy.path());
    copy.load("mutable").unwrap().lock_exclusive().unwrap().fill_(8).unwrap();
    assert_eq!(copy.at("v2").unwrap().load("mutable").unwrap().read::<i64>().unwrap(), [8; 10]);
    assert_eq!(copy.load("live").unwrap().as_live::<u64>().unwrap().fetch_add(3, 1).unwrap(), 6);
    assert_eq!(store.load("mutable").unwrap().read::<i64>().unwrap(), [7; 10]);
    assert_eq!(store.load("live").unwrap().read::<u64>().unwrap()[3], 6);
}

#[test]
fn copy_finds_external_files_from_its_own_place() {
    for is_tagged in [true, false] {
        let adopted = Adopted::new();
        let elsewhere = crate::support::temporary();
        let store = external_anywhere().open(&adopted.path).unwrap();
        if is_tagged {
            store.tag("adopted").unwrap();
        }
        // Both are in a table, and in the newest generation removed from it.
        save_many(&store, "a", 300);
        store.write(|txn| ["weight", "bias"].iter().try_for_each(|name| txn.remove(name))).unwrap();
        store.tag("many").unwrap();
        let path = elsewhere.path().join("copy.smap");
        if is_tagged {
            let beside = adopted.open();
            let refused = beside.copy_with_tags(&path, |_| ());
            assert_refused(refused, ErrorKind::NotAllowed, &["tag \"adopted\"", "ExternalFiles::Anywhere"]);
        }
        store.copy_with_tags(&path, |_| ()).unwrap();
        let copy = external_anywhere().open(&path).unwrap();
        assert_copy(&copy, &store);
        let Some(tag) = is_tagged.then_some("adopted") else { continue };
        for storage in copy.at(tag).unwrap().storages().map(Result::unwrap) {
            assert_eq!(storage.kind, StorageKind::External);
            assert_eq!(fs::canonicalize(storage.file).unwrap(), fs::canonicalize(&adopted.file).unwrap());
        }
    }
}

#[test]
fn large_generations_are_copied_by_their_tables() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    save_many(&store, "a", 2000);
    for i in 0..150 {
        store.save(&format!("own{i:03}"), &filled(10, i)).unwrap();
    }
    store.tag("v1").unwrap();
    // The same table, with changes; then a later one.
    store.write(|txn| (0..50).try_for_each(|i| txn.remove(&format!("own{i:03}")))).unwrap();
    store.tag("v2").unwrap();
    store.write(|txn| (0..2000).try_for_each(|i| txn.remove(&format!("a{i:04}")))).unwrap();
    save_many(&store, "b", 3000);
    store.tag("v3").unwrap();
    for i in 0..150 {
        store.save(&format!("later{i:03}"), &filled(10, i)).unwrap();
        store.tag(&format!("later{i:03}")).unwrap();
    }
    store.gc().unwrap();
    let tables = lengths(&store, "generations");
    assert!(super::files(&path, "generations", "tab").len() >= 3);
    assert_eq!(super::files(&path, "meta", "his").len(), 1);
    let (copied, copy) = copy_of(&store);
    assert_eq!((copied.tag_count, copied.tensor_count), (153, 3000 + 1 + 100 + 150));
    assert_copy(&copy, &store);
    assert_eq!(lengths(&copy, "generations"), tables);
}

#[test]
fn store_without_tags_is_copied_too() {
    let (dir, _, store) = new_store();
    let empty = dir.path().join("empty.smap");
    assert_eq!(store.copy_with_tags(&empty, |_| ()).unwrap(), Copied::default());
    let copy = Store::open(&empty).unwrap();
    assert!(copy.names().unwrap().is_empty() && copy.tags().unwrap().is_empty());
    assert!(copy.verify(|_| ()).unwrap().is_whole());
    copy.save("x", &filled(1, 1i64)).unwrap();
    store.save("x", &filled(10, 1i64)).unwrap();
    assert_copy(&copy_of(&store).1, &store);
    // A tag of the first, empty generation.
    let (dir, _, store) = new_store();
    store.tag("empty").unwrap();
    let path = dir.path().join("tagged.smap");
    store.copy_with_tags(&path, |_| ()).unwrap();
    assert_copy(&Store::open(&path).unwrap(), &store);
}
