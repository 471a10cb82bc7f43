//! Case 27 of the hazards, and 30: every bit of every file of a store flipped, one at a time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::{Content, affected, chunked, copy, files, lost, repaired, setting, small, verify};

/// One of how many bits is flipped: 1 is all of them.
fn stride() -> usize {
    setting("STRIDEMAP_TEST_FLIP_STRIDE", 31)
}

/// Flips a bit: what `verify` finds is that file, and who is affected is exactly who loses something by it; `is_read` says
/// that reading notices, and not `verify` alone.
fn check_flip(store: &Path, file: &Path, bit: usize, expected: &Content, is_read: bool) {
    let mut bytes = fs::read(file).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, &bytes).unwrap();
    let what = format!("{}, bit {bit}", file.display());
    let findings = verify(store).findings;
    assert!(!findings.is_empty(), "{what}: not found");
    assert!(findings.iter().all(|finding| finding.path == file), "{what}: {findings:#?}");
    let named: BTreeSet<String> = findings.iter().flat_map(|finding| affected(finding, expected)).collect();
    let gone = lost(store, expected);
    assert!(gone.is_subset(&named), "{what}: {:?} are lost, too: {findings:#?}", gone.difference(&named));
    if is_read {
        assert_eq!(named, gone, "{what}: named and not lost: {findings:#?}");
    }
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, &bytes).unwrap();
}

fn is_in(file: &Path, dir: &str) -> bool {
    file.parent().unwrap().ends_with(dir)
}

#[test]
fn case_27_every_flipped_bit_is_found_with_its_file_and_the_tensors_it_affects() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.smap");
    let expected = small(&path);
    let (mut count, mut in_place) = (0, 0);
    for file in files(&path) {
        let bits = fs::read(&file).unwrap().len() * 8;
        // The elements of mutable and live storages change, and so have no digest.
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
    let store = stridemap::Store::open(store).unwrap();
    let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
    storages.iter().any(|storage| storage.id == id && storage.kind == stridemap::StorageKind::Sealed)
}

#[test]
fn case_27_flipped_bit_of_a_chunk_or_its_digest_affects_who_reaches_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = chunked(&path);
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
            let mut bytes = fs::read(&file).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &bytes).unwrap();
            let findings = verify(&path).findings;
            let chunk = if file == bin { (bit / 8) >> 20 } else { bit / 8 / 16 };
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(affected(&findings[0], &expected), of(chunk), "{findings:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &bytes).unwrap();
        }
    }
}

#[test]
fn store_with_a_flipped_bit_is_repaired_and_loses_what_reached_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.smap");
    let expected = small(&path);
    let mut count = 0;
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        if is_in(&file, "storages") && !is_sealed(&path, &file) {
            continue;
        }
        for bit in (count % 8..whole.len() * 8).step_by(311) {
            let damaged = dir.path().join("damaged.smap");
            copy(&path, &damaged);
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(damaged.join(file.strip_prefix(&path).unwrap()), bytes).unwrap();
            let what = format!("{}, bit {bit}", file.display());
            let gone = repaired(&damaged, &expected, &what);
            // One bit of the metadata is put right.
            assert!(is_in(&file, "storages") || gone.is_empty(), "{what}: {gone:?}");
            fs::remove_dir_all(&damaged).unwrap();
            count += 1;
        }
    }
    println!("{count} stores repaired");
}
