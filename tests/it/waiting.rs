//! Writers that queue, and readers that wait for a commit. The other processes are this test binary, started again.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stridemap::disk::{Counted, Disk};
use stridemap::{Durability, Error, ErrorKind, Snapshot, Store, StoreOptions, Tensor};

use crate::hooked::Hooked;
use crate::processes::{hear, say, start, wait_for_a_line};
use crate::refusals::assert_refused;
use crate::support::temporary;

/// Long enough for whatever does end.
const LONG: Duration = Duration::from_secs(60);

fn scalar(value: i64) -> Tensor {
    Tensor::from_vec(vec![value], &[]).unwrap()
}

fn fast() -> StoreOptions {
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
fn let_go(role: &str, path: &Path, count: usize) -> Vec<Player> {
    let mut players: Vec<Player> = (0..count).map(|_| Player::start(role, path)).collect();
    players.iter_mut().for_each(|player| assert_eq!(player.hear(), "ready"));
    players.iter_mut().for_each(Player::go_on);
    players
}

const LOOPING_THREADS: usize = 2;
const NEW_NAMES: usize = 40;
const INCREMENTS: i64 = 25;

/// What a started process does; false for another's role.
pub(crate) fn play(role: &str, path: &Path) -> bool {
    match role {
        "commit in a loop" => {
            let stores: Vec<Store> = (0..LOOPING_THREADS)
                .map(|_| fast().lock_timeout(Duration::from_secs(2)).open(path).unwrap())
                .collect();
            say("ready");
            wait_for_a_line();
            let end = Instant::now() + Duration::from_secs(1);
            let work = |(thread, store): (usize, &Store)| {
                let name = format!("{}.{thread}", std::process::id());
                let mut count = 0;
                while Instant::now() < end {
                    store.save(&name, &scalar(count)).unwrap();
                    count += 1;
                }
                count
            };
            let counts: Vec<String> = thread::scope(|scope| {
                let threads: Vec<_> =
                    stores.iter().enumerate().map(|store| scope.spawn(move || work(store))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap().to_string()).collect()
            });
            say(counts.join(" "));
        }
        "hold the writers' lock" => {
            let lock = File::open(path.join("LOCK")).unwrap();
            fs2::FileExt::lock_exclusive(&lock).unwrap();
            say(std::process::id());
            wait_for_a_line();
        }
        "wait for a change" => {
            let shared = Store::open(path).unwrap();
            let of_its_own = Store::open(path).unwrap();
            say("ready");
            thread::scope(|scope| {
                for store in [&shared, &shared, &shared, &of_its_own] {
                    scope.spawn(move || {
                        assert!(store.wait_for_change(LONG).unwrap());
                        assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
                    });
                }
            });
            say(shared.generation());
        }
        "save new names" => {
            let store = fast().open(path).unwrap();
            say("ready");
            wait_for_a_line();
            let mut won = 0;
            for i in 0..NEW_NAMES {
                match store.save_new(&format!("name.{i}"), &scalar(i64::from(std::process::id()))) {
                    Ok(()) => won += 1,
                    Err(e) => assert_conflict_of_names(&e),
                }
            }
            say(won);
        }
        "increment" => {
            let store = fast().open(path).unwrap();
            say("ready");
            wait_for_a_line();
            let mut conflicts = 0;
            for _ in 0..INCREMENTS {
                while !increment(&store) {
                    conflicts += 1;
                }
            }
            say(conflicts);
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

fn assert_conflict_of_names(e: &Error) {
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    let source = e.source().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(source.kind(), ErrorKind::NameExists, "{e}");
}

/// Reads, adds and commits, if nobody else did meanwhile.
fn increment(store: &Store) -> bool {
    store.refresh().unwrap();
    let seen = store.snapshot();
    let count: i64 = seen.load("count").unwrap().item().unwrap();
    let mut txn = store.begin().unwrap();
    txn.expect_generation(seen.generation());
    txn.save("count", &scalar(count + 1)).unwrap();
    match txn.commit() {
        Ok(generation) => assert_eq!(generation, seen.generation() + 1),
        Err(e) if e.kind() == ErrorKind::Conflict => return false,
        Err(e) => panic!("{e}"),
    }
    true
}

#[test]
fn writers_in_tight_loops_all_get_their_turn() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    fast().create(&path).unwrap();
    let mut counts = Vec::new();
    for mut player in let_go("commit in a loop", &path, 3) {
        counts.extend(player.hear().split(' ').map(|count| count.parse::<u64>().unwrap()));
        player.succeeds();
    }
    println!("commits in a second, by writer: {counts:?}");
    let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
    assert_eq!(counts.len(), 3 * LOOPING_THREADS);
    assert!(least >= 3 && most <= 20 * least, "a writer starves: {counts:?}");
    assert_eq!(Store::open(&path).unwrap().generation(), 1 + counts.iter().sum::<u64>());
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

/// A disk, and the files that locks were asked of on it.
fn recording() -> (StoreOptions, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let recorded = Arc::clone(&asked);
    let disk = Hooked::before(move |operation, path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        if operation == "try_lock" && (name == "LOCK" || name == "FORMAT") {
            recorded.lock().unwrap().push(name.to_owned());
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
    let (options, asked) = recording();
    let store = options.lock_timeout(Duration::from_secs(4)).open(&path).unwrap();
    let front = File::open(path.join("FORMAT")).unwrap();
    fs2::FileExt::lock_exclusive(&front).unwrap();
    store.save("x", &scalar(1)).unwrap();
    let behind = std::mem::take(&mut *asked.lock().unwrap());
    let first = behind.iter().position(|name| name == "LOCK").unwrap();
    assert!(first > 1, "it asks for the lock while another stands before it: {behind:?}");
    drop(front);

    let held = File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&held).unwrap();
    let (options, asked) = recording();
    let store = options.lock_timeout(Duration::from_millis(100)).open(&path).unwrap();
    assert_refused(store.save("x", &scalar(1)), ErrorKind::Busy, &["100ms"]);
    let asked = asked.lock().unwrap();
    // A newcomer steps back once.
    assert_eq!(asked[..4], ["FORMAT", "LOCK", "FORMAT", "LOCK"], "{asked:?}");
    assert!(asked[4..].iter().all(|name| name == "LOCK"), "{asked:?}");
}

#[test]
fn process_that_is_stopped_at_the_front_keeps_nobody_from_a_free_lock() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let front = File::open(path.join("FORMAT")).unwrap();
    fs2::FileExt::lock_exclusive(&front).unwrap();
    store.save("x", &scalar(1)).unwrap();
    let hasty = fast().lock_timeout(Duration::ZERO).open(&path).unwrap();
    hasty.save("x", &scalar(2)).unwrap();
}

#[test]
fn queue_needs_no_permission_to_write_format() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let marker = path.join("FORMAT");
    let mut permissions = fs::metadata(&marker).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&marker, permissions).unwrap();
    let locked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&locked);
    let disk = Hooked::after(move |operation, path| {
        if operation == "try_lock" && path.ends_with("FORMAT") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    fast().disk(Arc::new(disk)).open(store.path()).unwrap().save("x", &scalar(1)).unwrap();
    assert_eq!(locked.load(Ordering::Relaxed), 1, "who finds nobody waiting looks once");
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
    assert_eq!(store.verify(|_| ()).unwrap(), []);
}

#[test]
fn new_name_is_saved_by_one_of_several_processes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let mut won = 0;
    for mut player in let_go("save new names", &path, 4) {
        won += player.hear().parse::<usize>().unwrap();
        player.succeeds();
    }
    assert_eq!(won, NEW_NAMES);
    store.refresh().unwrap();
    assert_eq!(store.names().unwrap().len(), NEW_NAMES);
    assert_eq!(store.generation(), 1 + NEW_NAMES as u64, "a save that lost was committed");
}

#[test]
fn new_name_that_exists_or_that_another_takes_first_is_a_conflict() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert_conflict_of_names(&store.save_new("x", &scalar(2)).unwrap_err());
    assert_refused(
        store.save_new("x", &scalar(2)),
        ErrorKind::Conflict,
        &["save_new", "\"x\"", "generation 2"],
    );
    let mut txn = store.begin().unwrap();
    txn.save_new("y", &scalar(2)).unwrap();
    // The policy is that of this one change.
    txn.save("x", &scalar(3)).unwrap();
    Store::open(&path).unwrap().save("y", &scalar(9)).unwrap();
    let lost = txn.commit().unwrap_err();
    assert_conflict_of_names(&lost);
    assert!(lost.to_string().contains("generation 3"), "{lost}");
    store.refresh().unwrap();
    assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(store.load("y").unwrap().item::<i64>().unwrap(), 9);
}

#[test]
fn increments_that_expect_a_generation_are_not_lost_between_processes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    store.save("count", &scalar(0)).unwrap();
    for mut player in let_go("increment", &path, 3) {
        println!("{} conflicts", player.hear());
        player.succeeds();
    }
    store.refresh().unwrap();
    assert_eq!(store.load("count").unwrap().item::<i64>().unwrap(), 3 * INCREMENTS);
}

#[test]
fn commit_that_expects_another_generation_is_a_conflict_and_writes_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let mut txn = store.begin().unwrap();
    txn.expect_generation(1);
    txn.save("x", &scalar(1)).unwrap();
    Store::open(&path).unwrap().save("y", &scalar(1)).unwrap();
    let said = ["generation 1 only", "the newest is 2"];
    assert_refused(txn.commit(), ErrorKind::Conflict, &said);
    let mut idle = store.begin().unwrap();
    idle.expect_generation(1);
    assert_refused(idle.commit(), ErrorKind::Conflict, &said);
    let mut txn = store.begin().unwrap();
    txn.expect_generation(2);
    txn.save("x", &scalar(1)).unwrap();
    assert_eq!(txn.commit().unwrap(), 3);
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
    count.load(Ordering::Relaxed)
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
fn store_that_is_taken_away_ends_the_wait() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait_for_change(LONG));
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        assert_refused(waiter.join().unwrap(), ErrorKind::Io, &["meta"]);
    });
}

/// A whole commit, with the queue, costs the disk one open and one lock more.
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

fn changes(earlier: &Snapshot, later: &Snapshot) -> [Vec<String>; 3] {
    let changes = later.changes_since(earlier).unwrap();
    assert_eq!(changes.is_empty(), changes == later.changes_since(later).unwrap());
    [changes.added, changes.changed, changes.removed]
}

#[test]
fn changes_between_snapshots_are_those_of_their_names_whatever_tables_they_stand_on() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    store.save("base", &Tensor::from_vec(vec![0i64; 10], &[10]).unwrap()).unwrap();
    let base = store.load("base").unwrap();
    let mut snapshots = vec![store.snapshot()];
    // Few names without a table, many names and so a first one, some changes on it, and many again.
    for (round, count) in [3u32, 200, 3, 5, 150].into_iter().enumerate() {
        let mut txn = store.begin().unwrap();
        for i in 0..count {
            txn.save(&format!("{}", i * 7 % 211), &scalar(0)).unwrap();
        }
        txn.save_view("view", &base.narrow(0, round as isize, 1).unwrap()).unwrap();
        if round > 0 {
            txn.remove("7").unwrap();
            txn.rename("14", &format!("moved.{round}")).unwrap();
        }
        if round > 2 {
            txn.copy("21", "copy").unwrap();
        }
        txn.commit().unwrap();
        snapshots.push(store.snapshot());
    }
    let content = |snapshot: &Snapshot| -> BTreeMap<String, (u64, usize)> {
        let infos = snapshot.tensors("").unwrap().map(Result::unwrap);
        infos.map(|info| (info.name.clone(), (info.storage_id, info.storage_offset()))).collect()
    };
    for earlier in &snapshots {
        for later in &snapshots {
            let (before, after) = (content(earlier), content(later));
            let [mut added, mut changed, mut removed] = [const { Vec::new() }; 3];
            for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                match (before.get(name), after.get(name)) {
                    (None, _) => added.push(name.clone()),
                    (_, None) => removed.push(name.clone()),
                    (before, after) if before != after => changed.push(name.clone()),
                    _ => {}
                }
            }
            assert_eq!(changes(earlier, later), [added, changed, removed]);
        }
    }
    let other = Store::create(dir.path().join("y.smap")).unwrap().snapshot();
    assert_refused(
        snapshots[1].changes_since(&other),
        ErrorKind::InvalidArgument,
        &["y.smap", "x.smap", "another store"],
    );
}

#[test]
fn changes_on_one_table_read_no_more_than_was_changed() {
    let dir = temporary();
    let disk = Counted::default();
    let store = fast().disk(Arc::new(disk.clone())).create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    (0..5000).for_each(|i| txn.save(&format!("name.{i}"), &scalar(i)).unwrap());
    txn.commit().unwrap();
    let earlier = store.snapshot();
    store.remove("name.77").unwrap();
    store.save("new", &scalar(1)).unwrap();
    let later = store.snapshot();
    disk.take();
    let changed = [vec!["new".to_owned()], vec![], vec!["name.77".to_owned()]];
    assert_eq!(changes(&earlier, &later), changed);
    let counts = disk.take();
    assert!(counts.metadata_read_bytes < 20_000, "{counts:?}");
}
