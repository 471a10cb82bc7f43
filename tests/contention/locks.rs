//! Sixteen processes that repeatedly take the same lock.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use stridemap::{DType, Durability, StorageKind, Store, StoreOptions, Tensor};

use crate::latencies::Latencies;

const ROLE: &str = "STRIDEMAP_CONTENTION_ROLE";
const STORE: &str = "STRIDEMAP_CONTENTION_STORE";
const PROCESSES: usize = 16;

fn options() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process).lock_timeout(Duration::from_secs(60))
}

fn duration(role: &str) -> Duration {
    if role == "share" {
        return Duration::from_secs(60);
    }
    let seconds = env::var("STRIDEMAP_CONTENTION_SECONDS").map_or(1., |seconds| seconds.parse().unwrap());
    Duration::from_secs_f64(seconds)
}

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn other_process() {
    let (Ok(role), Ok(path)) = (env::var(ROLE), env::var(STORE)) else {
        return assert!(!start("commit", Path::new("none")).wait().unwrap().success());
    };
    let path = Path::new(&path);
    // SAFETY: only this library writes the store.
    let store = unsafe { options().open_mapped(path).unwrap() };
    let row = Tensor::from_vec(vec![1i64; 8], &[1, 8]).unwrap();
    let name = format!("{}", std::process::id());
    let guarded = store.load("guarded").unwrap();
    let turns = store.load("turns").unwrap();
    let turns = turns.as_live::<i64>().unwrap();
    let mut latencies = Latencies::default();
    let until = Instant::now() + duration(&role);
    while Instant::now() < until {
        match role.as_str() {
            "commit" => latencies.time(|| store.save(&name, &row).unwrap()),
            "append" => latencies.time(|| store.append("log", &row).map(|_| ()).unwrap()),
            "shared" => {
                let guard = latencies.time(|| guarded.lock_shared().unwrap());
                thread::sleep(Duration::from_millis(1));
                drop(guard);
            }
            "exclusive" => {
                let mut guard = latencies.time(|| guarded.lock_exclusive().unwrap());
                guard.add_(1).unwrap();
            }
            "share" => {
                let guard = guarded.lock_shared().unwrap();
                turns.fetch_add((), 1).unwrap();
                thread::sleep(Duration::from_millis(1));
                drop(guard);
            }
            other => panic!("no role {other:?}"),
        }
    }
    latencies.save(&path.with_file_name(format!("{role}.{name}")));
}

fn start(role: &str, path: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "locks::other_process", "--nocapture"]).env(ROLE, role).env(STORE, path);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Runs a number of processes of each role in parallel, and prints how long they waited.
fn contend(roles: &[(&str, usize)]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    let store = options().create(&path).unwrap();
    store.create_growable("log", DType::I64, &[0, 8], 1 << 20).unwrap();
    let _ = store.create_tensor("guarded", DType::I64, &[8], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("turns", DType::I64, &[], StorageKind::Live).unwrap();
    let children: Vec<(&str, Child)> = roles
        .iter()
        .flat_map(|&(role, count)| std::iter::repeat_n(role, count))
        .map(|role| (role, start(role, &path)))
        .collect();
    let ids: Vec<(&str, u32)> = children.iter().map(|(role, child)| (*role, child.id())).collect();
    children.into_iter().for_each(|(_, mut child)| assert!(child.wait().unwrap().success()));
    for &(role, count) in roles {
        let (mut all, mut least) = (Latencies::default(), usize::MAX);
        for (_, id) in ids.iter().filter(|(of, _)| *of == role) {
            let before = all.count();
            all.add_saved(&dir.path().join(format!("{role}.{id}")));
            least = least.min(all.count() - before);
        }
        println!("{count} processes, {role}: {all}; the least of one process: {least}");
    }
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn processes_that_commit_append_and_lock_are_timed() {
    contend(&[("commit", PROCESSES)]);
    contend(&[("append", PROCESSES)]);
    contend(&[("exclusive", PROCESSES)]);
    contend(&[("shared", PROCESSES), ("exclusive", 1)]);
}

/// The processes hold the shared guard nearly all the time, so that at any moment one of them has it.
#[test]
fn exclusive_guard_waits_for_only_a_few_shared_guards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    // SAFETY: only this library writes the store.
    let store = unsafe { options().create(&path).and_then(|_| options().open_mapped(&path)).unwrap() };
    store.create_growable("log", DType::I64, &[0, 8], 1 << 20).unwrap();
    let guarded = store.create_tensor("guarded", DType::I64, &[8], StorageKind::Mutable).unwrap();
    let turns = store.create_tensor("turns", DType::I64, &[], StorageKind::Live).unwrap();
    let turns = turns.as_live::<i64>().unwrap();
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| start("share", &path)).collect();
    let passed_by = || {
        let before = turns.get(()).unwrap();
        let began = Instant::now();
        while turns.get(()).unwrap() == before {
            assert!(began.elapsed() < Duration::from_secs(60), "the processes that share do nothing");
            thread::yield_now();
        }
        let began = turns.get(()).unwrap();
        drop(guarded.lock_exclusive().unwrap());
        turns.get(()).unwrap() - began
    };
    let mut passed_by: Vec<i64> = (0..9).map(|_| passed_by()).collect();
    children.iter_mut().for_each(|child| child.kill().and_then(|()| child.wait()).map(drop).unwrap());
    passed_by.sort_unstable();
    println!("turns of {PROCESSES} processes that share, while one waits to be alone: {passed_by:?}");
    assert!(passed_by[4] < 2000, "{passed_by:?}");
}
