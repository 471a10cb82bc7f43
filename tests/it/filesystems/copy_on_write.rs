//! Full disks on copy-on-write file systems: on images of real btrfs and XFS file systems. Skipped, with the reason
//! printed, if these cannot be created or mounted.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use stridemap::{DType, Error, ErrorKind, StorageKind, Store};

use crate::harness::open_mapped;
use crate::harness::processes::run_to_end;
use crate::images::Image;

const ELEMENTS: usize = 1 << 20;

fn btrfs() -> Option<Image> {
    Image::mount("btrfs", &["mkfs.btrfs", "-q"], 128 << 20)
}

fn xfs() -> Option<Image> {
    Image::mount("xfs", &["mkfs.xfs", "-q"], 320 << 20)
}

fn make_store(path: &Path) {
    let store = Store::create(path).unwrap();
    for (name, kind) in [("mutable", StorageKind::Mutable), ("live", StorageKind::Live)] {
        let _ = store.create_tensor(name, DType::I64, &[ELEMENTS], kind).unwrap();
    }
    // Writes every block, so that later changes are to blocks that were written before.
    let store = open_mapped(path);
    store.load("mutable").unwrap().lock_exclusive().unwrap().fill_(1).unwrap().flush().unwrap();
    let live = store.load("live").unwrap().as_live::<i64>().unwrap();
    live.fill(1);
    live.flush().unwrap();
}

/// Takes all free space.
fn fill(disk: &Path) {
    let mut filler = File::create(disk.join("filler")).unwrap();
    for size_bytes in [1 << 20, 4096] {
        while filler.write_all(&vec![7; size_bytes]).is_ok() {}
        let _ = filler.sync_data();
    }
    while filler.write_all(&[7; 4096]).and_then(|()| filler.sync_data()).is_ok() {}
}

fn run(program: &str, args: &[&str], paths: &[&Path]) {
    let ended = Command::new(program).args(args).args(paths).output().unwrap();
    assert!(ended.status.success(), "{program} {args:?}: {ended:?}");
}

/// Runs a role in a started process, because a fault would kill it. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "full: change all" => change_all(path),
        "full: change or be refused" => change_or_be_refused(&open_mapped(path), path),
        "full: share between two guards" => {
            let store = open_mapped(path);
            let x = store.load("mutable").unwrap();
            x.lock_exclusive().unwrap().as_slice_mut::<i64>().unwrap()[0] = 1;
            run("cp", &["-r", "--reflink=always"], &[path, &path.with_extension("copy")]);
            change_or_be_refused(&store, path);
        }
        _ => return false,
    }
    true
}

/// Asserts that everything can be changed although the disk is full.
fn change_all(path: &Path) {
    let store = open_mapped(path);
    let (x, live) = (store.load("mutable").unwrap(), store.load("live").unwrap());
    let live = live.as_live::<i64>().unwrap();
    fill(path.parent().unwrap());
    let unmapped = Store::open(path).unwrap().load("mutable").unwrap();
    unmapped.lock_exclusive().unwrap().fill_(1).unwrap().add_(1).unwrap();
    assert_eq!(x.read::<i64>().unwrap(), vec![2; ELEMENTS]);
    x.lock_exclusive().unwrap().fill_(2).unwrap().add_(1).unwrap();
    assert_eq!(x.read::<i64>().unwrap(), vec![3; ELEMENTS]);
    let mut guard = x.lock_exclusive().unwrap();
    guard.as_slice_mut::<i64>().unwrap().fill(4);
    guard.flush().unwrap();
    live.fill(5);
    live.flush().unwrap();
    assert_eq!(guard.read::<i64>().unwrap(), vec![4; ELEMENTS]);
}

/// Asserts that nothing that needs space is borrowed, and that a write without space is an error.
fn change_or_be_refused(store: &Store, path: &Path) {
    let (x, live) = (store.load("mutable").unwrap(), store.load("live").unwrap());
    fill(path.parent().unwrap());
    let is_told = |e: &Error| {
        let is_full = e.io_error().is_some_and(|e| e.kind() == std::io::ErrorKind::StorageFull);
        is_full
            || matches!(e.kind(), ErrorKind::NeedsCopy | ErrorKind::Unsupported)
                && e.to_string().contains("save_as")
    };
    let mut guard = x.lock_exclusive().unwrap();
    assert_eq!(guard.as_slice::<i64>().unwrap(), vec![1; ELEMENTS], "what is only read is lent");
    let refusals = [
        guard.as_slice_mut::<i64>().map(|elements| elements.fill(3)).unwrap_err(),
        guard.fill_(2).map(drop).unwrap_err(),
        live.as_live::<i64>().map(drop).unwrap_err(),
    ];
    for refusal in refusals {
        assert!(is_told(&refusal), "{refusal:?}");
    }
    drop(guard);
    // Truncated instead of deleted, because XFS frees the blocks of a deleted file later.
    File::create(path.parent().unwrap().join("filler")).unwrap().sync_all().unwrap();
    // With space, everything can be changed, including a copy of the live tensor.
    x.lock_exclusive().unwrap().fill_(6).unwrap().flush().unwrap();
    store.write(|txn| txn.save_as("live", &live, StorageKind::Live)).unwrap();
    store.load("live").unwrap().as_live::<i64>().unwrap().fill(6);
    for name in ["mutable", "live"] {
        assert_eq!(store.load(name).unwrap().read::<i64>().unwrap(), vec![6; ELEMENTS], "{name}");
    }
}

#[test]
fn elements_are_changed_in_place_on_a_full_btrfs() {
    let Some(image) = btrfs() else { return };
    let path = image.path.join("x.smap");
    make_store(&path);
    run_to_end("full: change all", &path);
}

#[test]
fn copied_store_on_a_full_btrfs_refuses_changes_that_need_space() {
    let Some(image) = btrfs() else { return };
    let (path, copy) = (image.path.join("x.smap"), image.path.join("copy.smap"));
    make_store(&path);
    run("cp", &["-r"], &[&path, &copy]);
    fs::remove_dir_all(&path).unwrap();
    run("sync", &["-f"], &[&image.path]);
    run_to_end("full: change or be refused", &copy);
}

#[test]
fn snapshot_of_a_full_btrfs_refuses_changes_that_need_space() {
    let Some(image) = btrfs() else { return };
    let path = image.path.join("x.smap");
    make_store(&path);
    run("btrfs", &["subvolume", "snapshot"], &[&image.path, &image.path.join("snapshot")]);
    run_to_end("full: change or be refused", &path);
}

#[test]
fn reflinked_store_on_a_full_xfs_refuses_changes_that_need_space() {
    let Some(image) = xfs() else { return };
    let (path, copy) = (image.path.join("x.smap"), image.path.join("copy.smap"));
    make_store(&path);
    run("cp", &["-r", "--reflink=always"], &[&path, &copy]);
    run_to_end("full: change or be refused", &copy);
}

#[test]
fn store_reflinked_between_two_guards_on_a_full_xfs_refuses_changes_that_need_space() {
    let Some(image) = xfs() else { return };
    let path = image.path.join("x.smap");
    make_store(&path);
    run_to_end("full: share between two guards", &path);
}

#[test]
fn elements_are_changed_in_place_on_a_full_xfs() {
    let Some(image) = xfs() else { return };
    let path = image.path.join("x.smap");
    make_store(&path);
    run_to_end("full: change all", &path);
}
