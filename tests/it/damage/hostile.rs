//! Salvages of malformed stores.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;

use stridemap::ErrorKind;
use stridemap_format::{Manifest, RecordKind};

use super::support::{
    Outcome, assert_salvaged, create_chunked_store, create_small_store, salvage_to, verify,
};
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path};
use crate::support::temporary;

fn overwrite(path: &Path, at: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(b"garbage!", at).unwrap();
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn directory_that_is_a_link_is_refused_when_format_is_damaged_too() {
    let (dir, path) = new_path();
    create_small_store(&path);
    for name in ["generations", "meta", "storages"] {
        let outside = dir.path().join(name);
        fs::rename(path.join(name), &outside).unwrap();
        symlink(&outside, path.join(name)).unwrap();
        let before = names(&outside);
        for lost in ["FORMAT", "LOCK"] {
            let whole = fs::read(path.join(lost)).unwrap();
            fs::remove_file(path.join(lost)).unwrap();
            assert_refused(fast().salvage(&path, None, |_| ()), ErrorKind::Corrupt, &[name]);
            assert_eq!(names(&outside), before, "{name}, {lost}");
            fs::write(path.join(lost), whole).unwrap();
        }
        fs::remove_file(path.join(name)).unwrap();
        fs::rename(&outside, path.join(name)).unwrap();
    }
    assert_eq!(verify(&path).findings, []);
}

#[test]
fn tensors_on_a_storage_whose_record_is_lost_are_named() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    // The first leaf of the table has the records of the storages.
    overwrite(&path.join("generations/0000000000000004.tab"), 113);
    let (lost, done) = salvage_to(&path, &path.with_extension("new"), &expected, "records");
    let what = "of up to 0 tensors and the records of up to 3 storages are lost";
    assert!(done.losses.iter().any(|loss| loss.reason.contains(what)), "{done:?}");
    let named: BTreeSet<String> = done.losses.into_iter().filter_map(|loss| loss.name).collect();
    assert!(named == lost.gone && named.contains("log") && named.contains("alone"), "{named:?}");
}

#[test]
fn files_of_impossible_ids_and_generations_are_no_obstacle() {
    for name in [
        "storages/fffffffffffffff0.bin",
        "generations/fffffffffffffffe.man",
        "generations/fffffffffffffffe.tab",
        "meta/fffffffffffffffe.his",
        "meta/fffffffffffffffe.man",
    ] {
        let dir = temporary();
        let path = dir.path().join("chunked.smap");
        let expected = create_chunked_store(&path);
        fs::write(path.join(name), b"rubbish").unwrap();
        assert_eq!(assert_salvaged(&path, &expected, name), Outcome::default());
    }
}

/// Rewrites the record of the only storage in the only manifest with a different length.
fn write_record_of(path: &Path, length_bytes: u64) {
    let (file, number) = (path.join("meta/0000000000000002.man"), 2);
    let bytes = fs::read(&file).unwrap();
    let uuid = bytes[24..40].try_into().unwrap();
    let mut manifest = Manifest::decode(&bytes, uuid, number).unwrap();
    for record in manifest.storages.values_mut().flatten() {
        assert!(matches!(record.kind, RecordKind::Sealed(_)));
        record.length_bytes = length_bytes;
    }
    fs::write(&file, manifest.encode().unwrap()).unwrap();
}

#[test]
fn verify_reads_a_storage_with_a_false_length_only_to_its_end() {
    let (_dir, path, store) = new_fast_store();
    store.save("byte", &filled(3 << 20, 1u8)).unwrap();
    drop(store);
    write_record_of(&path, i64::MAX as u64);
    let verified = verify(&path);
    assert!(verified.findings.iter().all(|finding| finding.affects("byte")), "{verified:?}");
    assert_eq!(verified.read_bytes, 3 << 20);
    let findings = fast().open(&path).unwrap().verify_tensors(&["byte"], |_| ()).unwrap().findings;
    assert!(!findings.is_empty());
    let done = fast().salvage(&path, None, |_| ()).unwrap();
    assert_eq!(done.losses.len(), 1, "{done:?}");
}
