//! Repairs of malformed stores, and repairs while other processes work.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use stridemap::{ErrorKind, Tensor};
use stridemap_format::{Manifest, RecordKind};

use super::support::{content, create_chunked_store, create_small_store, lost_or_changed, verify};
use crate::harness::{fast, filled, new_fast_store, new_path};

const BIN: &str = "storages/0000000000000001.bin";
const SUM: &str = "storages/0000000000000001.sum";

fn overwrite(path: &Path, at: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(b"garbage!", at).unwrap();
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn case_43_repair_moves_files_only_into_a_directory_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    overwrite(&path.join(BIN), 5);
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let kept = path.join("lost+found");
    let before = names(&path.join("meta"));
    for make in [&|| symlink(&outside, &kept).unwrap(), &|| fs::write(&kept, b"").unwrap()] as [&dyn Fn(); 2]
    {
        make();
        let refused = fast().repair(&path, |_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(refused.to_string().contains("lost+found"), "{refused}");
        assert_eq!(names(&outside), BTreeSet::new());
        assert_eq!(names(&path.join("meta")), before, "published, and then nothing could be kept");
        fs::remove_file(&kept).unwrap();
    }
    fast().repair(&path, |_| ()).unwrap();
    assert!(kept.join("0000000000000001.bin").exists());
    assert_eq!(lost_or_changed(&path, &expected).len(), 3);
}

#[test]
fn case_43_directory_that_is_a_link_is_refused_when_format_is_damaged_too() {
    let (dir, path) = new_path();
    create_small_store(&path);
    for name in ["meta", "storages"] {
        let outside = dir.path().join(name);
        fs::rename(path.join(name), &outside).unwrap();
        symlink(&outside, path.join(name)).unwrap();
        let before = names(&outside);
        for lost in ["FORMAT", "LOCK"] {
            let whole = fs::read(path.join(lost)).unwrap();
            fs::remove_file(path.join(lost)).unwrap();
            for repaired in [fast().plan_repair(&path, |_| ()), fast().repair(&path, |_| ())] {
                let refused = repaired.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt, "{name}, {lost}: {refused}");
                assert!(refused.to_string().contains(name), "{name}, {lost}: {refused}");
            }
            assert_eq!(names(&outside), before, "{name}, {lost}");
            fs::write(path.join(lost), whole).unwrap();
        }
        fs::remove_file(path.join(name)).unwrap();
        fs::rename(&outside, path.join(name)).unwrap();
    }
    assert_eq!(verify(&path).findings, []);
}

#[test]
fn repair_keeps_a_storage_whose_record_is_lost() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    let before = names(&path.join("storages"));
    // The first leaf of the table has the records of the storages.
    overwrite(&path.join("meta/0000000000000004.tab"), 113);
    let done = fast().repair(&path, |_| ()).unwrap();
    assert!(
        done.losses.iter().any(|loss| loss.reason.contains("of up to 0 tensors and 2 storages are lost")),
        "{done:?}"
    );
    fast().open(&path).unwrap().gc().unwrap();
    let mut left = names(&path.join("storages"));
    left.extend(names(&path.join("lost+found")));
    assert!(before.is_subset(&left), "{:?} are gone", before.difference(&left));
}

#[test]
fn file_with_an_impossible_id_does_not_use_up_the_ids() {
    for name in ["fffffffffffffff0.bin", "fffffffffffffffe.sum", "8000000000000000.bin"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chunked.smap");
        create_chunked_store(&path);
        overwrite(&path.join(BIN), 5);
        fs::write(path.join("storages").join(name), b"").unwrap();
        let done = fast().repair(&path, |_| ()).unwrap();
        assert!(done.generation.is_some(), "{done:?}");
        let store = fast().open(&path).unwrap();
        store.save("after", &Tensor::from_vec(vec![9u8], &[1]).unwrap()).unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{name}");
    }
}

#[test]
fn repair_names_a_file_of_an_impossible_generation() {
    for name in ["fffffffffffffffe.man", "ffffffffffffffff.man", "fffffffffffffffe.tab"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chunked.smap");
        create_chunked_store(&path);
        overwrite(&path.join(BIN), 5);
        let (stray, before) = (path.join("meta").join(name), names(&path.join("meta")));
        fs::write(&stray, b"rubbish").unwrap();
        for refused in [fast().plan_repair(&path, |_| ()), fast().repair(&path, |_| ())] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            assert!(refused.to_string().contains(name), "{refused}");
        }
        fs::remove_file(&stray).unwrap();
        assert_eq!(names(&path.join("meta")), before);
        fast().repair(&path, |_| ()).unwrap();
        fast().open(&path).unwrap().save("after", &Tensor::from_vec(vec![9u8], &[1]).unwrap()).unwrap();
    }
}

#[test]
fn chunk_digests_are_not_rewritten_during_an_append() {
    let (_dir, path, store) = new_fast_store();
    store.save("rows", &filled(3 << 18, 1u32)).unwrap();
    let mut txn = store.begin().unwrap();
    txn.append("rows", &filled(2 << 18, 2u32)).unwrap();
    overwrite(&path.join(SUM), 16);
    let refused = fast().repair(&path, |_| ());
    txn.commit().unwrap();
    let findings = verify(&path).findings;
    assert!(findings.iter().all(|finding| !finding.detail.contains("bytes of digests")), "{findings:?}");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
    drop(store);
    fast().repair(&path, |_| ()).unwrap();
    assert_eq!(verify(&path).findings, []);
    assert_eq!(content(&path)["rows"].0, [5 << 18]);
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
fn case_32_verify_reads_a_storage_with_a_false_length_only_to_its_end() {
    let (_dir, path, store) = new_fast_store();
    store.save("byte", &filled(3 << 20, 1u8)).unwrap();
    drop(store);
    write_record_of(&path, i64::MAX as u64);
    let verified = verify(&path);
    assert!(verified.findings.iter().all(|finding| finding.affected.contains("byte")), "{verified:?}");
    assert_eq!(verified.read_bytes, 3 << 20);
    let findings = fast().open(&path).unwrap().verify_tensors(&["byte"], |_| ()).unwrap().findings;
    assert!(!findings.is_empty());
    let done = fast().repair(&path, |_| ()).unwrap();
    assert_eq!(done.losses.len(), 1, "{done:?}");
    assert_eq!(verify(&path).findings, []);
}

#[test]
fn simultaneous_repairs_create_one_lock() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    for round in 0..20 {
        fs::remove_file(path.join("LOCK")).unwrap();
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    fast().repair(&path, |_| ()).unwrap();
                });
            }
        });
        assert!(
            !path.join("lost+found/LOCK").exists(),
            "round {round}: the lock of another repair was moved away"
        );
    }
    assert_eq!(lost_or_changed(&path, &expected), BTreeSet::new());
}
