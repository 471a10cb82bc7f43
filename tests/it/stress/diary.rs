//! Records that a process leaves for the others and for debugging. It may be killed at any time, so each record is
//! written at once, and the process that replaces it reads them back.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The events that are counted, for each worker over all its processes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Commits,
    Conflicts,
    Busy,
    Aborted,
    Collections,
    Appended,
    Compacted,
    Snapshots,
    Tensors,
    Elements,
    Verified,
    KeptTensors,
}

pub(super) const COUNTS: [Count; 12] = [
    Count::Commits,
    Count::Conflicts,
    Count::Busy,
    Count::Aborted,
    Count::Collections,
    Count::Appended,
    Count::Compacted,
    Count::Snapshots,
    Count::Tensors,
    Count::Elements,
    Count::Verified,
    Count::KeptTensors,
];

/// The records of a worker, whose processes are killed and replaced.
#[derive(Debug)]
pub(super) struct Diary {
    log: File,
    counts: Numbers,
}

impl Diary {
    pub(super) fn open(dir: &Path, slot: usize) -> Diary {
        let log = OpenOptions::new().create(true).append(true).open(log_path(dir, slot)).unwrap();
        let counts = Numbers::open(&dir.join(format!("{slot}.counts")));
        Diary { log, counts }
    }

    /// Records the next action. The last record shows where the process was killed, failed or hung.
    pub(super) fn note(&mut self, what: impl std::fmt::Display) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (seconds, millis, id) = (now.as_secs() % 10_000, now.subsec_millis(), std::process::id());
        let line = format!("{seconds}.{millis:03} {id} {what}\n");
        self.log.write_all(line.as_bytes()).unwrap();
    }

    pub(super) fn count(&mut self, what: Count, more: u64) {
        let before = self.counts.get(what as usize);
        self.counts.set(what as usize, before + more);
    }
}

pub(super) fn log_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("{slot}.log"))
}

/// Returns the count of all processes of a worker.
pub(super) fn counted(dir: &Path, slot: usize, what: Count) -> u64 {
    Numbers::open(&dir.join(format!("{slot}.counts"))).get(what as usize)
}

/// Returns the last lines that a worker wrote.
pub(super) fn last_lines(dir: &Path, slot: usize, count: usize) -> String {
    let Ok(log) = File::open(log_path(dir, slot)) else { return String::new() };
    let mut bytes = vec![0; 400 * count];
    let start = log.metadata().unwrap().len().saturating_sub(bytes.len() as u64);
    let length = log.read_at(&mut bytes, start).unwrap();
    let text = String::from_utf8_lossy(&bytes[..length]);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n    ")
}

/// The numbered commits of a writer: the last that it began, and the last that returned.
#[derive(Debug)]
pub(super) struct Ledger(Numbers);

impl Ledger {
    pub(super) fn open(dir: &Path, writer: usize) -> Ledger {
        Ledger(Numbers::open(&dir.join(format!("{writer}.ledger"))))
    }

    pub(super) fn begin(&mut self, commit: u64) {
        self.0.set(0, commit);
    }

    pub(super) fn acknowledge(&mut self, commit: u64) {
        self.0.set(1, commit);
    }

    pub(super) fn begun(&self) -> u64 {
        self.0.get(0)
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.0.get(1)
    }
}

/// A file of numbers, each of which is written and read as a whole.
#[derive(Debug)]
struct Numbers(File);

impl Numbers {
    fn open(path: &Path) -> Numbers {
        let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        Numbers(options.unwrap())
    }

    fn get(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        // A number that was never written is 0.
        let _ = self.0.read_exact_at(&mut bytes, 8 * index as u64);
        u64::from_le_bytes(bytes)
    }

    fn set(&mut self, index: usize, number: u64) {
        self.0.write_all_at(&number.to_le_bytes(), 8 * index as u64).unwrap();
    }
}
