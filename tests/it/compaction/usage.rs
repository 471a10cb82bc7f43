//! Statistics of disk usage.

use super::{create_sparse_store, files, reasons, storage_bytes, vector};
use crate::external::Adopted;
use crate::harness::hooked::Hooked;
use crate::harness::processes::{OtherProcess, read_line, start};
use crate::harness::{fast, new_path};
use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use stridemap::maintenance::{DiskUsage, SpaceReason};
use stridemap::{DType, StorageKind, Store, Tensor};

/// Returns the lengths of a store's files and of their blocks on disk, in bytes, as `du` counts them.
pub(super) fn disk_usage(path: &Path) -> (u64, u64) {
    let own = files(path).into_iter().filter(|file| file.is_file());
    let inside = ["generations", "meta", "storages"].into_iter().flat_map(|dir| files(&path.join(dir)));
    let all = own.chain(inside);
    all.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + file.blocks() * 512))
}

/// Returns the length of everything in a directory, as `du -sb` prints it.
pub(super) fn folder_bytes(path: &Path) -> u64 {
    let ran = Command::new("du").arg("-sb").arg(path).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let printed = String::from_utf8(ran.stdout).unwrap();
    printed.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the length of everything in a directory, as a walk of the tree finds it. A file with several names counts
/// once.
fn walked_bytes(path: &Path) -> u64 {
    let (mut lengths, mut paths) = (BTreeMap::new(), vec![path.to_path_buf()]);
    while let Some(path) = paths.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        if found.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        lengths.insert((found.dev(), found.ino()), found.len());
    }
    lengths.values().sum()
}

/// Returns the disk usage, after checking that its numbers add up to the directory, and to the files that it lists.
#[track_caller]
pub(crate) fn checked(store: &Store, path: &Path) -> DiskUsage {
    let usage = store.disk_usage().unwrap();
    let DiskUsage { reachable_bytes, tagged_bytes, held_bytes, reclaimable_bytes, metadata_bytes, .. } =
        usage;
    let sum = reachable_bytes + tagged_bytes + held_bytes + reclaimable_bytes + metadata_bytes;
    assert_eq!([sum, usage.folder_bytes()], [walked_bytes(path); 2], "{usage:#?}");
    assert_eq!(sum, folder_bytes(path), "{usage:#?}");
    let listed = |is_counted: &dyn Fn(&SpaceReason) -> bool| {
        let files = usage.spare.iter().filter(|file| is_counted(&file.reason));
        files.map(|file| file.spare_bytes).sum::<u64>()
    };
    let is_foreign = |reason: &SpaceReason| *reason == SpaceReason::Foreign;
    let is_tagged = |reason: &SpaceReason| matches!(reason, SpaceReason::Tagged { .. });
    let is_held =
        |reason: &SpaceReason| matches!(reason, SpaceReason::Pinned { .. } | SpaceReason::Writing { .. });
    assert_eq!([listed(&is_tagged), listed(&is_held)], [tagged_bytes, held_bytes], "{usage:#?}");
    let is_needed = |reason: &SpaceReason| is_tagged(reason) || is_held(reason);
    let reclaimable = listed(&|reason| !is_needed(reason) && !is_foreign(reason));
    assert_eq!(reclaimable, usage.reclaimable_bytes, "{usage:#?}");
    assert!(listed(&is_foreign) < usage.metadata_bytes);
    usage
}

#[test]
fn five_numbers_add_up_to_the_bytes_of_the_folder_in_every_state() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    let _ = checked(&store, &path);
    let mut txn = store.begin().unwrap();
    ["a", "b", "c"].iter().for_each(|name| txn.save(name, &vector(5, 0)).unwrap());
    txn.commit().unwrap();
    // Small tensors of one transaction share a storage, and each begins at a multiple of 64 bytes.
    let element_bytes = 3 * store.load("a").unwrap().nbytes() as u64;
    let usage = checked(&store, &path);
    assert!((element_bytes + 1..1000).contains(&usage.reachable_bytes), "{usage:?}");
    assert_eq!((usage.held_bytes, usage.metadata_bytes > 0), (0, true));

    // A table, and tensors of every kind: a view with gaps, and one that can grow.
    let mut txn = store.begin().unwrap();
    (0..2000).for_each(|i| txn.save(&format!("many.{i}"), &vector(1, i)).unwrap());
    txn.commit().unwrap();
    let _ = checked(&store, &path);
    store.save("large", &vector(3 << 20, 0)).unwrap();
    store
        .save_view("part", &store.load("large").unwrap().slice(0, Some(10), Some(5000), 7).unwrap())
        .unwrap();
    store.remove("large").unwrap();
    let _ = store.create_tensor("mutable", DType::F32, &[100], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("live", DType::U8, &[5000], StorageKind::Live).unwrap();
    store.create_growable("x", DType::U8, &[0], 1_000_000).unwrap();
    let _ = checked(&store, &path);
    store.append("x", &Tensor::from_vec(vec![1u8; 100_000], &[100_000]).unwrap()).unwrap();
    let usage = checked(&store, &path);
    let part = usage.spare.iter().find(|file| file.reason == SpaceReason::Unreached).unwrap();
    assert_eq!(part.names, ["part"]);
    assert!(part.spare_bytes > 3 << 20 && part.storage_id.is_some(), "{part:?}");

    // Readers of older generations hold files; so does an append in progress.
    let old = Store::open(&path).unwrap();
    store.save("pinned", &vector(1 << 20, 0)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.remove("pinned").unwrap();
    let usage = checked(&store, &path);
    assert!(usage.held_bytes > 4 << 20, "{usage:?}");
    let mut appender = OtherProcess::start("appender: hold", &path);
    assert_eq!(appender.read_line(), "appended");
    let _ = checked(&store, &path);
    appender.kill();
    let _ = checked(&store, &path);
    drop((old, reader));
    let usage = checked(&store, &path);
    assert!(usage.reclaimable_bytes > 7 << 20, "{usage:?}");

    // An append that was aborted, unfinished files of dead writers, and files of nobody.
    let file = fs::File::options().append(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    file.set_len(file.metadata().unwrap().len() + 5000).unwrap();
    fs::create_dir_all(path.join("kept/by/someone")).unwrap();
    for name in ["storages/more", "storages/.stage-dir", "meta/0000000000000077.his", ".stage-dir"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", path.join("link")).unwrap();
    for (name, length) in [
        ("notes.txt", 1001),
        ("meta/notes", 1002),
        (".stage-1", 2001),
        ("meta/.stage-2", 2002),
        ("storages/.stage-3", 2003),
        ("kept/by/someone/0000000000000001.bin", 3001),
        ("kept/.stage-4", 3002),
        ("storages/more/x", 3003),
        ("storages/.stage-dir/x", 3004),
        ("meta/0000000000000077.his/x", 3005),
        (".stage-dir/x", 3006),
        ("storages/00000000000000ff.bin", 4001),
    ] {
        fs::write(path.join(name), vec![0; length]).unwrap();
    }
    let now = checked(&store, &path);
    let more = 5000 + 2001 + 2002 + 2003 + 4001;
    assert_eq!(now.reclaimable_bytes, usage.reclaimable_bytes + more, "{now:#?}");
    assert!(
        now.metadata_bytes > usage.metadata_bytes + 1001 + 1002 + 3001 + 3002 + 3003 + 3004 + 3005 + 3006
    );
    let foreign = now.spare.iter().filter(|file| file.reason == SpaceReason::Foreign);
    let mut foreign: Vec<_> =
        foreign.map(|file| file.path.strip_prefix(&path).unwrap().to_str().unwrap()).collect();
    foreign.sort_unstable();
    let expected = [
        ".stage-dir",
        "kept",
        "link",
        "meta/0000000000000077.his",
        "meta/notes",
        "notes.txt",
        "storages/.stage-dir",
        "storages/more",
    ];
    assert_eq!(foreign, expected);

    store.gc().unwrap();
    store.compact(false, |_| ()).unwrap();
    let now = checked(&store, &path);
    assert_eq!(now.held_bytes, 0, "{now:#?}");
    assert!(now.reclaimable_bytes < 10_000, "{now:#?}");
}

#[test]
fn file_with_several_names_is_counted_once_by_the_name_that_is_needed_most() {
    let (dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    for (name, bytes) in [("a", 5 << 20), ("b", 6 << 20), ("same", 5 << 20), ("gone", 7 << 20)] {
        store.save(name, &vec![1u8; bytes]).unwrap();
    }
    let bin = |id: u64| path.join(format!("storages/{id:016x}.bin"));
    let before = checked(&store, &path);
    assert_eq!(before.reachable_bytes, 23 << 20);
    // A name outside changes nothing.
    fs::hard_link(bin(1), dir.path().join("backup.bin")).unwrap();
    let outside = checked(&store, &path);
    assert_eq!(outside.reachable_bytes, before.reachable_bytes);
    assert_eq!(outside.metadata_bytes, before.metadata_bytes);

    // Names of a needed storage that come before its own: foreign, in a foreign directory, and of no storage.
    fs::create_dir_all(path.join("aside/deep")).unwrap();
    fs::create_dir(path.join("meta/more")).unwrap();
    let others = ["a.bin", "aside/deep/a.bin", "meta/a", "meta/more/a", "storages/0", "LOCK.bin"];
    for other in others {
        fs::hard_link(bin(1), path.join(other)).unwrap();
    }
    fs::hard_link(bin(1), path.join("storages/0000000000000000.bin")).unwrap();
    let linked = checked(&store, &path);
    assert_eq!((linked.reachable_bytes, linked.reclaimable_bytes), (23 << 20, before.reclaimable_bytes));
    assert!(linked.metadata_bytes < before.metadata_bytes + (1 << 20), "{linked:?}");
    for name in ["meta/a", "a.bin"] {
        let listed = linked.spare.iter().find(|file| file.path.ends_with(name)).unwrap();
        assert_eq!((listed.size_bytes, listed.spare_bytes), (5 << 20, 0));
    }

    // Two storages in one file, as a program that replaces equal files by links leaves them.
    fs::remove_file(bin(3)).unwrap();
    fs::hard_link(bin(1), bin(3)).unwrap();
    assert_eq!(checked(&store, &path).reachable_bytes, 18 << 20);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);

    // Garbage, and a foreign name of it.
    let reader = Store::open(&path).unwrap();
    store.remove("gone").unwrap();
    fs::hard_link(bin(4), path.join("gone.bin")).unwrap();
    let held = checked(&store, &path);
    assert_eq!(held.reachable_bytes, 11 << 20);
    assert!(held.held_bytes >= 7 << 20, "{held:?}");
    drop(reader);
    let unheld = checked(&store, &path);
    assert!(unheld.held_bytes < 1 << 20 && unheld.reclaimable_bytes >= 7 << 20, "{unheld:?}");
}

#[test]
fn external_files_are_not_part_of_the_folder() {
    let adopted = Adopted::new();
    let usage = checked(&adopted.open(), &adopted.path);
    assert_eq!((usage.reachable_bytes, usage.reclaimable_bytes), (0, 0));
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
    let garbage = |bytes| (SpaceReason::Garbage, bytes);
    assert_eq!(reach(), [unreached.clone(), garbage(1000)]);
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
            assert_eq!((first, second, *bytes), (&garbage(1000), &unreached, 8 << 20));
            assert!(processes.is_empty() || *processes == [id], "{processes:?}, not {id}");
        }
        other => panic!("{other:?}"),
    }
    assert!(store.disk_usage().unwrap().held_bytes >= (8 << 20) + 128);
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(by_length(), [garbage(128), garbage(1000), unreached.clone(), garbage(8 << 20)]);

    // The statistics contain every byte of the store's files, and exactly the bytes that gc frees.
    let before = (checked(&store, &path), storage_bytes(&path));
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (3, 1000 + (8 << 20) + 128));
    assert_eq!(before.1 - storage_bytes(&path), collected.size_bytes);
    assert_eq!(reach(), std::slice::from_ref(&unreached));
    let after = checked(&store, &path);
    assert_eq!(before.0.reclaimable_bytes - after.reclaimable_bytes, collected.size_bytes);

    let [thin] = &after.spare[..] else { panic!("{after:?}") };
    assert_eq!(
        (thin.storage_id, thin.size_bytes, thin.names.as_slice()),
        (Some(1), 4 << 20, &["thin".to_owned()][..])
    );
    assert_eq!(after.reachable_bytes, 103 * 4096 + 4000);
}

#[test]
fn statistics_change_nothing_and_take_no_lock_of_commits_or_appends() {
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
    let before = walked_bytes(&path);
    let lock = fs::File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    assert_eq!(reasons(&reader).len(), 4, "another writer holds the lock");
    // Not by closing it: a process that another test has just started may have it, too.
    fs2::FileExt::unlock(&lock).unwrap();
    tried.lock().unwrap().clear();
    let expected = [
        (SpaceReason::Unreached, (4 << 20) - 103 * 4096),
        (SpaceReason::Garbage, 5000),
        (SpaceReason::Garbage, 1000),
        (SpaceReason::Garbage, 100),
    ];
    let mut found = reasons(&reader);
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    assert_eq!((found.as_slice(), walked_bytes(&path)), (&expected[..], before));
    let tried = tried.lock().unwrap();
    assert!(tried.contains(&staged), "{tried:?}");
    let is_another = |path: &&PathBuf| **path != staged && path.extension().is_none_or(|end| end != "man");
    assert_eq!(tried.iter().find(is_another), None);
}
