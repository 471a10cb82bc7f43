//! What a replica needs: refusals, files that are deleted meanwhile, and storages that are changed in place.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use stridemap::replica::{FileKey, FileKind};
use stridemap::{ErrorKind, Rule, Snapshot, StorageKind, Store};

use super::{elsewhere, fill, open};
use crate::external::{Adopted, external_beside};
use crate::files::MemoryFiles;
use crate::harness::{arange, assert_refused, fast, filled, new_fast_store};

fn read(snapshot: &Snapshot, key: FileKey) -> stridemap::Result<Vec<u8>> {
    let file = snapshot.open_replica_file(key)?;
    let mut bytes = Vec::new();
    let mut add = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    file.stream(0..file.size_bytes(), &mut add).unwrap();
    Ok(bytes)
}

fn storage_of(store: &Store, name: &str) -> FileKey {
    FileKey { kind: FileKind::Storage, number: store.load(name).unwrap().storage_id().unwrap() }
}

#[test]
fn earlier_manifest_must_be_one_of_the_store() {
    let (_dir, _, store) = new_fast_store();
    store.save("x", &1i32).unwrap();
    let first = store.snapshot();
    store.save("y", &1i32).unwrap();
    let second = store.snapshot();
    let (_dir, _, other) = new_fast_store();
    let manifest = |snapshot: &Snapshot| snapshot.replica_files(None).unwrap().manifest;
    let refused = |since: &[u8]| first.replica_files(Some(since));
    for bad in [&b""[..], b"no manifest", &[0xFF; 100], &manifest(&first)[1..]] {
        assert_refused(
            refused(bad),
            ErrorKind::InvalidArgument,
            &["the earlier manifest is none of this store"],
        );
    }
    let mut damaged = manifest(&first);
    damaged[50] ^= 1;
    assert_eq!(refused(&damaged).unwrap_err().rule(), Some(Rule::ManifestDigest));
    assert_eq!(refused(&manifest(&other.snapshot())).unwrap_err().rule(), Some(Rule::StoreUuid));
    assert_refused(
        refused(&manifest(&second)),
        ErrorKind::InvalidArgument,
        &["is of generation 3", "generation 2"],
    );
    let same = refused(&manifest(&first)).unwrap();
    assert!(same.needed.is_empty() && same.removed.is_empty() && !same.is_complete, "{same:?}");
}

#[test]
fn external_storages_are_refused_until_they_are_materialized() {
    let adopted = Adopted::new();
    let store = external_beside().open(&adopted.path).unwrap();
    let refused = store.snapshot().replica_files(None);
    assert_refused(refused, ErrorKind::NotAllowed, &["model.safetensors", "materialize"]);
    let _ = store.materialize(|_| ()).unwrap();
    assert!(store.snapshot().replica_files(None).is_ok());
}

#[test]
fn snapshot_keeps_its_files_and_a_removed_tag_does_not() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    for name in ["matrix", "transposed", "every third", "backwards", "empty"] {
        store.remove(name).unwrap();
    }
    let other = fast().open(&path).unwrap();
    let snapshot = fast().open(&path).unwrap().snapshot();
    let files = snapshot.replica_files(None).unwrap();
    let id = other.at("v1").unwrap().load("matrix").unwrap().storage_id().unwrap();
    let matrix = FileKey { kind: FileKind::Storage, number: id };
    assert!(files.needed.contains_key(&matrix));
    // Commits of others delete nothing that the snapshot needs.
    for name in other.names().unwrap() {
        other.remove(&name).unwrap();
    }
    let _ = other.gc().unwrap();
    for (key, file) in &files.needed {
        assert_eq!(read(&snapshot, *key).unwrap().len() as u64, file.length_bytes, "{}", key.path());
    }
    other.untag("v1").unwrap();
    other.untag("v2").unwrap();
    drop(store);
    let _ = other.gc().unwrap();
    let own: Vec<u64> = snapshot.storages().map(|storage| storage.unwrap().id).collect();
    let mut deleted = 0;
    for (key, file) in &files.needed {
        match read(&snapshot, *key) {
            Ok(bytes) => assert_eq!(bytes.len() as u64, file.length_bytes),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
                assert!(e.to_string().contains(&key.path()) && e.to_string().contains("push again"), "{e}");
                let is_storage = matches!(key.kind, FileKind::Storage | FileKind::Sum);
                assert!(!is_storage || !own.contains(&key.number), "{e}");
                deleted += 1;
            }
        }
    }
    // Two manifests, and the storage of the matrix with its digests.
    assert!(deleted >= 4, "{deleted}");
    assert_refused(snapshot.replica_files(None), ErrorKind::Conflict, &["push again"]);
}

#[test]
fn missing_file_of_the_generation_is_damage() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let snapshot = store.snapshot();
    let [small, mutable] = ["small", "mutable"].map(|name| storage_of(&store, name));
    for key in [small, mutable] {
        let file = path.join(key.path());
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[1..]).unwrap();
        let refused = snapshot.open_replica_file(key).unwrap_err();
        assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::StorageFile)));
        std::fs::remove_file(&file).unwrap();
        let refused = snapshot.open_replica_file(key).unwrap_err();
        assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::StorageFile)));
    }
    let unknown = FileKey { kind: FileKind::Storage, number: 999 };
    let refused = snapshot.open_replica_file(unknown);
    assert_refused(refused, ErrorKind::InvalidArgument, &["do not need it"]);
}

#[test]
fn reader_of_a_file_ends_at_the_record_even_if_the_file_is_longer() {
    let (_dir, _, store) = new_fast_store();
    store.create_growable("rows", stridemap::DType::I64, &[0], 1 << 20).unwrap();
    store.append("rows", &arange(&[10])).unwrap();
    let (snapshot, key) = (store.snapshot(), storage_of(&store, "rows"));
    store.append("rows", &arange(&[1000])).unwrap();
    let file = snapshot.open_replica_file(key).unwrap();
    assert_eq!((file.size_bytes(), read(&snapshot, key).unwrap().len()), (80, 80));
    let end = file.read_exact_at(&mut [0; 8], 76).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    let end = file.stream(0..81, &mut |_| Ok(())).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    let stopped = file.stream(0..80, &mut |_| Err(io::Error::other("stop"))).unwrap_err();
    assert_eq!(stopped.to_string(), "stop");
}

#[test]
fn mutable_storage_is_copied_in_one_state_with_its_mark() {
    let (_dir, path, store) = new_fast_store();
    store.write(|txn| txn.save_as("x", &filled(1 << 20, 0i64), StorageKind::Mutable)).unwrap();
    let (snapshot, key) = (store.snapshot(), storage_of(&store, "x"));
    let (has_begun, is_done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    thread::scope(|scope| {
        scope.spawn(|| {
            let writer = fast().open(&path).unwrap().load("x").unwrap();
            for value in 1.. {
                writer.lock_exclusive().unwrap().fill_(value).unwrap();
                has_begun.store(true, Ordering::Relaxed);
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while !has_begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        for _ in 0..5 {
            let bytes = read(&snapshot, key).unwrap();
            let (elements, mark) = bytes.split_at(8 << 20);
            assert_eq!(mark, [0]);
            let first = &elements[..8];
            assert!(elements.chunks(8).all(|element| element == first));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    // A change that was interrupted is copied as it is, and a reader there is told.
    let file = path.join(key.path());
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() = 1;
    std::fs::write(&file, &bytes).unwrap();
    assert!(read(&snapshot, key).unwrap() == bytes);
    let there = open(MemoryFiles::of(&path));
    assert_refused(there.load("x").unwrap().read::<i64>(), ErrorKind::Interrupted, &["allow_interrupted"]);
    assert!(read(&there.snapshot(), key).unwrap() == bytes);
    // While another handle changes it, the reader waits, and then says so.
    let writer = store.load("x").unwrap().allow_interrupted();
    let impatient = fast().lock_timeout(Duration::ZERO).open(&path).unwrap().snapshot();
    let _guard = writer.lock_exclusive().unwrap();
    let busy = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let file = impatient.open_replica_file(key).unwrap();
            let busy = file.stream(0..8, &mut |_| Ok(())).unwrap_err();
            let inner = busy.get_ref().unwrap().downcast_ref::<stridemap::Error>().unwrap();
            inner.kind()
        });
        reader.join().unwrap()
    });
    assert_eq!(busy, ErrorKind::Busy);
}

#[test]
fn storages_that_are_changed_in_place_are_always_listed() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let first = store.snapshot().replica_files(None).unwrap();
    store.save("other", &1i32).unwrap();
    let second = store.snapshot().replica_files(Some(&first.manifest)).unwrap();
    let [mutable, live, other] = ["mutable", "live", "other"].map(|name| storage_of(&store, name));
    assert!(second.needed.keys().eq([&mutable, &live, &other]), "{second:?}");
    assert!(second.needed[&mutable].is_in_place && second.needed[&live].is_in_place);
    assert_eq!(second.needed[&mutable].length_bytes, 50 * 8 + 1);
    assert!(!second.needed[&other].is_in_place && second.removed.is_empty());
    for there in elsewhere(&path) {
        assert_eq!(there.snapshot().replica_files(Some(&first.manifest)).unwrap(), second);
    }
}

#[test]
fn snapshot_at_a_tag_is_listed_without_tags() {
    let (_dir, _, store) = new_fast_store();
    fill(&store);
    let tagged = store.at("v1").unwrap().replica_files(None).unwrap();
    assert!(tagged.needed.keys().all(|key| key.kind != FileKind::KeptManifest), "{tagged:?}");
    assert_eq!(tagged.needed.keys().filter(|key| key.kind == FileKind::Storage).count(), 4);
}
