//! Repairs that a power cut interrupts, on the simulated disk, and that are then repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::simulated::{Op, Outcome, SimulatedDisk};
use stridemap::disk::{Access, Disk as _};
use stridemap::{ErrorKind, Index, Store, StoreOptions, Tensor};

use crate::harness::filled;

const STORE: &str = "store";

/// Views of one storage: too many for one leaf of a table, so the root is a node of its own.
const VIEWS: isize = 400;

type Content = BTreeMap<String, Vec<u8>>;

fn options(disk: &SimulatedDisk) -> StoreOptions {
    StoreOptions::new().disk(Arc::new(disk.clone()))
}

fn content(store: &Store) -> Content {
    let names = store.names().unwrap();
    names.into_iter().map(|name| (name.clone(), store.load(&name).unwrap().to_bytes().unwrap())).collect()
}

/// Creates a store with two manifests over one table, and storages of two chunks and a tail, and of a few bytes.
fn store(disk: &SimulatedDisk) -> Store {
    let store = options(disk).create(STORE).unwrap();
    let large: Vec<u32> = (0..(2 << 18) + 9).collect();
    store.save("large", &Tensor::from_vec(large, &[(2 << 18) + 9]).unwrap()).unwrap();
    store.save("row", &Tensor::from_vec((0..8u8).collect(), &[8]).unwrap()).unwrap();
    let (large, row) = (store.load("large").unwrap(), store.load("row").unwrap());
    let mut txn = store.begin().unwrap();
    for i in 0..VIEWS {
        txn.save_view(&format!("v{i}"), &row.index([Index::from(i % 8)]).unwrap()).unwrap();
    }
    txn.save_view("start", &large.slice(0, Some(0), Some(100), 1).unwrap()).unwrap();
    txn.save_view("end", &large.slice(0, Some(2 << 18), None, 1).unwrap()).unwrap();
    txn.commit().unwrap();
    store.save("later", &Tensor::from_vec(vec![3u8], &[1]).unwrap()).unwrap();
    // A reader keeps generation 5, to which a repair can step back.
    let reader = options(disk).open(STORE).unwrap();
    store.save("newest", &Tensor::from_vec(vec![4u8], &[1]).unwrap()).unwrap();
    drop(reader);
    store
}

fn damage(disk: &SimulatedDisk, file: &str, at: u64, bytes: &[u8]) {
    let file = disk.open(&Path::new(STORE).join(file), Access::Write).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync().unwrap();
}

fn flip(disk: &SimulatedDisk, file: &str, at: u64) {
    let open = disk.open(&Path::new(STORE).join(file), Access::Read).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    damage(disk, file, at, &[byte[0] ^ 4]);
}

fn read(disk: &SimulatedDisk, file: &str) -> Vec<u8> {
    let file = disk.open(&Path::new(STORE).join(file), Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size_bytes as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Returns the contents of the files in lost+found.
fn kept(disk: &SimulatedDisk) -> BTreeSet<Vec<u8>> {
    let names = disk.list(&Path::new(STORE).join("lost+found")).unwrap();
    names.into_iter().map(|name| read(disk, &format!("lost+found/{name}"))).collect()
}

/// Repairs once to the end. Then repairs once for each operation, with a power cut there and a second repair. The
/// store must have the same content as after the first repair, and keep the same files, also after a collection.
/// Returns the number of states.
fn cut_everywhere(damage: impl Fn(&SimulatedDisk), gone: &[&str]) -> usize {
    let disk = SimulatedDisk::new();
    let made = store(&disk);
    let mut expected = content(&made);
    drop(made);
    damage(&disk);
    let from = disk.log().len();
    let done = options(&disk).repair(STORE, |_| ()).unwrap();
    assert!(!done.is_empty());
    expected.retain(|name, _| !gone.contains(&name.as_str()));
    assert_eq!(content(&options(&disk).open(STORE).unwrap()), expected, "{done:?}");
    let expected_kept = kept(&disk);
    let log: Vec<Op> = disk.log();
    let mut states = 0;
    for end in from..=log.len() {
        let pending = SimulatedDisk::pending_names(&log[..end]);
        let outcomes =
            [Outcome::EverythingKept, Outcome::EverythingLost, Outcome::NamesKept, Outcome::DataKept];
        for outcome in outcomes.into_iter().chain((0..pending).map(Outcome::OneNameKept)) {
            let cut = SimulatedDisk::after_power_cut(&log[..end], outcome);
            let what = format!("{outcome:?} of {end} operations, {:?}", log.get(end));
            options(&cut).repair(STORE, |_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let store = options(&cut).open(STORE).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(content(&store), expected, "{what}");
            assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{what}");
            store.save("after", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
            store.gc().unwrap();
            assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{what}");
            assert!(kept(&cut).is_superset(&expected_kept), "{what}: something is not kept");
            states += 1;
        }
    }
    states
}

#[test]
fn repair_interrupted_by_a_power_cut_can_be_repeated() {
    let states = cut_everywhere(
        |disk| {
            flip(disk, "FORMAT", 20);
            flip(disk, "meta/0000000000000006.man", 50);
            damage(disk, "storages/0000000000000001.bin", (1 << 20) + 9, b"damage");
        },
        &["large", "newest"],
    );
    println!("{states} states");
    assert!(states > 100, "{states}");
}

#[test]
fn repair_of_missing_files_interrupted_by_a_power_cut_can_be_repeated() {
    let gone: Vec<String> = (0..VIEWS).map(|i| format!("v{i}")).chain(["row".to_owned()]).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    let states = cut_everywhere(
        |disk| {
            disk.remove(&Path::new(STORE).join("LOCK")).unwrap();
            disk.remove(&Path::new(STORE).join("storages/0000000000000002.bin")).unwrap();
            // The root of the tensors is last. It only leads to the leaves, so nothing is lost with it.
            let table = "meta/0000000000000004.tab";
            flip(disk, table, read(disk, table).len() as u64 - 4096 + 100);
            flip(disk, "storages/0000000000000001.sum", 3);
            disk.sync_dir(Path::new(STORE)).unwrap();
            disk.sync_dir(&Path::new(STORE).join("storages")).unwrap();
        },
        &gone,
    );
    println!("{states} states");
    assert!(states > 50, "{states}");
}

#[test]
fn failed_repair_can_be_repeated_and_reports_a_commit_of_unknown_fate() {
    let disk = SimulatedDisk::new();
    let store = options(&disk).create(STORE).unwrap();
    for name in ["damaged", "whole"] {
        store.save(name, &filled(9, 1u8)).unwrap();
    }
    drop(store);
    damage(&disk, "storages/0000000000000001.bin", 3, b"x");
    let log = disk.log();
    let copy = || SimulatedDisk::after_power_cut(&log, Outcome::EverythingKept);
    let count = {
        let disk = copy();
        let before = disk.log().len();
        options(&disk).repair(STORE, |_| ()).unwrap();
        disk.log().len() - before
    };
    let (mut refused, mut unknown) = (0, 0);
    for failing in 0..count {
        let disk = copy();
        let seen = AtomicUsize::new(0);
        disk.fail(move |_| seen.fetch_add(1, Ordering::Relaxed) == failing);
        match options(&disk).repair(STORE, |_| ()) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::CommitUnknown => unknown += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Io, "operation {failing}: {e}");
                refused += 1;
            }
        }
        options(&disk).repair(STORE, |_| ()).unwrap();
        let store = options(&disk).open(STORE).unwrap();
        assert_eq!(store.names().unwrap(), ["whole"], "operation {failing}");
        assert_eq!(store.verify(|_| ()).unwrap().findings, [], "operation {failing}");
    }
    assert!(unknown == 2 && refused > 5, "{count} operations: {unknown} {refused}");
}
