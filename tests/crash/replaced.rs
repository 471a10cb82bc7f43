//! A store's directory is replaced by another store before an operation of the disk. Afterwards both stores are
//! intact, and whatever was reported as done was done in the handle's own store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::simulated::{PowerCut, SimulatedDisk};
use stridemap::disk::{Access, Disk};
use stridemap::{DType, Result, Store, StoreOptions, Tensor};

use crate::content::Content;
use crate::steps::seat::Seat;

const STORE: &str = "x.smap";
const OTHER: &str = "other.smap";
const MOVED: &str = "moved";

struct Operation {
    name: &'static str,
    run: fn(&StoreOptions, &Store) -> Result<()>,
}

const OPERATIONS: [Operation; 8] = [
    Operation { name: "save", run: |_, store| store.save("new", &numbers(300_000, 1)) },
    Operation { name: "replace", run: |_, store| store.save("small", &numbers(10, 2)) },
    Operation { name: "view", run: |_, store| store.save_view("view", &store.load("log")?.narrow(0, 2, 5)?) },
    Operation { name: "append", run: |_, store| store.append("log", &numbers(300_000, 3)).map(drop) },
    Operation { name: "remove", run: |_, store| store.remove("chunked") },
    Operation { name: "compact", run: |_, store| store.compact(false, |_| ()).map(drop) },
    Operation { name: "gc", run: |_, store| store.gc().map(drop) },
    Operation { name: "load", run: |_, store| Content::of(store).map(drop) },
];

fn numbers(count: u32, seed: u32) -> Tensor {
    let numbers = (0..count).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect();
    Tensor::from_vec(numbers, &[count as usize]).unwrap()
}

fn options(disk: Arc<dyn Disk>) -> StoreOptions {
    StoreOptions::new().lock_timeout(Duration::ZERO).disk(disk)
}

/// Creates a disk with two stores that have different contents.
fn two_stores() -> PowerCut {
    let disk = SimulatedDisk::new().without_log();
    let create = |path| options(Arc::new(disk.clone())).create(path).unwrap();
    let store = create(STORE);
    store.save("small", &numbers(10, 4)).unwrap();
    store.save("chunked", &numbers(300_000, 5)).unwrap();
    store.create_growable("log", DType::U32, &[100], 0).unwrap();
    // This gives a compaction something to do.
    store.save("whole", &numbers(20_000, 6)).unwrap();
    store.save_view("part", &store.load("whole").unwrap().narrow(0, 5, 7).unwrap()).unwrap();
    store.remove("whole").unwrap();
    let other = create(OTHER);
    for name in ["small", "chunked", "log"] {
        other.save(name, &numbers(50, 7)).unwrap();
    }
    disk.power_cut()
}

fn content(disk: &SimulatedDisk, path: &str) -> Content {
    let store = options(Arc::new(disk.clone())).open(path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    Content::of(&store).unwrap()
}

/// Renames directories, as another process would.
fn rename(disk: &SimulatedDisk, names: [(&str, &str); 2]) {
    for (from, to) in names {
        disk.rename_new(Path::new(from), Path::new(to)).unwrap();
    }
}

#[test]
fn store_replaced_before_any_operation_of_the_disk_leaves_both_stores_intact() {
    let start = two_stores();
    let (before, other) = {
        let disk = start.disk_after_kill();
        (content(&disk, STORE), content(&disk, OTHER))
    };
    let (mut trials, mut done, mut refused) = (0, 0, 0);
    for Operation { name, run } in OPERATIONS {
        let after = after(&start, run);
        for nth in 0.. {
            let disk = start.disk_after_kill();
            let seat = Seat::new(&(Arc::new(disk.clone()) as Arc<dyn Disk>), 1);
            let options = options(seat.disk());
            let store = options.open(STORE).unwrap();
            let swapped = disk.clone();
            seat.before_operation(nth, move || {
                rename(&swapped, [(STORE, MOVED), (OTHER, STORE)]);
                Ok(())
            });
            let result = run(&options, &store);
            if !seat.is_done() {
                result.unwrap();
                break;
            }
            drop(store);
            let told = format!("{name}, before operation {nth}: {result:?}");
            assert_eq!(content(&disk, STORE), other, "{told}");
            let found = content(&disk, MOVED);
            assert!(found == after || result.is_err() && found == before, "{told}");
            trials += 1;
            match result {
                Ok(()) => done += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("replaced before {trials} operations of the disk: {done} calls done, {refused} refused");
    assert!(trials > 150 && done == trials, "{trials} {done} {refused}");
}

#[test]
fn store_stays_intact_if_a_directory_in_it_is_replaced_before_any_operation() {
    let start = two_stores();
    let before = content(&start.disk_after_kill(), STORE);
    let (mut done, mut refused) = (0, 0);
    for Operation { name, run } in OPERATIONS {
        let after = after(&start, run);
        let count = operations_of(&start, run);
        for (dir, nth) in
            ["meta", "storages"].into_iter().flat_map(|dir| (0..count).map(move |nth| (dir, nth)))
        {
            let disk = start.disk_after_kill();
            let seat = Seat::new(&(Arc::new(disk.clone()) as Arc<dyn Disk>), 1);
            let options = options(seat.disk());
            let store = options.open(STORE).unwrap();
            let (own, others) = (format!("{STORE}/{dir}"), format!("{OTHER}/{dir}"));
            let (swapped, names) = (disk.clone(), (own.clone(), others.clone()));
            seat.before_operation(nth, move || {
                rename(&swapped, [(&names.0, MOVED), (&names.1, &names.0)]);
                Ok(())
            });
            let result = run(&options, &store);
            drop(store);
            rename(&disk, [(&own, &others), (MOVED, &own)]);
            let told = format!("{name}, {dir} before operation {nth}: {result:?}");
            let found = content(&disk, STORE);
            assert!(found == after || result.is_err() && found == before, "{told}");
            content(&disk, OTHER);
            match result {
                Ok(()) => done += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("directories replaced: {done} calls done, {refused} refused");
    assert!(done > 0 && refused > 0, "{done} {refused}");
}

/// Returns the content of the store after an operation.
fn after(start: &PowerCut, run: fn(&StoreOptions, &Store) -> Result<()>) -> Content {
    let disk = start.disk_after_kill();
    let options = options(Arc::new(disk.clone()));
    run(&options, &options.open(STORE).unwrap()).unwrap();
    content(&disk, STORE)
}

/// Returns the number of disk operations of an operation.
fn operations_of(start: &PowerCut, run: fn(&StoreOptions, &Store) -> Result<()>) -> u64 {
    let disk = start.disk_after_kill();
    let seat = Seat::new(&(Arc::new(disk) as Arc<dyn Disk>), 1);
    let options = options(seat.disk());
    let store = options.open(STORE).unwrap();
    seat.before_operation(u64::MAX, || Ok(()));
    run(&options, &store).unwrap();
    u64::MAX - seat.operations_left().unwrap()
}

#[test]
fn store_replaced_before_any_operation_of_a_salvage_leaves_the_other_untouched() {
    let start = two_stores();
    let damage = |disk: &SimulatedDisk| {
        let path = Path::new(STORE).join("storages/0000000000000002.bin");
        disk.open(&path, Access::Write).unwrap().write_all_at(&[0xff; 4], 1000).unwrap();
    };
    let other = content(&start.disk_after_kill(), OTHER);
    let new = Path::new("new");
    let mut salvaged = 0;
    for nth in 0.. {
        let disk = start.disk_after_kill();
        damage(&disk);
        let seat = Seat::new(&(Arc::new(disk.clone()) as Arc<dyn Disk>), 1);
        let swapped = disk.clone();
        seat.before_operation(nth, move || {
            rename(&swapped, [(STORE, MOVED), (OTHER, STORE)]);
            Ok(())
        });
        let result = options(seat.disk()).salvage(STORE, Some(new), |_| ());
        if !seat.is_done() {
            break;
        }
        assert_eq!(content(&disk, STORE), other, "before operation {nth}: {result:?}");
        // If the store was replaced before it was opened, the other one was salvaged.
        let from_other = result.unwrap().losses.is_empty();
        let found = options(Arc::new(disk.clone())).open(new.to_str().unwrap()).unwrap();
        assert_eq!(found.verify(|_| ()).unwrap().findings, [], "before operation {nth}");
        if !from_other {
            assert_eq!(found.names().unwrap(), ["log", "part", "small"], "before operation {nth}");
            salvaged += 1;
        }
    }
    println!("replaced before {salvaged} operations of a salvage");
    assert!(salvaged > 50, "{salvaged}");
}
