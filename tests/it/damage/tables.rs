//! Damaged and malformed tables: what `verify` reports, and what a salvage keeps.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use stridemap::{DType, Index, Store, Tensor};
use stridemap_format::PAGE_BYTES;

use super::support::{Outcome, assert_salvaged, content, lost_records, salvage_to, verify};
use crate::cases::stores::frame;
use crate::cases::stores::wire::{self, changed, child, node, storage_fields, tensor_fields, text, uint};
use crate::harness::{fast, new_path};

/// Saves views of one row under these names, in one commit.
fn save_views(store: &Store, names: impl Iterator<Item = String>) {
    if !store.contains("row").unwrap() {
        store.save("row", &Tensor::from_vec((0..8u8).collect(), &[8]).unwrap()).unwrap();
    }
    let row = store.load("row").unwrap();
    let mut txn = store.begin().unwrap();
    for (i, name) in (0..).zip(names) {
        txn.save_view(&name, &row.index([Index::from(i % 8)]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
}

/// Returns the newest table of a store.
fn table_of(path: &Path) -> PathBuf {
    let files = fs::read_dir(path.join("generations")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|it| it == "tab")).max().unwrap()
}

fn overwrite(file: &Path, at: usize, bytes: &[u8]) {
    fs::File::options().write(true).open(file).unwrap().write_all_at(bytes, at as u64).unwrap();
}

/// Overwrites the key of an entry in a leaf.
fn overwrite_name(file: &Path, name: &str) {
    let bytes = fs::read(file).unwrap();
    let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    overwrite(file, at, b"?");
}

#[test]
fn salvage_prefers_an_older_generation_to_one_without_its_tensors() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    save_views(&store, (0..100).map(|i| format!("v{i}")));
    let (expected, reader) = (content(&path), Store::open(&path).unwrap());
    let snapshot = reader.snapshot();
    let older = table_of(&path);
    save_views(&store, (0..300).map(|i| format!("w{i}")));
    drop(store);
    let table = table_of(&path);
    assert_ne!(table, older);
    // All nodes but the first, a leaf of storages.
    overwrite(&table, PAGE_BYTES, &vec![0; fs::read(&table).unwrap().len() - PAGE_BYTES]);
    let (lost, done) = salvage_to(&path, &path.with_extension("new"), &expected, "a table without tensors");
    assert_eq!((lost, done.generation), (Outcome::default(), snapshot.generation()), "{:?}", done.losses);
    assert!(
        done.losses[0].path == table && done.losses[0].reason.contains("is read instead"),
        "{:?}",
        done.losses
    );
}

#[test]
fn damaged_node_of_many_pages_is_one_finding() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    save_views(&store, (0..100).map(|i| format!("{i:0>4090}")));
    drop(store);
    let (expected, table) = (content(&path), table_of(&path));
    overwrite_name(&table, &format!("{:0>4090}", 50));
    let findings = verify(&path).findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].detail.ends_with("2 pages from there on are like this"), "{findings:?}");
    assert_eq!(assert_salvaged(&path, &expected, "a leaf of two pages").gone.len(), 1);
}

#[test]
fn records_that_the_manifest_replaces_are_not_counted_as_certainly_lost() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    save_views(&store, (100..1000).map(|i| format!("v{i}")));
    store.remove("v500").unwrap();
    store.save("v501", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
    drop(store);
    let expected = content(&path);
    overwrite_name(&table_of(&path), "v500");
    let losses = fast().salvage(&path, None, |_| ()).unwrap().losses;
    let gone = assert_salvaged(&path, &expected, "a leaf with replaced entries").gone;
    assert_eq!(gone.len() + 2, lost_records(&losses[0].reason), "{losses:?}");
    assert!(!gone.contains("v501") && gone.contains("v502"), "{gone:?}");
}

#[test]
fn salvage_keeps_the_first_of_two_records_with_one_name() {
    let (_dir, path) = new_path();
    fast().create(&path).unwrap();
    let tensor = |dtype: u8| changed(tensor_fields(), &[("name", text("a")), ("dtype", vec![dtype])]).0;
    // Mutable, so that any elements are right.
    let storage = changed(storage_fields(), &[("count", uint(2)), ("kind", uint(1))]).0;
    let leaf = |page: u64, dtype: u8| node((page, 1, 0), &[tensor(dtype)]);
    let root = node((3, 1, 1), &[child(text("a"), 1), child(text("a"), 2)]);
    let table = [node((0, 0, 0), &[storage]), leaf(1, 11), leaf(2, 7), root].concat();
    let reference = wire::table_ref(&wire::reference(&table, 0, &[(0, 1), (3, 2)]));
    // No time, no message, no history, no changes and no attributes.
    let head = [uint(wire::GENERATION), vec![0; 2], uint(wire::NEXT_ID), reference, vec![0; 7]].concat();
    fs::remove_file(path.join("meta/0000000000000001.man")).unwrap();
    let manifest = frame::manifest_of(&[&wire::UUID[..], &head].concat());
    fs::write(path.join("FORMAT"), wire::marker(b"\x89SMAP\r\n\x1a", 1)).unwrap();
    fs::write(path.join("meta/0000000000000007.man"), manifest).unwrap();
    fs::write(path.join("generations/0000000000000007.tab"), table).unwrap();
    fs::write(path.join("storages/0000000000000001.bin"), [0; 25]).unwrap();

    let findings = verify(&path).findings;
    assert!(findings.iter().all(|finding| finding.rule.number() == 24), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.affects("a")), "{findings:?}");
    let new = path.with_extension("new");
    let done = fast().salvage(&path, Some(&new), |_| ()).unwrap();
    assert!(done.losses.iter().any(|loss| loss.name.as_deref() == Some("a")), "{done:?}");
    assert_eq!(verify(&new).findings, []);
    assert_eq!(fast().open(&new).unwrap().load("a").unwrap().dtype(), DType::F32);
}
