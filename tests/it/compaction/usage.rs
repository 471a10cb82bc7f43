//! Statistics of disk usage.

use super::{create_sparse_store, files, reasons, storage_bytes, vector};
use crate::harness::hooked::Hooked;
use crate::harness::processes::{read_line, start};
use crate::harness::{fast, new_path};
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use stridemap::maintenance::SpaceReason;
use stridemap::{DType, StorageKind, Store};

/// Returns the lengths of a store's files and of their blocks on disk, in bytes, as `du` counts them.
pub(super) fn disk_usage(path: &Path) -> (u64, u64) {
    let own = files(path).into_iter().filter(|file| file.is_file());
    let all = own.chain(files(&path.join("storages"))).chain(files(&path.join("meta")));
    all.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + file.blocks() * 512))
}

/// Returns the length of everything in a directory, as `du -sb` prints it.
pub(super) fn folder_bytes(path: &Path) -> u64 {
    let ran = Command::new("du").arg("-sb").arg(path).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let printed = String::from_utf8(ran.stdout).unwrap();
    printed.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the parts of a store's directory, which add up.
fn parts(store: &Store, path: &Path) -> [u64; 9] {
    let usage = store.disk_usage().unwrap();
    let parts = [
        usage.metadata_bytes,
        usage.digest_bytes,
        usage.reachable_bytes,
        usage.padding_bytes,
        usage.unreachable_bytes,
        usage.garbage_bytes,
        usage.staging_bytes,
        usage.lost_found_bytes,
        usage.other_bytes,
    ];
    assert_eq!(
        (usage.folder_bytes, parts.iter().sum()),
        (folder_bytes(path), folder_bytes(path)),
        "{usage:#?}"
    );
    // So do the parts of each storage.
    for storage in usage.storages.iter().filter(|storage| storage.kind.is_some()) {
        let past_end = storage.reclaimable.iter().filter(|it| it.reason == SpaceReason::PastEnd);
        let needed = [
            storage.reachable_bytes,
            storage.padding_bytes,
            storage.unreachable_bytes,
            storage.digest_bytes,
            past_end.map(|reclaimable| reclaimable.bytes).sum(),
        ];
        assert_eq!(needed.iter().sum::<u64>(), storage.file_bytes, "{storage:?}");
    }
    parts
}

#[test]
fn statistics_add_up_to_the_bytes_of_the_folder() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    let names = ["a", "b", "c"];
    let mut txn = store.begin().unwrap();
    names.iter().for_each(|name| txn.save(name, &vector(5, 0)).unwrap());
    txn.commit().unwrap();
    // Small tensors of one transaction share a storage, and each begins at a multiple of 64 bytes.
    let [_, digests, reachable, padding, unreachable, garbage, staging, lost_found, directories] =
        parts(&store, &path);
    let element_bytes = store.load("a").unwrap().nbytes() as u64;
    assert_eq!((digests, reachable, unreachable, garbage), (0, 3 * element_bytes, 0, 0));
    assert_eq!((padding > 0, staging, lost_found, directories > 0), (true, 0, 0, true));

    // Tensors of every kind, one of them a view, and a storage that a pinned generation needs.
    store.save("large", &vector(3 << 20, 0)).unwrap();
    store.save_view("part", &store.load("large").unwrap().narrow(0, 10, 1000).unwrap()).unwrap();
    store.remove("large").unwrap();
    let _ = store.create_tensor("mutable", DType::F32, &[100], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("live", DType::U8, &[5000], StorageKind::Live).unwrap();
    let old = Store::open(&path).unwrap();
    store.save("pinned", &vector(1 << 20, 0)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.remove("pinned").unwrap();
    let [_, digests, _, _, unreachable, garbage, ..] = parts(&store, &path);
    assert!(digests > 0 && unreachable > 1 << 20 && garbage > 1 << 20);
    let holding: Vec<_> = store.disk_usage().unwrap().storages;
    let holding = holding.iter().find(|storage| storage.unreachable_bytes > 1 << 20).unwrap();
    assert_eq!(holding.names, ["part"]);

    // An append that was aborted, files of nobody, unfinished files, and what a repair kept.
    let file = fs::File::options().append(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    file.set_len(file.metadata().unwrap().len() + 5000).unwrap();
    fs::create_dir(path.join("lost+found")).unwrap();
    for (name, length) in [
        ("notes.txt", 1001),
        ("meta/notes", 1002),
        (".stage-1", 2001),
        ("meta/.stage-2", 2002),
        ("storages/.stage-3", 2003),
        ("lost+found/0000000000000001.bin", 3001),
        ("storages/00000000000000ff.bin", 4001),
    ] {
        fs::write(path.join(name), vec![0; length]).unwrap();
    }
    let now = parts(&store, &path);
    assert_eq!(now[5], garbage + 5000 + 4001);
    assert_eq!((now[6], now[7]), (2001 + 2002 + 2003, 3001));
    let dir_bytes = fs::metadata(path.join("lost+found")).unwrap().len();
    assert_eq!(now[8], directories + dir_bytes + 1001 + 1002);

    drop((old, reader));
    store.gc().unwrap();
    store.compact(|_| ()).unwrap();
    let now = parts(&store, &path);
    assert_eq!((now[5], now[6], now[7]), (0, 0, 3001));
    assert!(store.disk_usage().unwrap().storages.iter().all(|storage| storage.unreachable_bytes == 0));
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
    let usage = store.disk_usage().unwrap();
    assert_eq!(usage.folder_bytes, folder_bytes(&path));
    let before = storage_bytes(&path);
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (3, 1000 + (8 << 20) + 128));
    assert_eq!(before - storage_bytes(&path), collected.size_bytes);
    assert_eq!(reach(), [unreached]);

    let [thin, whole] = &store.disk_usage().unwrap().storages[..] else { panic!() };
    assert_eq!((whole.names.as_slice(), whole.reclaimable.len()), (&["whole".to_owned()][..], 0));
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
    assert_eq!(reader.disk_usage().unwrap().storages.len(), 3);
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
