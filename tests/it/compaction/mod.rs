//! Compaction: the bytes that are freed and the ones that are kept.

pub(crate) mod bounds;
pub(crate) mod concurrent;
mod full_disk;
mod joining;
pub(crate) mod killed;
mod leftovers;
mod planned;
pub(crate) mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ndarray::ArrayViewD;
use stridemap::maintenance::{Compacted, SkipReason, SpaceReason};
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::harness::{fast, new_fast_store, new_path, open_mapped};
use crate::random::Random;
use crate::support::{scaled, temporary};
use usage::{disk_usage, folder_bytes};

pub(crate) fn vector(n: usize, seed: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect(), &[n])
        .unwrap()
}

fn sum(tensor: &Tensor) -> u64 {
    tensor.read::<u32>().unwrap().into_iter().map(u64::from).sum()
}

/// Creates a store with a matrix of 4 MiB that has lost its name. The view `thin` has one in ten of its rows.
pub(crate) fn create_sparse_store(path: &Path, options: &StoreOptions) -> (Store, Vec<u32>) {
    let store = options.create(path).unwrap();
    let matrix = vector(1 << 20, 1).view([1 << 10, 1 << 10]).unwrap();
    store.save("matrix", &matrix).unwrap();
    let thin = store.load("matrix").unwrap().slice(0, Some(3), None, 10).unwrap();
    store.save_view("thin", &thin).unwrap();
    store.remove("matrix").unwrap();
    let elements = thin.read().unwrap();
    (store, elements)
}

pub(crate) fn files(dir: &Path) -> Vec<fs::Metadata> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect()
}

pub(crate) fn storage_bytes(path: &Path) -> u64 {
    files(&path.join("storages")).iter().map(fs::Metadata::len).sum()
}

pub(crate) type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(crate) fn content(store: &Store) -> Content {
    let load = |name: &String| {
        let tensor = store.load(name).unwrap();
        (tensor.size().to_vec(), tensor.to_bytes().unwrap())
    };
    store.names().unwrap().into_iter().map(|name| (name.clone(), load(&name))).collect()
}

pub(crate) fn assert_intact(store: &Store) {
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

/// Returns why files of storages have bytes that are not needed, and how many bytes.
fn reasons(store: &Store) -> Vec<(SpaceReason, u64)> {
    let spare = store.disk_usage().unwrap().spare.into_iter();
    let spare = spare.filter(|file| file.path.parent().unwrap().ends_with("storages"));
    spare.map(|file| (file.reason, file.spare_bytes)).collect()
}

#[test]
fn compaction_frees_unreferenced_bytes_on_disk() {
    let (_dir, path) = new_path();
    let (store, elements) = create_sparse_store(&path, &StoreOptions::new());
    let thin = store.load("thin").unwrap();
    store.save_view("part", &thin.slice(1, Some(100), Some(200), 3).unwrap().flip([0]).unwrap()).unwrap();
    store.gc().unwrap();
    let (bytes, blocks) = disk_usage(&path);
    let usage = store.disk_usage().unwrap();
    assert_eq!((usage.folder_bytes(), usage.reachable_bytes), (folder_bytes(&path), 103 * 4096));

    let mut written_bytes = 0;
    let compacted = store.compact(false, |bytes| written_bytes += bytes).unwrap();
    assert_eq!((compacted.storage_count, compacted.before_bytes), (1, 4 << 20), "{compacted:?}");
    assert_eq!((compacted.after_bytes, written_bytes), (103 * 4096, 103 * 4096));
    assert_eq!(compacted.skipped, []);
    let (bytes_now, blocks_now) = disk_usage(&path);
    assert!(bytes - bytes_now >= freed_bytes(&compacted) - 4096, "{bytes} bytes, now {bytes_now}");
    assert!(
        blocks - blocks_now >= freed_bytes(&compacted) - (64 << 10),
        "{blocks} in blocks, now {blocks_now}"
    );
    assert_eq!(store.disk_usage().unwrap().reclaimable_bytes, 0);
    assert_intact(&store);

    // Both views still share one storage, and the same elements.
    let mapped = open_mapped(&path);
    let (thin, part) = (mapped.load("thin").unwrap(), mapped.load("part").unwrap());
    assert_eq!((thin.stride(), part.stride()), (&[1024, 1][..], &[-1024, 3][..]));
    assert_eq!(thin.read::<u32>().unwrap(), elements);
    assert_eq!(thin.storage_id(), part.storage_id());
    assert!(thin.overlaps(&part));
    let (thin, part) =
        (ArrayViewD::<u32>::try_from(&thin).unwrap(), ArrayViewD::<u32>::try_from(&part).unwrap());
    assert!(std::ptr::eq(&thin[[102, 103]], &part[[0, 1]]));
    assert!(std::ptr::eq(&thin[[0, 199]], &part[[102, 33]]));
}

#[test]
fn compacted_storages_are_not_compacted_again() {
    let dir = temporary();
    let (store, _) = create_sparse_store(&dir.path().join("x.smap"), &fast());
    store.save("dense", &vector(100_000, 3)).unwrap();
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    let generation = store.generation();
    let again = store.compact(false, |_| panic!("something was written")).unwrap();
    assert_eq!((again.storage_count, again.before_bytes, again.collected.file_count), (0, 0, 0), "{again:?}");
    assert_eq!(store.generation(), generation);
}

#[test]
fn storages_with_little_to_gain_are_skipped() {
    let (_dir, _, store) = new_fast_store();
    for (name, kept) in [("three quarters and a bit", 77_000), ("three quarters", 75_000)] {
        store.save("all", &vector(100_000, 1)).unwrap();
        store.save_view(name, &store.load("all").unwrap().narrow(0, 0, kept).unwrap()).unwrap();
    }
    store.save("all", &vector(1500, 1)).unwrap();
    store.save_view("less than a block", &store.load("all").unwrap().narrow(0, 0, 600).unwrap()).unwrap();
    store.remove("all").unwrap();
    store.gc().unwrap();
    assert_eq!(
        reasons(&store),
        [(SpaceReason::Kept, 92_000), (SpaceReason::Unreached, 100_000), (SpaceReason::Kept, 3600)]
    );
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, freed_bytes(&compacted)), (1, 100_000), "{compacted:?}");
    let compacted = store.compact(true, |_| ()).unwrap();
    // All three are small, so they become one, in which two of them are aligned with 32 bytes each.
    assert_eq!((compacted.storage_count, compacted.new_storage_count), (3, 1), "{compacted:?}");
    assert_eq!(freed_bytes(&compacted), 92_000 + 3600 - 64);
    assert_eq!(reasons(&store), []);
}

#[test]
fn tensors_loaded_before_a_compaction_keep_their_elements_and_are_saved_as_copies() {
    let (_dir, path) = new_path();
    let (store, elements) = create_sparse_store(&path, &fast());
    let mapped = open_mapped(&path);
    let (before, before_mapped) = (store.load("thin").unwrap(), mapped.load("thin").unwrap());
    let lent = ArrayViewD::<u32>::try_from(&before_mapped).unwrap();
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    mapped.refresh().unwrap();
    store.gc().unwrap();
    assert_eq!(storage_bytes(&path), 103 * 4096);
    assert!(lent.iter().eq(&elements));
    assert_eq!(before.read::<u32>().unwrap(), elements);

    let conflict = store.save_view("view", &before.t().unwrap()).unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert!(conflict.to_string().contains("load the tensor again"), "{conflict}");
    store.save_view("view", &store.load("thin").unwrap().t().unwrap()).unwrap();
    store.save("copy", &before).unwrap();
    assert_eq!(store.load("copy").unwrap().read::<u32>().unwrap(), elements);
    assert_intact(&store);
}

#[test]
fn every_view_of_random_stores_reads_the_same() {
    let dir = temporary();
    let mut written_bytes = 0;
    for seed in 0..scaled("STRIDEMAP_TEST_RANDOM_INPUTS", 400) as u64 / 40 {
        let path = dir.path().join(format!("{seed}.smap"));
        let store = fast().create(&path).unwrap();
        let mut draws = Random::new(seed);
        let mut txn = store.begin().unwrap();
        for base in 0..8 {
            let n = 2000 + draws.below(20_000);
            let bytes: Vec<u8> = (0..n * 16).map(|_| draws.next() as u8).collect();
            let dtype =
                [DType::U8, DType::I16, DType::F32, DType::F64, DType::C64, DType::C128][draws.below(6)];
            let tensor = Tensor::from_bytes(dtype, &[n * 16 / dtype.itemsize()], &bytes).unwrap();
            txn.save(&format!("base.{base}"), &tensor).unwrap();
        }
        txn.commit().unwrap();
        let mut txn = store.begin().unwrap();
        for view in 0..60 {
            let base = store.load(&format!("base.{}", draws.below(8))).unwrap();
            txn.save_view(&format!("view.{view}"), &random_view(base, &mut draws)).unwrap();
        }
        for base in 0..8 {
            if draws.below(8) > 0 {
                txn.remove(&format!("base.{base}")).unwrap();
            }
        }
        txn.commit().unwrap();
        let before = content(&store);
        let shared = overlapping(&store);
        let compacted = store.compact(false, |bytes| written_bytes += bytes).unwrap();
        assert_eq!(compacted.skipped, []);
        assert_eq!(content(&store), before);
        assert_eq!(overlapping(&store), shared);
        assert_intact(&store);
        assert_eq!(store.compact(true, |bytes| written_bytes += bytes).unwrap().skipped, []);
        assert_eq!(content(&store), before);
        assert_eq!(overlapping(&store), shared);
        assert_eq!(store.compact(true, |_| ()).unwrap().storage_count, 0, "nothing is left to free");
        assert_intact(&store);
        let reopened = Store::open(&path).unwrap();
        assert_eq!(content(&reopened), before);
        assert_eq!(reopened.disk_usage().unwrap().folder_bytes(), folder_bytes(&path));
    }
    assert!(written_bytes > 0, "nothing was ever compacted");
}

/// Returns a part of a tensor as a matrix with steps, sometimes of a different dtype.
pub(crate) fn random_view(base: Tensor, draws: &mut Random) -> Tensor {
    let n = base.numel();
    let start = draws.below(n / 2);
    let columns = 4 + draws.below(60);
    let rows = 1 + draws.below(((n - start) / columns).clamp(1, 40));
    let part = base.narrow(0, start as isize, rows * columns).unwrap();
    let mut view = part.view([rows as isize, columns as isize]).unwrap();
    for axis in [0, 1] {
        let step = 1 + draws.below(4) as isize;
        let step = if draws.below(4) == 0 { -step } else { step };
        view = view.slice(axis, None, None, step).unwrap();
    }
    match draws.below(4) {
        0 => view.t().unwrap(),
        1 => view.select(0, 0).unwrap(),
        2 if view.is_contiguous() && view.stride().ends_with(&[1]) => view.view_dtype(DType::U8).unwrap(),
        _ => view,
    }
}

fn freed_bytes(compacted: &Compacted) -> u64 {
    compacted.before_bytes - compacted.after_bytes
}

/// Returns the names that share bytes with each name.
pub(crate) fn overlapping(store: &Store) -> Vec<Vec<String>> {
    let snapshot = store.snapshot();
    let names = snapshot.names().unwrap();
    names.iter().step_by(7).map(|name| snapshot.overlapping(name).unwrap()).collect()
}

#[test]
fn compaction_keeps_the_reserved_address_space() {
    let (_dir, path, store) = new_fast_store();
    let rows = |n: usize| vector(n * 256, 1).view([n as isize, 256]).unwrap();
    store.create_growable("all", DType::U32, &[0, 256], 1 << 20).unwrap();
    store.append("all", &rows(600)).unwrap();
    store.save_view("rows", &store.load("all").unwrap().narrow(0, 300, 300).unwrap()).unwrap();
    store.remove("all").unwrap();
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    let mapped = open_mapped(&path);
    let before = mapped.load("rows").unwrap();
    store.append("rows", &rows(20_000)).unwrap();
    mapped.refresh().unwrap();
    let after = mapped.load("rows").unwrap();
    assert_eq!((before.numel(), after.numel()), (300 * 256, 20_300 * 256));
    assert_eq!(before.as_slice::<u32>().unwrap().as_ptr(), after.as_slice::<u32>().unwrap().as_ptr());
}

#[test]
fn damaged_bytes_are_not_given_new_digests() {
    let damaged: [(&str, usize); 3] = [
        ("storages/0000000000000001.bin", (3 << 20) + 6 * 4096), // in the fourth chunk, beside a kept row
        ("storages/0000000000000001.sum", 17),
        ("storages/0000000000000001.bin", 3 * 4096), // an element of the first row
    ];
    for (file, at) in damaged {
        let (_dir, path) = new_path();
        let (store, _) = create_sparse_store(&path, &fast());
        let mut bytes = fs::read(path.join(file)).unwrap();
        bytes[at] ^= 1;
        fs::write(path.join(file), bytes).unwrap();
        let before = content(&store);
        let compacted = store.compact(false, |_| ()).unwrap();
        let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
        assert_eq!((compacted.storage_count, skipped.storage_id), (0, 1));
        let SkipReason::Damaged(finding) = &skipped.reason else { panic!("{skipped:?}") };
        assert!(finding.contains(file), "{finding}");
        assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1, "the damage is no longer found");
        assert_eq!(content(&store), before);
        assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 2, "a copy was left");
    }
}

#[test]
fn unreferenced_damage_is_dropped() {
    let (_dir, path, store) = new_fast_store();
    store.save("all", &vector(1 << 20, 1)).unwrap();
    store.save_view("end", &store.load("all").unwrap().narrow(0, -1000, 1000).unwrap()).unwrap();
    store.remove("all").unwrap();
    let file = path.join("storages/0000000000000001.bin");
    let mut bytes = fs::read(&file).unwrap();
    bytes[5] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    assert_intact(&store);
}

#[test]
fn mutable_storages_are_skipped_and_reported() {
    let (_dir, _, store) = new_fast_store();
    let all = store.create_tensor("all", DType::F32, &[100_000], StorageKind::Mutable).unwrap();
    all.lock_exclusive().unwrap().fill_(3).unwrap();
    store.save_view("part", &all.narrow(0, 0, 100).unwrap()).unwrap();
    assert_eq!(store.compact(false, |_| ()).unwrap().skipped, []);
    store.remove("all").unwrap();
    assert_eq!(reasons(&store), [(SpaceReason::Kept, 399_600)]);
    let compacted = store.compact(false, |_| ()).unwrap();
    let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
    assert_eq!((skipped.reclaimable_bytes, &skipped.reason), (399_600, &SkipReason::Mutable));
    // As the reason in the report advises.
    store.write(|txn| txn.save_as("part", &store.load("part").unwrap(), StorageKind::Mutable)).unwrap();
    store.gc().unwrap();
    assert_eq!(store.disk_usage().unwrap().reclaimable_bytes, 0);
}

#[test]
fn empty_tensors_and_empty_stores_can_be_compacted() {
    let (_dir, path, store) = new_fast_store();
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 0);
    store.save("all", &vector(10_000, 1)).unwrap();
    let all = store.load("all").unwrap();
    store.save_view("none", &all.narrow(0, 5000, 0).unwrap()).unwrap();
    store.remove("all").unwrap();
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes), (1, 0));
    assert_eq!(store.load("none").unwrap().size(), [0]);
    assert_eq!(storage_bytes(&path), 0);
    assert_intact(&store);
}
