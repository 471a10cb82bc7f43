//! Copies that are refused or fail.

use super::{copy, names_in};
use crate::harness::small_disk::SmallDisk;
use crate::harness::{assert_refused, filled, new_store};
use crate::support::temporary;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use stridemap::{ErrorKind, StorageKind, Store};

#[test]
fn existing_path_is_refused_and_kept() {
    let (dir, _, store) = new_store();
    store.save("x", &filled(3, 1i64)).unwrap();
    fs::write(dir.path().join("file"), "text").unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    let before = names_in(dir.path());
    for name in ["file", "empty", "link", "x.smap", "."] {
        let refused =
            store.snapshot().copy_to(dir.path().join(name), None, |_| panic!("an element was read"));
        assert_refused(
            refused,
            ErrorKind::AlreadyExists,
            &["the path already exists", "choose a different path"],
        );
    }
    // The destination appears while elements are copied.
    let path = dir.path().join("late.smap");
    let refused = store.snapshot().copy_to(&path, None, |_| fs::write(&path, "text").unwrap());
    assert_refused(refused, ErrorKind::AlreadyExists, &["late.smap: the path already exists"]);
    assert_eq!(fs::read(&path).unwrap(), b"text");
    fs::remove_file(&path).unwrap();
    let refused = store.snapshot().copy_to(dir.path().join("no/such.smap"), None, |_| ());
    assert_refused(refused, ErrorKind::Io, &["No such file", "/no"]);
    assert_eq!(names_in(dir.path()), before);
}

#[test]
fn damage_is_an_error_and_is_not_copied() {
    let (dir, path, store) = new_store();
    store.save("whole", &filled(600_000, 1i64)).unwrap();
    store.save("x", &filled(600_000, 1i64)).unwrap();
    let file = File::options().write(true).open(path.join("storages/0000000000000002.bin")).unwrap();
    file.write_all_at(b"x", 3_000_000).unwrap();
    let copy = dir.path().join("copy.smap");
    let parts = ["\"x\"", "storages/0000000000000002.bin at byte 2097152", "F-25"];
    assert_refused(store.snapshot().copy_to(&copy, None, |_| ()), ErrorKind::Corrupt, &parts);
    assert_refused(store.snapshot().copy_to(&copy, Some(&["x"]), |_| ()), ErrorKind::Corrupt, &parts);
    assert_eq!(names_in(dir.path()), ["x.smap"]);
    store.snapshot().copy_to(&copy, Some(&["whole"]), |_| ()).unwrap();
    assert_eq!(Store::open(&copy).unwrap().verify(|_| ()).unwrap().findings, []);
    fs::remove_file(path.join("storages/0000000000000002.sum")).unwrap();
    let refused = store.snapshot().copy_to(dir.path().join("again.smap"), None, |_| ());
    assert_refused(refused, ErrorKind::Corrupt, &["0000000000000002.sum"]);
}

#[test]
fn interrupted_copy_leaves_nothing() {
    let (dir, _, store) = new_store();
    store.save("x", &filled(3, 1i64)).unwrap();
    store.write(|txn| txn.save_as("counts", &filled(3, 1i64), StorageKind::Mutable)).unwrap();
    let path = dir.path().join("copy.smap");
    let panicked =
        catch_unwind(AssertUnwindSafe(|| store.snapshot().copy_to(&path, None, |_| panic!("of the caller"))));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "of the caller");
    let counts = store.load("counts").unwrap();
    let guard = counts.lock_exclusive().unwrap();
    assert_refused(
        store.snapshot().copy_to(&path, None, |_| ()),
        ErrorKind::Busy,
        &["\"counts\"", "exclusive guard"],
    );
    drop(guard);
    assert_eq!(names_in(dir.path()), ["x.smap"]);
    let guard = counts.lock_shared().unwrap();
    copy(&store, &path);
    drop(guard);
}

#[test]
fn copy_to_a_full_disk_is_an_error_that_leaves_nothing() {
    let Some(disk) = SmallDisk::mount("6m") else { return };
    let dir = temporary();
    for kind in [StorageKind::Sealed, StorageKind::Live] {
        let store = Store::create(dir.path().join(kind.to_string())).unwrap();
        store.save("small", &filled(100_000, 1i64)).unwrap();
        store.write(|txn| txn.save_as("x", &filled(1 << 20, 1i64), kind)).unwrap();
        let refused = store.snapshot().copy_to(disk.path.join("copy.smap"), None, |_| ());
        assert_refused(refused, ErrorKind::Io, &["copy.smap", "\"x\"", "No space left"]);
        assert_eq!(names_in(&disk.path), [""; 0]);
        let copied = store.snapshot().copy_to(disk.path.join("copy.smap"), Some(&["small"]), |_| ()).unwrap();
        assert_eq!(copied.copied_bytes, 800_000);
        fs::remove_dir_all(disk.path.join("copy.smap")).unwrap();
    }
}
