//! Limits of the system and of mounts: the error, and a store that stays intact. Limits are set in a separate process.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stridemap::disk::{Disk, RealDisk};
use stridemap::{DType, Error, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::harness::hooked::{Hooked, Quirks};
use crate::harness::processes::run_to_end;
use crate::harness::{assert_refused, filled, new_path, new_store, open_mapped};

fn vector(n: usize) -> Tensor {
    Tensor::from_vec((0..n as i64).collect(), &[n]).unwrap()
}

/// Runs `act` with a different soft limit.
pub(crate) fn limited<T>(resource: libc::__rlimit_resource_t, limit: u64, act: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut before) }, 0);
    let set = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, ..before };
        // SAFETY: the pointer is to a live value.
        assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    };
    set(limit);
    let done = act();
    set(before.rlim_cur);
    done
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "run out of descriptors" => {
            let store = Store::open(path).unwrap();
            let loaded = store.load("x").unwrap();
            let mut txn = Some(store.begin().unwrap());
            let changed = store.load("changed").unwrap();
            // Open descriptors have the lowest numbers.
            let next = File::open("/dev/null").unwrap();
            let limit = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
            drop(next);
            let refused = limited(libc::RLIMIT_NOFILE, limit, || {
                let txn = txn.as_mut().unwrap();
                let refused = [
                    Store::open(path).map(drop),
                    store.load("y").map(drop),
                    store.refresh().map(drop),
                    store.wait_for_change(Duration::from_secs(60)).map(drop),
                    store.save("new", &vector(10)),
                    txn.save("new", &vector(10)),
                    store.remove("x"),
                    store.gc().map(drop),
                    changed.lock_exclusive().map(drop),
                    Store::create(path.with_extension("new")).map(drop),
                ];
                // Loaded tensors can still be read.
                assert_eq!(loaded.read::<i64>().unwrap(), [0, 1, 2]);
                assert_eq!(store.names().unwrap(), ["changed", "x", "y"]);
                refused
            });
            for refused in refused {
                assert_refused(refused, ErrorKind::Io, &["ulimit -n"]);
            }
            // A transaction that failed to write has ended, but the handle can still be used.
            assert!(txn.take().unwrap().commit().is_err());
            store.save("new", &vector(10)).unwrap();
        }
        "run out of address space" => {
            let mapped = open_mapped(path);
            let unmapped = Store::open(path).unwrap();
            let pages: u64 =
                fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
            let page_bytes = page_bytes();
            limited(libc::RLIMIT_AS, pages * page_bytes + (8 << 20), || {
                let text = ["map storage", "vm.max_map_count", "ulimit -v", "open, which reads"];
                assert_refused(mapped.load("large"), ErrorKind::Io, &text);
                let x = mapped.load("changed").unwrap();
                assert_refused(
                    x.lock_shared().unwrap().as_slice::<u8>(),
                    ErrorKind::Io,
                    &["vm.max_map_count"],
                );
                let large = unmapped.load("large").unwrap();
                assert_eq!(large.get::<u8>(&[-1]).unwrap(), 9);
            });
            assert_eq!(mapped.load("large").unwrap().as_slice::<u8>().unwrap().len(), LARGE_BYTES);
        }
        "run out of mappings" => {
            let mapped = open_mapped(path);
            let file = File::open(path.join("FORMAT")).unwrap();
            // The kernel joins no mappings of the same page.
            let page = || memmap2::MmapOptions::new().len(1).map_raw_read_only(&file);
            let mut taken: Vec<_> = std::iter::from_fn(|| page().ok()).collect();
            taken.truncate(taken.len() - 50);
            let text = ["map storage", "vm.max_map_count", "open, which reads"];
            assert_refused(mapped.load("large"), ErrorKind::Io, &text);
            let x = mapped.load("changed").unwrap();
            assert_refused(x.lock_shared().unwrap().as_slice::<u8>(), ErrorKind::Io, &["vm.max_map_count"]);
            // The rest of the program can use those that are left, at any time.
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let rest = scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        page().map(drop)?;
                    }
                    io::Result::Ok(())
                });
                for _ in 0..3 {
                    mapped.load("large").map(drop).unwrap_err();
                }
                is_over.store(true, Ordering::Relaxed);
                rest.join().unwrap().unwrap();
            });
            taken.truncate(taken.len() - 100);
            assert_eq!(mapped.load("large").unwrap().as_slice::<u8>().unwrap().len(), LARGE_BYTES);
        }
        _ => return false,
    }
    true
}

fn page_bytes() -> u64 {
    // SAFETY: only returns a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

const LARGE_BYTES: usize = 32 << 20;

#[test]
fn process_without_descriptors_gets_an_error_and_the_store_stays_intact() {
    let (dir, path, store) = new_store();
    store.save("x", &vector(3)).unwrap();
    store.save("y", &vector(3)).unwrap();
    let _ = store.create_tensor("changed", DType::I64, &[3], StorageKind::Mutable).unwrap();
    drop(store);
    run_to_end("run out of descriptors", &path);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.names().unwrap(), ["changed", "new", "x", "y"]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(store.gc().unwrap().file_count, 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "half a store was left");
}

#[test]
fn error_names_a_machine_without_descriptors() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    for (number, advice) in [(libc::ENFILE, "fs.file-max"), (libc::EMFILE, "ulimit -n")] {
        let disk = Hooked::before(move |operation, path| match operation {
            "open" if path.ends_with("FORMAT") => Err(io::Error::from_raw_os_error(number)),
            _ => Ok(()),
        });
        let opened = StoreOptions::new().disk(Arc::new(disk)).open(&path);
        assert_refused(opened, ErrorKind::Io, &["FORMAT", advice]);
    }
}

#[test]
fn process_without_address_space_gets_an_error_and_reads_without_mapping() {
    let (_dir, path, store) = new_store();
    store.save("large", &filled(LARGE_BYTES, 9u8)).unwrap();
    let _ = store.create_tensor("changed", DType::U8, &[LARGE_BYTES], StorageKind::Mutable).unwrap();
    run_to_end("run out of address space", &path);
}

#[test]
fn load_leaves_mappings_to_the_rest_of_the_process() {
    let limit: usize = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 200_000 {
        return println!("skipped: it takes minutes to make the {limit} mappings that a process may have");
    }
    let (_dir, path, store) = new_store();
    store.save("large", &filled(LARGE_BYTES, 9u8)).unwrap();
    let _ = store.create_tensor("changed", DType::U8, &[LARGE_BYTES], StorageKind::Mutable).unwrap();
    run_to_end("run out of mappings", &path);
}

#[test]
fn network_file_system_is_not_mapped_unless_that_is_allowed() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap().save("x", &vector(3)).unwrap();
    let network = Quirks { is_network: true, ..Quirks::default() };
    let options = StoreOptions::new().disk(Arc::new(Hooked::default().with(network)));
    // SAFETY: only this library writes the store.
    let refused = unsafe { options.open_mapped(&path) };
    assert_refused(
        refused,
        ErrorKind::NotAllowed,
        &["x.smap", "network file system", "use open", "allow_network_mapping"],
    );
    let read = options.open(&path).unwrap().load("x").unwrap();
    assert_eq!(read.read::<i64>().unwrap(), [0, 1, 2]);
    // SAFETY: only this library writes the store.
    let mapped = unsafe { options.allow_network_mapping(true).open_mapped(&path).unwrap() };
    assert_eq!(mapped.load("x").unwrap().as_slice::<i64>().unwrap(), [0, 1, 2]);
    assert!(!RealDisk::default().is_network(Path::new("/proc")).unwrap());
    assert!(RealDisk::default().is_network(&path.join("none")).is_err());
}

#[test]
fn truncated_storage_under_an_open_handle_is_refused_before_it_is_mapped() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap().save("x", &vector(3)).unwrap();
    let storage = path.join("storages/0000000000000001.bin");
    File::options().write(true).open(&storage).unwrap().set_len(23).unwrap();
    let mapped = open_mapped(&path);
    for store in [mapped, Store::open(&path).unwrap()] {
        let text = ["load \"x\"", "0000000000000001.bin", "23 bytes, but the record requires 24", "F-26"];
        assert_refused(store.load("x"), ErrorKind::Corrupt, &text);
    }
}

/// A directory that is also mounted read-only.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn mount(dir: &Path) -> Option<ReadOnly> {
        let path = dir.join("read only");
        fs::create_dir(&path).unwrap();
        let mount = |args: &[&str], from: &[&Path]| {
            let output = Command::new("mount").args(args).args(from).arg(&path).output();
            let is_mounted = output.as_ref().is_ok_and(|output| output.status.success());
            if !is_mounted {
                println!("skipped: no directory can be mounted here: {output:?}");
            }
            is_mounted
        };
        if !mount(&["--bind"], &[dir]) {
            return None;
        }
        let mounted = ReadOnly(path.clone());
        mount(&["-o", "remount,bind,ro"], &[]).then_some(mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn read_only_mount_serves_readers_with_their_pins_and_refuses_writers() {
    let (dir, path) = new_path();
    let writer = Store::create(&path).unwrap();
    writer.save("x", &vector(3)).unwrap();
    let _ = writer.create_tensor("changed", DType::I64, &[3], StorageKind::Mutable).unwrap();
    let Some(mount) = ReadOnly::mount(dir.path()) else { return };
    let reader = open_mapped(mount.0.join("x.smap"));
    assert_eq!(reader.load("x").unwrap().as_slice::<i64>().unwrap(), [0, 1, 2]);
    let changed = reader.load("changed").unwrap();
    assert_eq!(changed.lock_shared().unwrap().as_slice::<i64>().unwrap(), [0; 3]);

    let refused: [Result<(), Error>; 6] = [
        reader.save("y", &vector(3)),
        reader.remove("x"),
        reader.gc().map(drop),
        changed.lock_exclusive().map(drop),
        reader.begin().unwrap().save("y", &vector(3)),
        Store::create(mount.0.join("y.smap")).map(drop),
    ];
    for refused in refused {
        assert_refused(refused, ErrorKind::ReadOnly, &["smap", "Read-only file system"]);
    }

    // The pin also blocks a writer that uses the other mount. Its wait for the pin is tested here.
    let pinned = reader.snapshot();
    writer.remove("x").unwrap();
    writer.gc().unwrap();
    assert_eq!(pinned.load("x").unwrap().read::<i64>().unwrap(), [0, 1, 2]);
    assert!(path.join("storages/0000000000000001.bin").exists());
    assert!(reader.wait_for_change(Duration::from_secs(60)).unwrap());
    assert_eq!(reader.names().unwrap(), ["changed"]);
    drop((pinned, changed));
    writer.gc().unwrap();
    assert!(!path.join("storages/0000000000000001.bin").exists());
    assert_eq!(reader.verify(|_| ()).unwrap().findings, []);
}
