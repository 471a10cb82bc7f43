//! Compactions that join small storages to one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use stridemap::maintenance::SkipReason;
use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};

use crate::compaction::{assert_intact, content, overlapping, random_view, vector};
use crate::harness::hooked::{Hooked, Quirks};
use crate::harness::{fast, new_fast_store, new_path};
use crate::random::Random;
use crate::support::scaled;

/// Returns the number of files of elements.
fn file_count(path: &Path) -> usize {
    let files = fs::read_dir(path.join("storages")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "bin")).count()
}

fn name_of(i: usize) -> String {
    format!("t.{i:04}")
}

/// Saves tensors of 1 to 40 elements in a commit each, and some views and ties of them.
fn save_one_by_one(store: &Store, count: usize) {
    for i in 0..count {
        store.save(&name_of(i), &vector(1 + i % 40, i as u32)).unwrap();
    }
    let mut txn = store.begin().unwrap();
    for i in (0..count).step_by(7) {
        let tensor = store.load(&name_of(i)).unwrap();
        txn.save_view(&format!("flipped.{i}"), &tensor.flip([0]).unwrap()).unwrap();
        txn.save_view(&format!("expanded.{i}"), &tensor.unsqueeze(0).unwrap().expand([3, -1]).unwrap())
            .unwrap();
        txn.copy(&name_of(i), &format!("tied.{i}")).unwrap();
    }
    txn.commit().unwrap();
}

#[test]
fn thousand_storages_of_small_commits_become_one() {
    let (_dir, path, store) = new_fast_store();
    save_one_by_one(&store, 1000);
    let (before, shared) = (content(&store), overlapping(&store));
    assert_eq!(file_count(&path), 1000);
    let mut written_bytes = 0;
    let compacted = store.compact(false, |bytes| written_bytes += bytes).unwrap();
    assert_eq!((compacted.storage_count, compacted.new_storage_count), (1000, 1), "{compacted:?}");
    assert_eq!(compacted.skipped, []);
    assert_eq!(file_count(&path), 1);
    assert_eq!(compacted.after_bytes, store.load("t.0000").unwrap().storage_nbytes());
    assert!(written_bytes <= 3 * compacted.after_bytes, "{written_bytes} bytes were written");
    assert_eq!((content(&store), overlapping(&store)), (before, shared));
    assert_intact(&store);
    // In the order of the first names on them. Every seventh has another one.
    let names = (0..1000).filter(|i| i % 7 != 0).map(name_of);
    let offsets: Vec<usize> = names.map(|name| store.load(&name).unwrap().storage_offset() * 4).collect();
    assert!(offsets.is_sorted() && offsets.iter().all(|offset| offset % 64 == 0), "{offsets:?}");
    let (x, tied) = (store.load("t.0007").unwrap(), store.load("tied.7").unwrap());
    assert!(x.overlaps(&tied) && !x.overlaps(&store.load("t.0008").unwrap()));
    assert_eq!(store.load("expanded.7").unwrap().stride(), [0, 1]);

    let again = store.compact(false, |_| panic!("something was written")).unwrap();
    assert_eq!((again.storage_count, again.new_storage_count), (0, 0));
    store.save("t.0007", &vector(5, 1)).unwrap();
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 0, "two storages are too few");
}

#[test]
fn few_small_storages_are_joined_only_if_all_are_compacted() {
    let (_dir, path, store) = new_fast_store();
    for (count, becomes) in [(15, 15), (16, 1)] {
        let first = file_count(&path);
        (first..count).for_each(|i| store.save(&name_of(i), &vector(3, 1)).unwrap());
        store.compact(false, |_| ()).unwrap();
        assert_eq!(file_count(&path), becomes);
    }
    store.save("other", &vector(3, 1)).unwrap();
    assert_eq!(store.compact(true, |_| ()).unwrap().storage_count, 2);
    assert_eq!(file_count(&path), 1);
    assert_eq!(store.compact(true, |_| ()).unwrap().storage_count, 0);
    assert_intact(&store);
}

#[test]
fn storages_that_must_stay_alone_are_not_joined() {
    let (_dir, path, store) = new_fast_store();
    save_one_by_one(&store, 20);
    store.save("large", &vector(1 << 20, 1)).unwrap();
    store.write(|txn| txn.save_as("mutable", &vector(5, 2), StorageKind::Mutable)).unwrap();
    store.write(|txn| txn.save_as("live", &vector(5, 3), StorageKind::Live)).unwrap();
    store.create_growable("log", DType::U32, &[0], 100).unwrap();
    store.append("log", &vector(5, 4)).unwrap();
    store.save("tagged", &vector(5, 5)).unwrap();
    store.write(|txn| txn.tag("v1")).unwrap();
    // The tag keeps the 21 small storages until now.
    let compacted = store.compact(true, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.skipped.len()), (0, 0), "{compacted:?}");
    store.untag("v1").unwrap();
    let alone = ["large", "mutable", "live", "log"];
    let ids = || alone.map(|name| store.load(name).unwrap().storage_id());
    let (before, ids_before) = (content(&store), ids());
    let compacted = store.compact(true, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.new_storage_count), (21, 1), "{compacted:?}");
    assert_eq!((content(&store), ids()), (before, ids_before));
    assert_eq!(file_count(&path), 5);
    store.append("log", &vector(1, 4)).unwrap();
    assert_intact(&store);
}

#[test]
fn damaged_small_storage_stays_alone_and_leaves_nothing_in_the_new_one() {
    let (_dir, path, store) = new_fast_store();
    save_one_by_one(&store, 30);
    let id = store.load("t.0012").unwrap().storage_id().unwrap();
    let file = path.join(format!("storages/{id:016x}.bin"));
    let mut bytes = fs::read(&file).unwrap();
    bytes[3] ^= 1;
    fs::write(&file, bytes).unwrap();
    let before = content(&store);
    let compacted = store.compact(false, |_| ()).unwrap();
    let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
    assert!(skipped.storage_id == id && matches!(skipped.reason, SkipReason::Damaged(_)), "{skipped:?}");
    assert_eq!((compacted.storage_count, file_count(&path)), (29, 2));
    assert_eq!(content(&store), before);
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
    let usage = store.disk_usage().unwrap();
    assert_eq!(usage.reclaimable_bytes, 0, "{usage:?}");
}

#[test]
fn joined_tensors_can_still_grow_be_removed_and_replaced() {
    let (_dir, path, store) = new_fast_store();
    save_one_by_one(&store, 40);
    store.compact(false, |_| ()).unwrap();
    assert_eq!(file_count(&path), 1);
    let (old, other) = (store.load("t.0010").unwrap(), store.load("t.0011").unwrap());
    assert_eq!(store.append("t.0010", &vector(2, 9)).unwrap(), 11..13);
    assert_eq!(store.append("t.0010", &vector(1, 8)).unwrap(), 13..14);
    let grown = store.load("t.0010").unwrap();
    assert!(!grown.shares_storage(&old) && other.shares_storage(&old));
    let expected = [vector(11, 10), vector(2, 9), vector(1, 8)].map(|rows| rows.read::<u32>().unwrap());
    assert_eq!(grown.read::<u32>().unwrap(), expected.concat());
    // A view of rows that follow others of the same tensor is not copied.
    store.save_view("part", &store.load("t.0020").unwrap().narrow(0, 0, 5).unwrap()).unwrap();
    store.remove("t.0021").unwrap();
    store.save("t.0022", &vector(1, 1)).unwrap();
    assert_intact(&store);
    let before = content(&store);
    let usage = store.disk_usage().unwrap();
    assert!(usage.reclaimable_bytes >= 4 * 45, "{usage:?}");
    store.compact(true, |_| ()).unwrap();
    assert_eq!(content(&store), before);
    assert_eq!(store.disk_usage().unwrap().reclaimable_bytes, 0);
}

#[test]
fn append_to_a_view_of_rows_that_others_have_is_refused_after_a_compaction_too() {
    // The names decide what is last in the joined storage.
    for others in ["a", "z"] {
        let (_dir, _, store) = new_fast_store();
        store.save("all", &vector(100, 1)).unwrap();
        store.save_view("first", &store.load("all").unwrap().narrow(0, 0, 50).unwrap()).unwrap();
        (0..20).for_each(|i| store.save(&format!("{others}.{i}"), &vector(1, 1)).unwrap());
        assert_eq!(store.compact(false, |_| ()).unwrap().new_storage_count, 1);
        let refused = store.append("first", &vector(1, 1)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains(" follows it in the same storage"), "{refused}");
    }
}

#[test]
fn tensor_with_ties_and_views_of_its_rows_grows_after_a_compaction_and_they_stay() {
    let (_dir, _, store) = new_fast_store();
    store
        .write(|txn| {
            txn.save("tied", &vector(10, 1))?;
            txn.copy("tied", "another")?;
            txn.save("small", &vector(3, 2))
        })
        .unwrap();
    store.save_view("rows", &store.load("tied").unwrap().narrow(0, 2, 5).unwrap()).unwrap();
    (0..20).for_each(|i| store.save(&name_of(i), &vector(1, 1)).unwrap());
    assert_eq!(store.compact(false, |_| ()).unwrap().new_storage_count, 1);
    let (before, rows) = (store.load("tied").unwrap().read::<u32>().unwrap(), vector(1, 9));
    assert_eq!(store.append("tied", &rows).unwrap(), 10..11);
    store.refresh().unwrap();
    let read = |name: &str| store.load(name).unwrap().read::<u32>().unwrap();
    assert_eq!(read("tied"), [&before[..], &rows.read().unwrap()].concat());
    assert_eq!((read("another"), read("rows")), (before.clone(), before[2..7].to_vec()));
}

#[test]
fn write_that_fails_in_the_file_of_small_storages_commits_nothing() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    // A chunk of 1 MiB is written after every third or fourth.
    (0..30).for_each(|i| store.save(&name_of(i), &vector(80_000, i as u32)).unwrap());
    let before = content(&store);
    for failing in 0..3 {
        let (generation, writes) = (store.generation(), AtomicUsize::new(0));
        let disk = Hooked::before(move |operation, path| {
            let is_data =
                operation == "write_all_at" && path.parent().is_some_and(|dir| dir.ends_with("storages"));
            match is_data && writes.fetch_add(1, Ordering::Relaxed) == failing {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        });
        let disk = Hooked { quirks: Quirks { reserves_nothing: true, ..Quirks::default() }, ..disk };
        let full = fast().disk(Arc::new(disk)).open(&path).unwrap().compact(false, |_| ()).unwrap_err();
        assert_eq!(full.io_error().unwrap().kind(), io::ErrorKind::StorageFull, "{full}");
        store.refresh().unwrap();
        assert_eq!((store.generation(), content(&store)), (generation, before.clone()));
        assert_intact(&store);
    }
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 30);
    assert_eq!(content(&store), before);
}

#[test]
fn small_storage_that_cannot_be_opened_to_write_is_left_alone() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    save_one_by_one(&store, 40);
    let before = content(&store);
    let disk = Hooked::before(|operation, path| {
        match operation.starts_with("open") && path.ends_with("storages/0000000000000003.bin") {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    });
    let compacted = fast().disk(Arc::new(disk)).open(&path).unwrap().compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.new_storage_count), (39, 1));
    store.refresh().unwrap();
    assert_eq!(content(&store), before);
    assert_intact(&store);
}

#[test]
fn random_views_on_many_small_storages_read_the_same_after_a_compaction() {
    for seed in 0..scaled("STRIDEMAP_TEST_RANDOM_INPUTS", 400) as u64 / 40 {
        let (_dir, path) = new_path();
        let store = fast().create(&path).unwrap();
        let mut draws = Random::new(seed);
        let base_count = 16 + draws.below(200);
        let base = |i: usize| format!("base.{i}");
        for i in 0..base_count {
            let n = 200 + draws.below(300);
            let bytes: Vec<u8> = (0..n * 16).map(|_| draws.next() as u8).collect();
            let dtype =
                [DType::U8, DType::I16, DType::F32, DType::F64, DType::C64, DType::C128][draws.below(6)];
            let tensor = Tensor::from_bytes(dtype, &[n * 16 / dtype.itemsize()], &bytes).unwrap();
            store.save(&base(i), &tensor).unwrap();
        }
        let mut txn = store.begin().unwrap();
        for view in 0..100 {
            let of = store.load(&base(draws.below(base_count))).unwrap();
            txn.save_view(&format!("view.{view}"), &random_view(of, &mut draws)).unwrap();
        }
        for i in 0..base_count {
            if draws.below(3) > 0 {
                txn.remove(&base(i)).unwrap();
            }
        }
        txn.commit().unwrap();
        let (before, shared) = (content(&store), overlapping(&store));
        let compacted = store.compact(draws.below(2) == 0, |_| ()).unwrap();
        assert_eq!(compacted.skipped, []);
        assert!(compacted.new_storage_count <= 1, "seed {seed}: {compacted:?}");
        assert_eq!((content(&store), overlapping(&store)), (before, shared), "seed {seed}");
        assert_intact(&store);
        assert_eq!(content(&Store::open(&path).unwrap()), content(&store));
    }
}
