//! Files that are truncated, missing, empty, too long, or from another storage.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap::maintenance::SpaceReason;
use stridemap::{StorageKind, StoreOptions};

use super::support::{
    Content, Outcome, affected, assert_salvaged, create_small_store, files, is_sealed, lost_or_changed,
    setting, verify,
};
use crate::harness::hooked::Hooked;
use crate::harness::{fast, filled, new_path, new_store};

/// Asserts that `verify` finds the file, and names every tensor that loses data.
fn check(store: &Path, file: &Path, expected: &Content, what: &str) {
    let findings = verify(store).findings;
    assert!(!findings.is_empty(), "{what}: not found");
    assert!(findings.iter().all(|finding| finding.path == file), "{what}: {findings:#?}");
    let named: BTreeSet<String> = findings.iter().flat_map(|finding| affected(finding, expected)).collect();
    let gone = lost_or_changed(store, expected);
    assert!(gone.is_subset(&named), "{what}: {:?}", gone.difference(&named));
}

fn is_storage(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "bin")
}

#[test]
fn file_truncated_to_any_length_is_found_with_the_affected_tensors() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let stride = setting("STRIDEMAP_TEST_FLIP_STRIDE", 31);
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        let step = if whole.len() < 100 { 1 } else { stride };
        for length in (0..whole.len()).step_by(step) {
            fs::write(&file, &whole[..length]).unwrap();
            check(&path, &file, &expected, &format!("{} cut to {length} bytes", file.display()));
        }
        fs::remove_file(&file).unwrap();
        let missing = verify(&path).findings;
        // The name of a missing manifest cannot be known.
        let said =
            if file.extension().is_some_and(|e| e == "man") { path.join("meta") } else { file.clone() };
        assert!(missing.iter().all(|finding| finding.path == said) && !missing.is_empty(), "{missing:?}");
        fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
        if is_storage(&file) {
            let verified = verify(&path);
            assert_eq!(verified.findings, [], "an extra byte belongs to no storage");
            assert_eq!(lost_or_changed(&path, &expected), BTreeSet::new());
        } else {
            check(&path, &file, &expected, &format!("{}: a byte too many", file.display()));
        }
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(verify(&path).findings, []);
}

/// Small storages are read by one thread each, large ones by several.
#[test]
fn storage_that_becomes_shorter_while_it_is_read_is_a_finding_beside_others() {
    for length_mib in [2, 9] {
        let (_dir, path, store) = new_store();
        for name in ["x", "y"] {
            store.save(name, &filled(length_mib << 20, 1u8)).unwrap();
        }
        drop(store);
        let storages: Vec<_> = files(&path).into_iter().filter(|file| is_storage(file)).collect();
        let mut whole = fs::read(&storages[0]).unwrap();
        whole[0] ^= 1;
        fs::write(&storages[0], whole).unwrap();
        let shrinks = storages[1].clone();
        let disk = Hooked::before(move |operation, at| match operation == "read_exact_at" && at == shrinks {
            true => fs::File::options().write(true).open(&shrinks)?.set_len(1 << 20),
            false => Ok(()),
        });
        let store = StoreOptions::new().disk(Arc::new(disk)).open(&path).unwrap();
        let found = store.verify(|_| ()).unwrap().findings;
        let found: BTreeSet<_> = found.into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, storages.into_iter().collect(), "{length_mib} MiB");
    }
}

#[test]
fn file_of_a_different_storage_is_detected() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let storages: Vec<_> = files(&path).into_iter().filter(|file| is_storage(file)).collect();
    assert_eq!(storages.len(), 6);
    let mut count = 0;
    // The first four storages are sealed.
    for file in &storages[..4] {
        let whole = fs::read(file).unwrap();
        for other in storages.iter().filter(|other| *other != file) {
            fs::copy(other, file).unwrap();
            check(&path, file, &expected, &format!("{} in place of {}", other.display(), file.display()));
            assert!(!assert_salvaged(&path, &expected, "swapped").gone.is_empty());
            fs::write(file, &whole).unwrap();
            count += 1;
        }
    }
    assert_eq!(count, 20);
}

#[test]
fn salvage_of_a_store_with_a_truncated_missing_or_zeroed_file_keeps_or_reports_each_tensor() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let stride = setting("STRIDEMAP_TEST_SALVAGE_STRIDE", 331);
    let sealed: Vec<PathBuf> =
        files(&path).into_iter().filter(|file| is_storage(file) && is_sealed(&path, file)).collect();
    let snapshot = fast().open(&path).unwrap().snapshot();
    let mut storages = snapshot.storages().map(Result::unwrap);
    let mutable = storages.find(|storage| storage.kind == StorageKind::Mutable).unwrap();
    drop(storages);
    drop(snapshot);
    let mut count = 0;
    for file in files(&path).into_iter().chain([path.join("LOCK")]) {
        let whole = fs::read(&file).unwrap();
        let is_manifest = file.extension().is_some_and(|extension| extension == "man");
        let step = if whole.len() < 100 { 1 } else { stride };
        let cuts = (0..whole.len()).step_by(step).map(|length| Some(whole[..length].to_vec()));
        // The elements of mutable and live storages have no digests.
        let zeros = (!is_storage(&file) || sealed.contains(&file)).then(|| Some(vec![0; whole.len()]));
        for left in [None].into_iter().chain(zeros).chain(cuts) {
            let what = format!("{}: {:?}", file.display(), left.as_ref().map(Vec::len));
            match &left {
                None => fs::remove_file(&file).unwrap(),
                Some(bytes) => fs::write(&file, bytes).unwrap(),
            }
            if is_manifest {
                assert!(fast().salvage(&path, None, |_| ()).is_err(), "{what}");
            } else {
                let is_whole = assert_salvaged(&path, &expected, &what) == Outcome::default();
                // The last byte of a mutable storage is its mark.
                let has_all_elements = file == mutable.file
                    && left.is_some_and(|bytes| bytes.len() as u64 == mutable.size_bytes);
                let is_needless = file.ends_with("FORMAT") || file.ends_with("LOCK");
                assert_eq!(is_whole, is_needless || has_all_elements, "{what}");
                count += 1;
            }
            fs::write(&file, &whole).unwrap();
        }
    }
    println!("{count} stores salvaged");
}

#[test]
fn unneeded_files_are_orphans_and_not_damage() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    assert_eq!(verify(&path).orphans, []);
    for (name, reason) in [
        ("storages/.stage-abc", SpaceReason::Garbage),
        ("storages/0000000000000003.sum", SpaceReason::Garbage),
        ("storages/00000000000000ff.bin", SpaceReason::Garbage),
        ("meta/0000000000000001.man", SpaceReason::Garbage),
        ("meta/0000000000000002.his", SpaceReason::Garbage),
        ("generations/0000000000000002.man", SpaceReason::Garbage),
        ("generations/0000000000000002.tab", SpaceReason::Garbage),
        ("generations/0000000000000002.his", SpaceReason::Foreign),
        ("meta/0000000000000002.tab", SpaceReason::Foreign),
        ("meta/notes.txt", SpaceReason::Foreign),
        ("meta/00000000000000ff.bin", SpaceReason::Foreign),
        ("storages/0000000000000003.man", SpaceReason::Foreign),
    ] {
        fs::write(path.join(name), b"12345").unwrap();
        let verified = verify(&path);
        assert_eq!(verified.findings, [], "{name}");
        let [orphan] = verified.orphans.as_slice() else { panic!("{name}: {verified:?}") };
        assert_eq!((&orphan.path, orphan.spare_bytes, &orphan.reason), (&path.join(name), 5, &reason));
        if reason == SpaceReason::Foreign {
            stridemap::Store::open(&path).unwrap().gc().unwrap();
            assert!(path.join(name).exists(), "{name}");
        }
        fs::remove_file(path.join(name)).unwrap();
    }
    // Files of a pinned generation, and unfinished files, are not orphans.
    let store = stridemap::Store::open(&path).unwrap();
    let snapshot = store.snapshot();
    store.remove("later").unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("more", &filled(9, 1u8)).unwrap();
    assert_eq!(verify(&path).orphans, []);
    drop(txn);
    drop(snapshot);
    let orphans = verify(&path).orphans;
    assert!(!orphans.is_empty(), "{orphans:?}");
    assert!(orphans.iter().all(|orphan| orphan.reason == SpaceReason::Garbage), "{orphans:?}");
    store.gc().unwrap();
    assert_eq!(verify(&path).orphans, []);
}

#[test]
fn missing_lock_is_found_and_costs_nothing() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    fs::remove_file(path.join("LOCK")).unwrap();
    check(&path, &path.join("LOCK"), &expected, "LOCK");
    assert_eq!(assert_salvaged(&path, &expected, "LOCK"), Outcome::default());
    assert!(!path.join("LOCK").exists());
}
