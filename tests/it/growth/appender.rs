//! Appenders: several commits under one lock, and the processes that wait for it, take it over or interfere.

use super::{BIN, MIB, SUM, bytes_of, rows};
use crate::harness::hooked::Hooked;
use crate::harness::processes::{OtherProcess, run_to_end, send_line, start, wait_for_line};
use crate::harness::{assert_refused, fast, new_fast_store, new_path};
use crate::support::temporary;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use stridemap::maintenance::SkipReason;
use stridemap::{DType, ErrorKind, OnExisting, StorageKind, Store, StoreOptions, Tensor};

fn bytes(from: usize, count: usize) -> Tensor {
    rows(from, count, &[], |i| (i * 7) as u8)
}

/// Checks the elements, the digests and the length of the file.
fn check(path: &Path, count: usize) {
    let store = Store::open(path).unwrap();
    assert!(store.load("x").unwrap().read::<u8>().unwrap() == bytes(0, count).read::<u8>().unwrap());
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(bytes_of(&path.join(BIN)), count as u64);
}

/// Saves enough names for a table of several leaves.
fn save_many_names(store: &Store) {
    store.write(|txn| (0..500).try_for_each(|i| txn.save(&format!("x.{i}"), &0u8))).unwrap();
}

/// Runs a role in a started process.
pub(crate) fn run_role(role: &str, path: &Path) {
    match role {
        "appender: hold" => {
            let store = Store::open(path).unwrap();
            let mut appender = store.appender("x").unwrap();
            appender.append(&bytes(10, 20)).unwrap();
            appender.commit().unwrap();
            appender.append(&bytes(30, MIB)).unwrap();
            send_line("appended");
            wait_for_line();
        }
        "appender: commit until killed" => {
            let store = fast().open(path).unwrap();
            let mut appender = store.appender("x").unwrap();
            let mut next = store.load("x").unwrap().numel();
            loop {
                for count in [1, 70_000, 0, 500_000] {
                    assert_eq!(appender.append(&bytes(next, count)).unwrap(), next..next + count);
                    next += count;
                }
                appender.commit().unwrap();
                send_line(next);
            }
        }
        "appender: take turns" => {
            let store = fast().open(path).unwrap();
            let process = i64::from(std::process::id());
            for turn in 0..20 {
                let rows = Tensor::from_vec(vec![process, turn, process, turn], &[2, 2]).unwrap();
                if turn % 2 == 0 {
                    store.append("x", &rows).unwrap();
                    continue;
                }
                let mut appender = store.appender("x").unwrap();
                appender.append(&rows).unwrap();
                appender.commit().unwrap();
            }
        }
        "appender: save many names" => save_many_names(&fast().open(path).unwrap()),
        role => panic!("{role:?}"),
    }
}

#[test]
fn appender_commits_batches_across_chunks_and_reads_nothing() {
    let dir = temporary();
    let (path, counted) = (dir.path().join("x.smap"), Hooked::default());
    let store = StoreOptions::new().disk(Arc::new(counted.clone())).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let mut appender = store.appender("x").unwrap();
    counted.take_counts();
    let mut total = 0;
    for batch in [&[1][..], &[MIB - 1], &[5, MIB, 7], &[0], &[3 * MIB + 11, 0, 2]] {
        for &count in batch {
            assert_eq!(appender.append(&bytes(total, count)).unwrap(), total..total + count);
            total += count;
        }
        let generation = appender.commit().unwrap();
        assert_eq!((generation, store.load("x").unwrap().numel()), (store.generation(), total));
        let counts = counted.take_counts();
        assert_eq!(counts.data_read_bytes, 0, "{counts:?}");
    }
    assert_eq!(appender.commit().unwrap(), store.generation(), "nothing to commit");
    assert_eq!(
        format!("{appender:?}"),
        format!("Appender(\"x\" in {path:?}, {total} rows, 0 not committed)")
    );
    drop(appender);
    check(&path, total);
    assert_eq!(store.append("x", &bytes(total, 9)).unwrap(), total..total + 9);
    check(&path, total + 9);
}

#[test]
fn dropped_appender_discards_only_the_rows_after_its_last_commit() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let mut appender = store.appender("x").unwrap();
    appender.append(&bytes(0, 2 * MIB)).unwrap();
    appender.commit().unwrap();
    appender.append(&bytes(0, 2 * MIB)).unwrap();
    assert!(bytes_of(&path.join(BIN)) > 3 * MIB as u64);
    drop(appender);
    check(&path, 2 * MIB);
    assert_eq!(bytes_of(&path.join(SUM)), 32);
}

#[test]
fn refused_rows_leave_the_appender_as_it_was() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.save("scalar", &1u8).unwrap();
    let _ = store.create_tensor("mutable", DType::U8, &[1], StorageKind::Mutable).unwrap();
    assert_refused(store.appender("y"), ErrorKind::NameNotFound, &["append to", "\"y\""]);
    assert_refused(store.appender("scalar"), ErrorKind::SizeMismatch, &["\"scalar\"", "no dimensions"]);
    assert_refused(store.appender("mutable"), ErrorKind::Unsupported, &["\"mutable\"", "create_growable"]);
    let mut appender = store.appender("x").unwrap();
    appender.append(&bytes(0, 5)).unwrap();
    assert_refused(appender.append(&[1i8]), ErrorKind::DTypeMismatch, &["int8", "uint8"]);
    assert_refused(appender.append(&[[1u8]]), ErrorKind::SizeMismatch, &["[1, 1]", "[5]"]);
    appender.append(&bytes(5, 5)).unwrap();
    appender.commit().unwrap();
    check(&path, 10);
}

#[test]
fn others_wait_for_an_appender_and_take_over_when_it_is_killed() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &bytes(0, 10)).unwrap();
    let mut holder = OtherProcess::start("appender: hold", &path);
    assert_eq!(holder.read_line(), "appended");
    for refused in [store.append("x", &bytes(0, 1)).map(drop), store.appender("x").map(drop)] {
        assert_refused(refused, ErrorKind::Busy, &["is appending to the storage", "gave up after"]);
    }
    // Other commits and readers do not wait.
    store.save("y", &1).unwrap();
    assert_eq!(store.load("x").unwrap().numel(), 30);
    store.save_view("head", &store.load("x").unwrap().narrow(0, 0, 1).unwrap()).unwrap();
    assert_eq!(store.gc().unwrap().size_bytes, 0, "the bytes of a live appender are kept");
    assert!(bytes_of(&path.join(BIN)) > MIB as u64);
    holder.kill();
    assert_eq!(store.append("x", &bytes(30, 4)).unwrap(), 30..34);
    store.gc().unwrap();
    check(&path, 34);
}

#[test]
fn compaction_skips_the_storage_of_an_appender() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &bytes(0, MIB)).unwrap();
    store.save_view("end", &store.load("x").unwrap().narrow(0, MIB - 1000, 1000).unwrap()).unwrap();
    store.remove("x").unwrap();
    let mut appender = store.appender("end").unwrap();
    appender.append(&bytes(MIB, 5)).unwrap();
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!(compacted.storage_count, 0);
    assert!(matches!(compacted.skipped[0].reason, SkipReason::Busy(_)), "{compacted:?}");
    appender.commit().unwrap();
    drop(appender);
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    let expected = bytes(MIB - 1000, 1005).read::<u8>().unwrap();
    assert_eq!(Store::open(&path).unwrap().load("end").unwrap().read::<u8>().unwrap(), expected);
}

#[test]
fn rows_of_a_tensor_that_was_removed_renamed_or_replaced_are_refused() {
    let changes: [fn(&Store) -> stridemap::Result<()>; 3] = [
        |store| store.remove("x"),
        |store| store.rename("x", "z"),
        |store| {
            store.write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.save("x", &[1u8])
            })
        },
    ];
    for change in changes {
        let (_dir, path, store) = new_fast_store();
        store.create_growable("x", DType::U8, &[0], 0).unwrap();
        let mut appender = store.appender("x").unwrap();
        appender.append(&bytes(0, 5)).unwrap();
        appender.commit().unwrap();
        let other = fast().open(&path).unwrap();
        change(&other).unwrap();
        other.gc().unwrap();
        appender.append(&bytes(5, 5)).unwrap();
        let generation = other.generation();
        let refused = appender.commit();
        assert_refused(refused, ErrorKind::Conflict, &["\"x\"", "another commit"]);
        assert_refused(appender.append(&bytes(5, 5)), ErrorKind::Conflict, &["open another"]);
        assert_refused(appender.commit(), ErrorKind::Conflict, &["open another"]);
        drop(appender);
        other.refresh().unwrap();
        assert_eq!((other.generation(), other.verify(|_| ()).unwrap().findings), (generation, vec![]));
    }
}

#[test]
fn commits_of_a_killed_appender_are_whole_and_none_that_returned_is_lost() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    for round in 0..5 {
        let mut appender = OtherProcess::start("appender: commit until killed", &path);
        let mut returned = 0;
        for _ in 0..round {
            returned = appender.read_line().parse().unwrap();
        }
        std::thread::sleep(Duration::from_millis(round));
        appender.kill();
        store.refresh().unwrap();
        let found = store.load("x").unwrap().numel();
        assert!(found >= returned && found % 570_001 == 0, "{found} elements, {returned} were acknowledged");
        let next = bytes(found, 570_001);
        store.append("x", &next).unwrap();
        store.gc().unwrap();
        check(&path, found + 570_001);
    }
}

#[test]
fn processes_that_append_whole_batches_in_both_ways_take_turns() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::I64, &[0, 2], 0).unwrap();
    let mut processes: Vec<Child> = (0..4).map(|_| start("appender: take turns", &path)).collect();
    processes.iter_mut().for_each(|process| assert!(process.wait().unwrap().success()));
    store.refresh().unwrap();
    let elements: Vec<i64> = store.load("x").unwrap().read().unwrap();
    for process in &processes {
        let own = elements.chunks(4).filter(|rows| rows[0] == i64::from(process.id())).map(|rows| rows[1]);
        assert!(own.eq(0..20), "{elements:?}");
    }
    assert!(elements.chunks(4).all(|rows| rows[..2] == rows[2..]), "an append was split: {elements:?}");
    assert_eq!(elements.len(), 4 * 20 * 4);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn appender_whose_commit_was_too_busy_can_commit_again() {
    let (_dir, path) = new_path();
    let options = fast().lock_timeout(Duration::from_millis(30));
    let store = options.create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let mut appender = store.appender("x").unwrap();
    appender.append(&bytes(0, MIB + 5)).unwrap();
    let lock = std::fs::File::options().write(true).open(path.join("LOCK")).unwrap();
    lock.lock().unwrap();
    assert_refused(appender.commit(), ErrorKind::Busy, &["lock the store", "try again"]);
    appender.append(&bytes(MIB + 5, MIB)).unwrap();
    lock.unlock().unwrap();
    appender.commit().unwrap();
    drop(appender);
    check(&path, 2 * MIB + 5);
}

#[test]
fn short_append_that_is_wrong_does_not_wait_and_a_right_one_waits_once() {
    let (_dir, path) = new_path();
    let store = fast().lock_timeout(Duration::from_secs(2)).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let other = fast().open(&path).unwrap();
    other.create_growable("later", DType::U8, &[0], 0).unwrap();
    store.append("later", &[1u8]).unwrap();
    let lock = std::fs::File::options().write(true).open(path.join("LOCK")).unwrap();
    lock.lock().unwrap();
    assert_refused(store.append("y", &[1u8]), ErrorKind::NameNotFound, &["append to", "\"y\""]);
    assert_refused(store.append("x", &[1i8]), ErrorKind::DTypeMismatch, &["int8", "uint8"]);
    assert_refused(store.append("x", &[[1u8]]), ErrorKind::SizeMismatch, &["[1, 1]"]);
    lock.unlock().unwrap();

    let appender = other.appender("x").unwrap();
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.append("x", &[1u8]).unwrap_err());
        std::thread::sleep(Duration::from_millis(300));
        lock.unlock().unwrap();
        let e = waits.join().unwrap();
        assert!(e.kind() == ErrorKind::Busy && !e.to_string().contains("gave up after 2s"), "{e}");
    });
    drop(appender);
}

#[test]
fn appender_belongs_to_the_thread_that_used_it_last() {
    let (_dir, _, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let mut appender = store.appender("x").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            appender.append(&[1u8]).unwrap();
            assert_refused(store.append("x", &[1u8]), ErrorKind::Busy, &["this thread has an appender"]);
        });
    });
    drop(appender);
    assert_eq!(store.append("x", &[1u8]).unwrap(), 0..1);
}

#[test]
fn failure_to_read_the_newest_names_is_not_a_conflict() {
    let (_dir, path, created) = new_fast_store();
    created.create_growable("x", DType::U8, &[0], 0).unwrap();
    save_many_names(&created);
    drop(created);
    let reads_left = Arc::new(AtomicI64::new(i64::MAX));
    let left = Arc::clone(&reads_left);
    let disk = Hooked::before(move |operation, path| {
        let is_read = operation == "read_exact_at" && path.extension().is_some_and(|ext| ext == "tab");
        match is_read && left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    });
    let store = fast().disk(Arc::new(disk)).open(&path).unwrap();
    for reads in 0.. {
        let mut appender = store.appender("x").unwrap();
        appender.append(&[1u8]).unwrap();
        // In another process, because the handles of one process share what they have read.
        run_to_end("appender: save many names", &path);
        reads_left.store(reads, Ordering::SeqCst);
        let committed = appender.commit();
        reads_left.store(i64::MAX, Ordering::SeqCst);
        if committed.is_ok() {
            assert!(reads > 0);
            break;
        }
        assert_refused(committed, ErrorKind::Io, &["os error 5"]);
    }
}
