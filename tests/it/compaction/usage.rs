//! Statistics of disk usage.

use super::{create_sparse_store, files, reasons, storage_bytes, vector};
use crate::harness::hooked::Hooked;
use crate::harness::processes::{read_line, start};
use crate::harness::{fast, new_path};
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use stridemap::maintenance::SpaceReason;
use stridemap::{StorageKind, Store};

/// Returns the lengths of a store's files and of their blocks on disk, in bytes, as `du` counts them.
pub(super) fn disk_usage(path: &Path) -> (u64, u64) {
    let own = files(path).into_iter().filter(|file| file.is_file());
    let all = own.chain(files(&path.join("storages"))).chain(files(&path.join("meta")));
    all.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + file.blocks() * 512))
}

#[test]
fn statistics_have_a_reason_for_each_byte() {
    let (_dir, path) = new_path();
    let (store, _) = create_sparse_store(&path, &fast());
    store.save("whole", &vector(1000, 1)).unwrap();
    store.gc().unwrap();
    let unreached = (SpaceReason::Unreached, (4 << 20) - 103 * 4096);
    let reach = || reasons(&store);
    assert_eq!(reach(), std::slice::from_ref(&unreached));

    // A file of an aborted commit, one of a running writer, and one that a killed writer left.
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    let orphaned = (SpaceReason::Orphaned, 1000);
    assert_eq!(reach(), [unreached.clone(), orphaned.clone()]);
    let mut writer = start("compact.stage", &path);
    let id: u32 = read_line(&mut BufReader::new(writer.stdout.take().unwrap())).parse().unwrap();
    // The bytes of elements and of chunk digests.
    let by_length = || {
        let mut reasons = reach();
        reasons.sort_by_key(|(_, bytes)| *bytes);
        reasons
    };
    match &by_length()[..] {
        [(SpaceReason::Writing { .. }, 128), first, second, (SpaceReason::Writing { processes }, bytes)] => {
            assert_eq!((first, second, *bytes), (&orphaned, &unreached, 8 << 20));
            assert!(processes.is_empty() || *processes == [id], "{processes:?}, not {id}");
        }
        other => panic!("{other:?}"),
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    let abandoned = |bytes| (SpaceReason::Abandoned, bytes);
    assert_eq!(by_length(), [abandoned(128), orphaned, unreached.clone(), abandoned(8 << 20)]);

    // The statistics contain every byte of the store's files, and exactly the bytes that gc frees.
    let stats = store.stats().unwrap();
    assert_eq!(stats.file_bytes, disk_usage(&path).0);
    let before = storage_bytes(&path);
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (3, 1000 + (8 << 20) + 128));
    assert_eq!(before - storage_bytes(&path), collected.size_bytes);
    assert_eq!(reach(), [unreached]);

    let [thin] = &store.stats().unwrap().storages[..] else { panic!() };
    assert_eq!((thin.id, thin.kind, thin.tensor_count), (Some(1), Some(StorageKind::Sealed), 1));
    assert_eq!((thin.size_bytes, thin.reachable_bytes, thin.is_exact), (4 << 20, 103 * 4096, true));
    assert_eq!((thin.names.as_slice(), thin.file_bytes), (&["thin".to_owned()][..], (4 << 20) + 4 * 16));
}

#[test]
fn statistics_change_nothing() {
    let (_dir, path) = new_path();
    let (store, _) = create_sparse_store(&path, &fast());
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    fs::write(path.join("storages/.stage-dead"), [0; 1000]).unwrap();
    let names = |dir: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = (names(path.join("storages")), names(path.join("meta")));
    // Another writer holds the lock throughout.
    let lock = fs::File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    let reader = Store::open(&path).unwrap();
    assert_eq!(reader.stats().unwrap().storages.len(), 3);
    assert_eq!((names(path.join("storages")), names(path.join("meta"))), before);
    drop(store);
}

#[test]
fn statistics_take_no_lock_of_commits_or_appends() {
    let (_dir, path) = new_path();
    let (store, _) = create_sparse_store(&path, &fast());
    let tried: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let noted = Arc::clone(&tried);
    let disk = Hooked::before(move |operation, path| {
        if operation == "try_lock" {
            noted.lock().unwrap().push(path.to_owned());
        }
        Ok(())
    });
    let reader = fast().disk(Arc::new(disk)).open(&path).unwrap();
    // One of each kind that may be in use: bytes past the end, a storage of a future commit, an unfinished file, an
    // older generation.
    let _pinned = store.snapshot();
    store.save("new", &vector(3, 3)).unwrap();
    let end = fs::File::options().write(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    end.set_len((4 << 20) + 5000).unwrap();
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    let staged = path.join("storages/.stage-dead");
    fs::write(&staged, [0; 100]).unwrap();
    tried.lock().unwrap().clear();
    let expected = [
        (SpaceReason::Unreached, (4 << 20) - 103 * 4096),
        (SpaceReason::PastEnd, 5000),
        (SpaceReason::Orphaned, 1000),
        (SpaceReason::Abandoned, 100),
    ];
    let mut found = reasons(&reader);
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    assert_eq!(found, expected);
    let tried = tried.lock().unwrap();
    assert!(tried.contains(&staged), "{tried:?}");
    let is_another = |path: &&PathBuf| **path != staged && path.extension().is_none_or(|end| end != "man");
    assert_eq!(tried.iter().find(is_another), None);
}
