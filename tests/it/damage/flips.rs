//! Every bit of every file of a store, flipped one at a time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stridemap::{ErrorKind, Store};

use super::support::{
    Content, Outcome, affected, assert_salvaged, content, copy, create_chunked_store, create_small_store,
    files, is_sealed, lost_or_changed, setting, tree, verify,
};
use crate::harness::{fast, filled, new_path};
use crate::support::temporary;

/// Returns the interval at which bits are flipped: 1 is every bit.
fn stride() -> usize {
    setting("STRIDEMAP_TEST_FLIP_STRIDE", 31)
}

/// Flips a bit, and asserts that `verify` finds it in that file and names the lost tensors. One tensor may remain
/// unnamed if a leaf of a table cannot be read. `is_read` says whether reading also detects the flip.
fn check_flip(store: &Path, file: &Path, bit: usize, expected: &Content, is_read: bool) {
    flip(file, bit);
    let what = format!("{}, bit {bit}", file.display());
    let findings = verify(store).findings;
    assert!(!findings.is_empty(), "{what}: not found");
    assert!(findings.iter().all(|finding| finding.path == file), "{what}: {findings:#?}");
    let named: BTreeSet<String> = findings.iter().flat_map(|finding| affected(finding, expected)).collect();
    let gone = lost_or_changed(store, expected);
    let unread = findings.iter().filter(|finding| finding.detail.ends_with("is not known")).count();
    let unnamed: Vec<&String> = gone.difference(&named).collect();
    assert!(unnamed.len() <= unread, "{what}: {unnamed:?} are lost, too: {findings:#?}");
    if is_read {
        assert!(named.is_subset(&gone), "{what}: named and not lost: {findings:#?}");
    }
    flip(file, bit);
}

fn flip(file: &Path, bit: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, &bytes).unwrap();
}

fn is_in(file: &Path, dir: &str) -> bool {
    file.parent().unwrap().ends_with(dir)
}

#[test]
fn every_flipped_bit_is_found_with_its_file_and_the_tensors_it_affects() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let (mut count, mut in_place) = (0, 0);
    for file in files(&path) {
        let bits = fs::read(&file).unwrap().len() * 8;
        // The elements of mutable and live storages change, so they have no digest.
        if is_in(&file, "storages") && bits <= 9 * 8 && !is_sealed(&path, &file) {
            in_place += 1;
            continue;
        }
        for bit in (0..bits).step_by(stride()) {
            check_flip(&path, &file, bit, &expected, !is_in(&file, "storages"));
            count += 1;
        }
    }
    assert_eq!(in_place, 2);
    assert_eq!(verify(&path).findings, []);
    println!("{count} bits flipped, all found");
}

#[test]
fn flipped_bit_of_a_chunk_or_its_digest_affects_the_tensors_that_reach_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    let bin = path.join("storages/0000000000000001.bin");
    let sum = path.join("storages/0000000000000001.sum");
    let of = |chunk: usize| -> BTreeSet<String> {
        let names: &[&str] = match chunk {
            0 => &["all", "chunk0", "ends"],
            1 => &["all", "chunk1"],
            2 => &["all", "chunk2", "ends"],
            _ => &["all", "tail"],
        };
        names.iter().map(|&name| name.to_owned()).collect()
    };
    for file in files(&path) {
        let bits = fs::read(&file).unwrap().len() * 8;
        let step = if file == bin { bits / 20 + 1 } else { stride() };
        for bit in (0..bits).step_by(step) {
            check_flip(&path, &file, bit, &expected, file != bin && file != sum);
            if file != bin && file != sum {
                continue;
            }
            flip(&file, bit);
            let findings = verify(&path).findings;
            let chunk = if file == bin { (bit / 8) >> 20 } else { bit / 8 / 16 };
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(affected(&findings[0], &expected), of(chunk), "{findings:?}");
            flip(&file, bit);
        }
    }
}

/// A store with two manifests: the older one belongs to the generation of a reader. Returns its path, and the content of
/// both generations.
fn two_generations(dir: &Path) -> (PathBuf, Content, Content) {
    let path = dir.join("x.smap");
    let older = create_small_store(&path);
    let reader = Store::open(&path).unwrap();
    let writer = Store::open(&path).unwrap();
    writer.save("newer", &filled(5, 1u8)).unwrap();
    writer.remove("later").unwrap();
    let newest = content(&path);
    let store = dir.join("template.smap");
    copy(&path, &store);
    drop((reader, writer));
    (store, older, newest)
}

#[test]
fn salvage_of_a_store_with_any_flipped_bit_of_a_table_keeps_or_reports_each_tensor() {
    flip_and_salvage(|file| file.extension().is_some_and(|extension| extension == "tab"));
}

#[test]
fn salvage_of_a_store_with_any_flipped_bit_elsewhere_keeps_or_reports_each_tensor() {
    flip_and_salvage(|file| file.extension().is_none_or(|extension| extension != "tab"));
}

/// Flips the bits of some files of a store, one at a time, and salvages it.
fn flip_and_salvage(is_flipped: impl Fn(&Path) -> bool) {
    let dir = temporary();
    let (store, older, expected) = two_generations(dir.path());
    let newest = store.join("meta/0000000000000007.man");
    let unused = store.join("meta/0000000000000005.man");
    assert!(newest.exists() && unused.exists());
    let mut count = 0;
    for file in files(&store) {
        if !is_flipped(&file) || is_in(&file, "storages") && !is_sealed(&store, &file) {
            continue;
        }
        let bits = fs::read(&file).unwrap().len() * 8;
        for bit in (0..bits).step_by(setting("STRIDEMAP_TEST_SALVAGE_STRIDE", 331)) {
            flip(&file, bit);
            let what = format!("{}, bit {bit}", file.display());
            let expected = if file == newest { &older } else { &expected };
            let outcome = assert_salvaged(&store, expected, &what);
            let costs_nothing = file == newest || file == unused || file.ends_with("FORMAT");
            assert!(!costs_nothing || outcome == Outcome::default(), "{what}: {outcome:?}");
            assert!(
                is_in(&file, "meta") || costs_nothing || !outcome.gone.is_empty(),
                "{what}: nothing is lost"
            );
            flip(&file, bit);
            count += 1;
        }
    }
    assert_eq!(assert_salvaged(&store, &expected, "undamaged"), Outcome::default());
    println!("{count} bits flipped");
}

#[test]
fn salvage_of_a_store_with_a_flipped_bit_in_its_only_manifest_makes_nothing() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    let manifest = path.join("meta/0000000000000005.man");
    let new = path.with_extension("salvaged");
    let bits = fs::read(&manifest).unwrap().len() * 8;
    for bit in (0..bits).step_by(stride()) {
        flip(&manifest, bit);
        let before = tree(&path);
        for to in [None, Some(&*new)] {
            let refused = fast().salvage(&path, to, |_| ()).unwrap_err();
            let message = refused.to_string();
            // A flipped version number is that of a newer version.
            if refused.kind() != ErrorKind::UnsupportedVersion {
                assert_eq!(refused.kind(), ErrorKind::Corrupt, "bit {bit}: {message}");
                assert!(message.contains("no manifest can be read"), "bit {bit}: {message}");
                assert!(message.contains("put back meta/ from a copy"), "bit {bit}: {message}");
            }
        }
        assert!(tree(&path) == before && !new.exists(), "bit {bit}");
        flip(&manifest, bit);
    }
}
