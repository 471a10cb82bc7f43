//! Writers that queue, and readers that wait for a commit. The other processes are this test binary, started again.

use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use stridemap::disk::{Counted, Disk};
use stridemap::{DType, Durability, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::hooked::Hooked;
use crate::processes::{hear, say, start, wait_for_a_line};
use crate::refusals::assert_refused;
use crate::support::temporary;

/// Long enough for whatever does end.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn scalar(value: i64) -> Tensor {
    Tensor::from_vec(vec![value], &[]).unwrap()
}

pub(crate) fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

/// A process that plays a role, and what it says.
pub(crate) struct Player {
    pub(crate) child: Child,
    said: BufReader<ChildStdout>,
}

impl Player {
    pub(crate) fn start(role: &str, path: &Path) -> Self {
        let mut child = start(role, path);
        let said = BufReader::new(child.stdout.take().unwrap());
        Player { child, said }
    }

    pub(crate) fn hear(&mut self) -> String {
        hear(&mut self.said)
    }

    pub(crate) fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }

    pub(crate) fn succeeds(mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Processes that have begun, and that are let go together.
pub(crate) fn let_go(role: &str, path: &Path, count: usize) -> Vec<Player> {
    let mut players: Vec<Player> = (0..count).map(|_| Player::start(role, path)).collect();
    players.iter_mut().for_each(|player| assert_eq!(player.hear(), "ready"));
    players.iter_mut().for_each(Player::go_on);
    players
}

const LOOPING_PROCESSES: usize = 3;
const LOOPING_THREADS: usize = 2;
/// How often each writer commits at least.
const TURNS: u64 = 20;

/// What a started process does; false for another's role.
pub(crate) fn play(role: &str, path: &Path) -> bool {
    match role {
        "commit in a loop" => {
            // SAFETY: only this library writes the store.
            let counts = unsafe { Store::open_mapped(path).unwrap() }.load("counts").unwrap();
            let counts = counts.as_live::<u64>().unwrap();
            let stores: Vec<Store> =
                (0..LOOPING_THREADS).map(|_| fast().lock_timeout(LONG).open(path).unwrap()).collect();
            say("ready");
            wait_for_a_line();
            let work = |(thread, store): (usize, &Store)| {
                let name = format!("{}.{thread}", std::process::id());
                let mut count = 0;
                // The first element counts those who have begun.
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
            say(std::process::id());
            wait_for_a_line();
        }
        "stand at the front" => {
            let lock = File::options().read(true).write(true).open(path.join("LOCK")).unwrap();
            rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
            say("there");
            wait_for_a_line();
        }
        "wait for a change" => {
            let shared = Store::open(path).unwrap();
            let of_its_own = Store::open(path).unwrap();
            let before = shared.generation();
            say("ready");
            thread::scope(|scope| {
                for store in [&shared, &shared, &shared, &of_its_own] {
                    scope.spawn(move || {
                        // A thread that begins late finds that another has moved the handle they share.
                        assert!(store.generation() > before || store.wait_for_change(LONG).unwrap());
                        assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
                    });
                }
            });
            say(shared.generation());
        }
        "prepare a large save" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            let large = Tensor::from_vec(vec![i64::from(std::process::id()); 1 << 20], &[1 << 20]).unwrap();
            txn.save(&format!("large.{}", std::process::id()), &large).unwrap();
            say("prepared");
            wait_for_a_line();
            txn.commit().unwrap();
        }
        _ => return false,
    }
    true
}

#[test]
fn every_writer_commits_while_the_others_never_stop() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let counts = [1 + LOOPING_PROCESSES * LOOPING_THREADS];
    let counts = store.create_tensor("counts", DType::U64, &counts, StorageKind::Live).unwrap();
    let_go("commit in a loop", &path, LOOPING_PROCESSES).into_iter().for_each(Player::succeeds);
    let counts: Vec<u64> = counts.read().unwrap();
    println!("commits until each writer had {TURNS}, by writer: {:?}", &counts[1..]);
    assert!(counts[1..].iter().all(|&turns| turns >= TURNS), "{counts:?}");
    assert_eq!(Store::open(&path).unwrap().generation(), 2 + counts[1..].iter().sum::<u64>());
}

#[test]
fn busy_writer_is_told_who_commits() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().lock_timeout(Duration::from_millis(20)).create(&path).unwrap();
    let mut holder = Player::start("hold the writers' lock", &path);
    let id = holder.hear();
    let busy = store.save("x", &scalar(1)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    // The kernel tells, where the file system and the namespace of processes allow.
    let text = busy.to_string();
    assert!(text.contains(&format!("process {id} holds it")) || text.contains("another writer"), "{text}");
    assert!(text.contains("LOCK") && text.contains("20ms"), "{text}");
    holder.kill();
    store.save("x", &scalar(1)).unwrap();
}

/// A disk, and what was asked of LOCK on it.
fn recording() -> (StoreOptions, Arc<Mutex<Vec<String>>>) {
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
fn writer_behind_another_does_not_ask_for_the_lock_and_one_at_the_front_stays_there() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    fast().create(&path).unwrap();
    let mut front = Player::start("stand at the front", &path);
    assert_eq!(front.hear(), "there");
    let (options, asked) = recording();
    let store = options.lock_timeout(Duration::from_secs(4)).open(&path).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert_eq!(*asked.lock().unwrap(), ["try_front", "try_lock"]);
    front.kill();

    let held = File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&held).unwrap();
    let (options, asked) = recording();
    let store = options.lock_timeout(Duration::from_secs(1)).open(&path).unwrap();
    assert_refused(store.save("x", &scalar(1)), ErrorKind::Busy, &["1s"]);
    let asked = asked.lock().unwrap();
    assert!(asked.len() > 2 && asked[0] == "try_front", "{asked:?}");
    assert!(asked[1..].iter().all(|operation| operation == "try_lock"), "{asked:?}");
}

#[test]
fn process_that_is_stopped_at_the_front_keeps_nobody_from_a_free_lock() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let mut front = Player::start("stand at the front", &path);
    assert_eq!(front.hear(), "there");
    store.save("x", &scalar(1)).unwrap();
    let hasty = fast().lock_timeout(Duration::ZERO).open(&path).unwrap();
    hasty.save("x", &scalar(2)).unwrap();
    front.kill();
}

#[test]
fn thread_that_shares_a_guard_takes_another_though_somebody_waits_to_be_alone() {
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
fn two_processes_prepare_large_saves_while_a_third_commits() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(100)).create(&path).unwrap();
    let mut players: Vec<Player> = (0..2).map(|_| Player::start("prepare a large save", &path)).collect();
    players.iter_mut().for_each(|player| assert_eq!(player.hear(), "prepared"));
    assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 4, "bytes and chunk digests of both");
    store.save("small", &scalar(1)).unwrap();
    players.iter_mut().for_each(Player::go_on);
    let ids: Vec<u32> = players.iter().map(|player| player.child.id()).collect();
    players.into_iter().for_each(Player::succeeds);
    store.refresh().unwrap();
    for id in ids {
        let large: Vec<i64> = store.load(&format!("large.{id}")).unwrap().read().unwrap();
        assert!(large.iter().all(|&element| element == i64::from(id)));
    }
    assert_eq!(store.names().unwrap().len(), 3);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn waiters_in_other_processes_wake_when_one_commits() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let mut waiters: Vec<Player> = (0..3).map(|_| Player::start("wait for a change", &path)).collect();
    waiters.iter_mut().for_each(|waiter| assert_eq!(waiter.hear(), "ready"));
    store.save("x", &scalar(1)).unwrap();
    for mut waiter in waiters {
        assert_eq!(waiter.hear(), "2");
        waiter.succeeds();
    }
}

/// How often the disk was asked for the manifests.
fn looks(disk: impl FnOnce(Hooked) -> Hooked, wait: impl FnOnce(&Store)) -> usize {
    let dir = temporary();
    let path = dir.path().join("x.smap");
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
    // Each look is two listings that agree.
    count.load(Ordering::Relaxed) / 2
}

#[test]
fn waiter_in_silence_looks_about_once_a_second() {
    let silence = Duration::from_millis(1500);
    let told = looks(|disk| disk, |store| assert!(!store.wait_for_change(silence).unwrap()));
    assert!((3..=5).contains(&told), "{told} looks");
    let untold = |disk| Hooked { has_watches: false, ..disk };
    let untold = looks(untold, |store| assert!(!store.wait_for_change(silence).unwrap()));
    assert!((3..=33).contains(&untold), "{untold} looks without the system's help");
}

#[test]
fn unfinished_files_wake_nobody() {
    let told = looks(
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
fn commit_before_the_call_or_while_the_watch_begins_is_seen_without_waiting() {
    let before = looks(
        |disk| disk,
        |store| {
            Store::open(store.path()).unwrap().save("x", &scalar(1)).unwrap();
            assert!(store.wait_for_change(Duration::ZERO).unwrap());
            assert_eq!(store.generation(), 2);
            assert!(!store.wait_for_change(Duration::ZERO).unwrap());
        },
    );
    assert_eq!(before, 2);
    let between = looks(
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
fn commits_of_the_handle_itself_before_the_call_are_no_change() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert!(!store.wait_for_change(Duration::from_millis(20)).unwrap());
}

#[test]
fn handle_that_waited_waits_again() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, another) = (Store::create(&path).unwrap(), Store::open(&path).unwrap());
    for disk in [None, Some(Hooked { has_watches: false, ..Hooked::default() })] {
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
fn wait_goes_on_in_a_store_that_is_renamed() {
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

/// A whole commit, with the queue.
#[test]
fn commit_is_counted_on_the_disk_as_before() {
    let dir = temporary();
    let disk = Counted::default();
    let store =
        fast().disk(Arc::new(disk.clone()) as Arc<dyn Disk>).create(dir.path().join("x.smap")).unwrap();
    store.save("x", &scalar(0)).unwrap();
    disk.take();
    store.save("x", &scalar(1)).unwrap();
    let counts = disk.take();
    assert!(counts.operation_count <= 25, "{counts:?}");
}
