//! Stores in a container image: on real overlay mounts. Skipped, with the reason printed, if these cannot be mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};

use crate::harness::hooked::Hooked;
use crate::harness::processes::run_to_end;
use crate::harness::small_disk::SmallDisk;
use crate::harness::{fast, filled, open_mapped};
use crate::support::skip;

const ROWS: usize = 5000;

/// An overlay over a lower layer that contains a store.
pub(super) struct Overlay {
    store: PathBuf,
    upper: PathBuf,
    pub(super) merged: PathBuf,
    // Dropped after the mount, which is on it.
    _disk: SmallDisk,
    _lower_disk: Option<SmallDisk>,
}

impl Overlay {
    /// Mounts an overlay whose lower layer is on the same file system as the upper one, or on a different one.
    pub(super) fn mount(is_same: bool, prepare: impl Fn(&Path)) -> Option<Overlay> {
        let disk = SmallDisk::mount("96m")?;
        let lower_disk = if is_same { None } else { Some(SmallDisk::mount("32m")?) };
        let dir = |name: &str| {
            let dir = disk.path.join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (upper, work, merged) = (dir("upper"), dir("work"), dir("merged"));
        let lower = lower_disk.as_ref().map_or_else(|| dir("lower"), |disk| disk.path.clone());
        make_store(&lower.join("x.smap"));
        prepare(&lower.join("x.smap"));
        let (lower, above) = (lower.display(), format!("upperdir={}", upper.display()));
        let options = format!("lowerdir={lower},{above},workdir={}", work.display());
        mount(&options, &merged).then(|| Overlay {
            store: merged.join("x.smap"),
            upper,
            merged,
            _disk: disk,
            _lower_disk: lower_disk,
        })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.merged).status();
    }
}

fn mount(options: &str, at: &Path) -> bool {
    let mounted = Command::new("mount").args(["-t", "overlay", "-o", options, "overlay"]).arg(at).output();
    let is_mounted = mounted.as_ref().is_ok_and(|mounted| mounted.status.success());
    if !is_mounted {
        skip("STRIDEMAP_REQUIRE_ROOT", &format!("an overlay cannot be mounted here: {mounted:?}"));
    }
    is_mounted
}

fn rows(from: usize, count: usize) -> Tensor {
    Tensor::from_vec((from..from + count).map(|i| (i % 251 + 1) as u8).collect(), &[count]).unwrap()
}

fn make_store(path: &Path) {
    let store = fast().create(path).unwrap();
    store.create_growable("log", DType::U8, &[0], 1 << 24).unwrap();
    store.append("log", &rows(0, ROWS)).unwrap();
    store.save("sealed", &rows(0, 3 << 20)).unwrap();
    store.write(|txn| txn.save_as("mutable", &filled(1000, 1i64), StorageKind::Mutable)).unwrap();
    let _ = store.create_tensor("live", DType::I64, &[1000], StorageKind::Live).unwrap();
}

fn mapped(path: &Path) -> Store {
    open_mapped(path)
}

/// Runs a role in a started process, because a fault would kill it. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "overlay: append" => append(path),
        "overlay: change" => change(path),
        "overlay: read" => read(path),
        _ => return false,
    }
    true
}

fn append(path: &Path) {
    let store = mapped(path);
    let before = store.load("log").unwrap();
    let is_right = |tensor: &Tensor, count: usize| {
        assert_eq!(tensor.size(), [count]);
        assert!(rows(0, count).as_slice::<u8>().unwrap() == tensor.as_slice::<u8>().unwrap(), "{count} rows");
    };
    is_right(&before, ROWS);
    let mut count = ROWS;
    // First into the mapped page, then past it.
    for more in [10, 3 << 20, 1] {
        store.append("log", &rows(count, more)).unwrap();
        count += more;
        is_right(&store.load("log").unwrap(), count);
        is_right(&before, ROWS);
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

fn change(path: &Path) {
    let store = mapped(path);
    let (x, same) = (store.load("mutable").unwrap(), mapped(path).load("mutable").unwrap());
    let all = |x: &Tensor| {
        let guard = x.lock_shared().unwrap();
        let elements = guard.as_slice::<i64>().unwrap();
        assert!(elements.iter().all(|element| *element == elements[0]));
        elements[0]
    };
    assert_eq!((all(&x), all(&same)), (1, 1));
    x.lock_exclusive().unwrap().fill_(7).unwrap();
    assert_eq!((all(&x), all(&same)), (7, 7));
    same.lock_exclusive().unwrap().as_slice_mut::<i64>().unwrap().fill(8);
    assert_eq!((all(&x), all(&same), x.read::<i64>().unwrap()[0]), (8, 8, 8));
    let panicking = || x.lock_exclusive().unwrap().fill_(9).map(|_| panic!("expected by the test")).unwrap();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).is_err());
    assert_eq!(same.read::<i64>().unwrap_err().kind(), ErrorKind::Interrupted);
    drop(same.allow_interrupted().lock_exclusive().unwrap());
    assert_eq!(all(&x), 9);

    let (live, other) = (store.load("live").unwrap(), mapped(path).load("live").unwrap());
    live.as_live::<i64>().unwrap().fill(5);
    assert_eq!(other.read::<i64>().unwrap(), [5; 1000]);
    other.as_live::<i64>().unwrap().fill(6);
    assert_eq!(live.as_live::<i64>().unwrap().get([3]).unwrap(), 6);
}

fn read(path: &Path) {
    let (store, same) = (mapped(path), Store::open(path).unwrap());
    for store in [&store, &same] {
        assert_eq!(store.names().unwrap(), ["live", "log", "mutable", "sealed"]);
        assert_eq!(store.load("mutable").unwrap().lock_shared().unwrap().read::<i64>().unwrap(), [1; 1000]);
        assert_eq!(store.load("live").unwrap().read::<i64>().unwrap(), [0; 1000]);
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    }
    let (sealed, mutable) = (store.load("sealed").unwrap(), store.load("mutable").unwrap());
    assert!(sealed.as_slice::<u8>().unwrap() == rows(0, 3 << 20).as_slice::<u8>().unwrap());
    assert_eq!(mutable.lock_shared().unwrap().as_slice::<i64>().unwrap(), [1; 1000]);
}

fn on_each(role: &str) {
    for is_same in [true, false] {
        let Some(overlay) = Overlay::mount(is_same, |_| ()) else { return };
        println!("{role}, layers on one file system: {is_same}");
        run_to_end(role, &overlay.store);
    }
}

#[test]
fn appended_rows_are_mapped_after_the_file_was_copied_up() {
    on_each("overlay: append");
}

#[test]
fn changed_elements_are_seen_after_the_file_was_copied_up() {
    on_each("overlay: change");
}

#[test]
fn reading_copies_nothing_up() {
    let Some(overlay) = Overlay::mount(true, |_| ()) else { return };
    run_to_end("overlay: read", &overlay.store);
    assert_eq!(fs::read_dir(&overlay.upper).unwrap().count(), 0);
}

#[test]
fn read_only_overlay_serves_readers() {
    let Some(disk) = SmallDisk::mount("64m") else { return };
    let [lower, empty, merged] = ["lower", "empty", "merged"].map(|name| disk.path.join(name));
    [&lower, &empty, &merged].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    make_store(&lower.join("x.smap"));
    if !mount(&format!("lowerdir={}:{}", lower.display(), empty.display()), &merged) {
        return;
    }
    run_to_end("overlay: read", &merged.join("x.smap"));
    let refused = Store::open(merged.join("x.smap")).unwrap().remove("sealed").unwrap_err();
    let _ = Command::new("umount").arg("-l").arg(&merged).status();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
}

/// A shared guard blocks a writer that opens the file for writing, and so copies it up.
#[test]
fn guard_taken_before_the_copy_up_blocks_a_writer() {
    let Some(overlay) = Overlay::mount(false, |_| ()) else { return };
    let x = mapped(&overlay.store).load("mutable").unwrap();
    let short = fast().lock_timeout(std::time::Duration::from_millis(50));
    // SAFETY: only this library writes the store.
    let other = unsafe { short.open_mapped(&overlay.store).unwrap() };
    let guard = x.lock_shared().unwrap();
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| other.load("mutable").unwrap().lock_exclusive().map(drop).unwrap_err()).join().unwrap()
    });
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert_eq!(guard.as_slice::<i64>().unwrap(), [1; 1000]);
}

/// A file with several names in the lower layer gets a different inode number when it is copied up.
#[test]
fn hard_linked_file_of_the_lower_layer_must_be_loaded_again_before_it_is_changed() {
    let link = |path: &Path| {
        for entry in fs::read_dir(path.join("storages")).unwrap() {
            let file = entry.unwrap().path();
            fs::hard_link(&file, path.parent().unwrap().join(file.file_name().unwrap())).unwrap();
        }
    };
    let Some(overlay) = Overlay::mount(true, link) else { return };
    let store = mapped(&overlay.store);
    let x = store.load("mutable").unwrap();
    assert_eq!(x.lock_shared().unwrap().as_slice::<i64>().unwrap(), [1; 1000]);
    let refused = x.lock_exclusive().map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Stale, "{refused}");
    let other = mapped(&overlay.store).load("mutable").unwrap();
    other.lock_exclusive().unwrap().fill_(7).unwrap();
    assert_eq!(other.lock_shared().unwrap().as_slice::<i64>().unwrap(), [7; 1000]);
    let guard = x.lock_shared().unwrap();
    assert_eq!(guard.read::<i64>().unwrap(), [7; 1000]);
    assert!(guard.as_slice::<i64>().is_err_and(|e| e.kind() == ErrorKind::NeedsCopy));
}

/// A generation in the lower layer is replaced and collected before a reader locks it. The link count of its file does
/// not change.
#[test]
fn deleted_generation_of_the_lower_layer_is_not_pinned() {
    let Some(overlay) = Overlay::mount(true, |_| ()) else { return };
    let (root, is_due) = (overlay.store.clone(), AtomicBool::new(true));
    let disk = Hooked::before(move |operation, at| {
        let is_manifest = at.extension().is_some_and(|extension| extension == "man");
        if operation == "try_lock" && is_manifest && is_due.swap(false, Ordering::Relaxed) {
            let writer = fast().open(&root).unwrap();
            writer.remove("sealed").unwrap();
            writer.gc().unwrap();
        }
        Ok(())
    });
    let reader = fast().disk(Arc::new(disk)).open(&overlay.store).unwrap();
    assert_eq!(reader.names().unwrap(), ["live", "log", "mutable"]);
}
