//! Copies with tags that are refused or fail, and leave nothing.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store};
use stridemap_format::{Manifest, Marker, RecordKind};

use super::{assert_copy, copy_of, names_in};
use crate::external::{Adopted, external_beside, write_model};
use crate::harness::{assert_refused, filled, new_store};
use crate::history::in_place::interrupt_change;
use crate::history::{files, save_many, save_tagged};

const CHUNK: usize = 1 << 20;

/// Asserts that a store cannot be copied with its tags while `change` has changed a file, and that nothing is left.
#[track_caller]
fn assert_refused_with(path: &Path, file: &Path, change: impl FnOnce(&Path), parts: &[&str]) {
    let whole = fs::read(file).unwrap();
    change(file);
    let store = Store::open(path).unwrap();
    let to = path.with_file_name("copy.smap");
    let mut parts = parts.to_vec();
    parts.push(file.to_str().unwrap());
    assert_refused(store.copy_with_tags(&to, |_| ()), ErrorKind::Corrupt, &parts);
    // The newest generation needs none of these.
    store.snapshot().copy_to(&to, None, |_| ()).unwrap();
    fs::remove_dir_all(to).unwrap();
    assert_eq!(names_in(path.parent().unwrap()), ["x.smap"]);
    fs::write(file, whole).unwrap();
}

fn flip(at: usize) -> impl FnOnce(&Path) {
    move |file| {
        let mut bytes = fs::read(file).unwrap();
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
    }
}

#[test]
fn damage_to_what_a_tag_needs_is_an_error_that_names_it() {
    let (_dir, path, store) = new_store();
    store.save("large", &filled(2 * CHUNK + 10, 1u8)).unwrap();
    save_many(&store, "a", 300);
    store.tag("old").unwrap();
    let names = store.names().unwrap();
    store.write(|txn| names.iter().try_for_each(|name| txn.remove(name))).unwrap();
    save_many(&store, "b", 300);
    drop(store);
    Store::open(&path).unwrap().gc().unwrap();
    let first = |dir, ending| files(&path, dir, ending).remove(0);
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    let bin = first("storages", "bin");
    let storage = ["tag \"old\"", "\"large\"", "copy.smap"];
    assert_refused_with(&path, &bin, flip(CHUNK), &[&storage[..], &["at byte 1048576", "F-25"]].concat());
    assert_refused_with(&path, &bin, flip(2 * CHUNK + 9), &storage);
    assert_refused_with(&path, &bin, remove, &storage);
    assert_refused_with(&path, &first("storages", "sum"), flip(0), &storage);
    let table = first("generations", "tab");
    assert_refused_with(&path, &table, flip(5000), &["tag \"old\"", "F-21"]);
    let manifest = first("generations", "man");
    assert_refused_with(&path, &manifest, flip(60), &["tag \"old\"", "F-16"]);
    assert_refused_with(&path, &manifest, remove, &["tag \"old\"", "F-19", "missing"]);
    let store = Store::open(&path).unwrap();
    assert_copy(&copy_of(&store).1, &store);
}

#[test]
fn existing_path_is_refused_and_kept() {
    let (dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    fs::write(dir.path().join("file"), "text").unwrap();
    for name in ["file", "x.smap", "."] {
        let refused = store.copy_with_tags(dir.path().join(name), |_| panic!("an element was read"));
        assert_refused(refused, ErrorKind::AlreadyExists, &["the path already exists"]);
    }
    let refused = store.copy_with_tags(dir.path().join("no/such.smap"), |_| ());
    assert_refused(refused, ErrorKind::Io, &["No such file", "/no"]);
    // It appears meanwhile.
    let late = dir.path().join("late.smap");
    let refused = store.copy_with_tags(&late, |_| fs::write(&late, "text").unwrap());
    assert_refused(refused, ErrorKind::AlreadyExists, &["late.smap: the path already exists"]);
    let copy = dir.path().join("copy.smap");
    let panicked = catch_unwind(AssertUnwindSafe(|| store.copy_with_tags(&copy, |_| panic!("a bug"))));
    assert!(panicked.is_err());
    assert_eq!(names_in(dir.path()), ["file", "late.smap", "x.smap"]);
    assert!(Store::open(path).unwrap().verify(|_| ()).unwrap().is_whole());
}

#[test]
fn interrupted_change_that_only_a_tag_has_is_refused() {
    let (dir, _, store) = new_store();
    store
        .write(|txn| {
            txn.save_as("mutable", &filled(10, 1i64), StorageKind::Mutable)?;
            txn.tag("v1")
        })
        .unwrap();
    interrupt_change(&store);
    store.remove("mutable").unwrap();
    let refused = store.copy_with_tags(dir.path().join("copy.smap"), |_| ());
    assert_refused(refused, ErrorKind::Interrupted, &["tag \"v1\"", "\"mutable\""]);
    assert_eq!(names_in(dir.path()), ["x.smap"]);
    store.untag("v1").unwrap();
    assert_copy(&copy_of(&store).1, &store);
}

#[test]
fn changed_external_file_that_only_a_tag_has_is_refused() {
    let adopted = Adopted::new();
    let store = adopted.open();
    store.tag("v1").unwrap();
    store.write(|txn| ["weight", "bias"].iter().try_for_each(|name| txn.remove(name))).unwrap();
    let copy = adopted.dir.path().join("copy.smap");
    let closed = Store::open(&adopted.path).unwrap();
    let refused = closed.copy_with_tags(&copy, |_| ());
    assert_refused(refused, ErrorKind::NotAllowed, &["tag \"v1\"", "StoreOptions::external"]);
    write_model(&adopted.file);
    let refused = store.copy_with_tags(&copy, |_| ());
    assert_refused(refused, ErrorKind::ExternalChanged, &["tag \"v1\"", "\"bias\"", "adopted"]);
    assert!(!copy.exists());
    store.untag("v1").unwrap();
    assert_eq!(
        external_beside().open(&adopted.path).unwrap().copy_with_tags(&copy, |_| ()).unwrap().tag_count,
        0
    );
}

#[test]
fn digest_of_a_shorter_state_is_verified() {
    let (_dir, path, store) = new_store();
    store.create_growable("log", DType::U8, &[0], 0).unwrap();
    store.append("log", &filled(10, 1u8)).unwrap();
    store.tag("short").unwrap();
    store.append("log", &filled(10, 2u8)).unwrap();
    drop(store);
    // The longer record, whose digest covers all bytes, is right.
    let manifest = files(&path, "generations", "man").remove(0);
    let change = |file: &Path| {
        let uuid = Marker::decode(&fs::read(path.join("FORMAT")).unwrap()).unwrap().uuid;
        let mut manifest = Manifest::decode(&fs::read(file).unwrap(), uuid, 3).unwrap();
        let Some(Some(record)) = manifest.storages.get_mut(&1) else { panic!("{manifest:?}") };
        let RecordKind::Sealed(sealed) = &mut record.kind else { panic!("{record:?}") };
        sealed.tail[0] ^= 1;
        fs::write(file, manifest.encode().unwrap()).unwrap();
    };
    let whole = fs::read(&manifest).unwrap();
    change(&manifest);
    let store = Store::open(&path).unwrap();
    let refused = store.copy_with_tags(path.with_file_name("copy.smap"), |_| ());
    let file = "storages/0000000000000001.bin";
    assert_refused(refused, ErrorKind::Corrupt, &["tag \"short\"", file, "F-25"]);
    assert_eq!(names_in(path.parent().unwrap()), ["x.smap"]);
    fs::write(&manifest, whole).unwrap();
    assert_copy(&copy_of(&store).1, &store);
}
