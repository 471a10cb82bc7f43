//! Copies of a store that other processes change or rename.

use super::{assert_copy, names_in};
use crate::harness::processes::{read_line, send_line, start};
use crate::harness::{fast, filled, new_path};
use crate::support::temporary;
use std::fs::{self};
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use stridemap::{DType, ErrorKind, Store};

#[test]
fn copy_of_a_store_renamed_meanwhile_contains_that_store() {
    let dir = temporary();
    let (path, moved, link) =
        (dir.path().join("x.smap"), dir.path().join("moved.smap"), dir.path().join("link"));
    let store = Store::create(&path).unwrap();
    std::os::unix::fs::symlink("x.smap", &link).unwrap();
    store.save("a", &filled(1_000_000, 1i64)).unwrap();
    store.save("b", &filled(1_000_000, 2i64)).unwrap();
    let handle = Store::open(&link).unwrap();
    let other = Store::create(dir.path().join("other.smap")).unwrap();
    other.save("b", &filled(1_000_000, 3i64)).unwrap();
    drop(other);
    let copied = dir.path().join("copy.smap");
    let mut is_moved = false;
    let swap = |_| {
        if !std::mem::replace(&mut is_moved, true) {
            fs::rename(&path, &moved).unwrap();
            fs::rename(dir.path().join("other.smap"), &path).unwrap();
        }
    };
    handle.snapshot().copy_to(&copied, None, swap).unwrap();
    assert!(is_moved);
    assert_copy(&Store::open(&copied).unwrap(), &store.snapshot());
}

/// Changes everything in one commit, so that every part of a generation contains its number. Does nothing if another
/// process commits first.
fn change(store: &Store) {
    match try_change(store) {
        Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NameNotFound) => {}
        changed => changed.unwrap(),
    }
}

fn try_change(store: &Store) -> stridemap::Result<()> {
    let mut txn = store.begin()?;
    let number = txn.attributes("")["number"].parse::<i64>().unwrap() + 1;
    for i in 1..6 {
        txn.save(&format!("x.{i}"), &filled(3000 * i, number))?;
    }
    // Each storage is kept by one of several generations, and compactions have something to do.
    txn.save(&format!("kept.{}", number % 5), &filled(100, number))?;
    txn.save("large", &filled(1 << 19, number))?;
    txn.append("log", &filled(1, number))?;
    match number % 2 {
        0 => txn.save("even", &filled(1, number))?,
        _ => txn.remove("even")?,
    }
    txn.set_attribute("", "number", &number.to_string())?;
    txn.commit().map(drop)
}

/// Asserts that everything is of one generation, and returns its number.
fn number_of(store: &Store) -> i64 {
    let number: i64 = store.attributes("")["number"].parse().unwrap();
    let all = |name: &str, count: usize, value: i64| {
        let elements: Vec<i64> = store.load(name).unwrap().read().unwrap();
        assert_eq!(elements.len(), count, "{name} in {number}");
        assert!(elements.iter().all(|&element| element == value), "{name} in {number}");
    };
    (1..6).for_each(|i| all(&format!("x.{i}"), 3000 * i, number));
    all("large", 1 << 19, number);
    for kept in 0..5.min(number + 1) {
        let age = (number - kept).rem_euclid(5);
        all(&format!("kept.{kept}"), 100, number - age);
    }
    let log: Vec<i64> = store.load("log").unwrap().read().unwrap();
    assert!(log.iter().copied().eq(0..=number), "log in {number}");
    assert_eq!(store.contains("even").unwrap(), number % 2 == 0);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    number
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role != "change for copies" {
        return false;
    }
    let store = fast().open(path).unwrap();
    change(&store);
    send_line("ready");
    loop {
        change(&store);
    }
}

/// Also copies with `cp -r`, whose results may be inconsistent. The number that does not open is printed.
#[test]
fn every_copy_made_during_changes_contains_one_generation() {
    let (dir, path) = new_path();
    let options = fast();
    let store = options.create(&path).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 1..6 {
        txn.save(&format!("x.{i}"), &filled(3000 * i, 0i64)).unwrap();
    }
    txn.save("kept.0", &filled(100, 0i64)).unwrap();
    txn.save("large", &filled(1 << 19, 0i64)).unwrap();
    txn.create_growable("log", DType::I64, &[1], 0).unwrap();
    txn.save("even", &filled(1, 0i64)).unwrap();
    txn.set_attribute("", "number", "0").unwrap();
    txn.commit().unwrap();

    let mut writers: Vec<_> = (0..2).map(|_| start("change for copies", &path)).collect();
    for writer in &mut writers {
        assert_eq!(read_line(&mut BufReader::new(writer.stdout.take().unwrap())), "ready");
    }
    let is_done = AtomicBool::new(false);
    let mut numbers = Vec::new();
    let mut torn_count = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let store = options.open(&path).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                store.compact(false, |_| ()).unwrap();
                store.gc().unwrap();
            }
        });
        let copied = catch_unwind(AssertUnwindSafe(|| {
            let held = store.snapshot();
            let mut i = 0;
            while i < 12 || numbers.first() == numbers.last() {
                let place: PathBuf = dir.path().join(format!("copy.{i}"));
                store.latest().unwrap().copy_to(&place, None, |_| ()).unwrap();
                numbers.push(number_of(&Store::open(&place).unwrap()));
                fs::remove_dir_all(&place).unwrap();
                if i % 8 == 0 {
                    held.copy_to(&place, None, |_| ()).unwrap();
                    assert_copy(&Store::open(&place).unwrap(), &held);
                    fs::remove_dir_all(&place).unwrap();
                }
                Command::new("cp").arg("-r").args([&path, &place]).output().unwrap();
                let torn = Store::open(&place).and_then(|store| store.verify(|_| ()));
                torn_count += usize::from(!torn.is_ok_and(|verified| verified.is_whole()));
                fs::remove_dir_all(&place).unwrap();
                i += 1;
            }
        }));
        // This comes before any assertion, because otherwise the others would never end.
        is_done.store(true, Ordering::Relaxed);
        writers.iter_mut().for_each(|writer| {
            writer.kill().unwrap();
            writer.wait().unwrap();
        });
        copied.unwrap();
    });
    println!(
        "copies are of generations {numbers:?}; of 24 by cp -r {torn_count} do not open or do not verify"
    );
    assert!(numbers.is_sorted() && numbers.first() < numbers.last(), "{numbers:?}");
    let strays = names_in(dir.path());
    assert_eq!(strays, ["x.smap"]);
}
