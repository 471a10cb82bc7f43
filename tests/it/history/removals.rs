//! What the removal of tags deletes, and when.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use stridemap::history::Retention;
use stridemap::{ErrorKind, Store, StoreOptions};

use super::{files, save_tagged};
use crate::harness::hooked::Hooked;
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path, new_store};

/// Saves a tensor `x` again and again, and tags each generation.
fn save_steps(store: &Store, count: i64) {
    for step in 0..count {
        save_tagged(store, "x", &filled(10, step), &format!("t{step}"));
    }
}

fn keep_last(store: &Store) -> usize {
    let policy = Retention { keep_last: Some(1), ..Retention::default() };
    store.retain(&policy, |_| true).unwrap().len()
}

/// Returns how many kept manifests and how many storages are in a store.
fn counts(path: &Path) -> (usize, usize) {
    (files(path, "generations", "man").len(), files(path, "storages", "bin").len())
}

#[test]
fn removal_of_many_tags_deletes_in_its_commit_what_only_they_kept() {
    let (_dir, path, store) = new_fast_store();
    save_steps(&store, 60);
    drop(store);
    assert_eq!(counts(&path), (60, 60));
    // With a new handle, as each run of the command has.
    let store = fast().open(&path).unwrap();
    assert_eq!(keep_last(&store), 59);
    assert_eq!(counts(&path), (1, 1));
    assert!(files(&path, "generations", "tab").len() <= 1 && files(&path, "meta", "his").len() <= 1);
    assert_eq!(store.gc().unwrap().file_count, 0);
    drop(store);
    fast().open(&path).unwrap().save("y", &1i32).unwrap();
    // That commit was the last one that had to look for them.
    let looked_for = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&looked_for);
    let disk = Hooked::before(move |_, path| {
        let is_kept = path.parent().is_some_and(|dir| dir.ends_with("generations"));
        list.lock().unwrap().extend(is_kept.then(|| path.to_owned()));
        Ok(())
    });
    let store = fast().disk(Arc::new(disk)).open(&path).unwrap();
    looked_for.lock().unwrap().clear();
    store.save("z", &1i32).unwrap();
    let looked_for = looked_for.lock().unwrap().clone();
    let manifests: Vec<_> =
        looked_for.iter().filter(|path| path.extension().is_some_and(|end| end == "man")).collect();
    assert!(manifests.is_empty(), "{manifests:?}");
    assert!(store.verify(|_| ()).unwrap().is_whole());
    assert_eq!(store.at("t59").unwrap().load("x").unwrap().read::<i64>().unwrap(), [59; 10]);
}

#[test]
fn removal_leaves_what_readers_hold_until_they_have_gone() {
    let (_dir, path, store) = new_fast_store();
    save_steps(&store, 20);
    let readers = ["t3", "t11"].map(|tag| fast().at(tag).open(&path).unwrap());
    assert_eq!(keep_last(&store), 19);
    assert_eq!(counts(&path), (3, 3));
    for step in 0..30 {
        store.save("y", &step).unwrap();
    }
    assert_eq!(counts(&path), (3, 4));
    for (reader, step) in readers.iter().zip([3, 11]) {
        assert_eq!(reader.load("x").unwrap().read::<i64>().unwrap(), [step; 10]);
    }
    drop(readers);
    store.save("y", &0i32).unwrap();
    assert_eq!(counts(&path), (1, 2));
    assert_eq!(store.gc().unwrap().file_count, 0);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn tag_that_is_moved_keeps_nothing_of_its_earlier_generation() {
    let (_dir, path, store) = new_fast_store();
    for step in 0..5i64 {
        store
            .write(|txn| {
                txn.on_existing(stridemap::OnExisting::Replace);
                txn.save("x", &filled(10, step))?;
                txn.tag("last")
            })
            .unwrap();
        assert_eq!(counts(&path), (1, 1), "step {step}");
    }
}

/// A storage was restored and removed again, so that only the records of the tagged generations say which of them have it.
#[test]
fn collection_keeps_what_a_damaged_tag_may_need() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10, 1i64), "with");
    store.remove("x").unwrap();
    save_tagged(&store, "y", &filled(10, 2i64), "without");
    store.restore(&store.at("with").unwrap()).unwrap();
    store.remove("x").unwrap();
    store.untag("with").unwrap();
    let [manifest] = &files(&path, "generations", "man")[..] else { panic!("one tag is left") };
    let whole = fs::read(manifest).unwrap();
    let mut damaged = whole.clone();
    damaged[40] ^= 1;
    fs::write(manifest, damaged).unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    store.gc().unwrap();
    assert_eq!(counts(&path), (1, 2), "the tag may need both");
    // What cannot be read is not what is damaged.
    fs::write(manifest, &whole).unwrap();
    let unreadable = manifest.clone();
    let disk = Hooked::before(move |operation, path| match operation == "open" && path == unreadable {
        true => Err(std::io::Error::other("a disk that fails")),
        false => Ok(()),
    });
    let failing = fast().disk(Arc::new(disk)).open(&path).unwrap();
    assert_refused(failing.gc(), ErrorKind::Io, &["a disk that fails", manifest.to_str().unwrap()]);
    assert_eq!(counts(&path), (1, 2));
    store.gc().unwrap();
    assert_eq!(counts(&path), (1, 1), "the tag has only the storage of y");
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

/// A commit that fails after it has kept its manifest leaves it with the number of the generation that comes instead.
#[test]
fn manifest_of_a_failed_commit_says_nothing_about_the_generation_with_its_number() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    save_tagged(&store, "x", &filled(100, 1i64), "v1");
    store.save("x", &filled(100, 2i64)).unwrap();
    store.restore(&store.at("v1").unwrap()).unwrap();
    let disk = Hooked::before(|operation: &str, path: &Path| {
        let is_manifest =
            path.extension().is_some_and(|end| end == "man") && path.to_string_lossy().contains("/meta/");
        match operation == "rename_new" && is_manifest {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => Ok(()),
        }
    });
    let failing = StoreOptions::new().disk(Arc::new(disk)).open(&path).unwrap();
    let failed = failing.write(|txn| {
        txn.save("x", &filled(100, 3i64))?;
        txn.tag("v2")
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    drop(failing);
    let next = path.join(format!("generations/{:016x}.man", store.generation() + 1));
    assert!(next.exists());
    // Another commit takes the number, and a reader stays there.
    store.save("y", &filled(1, 4i64)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.untag("v1").unwrap();
    store.save("x", &filled(100, 5i64)).unwrap();
    Store::open(&path).unwrap().gc().unwrap();
    assert_eq!(reader.load("x").unwrap().read::<i64>().unwrap(), [1; 100]);
    drop(reader);
    Store::open(&path).unwrap().gc().unwrap();
    assert!(!next.exists());
}
