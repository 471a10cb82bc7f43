//! Sixteen processes that run every operation at once, while the store is renamed and another store takes its path.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use stridemap::{DType, Durability, ErrorKind, Snapshot, StorageKind, Store, StoreOptions, Tensor};

use crate::latencies::Latencies;
use crate::random::Random;

const PROCESSES: i64 = 16;
const DIR: &str = "STRIDEMAP_SOAK_DIR";
const NUMBER: &str = "STRIDEMAP_SOAK_NUMBER";

/// The value of every element of the other store.
const FOREIGN: i64 = -1;
const ELEMENTS: usize = 64;

fn seconds() -> Duration {
    let seconds = env::var("STRIDEMAP_SOAK_SECONDS").map_or(4., |seconds| seconds.parse().unwrap());
    Duration::from_secs_f64(seconds)
}

fn create(path: &Path, value: i64) -> Store {
    let store = Store::create(path).unwrap();
    store.create_growable("log", DType::I64, &[0, 2], 1 << 20).unwrap();
    let _ = store.create_tensor("counter", DType::I64, &[ELEMENTS], StorageKind::Mutable).unwrap();
    for process in 0..PROCESSES {
        store.save(&format!("own.{process}"), &elements(value)).unwrap();
    }
    store
}

fn elements(value: i64) -> Tensor {
    Tensor::from_vec(vec![value; ELEMENTS], &[ELEMENTS]).unwrap()
}

/// Returns the single value that all elements of a tensor have.
fn value(tensor: &Tensor) -> i64 {
    let elements: Vec<i64> = tensor.read().unwrap();
    assert!(elements.iter().all(|element| *element == elements[0]), "{elements:?}");
    elements[0]
}

/// A worker process, and the values it relies on.
struct Worker {
    process: i64,
    store: Store,
    random: Random,
    /// The last value that it saved, and the last value whose view it saved.
    saved: i64,
    viewed: Option<i64>,
    appended: i64,
    added: i64,
    snapshots: Vec<(Snapshot, i64)>,
    latencies: BTreeMap<&'static str, Latencies>,
}

impl Worker {
    fn time<T>(&mut self, what: &'static str, act: impl FnOnce(&Store) -> T) -> T {
        let store = self.store.clone();
        self.latencies.entry(what).or_default().time(|| act(&store))
    }

    fn own(&self) -> String {
        format!("own.{}", self.process)
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 => self.save(),
            30..40 => self.view(),
            40..60 => self.append(),
            60..75 => self.guard(),
            75..90 => self.check_newest(),
            90..94 => self.hold(),
            94..97 => drop(self.store.gc().unwrap()),
            97..99 => drop(self.store.compact(false, |_| ()).unwrap()),
            _ => assert_eq!(self.store.verify(|_| ()).unwrap().findings, []),
        }
    }

    fn save(&mut self) {
        let (name, next) = (self.own(), self.saved + PROCESSES);
        self.time("commit", |store| store.save(&name, &elements(next)).unwrap());
        self.saved = next;
        assert_eq!(value(&self.store.load(&name).unwrap()), next);
    }

    fn view(&mut self) {
        let view = self.store.load(&self.own()).unwrap().narrow(0, 3, 9).unwrap();
        let name = format!("view.{}", self.process);
        match self.store.save_view(&name, &view) {
            Ok(()) => self.viewed = Some(self.saved),
            // A compaction has moved the storage since it was loaded.
            Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
        }
    }

    fn append(&mut self) {
        let row = Tensor::from_vec(vec![self.process, self.appended], &[1, 2]).unwrap();
        let rows = self.time("append", |store| store.append("log", &row).unwrap());
        self.appended += 1;
        let log: Vec<i64> =
            self.store.load("log").unwrap().select(0, rows.start as isize).unwrap().read().unwrap();
        assert_eq!(log, [self.process, self.appended - 1]);
    }

    fn guard(&mut self) {
        let counter = self.store.load("counter").unwrap();
        if self.random.below(2) == 0 {
            let mut guard = self.time("exclusive guard", |_| counter.lock_exclusive().unwrap());
            guard.add_(1).unwrap();
            self.added += 1;
        } else {
            let guard = self.time("shared guard", |_| counter.lock_shared().unwrap());
            let seen = guard.as_slice::<i64>().unwrap();
            assert!(seen.iter().all(|element| *element == seen[0] && *element >= self.added), "{seen:?}");
        }
    }

    /// Checks what others have saved, in the newest generation and in older snapshots.
    fn check_newest(&mut self) {
        self.store.refresh().unwrap();
        let other = self.random.below(PROCESSES as u64) as i64;
        let found = value(&self.store.load(&format!("own.{other}")).unwrap());
        assert!(found >= 0 && found % PROCESSES == other, "own.{other} is {found}");
        assert_eq!(value(&self.store.load(&self.own()).unwrap()), self.saved);
        if let Some(viewed) = self.viewed {
            assert_eq!(value(&self.store.load(&format!("view.{}", self.process)).unwrap()), viewed);
        }
        for (snapshot, saved) in &self.snapshots {
            assert_eq!(value(&snapshot.load(&self.own()).unwrap()), *saved);
        }
    }

    fn hold(&mut self) {
        self.snapshots.push((self.store.snapshot(), self.saved));
        if self.snapshots.len() > 5 {
            let at = self.random.below(5) as usize;
            let _ = self.snapshots.remove(at);
        }
    }
}

/// Opens the store by a link that may lead to the other store, or be missing for a moment.
fn open(link: &Path, options: &StoreOptions) -> Store {
    loop {
        // SAFETY: only this library writes the stores.
        match unsafe { options.open_mapped(link) } {
            Ok(store) if value(&store.load("own.0").unwrap()) == FOREIGN => {
                (0..PROCESSES).for_each(|process| {
                    assert_eq!(value(&store.load(&format!("own.{process}")).unwrap()), FOREIGN);
                });
            }
            Ok(store) => return store,
            Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn start(number: &str, dir: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "soak::worker_process", "--nocapture"]);
    command.env(DIR, dir).env(NUMBER, number).stdout(Stdio::null()).spawn().unwrap()
}

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn worker_process() {
    let (Ok(dir), Ok(number)) = (env::var(DIR), env::var(NUMBER)) else {
        return assert!(!start("no number", Path::new("none")).wait().unwrap().success());
    };
    let (dir, process) = (PathBuf::from(dir), number.parse::<i64>().unwrap());
    let durability = if process % 4 == 0 { Durability::Full } else { Durability::Process };
    let options = StoreOptions::new().durability(durability).lock_timeout(Duration::from_secs(120));
    let store = open(&dir.join("current"), &options);
    let mut worker = Worker {
        process,
        store,
        random: Random::new(process as u64),
        saved: process,
        viewed: None,
        appended: 0,
        added: 0,
        snapshots: Vec::new(),
        latencies: BTreeMap::new(),
    };
    let until = Instant::now() + seconds();
    while Instant::now() < until {
        (0..50).for_each(|_| worker.step());
        // Opens it by the link again, as a new process would.
        if worker.random.below(4) == 0 {
            worker.store = open(&dir.join("current"), &options);
        }
    }
    let Worker { saved, appended, added, .. } = worker;
    fs::write(dir.join(format!("told.{process}")), format!("{saved} {appended} {added}")).unwrap();
    for (what, latencies) in &worker.latencies {
        latencies.save(&dir.join(format!("{what}.{process}")));
    }
}

/// Renames the store every second, and renames the other store to its old path. The link leads to each in turn.
fn shuffle(dir: &Path, until_done: impl Fn() -> bool) -> (PathBuf, PathBuf, u32) {
    let (mut live, mut other) = (dir.join("live.smap"), dir.join("other.smap"));
    let mut shuffles = 0;
    let mut last = Instant::now();
    while !until_done() {
        thread::sleep(Duration::from_millis(20));
        if last.elapsed() < Duration::from_secs(1) {
            continue;
        }
        last = Instant::now();
        let moved = dir.join(format!("moved.{shuffles}"));
        fs::rename(&live, &moved).unwrap();
        fs::rename(&other, &live).unwrap();
        (live, other) = (moved, live);
        for target in [&other, &live] {
            symlink(target, dir.join("next")).unwrap();
            fs::rename(dir.join("next"), dir.join("current")).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        shuffles += 1;
    }
    (live, other, shuffles)
}

#[test]
fn no_value_is_wrong_and_no_commit_is_lost_while_the_store_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = create(&dir.join("live.smap"), 0);
    for process in 0..PROCESSES {
        store.save(&format!("own.{process}"), &elements(process)).unwrap();
    }
    drop(store);
    let foreign = create(&dir.join("other.smap"), FOREIGN).generation();
    symlink("live.smap", dir.join("current")).unwrap();
    let mut children: Vec<Child> = (0..PROCESSES).map(|process| start(&process.to_string(), dir)).collect();
    let waited = thread::spawn(move || children.iter_mut().all(|child| child.wait().unwrap().success()));
    let (live, other, shuffles) = shuffle(dir, || waited.is_finished());
    assert!(waited.join().unwrap(), "a process failed");

    let store = Store::open(&live).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    let log: Vec<i64> = store.load("log").unwrap().read().unwrap();
    let mut all_added = 0;
    for process in 0..PROCESSES {
        let told = fs::read_to_string(dir.join(format!("told.{process}"))).unwrap();
        let [saved, appended, added] =
            told.split(' ').map(|n| n.parse::<i64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("{told:?}");
        };
        assert_eq!(value(&store.load(&format!("own.{process}")).unwrap()), saved);
        let rows = log.chunks(2).filter(|row| row[0] == process).map(|row| row[1]);
        assert!(rows.eq(0..appended), "rows of process {process}");
        all_added += added;
    }
    let counter = store.load("counter").unwrap();
    assert_eq!(counter.lock_shared().unwrap().read::<i64>().unwrap(), [all_added; ELEMENTS]);
    let untouched = Store::open(&other).unwrap();
    assert_eq!((untouched.generation(), untouched.verify(|_| ()).unwrap().findings), (foreign, vec![]));
    assert!(shuffles > 0, "the store was never renamed");
    println!(
        "{PROCESSES} processes for {:?}, {shuffles} renames: generation {}, {} rows, {all_added} additions",
        seconds(),
        store.generation(),
        log.len() / 2
    );
    for what in ["commit", "append", "exclusive guard", "shared guard"] {
        let mut all = Latencies::default();
        (0..PROCESSES).for_each(|process| all.add_saved(&dir.join(format!("{what}.{process}"))));
        println!("{what}: {all}");
    }
}
