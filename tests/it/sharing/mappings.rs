//! Mappings that a handle keeps after the last tensor on them was dropped. Their limit is per process, so these tests
//! start this binary again.

use std::fs;
use std::path::Path;

use stridemap::Header;
use stridemap::{Advice, DType, StorageKind, Store, Tensor};

use crate::filesystems::limits::limited;
use crate::harness::processes::{proc, run_to_end};
use crate::harness::strace::{mark, trace};
use crate::harness::{fast, filled, new_path, open_mapped};

/// One more than the storages that a process keeps mapped.
const TOO_MANY: usize = 4097;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "keep mappings" => keep(path),
        "keep many mappings" => keep_many(path),
        "map in little address space" => map_in_little_space(path),
        "reserve much address space" => reserve_much_space(path),
        "load warm" => load_warm(path),
        _ => return false,
    }
    true
}

/// Returns the mappings of the storages of this store, by file name. A deleted file has a name with a suffix.
fn mapped(path: &Path) -> Vec<String> {
    let dir = fs::canonicalize(path).unwrap().join("storages");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let names = maps.lines().filter_map(|line| line.split_once(dir.to_str().unwrap()));
    let mut names: Vec<String> =
        names.map(|(_, name)| name.trim_start_matches(['/', '0']).to_owned()).collect();
    names.sort();
    names
}

fn first_of(store: &Store, name: &str) -> f32 {
    store.load(name).unwrap().as_slice::<f32>().unwrap()[0]
}

fn address_of(store: &Store, name: &str) -> *const f32 {
    store.load(name).unwrap().as_slice::<f32>().unwrap().as_ptr()
}

fn keep(path: &Path) {
    let writer = fast().create(path).unwrap();
    writer.save("x", &filled(1000, 1f32)).unwrap();
    writer.save("y", &filled(2000, 2f32)).unwrap();
    writer.create_growable("grows", DType::F32, &[0], 1 << 20).unwrap();
    writer.append("grows", &filled(10, 3f32)).unwrap();

    let reader = open_mapped(path);
    let before = address_of(&reader, "x");
    assert_eq!(mapped(path), ["1.bin"]);
    assert_eq!(address_of(&reader, "x"), before);
    for entry in reader.snapshot().iter_loaded("").unwrap() {
        assert!(entry.unwrap().1.as_slice::<f32>().unwrap()[0] > 0.);
    }
    assert_eq!(mapped(path), ["1.bin", "2.bin", "3.bin"]);

    // Other handles append, compact and collect. The mapping of a growing storage has room for more rows.
    let grows = address_of(&reader, "grows");
    let old = reader.snapshot();
    writer.append("grows", &filled(10, 3f32)).unwrap();
    writer.save_view("y", &writer.load("y").unwrap().narrow(0, 0, 1).unwrap()).unwrap();
    assert_eq!(writer.compact(false, |_| ()).unwrap().after_bytes, 4);
    writer.remove("x").unwrap();
    writer.gc().unwrap();
    assert_eq!(mapped(path), ["1.bin", "2.bin", "3.bin"]);
    assert_eq!(first_of(&reader, "x"), 1.);

    // The handle keeps nothing that its new generation does not have.
    reader.refresh().unwrap();
    assert_eq!(mapped(path), ["3.bin"]);
    let longer = reader.load("grows").unwrap();
    assert_eq!((longer.storage_nbytes(), longer.as_slice::<f32>().unwrap().as_ptr()), (80, grows));
    drop(longer);
    assert_eq!(old.load("x").unwrap().as_slice::<f32>().unwrap()[0], 1.);
    assert_eq!(mapped(path), ["3.bin"], "of an older generation nothing is kept");
    drop(old);
    assert!(writer.gc().unwrap().size_bytes >= 8000);
    assert_eq!(mapped(path), ["3.bin"]);

    // What it loads between commits stays mapped. What it does not load is released at the second commit.
    assert_eq!(first_of(&reader, "y"), 2.);
    let (grows, y) = (address_of(&reader, "grows"), address_of(&reader, "y"));
    for i in 0..3 {
        reader.save("other", &i).unwrap();
        assert_eq!(address_of(&reader, "grows"), grows);
        assert_eq!(mapped(path).len(), if i == 0 { 2 } else { 1 }, "{i}");
    }
    let kept = reader.load("y").unwrap();
    assert_eq!(mapped(path).len(), 2);
    let clone = reader.clone();
    drop(reader);
    assert_eq!(mapped(path).len(), 2);
    drop(clone);
    assert_eq!(mapped(path).len(), 1, "the tensor keeps its mapping");
    assert!(!y.is_null() && kept.as_slice::<f32>().unwrap() == [2.]);
    drop(kept);
    assert_eq!(mapped(path), [""; 0]);
}

fn keep_many(path: &Path) {
    let store = fast().create(path).unwrap();
    for from in [0, TOO_MANY / 2] {
        let mut txn = store.begin().unwrap();
        for i in from..TOO_MANY.min(from + TOO_MANY / 2 + 1) {
            // Of unstated length, so that each has a file.
            let key = txn.stage(None, |sink| sink(&(i as f32).to_le_bytes())).unwrap();
            txn.save_header(&i.to_string(), &Header::contiguous(DType::F32, &[1]).unwrap(), key).unwrap();
        }
        txn.commit().unwrap();
    }
    let readers = [open_mapped(path), open_mapped(path)];
    let mut most = 0;
    for i in 0..TOO_MANY {
        assert_eq!(first_of(&readers[i % 2], &i.to_string()), i as f32);
        if i % 64 == 63 {
            most = most.max(mapped(path).len());
        }
    }
    assert!((TOO_MANY - 64..TOO_MANY).contains(&most), "{most} mappings");
    assert_eq!(mapped(path).len(), 1, "all were released for one more");
    let tensors: Vec<Tensor> = (0..TOO_MANY).map(|i| readers[0].load(&i.to_string()).unwrap()).collect();
    assert_eq!(mapped(path).len(), TOO_MANY, "those in use stay");
    assert!((0..TOO_MANY).all(|i| tensors[i].as_slice::<f32>().unwrap() == [i as f32]));
    drop((tensors, readers));
    assert_eq!(mapped(path), [""; 0]);
}

fn map_in_little_space(path: &Path) {
    const MIB: usize = 1 << 20;
    let store = fast().create(path).unwrap();
    for i in 0..6 {
        store.save(&i.to_string(), &filled(16 * MIB, i as u8)).unwrap();
    }
    let reader = open_mapped(path);
    let limit = proc("status", "VmSize:") * 1024 + 60 * MIB as u64;
    limited(libc::RLIMIT_AS, limit, || {
        for i in (0..6).cycle().take(20) {
            let x = reader.load(&i.to_string()).unwrap();
            assert_eq!(x.as_slice::<u8>().unwrap()[1000], i as u8);
        }
    });
    assert!((1..=3).contains(&mapped(path).len()));

    // The allocator reserves 64 MiB for a thread, and could take fewer from there.
    let heap = filled(MIB, 1u8).expand([70, -1]).unwrap();
    let _ = store.create_tensor("mutable", DType::U8, &[70 * MIB], StorageKind::Mutable).unwrap();
    reader.refresh().unwrap();
    let load_all = || (0..6).for_each(|i| drop(reader.load(&i.to_string()).unwrap()));
    let limit = proc("status", "VmSize:") * 1024 + 90 * MIB as u64;
    limited(libc::RLIMIT_AS, limit, || {
        load_all();
        assert!(mapped(path).len() > 3);
        assert_eq!(heap.clone_data().unwrap().numel(), 70 * MIB);
        load_all();
        let guard = reader.load("mutable").unwrap().lock_shared().unwrap();
        assert_eq!(guard.as_slice::<u8>().unwrap()[70 * MIB - 1], 0);
    });
}

fn reserve_much_space(path: &Path) {
    const MOST: usize = 1 << 44;
    let store = fast().create(path).unwrap();
    let reader = open_mapped(path);
    for i in 0..3 {
        store.create_growable(&i.to_string(), DType::U8, &[1], MOST).unwrap();
    }
    reader.refresh().unwrap();
    for i in 0..3 {
        drop(reader.load(&i.to_string()).unwrap());
        assert_eq!(mapped(path), [format!("{}.bin", i + 1)], "the one before left its space to this one");
        assert!(proc("status", "VmSize:") as usize * 1024 > MOST);
    }
}

fn load_warm(path: &Path) {
    let store = open_mapped(path);
    let snapshot = store.snapshot();
    let load = || {
        drop(store.load("x").unwrap());
        drop(snapshot.load("y").unwrap());
        assert_eq!(snapshot.iter_loaded("").unwrap().count(), 1002);
    };
    mark("cold");
    load();
    mark("warm");
    (0..10).for_each(|_| load());
    mark("done");
}

#[test]
fn handle_keeps_the_mappings_of_its_generation() {
    let (_dir, path) = new_path();
    run_to_end("keep mappings", &path);
}

#[test]
fn kept_mappings_are_limited() {
    let (_dir, path) = new_path();
    run_to_end("keep many mappings", &path);
}

#[test]
fn kept_mappings_are_released_when_address_space_runs_out() {
    let (_dir, path) = new_path();
    run_to_end("map in little address space", &path);
}

#[test]
fn kept_mappings_leave_address_space_for_one_that_may_grow() {
    let (_dir, path) = new_path();
    run_to_end("reserve much address space", &path);
}

#[test]
fn warm_load_makes_no_system_call() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    store.save("x", &filled(1000, 1f32)).unwrap();
    store.save("y", &filled(1000, 2f32)).unwrap();
    // Enough names for a table of several leaves.
    let x = store.load("x").unwrap();
    store.write(|txn| (0..1000).try_for_each(|i| txn.save_view(&format!("x.{i}"), &x))).unwrap();
    let Some(trace) = trace("load warm", &path, "cold") else { return };
    let cold = trace.between("cold", "warm");
    assert!(cold.iter().any(|call| call.starts_with("openat(")), "{cold:#?}");
    assert_eq!(trace.between("warm", "done"), [""; 0]);
}

/// Returns the flags that the kernel has for each mapping of a storage.
fn flags(storage: &Path) -> Vec<Vec<String>> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_own = false;
    let mut flags = Vec::new();
    for line in maps.lines() {
        match line.strip_prefix("VmFlags: ") {
            Some(found) if is_own => flags.push(found.split_whitespace().map(str::to_owned).collect()),
            Some(_) => {}
            // The first line of a mapping begins with its addresses.
            None if line.split(' ').next().is_some_and(|first| first.contains('-')) => {
                is_own = line.ends_with(storage.to_str().unwrap());
            }
            None => {}
        }
    }
    flags
}

#[test]
fn large_storages_are_read_in_huge_pages_except_at_random() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        eprintln!("skipped: this kernel has no huge pages");
        return;
    }
    let (_dir, path) = new_path();
    let writer = fast().create(&path).unwrap();
    writer.save("large", &filled(1 << 20, 1f32)).unwrap();
    writer.save("small", &filled(1 << 18, 2f32)).unwrap();
    let file = |tensor: &Tensor| {
        let dir = fs::canonicalize(&path).unwrap().join("storages");
        dir.join(format!("{:016x}.bin", tensor.storage_id().unwrap()))
    };
    let store = open_mapped(&path);
    let (large, small) = (store.load("large").unwrap(), store.load("small").unwrap());
    assert_eq!((large.as_slice::<f32>().unwrap()[9], small.as_slice::<f32>().unwrap()[9]), (1., 2.));
    let has = |tensor: &Tensor, flag: &str| {
        let found = flags(&file(tensor));
        // Advice for all of a storage leaves it one mapping.
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].iter().any(|found| found == flag)
    };
    assert!(has(&large, "hg") && !has(&small, "hg"));
    large.advise(Advice::Random);
    assert!(has(&large, "nh") && !has(&large, "hg"));
    large.advise(Advice::Normal);
    assert!(has(&large, "hg") && !has(&large, "nh"));
}
