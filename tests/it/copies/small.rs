//! Copies of stores with many small storages.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use stridemap::{DType, Error, ErrorKind, Header, StorageKind, Store};
use stridemap_format::Manifest;

use super::{assert_copy, copy, names_in};
use crate::harness::{assert_refused, fast, filled, new_store};

const COUNT: i64 = 300;

/// Saves small tensors one by one, so that each has a storage, and one large tensor.
fn save_singly(store: &Store) {
    for at in 0..COUNT {
        store.save(&format!("x.{at}"), &filled(10 + at as usize % 7, at)).unwrap();
    }
    store.save("large", &filled(700_001, 7i64)).unwrap();
    store
        .write(|txn| {
            for at in 0..COUNT {
                let name = format!("x.{at}");
                let flipped = txn.load(&name)?.flip([0])?;
                txn.save_view(&format!("flipped.{at}"), &flipped)?;
                txn.copy(&name, &format!("tied.{at}"))?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// Returns the number of files with elements.
fn storage_count(store: &Path) -> usize {
    names_in(&store.join("storages")).iter().filter(|name| name.ends_with(".bin")).count()
}

#[test]
fn small_storages_share_a_file_in_a_copy_and_in_a_salvage() {
    let (dir, path, store) = new_store();
    save_singly(&store);
    assert_eq!(storage_count(&path), 1 + COUNT as usize);
    let (copied, salvaged) = (dir.path().join("copy.smap"), dir.path().join("salvaged.smap"));
    copy(&store, &copied);
    let done = fast().salvage(&path, Some(&salvaged), |_| ()).unwrap();
    assert_eq!(done.losses, []);
    for path in [copied, salvaged] {
        assert_eq!(storage_count(&path), 2, "{}", path.display());
        assert_copy(&Store::open(&path).unwrap(), &store.snapshot());
    }
}

#[test]
fn shared_files_of_a_copy_have_a_limited_length() {
    let (dir, path, store) = new_store();
    // 69 MiB.
    for at in 0..23 {
        store.save(&format!("x.{at}"), &filled((3 << 20) / 8, at as i64)).unwrap();
    }
    let copied = dir.path().join("copy.smap");
    copy(&store, &copied);
    assert_eq!((storage_count(&path), storage_count(&copied)), (23, 2));
    assert_copy(&Store::open(&copied).unwrap(), &store.snapshot());
}

#[test]
fn tensors_of_small_storages_are_copied_into_one_file_of_another_store() {
    let (_dir, _, store) = new_store();
    save_singly(&store);
    let (_other_dir, other_path, other) = new_store();
    let names = |at: i64| {
        let old = [format!("x.{at}"), format!("flipped.{at}"), format!("tied.{at}")];
        old.map(|old| (format!("copied.{old}"), old))
    };
    let names: Vec<(String, String)> = (0..COUNT).flat_map(names).collect();
    other
        .write(|txn| {
            let names: Vec<(&str, &str)> = names.iter().map(|(new, old)| (&**old, &**new)).collect();
            txn.save("own", &filled(3, 1i64))?;
            let copied = txn.copy_from(&store.snapshot(), &names, |_| ())?;
            assert_eq!(copied.tensor_count, 3 * COUNT as u64);
            // What was copied can be read before the commit.
            assert_eq!(txn.load("copied.flipped.299")?.read::<i64>()?, [299; 15]);
            Ok::<_, Error>(())
        })
        .unwrap();
    assert_eq!(storage_count(&other_path), 1);
    for (new, old) in &names {
        let (copied, original) = (other.load(new).unwrap(), store.load(old).unwrap());
        assert_eq!(copied.stride(), original.stride(), "{old}");
        assert_eq!(copied.read::<i64>().unwrap(), original.read::<i64>().unwrap(), "{old}");
    }
    let [x, tied, next] = ["copied.x.1", "copied.tied.1", "copied.x.2"].map(|name| other.load(name).unwrap());
    assert!(x.overlaps(&tied) && !x.overlaps(&next));
    assert_eq!(other.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn tensor_that_grows_has_a_file_of_its_own_in_a_copy() {
    let (dir, _, store) = new_store();
    save_singly(&store);
    store.create_growable("log", DType::I64, &[0], 1 << 20).unwrap();
    store.append("log", &filled(5, 1i64)).unwrap();
    store.write(|txn| txn.save_as("mutable", &filled(5, 2i64), StorageKind::Mutable)).unwrap();
    let path = dir.path().join("copy.smap");
    copy(&store, &path);
    assert_eq!(storage_count(&path), 4);
    let there = fast().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    let file_count = storage_count(&path);
    assert_eq!(there.append("log", &filled(5, 3i64)).unwrap(), 5..10);
    assert_eq!(storage_count(&path), file_count, "rows are appended where the others are");
    // A tensor that shares its file can grow too.
    assert_eq!(there.append("x.0", &filled(1, 4i64)).unwrap(), 10..11);
    assert_eq!(there.load("x.1").unwrap().read::<i64>().unwrap(), [1; 11]);
}

#[test]
fn damaged_small_storage_is_an_error_and_a_salvage_copies_the_others() {
    let (dir, path, store) = new_store();
    save_singly(&store);
    let damaged = path.join("storages/0000000000000005.bin");
    File::options().write(true).open(&damaged).unwrap().write_all_at(b"x", 9).unwrap();
    let to = dir.path().join("copy.smap");
    let parts = ["\"flipped.4\"", "0000000000000005.bin", "F-25"];
    assert_refused(store.snapshot().copy_to(&to, None, |_| ()), ErrorKind::Corrupt, &parts);
    assert!(!fs::exists(&to).unwrap());
    let done = fast().salvage(&path, Some(&to), |_| ()).unwrap();
    let lost: BTreeSet<_> = done.losses.iter().map(|loss| loss.name.as_deref().unwrap()).collect();
    assert_eq!(lost, BTreeSet::from(["flipped.4", "tied.4", "x.4"]));
    assert_eq!(storage_count(&to), 2);
    let there = Store::open(&to).unwrap();
    assert_eq!(there.names().unwrap().len(), store.names().unwrap().len() - 3);
    assert_eq!(there.load("flipped.5").unwrap().read::<i64>().unwrap(), [5; 15]);
    assert_eq!(there.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn header_that_reaches_past_its_small_storage_is_refused_and_reads_no_other_one() {
    let (dir, path, store) = new_store();
    store.save("a", &filled(8, 1i64)).unwrap();
    store.save("b", &filled(8, 2i64)).unwrap();
    let file = path.join("meta/0000000000000003.man");
    drop(store);
    let bytes = fs::read(&file).unwrap();
    let uuid = bytes[24..40].try_into().unwrap();
    let mut manifest = Manifest::decode(&bytes, uuid, 3).unwrap();
    for record in manifest.tensors.values_mut().flatten().filter(|record| record.storage_id == 1) {
        record.header = Header::contiguous(DType::I64, &[16]).unwrap().into();
    }
    fs::write(&file, manifest.encode().unwrap()).unwrap();
    let store = fast().open(&path).unwrap();
    for (at, names) in [None, Some(&["a", "b"][..])].into_iter().enumerate() {
        let refused = store.snapshot().copy_to(dir.path().join(format!("copy.{at}")), names, |_| ());
        assert_refused(refused, ErrorKind::Corrupt, &["0000000000000001.bin"]);
    }
    let (_other_dir, _, other) = new_store();
    let refused = other.write(|txn| txn.copy_from(&store.snapshot(), &[("a", "a"), ("b", "b")], |_| ()));
    assert_refused(refused, ErrorKind::Corrupt, &["0000000000000001.bin"]);
}
