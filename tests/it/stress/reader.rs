//! A reader: takes snapshots, keeps them for a while, and compares everything with the expected content.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Instant;

use stridemap::{ErrorKind, Snapshot, Store, Tensor};

use super::WRITERS;
use super::content::content_of;
use super::diary::{Count, Diary, Ledger};
use super::writer::{WINDOW, commits_in, options, own_name, own_prefix};
use crate::random::Random;

/// A snapshot that is kept, and its content when it was taken.
struct Held {
    snapshot: Snapshot,
    names: Vec<String>,
    until: Instant,
}

struct Reader<'a> {
    random: Random,
    diary: &'a mut Diary,
    ledgers: Vec<Ledger>,
    /// The commits of each writer seen so far.
    seen: Vec<u64>,
    held: Vec<Held>,
    /// Tensors whose snapshots were dropped.
    kept: Vec<(String, Tensor)>,
}

/// Reads until the process is killed.
pub(super) fn read(path: &Path, shared: &Path, seed: u64, diary: &mut Diary) {
    let ledgers = (0..WRITERS).map(|writer| Ledger::open(shared, writer)).collect();
    let (held, kept, seen) = (Vec::new(), Vec::new(), vec![0; WRITERS]);
    let mut reader = Reader { random: Random::new(seed), diary, ledgers, seen, held, kept };
    loop {
        let acknowledged = reader.acknowledged();
        let Some(store) = reader.open(path) else { continue };
        // A newly opened handle is at a generation that was committed before.
        reader.take_snapshot(&store, &acknowledged);
        for _ in 0..reader.random.below(20) {
            reader.step(&store);
        }
        reader.held.clear();
    }
}

impl Reader<'_> {
    fn open(&mut self, path: &Path) -> Option<Store> {
        let options = options(&mut self.random);
        self.diary.note("open");
        let opened = if self.random.one_in(3) {
            options.open(path)
        } else {
            // SAFETY: all processes of this test write through the library only.
            unsafe { options.open_mapped(path) }
        };
        match opened {
            Err(e) if e.kind() == ErrorKind::Busy => {
                self.diary.note(e);
                self.diary.count(Count::Busy, 1);
                None
            }
            opened => Some(opened.unwrap()),
        }
    }

    fn acknowledged(&self) -> Vec<u64> {
        self.ledgers.iter().map(Ledger::acknowledged).collect()
    }

    fn step(&mut self, store: &Store) {
        match self.random.below(10) {
            0 => {
                self.diary.note("verify");
                let findings = store.verify(|_| {}).unwrap().findings;
                assert!(findings.is_empty(), "{findings:?}");
                self.diary.count(Count::Verified, 1);
            }
            1 => {
                self.diary.note(format!("check {} tensors whose snapshots are gone", self.kept.len()));
                for (name, tensor) in std::mem::take(&mut self.kept) {
                    self.check(&name, &tensor);
                    self.diary.count(Count::KeptTensors, 1);
                }
            }
            2 => {
                // The names that a reader sees first may be deleted next.
                for _ in 0..40 {
                    let acknowledged = self.acknowledged();
                    let Some(store) = self.open(store.path()) else { continue };
                    let snapshot = store.snapshot();
                    self.check_commits(&snapshot, &acknowledged);
                    let names = snapshot.names().unwrap();
                    check_windows(&snapshot, &names);
                    if let Some(name) = self.random.pick(&names) {
                        let tensor = snapshot.load(name).unwrap();
                        self.check(name, &tensor);
                    }
                }
            }
            3 => {
                self.diary.note("wait");
                let longest = if self.random.one_in(6) { 2000 } else { 60 };
                thread::sleep(self.random.millis(longest));
            }
            _ => {
                let acknowledged = self.acknowledged();
                let refreshed = if self.random.one_in(3) {
                    self.diary.note("wait for a change");
                    store.wait_for_change(self.random.millis(200))
                } else {
                    self.diary.note("refresh");
                    store.refresh()
                };
                match refreshed {
                    Err(e) if e.kind() == ErrorKind::Busy => self.diary.count(Count::Busy, 1),
                    refreshed => {
                        refreshed.unwrap();
                        self.take_snapshot(store, &acknowledged);
                    }
                }
            }
        }
        self.recheck();
    }

    /// Takes a snapshot, and checks its content.
    fn take_snapshot(&mut self, store: &Store, acknowledged: &[u64]) {
        let snapshot = store.snapshot();
        self.diary.note(format!("snapshot of generation {}", snapshot.generation()));
        self.check_commits(&snapshot, acknowledged);
        let names = snapshot.names().unwrap();
        check_windows(&snapshot, &names);
        self.check_some(&snapshot, &names);
        let seconds = if self.random.one_in(8) { 2000 } else { 100 };
        self.held.push(Held { snapshot, names, until: Instant::now() + self.random.millis(seconds) });
    }

    /// Checks that a snapshot contains all commits that returned before it was taken, and those in earlier snapshots.
    fn check_commits(&mut self, snapshot: &Snapshot, acknowledged: &[u64]) {
        self.diary.count(Count::Snapshots, 1);
        for (writer, &acknowledged) in acknowledged.iter().enumerate() {
            let commits = commits_in(snapshot, writer);
            assert!(
                commits >= acknowledged,
                "writer {writer}: {commits} commits, of {acknowledged} that returned"
            );
            assert!(
                commits >= self.seen[writer],
                "writer {writer}: {commits} commits, after {}",
                self.seen[writer]
            );
            self.seen[writer] = commits;
        }
    }

    /// Compares a snapshot with its recorded content, and drops it after a while.
    fn recheck(&mut self) {
        let at = self.random.below(self.held.len().max(1) as u64) as usize;
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(at);
        let age = held.snapshot.generation();
        self.diary.note(format!("generation {age} again"));
        assert_eq!(held.snapshot.names().unwrap(), held.names);
        self.check_some(&held.snapshot, &held.names);
        if Instant::now() < held.until && self.held.len() < 4 {
            self.held.push(held);
        }
    }

    fn check_some(&mut self, snapshot: &Snapshot, names: &[String]) {
        if self.random.one_in(3) {
            self.diary.note(format!("check all of {}", names.len()));
            let all: Vec<(String, Tensor)> = snapshot.iter_loaded("").unwrap().map(Result::unwrap).collect();
            assert!(all.iter().map(|(name, _)| name).eq(names));
            for (name, tensor) in &all {
                // A few large tensors would leave no time for the many small ones.
                if tensor.numel() < 100_000 || self.random.one_in(4) {
                    self.check(name, tensor);
                }
            }
            return;
        }
        for _ in 0..8 {
            let Some(name) = self.random.pick(names) else { return };
            self.diary.note(format!("check {name}"));
            let tensor = snapshot.load(name).unwrap();
            self.check(name, &tensor);
            if self.kept.len() < 30 && self.random.one_in(4) {
                self.kept.push((name.clone(), tensor));
            }
        }
    }

    fn check(&mut self, name: &str, tensor: &Tensor) {
        match content_of(name).and_then(|content| content.check(tensor)) {
            Ok(compared) => {
                self.diary.count(Count::Tensors, 1);
                self.diary.count(Count::Elements, compared);
            }
            Err(e) => panic!("{name}: {e}; {tensor:?}"),
        }
    }
}

/// Checks the numbered commits of each writer: each adds one tensor, removes one, and updates the number, atomically.
pub(super) fn check_windows(snapshot: &Snapshot, names: &[String]) {
    for writer in 0..WRITERS {
        let commits = commits_in(snapshot, writer);
        let expected: BTreeSet<String> =
            (1..=commits).rev().take(WINDOW as usize).map(|commit| own_name(writer, commit)).collect();
        let prefix = own_prefix(writer);
        let found: BTreeSet<String> =
            names.iter().filter(|name| name.starts_with(&prefix)).cloned().collect();
        assert_eq!(found, expected, "generation {}, writer {writer}", snapshot.generation());
    }
}
