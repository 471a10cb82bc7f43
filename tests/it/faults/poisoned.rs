//! Makes each sync of every operation fail in turn. The handle refuses further writes, nothing is synced again, and
//! another handle continues with the old content or the new.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::simulated::{Op, SimulatedDisk};
use stridemap::{
    DType, Durability, ErrorKind, ExternalFiles, Result, StorageKind, Store, StoreOptions, Tensor,
};

use crate::external::write_model;
use crate::harness::filled;
use crate::support::temporary;

const MIB: usize = 1 << 20;

fn options(disk: &SimulatedDisk) -> StoreOptions {
    StoreOptions::new().external(ExternalFiles::Anywhere).disk(Arc::new(disk.clone()))
}

fn bytes(count: usize) -> Tensor {
    filled(count, 7u8)
}

fn model_file() -> (tempfile::TempDir, PathBuf) {
    let dir = temporary();
    let file = dir.path().join("model.safetensors");
    write_model(&file);
    (dir, file)
}

fn is_sync(op: &Op) -> bool {
    matches!(op, Op::Sync(_) | Op::SyncDir(_) | Op::SyncAll)
}

/// Creates a store with every kind of tensor, and returns a handle to it.
fn create_store(file: &Path) -> (SimulatedDisk, Store) {
    let disk = SimulatedDisk::new();
    let store = options(&disk).create("x").unwrap();
    store.save("old", &filled(5, 1i64)).unwrap();
    store.create_growable("log", DType::U8, &[MIB - 100], 0).unwrap();
    store.create_growable("long", DType::U8, &[MIB], 0).unwrap();
    let _ = store.create_tensor("weights", DType::I64, &[5], StorageKind::Mutable).unwrap();
    stridemap_interop::adopt(&store, file, "adopted.").unwrap();
    store.save("all", &bytes(40_000)).unwrap();
    store.save_view("some", &store.load("all").unwrap().slice(0, Some(0), Some(100), 1).unwrap()).unwrap();
    let mut txn = store.begin().unwrap();
    txn.remove("all").unwrap();
    txn.remove("old").unwrap();
    txn.save("kept", &filled(5, 2i64)).unwrap();
    txn.commit().unwrap();
    (disk, store)
}

/// Creates a store whose last commit is not synced.
fn create_unsynced_store(file: &Path) -> (SimulatedDisk, Store) {
    let (disk, _) = create_store(file);
    let fast = options(&disk).durability(Durability::Process).open("x").unwrap();
    fast.save("unsynced", &filled(5, 3i64)).unwrap();
    let store = options(&disk).open("x").unwrap();
    (disk, store)
}

type Write = fn(&Store, &Path) -> Result<()>;

/// Every operation that syncs.
const WRITES: [(&str, Write); 14] = [
    ("save", |store, _| store.save("new", &filled(5, 3i64))),
    ("save of a chunk", |store, _| store.save("new", &bytes(MIB + 1))),
    ("table", |store, _| {
        let mut txn = store.begin()?;
        (0..80i64).try_for_each(|row| txn.save(&format!("row.{row}"), &filled(5, row)))?;
        txn.commit().map(drop)
    }),
    ("remove", |store, _| store.remove("kept")),
    ("first chunk digests", |store, _| store.append("log", &bytes(200)).map(drop)),
    ("more chunk digests", |store, _| store.append("long", &bytes(MIB)).map(drop)),
    ("save and append in one", |store, _| {
        let mut txn = store.begin()?;
        txn.append("log", &bytes(200))?;
        txn.save("new", &filled(5, 3i64))?;
        txn.commit().map(drop)
    }),
    ("create_tensor", |store, _| {
        store.create_tensor("new", DType::I64, &[5], StorageKind::Mutable).map(drop)
    }),
    ("compact", |store, _| store.compact(false, |_| ()).map(drop)),
    ("materialize", |store, _| store.materialize(|_| ()).map(drop)),
    ("import", |store, file| stridemap_interop::import(store, file, "imported.")),
    ("adopt", |store, file| stridemap_interop::adopt(store, file, "again.")),
    ("gc", |store, _| store.gc().map(drop)),
    ("flush", |store, _| {
        let mut guard = store.load("weights")?.lock_exclusive()?;
        guard.fill_(9)?;
        guard.flush()
    }),
];

/// Makes the sync with this number fail. Returns the operation that failed, once it has.
fn fail_nth(disk: &SimulatedDisk, nth: usize) -> Arc<Mutex<Option<Op>>> {
    let failed = Arc::new(Mutex::new(None));
    let (seen, told) = (AtomicUsize::new(0), Arc::clone(&failed));
    disk.fail(move |op| {
        let is_due = is_sync(op) && seen.fetch_add(1, Ordering::Relaxed) == nth;
        if is_due {
            *told.lock().unwrap() = Some(op.clone());
        }
        is_due
    });
    failed
}

fn names(disk: &SimulatedDisk) -> Vec<String> {
    options(disk).open("x").unwrap().names().unwrap()
}

#[test]
fn after_any_failed_sync_everything_is_refused_and_nothing_is_synced_again() {
    let (_dir, file) = model_file();
    let mut failures = BTreeMap::new();
    for prepare in [create_store, create_unsynced_store] {
        for (what, write) in WRITES {
            let (before, after, count) = {
                let (disk, store) = prepare(&file);
                let (before, began) = (names(&disk), disk.log().len());
                write(&store, &file).unwrap();
                let count = disk.log()[began..].iter().filter(|op| is_sync(op)).count();
                (before, names(&disk), count)
            };
            for nth in 0..count {
                let kind = fail_one(&prepare(&file), (what, write), nth, &file, &[&before, &after]);
                *failures.entry((what, format!("{kind:?}"))).or_insert(0) += 1;
            }
        }
    }
    for ((what, kind), count) in &failures {
        println!("{what}: {count} syncs failed in turn: {kind}");
    }
    let of = |kind: &str| failures.iter().filter(|((_, k), _)| k == kind).map(|(_, n)| n).sum::<i32>();
    assert!(of("Io") > 40 && of("CommitUnknown") > 20, "{failures:?}");
}

/// Makes one sync fail. Returns the kind of the error that reports it.
fn fail_one(
    (disk, store): &(SimulatedDisk, Store),
    (what, write): (&str, Write),
    nth: usize,
    file: &Path,
    expected: &[&Vec<String>],
) -> ErrorKind {
    // Transactions that began before, each with a change to commit.
    let mut saved = store.begin().unwrap();
    saved.save("of a transaction", &filled(5, 4i64)).unwrap();
    let mut renamed = store.begin().unwrap();
    renamed.copy("kept", "copied").unwrap();
    let weights = store.load("weights").unwrap();
    let began = disk.log().len();
    let failed = fail_nth(disk, nth);
    let first = write(store, file).expect_err(what);
    let failed = failed.lock().unwrap().clone().unwrap();
    let told = format!("{what}, sync {nth}: {first:?}");
    assert!(matches!(first.kind(), ErrorKind::Io | ErrorKind::CommitUnknown), "{told}");
    assert!(first.to_string().contains("injected fault"), "{told}");

    let mut refusals: Vec<(&str, Result<()>)> =
        WRITES.iter().map(|(name, write)| (*name, write(store, file))).collect();
    refusals.push(("save in a transaction", saved.save("more", &filled(5, 5i64))));
    refusals.push(("commit of a save", saved.commit().map(drop)));
    refusals.push(("commit of a copy", renamed.commit().map(drop)));
    refusals.push(("rename", store.rename("some", "renamed")));
    refusals.push(("guard", weights.lock_exclusive().map(drop)));
    for (name, refused) in refusals {
        let Err(refused) = refused else { panic!("{told}: {name} was done") };
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{told}: {name}: {refused}");
        assert!(refused.to_string().contains(&first.to_string()), "{told}: {name}: {refused}");
        assert!(refused.io_error().is_some(), "{told}: {name}: the first cause is lost");
    }
    // The operation that failed does not sync again either: its log has only the syncs before.
    let log = disk.log();
    let again = log[began..].iter().filter(|op| is_sync(op)).nth(nth);
    assert!(again.is_none(), "{told}: {failed:?} failed, and then came {again:?}");
    assert!(!store.names().unwrap().is_empty(), "a poisoned handle reads on");

    // Another handle continues.
    let found = names(disk);
    assert!(expected.contains(&&found), "{told}: {found:?} is neither of {expected:?}");
    let another = options(disk).open("x").unwrap();
    another.save("later", &filled(5, 6i64)).unwrap();
    assert_eq!(another.verify(|_| ()).unwrap().findings, [], "{told}");
    assert!(names(disk).contains(&"later".to_owned()), "{told}");
    first.kind()
}

#[test]
fn failed_flush_of_a_mutable_tensor_poisons_its_handle_and_an_open_guard() {
    let (_dir, file) = model_file();
    let (disk, store) = create_store(&file);
    let weights = store.load("weights").unwrap();
    let mut guard = weights.lock_exclusive().unwrap();
    guard.fill_(7).unwrap();
    fail_nth(&disk, 0);
    let first = guard.flush().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Io, "{first}");
    let began = disk.log().len();
    for (what, refused) in [
        ("flush", guard.flush()),
        ("fill_", guard.fill_(8).map(drop)),
        ("save", store.save("new", &filled(5, 3i64))),
        ("gc", store.gc().map(drop)),
    ] {
        let refused = refused.expect_err(what);
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{what}: {refused}");
        assert!(refused.to_string().contains(&first.to_string()), "{what}: {refused}");
    }
    drop(guard);
    assert_eq!(disk.log().len(), began, "something was done after the failed flush");
    // The mark stays, because the change may be lost. A poisoned handle reads on.
    assert_eq!(weights.read::<i64>().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(weights.allow_interrupted().read::<i64>().unwrap(), [7; 5]);
    // Another handle of this process that loads the storage gets the same pages.
    let another = options(&disk).open("x").unwrap();
    let mut guard = another.load("weights").unwrap().allow_interrupted().lock_exclusive().unwrap();
    let refused = guard.flush().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    assert!(refused.to_string().contains(&first.to_string()), "{refused}");
    drop(guard);
    another.save("new", &filled(5, 3i64)).unwrap();
    assert_eq!(another.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn failed_commit_refuses_writes_and_flushes_of_an_open_guard() {
    let (_dir, file) = model_file();
    let (disk, store) = create_store(&file);
    let weights = store.load("weights").unwrap();
    let mut guard = weights.lock_exclusive().unwrap();
    fail_nth(&disk, 0);
    let first = store.save("new", &filled(5, 3i64)).unwrap_err();
    let began = disk.log().len();
    for refused in [guard.fill_(7).map(drop), guard.flush()] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
        assert!(refused.to_string().contains(&first.to_string()), "{refused}");
    }
    assert_eq!(disk.log().len(), began, "something was written after the failed commit");
    assert_eq!(guard.read::<i64>().unwrap(), [0; 5], "a poisoned handle reads on");
}

#[test]
fn failed_sync_during_creation_leaves_nothing_or_a_complete_store() {
    let count = {
        let disk = SimulatedDisk::new();
        options(&disk).create("x").unwrap();
        disk.log().iter().filter(|op| is_sync(op)).count()
    };
    for nth in 0..count {
        let disk = SimulatedDisk::new();
        let failed = fail_nth(&disk, nth);
        let error = options(&disk).create("x").expect_err("create");
        assert_eq!(error.kind(), ErrorKind::Io, "sync {nth}: {error}");
        let failed = failed.lock().unwrap().clone();
        let syncs = disk.log().iter().filter(|op| Some(*op) == failed.as_ref()).count();
        assert_eq!(syncs, 0, "sync {nth} failed, and was tried again");
        let store = options(&disk).create("x").or_else(|_| options(&disk).open("x")).unwrap();
        store.save("new", &filled(5, 1i64)).unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    }
    println!("{count} syncs of a creation failed in turn");
    assert!(count >= 6, "{count}");
}
