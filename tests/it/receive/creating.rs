//! New replicas.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use stridemap::replica::ReceiveOptions;
use stridemap::{Error, ErrorKind, Store, StoreOptions};

use super::{assert_same, files, filled_store, receive};
use crate::harness::{arange, assert_refused, fast};
use crate::support::temporary;

#[test]
fn new_replica_has_everything_and_nothing_more() {
    let dir = temporary();
    let store = filled_store(&dir.path().join("a.smap"));
    let bytes = AtomicU64::new(0);
    let progress = |read| {
        bytes.fetch_add(read, Ordering::Relaxed);
        Ok(())
    };
    // Durable, with several threads, and neither.
    let durable = StoreOptions::new();
    for (path, jobs, options) in [("one.smap", 1, fast()), ("many.smap", 8, durable)] {
        let receive = ReceiveOptions { jobs, progress: &progress, ..ReceiveOptions::default() };
        let path = dir.path().join(path);
        let (replica, received) = options.create_replica(&path, &store.snapshot(), &receive).unwrap();
        assert_eq!(received.generation, store.generation());
        assert_eq!(received.received_bytes, bytes.swap(0, Ordering::Relaxed));
        assert!(received.received_bytes > 2_400_000 + 1_120_000, "{received:?}");
        assert_eq!((replica.uuid(), replica.path()), (store.uuid(), &*path));
        assert_same(&replica, &store);
        let _ = store.gc().unwrap();
        for name in ["storages", "generations"] {
            assert_eq!(files(&replica, name), files(&store, name));
        }
        assert_eq!(files(&replica, "meta").len(), 1);
        let verification = replica.verify(|_| ()).unwrap();
        assert!(verification.is_whole() && verification.orphans.is_empty(), "{verification:?}");
        assert_same(&Store::open(&path).unwrap(), &store);
    }
}

#[test]
fn replica_of_an_empty_store_receives_its_first_commit() {
    let dir = temporary();
    let store = fast().create(dir.path().join("a.smap")).unwrap();
    let path = dir.path().join("b.smap");
    let options = ReceiveOptions::default();
    let (replica, received) = fast().create_replica(&path, &store.snapshot(), &options).unwrap();
    assert_eq!((received.generation, received.storage_count), (1, 0));
    assert_same(&replica, &store);
    assert_eq!(receive(&replica, &store).unwrap().storage_count, 0);
    store.save("x", &arange(&[3])).unwrap();
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
}

#[test]
fn replica_is_not_created_where_something_exists() {
    let dir = temporary();
    let store = filled_store(&dir.path().join("a.smap"));
    let options = ReceiveOptions::default();
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    for path in [store.path(), &taken] {
        let created = fast().create_replica(path, &store.snapshot(), &options);
        assert_refused(created.map(drop), ErrorKind::AlreadyExists, &["already exists"]);
    }
}

#[test]
fn replica_that_fails_leaves_nothing() {
    let dir = temporary();
    let store = filled_store(&dir.path().join("a.smap"));
    let before = fs::read_dir(dir.path()).unwrap().count();
    let left = AtomicU64::new(4);
    let stopped = || Error::new(ErrorKind::Busy, "stopped by the caller");
    let progress = |_| match left.fetch_sub(1, Ordering::Relaxed) {
        1 => Err(stopped()),
        _ => Ok(()),
    };
    for jobs in [1, 3] {
        left.store(4, Ordering::Relaxed);
        let options = ReceiveOptions { jobs, progress: &progress, ..ReceiveOptions::default() };
        let created = fast().create_replica(dir.path().join("b.smap"), &store.snapshot(), &options);
        assert_refused(created.map(drop), ErrorKind::Busy, &["stopped by the caller", "receive generation"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
    }
}
