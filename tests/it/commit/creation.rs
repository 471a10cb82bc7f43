//! Stores that are created with their first tensors.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stridemap::{Error, ErrorKind, Store, StoreOptions};

use crate::harness::assert_refused;
use crate::harness::hooked::Hooked;
use crate::support::temporary;

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn failed() -> Error {
    Error::new(ErrorKind::InvalidArgument, "it fails")
}

#[test]
fn created_store_is_invisible_until_it_is_complete() {
    let dir = temporary();
    let (new, empty) = (dir.path().join("new.smap"), dir.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o700)).unwrap();
    for path in [&new, &empty] {
        let generation = StoreOptions::new().create_with(path, |txn| {
            // In an existing directory, there is an empty store until then.
            match Store::open(path) {
                Ok(store) => assert!(path == &empty && store.names().unwrap().is_empty()),
                Err(e) => assert_eq!((path, e.kind()), (&new, ErrorKind::NotFound)),
            }
            txn.save("x", &[1i32, 2])
        });
        let store = Store::open(path).unwrap();
        assert_eq!(generation.unwrap(), store.generation());
        assert_eq!((store.names().unwrap(), store.generation()), (vec!["x".to_owned()], 2));
        assert_eq!(entries(path), ["FORMAT", "LOCK", "generations", "meta", "storages"]);
        store.save("y", &1i32).unwrap();
        assert!(store.verify(|_| ()).unwrap().findings.is_empty());
    }
    assert_eq!(fs::metadata(&empty).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(entries(dir.path()), ["empty", "new.smap"]);
}

#[test]
fn failed_creation_leaves_nothing() {
    let dir = temporary();
    let (new, empty) = (dir.path().join("new.smap"), dir.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    for path in [&new, &empty] {
        let refused = StoreOptions::new().create_with(path, |txn| {
            txn.save("x", &vec![0u8; 5 << 20])?;
            Err(failed())
        });
        assert_refused(refused, ErrorKind::InvalidArgument, &["it fails"]);
        assert_eq!(entries(dir.path()), ["empty"]);
        assert!(entries(&empty).is_empty());
    }
}

#[test]
fn creation_that_fails_at_any_operation_leaves_the_directory_empty_or_a_store() {
    let mut fault_count = 0;
    for nth in 0.. {
        let dir = temporary();
        let left = Arc::new(AtomicUsize::new(nth));
        let disk = Hooked::before({
            let left = Arc::clone(&left);
            // Deletions succeed: they undo the creation. Nothing else succeeds after the first failure.
            move |operation, _| match operation.starts_with("remove") {
                false if left.load(Ordering::Relaxed) == 0 => Err(io::Error::other("injected fault")),
                false => {
                    left.fetch_sub(1, Ordering::Relaxed);
                    Ok(())
                }
                true => Ok(()),
            }
        });
        let created = StoreOptions::new().disk(Arc::new(disk)).create(dir.path());
        if created.is_ok() {
            break;
        }
        fault_count += 1;
        let has_store = Store::open(dir.path()).is_ok();
        assert!(has_store || entries(dir.path()).is_empty(), "{nth}: {:?}", entries(dir.path()));
    }
    assert!(fault_count > 20, "{fault_count}");
}

#[test]
fn failed_creation_keeps_the_files_of_others() {
    let dir = temporary();
    let (new, empty) = (dir.path().join("new.smap"), dir.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    for path in [&new, &empty] {
        let refused = StoreOptions::new().create_with(path, |_| {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("thesis.tex"), "years of work").unwrap();
            Err(failed())
        });
        assert_refused(refused, ErrorKind::InvalidArgument, &["it fails"]);
        assert_eq!(entries(path), ["thesis.tex"]);
    }
    fs::remove_dir_all(&new).unwrap();
    let refused = StoreOptions::new().create_with(&new, |_| {
        fs::write(&new, "years of work").unwrap();
        Ok(())
    });
    assert_refused(refused, ErrorKind::AlreadyExists, &["new.smap", "exists"]);
    assert_eq!(fs::read(&new).unwrap(), b"years of work");
    assert_eq!(entries(dir.path()), ["empty", "new.smap"]);
}

#[test]
fn failed_creation_keeps_the_commits_of_others() {
    let dir = temporary();
    let refused = StoreOptions::new().create_with(dir.path(), |_| {
        Store::open(dir.path()).unwrap().save("theirs", &1i32).unwrap();
        Err(failed())
    });
    assert_refused(refused, ErrorKind::InvalidArgument, &["it fails"]);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.names().unwrap(), ["theirs"]);
    assert!(store.verify(|_| ()).unwrap().findings.is_empty());
}

#[test]
fn failed_creation_does_not_follow_a_link_that_has_moved() {
    let dir = temporary();
    let (new, old, link) = (dir.path().join("new"), dir.path().join("old.smap"), dir.path().join("current"));
    Store::create(&old).unwrap().save("x", &1i32).unwrap();
    fs::create_dir(&new).unwrap();
    symlink(&new, &link).unwrap();
    let refused = StoreOptions::new().create_with(&link, |_| {
        fs::remove_file(&link).unwrap();
        symlink(&old, &link).unwrap();
        Err(failed())
    });
    assert_refused(refused, ErrorKind::InvalidArgument, &["it fails"]);
    assert_eq!(Store::open(&old).unwrap().names().unwrap(), ["x"]);
    assert!(entries(&new).is_empty());
}

#[test]
fn creation_with_tensors_refuses_what_a_creation_refuses() {
    let dir = temporary();
    fs::write(dir.path().join("file"), "x").unwrap();
    let never = |_: &mut stridemap::Transaction<'_>| panic!("the path was not checked first");
    for path in [dir.path().to_path_buf(), dir.path().join("file")] {
        let refused = StoreOptions::new().create_with(path, never);
        assert_refused(refused, ErrorKind::AlreadyExists, &["create", "choose a different path"]);
    }
    let refused = StoreOptions::new().create_with(dir.path().join("none/x.smap"), never);
    assert_refused(refused, ErrorKind::Io, &["none"]);
}
