//! Many processes on one store, which are killed at random and restarted.
//!
//! Four writers change it at random. Eight readers take snapshots of it and keep them. The name of each tensor
//! describes its elements, and the numbers of commits tell which tensors must exist, so that each reader can check
//! what it sees. At the end every process is killed, and the remaining store must be intact and without leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stridemap::{Store, Tensor};

mod changes;
mod content;
mod diary;
mod hesitant;
mod reader;
mod writer;
use crate::harness::processes::command;
use crate::harness::{new_path, open_mapped};
use crate::random::{Random, mixed};
use crate::support::scaled;
use content::content_of;
use diary::{COUNTS, Count, Diary, Ledger, counted, last_lines, log_path};
use writer::commits_in;

const WRITERS: usize = 4;
const READERS: usize = 8;

/// A process without output for this long counts as stuck. It is twice the timeout of a lock.
const PATIENCE: Duration = Duration::from_secs(80);

/// The role of a started process: `role` is "stress", the number of the worker, and a seed.
pub(crate) fn run_role(role: &str, path: &Path) {
    let numbers: Vec<u64> = role.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
    let (slot, seed) = (numbers[0] as usize, numbers[1]);
    // If the parent process has been killed, its end of the pipe is closed.
    thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let shared = path.parent().unwrap();
    let mut diary = Diary::open(shared, slot);
    diary.note(format!("begins with seed {seed}"));
    let failed = panic::catch_unwind(panic::AssertUnwindSafe(|| match slot {
        0..WRITERS => writer::write(path, shared, slot, seed, &mut diary),
        _ => reader::read(path, shared, seed, &mut diary),
    }));
    diary.note("FAILED");
    panic::resume_unwind(failed.unwrap_err());
}

/// A worker, whose process is replaced when it dies.
struct Slot {
    number: usize,
    child: Child,
    log_bytes: u64,
    heard: Instant,
}

impl Slot {
    fn start(number: usize, path: &Path, random: &mut Random) -> Slot {
        let mut command = command(&format!("stress {number} {}", random.next()), path);
        let stderr =
            fs::OpenOptions::new().create(true).append(true).open(stderr_path(path, number)).unwrap();
        // Symbolizing a backtrace takes seconds, during which other processes continue.
        command.env("RUST_BACKTRACE", "0");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Slot { number, child, log_bytes: 0, heard: Instant::now() }
    }

    /// Returns whether it is running. `false` if it was killed, which the hesitant disk does too. Any other end is an
    /// error.
    fn is_alive(&mut self, shared: &Path) -> Result<bool, String> {
        let number = self.number;
        if let Some(status) = self.child.try_wait().unwrap() {
            return self.was_killed(status).map(|()| false);
        }
        let log_bytes = fs::metadata(log_path(shared, number)).map_or(0, |log| log.len());
        if log_bytes != self.log_bytes {
            (self.log_bytes, self.heard) = (log_bytes, Instant::now());
        }
        match self.heard.elapsed() {
            silence if silence > PATIENCE => {
                Err(format!("process {number} made no progress for {silence:?}"))
            }
            _ => Ok(true),
        }
    }

    fn was_killed(&self, status: ExitStatus) -> Result<(), String> {
        match status.signal() {
            Some(libc::SIGKILL) => Ok(()),
            _ => Err(format!("process {} ended: {status}", self.number)),
        }
    }

    /// Waits a moment for a commit, which is worth interrupting.
    fn wait_for_a_commit(&self, shared: &Path, random: &mut Random) {
        for _ in 0..40 {
            let last = last_lines(shared, self.number, 1);
            if ["commit", "gc", "save", "rem", "ren", "copy"]
                .iter()
                .any(|what| last.contains(&format!(" {what}")))
            {
                return thread::sleep(random.millis(8));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that has not been waited for, so its id has not been reused.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }

    fn kill(&mut self) -> Result<(), String> {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        self.was_killed(status)
    }
}

fn stderr_path(path: &Path, number: usize) -> PathBuf {
    path.parent().unwrap().join(format!("{number}.stderr"))
}

/// The numbers of signals and restarts of a run.
#[derive(Debug, Default)]
struct Injuries {
    kills: u64,
    deaths: u64,
    restarts: u64,
    stops: u64,
}

/// Runs the processes, and kills them at random. Returns the problem, if there is one.
fn kill_and_restart(
    path: &Path,
    until: Instant,
    random: &mut Random,
    suffered: &mut Injuries,
) -> Result<(), String> {
    let mut slots: Vec<Slot> =
        (0..WRITERS + READERS).map(|number| Slot::start(number, path, random)).collect();
    let mut outcome = Ok(());
    // On a busy machine not enough may have happened by then.
    let is_enough = |suffered: &Injuries| is_meaningful(path.parent().unwrap()) && suffered.restarts > 0;
    while outcome.is_ok()
        && (Instant::now() < until || !is_enough(suffered) && Instant::now() < until + PATIENCE)
    {
        outcome = signal_one(&mut slots, path, random, suffered);
    }
    for slot in &mut slots {
        outcome = outcome.and(slot.kill());
        suffered.kills += 1;
    }
    outcome
}

/// Returns the count of all workers and all their processes.
fn total(shared: &Path, what: Count) -> u64 {
    (0..WRITERS + READERS).map(|slot| counted(shared, slot, what)).sum()
}

/// Returns whether enough happened to make the test meaningful.
fn is_meaningful(shared: &Path) -> bool {
    [Count::Commits, Count::Snapshots, Count::Tensors].iter().all(|&what| total(shared, what) > 0)
}

/// After a pause, replaces dead processes, and kills one or stops it for a moment.
fn signal_one(
    slots: &mut [Slot],
    path: &Path,
    random: &mut Random,
    suffered: &mut Injuries,
) -> Result<(), String> {
    let shared = path.parent().unwrap();
    thread::sleep(random.millis(250));
    for slot in slots.iter_mut() {
        if !slot.is_alive(shared)? {
            *slot = Slot::start(slot.number, path, random);
            suffered.deaths += 1;
            suffered.restarts += 1;
        }
    }
    // As many signals to writers as to readers, which are twice as many.
    let number = match random.below(2) {
        0 => random.below(WRITERS as u64) as usize,
        _ => WRITERS + random.below(READERS as u64) as usize,
    };
    let slot = &mut slots[number];
    if number < WRITERS {
        slot.wait_for_a_commit(shared, random);
    }
    if random.one_in(6) {
        // Simulates a slow process, which may hold a lock.
        slot.signal(libc::SIGSTOP);
        thread::sleep(random.millis(300));
        slot.signal(libc::SIGCONT);
        suffered.stops += 1;
    } else {
        slot.kill()?;
        *slot = Slot::start(number, path, random);
        suffered.kills += 1;
        suffered.restarts += 1;
    }
    Ok(())
}

/// Checks the store after all processes were killed: everything acknowledged is intact, and after a collection there
/// is no other file.
fn check_remains(path: &Path) {
    let shared = path.parent().unwrap();
    let store = open_mapped(path);
    let findings = store.verify(|_| {}).unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    store.gc().unwrap();
    let snapshot = store.snapshot();
    let names = snapshot.names().unwrap();
    reader::check_windows(&snapshot, &names);
    for writer in 0..WRITERS {
        let (ledger, commits) = (Ledger::open(shared, writer), commits_in(&snapshot, writer));
        assert!(commits >= ledger.acknowledged() && commits <= ledger.begun(), "{commits}, {ledger:?}");
    }
    for name in &names {
        let compared = content_of(name).and_then(|content| content.check(&snapshot.load(name).unwrap()));
        compared.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    check_files(path, &store);
    drop(snapshot);
    store.save("fresh", &Tensor::from_vec(vec![1i64, 2, 3], &[3]).unwrap()).unwrap();
    assert_eq!(store.load("fresh").unwrap().read::<i64>().unwrap(), [1, 2, 3]);
    store.remove("fresh").unwrap();
    assert_eq!(store.names().unwrap(), names);
    store.gc().unwrap();
    check_files(path, &store);
    assert!(store.verify(|_| {}).unwrap().findings.is_empty());
}

/// Checks that the files of the store are those of its newest generation, with the recorded lengths.
fn check_files(path: &Path, store: &Store) {
    const CHUNK_BYTES: u64 = 1 << 20;
    const DIGEST_BYTES: u64 = 16;
    let lengths = |dir: PathBuf| -> BTreeMap<String, u64> {
        let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect()
    };
    let mut expected = BTreeMap::new();
    for storage in store.snapshot().storages() {
        let storage = storage.unwrap();
        let mut add = |ending, size_bytes| {
            expected.insert(format!("{:016x}.{ending}", storage.id), size_bytes);
        };
        let mark_bytes = u64::from(storage.kind == stridemap::StorageKind::Mutable);
        add("bin", storage.size_bytes + mark_bytes);
        if storage.kind == stridemap::StorageKind::Sealed && storage.size_bytes >= CHUNK_BYTES {
            add("sum", storage.size_bytes / CHUNK_BYTES * DIGEST_BYTES);
        }
    }
    assert_eq!(lengths(path.join("storages")), expected);
    let meta: Vec<String> = lengths(path.join("meta")).into_keys().collect();
    let endings: Vec<&str> = meta.iter().map(|name| name.rsplit('.').next().unwrap()).collect();
    assert!(matches!(endings.iter().filter(|ending| **ending == "man").count(), 1), "{meta:?}");
    assert!(endings.iter().filter(|ending| **ending == "his").count() <= 1, "{meta:?}");
    assert!(endings.iter().all(|ending| ["man", "his"].contains(ending)), "{meta:?}");
    let tables: Vec<String> = lengths(path.join("generations")).into_keys().collect();
    assert!(tables.len() <= 1 && tables.iter().all(|name| name.ends_with(".tab")), "{tables:?}");
    assert!(meta.contains(&format!("{:016x}.man", store.generation())));
    let root: BTreeSet<String> = lengths(path.to_path_buf()).into_keys().collect();
    assert!(root.iter().eq(["FORMAT", "LOCK", "generations", "meta", "storages"]), "{root:?}");
}

/// `STRIDEMAP_STRESS_SECONDS` sets the duration, by default 3. `STRIDEMAP_STRESS_SEED` repeats the choices of a run,
/// as far as the scheduler allows.
#[test]
fn killed_processes_leave_every_snapshot_intact() {
    let seconds = scaled("STRIDEMAP_STRESS_SECONDS", 3) as u64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = scaled("STRIDEMAP_STRESS_SEED", (mixed(now) >> 32) as usize) as u64;
    println!("STRIDEMAP_STRESS_SEED={seed} STRIDEMAP_STRESS_SECONDS={seconds}");
    let (dir, path) = new_path();
    Store::create(&path).unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut suffered = Injuries::default();
    let outcome = kill_and_restart(&path, until, &mut Random::new(seed), &mut suffered);
    let outcome = outcome.and_then(|()| {
        let checked = panic::catch_unwind(|| check_remains(&path));
        checked.map_err(|_| "what is left is not as it should be".to_owned())
    });
    println!("{suffered:?} {:?}", COUNTS.map(|what| (what, total(dir.path(), what))));
    if let Err(trouble) = outcome {
        for slot in 0..WRITERS + READERS {
            println!("process {slot}, at last:\n    {}", last_lines(dir.path(), slot, 6));
            print!("{}", fs::read_to_string(stderr_path(&path, slot)).unwrap_or_default());
        }
        let kept = dir.keep();
        panic!("{trouble}; seed {seed}; the store and the logs of its processes are in {}", kept.display());
    }
    assert!(is_meaningful(dir.path()) && suffered.restarts > 0);
}
