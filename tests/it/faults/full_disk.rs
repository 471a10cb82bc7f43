//! A real full disk: a tmpfs of a few MiB. Skipped, with the reason printed, if it cannot be mounted.

use std::io;
use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};

use crate::harness::filled;
use crate::harness::small_disk::SmallDisk;

fn files(path: &Path) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

fn bytes(n: usize) -> Tensor {
    filled(n, 7u8)
}

#[test]
fn full_disk_is_an_error_that_leaves_the_store_unchanged() {
    let Some(disk) = SmallDisk::mount("6m") else { return };
    disk.run_role("fill the disk");
}

#[test]
fn removal_on_a_full_disk_says_how_to_free_space() {
    let Some(disk) = SmallDisk::mount("6m") else { return };
    disk.run_role("remove on a full disk");
}

/// Asserts that the same removal is refused, and returns the message.
fn refused_removal(store: &Store) -> String {
    let error = store.remove("large").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(store.names().unwrap(), ["large", "small"]);
    error.to_string()
}

fn remove_on_a_full_disk(disk: &Path) {
    let path = disk.join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("large", &bytes(4 << 20)).unwrap();
    store.save("small", &bytes(1000)).unwrap();
    std::fs::write(path.join("storages/00000000000000ff.bin"), [0; 100_000]).unwrap();
    let filler = disk.join("filler");
    let fill_up = || {
        let mut file = std::fs::File::options().append(true).create(true).open(&filler).unwrap();
        while io::Write::write(&mut file, &[0; 4096]).is_ok_and(|n| n > 0) {}
    };
    fill_up();
    let message = refused_removal(&store);
    for part in
        ["No space left on device", "nothing was changed", "a commit that removes tensors", "16 KiB", "gc"]
    {
        assert!(message.contains(part), "{message}");
    }
    // As the message advises: delete as many bytes of other files as it states.
    std::fs::File::options()
        .write(true)
        .open(&filler)
        .unwrap()
        .set_len(std::fs::metadata(&filler).unwrap().len() - (16 << 10))
        .unwrap();
    store.remove("large").unwrap();
    store.save("large", &bytes(3 << 20)).unwrap();
    fill_up();
    // Or delete garbage with `gc`, which needs no space.
    std::fs::write(path.join("storages/00000000000000fe.bin"), b"").unwrap();
    refused_removal(&store);
    let orphan = path.join("storages/00000000000000fd.bin");
    std::fs::rename(&filler, &orphan).unwrap();
    assert!(store.gc().unwrap().file_count >= 1);
    store.remove("large").unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "fill the disk" => fill(path),
        "remove on a full disk" => remove_on_a_full_disk(path),
        _ => return false,
    }
    true
}

fn fill(disk: &Path) {
    let path = disk.join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("small", &bytes(1000)).unwrap();
    // One tensor with its own storage, which is allocated at once, and small ones, which fill the disk gradually.
    let mut txn = store.begin().unwrap();
    let by_and_by = (0..8).find_map(|i| txn.save(&format!("part.{i}"), &bytes(1 << 20)).err());
    drop(txn);
    let large = store.save("large", &bytes(8 << 20)).unwrap_err();
    let zeros = store.create_tensor("large", DType::U8, &[8 << 20], StorageKind::Mutable).unwrap_err();
    store.create_growable("growing", DType::U8, &[10], 0).unwrap();
    let appended = store.append("growing", &bytes(8 << 20)).unwrap_err();
    assert_eq!(store.load("growing").unwrap().size(), [10]);
    store.append("growing", &bytes(10)).unwrap();
    assert_eq!(store.load("growing").unwrap().size(), [20]);
    store.remove("growing").unwrap();
    store.gc().unwrap();
    for error in [large, zeros, by_and_by.unwrap(), appended] {
        assert_eq!(error.kind(), ErrorKind::Io);
        let cause = error.io_error().unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::StorageFull, "{error}");
    }
    assert_eq!(files(&path.join("storages")), 1, "the staged file still exists");
    store.save("fits", &bytes(2 << 20)).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.names().unwrap(), ["fits", "small"]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
