//! Several processes on one store.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions};

use crate::harness::hooked::Hooked;
use crate::harness::processes::{OtherProcess, send_line, start, wait_for_line};
use crate::harness::{fast, filled, new_fast_store, new_path, new_store, open_mapped};

fn storages(path: &Path) -> usize {
    fs::read_dir(path.join("storages")).unwrap().count()
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "pin" | "pin, mapped" => {
            let store = if role == "pin" { Store::open(path).unwrap() } else { open_mapped(path) };
            let snapshot = store.snapshot();
            send_line("pinned");
            wait_for_line();
            let x = snapshot.load("x").unwrap();
            if role != "pin" {
                assert!(x.as_slice::<f32>().unwrap().iter().all(|&element| element == 1.));
            }
            assert_eq!(x.read::<f32>().unwrap(), [1.; 1000]);
            send_line(x.get::<f32>(&[0]).unwrap());
            wait_for_line();
        }
        "hold a guard" => {
            let x = Store::open(path).unwrap().load("x").unwrap();
            let mut guard = x.lock_exclusive().unwrap();
            guard.fill_(5).unwrap();
            send_line(std::process::id());
            wait_for_line();
        }
        "leave a transaction" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.save("small", &filled(1000, 1f32)).unwrap();
            let large = filled(5 << 20, 0u8);
            txn.save("large", &large).unwrap();
            send_line("staged");
            if wait_for_line() {
                drop(txn);
                send_line("dropped");
                wait_for_line();
            }
        }
        _ => return false,
    }
    true
}

/// Starts a process that reads the first generation with `x`, opened as the role says.
fn start_reader(role: &str) -> (tempfile::TempDir, Store, OtherProcess) {
    let (dir, path, store) = new_fast_store();
    store.save("x", &filled(1000, 1f32)).unwrap();
    let mut reader = OtherProcess::start(role, &path);
    assert_eq!(reader.read_line(), "pinned");
    (dir, store, reader)
}

#[test]
fn reader_pinned_across_many_commits_and_collections_keeps_its_data() {
    for role in ["pin", "pin, mapped"] {
        let (_dir, store, mut reader) = start_reader(role);
        for i in 2..40 {
            store.save("x", &filled(1000, i as f32)).unwrap();
            if i % 10 == 0 {
                store.gc().unwrap();
            }
        }
        store.gc().unwrap();
        assert_eq!(storages(store.path()), 2, "the pinned storage and the newest");
        reader.resume();
        assert_eq!(reader.read_line(), "1");
        reader.resume();
        reader.assert_success();
    }
}

#[test]
fn generation_that_another_process_reads_can_be_opened_until_nothing_reads_it() {
    let (_dir, store, mut reader) = start_reader("pin");
    for i in 2..5 {
        store.save("x", &filled(1000, i as f32)).unwrap();
    }
    let path = store.path().to_owned();
    for other in [store.clone(), fast().open(&path).unwrap(), open_mapped(&path)] {
        let snapshot = other.at(2).unwrap();
        assert_eq!((snapshot.generation(), other.generation()), (2, 5));
        assert_eq!(snapshot.load("x").unwrap().read::<f32>().unwrap()[0], 1.);
        assert_eq!(other.load("x").unwrap().read::<f32>().unwrap()[0], 4.);
        assert_eq!(other.at(5).unwrap().generation(), 5);
        for absent in [0, 1, 3, 6, u64::MAX] {
            let refused = other.at(absent).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
            assert!(refused.to_string().contains(&format!("generation {absent} of")), "{refused}");
        }
    }
    let snapshot = store.at(2).unwrap();
    reader.resume();
    assert_eq!(reader.read_line(), "1");
    reader.resume();
    reader.assert_success();
    store.gc().unwrap();
    assert_eq!(
        snapshot.load("x").unwrap().read::<f32>().unwrap()[0],
        1.,
        "the snapshot keeps the generation"
    );
    assert_eq!(store.at(2).unwrap().generation(), 2);
    drop(snapshot);
    store.gc().unwrap();
    assert_eq!(store.at(2).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn generation_of_a_store_that_was_replaced_is_not_opened() {
    let (_dir, path, store) = new_fast_store();
    store.save("x", &filled(1000, 1f32)).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let other = fast().create(&path).unwrap();
    other.save("y", &filled(10, 2f32)).unwrap();
    let _readers = [other.snapshot(), store.snapshot()];
    other.save("y", &filled(10, 3f32)).unwrap();
    for number in [1, 3, 4] {
        assert_eq!(store.at(number).unwrap_err().kind(), ErrorKind::Stale);
    }
    assert_eq!(store.at(2).unwrap().names().unwrap(), ["x"]);
}

#[test]
fn space_of_a_killed_reader_is_freed() {
    for role in ["pin", "pin, mapped"] {
        let (_dir, store, reader) = start_reader(role);
        store.save("x", &filled(1000, 2f32)).unwrap();
        store.save("y", &filled(1000, 3f32)).unwrap();
        assert_eq!(storages(store.path()), 3);
        reader.kill();
        store.save("z", &filled(1000, 4f32)).unwrap();
        assert_eq!(storages(store.path()), 3, "the killed reader still holds its storage");
        assert_eq!(store.gc().unwrap().file_count, 0);
    }
}

#[test]
fn open_lists_again_if_its_manifest_is_locked_by_the_collector() {
    let (_dir, path, store) = new_fast_store();
    let manifest = File::open(path.join("meta/0000000000000001.man")).unwrap();
    drop(store);
    fs2::FileExt::lock_exclusive(&manifest).unwrap();
    let tries = AtomicUsize::new(0);
    let disk = Hooked::before(move |operation, path| {
        if operation == "try_lock" && path.ends_with("0000000000000001.man") {
            // The collector dies before it deletes the file.
            if tries.fetch_add(1, Ordering::Relaxed) == 5 {
                fs2::FileExt::unlock(&manifest)?;
            }
        }
        Ok(())
    });
    assert_eq!(fast().disk(Arc::new(disk)).open(&path).unwrap().generation(), 1);
}

#[test]
fn forked_child_is_refused_and_releases_no_lock() {
    let (_dir, path) = new_path();
    super::forks::create_store_of_two(&path);
    for role in ["fork with everything open", "fork while a thread locks", "fork under a guard"] {
        assert!(start(role, &path).wait().unwrap().success(), "{role}");
    }
}

#[test]
fn exclusive_guard_excludes_other_guards() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).create(&path).unwrap();
    let x = store.create_tensor("x", DType::I64, &[3], StorageKind::Mutable).unwrap();
    let mut holder = OtherProcess::start("hold a guard", &path);
    let id = holder.read_line();
    for busy in [x.lock_shared().map(drop), x.lock_exclusive().map(drop), x.read::<i64>().map(drop)] {
        let error = busy.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        // The kernel names the holder if the file system and the process namespace allow it.
        let text = error.to_string();
        assert!(text.contains(&format!("process {id} ")) || text.contains("another process"), "{text}");
    }
    holder.kill();
    assert_eq!(x.read::<i64>().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(x.allow_interrupted().read::<i64>().unwrap(), [5; 3]);
    x.allow_interrupted().lock_exclusive().unwrap().add_(1).unwrap();
    assert_eq!(x.read::<i64>().unwrap(), [6; 3]);
}

#[test]
fn aborted_transaction_leaves_no_file() {
    let (_dir, path, store) = new_store();
    let mut dropping = OtherProcess::start("leave a transaction", &path);
    let mut dying = OtherProcess::start("leave a transaction", &path);
    assert_eq!((dropping.read_line(), dying.read_line()), ("staged".to_owned(), "staged".to_owned()));
    assert_eq!(storages(&path), 6, "two storages each, and the chunk digests of one");
    dropping.resume();
    assert_eq!(dropping.read_line(), "dropped");
    assert_eq!(storages(&path), 3, "the dropped file still exists");
    dying.kill();
    dropping.resume();
    dropping.assert_success();
    store.save("x", &filled(1000, 1f32)).unwrap();
    assert_eq!(storages(&path), 1, "the next commit left files that a killed process had staged");
    assert_eq!((store.names().unwrap(), store.generation()), (vec!["x".to_owned()], 2));
    assert_eq!(store.gc().unwrap().file_count, 0);
}
