//! Small stores with a file of every kind, and their content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stridemap::maintenance::{Finding, Salvaged, Verification};
use stridemap::{DType, Index, StorageKind, Store, Tensor};

use crate::harness::fast;

/// The size and the elements of each tensor, by name.
pub(crate) type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(crate) fn verify(path: &Path) -> Verification {
    fast().verify(path, |_| ()).unwrap()
}

/// Returns the tensors that load and can be read, even if a change of them was interrupted.
pub(crate) fn readable(path: &Path, names: impl Iterator<Item = String>) -> Content {
    let Ok(store) = fast().open(path) else { return Content::new() };
    let read = |name: &str| -> stridemap::Result<(Vec<usize>, Vec<u8>)> {
        let tensor = store.load(name)?.allow_interrupted();
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
    expected.keys().filter(|name| finding.affects(name)).cloned().collect()
}

/// Creates a table of names over a few bytes of one storage, of a growable tensor and of two names of one tensor, and a
/// manifest over it. The manifest adds tensors on their own storages, including a mutable and a live one, replaces a
/// header, and removes one.
pub(crate) fn create_small_store(path: &Path) -> Content {
    let store = fast().create(path).unwrap();
    store.save("row", &Tensor::from_vec((0..8u8).collect(), &[8]).unwrap()).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("alone", &Tensor::from_vec(vec![1u8, 2, 3], &[3]).unwrap()).unwrap();
    txn.create_growable("log", DType::U16, &[0, 2], 100).unwrap();
    txn.commit().unwrap();
    let (row, alone) = (store.load("row").unwrap(), store.load("alone").unwrap());
    let mut txn = store.begin().unwrap();
    for i in 0..66 {
        txn.save_view(&format!("v{i}"), &row.index([Index::from(i % 8)]).unwrap()).unwrap();
    }
    txn.append("log", &Tensor::from_vec((300..310u16).collect(), &[5, 2]).unwrap()).unwrap();
    txn.copy("alone", "tied").unwrap();
    txn.save_view("last", &alone.flip([0]).unwrap_or(alone)).unwrap();
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("later", &Tensor::from_vec(vec![5u8, 6, 7, 8], &[2, 2]).unwrap()).unwrap();
    txn.save_as("counts", &Tensor::from_vec(vec![1i32, 2], &[2]).unwrap(), StorageKind::Mutable).unwrap();
    let _ = txn.create_tensor("shared", DType::I32, &[2], StorageKind::Live).unwrap();
    txn.save_view("v7", &row.index([Index::from(1)]).unwrap()).unwrap();
    txn.remove("v9").unwrap();
    txn.set_attribute("", "author", "nobody").unwrap();
    txn.set_attribute("v9", "unit", "m").unwrap();
    txn.commit().unwrap();
    drop((store, row));
    fast().open(path).unwrap().gc().unwrap();
    content(path)
}

pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let listed = |dir: &str| fs::read_dir(path.join(dir)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = ["generations", "meta", "storages"].into_iter().flat_map(listed).collect();
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

/// The bytes of each file of a store, and when it and each directory last changed.
pub(crate) fn tree(path: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut paths = vec![path.to_path_buf()];
    while let Some(path) = paths.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let bytes = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if stat.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path, (stat.modified().unwrap(), bytes));
    }
    found
}

/// What a salvage kept, and what it lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The tensors that are not in the new store.
    pub(crate) gone: BTreeSet<String>,
    /// The growable tensors that lost rows.
    pub(crate) shorter: BTreeSet<String>,
}

/// Salvages the store. The store must be unchanged, the new store must verify except for the tensors that are reported as
/// interrupted, and each tensor must have its old elements, or be reported as lost.
pub(crate) fn assert_salvaged(path: &Path, expected: &Content, what: &str) -> Outcome {
    let new = path.with_extension("salvaged");
    let (outcome, _) = check_salvage(path, &new, expected, what);
    fs::remove_dir_all(&new).unwrap();
    outcome
}

/// Like [`assert_salvaged`]. Keeps the new store, which must accept a commit. A salvage that makes nothing must report
/// the same.
pub(crate) fn salvage_to(path: &Path, new: &Path, expected: &Content, what: &str) -> (Outcome, Salvaged) {
    let planned = fast().salvage(path, None, |_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (outcome, done) = check_salvage(path, new, expected, what);
    let told = |salvaged: &Salvaged| {
        (salvaged.losses.clone(), salvaged.copied.tensor_count, salvaged.interrupted.clone())
    };
    assert_eq!(told(&done), told(&planned), "{what}");
    let store = fast().open(new).unwrap();
    store.save("after", &Tensor::from_vec(vec![9u8], &[1]).unwrap()).unwrap();
    store.gc().unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{what}: after a commit");
    store.remove("after").unwrap();
    (outcome, done)
}

fn check_salvage(path: &Path, new: &Path, expected: &Content, what: &str) -> (Outcome, Salvaged) {
    let before = tree(path);
    let done = fast().salvage(path, Some(new), |_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(tree(path) == before, "{what}: the damaged store changed");
    let store = fast().open(new).unwrap();
    let verified = store.verify(|_| ()).unwrap();
    assert_eq!(
        (&verified.findings[..], &verified.interrupted),
        (&[][..], &done.interrupted),
        "{what}: {done:?}"
    );
    let found = content(new);
    assert_eq!(found.len() as u64, done.copied.tensor_count, "{what}");
    let mut outcome = Outcome::default();
    for (name, (size, bytes)) in expected {
        let lost: u64 = done
            .losses
            .iter()
            .filter(|loss| loss.name.as_ref() == Some(name))
            .map(|loss| loss.lost_bytes)
            .sum();
        let is_told = done.losses.iter().any(|loss| loss.name.as_ref() == Some(name));
        match found.get(name) {
            None => {
                assert!(!is_told || lost == bytes.len() as u64, "{what}: {name}: {done:?}");
                outcome.gone.insert(name.clone());
            }
            Some((left, left_bytes)) if is_told => {
                assert!(left[0] < size[0] && left[1..] == size[1..], "{what}: {name}: {left:?} of {size:?}");
                assert!(bytes.starts_with(left_bytes), "{what}: {name}: other rows");
                assert_eq!(left_bytes.len() as u64 + lost, bytes.len() as u64, "{what}: {name}");
                outcome.shorter.insert(name.clone());
            }
            Some(left) => {
                assert!(left == &(size.clone(), bytes.clone()), "{what}: {name} is wrong: {done:?}")
            }
        }
    }
    let unknown = |name: &&String| !expected.contains_key(*name);
    assert_eq!(found.keys().find(unknown), None, "{what}");
    // Only damage to metadata can lose tensors of unknown names.
    let said: BTreeSet<String> = done.losses.iter().filter_map(|loss| loss.name.clone()).collect();
    let is_step_back =
        |reason: &str| reason.contains("is read instead") || reason.contains("what only this file records");
    let unnamed: usize = done.losses.iter().map(|loss| lost_records(&loss.reason)).sum();
    assert!(
        outcome.gone.difference(&said).count() <= unnamed
            || done.losses.iter().any(|loss| is_step_back(&loss.reason)),
        "{what}: {done:?}"
    );
    (outcome, done)
}

/// Whether a file is that of a sealed storage.
pub(crate) fn is_sealed(store: &Path, file: &Path) -> bool {
    let id = u64::from_str_radix(file.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let store = Store::open(store).unwrap();
    let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
    storages.iter().any(|storage| storage.id == id && storage.kind == StorageKind::Sealed)
}

/// Returns how many headers a loss says that a table has lost.
pub(crate) fn lost_records(reason: &str) -> usize {
    let count = reason.strip_prefix("the headers of up to ").and_then(|rest| rest.split(' ').next());
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
