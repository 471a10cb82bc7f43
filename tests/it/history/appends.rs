//! Appends after a restore of fewer rows, which go to a new storage.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use stridemap::{DType, ErrorKind, Snapshot, Store, StoreOptions};

use super::files;
use crate::harness::{assert_refused, filled, new_store};

const CHUNK: usize = 1 << 20;

/// Creates a store in which "x" has a row of `first` bytes at tag "a", and again after a restore. Its storage has one
/// more byte, at tag "b".
fn with_fewer_rows(first: usize) -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let (dir, path, store) = new_store();
    store.create_growable("x", DType::U8, &[0], 4 * CHUNK).unwrap();
    store.append("x", &filled(first, 1u8)).unwrap();
    store.tag("a").unwrap();
    store.append("x", &filled(1, 2u8)).unwrap();
    store.tag("b").unwrap();
    store.restore(&store.at("a").unwrap()).unwrap();
    (dir, path, store)
}

fn rows(snapshot: &Snapshot) -> Vec<u8> {
    snapshot.load("x").unwrap().read::<u8>().unwrap()
}

#[test]
fn one_transaction_appends_several_times_after_a_restore() {
    let (_dir, _, store) = with_fewer_rows(10);
    let expected = [&[1u8; 10][..], &[3, 3, 4, 4]].concat();
    store
        .write(|txn| {
            assert_eq!(txn.append("x", &filled(2, 3u8))?, 10..12);
            txn.save_view("before", &txn.load("x")?)?;
            assert_eq!(txn.append("x", &filled(2, 4u8))?, 12..14);
            assert_eq!(txn.load("x")?.read::<u8>()?, expected);
            Ok::<_, stridemap::Error>(())
        })
        .unwrap();
    assert_eq!(rows(&store.snapshot()), expected);
    assert_eq!(store.load("before").unwrap().read::<u8>().unwrap(), expected[..12]);
    assert!(store.load("before").unwrap().shares_storage(&store.load("x").unwrap()));
    assert_eq!(store.append("x", &filled(1, 5u8)).unwrap(), 14..15);
    assert_eq!(rows(&store.at("b").unwrap()), [&[1u8; 10][..], &[2]].concat());
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn appends_after_a_restore_wait_for_each_other() {
    static WAITING: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    let (_dir, path, store) = with_fewer_rows(10);
    let mut txn = store.begin().unwrap();
    assert_eq!(txn.append("x", &filled(1, 3u8)).unwrap(), 10..11);
    let [short, appender] = [false, true].map(|through_appender| {
        let path = path.clone();
        let on_wait: fn(&[u32]) = match through_appender {
            false => |_| WAITING[0].store(true, Ordering::Relaxed),
            true => |_| WAITING[1].store(true, Ordering::Relaxed),
        };
        thread::spawn(move || {
            let store = StoreOptions::new().on_wait(Duration::ZERO, on_wait).open(path).unwrap();
            if !through_appender {
                return store.append("x", &filled(1, 4u8)).unwrap();
            }
            let mut appender = store.appender("x").unwrap();
            let range = appender.append(&filled(1, 4u8)).unwrap();
            appender.commit().unwrap();
            range
        })
    });
    while !WAITING.iter().all(|waiting| waiting.load(Ordering::Relaxed)) {
        assert!(!short.is_finished() && !appender.is_finished(), "an append did not wait");
        thread::yield_now();
    }
    txn.commit().unwrap();
    let mut ranges = [short.join().unwrap(), appender.join().unwrap()];
    ranges.sort_by_key(|range| range.start);
    assert_eq!(ranges, [11..12, 12..13]);
    assert_eq!(rows(&store.latest().unwrap()), [&[1u8; 10][..], &[3, 4, 4]].concat());
}

#[test]
fn tensor_with_fewer_rows_after_a_restore_counts_as_growable() {
    let (_dir, _, store) = with_fewer_rows(10);
    store.write(|txn| txn.ensure_growable("x", DType::U8, &[0], 0)).unwrap();
    let mut appender = store.appender("x").unwrap();
    assert_eq!(appender.append(&filled(1, 3u8)).unwrap(), 10..11);
    appender.commit().unwrap();
    assert_eq!(rows(&store.snapshot()), [&[1u8; 10][..], &[3]].concat());
}

#[test]
fn append_after_a_restore_does_not_hide_damage() {
    let (_dir, path, store) = with_fewer_rows(CHUNK + 10);
    let storage = files(&path, "storages", "bin").remove(0);
    let mut bytes = fs::read(&storage).unwrap();
    bytes[5] ^= 1;
    fs::write(&storage, &bytes).unwrap();
    let store = {
        drop(store);
        Store::open(&path).unwrap()
    };
    let generation = store.generation();
    let refused = store.append("x", &filled(1, 3u8));
    assert_refused(refused, ErrorKind::Corrupt, &["append to \"x\"", storage.to_str().unwrap()]);
    assert_eq!(store.latest().unwrap().generation(), generation);
    // Damage to rows that only the other tag has does not prevent it.
    bytes[5] ^= 1;
    fs::write(&storage, &bytes).unwrap();
    assert_eq!(store.append("x", &filled(1, 3u8)).unwrap(), CHUNK + 10..CHUNK + 11);
}

#[test]
fn first_rows_can_be_salvaged_after_an_append_to_a_copy() {
    let (dir, path, store) = with_fewer_rows(2 * CHUNK);
    store.append("x", &filled(10, 3u8)).unwrap();
    let storage = files(&path, "storages", "bin").pop().unwrap();
    drop(store);
    let mut bytes = fs::read(&storage).unwrap();
    bytes[CHUNK + 5] ^= 1;
    fs::write(&storage, bytes).unwrap();
    let new = dir.path().join("new.smap");
    let _ = StoreOptions::new().salvage(&path, Some(&new), |_| ()).unwrap();
    assert_eq!(rows(&Store::open(&new).unwrap().snapshot()), vec![1u8; CHUNK]);
}
