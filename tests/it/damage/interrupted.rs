//! Salvages that a power cut or a failure interrupts, on the simulated disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::simulated::{Op, Outcome, SimulatedDisk};
use stridemap::disk::{Access, Disk as _};
use stridemap::{ErrorKind, Index, Store, StoreOptions, Tensor};

const STORE: &str = "store";
const NEW: &str = "new";

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
    // A reader keeps generation 5, to which a salvage can step back.
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

/// Returns the bytes of each file of the damaged store.
fn damaged_store(disk: &SimulatedDisk) -> BTreeMap<String, Vec<u8>> {
    let listed = |dir: &str| {
        let names = disk.list(&Path::new(STORE).join(dir)).unwrap();
        names.into_iter().map(|name| format!("{dir}/{name}")).collect::<Vec<_>>()
    };
    let files = ["generations", "meta", "storages"].into_iter().flat_map(listed).chain(["FORMAT".to_owned()]);
    files.map(|file| (file.clone(), read(disk, &file))).collect()
}

/// Salvages to the end, and then with a power cut after each operation. There is no new store then, or a whole one, and
/// the damaged store is unchanged.
#[test]
fn salvage_interrupted_by_a_power_cut_leaves_nothing_or_the_whole_store() {
    let disk = SimulatedDisk::new();
    let made = store(&disk);
    let mut expected = content(&made);
    drop(made);
    flip(&disk, "FORMAT", 20);
    flip(&disk, "meta/0000000000000006.man", 50);
    damage(&disk, "storages/0000000000000001.bin", (1 << 20) + 9, b"damage");
    disk.remove(&Path::new(STORE).join("LOCK")).unwrap();
    disk.sync_dir(Path::new(STORE)).unwrap();
    let before = damaged_store(&disk);
    let from = disk.log().len();
    let done = options(&disk).salvage(STORE, Some(Path::new(NEW)), |_| ()).unwrap();
    expected.retain(|name, _| !["large", "newest"].contains(&name.as_str()));
    assert_eq!(content(&options(&disk).open(NEW).unwrap()), expected, "{done:?}");
    let log: Vec<Op> = disk.log();
    let (mut without, mut whole) = (0, 0);
    for end in from..=log.len() {
        let pending = SimulatedDisk::pending_names(&log[..end]);
        let outcomes =
            [Outcome::EverythingKept, Outcome::EverythingLost, Outcome::NamesKept, Outcome::DataKept];
        for outcome in outcomes.into_iter().chain((0..pending).map(Outcome::OneNameKept)) {
            let cut = SimulatedDisk::after_power_cut(&log[..end], outcome);
            let what = format!("{outcome:?} of {end} operations, {:?}", log.get(end));
            assert!(damaged_store(&cut) == before, "{what}");
            match options(&cut).open(NEW) {
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NotFound, "{what}: {e}");
                    without += 1;
                    assert!(end < log.len(), "{what}: not durable");
                }
                Ok(store) => {
                    assert_eq!(content(&store), expected, "{what}");
                    assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{what}");
                    store.save("after", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
                    whole += 1;
                }
            }
        }
    }
    println!("{without} states without a new store, {whole} with a whole one");
    assert!(without > 50 && whole > 5, "{without} {whole}");
}

#[test]
fn failed_salvage_leaves_nothing() {
    let disk = SimulatedDisk::new();
    drop(store(&disk));
    damage(&disk, "storages/0000000000000001.bin", 3, b"x");
    let log = disk.log();
    let copy = || SimulatedDisk::after_power_cut(&log, Outcome::EverythingKept);
    let salvage = |disk: &SimulatedDisk| options(disk).salvage(STORE, Some(Path::new(NEW)), |_| ());
    let count = {
        let disk = copy();
        let before = disk.log().len();
        let _ = salvage(&disk).unwrap();
        disk.log().len() - before
    };
    let mut refused = 0;
    for failing in 0..count {
        let disk = copy();
        let seen = AtomicUsize::new(0);
        disk.fail(move |_| seen.fetch_add(1, Ordering::Relaxed) == failing);
        if let Err(e) = salvage(&disk) {
            // After a failed sync of its name, the store is there, and whole.
            let is_there = options(&disk).open(NEW).is_ok();
            let kind = if is_there { ErrorKind::CommitUnknown } else { ErrorKind::Io };
            assert_eq!(e.kind(), kind, "operation {failing}: {e}");
            if !is_there {
                let _ = salvage(&disk).unwrap();
            }
            refused += 1;
        }
        let store = options(&disk).open(NEW).unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, [], "operation {failing}");
    }
    assert!(refused > 5, "{count} operations: {refused}");
}
