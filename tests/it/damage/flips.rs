//! Every bit of every file of a store, flipped one at a time: cases 27 and 30.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stridemap::{ErrorKind, Store};

use super::support::{
    Content, affected, assert_repaired, content, copy, create_chunked_store, create_small_store, files,
    lost_or_changed, setting, verify,
};
use crate::harness::{fast, filled, new_path};

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
fn case_27_every_flipped_bit_is_found_with_its_file_and_the_tensors_it_affects() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let (mut count, mut in_place) = (0, 0);
    for file in files(&path) {
        let bits = fs::read(&file).unwrap().len() * 8;
        // The elements of mutable and live storages change, so they have no digest.
        if is_in(&file, "storages") && bits == 8 * 8 && !is_sealed(&path, &file) {
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

fn is_sealed(store: &Path, file: &Path) -> bool {
    let id = u64::from_str_radix(file.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let store = Store::open(store).unwrap();
    let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
    storages.iter().any(|storage| storage.id == id && storage.kind == stridemap::StorageKind::Sealed)
}

#[test]
fn case_27_flipped_bit_of_a_chunk_or_its_digest_affects_the_tensors_that_reach_the_chunk() {
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

#[test]
fn repaired_store_with_a_flipped_bit_keeps_the_tensors_not_reported_lost() {
    let (dir, path) = new_path();
    let older = create_small_store(&path);
    // A reader keeps generation 5, to which a repair can step back.
    let reader = Store::open(&path).unwrap();
    let snapshot = reader.snapshot();
    let writer = Store::open(&path).unwrap();
    writer.save("newer", &filled(5, 1u8)).unwrap();
    writer.remove("later").unwrap();
    let expected = content(&path);
    let template = dir.path().join("template.smap");
    copy(&path, &template);
    drop((snapshot, reader, writer));
    let newest = template.join("meta/0000000000000007.man");
    let unused = template.join("meta/0000000000000005.man");
    assert!(newest.exists() && unused.exists());
    let mut count = 0;
    for file in files(&template) {
        if file == unused || is_in(&file, "storages") && !is_sealed(&template, &file) {
            continue;
        }
        let bits = fs::read(&file).unwrap().len() * 8;
        for bit in (count % 8..bits).step_by(10 * stride() + 1) {
            let damaged = dir.path().join("damaged.smap");
            copy(&template, &damaged);
            flip(&damaged.join(file.strip_prefix(&template).unwrap()), bit);
            let what = format!("{}, bit {bit}", file.display());
            if file == newest {
                let done = fast().repair(&damaged, |_| ()).unwrap();
                assert!(
                    done.losses.iter().any(|loss| loss.reason.contains("returns to generation 5")),
                    "{done:?}"
                );
                assert_eq!(verify(&damaged).findings, [], "{what}");
                assert_eq!(content(&damaged), older, "{what}");
            } else {
                let gone = assert_repaired(&damaged, &expected, &what);
                assert!(!file.ends_with("FORMAT") || gone.is_empty(), "{what}: {gone:?}");
            }
            fs::remove_dir_all(&damaged).unwrap();
            count += 1;
        }
    }
    println!("{count} stores repaired");
}

#[test]
fn store_with_a_flipped_bit_in_its_only_manifest_is_refused_unchanged() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    let manifest = path.join("meta/0000000000000005.man");
    for bit in (0..fs::read(&manifest).unwrap().len() * 8).step_by(10 * stride() + 1) {
        flip(&manifest, bit);
        let state =
            || files(&path).into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>();
        let before = state();
        for refused in [fast().plan_repair(&path, |_| ()), fast().repair(&path, |_| ())] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "bit {bit}: {refused}");
            let message = refused.to_string();
            assert!(message.contains("no manifest can be read"), "bit {bit}: {message}");
            assert!(message.contains("put back meta/ from a copy"), "bit {bit}: {message}");
        }
        assert_eq!(state(), before, "bit {bit}");
        assert!(!path.join("lost+found").exists());
        flip(&manifest, bit);
    }
}
