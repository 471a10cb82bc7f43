//! Transactions that read: what was read is the same at the commit, or the commit is a conflict. The other processes are
//! this test binary, started again.

use std::path::Path;
use std::thread;
use std::time::Duration;

use stridemap::{DType, ErrorKind, OnExisting, Result, StorageKind, Store, StoreOptions, Transaction};

use crate::harness::processes::{OtherProcess, send_line, start_together, wait_for_line};
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path, new_store};

const INCREMENTS: i64 = 25;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "increment" | "increment exclusively" => {
            let store = fast().open(path).unwrap();
            send_line("ready");
            wait_for_line();
            let is_exclusive = role != "increment";
            let begin = || if is_exclusive { store.begin_exclusive() } else { store.begin() };
            let mut conflicts = 0;
            for _ in 0..INCREMENTS {
                while !increment(begin().unwrap()) {
                    conflicts += 1;
                }
            }
            send_line(conflicts);
        }
        "hold an exclusive transaction" => {
            let store = fast().open(path).unwrap();
            let mut txn = store.begin_exclusive().unwrap();
            txn.save("never", &1i64).unwrap();
            send_line("held");
            wait_for_line();
            drop(txn);
        }
        _ => return false,
    }
    true
}

/// Reads, adds and commits. Returns false if another writer has changed the count meanwhile.
fn increment(mut txn: Transaction<'_>) -> bool {
    let count: i64 = txn.load("count").unwrap().item().unwrap();
    txn.save("count", &(count + 1)).unwrap();
    match txn.commit() {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::Conflict => false,
        Err(e) => panic!("{e}"),
    }
}

/// Runs the role in processes, and returns the number of conflicts.
fn increments_of_processes(role: &str) -> u64 {
    let (_dir, path, store) = new_fast_store();
    store.save("count", &0i64).unwrap();
    let mut conflicts = 0;
    for mut player in start_together(role, &path, 3) {
        conflicts += player.read_line().parse::<u64>().unwrap();
        player.assert_success();
    }
    store.refresh().unwrap();
    assert_eq!(store.load("count").unwrap().item::<i64>().unwrap(), 3 * INCREMENTS);
    assert_eq!(store.generation(), 2 + 3 * INCREMENTS as u64);
    conflicts
}

#[test]
fn increments_of_several_processes_are_not_lost() {
    println!("{} conflicts", increments_of_processes("increment"));
}

#[test]
fn increments_of_exclusive_transactions_never_conflict() {
    assert_eq!(increments_of_processes("increment exclusively"), 0);
}

#[test]
fn every_increment_of_threads_that_share_a_handle_is_counted_or_a_conflict() {
    let (_dir, _, store) = new_fast_store();
    store.save("count", &0i64).unwrap();
    let committed: i64 = thread::scope(|scope| {
        let work = || (0..50).map(|_| i64::from(increment(store.begin().unwrap()))).sum::<i64>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(store.load("count").unwrap().item::<i64>().unwrap(), committed);
}

#[test]
fn killed_process_releases_its_exclusive_transaction_and_leaves_nothing() {
    let (_dir, path) = new_path();
    let store = fast().lock_timeout(Duration::from_millis(20)).create(&path).unwrap();
    let mut holder = OtherProcess::start("hold an exclusive transaction", &path);
    assert_eq!(holder.read_line(), "held");
    assert_refused(store.save("x", &1i64), ErrorKind::Busy, &["lock the store for writing", "20ms"]);
    assert_refused(store.begin_exclusive(), ErrorKind::Busy, &["lock the store for writing", "20ms"]);
    // Only commits wait.
    store.refresh().unwrap();
    store.begin().unwrap().save("y", &1i64).unwrap();
    holder.kill();
    assert!(increment_from_zero(&store));
    assert_eq!(store.names().unwrap(), ["count"]);
}

fn increment_from_zero(store: &Store) -> bool {
    store.save("count", &0i64).unwrap();
    increment(store.begin_exclusive().unwrap())
}

/// What a transaction reads, what another writer then does, and what the message says if that is a conflict.
type Case<'a> = (&'a str, &'a dyn Fn(&Transaction<'_>), &'a dyn Fn(&Store) -> Result<()>, &'a str);

#[test]
fn commit_after_a_change_of_what_was_read_is_a_conflict_and_changes_nothing() {
    let (dir, path, _) = new_store();
    let load = |name: &'static str| move |txn: &Transaction<'_>| drop(txn.load(name));
    let contains = |name: &'static str| {
        move |txn: &Transaction<'_>| {
            txn.contains(name).unwrap();
        }
    };
    let scope = |scope: &'static str| move |txn: &Transaction<'_>| drop(txn.attributes(scope));
    let headers = |txn: &Transaction<'_>| drop(txn.iter_tensors("a").unwrap().next());
    let all = |txn: &Transaction<'_>| txn.iter_tensors("a").unwrap().for_each(|entry| drop(entry.unwrap()));
    let names = |txn: &Transaction<'_>| drop(txn.names().unwrap());
    let save_a = |other: &Store| other.save("a", &2i64);
    let remove_a = |other: &Store| other.remove("a");
    let save_b = |other: &Store| other.save("b", &2i64);
    let save_new = |other: &Store| other.save("new", &1u8);
    let sets =
        |scope: &'static str| move |other: &Store| other.write(|txn| txn.set_attribute(scope, "k", "2"));
    let copy_b = |other: &Store| other.write(|txn| txn.copy("b", "ab"));
    let rename_over_a = |other: &Store| {
        other.write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.rename("b", "a")
        })
    };
    let rename_a_twice = |other: &Store| other.rename("a", "z").and_then(|()| other.rename("z", "a"));
    let fill_m = |other: &Store| other.load("m")?.lock_exclusive()?.fill_(3).map(drop);
    let read_snapshot = |_: &Transaction<'_>| drop(Store::open(&path).unwrap().load("a"));
    let cases: [Case<'_>; 26] = [
        ("saved again", &load("a"), &save_a, "changed \"a\""),
        ("removed", &load("a"), &remove_a, "removed \"a\""),
        ("renamed", &load("a"), &|other| other.rename("a", "z"), "removed \"a\""),
        ("replaced by a rename", &load("a"), &rename_over_a, "changed \"a\""),
        ("grown", &load("log"), &|other| other.append("log", &[1u8]).map(drop), "changed \"log\""),
        ("absent, and then saved", &load("new"), &save_new, "added \"new\""),
        ("looked up, absent", &contains("new"), &save_new, "added \"new\""),
        ("looked up, present", &contains("a"), &remove_a, "removed \"a\""),
        ("names, and one is added", &names, &save_new, "added \"new\""),
        ("names, and one is removed", &names, &|other| other.remove("b"), "removed \"b\""),
        ("headers, and one is changed", &headers, &save_a, "changed \"a\""),
        ("headers, and one is added", &headers, &copy_b, "added \"ab\""),
        ("all of a prefix", &all, &save_a, "changed \"a\""),
        ("the store's attributes", &scope(""), &sets(""), "of the store"),
        ("a tensor's attributes", &scope("a"), &sets("a"), "of \"a\""),
        ("no attributes, and then some", &scope("c."), &sets("c."), "of \"c.\""),
        ("attributes of a removed tensor", &scope("a"), &remove_a, "of \"a\""),
        ("a different name", &load("a"), &save_b, ""),
        ("the same header again", &load("a"), &rename_a_twice, ""),
        ("looked up, and saved again", &contains("a"), &save_a, ""),
        ("names, and one is saved again", &names, &save_a, ""),
        ("headers, and a different prefix", &headers, &save_b, ""),
        ("attributes of a different scope", &scope("a"), &sets("b"), ""),
        ("attributes, and the tensor is saved again", &scope("a"), &save_a, ""),
        ("elements changed in place", &load("m"), &fill_m, ""),
        ("a read of a snapshot", &read_snapshot, &save_a, ""),
    ];
    for (what, read, change, says) in cases {
        println!("{what}");
        let store = fresh(&path);
        let mut txn = store.begin().unwrap();
        read(&txn);
        txn.save("result", &1i64).unwrap();
        change(&Store::open(&path).unwrap()).unwrap();
        let newest = Store::open(&path).unwrap();
        let (names, generation) = (newest.names().unwrap(), newest.generation());
        if says.is_empty() {
            txn.commit().unwrap();
            assert!(Store::open(&path).unwrap().contains("result").unwrap());
            continue;
        }
        let says = ["another commit, generation", says, "begin a new transaction"];
        assert_refused(txn.commit(), ErrorKind::Conflict, &says);
        store.refresh().unwrap();
        assert_eq!((store.names().unwrap(), store.generation()), (names, generation));
    }
    drop(dir);
}

/// Returns a store with some tensors and attributes, in place of the last one.
fn fresh(path: &Path) -> Store {
    std::fs::remove_dir_all(path).unwrap();
    let store = fast().create(path).unwrap();
    store
        .write(|txn| {
            txn.save("a", &1i64)?;
            txn.save("b", &1i64)?;
            txn.save_as("m", &[1i64, 2], StorageKind::Mutable)?;
            txn.create_growable("log", DType::U8, &[0], 10)?;
            txn.set_attribute("", "k", "1")?;
            txn.set_attribute("a", "k", "1")
        })
        .unwrap();
    store
}

/// Makes `own` in a transaction, then the `others`' change, and commits.
fn commit_after(
    store: &Store,
    own: impl FnOnce(&mut Transaction<'_>) -> Result<()>,
    others: impl FnOnce(&Store) -> Result<()>,
) -> Result<u64> {
    let mut txn = store.begin()?;
    own(&mut txn)?;
    others(&Store::open(store.path())?)?;
    txn.commit()
}

#[test]
fn what_the_transaction_itself_wrote_is_not_read_from_the_store() {
    let (_dir, path, _) = new_store();
    let saves_a = |other: &Store| other.save("a", &9i64);
    let store = fresh(&path);
    let own = |txn: &mut Transaction<'_>| {
        txn.save("a", &2i64)?;
        assert!(txn.contains("a")? && txn.load("a")?.item::<i64>()? == 2);
        txn.remove("b")?;
        assert!(!txn.contains("b")?);
        txn.save("b", &5i64)
    };
    commit_after(&store, own, saves_a).unwrap();
    assert_eq!(store.load("a").unwrap().item::<i64>().unwrap(), 2, "the last save wins");

    // A name that was renamed or copied to shows elements of the store.
    let renames = |txn: &mut Transaction<'_>| {
        txn.rename("a", "c")?;
        txn.copy("c", "d")?;
        let value: i64 = txn.load("d")?.item()?;
        txn.save("sum", &(value + 1))
    };
    let says = ["changed \"a\""];
    assert_refused(commit_after(&fresh(&path), renames, saves_a), ErrorKind::Conflict, &says);
    let lists = |txn: &mut Transaction<'_>| {
        txn.rename("a", "c")?;
        txn.iter_tensors("c")?.next().transpose().map(drop)
    };
    assert_refused(commit_after(&fresh(&path), lists, saves_a), ErrorKind::Conflict, &says);
    // Without a read of the elements, the rename applies to the tensor that the other writer saved.
    let store = fresh(&path);
    let renames = |txn: &mut Transaction<'_>| {
        txn.rename("a", "c")?;
        assert!(txn.contains("c")?);
        Ok(())
    };
    commit_after(&store, renames, saves_a).unwrap();
    assert_eq!(store.load("c").unwrap().item::<i64>().unwrap(), 9);
    // A name that was written after it was renamed to is the transaction's own.
    let store = fresh(&path);
    let replaces = |txn: &mut Transaction<'_>| {
        txn.rename("a", "c")?;
        txn.save("c", &3i64)?;
        assert_eq!(txn.load("c")?.item::<i64>()?, 3);
        Ok(())
    };
    commit_after(&store, replaces, saves_a).unwrap();

    // Attributes move with their names.
    let reads = |txn: &mut Transaction<'_>| {
        txn.rename("a", "c")?;
        let value = txn.attributes("c")["k"].clone();
        txn.set_attribute("", "copied", &value)
    };
    let sets = |other: &Store| other.write(|txn| txn.set_attribute("a", "k", "9"));
    assert_refused(commit_after(&fresh(&path), reads, sets), ErrorKind::Conflict, &["changed attributes"]);
}

#[test]
fn read_is_checked_when_a_transaction_moves_to_a_newer_generation_and_afterwards() {
    let (_dir, path, _) = new_store();
    let store = fresh(&path);
    let other = Store::open(&path).unwrap();
    // An append continues from the newest generation.
    let mut txn = store.begin().unwrap();
    drop(txn.load("a").unwrap());
    other.save("a", &2i64).unwrap();
    assert_refused(txn.append("log", &[1u8]), ErrorKind::Conflict, &["changed \"a\""]);
    drop(txn);
    assert_eq!(store.append("log", &[1u8]).unwrap(), 0..1, "the storage is free again");

    let mut txn = store.begin().unwrap();
    drop(txn.load("a").unwrap());
    other.save("b", &2i64).unwrap();
    assert_eq!(txn.append("log", &[2u8]).unwrap(), 1..2);
    drop(txn.load("b").unwrap());
    other.save("a", &3i64).unwrap();
    assert_refused(txn.commit(), ErrorKind::Conflict, &["changed \"a\""]);
    assert_eq!(store.append("log", &[3u8]).unwrap(), 1..2, "the row of the conflict is not there");
}

#[test]
fn view_of_a_tensor_that_was_loaded_in_the_transaction_is_of_its_newest_elements() {
    let (_dir, path, _) = new_store();
    let views = |txn: &mut Transaction<'_>| txn.save_view("view", &txn.load("a")?.unsqueeze(0)?);
    let refused = commit_after(&fresh(&path), views, |other| {
        other.write(|txn| txn.copy("a", "tie"))?; // keeps the storage
        other.save("a", &2i64)
    });
    assert_refused(refused, ErrorKind::Conflict, &["changed \"a\""]);
    commit_after(&fresh(&path), views, |other| other.write(|txn| txn.copy("a", "tie"))).unwrap();
}

#[test]
fn compaction_that_moves_what_was_read_is_a_conflict() {
    let (_dir, path, store) = new_fast_store();
    store.save("all", &filled(1 << 20, 1u64)).unwrap();
    store.save_view("part", &store.load("all").unwrap().narrow(0, 0, 10).unwrap()).unwrap();
    store.remove("all").unwrap();
    let mut txn = store.begin().unwrap();
    let sum: u64 = txn.load("part").unwrap().read::<u64>().unwrap().into_iter().sum();
    txn.save("sum", &sum).unwrap();
    assert_eq!(Store::open(&path).unwrap().compact(false, |_| ()).unwrap().storage_count, 1);
    assert_refused(txn.commit(), ErrorKind::Conflict, &["changed \"part\""]);
}

#[test]
fn transaction_that_ignores_its_reads_or_changes_nothing_never_conflicts() {
    let (_dir, path, _) = new_store();
    let read_all = |txn: &mut Transaction<'_>| {
        drop((txn.names()?, txn.load("a")?, txn.attributes(""), txn.contains("new")?));
        txn.iter_tensors("").map(drop)
    };
    let change_all = |other: &Store| {
        other.write(|txn| {
            txn.save("a", &2i64)?;
            txn.save("new", &2i64)?;
            txn.set_attribute("", "k", "2")
        })
    };
    for ignores_first in [true, false] {
        let store = fresh(&path);
        let ignores = |txn: &mut Transaction<'_>| {
            if ignores_first {
                txn.ignore_reads();
            }
            read_all(txn)?;
            txn.ignore_reads();
            txn.save("a", &3i64)
        };
        commit_after(&store, ignores, change_all).unwrap();
        assert_eq!(store.load("a").unwrap().item::<i64>().unwrap(), 3);
    }
    let store = fresh(&path);
    let before = store.generation();
    assert_eq!(commit_after(&store, read_all, change_all).unwrap(), before);
}

#[test]
fn reads_are_compared_across_a_new_table() {
    let (_dir, path, store) = new_fast_store();
    store.write(|txn| (0..300i64).try_for_each(|i| txn.save(&format!("x.{i}"), &i))).unwrap();
    let changed = |txn: &mut Transaction<'_>| {
        drop((txn.load("x.7")?, txn.load("absent")));
        for entry in txn.iter_tensors("x.1")? {
            drop(entry?);
        }
        txn.save("result", &1i64)
    };
    let many =
        |other: &Store| other.write(|txn| (0..300i64).try_for_each(|i| txn.save(&format!("y.{i}"), &i)));
    commit_after(&store, changed, many).unwrap();
    let many_and = |name: &'static str| {
        move |other: &Store| {
            other.save(name, &0i64)?;
            other.write(|txn| (0..300i64).try_for_each(|i| txn.save(&format!("z.{i}"), &i)))
        }
    };
    for (name, says) in
        [("x.7", "changed \"x.7\""), ("x.123", "changed \"x.123\""), ("absent", "added \"absent\"")]
    {
        assert_refused(commit_after(&store, changed, many_and(name)), ErrorKind::Conflict, &[says]);
    }
    commit_after(&store, changed, many_and("x.2")).unwrap();
    drop(path);
}

#[test]
fn change_by_the_thread_that_began_an_exclusive_transaction_is_busy_at_once() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::MAX).create(&path).unwrap();
    let other = StoreOptions::new().lock_timeout(Duration::MAX).open(&path).unwrap();
    store.create_growable("log", DType::U8, &[0], 10).unwrap();
    let mut txn = store.begin_exclusive().unwrap();
    let says = ["this thread has begun an exclusive transaction", "commit or drop it first"];
    assert_refused(store.save("x", &1i64), ErrorKind::Busy, &says);
    assert_refused(other.save("x", &1i64), ErrorKind::Busy, &says);
    assert_refused(other.begin_exclusive().map(drop), ErrorKind::Busy, &says);
    assert_refused(other.append("log", &[1u8]), ErrorKind::Busy, &says);
    assert_refused(other.gc(), ErrorKind::Busy, &says);
    assert_refused(other.compact(false, |_| ()), ErrorKind::Busy, &says);
    assert_eq!(txn.append("log", &[7u8]).unwrap(), 0..1);
    txn.save("x", &2i64).unwrap();
    txn.commit().unwrap();
    assert_eq!(other.append("log", &[8u8]).unwrap(), 1..2);
    // It may end on a different thread.
    let txn = store.begin_exclusive().unwrap();
    thread::scope(|scope| scope.spawn(|| drop(txn)).join().unwrap());
    other.save("x", &3i64).unwrap();
    // A commit that is refused ends it too.
    let mut txn = store.begin_exclusive().unwrap();
    txn.set_attribute("", "k", "v").unwrap();
    txn.on_existing(OnExisting::Refuse);
    assert_refused(txn.save("x", &4i64), ErrorKind::NameExists, &["\"x\""]);
    drop(txn);
    other.save("x", &5i64).unwrap();
}

#[test]
fn append_in_an_exclusive_transaction_does_not_wait_for_another_appender() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::MAX).create(&path).unwrap();
    store.create_growable("log", DType::U8, &[0], 10).unwrap();
    let mut appender = store.appender("log").unwrap();
    appender.append(&[1u8]).unwrap();
    thread::scope(|scope| {
        let refused = || {
            let mut txn = store.begin_exclusive().unwrap();
            assert_refused(txn.append("log", &[2u8]), ErrorKind::Busy, &["append to \"log\""]);
        };
        scope.spawn(refused).join().unwrap();
    });
    appender.commit().unwrap();
}
