//! Guards that are taken again and again: the system calls of each, and what must not go unnoticed because a file stays
//! open, and `meta/` is not listed each time.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::harness::processes::{OtherProcess, run_to_end, send_line, wait_for_line};
use crate::harness::strace::{is_local, mark, trace};
use crate::harness::{assert_refused, new_path, open_mapped};
use crate::sharing::forks::fork;

const BIN: &str = "storages/0000000000000001.bin";

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "lock warm, unmapped" => lock_warm(&Store::open(path).unwrap()),
        "lock warm, mapped" => lock_warm(&open_mapped(path)),
        "lock after a fork" => lock_after_a_fork(path),
        "lock many" => lock_many(path),
        _ => return false,
    }
    true
}

/// Takes and drops guards until nothing is new.
fn warm_up(store: &Store, x: &Tensor) {
    assert_eq!(x.read::<i64>().unwrap(), [0; 4]);
    for _ in 0..10 {
        drop(x.lock_shared().unwrap());
        drop(x.lock_exclusive().unwrap());
        assert!(!store.refresh().unwrap());
    }
}

fn lock_warm(store: &Store) {
    let x = store.load("x").unwrap();
    warm_up(store, &x);
    mark("shared");
    drop(x.lock_shared().unwrap());
    mark("exclusive");
    drop(x.lock_exclusive().unwrap());
    mark("refresh");
    assert!(!store.refresh().unwrap());
    mark("read");
    assert_eq!(x.read::<i64>().unwrap(), [0; 4]);
    mark("fork");
    assert!(fork(|| ()).succeeds());
    // The child shares the files that are open: each is opened once more.
    mark("after");
    drop(x.lock_shared().unwrap());
    drop(x.lock_exclusive().unwrap());
    mark("again");
    drop(x.lock_shared().unwrap());
    mark("end");
}

fn create(path: &Path) -> Store {
    let store = Store::create(path).unwrap();
    let _ = store.create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    store
}

#[test]
fn warm_guards_and_a_refresh_without_news_make_few_system_calls() {
    for how in ["unmapped", "mapped"] {
        let (_dir, path) = new_path();
        if !is_local(&path) {
            return;
        }
        create(&path);
        let Some(trace) = trace(&format!("lock warm, {how}"), &path, "shared") else { return };
        let limits = [("shared", "exclusive", 4), ("exclusive", "refresh", 6), ("refresh", "read", 2)];
        for (from, to, limit) in limits.into_iter().chain([("read", "fork", 5), ("again", "end", 4)]) {
            let calls = trace.between(from, to);
            assert!(!calls.is_empty() && calls.len() <= limit, "{how}, {from}: {calls:#?}");
        }
        let after = trace.between("after", "again");
        assert_eq!(after.iter().filter(|call| call.starts_with("openat(")).count(), 2, "{after:#?}");
    }
}

fn lock_after_a_fork(path: &Path) {
    let store = Store::open(path).unwrap();
    let x = store.load("x").unwrap();
    warm_up(&store, &x);
    // Has the files of the guards open until it is killed.
    let child = fork(|| thread::sleep(Duration::from_secs(60)));
    send_line(child.id());
    let shared = x.lock_shared().unwrap();
    send_line("shared");
    assert!(wait_for_line());
    drop(shared);
    let _guard = x.lock_exclusive().unwrap();
    send_line("exclusive");
    wait_for_line();
}

#[test]
fn forked_child_does_not_keep_the_lock_of_a_parent_that_is_killed() {
    for held in ["shared", "exclusive"] {
        let (_dir, path) = new_path();
        create(&path);
        let x = StoreOptions::new()
            .lock_timeout(Duration::from_millis(200))
            .open(&path)
            .unwrap()
            .load("x")
            .unwrap();
        let mut parent = OtherProcess::start("lock after a fork", &path);
        let child: libc::pid_t = parent.read_line().parse().unwrap();
        assert_eq!(parent.read_line(), "shared");
        if held == "exclusive" {
            parent.resume();
            assert_eq!(parent.read_line(), "exclusive");
        }
        assert_refused(x.lock_exclusive(), ErrorKind::Busy, &["process"]);
        parent.kill();
        let free = x.lock_exclusive().map(drop);
        // SAFETY: the child was forked by the process that this test started, and sleeps.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "the child has ended too early");
        free.unwrap_or_else(|e| panic!("{held}: {e}"));
    }
}

#[test]
fn warm_exclusive_guard_notices_what_a_cold_one_does() {
    let (dir, path) = new_path();
    let writer = create(&path);
    let store = Store::open(&path).unwrap();
    let x = store.load("x").unwrap();
    warm_up(&store, &x);
    let (bin, backup) = (path.join(BIN), dir.path().join("backup"));
    fs::hard_link(&bin, &backup).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["2 names"]);
    fs::remove_file(&backup).unwrap();
    drop(x.lock_exclusive().unwrap());
    // The name belongs to a different file, or to none.
    fs::rename(&bin, &backup).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["no tensor of the newest generation"]);
    fs::copy(&backup, &bin).unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Stale, &["replaced"]);
    assert_eq!(x.lock_shared().unwrap().read::<i64>().unwrap(), [0; 4]);
    fs::rename(&backup, &bin).unwrap();
    x.lock_exclusive().unwrap().fill_(1).unwrap();
    // Too short, by the mark or more.
    for length_bytes in [32, 8] {
        let whole = fs::read(&bin).unwrap();
        let file = File::options().write(true).open(&bin).unwrap();
        file.set_len(length_bytes).unwrap();
        let found = format!("{length_bytes} bytes");
        let text = [&*found, "requires 33", "F-26"];
        assert_refused(x.lock_exclusive(), ErrorKind::Corrupt, &text);
        assert_refused(x.lock_shared(), ErrorKind::Corrupt, &text);
        assert_refused(x.read::<i64>(), ErrorKind::Corrupt, &text);
        std::os::unix::fs::FileExt::write_all_at(&file, &whole, 0).unwrap();
    }
    // A commit of another handle is seen at once, and each time.
    for i in 0..20 {
        writer.save("other", &i).unwrap();
        drop(x.lock_exclusive().unwrap());
        assert!(store.refresh().unwrap() && !store.refresh().unwrap());
        assert_eq!(store.load("other").unwrap().item::<i32>().unwrap(), i);
    }
    let reader = store.snapshot();
    writer.remove("x").unwrap();
    assert_refused(x.lock_exclusive(), ErrorKind::Conflict, &["no tensor of the newest generation"]);
    assert_eq!(reader.load("x").unwrap().read::<i64>().unwrap(), [1; 4]);
    // The handle's own commits too.
    let y = store.create_tensor("y", DType::I64, &[4], StorageKind::Mutable).unwrap();
    warm_up(&store, &y);
    store.remove("y").unwrap();
    assert_refused(y.lock_exclusive(), ErrorKind::Conflict, &["no tensor of the newest generation"]);
}

fn lock_many(path: &Path) {
    let store = Store::open(path).unwrap();
    let tensors: Vec<Tensor> = store.names().unwrap().iter().map(|name| store.load(name).unwrap()).collect();
    let limit = tensors.len() as u64 + 40;
    crate::filesystems::limits::limited(libc::RLIMIT_NOFILE, limit, || {
        for _ in 0..2 {
            for x in &tensors {
                x.lock_exclusive().unwrap().add_(1).unwrap();
            }
        }
    });
    assert!(tensors.iter().all(|x| x.read::<i64>().unwrap() == [2]));
}

#[test]
fn guards_of_many_tensors_leave_descriptors_to_each_other() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    let created = store
        .write(|txn| (0..200).try_for_each(|i| txn.save_as(&i.to_string(), &[0i64], StorageKind::Mutable)));
    created.unwrap();
    run_to_end("lock many", &path);
}
