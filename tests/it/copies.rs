//! Copies of a store, while others change it and while nobody does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{iter, thread};

use stridemap::maintenance::Copied;
use stridemap::{
    DType, Durability, ErrorKind, Snapshot, StorageKind, Store, StoreOptions, Tensor, TensorInfo,
};
use stridemap_format::{Manifest, Marker, StorageRecord};

use crate::external::{Adopted, anywhere, beside, weight};
use crate::full_disk::SmallDisk;
use crate::processes::{hear, say, start};
use crate::refusals::assert_refused;
use crate::support::temporary;

fn vector(n: usize, value: i64) -> Tensor {
    Tensor::from_vec(vec![value; n], &[n]).unwrap()
}

fn copy(store: &Store, path: &Path) -> Copied {
    store.copy_to(path, |_| ()).unwrap()
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What each header says, but for the id of its storage.
fn header(info: &TensorInfo) -> impl PartialEq + std::fmt::Debug {
    let (size, stride) = (info.size().to_vec(), info.stride().to_vec());
    (info.dtype, size, stride, info.storage_offset(), info.dim_names.clone())
}

/// That one is a copy of the other: the same headers over storages of the same kinds, shared in the same way, with the
/// same elements.
#[track_caller]
fn assert_copy(copy: &Store, original: &Snapshot) {
    let snapshot = copy.snapshot();
    assert_eq!(copy.verify(|_| ()).unwrap().findings, []);
    assert_eq!(snapshot.attributes(), original.attributes());
    let infos = |snapshot: &Snapshot| -> Vec<TensorInfo> {
        snapshot.tensors("").unwrap().map(Result::unwrap).collect()
    };
    let (copies, originals) = (infos(&snapshot), infos(original));
    let mut ids = BTreeMap::new();
    assert_eq!(copies.len(), originals.len());
    for (copied, original_info) in iter::zip(&copies, &originals) {
        assert_eq!(copied.name, original_info.name);
        assert_eq!(header(copied), header(original_info), "{}", copied.name);
        let id = *ids.entry(original_info.storage_id).or_insert(copied.storage_id);
        assert_eq!(id, copied.storage_id, "{}", copied.name);
        let bytes = |snapshot: &Snapshot| snapshot.load(&copied.name).unwrap().to_bytes().unwrap();
        assert!(bytes(&snapshot) == bytes(original), "{}", copied.name);
    }
    let storages = |snapshot: &Snapshot| -> BTreeMap<u64, _> {
        let infos = snapshot.storages().map(Result::unwrap);
        infos
            .map(|info| (info.id, (info.kind, info.size_bytes, info.offset_bytes, info.tensor_count)))
            .collect()
    };
    let expected: BTreeMap<u64, _> =
        storages(original).into_iter().map(|(id, storage)| (ids[&id], storage)).collect();
    assert_eq!(storages(&snapshot), expected);
}

/// The storages of the newest manifest, which has no table underneath.
fn records(path: &Path) -> Vec<StorageRecord> {
    let marker = Marker::decode(&fs::read(path.join("FORMAT")).unwrap()).unwrap();
    let name = names_in(&path.join("meta")).pop().unwrap();
    let number = u64::from_str_radix(name.strip_suffix(".man").unwrap(), 16).unwrap();
    let bytes = fs::read(path.join("meta").join(name)).unwrap();
    let manifest = Manifest::decode(&bytes, marker.uuid, number).unwrap();
    manifest.storages.into_values().flatten().collect()
}

#[test]
fn copy_has_every_kind_of_storage_with_its_headers_and_its_sharing() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let x = Tensor::from_vec((0..24u16).collect(), &[4, 6]).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &x.refine_names(&["row", "column"]).unwrap()).unwrap();
    txn.save("scalar", &Tensor::from_vec(vec![2.5f64], &[]).unwrap()).unwrap();
    txn.save("none", &Tensor::from_vec(Vec::<u8>::new(), &[0, 3]).unwrap()).unwrap();
    let saved = txn.load("x").unwrap();
    txn.save_view("x.t", &saved.t().unwrap()).unwrap();
    txn.save_view("x.flipped", &saved.flip([0, 1]).unwrap()).unwrap();
    txn.copy("x", "tied").unwrap();
    txn.save("large", &vector(700_001, 7)).unwrap();
    txn.set_attribute("epoch", "12").unwrap();
    txn.commit().unwrap();
    store.create_growable("log", DType::I64, &[0, 2], 1_000_000).unwrap();
    store.append("log", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[2, 2]).unwrap()).unwrap();
    store.save_as("mutable", &vector(300_000, 5), StorageKind::Mutable).unwrap();
    store
        .save_view("mutable.half", &store.load("mutable").unwrap().slice(0, None, None, 2).unwrap())
        .unwrap();
    store.save_as("live", &vector(1000, 6), StorageKind::Live).unwrap();
    store.remove("tied").unwrap();

    let path = adopted.dir.path().join("copy.smap");
    let mut told_bytes = 0;
    let copied = store.copy_to(&path, |bytes| told_bytes += bytes).unwrap();
    let snapshot = store.snapshot();
    let storages = snapshot.storages().map(Result::unwrap);
    let own_bytes: u64 =
        storages.filter(|info| info.kind != StorageKind::External).map(|info| info.size_bytes).sum();
    assert_eq!((copied.tensor_count, copied.copied_bytes + copied.shared_bytes), (12, own_bytes));
    assert_eq!(told_bytes, own_bytes);
    let there = beside().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    assert_ne!(there.uuid(), store.uuid());
    // Digests and reservations among them.
    let sorted = |path| {
        let mut records: Vec<String> = records(path).iter().map(|record| format!("{record:?}")).collect();
        records.sort();
        records
    };
    assert_eq!(sorted(&path), sorted(&adopted.path));
    assert_eq!(names_in(adopted.dir.path()), ["copy.smap", "model.safetensors", "model.smap"]);

    // Each goes on by itself.
    there.append("log", &Tensor::from_vec(vec![5i64, 6], &[1, 2]).unwrap()).unwrap();
    there.load("mutable").unwrap().lock_exclusive().unwrap().fill_(9).unwrap();
    assert_eq!(store.load("log").unwrap().size(), [2, 2]);
    assert_eq!(store.load("mutable").unwrap().get::<i64>(&[0]).unwrap(), 5);
    assert_eq!(there.load("weight").unwrap().read::<f32>().unwrap(), weight());
    assert_eq!(there.gc().unwrap().file_count, 0);
}

#[test]
fn empty_store_and_one_of_many_storages_are_copied() {
    let dir = temporary();
    let options = StoreOptions::new().durability(Durability::Process);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    assert_eq!(copy(&store, &dir.path().join("empty.smap")), Copied::default());
    assert_eq!(Store::open(dir.path().join("empty.smap")).unwrap().generation(), 1);

    let mut txn = store.begin().unwrap();
    for i in 0..150 {
        txn.save_as(&format!("own.{i}"), &vector(10, i), StorageKind::Mutable).unwrap();
    }
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    // Views of all of them come last, when the storages have their ids.
    for i in 0..150 {
        let own = store.load(&format!("own.{i}")).unwrap();
        txn.save_view(&format!("view.{i}"), &own.slice(0, None, None, -1).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    let path = dir.path().join("copy.smap");
    assert_eq!(copy(&store, &path).tensor_count, 300);
    assert_copy(&Store::open(&path).unwrap(), &store.snapshot());
}

#[test]
fn headers_are_copied_some_at_a_time() {
    let dir = temporary();
    let options = StoreOptions::new().durability(Durability::Process);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &vector(2, 1)).unwrap();
    let count = (1 << 17) + 100;
    for i in 0..count {
        txn.copy("x", &format!("tied.{i}")).unwrap();
    }
    txn.commit().unwrap();
    let path = dir.path().join("copy.smap");
    assert_eq!(copy(&store, &path).tensor_count, count + 1);
    let there = Store::open(&path).unwrap();
    let storages: Vec<_> = there.snapshot().storages().map(Result::unwrap).collect();
    assert_eq!((storages.len(), storages[0].tensor_count), (1, count + 1));
    assert_eq!(there.names().unwrap(), store.names().unwrap());
    assert_eq!(there.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn snapshot_is_copied_as_it_was_and_a_handle_as_the_store_is() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &vector(1_000_000, 1)).unwrap();
    store.create_growable("log", DType::I64, &[0], 0).unwrap();
    store.append("log", &vector(3, 1)).unwrap();
    let (snapshot, other) = (store.snapshot(), Store::open(&path).unwrap());
    other.append("log", &vector(200_000, 2)).unwrap();
    other.save("x", &vector(10, 2)).unwrap();
    other.compact(|_| ()).unwrap();
    other.gc().unwrap();

    let (then, now) = (dir.path().join("then.smap"), dir.path().join("now.smap"));
    snapshot.copy_to(&then, |_| ()).unwrap();
    let generation = store.generation();
    copy(&store, &now);
    assert_eq!(store.generation(), generation, "the handle moved");
    assert_copy(&Store::open(&then).unwrap(), &snapshot);
    assert_copy(&Store::open(&now).unwrap(), &other.snapshot());
    assert_eq!(Store::open(&then).unwrap().load("log").unwrap().size(), [3]);
}

#[test]
fn copy_of_some_tensors_has_no_byte_of_the_others() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let matrix = Tensor::from_vec((0..4000i32).collect(), &[40, 100]).unwrap();
    txn.save("matrix", &matrix).unwrap();
    txn.save("secret", &Tensor::from_vec(b"nobody is to know".to_vec(), &[17]).unwrap()).unwrap();
    let saved = txn.load("matrix").unwrap();
    let column = saved.select(1, 7).unwrap();
    txn.save_view("column", &column).unwrap();
    txn.save_view("column.flipped", &column.flip([0]).unwrap()).unwrap();
    txn.commit().unwrap();
    store.save_as("counts", &vector(9, 3), StorageKind::Live).unwrap();
    store.save_view("counts.half", &store.load("counts").unwrap().narrow(0, 0, 4).unwrap()).unwrap();

    let path = dir.path().join("copy.smap");
    let names = ["column.flipped", "counts.half", "column", "column"];
    let copied = store.snapshot().copy_tensors_to(&path, &names, |_| ()).unwrap();
    // The column begins where it did in its cache line.
    let own_bytes = 7 * 4 + 40 * 4 + 9 * 8;
    assert_eq!((copied.tensor_count, copied.copied_bytes, copied.shared_bytes), (3, own_bytes, 0));
    let there = Store::open(&path).unwrap();
    assert_eq!(there.names().unwrap(), ["column", "column.flipped", "counts.half"]);
    for name in &names {
        let bytes = |store: &Store| store.load(name).unwrap().to_bytes().unwrap();
        assert_eq!(bytes(&there), bytes(&store), "{name}");
    }
    assert_eq!(there.snapshot().overlapping("column").unwrap(), ["column.flipped"]);
    assert_eq!(there.verify(|_| ()).unwrap().findings, []);
    for name in names_in(&path.join("storages")) {
        let bytes = fs::read(path.join("storages").join(name)).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"nobody"));
    }
    // Where every byte is reached, strides stay.
    let path = dir.path().join("whole.smap");
    let names = ["column", "column.flipped", "matrix", "secret"];
    store.snapshot().copy_tensors_to(&path, &names, |_| ()).unwrap();
    assert_eq!(Store::open(&path).unwrap().load("column").unwrap().stride(), [100]);

    let refused = store.snapshot().copy_tensors_to(dir.path().join("no.smap"), &["colum"], |_| ());
    assert_refused(refused, ErrorKind::NameNotFound, &["\"colum\"", "\"column\""]);
}

#[test]
fn what_is_at_the_path_is_refused_and_stays() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.save("x", &vector(3, 1)).unwrap();
    fs::write(dir.path().join("file"), "text").unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    let before = names_in(dir.path());
    for name in ["file", "empty", "link", "x.smap", "."] {
        let refused = store.copy_to(dir.path().join(name), |_| panic!("an element was read"));
        assert_refused(
            refused,
            ErrorKind::AlreadyExists,
            &["the path already exists", "choose a different path"],
        );
    }
    // Something came while elements were copied.
    let path = dir.path().join("late.smap");
    let refused = store.copy_to(&path, |_| fs::write(&path, "text").unwrap());
    assert_refused(refused, ErrorKind::AlreadyExists, &["late.smap: the path already exists"]);
    assert_eq!(fs::read(&path).unwrap(), b"text");
    fs::remove_file(&path).unwrap();
    let refused = store.copy_to(dir.path().join("no/such.smap"), |_| ());
    assert_refused(refused, ErrorKind::Io, &["No such file", "/no"]);
    assert_eq!(names_in(dir.path()), before);
}

#[test]
fn damage_is_an_error_and_not_in_the_copy() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("whole", &vector(600_000, 1)).unwrap();
    store.save("x", &vector(600_000, 1)).unwrap();
    let file = File::options().write(true).open(path.join("storages/0000000000000002.bin")).unwrap();
    file.write_all_at(b"x", 3_000_000).unwrap();
    let copy = dir.path().join("copy.smap");
    let parts = ["\"x\"", "storages/0000000000000002.bin at byte 2097152", "F-25"];
    assert_refused(store.copy_to(&copy, |_| ()), ErrorKind::Corrupt, &parts);
    assert_refused(store.snapshot().copy_tensors_to(&copy, &["x"], |_| ()), ErrorKind::Corrupt, &parts);
    assert_eq!(names_in(dir.path()), ["x.smap"]);
    store.snapshot().copy_tensors_to(&copy, &["whole"], |_| ()).unwrap();
    assert_eq!(Store::open(&copy).unwrap().verify(|_| ()).unwrap().findings, []);
    fs::remove_file(path.join("storages/0000000000000002.sum")).unwrap();
    let refused = store.copy_to(dir.path().join("again.smap"), |_| ());
    assert_refused(refused, ErrorKind::Corrupt, &["0000000000000002.sum"]);
}

#[test]
fn copy_that_ends_early_leaves_nothing() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.save("x", &vector(3, 1)).unwrap();
    store.save_as("counts", &vector(3, 1), StorageKind::Mutable).unwrap();
    let path = dir.path().join("copy.smap");
    let panicked = catch_unwind(AssertUnwindSafe(|| store.copy_to(&path, |_| panic!("of the caller"))));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "of the caller");
    let counts = store.load("counts").unwrap();
    let guard = counts.lock_exclusive().unwrap();
    assert_refused(store.copy_to(&path, |_| ()), ErrorKind::Busy, &["\"counts\"", "exclusive guard"]);
    drop(guard);
    assert_eq!(names_in(dir.path()), ["x.smap"]);
    let guard = counts.lock_shared().unwrap();
    copy(&store, &path);
    drop(guard);
}

#[test]
fn case_07_copy_to_a_full_disk_is_an_error_that_leaves_nothing() {
    let Some(disk) = SmallDisk::mount("6m") else { return };
    let dir = temporary();
    for kind in [StorageKind::Sealed, StorageKind::Live] {
        let store = Store::create(dir.path().join(kind.name())).unwrap();
        store.save("small", &vector(100_000, 1)).unwrap();
        store.save_as("x", &vector(1 << 20, 1), kind).unwrap();
        let refused = store.copy_to(disk.path.join("copy.smap"), |_| ());
        assert_refused(refused, ErrorKind::Io, &["copy.smap", "\"x\"", "No space left"]);
        assert_eq!(names_in(&disk.path), [""; 0]);
        let copied =
            store.snapshot().copy_tensors_to(disk.path.join("copy.smap"), &["small"], |_| ()).unwrap();
        assert_eq!(copied.copied_bytes, 800_000);
        fs::remove_dir_all(disk.path.join("copy.smap")).unwrap();
    }
}

#[test]
fn external_file_is_recorded_from_where_the_copy_is() {
    let adopted = Adopted::new();
    let elsewhere = temporary();
    let path = elsewhere.path().join("copy.smap");
    let refused = Store::open(&adopted.path).unwrap().copy_to(&path, |_| ());
    assert_refused(refused, ErrorKind::ExternalRefused, &["StoreOptions::external"]);
    let refused = adopted.open().copy_to(&path, |_| ());
    assert_refused(refused, ErrorKind::ExternalRefused, &["ExternalFiles::Anywhere"]);
    assert_eq!(names_in(elsewhere.path()), [""; 0]);
    let store = anywhere().open(&adopted.path).unwrap();
    let copied = copy(&store, &path);
    assert_eq!((copied.tensor_count, copied.copied_bytes, copied.shared_bytes), (2, 0, 0));
    let there = anywhere().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    let file = there.snapshot().storages().next().unwrap().unwrap().file;
    assert_eq!(fs::canonicalize(file).unwrap(), fs::canonicalize(&adopted.file).unwrap());
    crate::external::write_model(&adopted.file);
    let refused = store.copy_to(elsewhere.path().join("late.smap"), |_| ());
    assert_refused(refused, ErrorKind::ExternalChanged, &["\"bias\"", "adopted"]);
}

#[test]
fn copy_of_a_store_that_is_renamed_meanwhile_is_of_that_store() {
    let dir = temporary();
    let (path, moved, link) =
        (dir.path().join("x.smap"), dir.path().join("moved.smap"), dir.path().join("link"));
    let store = Store::create(&path).unwrap();
    std::os::unix::fs::symlink("x.smap", &link).unwrap();
    store.save("a", &vector(1_000_000, 1)).unwrap();
    store.save("b", &vector(1_000_000, 2)).unwrap();
    let handle = Store::open(&link).unwrap();
    let other = Store::create(dir.path().join("other.smap")).unwrap();
    other.save("b", &vector(1_000_000, 3)).unwrap();
    drop(other);
    let copied = dir.path().join("copy.smap");
    let mut is_moved = false;
    let swap = |_| {
        if !std::mem::replace(&mut is_moved, true) {
            fs::rename(&path, &moved).unwrap();
            fs::rename(dir.path().join("other.smap"), &path).unwrap();
        }
    };
    handle.copy_to(&copied, swap).unwrap();
    assert!(is_moved);
    assert_copy(&Store::open(&copied).unwrap(), &store.snapshot());
}

/// Changes everything in one commit, so that all of a generation says its number; unless another is faster.
fn change(store: &Store) {
    match try_change(store) {
        Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NameNotFound) => {}
        changed => changed.unwrap(),
    }
}

fn try_change(store: &Store) -> stridemap::Result<()> {
    store.refresh()?;
    let generation = store.snapshot();
    let number = generation.attributes()["number"].parse::<i64>().unwrap() + 1;
    let mut txn = store.begin()?;
    txn.expect_generation(generation.generation());
    for i in 1..6 {
        txn.save(&format!("x.{i}"), &vector(3000 * i, number))?;
    }
    // One of several generations keeps each storage, and compactions have something to do.
    txn.save(&format!("kept.{}", number % 5), &vector(100, number))?;
    txn.save("large", &vector(1 << 19, number))?;
    txn.append("log", &vector(1, number))?;
    match number % 2 {
        0 => txn.save("even", &vector(1, number))?,
        _ => txn.remove("even")?,
    }
    txn.set_attribute("number", &number.to_string())?;
    txn.commit().map(drop)
}

/// That all of it is of one generation; which.
fn number_of(store: &Store) -> i64 {
    let number: i64 = store.attributes()["number"].parse().unwrap();
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

/// What a started process does; false for another's role.
pub(crate) fn play(role: &str, path: &Path) -> bool {
    if role != "change for copies" {
        return false;
    }
    let store = StoreOptions::new().durability(Durability::Process).open(path).unwrap();
    change(&store);
    say("ready");
    loop {
        change(&store);
    }
}

/// Beside the copies of the library those of `cp -r` are made, which may be anything: how many do not open is printed.
#[test]
fn every_copy_of_a_store_that_others_change_is_one_generation_of_it() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let options = StoreOptions::new().durability(Durability::Process);
    let store = options.create(&path).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 1..6 {
        txn.save(&format!("x.{i}"), &vector(3000 * i, 0)).unwrap();
    }
    txn.save("kept.0", &vector(100, 0)).unwrap();
    txn.save("large", &vector(1 << 19, 0)).unwrap();
    txn.create_growable("log", DType::I64, &[1], 0).unwrap();
    txn.save("even", &vector(1, 0)).unwrap();
    txn.set_attribute("number", "0").unwrap();
    txn.commit().unwrap();

    let mut writers: Vec<_> = (0..2).map(|_| start("change for copies", &path)).collect();
    for writer in &mut writers {
        assert_eq!(hear(&mut BufReader::new(writer.stdout.take().unwrap())), "ready");
    }
    let is_done = AtomicBool::new(false);
    let mut numbers = Vec::new();
    let mut torn_count = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let store = options.open(&path).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                store.compact(|_| ()).unwrap();
                store.gc().unwrap();
            }
        });
        let copied = catch_unwind(AssertUnwindSafe(|| {
            let held = store.snapshot();
            let mut i = 0;
            while i < 24 || numbers.first() == numbers.last() {
                let place: PathBuf = dir.path().join(format!("copy.{i}"));
                store.copy_to(&place, |_| ()).unwrap();
                numbers.push(number_of(&Store::open(&place).unwrap()));
                fs::remove_dir_all(&place).unwrap();
                if i % 8 == 0 {
                    held.copy_to(&place, |_| ()).unwrap();
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
        // Before anything is asserted, or the others would go on for ever.
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
