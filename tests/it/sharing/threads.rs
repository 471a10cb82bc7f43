//! Work on several threads: a panic in the caller's closure, and a system that cannot start more threads. Limits and
//! threads are per process, so these tests start this binary again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use stridemap::{Source as _, Store, StoreOptions, Tensor};

use crate::harness::processes::run_to_end;
use crate::harness::{fast, new_path};

/// More storages than can be reported before a thread has to wait for the closure.
const STORAGE_COUNT: usize = 300;

/// A view of this size is gathered on several threads.
const LARGE_BYTES: usize = 24 << 20;

fn make(path: &Path) {
    let store = fast().create(path).unwrap();
    for i in 0..STORAGE_COUNT {
        store.save(&format!("x.{i}"), &Tensor::from_vec(vec![i as i64], &[1]).unwrap()).unwrap();
    }
    let large = Tensor::from_vec((0..LARGE_BYTES / 8).map(|i| i as u64).collect(), &[3, LARGE_BYTES / 24]);
    store.save("large", &large.unwrap()).unwrap();
}

fn thread_count() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "panic in closures" => panic_in_closures(path),
        "start no threads" => start_no_threads(path),
        _ => return false,
    }
    true
}

fn panic_in_closures(path: &Path) {
    kill_if_hanging();
    let store = Store::open(path).unwrap();
    let view = store.load("large").unwrap().t().unwrap();
    let before = thread_count();
    let stop = |_: u64| panic!("stopped by the closure");
    let acts: [&dyn Fn(); 4] = [
        &|| drop(store.verify(stop)),
        &|| drop(StoreOptions::new().salvage(path, None, stop)),
        &|| drop(StoreOptions::new().salvage(path, Some(&path.with_extension("new")), stop)),
        &|| drop(view.write_to(&mut |_| panic!("stopped by the closure"))),
    ];
    for act in acts {
        let stopped = catch_unwind(AssertUnwindSafe(act)).unwrap_err();
        assert_eq!(stopped.downcast_ref::<&str>(), Some(&"stopped by the closure"));
        assert_eq!(thread_count(), before, "a thread is still running");
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

fn start_no_threads(path: &Path) {
    kill_if_hanging();
    // The limit does not apply to root.
    // SAFETY: only returns a number.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: only passes numbers.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    }
    for most in 0..4 {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 4 };
        // SAFETY: the pointer is to a live value.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) }, 0);
        if most < 2 {
            assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not hold");
        }
        let store = Store::open(path).unwrap();
        let mut read_bytes = 0;
        assert_eq!(store.verify(|bytes| read_bytes += bytes).unwrap().findings, []);
        assert_eq!(read_bytes, (LARGE_BYTES + STORAGE_COUNT * 8) as u64);
        assert_eq!(StoreOptions::new().salvage(path, None, |_| ()).unwrap().losses, []);
        let mut first = Vec::new();
        let view = store.load("large").unwrap().t().unwrap();
        let gathered = view.write_to(&mut |bytes| {
            if first.is_empty() {
                first = bytes[..24].to_vec();
            }
            Ok(())
        });
        gathered.unwrap();
        let column = (0..3).flat_map(|row| (row * (LARGE_BYTES / 24) as u64).to_le_bytes());
        assert_eq!(first, column.collect::<Vec<u8>>());
    }
}

/// A user id that usually has no processes.
const NOBODY: libc::uid_t = 65534;

/// Kills this process, and so fails its test, if it hangs.
fn kill_if_hanging() {
    // SAFETY: only passes a number.
    unsafe { libc::alarm(120) };
}

#[test]
fn panic_in_a_closure_is_propagated_and_leaves_no_thread_running() {
    let (_dir, path) = new_path();
    make(&path);
    run_to_end("panic in closures", &path);
}

#[test]
fn work_uses_fewer_threads_if_no_more_can_be_started() {
    let (dir, path) = new_path();
    make(&path);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    run_to_end("start no threads", &path);
}
