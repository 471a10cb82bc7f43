//! Guards whose process is killed, or whose thread panics, while it changes elements.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ndarray::ArrayViewMut1;
use stridemap::{DType, ErrorKind, ExclusiveGuard, StorageKind, Store, StoreOptions, Tensor};

use super::handles;
use crate::harness::hooked::Hooked;
use crate::harness::processes::{OtherProcess, send_line, wait_for_line};
use crate::harness::{assert_refused, filled, new_path, open_mapped};
use crate::simulated::{Op, Outcome, SimulatedDisk};

const BIN: &str = "storages/0000000000000001.bin";

/// Makes a store with the mutable tensor `x` of four ones.
fn with_ones() -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = new_path();
    Store::create(&path).unwrap().write(|txn| txn.save_as("x", &[1i64; 4], StorageKind::Mutable)).unwrap();
    (dir, path)
}

/// Takes an exclusive guard, does what the role says, and waits to be killed. Returns false for a role in a different
/// module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    let Some(role) = role.strip_prefix("interrupted ") else { return false };
    let store = if role.contains("unmapped") { Store::open(path).unwrap() } else { open_mapped(path) };
    let x = store.load("x").unwrap();
    let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
    match role {
        "as_slice_mut" => guard.as_slice_mut::<i64>().unwrap()[0] = 7,
        "fill_" | "unmapped fill_" => {
            guard.at(&x.select(0, 0).unwrap()).unwrap().fill_(7).unwrap();
        }
        "copy_" => {
            let view = x.narrow(0, 0, 1).unwrap();
            guard.at(&view).unwrap().copy_(&Tensor::from_vec(vec![7i64], &[1]).unwrap()).unwrap();
        }
        "nothing" => assert_eq!(guard.read::<i64>().unwrap(), [1; 4]),
        "refused" => {
            guard.add_(1.5).unwrap_err();
            guard.fill_(1e30).unwrap_err();
            guard.copy_(&Tensor::from_vec(vec![1i64; 3], &[3]).unwrap()).unwrap_err();
        }
        "flush" => guard.flush().unwrap(),
        "fill_, flush" => guard.fill_(7).and_then(|guard| guard.flush()).unwrap(),
        "exit" => {
            guard.fill_(7).unwrap();
            std::process::exit(0);
        }
        "twice" => assert!(guard.was_interrupted()),
        _ => panic!("no role {role}"),
    }
    send_line("done");
    wait_for_line();
    drop(guard);
    true
}

/// Runs a role in a process that is killed under its guard.
fn kill_after(role: &str, path: &Path) {
    let mut other = OtherProcess::start(&format!("interrupted {role}"), path);
    if role == "exit" {
        return other.assert_success();
    }
    assert_eq!(other.read_line(), "done");
    other.kill();
}

fn assert_interrupted<T: std::fmt::Debug>(result: stridemap::Result<T>) {
    assert_refused(result, ErrorKind::Interrupted, &[BIN, "panicked", "allow_interrupted"]);
}

#[test]
fn killed_writer_leaves_a_mark_that_every_lock_and_read_reports() {
    for role in ["as_slice_mut", "copy_", "fill_", "unmapped fill_", "fill_, flush", "exit"] {
        let (dir, path) = with_ones();
        let before = Store::open(&path).unwrap().load("x").unwrap();
        kill_after(role, &path);
        assert_interrupted(before.read::<i64>());
        for (how, store) in handles(&path) {
            let x = store.load("x").unwrap();
            assert_interrupted(x.lock_shared());
            assert_interrupted(x.lock_exclusive());
            assert_interrupted(x.get::<i64>([0]));
            assert_interrupted(x.select(0, 1).unwrap().item::<i64>());
            assert_interrupted(x.statistics(|_| ()));
            assert!(x.to_string().contains("allow_interrupted"), "{role}, {how}");
            assert_interrupted(store.save("y", &x));
            assert_interrupted(x.to_dtype(DType::F32));
            let copied = store.snapshot().copy_to(dir.path().join("copy.smap"), None, |_| ());
            assert_refused(copied, ErrorKind::Interrupted, &["copy", "\"x\"", "allow_interrupted"]);
            assert!(!dir.path().join("copy.smap").exists());
            let found = store.verify(|_| ()).unwrap();
            assert_eq!((&found.interrupted[..], &found.findings[..]), (&["x".to_owned()][..], &[][..]));
            assert!(!found.is_whole());
            assert_eq!(store.verify_tensors(&["x"], |_| ()).unwrap().interrupted, ["x"]);

            // Views of a tensor that allows it, and the reads of its guards, see what is there.
            let allowed = x.allow_interrupted();
            let changed = if matches!(role, "fill_, flush" | "exit") { 7 } else { 1 };
            assert_eq!(allowed.read::<i64>().unwrap(), [7, changed, changed, changed], "{role}, {how}");
            assert_eq!(allowed.select(0, 0).unwrap().item::<i64>().unwrap(), 7);
            let guard = allowed.lock_shared().unwrap();
            assert!(guard.was_interrupted() && guard.at(&x).unwrap().was_interrupted());
            drop(guard);
            assert_interrupted(x.lock_shared());
        }
    }
}

#[test]
fn exclusive_guard_that_allows_it_declares_the_elements_whole() {
    for how in 0..2 {
        let (_dir, path) = with_ones();
        kill_after("fill_", &path);
        let store = Store::open(&path).unwrap();
        let x = store.load("x").unwrap();
        let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
        assert!(guard.was_interrupted() && guard.at(&x).unwrap().was_interrupted());
        if how == 0 {
            guard.fill_(2).unwrap();
        }
        drop(guard);
        assert_eq!(x.read::<i64>().unwrap(), [[2; 4], [7, 1, 1, 1]][how]);
        assert!(!x.lock_exclusive().unwrap().was_interrupted());
        assert!(!x.allow_interrupted().lock_shared().unwrap().was_interrupted());
        assert!(store.verify(|_| ()).unwrap().is_whole());
    }
}

#[test]
fn second_killed_writer_leaves_the_mark_of_the_first() {
    let (_dir, path) = with_ones();
    kill_after("fill_", &path);
    kill_after("twice", &path);
    assert_interrupted(Store::open(&path).unwrap().load("x").unwrap().read::<i64>());
}

#[test]
fn guard_that_changed_nothing_leaves_no_mark() {
    for role in ["nothing", "refused", "flush"] {
        let (_dir, path) = with_ones();
        kill_after(role, &path);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [1; 4], "{role}");
        assert!(store.verify(|_| ()).unwrap().is_whole(), "{role}");
    }
}

#[test]
fn panic_under_a_guard_leaves_a_mark_only_if_the_guard_changed_elements() {
    let (_dir, path) = with_ones();
    let x = open_mapped(&path).load("x").unwrap();
    let panic_after = |change: fn(&mut ExclusiveGuard<'static>)| {
        let ended = thread::scope(|scope| {
            let panicking = || {
                let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
                change(&mut guard);
                panic!("expected by the test");
            };
            scope.spawn(panicking).join()
        });
        assert!(ended.is_err());
    };
    panic_after(|_| ());
    assert_eq!(x.read::<i64>().unwrap(), [1; 4]);
    panic_after(|guard| guard.add_(1).map(drop).unwrap());
    assert_interrupted(x.read::<i64>());
    // A panic under a guard that allows it leaves the mark, even if it changed nothing.
    panic_after(|_| ());
    assert_interrupted(x.read::<i64>());
    drop(x.allow_interrupted().lock_exclusive().unwrap());
    assert_eq!(x.read::<i64>().unwrap(), [2; 4]);
}

#[test]
fn guard_that_a_panicking_thread_takes_and_drops_leaves_no_mark() {
    struct Restore(Tensor);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.lock_exclusive().unwrap().fill_(3).unwrap();
        }
    }
    let (_dir, path) = with_ones();
    let x = Store::open(&path).unwrap().load("x").unwrap();
    let panicking = || {
        let _restore = Restore(x.clone());
        panic!("expected by the test");
    };
    assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    assert_eq!(x.read::<i64>().unwrap(), [3; 4]);
}

#[test]
fn living_guard_is_not_reported_as_interrupted() {
    let (_dir, path) = with_ones();
    let store = Store::open(&path).unwrap();
    let x = store.load("x").unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.fill_(5).unwrap();
    assert_eq!(guard.read::<i64>().unwrap(), [5; 4], "a guard reads what it is changing");
    assert!(store.verify(|_| ()).unwrap().is_whole());
    assert!(store.verify_tensors(&["x"], |_| ()).unwrap().is_whole());
    // A refusal is no interruption.
    guard.add_(1.5).unwrap_err();
    drop(guard);
    assert_eq!(x.read::<i64>().unwrap(), [5; 4]);
}

#[test]
fn interrupted_change_of_one_tensor_does_not_concern_others() {
    let (_dir, path) = with_ones();
    let store = Store::open(&path).unwrap();
    store.write(|txn| txn.save_as("other", &[1i64; 4], StorageKind::Mutable)).unwrap();
    store.save_view("tail", &store.load("x").unwrap().narrow(0, 2, 2).unwrap()).unwrap();
    kill_after("fill_", &path);
    assert_eq!(store.load("other").unwrap().read::<i64>().unwrap(), [1; 4]);
    // The mark is that of the storage.
    assert_interrupted(store.load("tail").unwrap().read::<i64>());
    assert_eq!(store.verify(|_| ()).unwrap().interrupted, ["tail", "x"]);
    // A tensor of a different kind is returned as it is.
    store.save("sealed", &[1i64; 4]).unwrap();
    assert_eq!(store.load("sealed").unwrap().allow_interrupted().read::<i64>().unwrap(), [1; 4]);
    // Headers can be changed.
    store.rename("x", "y").unwrap();
    store.remove("tail").unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().interrupted, ["y"]);
}

#[test]
fn mark_follows_the_bytes_of_the_storage() {
    let (_dir, path) = with_ones();
    let store = Store::open(&path).unwrap();
    let file = path.join(BIN);
    assert_eq!(fs::read(&file).unwrap().len(), 33);
    let with_mark = |mark| {
        let mut bytes = fs::read(&file).unwrap();
        bytes[32] = mark;
        fs::write(&file, bytes).unwrap();
    };
    with_mark(255);
    assert_interrupted(store.load("x").unwrap().read::<i64>());
    with_mark(0);
    assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [1; 4]);
    fs::File::options().write(true).open(&file).unwrap().set_len(32).unwrap();
    let cut = Store::open(&path).unwrap().load("x");
    assert_refused(cut, ErrorKind::Corrupt, &["32 bytes", "requires 33", "F-26"]);
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
}

#[test]
fn mark_that_cannot_be_written_refuses_the_change_and_one_that_cannot_be_cleared_stays() {
    let disk = SimulatedDisk::new();
    let options = StoreOptions::new().disk(Arc::new(disk.clone()));
    let store = options.create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    let is_mark =
        |op: &Op, mark| matches!(op, Op::Write { offset_bytes: 32, bytes, .. } if **bytes == [mark]);
    disk.fail(move |op| is_mark(op, 1));
    let mut guard = x.lock_exclusive().unwrap();
    assert_refused(guard.fill_(7).map(drop), ErrorKind::Io, &["mark storage", BIN]);
    assert_eq!(guard.read::<i64>().unwrap(), [0; 4]);
    drop(guard);
    assert_eq!(x.read::<i64>().unwrap(), [0; 4]);
    disk.fail(move |op| is_mark(op, 0));
    x.lock_exclusive().unwrap().fill_(7).unwrap();
    assert_interrupted(x.read::<i64>());
    assert_eq!(x.allow_interrupted().read::<i64>().unwrap(), [7; 4]);
}

#[test]
fn guard_that_changes_nothing_writes_nothing() {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    let written = || disk.log().iter().filter(|op| matches!(op, Op::Write { .. })).count();
    let before = written();
    assert_eq!(x.lock_exclusive().unwrap().read::<i64>().unwrap(), [0; 4]);
    x.lock_exclusive().unwrap().add_(1.5).unwrap_err();
    assert_eq!(written(), before);
    let mut guard = x.lock_exclusive().unwrap();
    guard.add_(1).unwrap().add_(1).unwrap();
    drop(guard);
    assert_eq!(written(), before + 4, "two changes, and the mark twice");
}

/// The elements of a piece of an in-place operation, and half as many.
const TWO_PIECES: usize = 3 << 19;

#[test]
fn operation_that_fails_after_it_changed_elements_leaves_the_mark_until_all_are_replaced() {
    let disk = SimulatedDisk::new().without_log();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I64, &[TWO_PIECES], StorageKind::Mutable).unwrap();
    // Refuses one write of elements. The mark is one byte.
    let refuse_once = |from: u64| {
        disk.fail(move |op| {
            matches!(op, Op::Write { offset_bytes, bytes, .. } if *offset_bytes >= from && bytes.len() > 1)
        });
    };
    let assert_fails = |guard: &mut ExclusiveGuard<'_>| {
        assert_refused(guard.fill_(7).map(drop), ErrorKind::Io, &["write storage", BIN]);
    };
    refuse_once(1);
    let mut guard = x.lock_exclusive().unwrap();
    assert_fails(&mut guard);
    // One that is refused changes nothing about it.
    guard.add_(1.5).unwrap_err();
    drop(guard);
    assert_interrupted(x.get::<i64>([0]));
    let found = x.allow_interrupted().read::<i64>().unwrap();
    assert_eq!((found[0], found[TWO_PIECES - 1]), (7, 0));

    // A repair that fails repairs nothing, even if it was refused.
    refuse_once(0);
    let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
    assert_fails(&mut guard);
    drop(guard);
    assert_interrupted(x.get::<i64>([0]));
    let first = x.narrow(0, 0, 1).unwrap();
    let refused: [fn(&mut ExclusiveGuard<'_>) -> bool; 4] = [
        |guard| guard.as_slice_mut::<i64>().is_err(),
        |guard| ArrayViewMut1::<i64>::try_from(guard).is_err(),
        |guard| guard.fill_(1).and_then(|guard| guard.fill_(1e30)).is_err(),
        |guard| guard.fill_(1).and_then(|guard| guard.add_(1.5)).is_err(),
    ];
    for is_refused in refused {
        let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
        assert!(is_refused(&mut guard.at(&first).unwrap()));
        drop(guard);
        assert_interrupted(x.get::<i64>([0]));
    }

    // Nor does one that succeeds, if it reads the elements, changes only some, or changes none.
    let later: [fn(&mut ExclusiveGuard<'_>, &Tensor) -> bool; 3] = [
        |guard, _| guard.add_(1).is_ok(),
        |guard, first| guard.at(first).is_ok_and(|mut guard| guard.fill_(1).is_ok()),
        |guard, first| {
            let nothing = first.narrow(0, 0, 0).unwrap();
            guard.at(&nothing).is_ok_and(|mut guard| guard.fill_(1).is_ok())
        },
    ];
    for later in later {
        refuse_once(1);
        let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
        assert_fails(&mut guard);
        assert!(later(&mut guard, &first));
        drop(guard);
        assert_interrupted(x.get::<i64>([0]));
    }

    refuse_once(1);
    let mut guard = x.allow_interrupted().lock_exclusive().unwrap();
    assert_fails(&mut guard);
    guard.fill_(8).unwrap();
    drop(guard);
    assert!(x.read::<i64>().unwrap() == [8; TWO_PIECES]);
}

#[test]
fn operation_on_mapped_elements_that_fails_half_way_leaves_the_mark() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    store.save("source", &filled(TWO_PIECES, 7i64)).unwrap();
    let _ = store.create_tensor("x", DType::I64, &[TWO_PIECES], StorageKind::Mutable).unwrap();
    let last = TWO_PIECES as u64 * 8 - 1;
    let disk = Hooked { unreadable: Some((path.join(BIN), last..last + 1)), ..Hooked::default() };
    let source = StoreOptions::new().disk(Arc::new(disk)).open(&path).unwrap().load("source").unwrap();
    let x = open_mapped(&path).load("x").unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    // What fails before it changes the first element leaves no mark.
    let unreadable = source.narrow(0, TWO_PIECES - 1, 1).unwrap();
    let mut one = guard.at(&x.narrow(0, 0, 1).unwrap()).unwrap();
    assert_refused(one.add_(&unreadable).map(drop), ErrorKind::Io, &["read storage", BIN]);
    drop(one);
    drop(guard);
    assert_eq!(x.get::<i64>([0]).unwrap(), 0);
    let mut guard = x.lock_exclusive().unwrap();
    assert_refused(guard.copy_(&source).map(drop), ErrorKind::Io, &["read storage", BIN]);
    drop(guard);
    assert_refused(x.get::<i64>([0]), ErrorKind::Interrupted, &["allow_interrupted"]);
    let found = x.allow_interrupted().read::<i64>().unwrap();
    assert_eq!((found[0], found[TWO_PIECES - 1]), (7, 0));
}

#[test]
fn flush_under_a_second_guard_makes_the_removal_of_the_mark_durable() {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create("/x.smap").unwrap();
    let x = store.create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    x.lock_exclusive().unwrap().fill_(7).unwrap().flush().unwrap();
    let after_power_cut = || {
        let left = SimulatedDisk::after_power_cut(&disk.log(), Outcome::EverythingLost);
        StoreOptions::new().disk(Arc::new(left)).open("/x.smap").unwrap().load("x").unwrap()
    };
    assert_interrupted(after_power_cut().read::<i64>());
    assert_eq!(after_power_cut().allow_interrupted().read::<i64>().unwrap(), [7; 4]);
    x.lock_exclusive().unwrap().flush().unwrap();
    assert_eq!(after_power_cut().read::<i64>().unwrap(), [7; 4]);
}

#[test]
fn verify_refuses_no_guard_of_this_process() {
    let (_dir, path) = with_ones();
    kill_after("fill_", &path);
    let at_once = StoreOptions::new().lock_timeout(Duration::ZERO);
    let x = Mutex::new(Some(at_once.open(&path).unwrap().load("x").unwrap().allow_interrupted()));
    let locking = Arc::new(Mutex::new(None));
    let started = Arc::clone(&locking);
    // While `verify` has the lock under which it reads the mark, another thread asks for a guard. Either it is refused, or
    // it sleeps until `verify` goes on.
    let disk = Hooked::after(move |operation, path| {
        if operation != "try_lock" || !path.ends_with(BIN) {
            return;
        }
        let Some(x) = x.lock().unwrap().take() else { return };
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn(move || {
            send.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            x.lock_exclusive().map(|guard| guard.was_interrupted())
        });
        let stat = Path::new("/proc").join(receive.recv().unwrap()).join("stat");
        let is_asleep = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        while !thread.is_finished() && !is_asleep() {
            thread::yield_now();
        }
        *started.lock().unwrap() = Some(thread);
    });
    let store = StoreOptions::new().disk(Arc::new(disk)).open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().interrupted, ["x"]);
    let thread = locking.lock().unwrap().take().unwrap();
    assert!(thread.join().unwrap().unwrap());
}

#[test]
fn verify_reads_the_mark_beside_shared_guards_of_this_process() {
    let (_dir, path) = with_ones();
    kill_after("fill_", &path);
    let store = Store::open(&path).unwrap();
    let guard = store.load("x").unwrap().allow_interrupted().lock_shared().unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().interrupted, ["x"]);
    assert!(guard.was_interrupted());
}
