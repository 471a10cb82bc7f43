//! A writer: random changes, as single commits and in transactions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stridemap::maintenance::{SkipReason, Skipped};
use stridemap::{Durability, Error, ErrorKind, Snapshot, Store, StoreOptions, Tensor};

use super::changes::names_of_all;
use super::content::{Content, name};
use super::diary::{Count, Diary, Ledger};
use super::hesitant::hesitant_disk;
use crate::random::{Random, mixed};

/// The number of its own tensors that a writer keeps: each numbered commit adds one and removes the oldest.
pub(super) const WINDOW: u64 = 8;

/// A tensor of this size or larger has its own storage.
pub(super) const LARGE_BYTES: u64 = 4 << 20;

/// Longer than any wait should be, and shorter than the parent's patience.
const LOCK_TIMEOUT: Duration = Duration::from_secs(40);

/// Returns the attribute that holds the number of a writer's numbered commits.
pub(super) fn attribute(writer: usize) -> String {
    format!("commits of {writer}")
}

/// Returns the prefix of the names that only this writer changes.
pub(super) fn own_prefix(writer: usize) -> String {
    format!("own {writer}-")
}

/// Returns the name of the tensor that a writer's numbered commit adds. It is the same in every process.
pub(super) fn own_name(writer: usize, commit: u64) -> String {
    name(format!("{}{commit}", own_prefix(writer)), &own_content(writer, commit), 0)
}

fn own_content(writer: usize, commit: u64) -> Content {
    let mut random = Random::new(mixed(commit) ^ writer as u64);
    let size_bytes =
        if random.one_in(40) { LARGE_BYTES + random.below(LARGE_BYTES / 2) } else { random.below(20_000) };
    Content::draw(&mut random, size_bytes)
}

/// Returns the number of a writer's commits according to a snapshot.
pub(super) fn commits_in(snapshot: &Snapshot, writer: usize) -> u64 {
    snapshot.attributes("").get(&attribute(writer)).map_or(0, |number| number.parse().unwrap())
}

/// Draws options for opening a store. Half of the processes use the fastest ones.
pub(super) fn options(random: &mut Random) -> StoreOptions {
    let options = StoreOptions::new().lock_timeout(LOCK_TIMEOUT);
    if random.one_in(2) { options } else { options.disk(Arc::new(hesitant_disk(random.next()))) }
}

pub(super) struct Writer<'a> {
    pub(super) number: usize,
    pub(super) random: Random,
    pub(super) diary: &'a mut Diary,
    ledger: Ledger,
    /// Tensors loaded some time ago, whose storages may have been deleted.
    kept: Vec<(String, Tensor)>,
}

/// Writes until the process is killed.
pub(super) fn write(path: &Path, shared: &Path, number: usize, seed: u64, diary: &mut Diary) {
    let mut random = Random::new(seed);
    let mut open = |durability| {
        let options = options(&mut random).durability(durability);
        if random.one_in(2) {
            options.open(path).unwrap()
        } else {
            // SAFETY: all processes of this test write through the library only.
            unsafe { options.open_mapped(path).unwrap() }
        }
    };
    let stores = [open(Durability::Full), open(Durability::Process)];
    let mut ledger = Ledger::open(shared, number);
    let commits = commits_in(&stores[0].snapshot(), number);
    let (acknowledged, begun) = (ledger.acknowledged(), ledger.begun());
    assert!(
        (acknowledged..=begun).contains(&commits),
        "{commits} commits; {acknowledged} returned, {begun} began"
    );
    // The killed process may not have recorded it.
    ledger.acknowledge(commits);
    let mut writer = Writer { number, random, diary, ledger, kept: Vec::new() };
    loop {
        let store = writer.random.pick(&stores).unwrap();
        writer.step(store);
        if writer.random.one_in(10) {
            // A handle that is not refreshed holds back an old generation, which must not last.
            for store in &stores {
                store.refresh().unwrap();
            }
        }
    }
}

impl Writer<'_> {
    fn step(&mut self, store: &Store) {
        match self.random.below(12) {
            0 => {
                self.diary.note("gc");
                if self.is_done(store.gc().map(drop), &[]) {
                    self.diary.count(Count::Collections, 1);
                }
            }
            1 if self.random.one_in(2) => self.compact(store),
            1 => self.keep(store),
            2 | 3 => self.change_once(store),
            _ => self.change_much(store),
        }
    }

    /// Returns whether the change was made. Otherwise it must have been refused for one of these reasons, or because
    /// another process held the lock.
    fn is_done(&mut self, result: Result<(), Error>, refusals: &[ErrorKind]) -> bool {
        let Err(e) = result else { return true };
        self.diary.note(format!("refused: {e}"));
        if refusals.contains(&e.kind()) {
            self.diary.count(Count::Conflicts, 1);
        } else if e.kind() == ErrorKind::Busy && e.to_string().contains("lock the store for writing") {
            self.diary.count(Count::Busy, 1);
        } else {
            panic!("{e:?}");
        }
        false
    }

    fn compact(&mut self, store: &Store) {
        self.diary.note("compact");
        let compacted = store.compact(false, |_| {});
        if let Ok(compacted) = &compacted {
            let is_damaged = |skipped: &Skipped| matches!(skipped.reason, SkipReason::Damaged(_));
            assert!(!compacted.skipped.iter().any(is_damaged), "{compacted:?}");
            self.diary.count(Count::Compacted, compacted.storage_count);
        }
        self.is_done(compacted.map(drop), &[]);
    }

    /// Keeps some tensors for later, and drops others.
    fn keep(&mut self, store: &Store) {
        self.diary.note("keep");
        store.refresh().unwrap();
        let snapshot = store.snapshot();
        let names = snapshot.names().unwrap();
        self.kept.truncate(8);
        for _ in 0..4 {
            let Some(name) = self.random.pick(&names) else { return };
            let at = self.random.below(self.kept.len() as u64 + 1) as usize;
            self.kept.insert(at, (name.clone(), snapshot.load(name).unwrap()));
        }
    }

    /// Makes one change with a single call, to names that existed a while ago.
    fn change_once(&mut self, store: &Store) {
        let names: Vec<String> = names_of_all(store.names().unwrap());
        let Some(from) = self.random.pick(&names).cloned() else { return };
        let is_done = match self.random.below(5) {
            0 => {
                self.diary.note(format!("remove {from}"));
                store.remove(&from)
            }
            1 => {
                let to = self.renumbered(&from);
                self.diary.note(format!("rename {from} to {to}"));
                store.rename(&from, &to)
            }
            2 => {
                let to = self.renumbered(&from);
                self.diary.note(format!("copy {from} to {to}"));
                store.write(|txn| txn.copy(&from, &to))
            }
            3 => {
                let Some((name, tensor)) = self.random.pick(&self.kept).cloned() else { return };
                let (name, view) = self.view_of(&name, &tensor);
                self.diary.note(format!("save view {name}"));
                store.save_view(&name, &view)
            }
            _ => {
                let (name, tensor) = self.fresh();
                self.diary.note(format!("save {name}"));
                store.save(&name, &tensor)
            }
        };
        if self.is_done(is_done, &[ErrorKind::NameExists, ErrorKind::NameNotFound, ErrorKind::Conflict]) {
            self.diary.count(Count::Commits, 1);
        }
    }

    /// Runs a transaction of several changes. Most are numbered in an attribute: a reader that sees the number must
    /// see all changes.
    fn change_much(&mut self, store: &Store) {
        let is_numbered = !self.random.one_in(4);
        self.diary.note(format!("begin, numbered: {is_numbered}"));
        store.refresh().unwrap();
        let mut txn = store.begin().unwrap();
        let changed = self.change(&mut txn, is_numbered);
        // An append continues from what others have committed since.
        let refusals =
            [ErrorKind::NameExists, ErrorKind::NameNotFound, ErrorKind::Unsupported, ErrorKind::Conflict];
        if !self.is_done(changed, &refusals) {
            return;
        }
        if self.random.one_in(8) {
            self.diary.note("abort");
            self.diary.count(Count::Aborted, 1);
            return;
        }
        if !is_numbered {
            self.diary.note("commit");
            if self.is_done(txn.commit().map(drop), &[ErrorKind::Conflict, ErrorKind::NameExists]) {
                self.diary.count(Count::Commits, 1);
            }
            return;
        }
        let commit = self.ledger.acknowledged() + 1;
        self.diary.note(format!("commit {commit}"));
        txn.set_attribute("", &attribute(self.number), &commit.to_string()).unwrap();
        let content = own_content(self.number, commit);
        txn.save(&own_name(self.number, commit), &content.tensor(0, 1)).unwrap();
        if commit > WINDOW {
            txn.remove(&own_name(self.number, commit - WINDOW)).unwrap();
        }
        self.ledger.begin(commit);
        if self.is_done(txn.commit().map(drop), &[ErrorKind::Conflict, ErrorKind::NameExists]) {
            self.ledger.acknowledge(commit);
            self.diary.count(Count::Commits, 1);
        }
    }
}
