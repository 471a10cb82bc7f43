//! Writers that queue, and readers that wait for a commit. The other processes are this test binary, started again.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use stridemap::disk::Disk;
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions};

use crate::harness::hooked::{Hooked, Quirks};
use crate::harness::processes::{OtherProcess, send_line, start_together, wait_for_line};
use crate::harness::{
    assert_refused, fast, filled, new_fast_store, new_path, new_store, open_mapped, scalar,
};
use crate::support::temporary;

/// Longer than any wait that ends.
const LONG: Duration = Duration::from_secs(60);

const LOOPING_PROCESSES: usize = 3;
const LOOPING_THREADS: usize = 2;
/// The minimum number of commits by each writer.
const TURNS: u64 = 20;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "commit in a loop" => {
            let counts = open_mapped(path).load("counts").unwrap();
            let counts = counts.as_live::<u64>().unwrap();
            let stores: Vec<Store> =
                (0..LOOPING_THREADS).map(|_| fast().lock_timeout(LONG).open(path).unwrap()).collect();
            send_line("ready");
            wait_for_line();
            let work = |(thread, store): (usize, &Store)| {
                let name = format!("{}.{thread}", std::process::id());
                let mut count = 0;
                // The first element counts the threads that have begun.
                let own = counts.fetch_add([0], 1).unwrap() as isize + 1;
                while counts.read().unwrap()[1..].iter().any(|&turns| turns < TURNS) {
                    store.save(&name, &scalar(count)).unwrap();
                    count += 1;
                    counts.fetch_add([own], 1).unwrap();
                }
            };
            thread::scope(|scope| {
                stores.iter().enumerate().for_each(|store| drop(scope.spawn(move || work(store))));
            });
        }
        "hold the writers' lock" => {
            let lock = File::open(path.join("LOCK")).unwrap();
            fs2::FileExt::lock_exclusive(&lock).unwrap();
            send_line(std::process::id());
            wait_for_line();
        }
        "stand at the front" => {
            let lock = File::options().read(true).write(true).open(path.join("LOCK")).unwrap();
            rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
            send_line("there");
            wait_for_line();
        }
        "wait for a change" => {
            let shared = Store::open(path).unwrap();
            let of_its_own = Store::open(path).unwrap();
            let before = shared.generation();
            send_line("ready");
            thread::scope(|scope| {
                for store in [&shared, &shared, &shared, &of_its_own] {
                    scope.spawn(move || {
                        // A thread that begins late finds that another thread has already moved the shared handle.
                        assert!(store.generation() > before || store.wait_for_change(LONG).unwrap());
                        assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
                    });
                }
            });
            send_line(shared.generation());
        }
        "prepare a large save" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            let large = filled(1 << 20, i64::from(std::process::id()));
            txn.save(&format!("large.{}", std::process::id()), &large).unwrap();
            send_line("prepared");
            wait_for_line();
            txn.commit().unwrap();
        }
        _ => return false,
    }
    true
}

#[test]
fn every_writer_gets_its_turn_while_others_commit_in_a_loop() {
    let (_dir, path, store) = new_fast_store();
    let counts = [1 + LOOPING_PROCESSES * LOOPING_THREADS];
    let counts = store.create_tensor("counts", DType::U64, &counts, StorageKind::Live).unwrap();
    start_together("commit in a loop", &path, LOOPING_PROCESSES)
        .into_iter()
        .for_each(OtherProcess::assert_success);
    let counts: Vec<u64> = counts.read().unwrap();
    println!("commits until each writer had {TURNS}, by writer: {:?}", &counts[1..]);
    assert!(counts[1..].iter().all(|&turns| turns >= TURNS), "{counts:?}");
    assert_eq!(Store::open(&path).unwrap().generation(), 2 + counts[1..].iter().sum::<u64>());
}

#[test]
fn busy_error_names_the_process_that_commits() {
    let (_dir, path) = new_path();
    let store = fast().lock_timeout(Duration::from_millis(20)).create(&path).unwrap();
    let mut holder = OtherProcess::start("hold the writers' lock", &path);
    let id = holder.read_line();
    let busy = store.save("x", &scalar(1)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    // The kernel names the process if the file system and the process namespace allow it.
    let text = busy.to_string();
    assert!(text.contains(&format!("process {id} holds it")) || text.contains("another writer"), "{text}");
    assert!(text.contains("LOCK") && text.contains("20ms"), "{text}");
    holder.kill();
    store.save("x", &scalar(1)).unwrap();
}

#[test]
fn long_wait_is_reported_with_the_process_that_holds_the_lock() {
    static REPORTED: Mutex<Vec<Vec<u32>>> = Mutex::new(Vec::new());
    let (_dir, path) = new_path();
    let report = |processes: &[u32]| REPORTED.lock().unwrap().push(processes.to_vec());
    let after = Duration::from_millis(20);
    let store = fast().lock_timeout(Duration::from_secs(1)).on_wait(after, report).create(&path).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert!(REPORTED.lock().unwrap().is_empty(), "nothing was waited for");
    let mut holder = OtherProcess::start("hold the writers' lock", &path);
    let id: u32 = holder.read_line().parse().unwrap();
    assert_eq!(store.save("x", &scalar(2)).unwrap_err().kind(), ErrorKind::Busy);
    let reported = std::mem::take(&mut *REPORTED.lock().unwrap());
    // The kernel names the process if the file system and the process namespace allow it.
    assert!(
        !reported.is_empty() && reported.iter().all(|ids| *ids == [id] || ids.is_empty()),
        "{reported:?}"
    );
    holder.kill();

    // A guard waits for another guard.
    store.write(|txn| txn.save_as("m", &1i32, StorageKind::Mutable)).unwrap();
    let m = store.load("m").unwrap();
    let guard = m.lock_shared().unwrap();
    let busy = thread::scope(|scope| scope.spawn(|| m.lock_exclusive().map(drop)).join().unwrap());
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert!(!REPORTED.lock().unwrap().is_empty());
    drop(guard);
}

/// Returns options with a disk that records the operations on LOCK.
fn recording_options() -> (StoreOptions, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let recorded = Arc::clone(&asked);
    let disk = Hooked::before(move |operation, path| {
        if path.ends_with("LOCK") && operation.starts_with("try_") {
            recorded.lock().unwrap().push(operation.to_owned());
        }
        Ok(())
    });
    (fast().disk(Arc::new(disk)), asked)
}

#[test]
fn only_the_first_writer_of_the_queue_asks_for_the_lock() {
    let (_dir, path) = new_path();
    fast().create(&path).unwrap();
    let mut front = OtherProcess::start("stand at the front", &path);
    assert_eq!(front.read_line(), "there");
    let (options, asked) = recording_options();
    let store = options.lock_timeout(Duration::from_secs(4)).open(&path).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert_eq!(*asked.lock().unwrap(), ["try_front", "try_lock"]);
    front.kill();

    let held = File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&held).unwrap();
    let (options, asked) = recording_options();
    let store = options.lock_timeout(Duration::from_secs(1)).open(&path).unwrap();
    assert_refused(store.save("x", &scalar(1)), ErrorKind::Busy, &["1s"]);
    let asked = asked.lock().unwrap();
    assert!(asked.len() > 2 && asked[0] == "try_front", "{asked:?}");
    assert!(asked[1..].iter().all(|operation| operation == "try_lock"), "{asked:?}");
}

#[test]
fn process_stopped_at_the_front_does_not_block_a_free_lock() {
    let (_dir, path, store) = new_fast_store();
    let mut front = OtherProcess::start("stand at the front", &path);
    assert_eq!(front.read_line(), "there");
    store.save("x", &scalar(1)).unwrap();
    let hasty = fast().lock_timeout(Duration::ZERO).open(&path).unwrap();
    hasty.save("x", &scalar(2)).unwrap();
    front.kill();
}

#[test]
fn thread_with_a_shared_guard_takes_another_while_an_exclusive_one_waits() {
    let dir = temporary();
    let store = fast().lock_timeout(LONG).create(dir.path().join("x.smap")).unwrap();
    let x = store.create_tensor("x", DType::I64, &[], StorageKind::Mutable).unwrap();
    let first = x.lock_shared().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(x.lock_exclusive().unwrap()));
        thread::sleep(Duration::from_millis(50));
        drop((first, x.lock_shared().unwrap()));
        waiter.join().unwrap();
    });
}

#[test]
fn large_saves_are_prepared_while_another_process_commits() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(100)).create(&path).unwrap();
    let mut players: Vec<OtherProcess> =
        (0..2).map(|_| OtherProcess::start("prepare a large save", &path)).collect();
    players.iter_mut().for_each(|player| assert_eq!(player.read_line(), "prepared"));
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 4, "bytes and chunk digests of both");
    store.save("small", &scalar(1)).unwrap();
    players.iter_mut().for_each(OtherProcess::resume);
    let ids: Vec<u32> = players.iter().map(|player| player.child.id()).collect();
    players.into_iter().for_each(OtherProcess::assert_success);
    store.refresh().unwrap();
    for id in ids {
        let large: Vec<i64> = store.load(&format!("large.{id}")).unwrap().read().unwrap();
        assert!(large.iter().all(|&element| element == i64::from(id)));
    }
    assert_eq!(store.names().unwrap().len(), 3);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn waiters_in_other_processes_wake_after_a_commit() {
    let (_dir, path, store) = new_store();
    let mut waiters: Vec<OtherProcess> =
        (0..3).map(|_| OtherProcess::start("wait for a change", &path)).collect();
    waiters.iter_mut().for_each(|waiter| assert_eq!(waiter.read_line(), "ready"));
    store.save("x", &scalar(1)).unwrap();
    for mut waiter in waiters {
        assert_eq!(waiter.read_line(), "2");
        waiter.assert_success();
    }
}

/// Returns how many times the disk was asked for the manifests.
fn count_checks(disk: impl FnOnce(Hooked) -> Hooked, wait: impl FnOnce(&Store)) -> usize {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let root = path.clone();
    let hooked = Hooked::before(move |operation, path| {
        if operation == "list" && path.ends_with("meta") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if operation == "watch" && root.join("interrupted").exists() {
            Store::open(&root).unwrap().save("x", &scalar(1)).unwrap();
        }
        Ok(())
    });
    let store = StoreOptions::new().disk(Arc::new(disk(hooked))).open(&path).unwrap();
    count.store(0, Ordering::Relaxed);
    wait(&store);
    // Each check makes two listings, which agree.
    count.load(Ordering::Relaxed) / 2
}

#[test]
fn idle_waiter_checks_about_once_a_second() {
    let silence = Duration::from_millis(1500);
    let told = count_checks(|disk| disk, |store| assert!(!store.wait_for_change(silence).unwrap()));
    assert!((3..=5).contains(&told), "{told} looks");
    let untold = |disk: Hooked| disk.with(Quirks { lacks_watches: true, ..Quirks::default() });
    let untold = count_checks(untold, |store| assert!(!store.wait_for_change(silence).unwrap()));
    assert!((3..=33).contains(&untold), "{untold} looks without the system's help");
}

#[test]
fn unfinished_files_wake_no_waiter() {
    let told = count_checks(
        |disk| disk,
        |store| {
            let meta = store.path().join("meta");
            thread::scope(|scope| {
                let waiter = scope.spawn(|| store.wait_for_change(Duration::from_millis(900)).unwrap());
                for i in 0..100 {
                    fs::write(meta.join(format!(".stage-{i}")), "").unwrap();
                    thread::sleep(Duration::from_millis(2));
                }
                assert!(!waiter.join().unwrap());
            });
        },
    );
    assert!(told <= 5, "{told} looks");
}

#[test]
fn commit_before_or_while_the_watch_begins_is_seen_without_waiting() {
    let before = count_checks(
        |disk| disk,
        |store| {
            Store::open(store.path()).unwrap().save("x", &scalar(1)).unwrap();
            assert!(store.wait_for_change(Duration::ZERO).unwrap());
            assert_eq!(store.generation(), 2);
            assert!(!store.wait_for_change(Duration::ZERO).unwrap());
        },
    );
    assert_eq!(before, 2);
    let between = count_checks(
        |disk| disk,
        |store| {
            fs::write(store.path().join("interrupted"), "").unwrap();
            assert!(store.wait_for_change(LONG).unwrap());
            assert_eq!(store.generation(), 2);
        },
    );
    assert_eq!(between, 2, "the watch began after the last look");
}

#[test]
fn earlier_commits_of_the_handle_itself_are_not_a_change() {
    let (_dir, _, store) = new_store();
    store.save("x", &scalar(1)).unwrap();
    assert!(!store.wait_for_change(Duration::from_millis(20)).unwrap());
}

#[test]
fn handle_can_wait_repeatedly() {
    let (_dir, path) = new_path();
    let (store, another) = (Store::create(&path).unwrap(), Store::open(&path).unwrap());
    for disk in [None, Some(Hooked::default().with(Quirks { lacks_watches: true, ..Quirks::default() }))] {
        let options = disk.map_or(StoreOptions::new(), |disk| StoreOptions::new().disk(Arc::new(disk)));
        let waiting = options.open(&path).unwrap();
        for value in 0..20 {
            thread::scope(|scope| {
                let waiter = scope.spawn(|| waiting.wait_for_change(LONG).unwrap());
                another.save("x", &scalar(value)).unwrap();
                assert!(waiter.join().unwrap());
            });
            assert_eq!(waiting.load("x").unwrap().item::<i64>().unwrap(), value);
        }
    }
    assert!(store.wait_for_change(LONG).unwrap());
    assert_eq!(store.generation(), 41);
}

#[test]
fn wait_continues_while_the_store_is_renamed() {
    let dir = temporary();
    let (path, elsewhere) = (dir.path().join("x.smap"), dir.path().join("elsewhere"));
    let store = Store::create(&path).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait_for_change(LONG));
        fs::rename(&path, &elsewhere).unwrap();
        Store::open(&elsewhere).unwrap().save("x", &scalar(1)).unwrap();
        assert!(waiter.join().unwrap().unwrap());
    });
    assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
}

/// A complete commit, including the queue.
#[test]
fn waiting_adds_no_disk_operations_to_a_commit() {
    let dir = temporary();
    let disk = Hooked::default();
    let store =
        fast().disk(Arc::new(disk.clone()) as Arc<dyn Disk>).create(dir.path().join("x.smap")).unwrap();
    store.save("x", &scalar(0)).unwrap();
    disk.take_counts();
    store.save("x", &scalar(1)).unwrap();
    let counts = disk.take_counts();
    assert!(counts.operation_count <= 25, "{counts:?}");
}
