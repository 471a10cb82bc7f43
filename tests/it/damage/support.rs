//! Small stores with a file of every kind, and their content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stridemap::maintenance::{Finding, Verification};
use stridemap::{DType, Index, StorageKind, Store, Tensor};

use crate::harness::fast;

/// The size and the elements of each tensor, by name.
pub(crate) type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(crate) fn verify(path: &Path) -> Verification {
    fast().verify(path, |_| ()).unwrap()
}

/// Returns the tensors that load and can be read.
pub(crate) fn readable(path: &Path, names: impl Iterator<Item = String>) -> Content {
    let Ok(store) = fast().open(path) else { return Content::new() };
    let read = |name: &str| -> stridemap::Result<(Vec<usize>, Vec<u8>)> {
        let tensor = store.load(name)?;
        Ok((tensor.size().to_vec(), tensor.to_bytes()?))
    };
    names.filter_map(|name| Some((name.clone(), read(&name).ok()?))).collect()
}

pub(crate) fn content(path: &Path) -> Content {
    let names = fast().open(path).unwrap().names().unwrap();
    readable(path, names.into_iter())
}

/// Returns those of the expected tensors that cannot be read any more, or have changed.
pub(crate) fn lost_or_changed(path: &Path, expected: &Content) -> BTreeSet<String> {
    let found = readable(path, expected.keys().cloned());
    let is_lost = |name: &&String| found.get(*name) != expected.get(*name);
    expected.keys().filter(is_lost).cloned().collect()
}

pub(crate) fn affected(finding: &Finding, expected: &Content) -> BTreeSet<String> {
    expected.keys().filter(|name| finding.affected.contains(name)).cloned().collect()
}

/// Creates a table of names over a few bytes of one storage, and a manifest over it. The manifest adds tensors on
/// their own storages, including a mutable and a live one, replaces a header, and removes one.
pub(crate) fn create_small_store(path: &Path) -> Content {
    let store = fast().create(path).unwrap();
    store.save("row", &Tensor::from_vec((0..8u8).collect(), &[8]).unwrap()).unwrap();
    store.save("alone", &Tensor::from_vec(vec![1u8, 2, 3], &[3]).unwrap()).unwrap();
    let (row, alone) = (store.load("row").unwrap(), store.load("alone").unwrap());
    let mut txn = store.begin().unwrap();
    for i in 0..66 {
        txn.save_view(&format!("v{i}"), &row.index([Index::from(i % 8)]).unwrap()).unwrap();
    }
    txn.save_view("last", &alone.flip([0]).unwrap_or(alone)).unwrap();
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("later", &Tensor::from_vec(vec![5u8, 6, 7, 8], &[2, 2]).unwrap()).unwrap();
    txn.save_as("counts", &Tensor::from_vec(vec![1i32, 2], &[2]).unwrap(), StorageKind::Mutable).unwrap();
    let _ = txn.create_tensor("shared", DType::I32, &[2], StorageKind::Live).unwrap();
    txn.save_view("v7", &row.index([Index::from(1)]).unwrap()).unwrap();
    txn.remove("v9").unwrap();
    txn.set_attribute("author", "nobody").unwrap();
    txn.commit().unwrap();
    drop((store, row));
    fast().open(path).unwrap().gc().unwrap();
    content(path)
}

pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let listed = |dir: &str| fs::read_dir(path.join(dir)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = listed("meta").chain(listed("storages")).collect();
    files.push(path.join("FORMAT"));
    files.sort();
    files
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, &target).map(drop).unwrap() }
    }
}

/// Repairs the store. Then it must verify, every tensor that is not reported lost must have its old elements, and the
/// next commit must succeed. Returns the lost tensors.
pub(crate) fn assert_repaired(path: &Path, expected: &Content, what: &str) -> BTreeSet<String> {
    let before = verify(path);
    assert!(!before.findings.is_empty(), "{what}: no finding");
    let plan = fast().plan_repair(path, |_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!plan.is_empty(), "{what}: nothing to repair");
    assert_eq!(verify(path).findings, before.findings, "{what}: a plan changed something");
    let done = fast().repair(path, |_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((&done.remedies, &done.losses), (&plan.remedies, &plan.losses), "{what}");
    assert_eq!(verify(path).findings, [], "{what}: {done:?}");
    assert!(fast().plan_repair(path, |_| ()).unwrap().is_empty(), "{what}");
    let gone: BTreeSet<String> = {
        let store = fast().open(path).unwrap();
        let left: BTreeSet<String> = store.names().unwrap().into_iter().collect();
        assert!(left.iter().all(|name| expected.contains_key(name)), "{what}: {left:?}");
        expected.keys().filter(|name| !left.contains(*name)).cloned().collect()
    };
    let said: BTreeSet<String> = done.losses.iter().flat_map(|loss| loss.names.clone()).collect();
    assert!(said.is_subset(&gone), "{what}: {done:?}");
    // Only damage to a table can lose tensors of unknown names.
    let is_table_lost =
        done.losses.iter().any(|loss| loss.reason.contains("the changes that only this file records"));
    let unnamed: usize = done.losses.iter().map(|loss| lost_records(&loss.reason)).sum();
    assert!(is_table_lost || gone.difference(&said).count() <= unnamed, "{what}: {done:?}");
    assert_eq!(lost_or_changed(path, expected), gone, "{what}: other elements");
    for name in &said {
        assert!(before.findings.iter().any(|finding| finding.affected.contains(name)), "{what}: {name}");
    }
    let store = fast().open(path).unwrap();
    store.save("after", &Tensor::from_vec(vec![9u8], &[1]).unwrap()).unwrap();
    store.gc().unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{what}: after a commit");
    gone
}

/// Returns how many records of tensors a loss says that a table has lost.
pub(crate) fn lost_records(reason: &str) -> usize {
    let count = reason.strip_prefix("the records of up to ").and_then(|rest| rest.split(' ').next());
    count.map_or(0, |count| count.parse().unwrap())
}

/// Returns the number in a variable, or the default.
pub(crate) fn setting(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Creates a store of one storage of three chunks and a tail, with views of parts of it.
pub(crate) fn create_chunked_store(path: &Path) -> Content {
    let store = fast().create(path).unwrap();
    let elements = (3 << 18) + 100;
    let all: Vec<u32> = (0..elements as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    store.save("all", &Tensor::from_vec(all, &[elements]).unwrap()).unwrap();
    let loaded = store.load("all").unwrap();
    let part =
        |start: isize, stop: isize, step: isize| loaded.slice(0, Some(start), Some(stop), step).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 0..3isize {
        txn.save_view(&format!("chunk{i}"), &part(i << 18, (i + 1) << 18, 1)).unwrap();
    }
    txn.save_view("tail", &part(3 << 18, elements as isize, 1)).unwrap();
    // One element in the first chunk and one in the third, but none in the second.
    txn.save_view("ends", &part(5, (2 << 18) + 6, 2 << 18)).unwrap();
    txn.save_view("none", &part(7, 7, 1)).unwrap();
    txn.commit().unwrap();
    drop((store, loaded));
    Store::open(path).unwrap().gc().unwrap();
    content(path)
}
