//! Locks on several file systems: the lock of a file is seen under each of its names, and its holder is found. Skipped,
//! with the reason printed, where a file system cannot be mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use stridemap::maintenance::SpaceReason;
use stridemap::{DType, ErrorKind, Store, StoreOptions};

use super::overlay::Overlay;
use crate::harness::processes::OtherProcess;
use crate::harness::{arange, assert_refused, filled};
use crate::images::{Image, on_each};
use crate::support::{skip, temporary};

/// A directory that a program serves through FUSE under a second path, until this is dropped.
struct Bound {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Bound {
    fn mount() -> Option<Bound> {
        let dir = temporary();
        let [from, path] = ["from", "bound"].map(|name| dir.path().join(name));
        [&from, &path].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let bound = Command::new("bindfs").args([&from, &path]).output();
        if bound.as_ref().is_ok_and(|bound| bound.status.success()) {
            return Some(Bound { path, _dir: dir });
        }
        skip("STRIDEMAP_REQUIRE_ROOT", &format!("bindfs cannot be mounted here: {bound:?}"));
        None
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Waits for what the kernel lists. It may leave a lock out while others are released.
fn assert_soon(is_so: impl Fn() -> bool) {
    assert!((0..100).any(|_| is_so() || (sleep(Duration::from_millis(10)), false).1));
}

/// Asserts that other processes that append, read or wait are named.
fn assert_holders_are_named(dir: &Path) {
    let path = dir.join("held.smap");
    let store = Store::create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &filled(20, 0u8)).unwrap();
    store.save("y", &filled(1000, 1u8)).unwrap();
    let reasons = || -> Vec<(SpaceReason, u64)> {
        let spare = store.disk_usage().unwrap().spare.into_iter();
        spare.map(|file| (file.reason, file.spare_bytes)).collect()
    };

    let mut appender = OtherProcess::start("appender: hold", &path);
    assert_eq!(appender.read_line(), "appended");
    let writing = SpaceReason::Writing { processes: vec![appender.child.id()] };
    assert_soon(|| reasons().iter().any(|(reason, _)| *reason == writing));
    // The other process's own generation, once this one has removed what it needs.
    store.remove("y").unwrap();
    let processes = vec![appender.child.id()];
    let is_pinned = |(reason, _): &(SpaceReason, u64)| matches!(reason, SpaceReason::Pinned { processes: named, .. } if *named == processes);
    assert_soon(|| reasons().iter().any(is_pinned));
    let hasty = StoreOptions::new().lock_timeout(Duration::from_millis(50)).open(&path).unwrap();
    let named = format!("process {}", processes[0]);
    assert_refused(hasty.append("x", &filled(2 << 20, 0u8)), ErrorKind::Busy, &[&named]);
    appender.kill();

    let mut writer = OtherProcess::start("hold the writers' lock", &path);
    let named = format!("process {}", writer.read_line());
    assert_refused(hasty.save("z", &1u8), ErrorKind::Busy, &["LOCK", &named]);
    writer.kill();
}

#[test]
fn processes_that_hold_locks_on_btrfs_and_xfs_are_named() {
    on_each(|_, Image { path, .. }| {
        assert_holders_are_named(path);
        // A subvolume has a device number of its own.
        let subvolume = path.join("subvolume");
        let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&subvolume).output();
        if made.is_ok_and(|made| made.status.success()) {
            assert_holders_are_named(&subvolume);
        }
    });
}

#[test]
fn processes_that_hold_locks_on_an_overlay_are_named() {
    for is_same in [true, false] {
        if let Some(overlay) = Overlay::mount(is_same, |_| ()) {
            assert_holders_are_named(&overlay.merged);
        }
    }
}

#[test]
fn processes_that_hold_locks_on_fuse_are_named() {
    if let Some(bound) = Bound::mount() {
        assert_holders_are_named(&bound.path);
    }
}

/// A file system that cannot rename without replacing.
#[test]
fn generation_in_use_on_fuse_is_kept_and_the_store_can_be_changed() {
    let Some(bound) = Bound::mount() else { return };
    let path = bound.path.join("x.smap");
    let publisher = Store::create(&path).unwrap();
    publisher.save("x", &arange(&[1000])).unwrap();
    let reader = Store::open(&path).unwrap();
    let collector = Store::open(&path).unwrap();
    collector.remove("x").unwrap();
    collector.save("later", &arange(&[3])).unwrap();
    collector.gc().unwrap();
    // The handle that published the generation, and one that opened it.
    for store in [&publisher, &reader] {
        assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), arange(&[1000]).read::<i64>().unwrap());
    }
    publisher.save("more", &arange(&[5])).unwrap();
    drop(reader);
    assert_ne!(collector.gc().unwrap().file_count, 0, "what only the reader needed");
    assert_eq!(Store::open(&path).unwrap().names().unwrap(), ["later", "more"]);
}

#[test]
fn append_on_fuse_directly_after_a_save_or_an_append_finds_one_name() {
    let Some(bound) = Bound::mount() else { return };
    let path = bound.path.join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &filled(10, 0u8)).unwrap();
    for count in [10, 2 << 20, 10] {
        store.append("x", &filled(count, 1u8)).unwrap();
    }
    assert_eq!(store.load("x").unwrap().size(), [(2 << 20) + 30]);
    store.compact(false, |_| ()).unwrap();
    assert!(store.verify(|_| ()).unwrap().is_whole());
    let salvaged = StoreOptions::new().salvage(&path, Some(&bound.path.join("z.smap")), |_| ()).unwrap();
    assert_eq!(salvaged.losses, []);
    store.snapshot().copy_to(bound.path.join("y.smap"), None, |_| ()).unwrap();
    assert_refused(Store::create(&path), ErrorKind::AlreadyExists, &["x.smap"]);
}
