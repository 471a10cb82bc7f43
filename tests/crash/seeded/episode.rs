//! One store that loses power repeatedly, for a given number of lives.

use std::sync::Arc;
use std::time::Duration;

use crate::simulated::SimulatedDisk;
use stridemap::{Durability, ErrorKind, Snapshot, Store, StoreOptions};

use super::model::Model;
use crate::content::Content;
use crate::explore::Figures;
use crate::random::Random;
use crate::recover::{check_no_leftovers, check_verified};
use crate::script::STORE;

/// The reason why a life ends.
#[derive(Debug)]
pub(super) enum End {
    Power,
    Wrong(String),
}

pub(super) type Lived<T = ()> = Result<T, End>;

pub(super) struct Episode {
    pub(super) random: Random,
    pub(super) disk: SimulatedDisk,
    /// The acknowledged content; `None` while there is no store.
    pub(super) model: Option<Model>,
    /// The contents that a power cut may restore instead: a writer was killed before it synced the current one.
    pub(super) earlier: Vec<Option<Model>>,
    /// The change in progress.
    pub(super) in_flight: Option<Model>,
    /// Whether the store has more names than fit a manifest.
    pub(super) is_wide: bool,
    /// The number of complete syncs at the time of the first unsynced commit.
    pub(super) unsynced_at: Option<u64>,
    pub(super) handles: Vec<Store>,
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) figures: Figures,
    /// Power cuts since the store was last checked to be intact and without leftovers.
    cuts_in_a_row: usize,
    /// The power cuts so far, to debug a failure.
    history: Vec<String>,
}

impl Episode {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Episode {
            disk: SimulatedDisk::with_block_bytes([64, 512, 4096][random.below(3)]).without_log(),
            model: None,
            earlier: Vec::new(),
            in_flight: None,
            is_wide: random.below(8) == 0,
            unsynced_at: None,
            handles: Vec::new(),
            snapshots: Vec::new(),
            figures: Figures::default(),
            cuts_in_a_row: 0,
            history: Vec::new(),
            random,
        }
    }

    /// Runs for this many lives.
    pub(super) fn run(mut self, lives: usize) -> Result<Figures, String> {
        for _ in 0..lives {
            let power = match self.random.below(3) {
                0 => self.random.below(25),
                1 => self.random.below(80),
                _ => self.random.below(600),
            };
            self.disk.lose_power_after(power as u64);
            let end = self.live();
            self.handles.clear();
            self.snapshots.clear();
            self.figures.disk_operations += self.disk.op_count();
            match end {
                Err(End::Wrong(wrong)) => return Err(self.report(&wrong)),
                Ok(()) => unreachable!("the power never went"),
                Err(End::Power) => {}
            }
            let crashed = match self.random.below(4) {
                0 => self.kill(power),
                _ => self.lose_power(power),
            };
            match crashed {
                Ok(true) => {}
                Ok(false) => break,
                Err(wrong) => return Err(self.report(&wrong)),
            }
        }
        Ok(self.figures)
    }

    fn report(&self, wrong: &str) -> String {
        format!("{wrong}\n  {}", self.history.join("\n  "))
    }

    pub(super) fn options(&self, durability: Durability) -> StoreOptions {
        // There is no other process to wait for.
        let options = StoreOptions::new().durability(durability).lock_timeout(Duration::ZERO);
        options.disk(Arc::new(self.disk.clone()))
    }

    /// Returns the value of a successful operation. A failed one ends the life.
    pub(super) fn did<T>(&mut self, what: &str, done: stridemap::Result<T>) -> Lived<T> {
        self.figures.store_operations += 1;
        done.map_err(|e| if self.disk.is_off() { End::Power } else { End::Wrong(format!("{what}: {e}")) })
    }

    fn live(&mut self) -> Lived {
        if self.model.is_none() {
            self.in_flight = Some(Model::default());
            let created = self.options(Durability::Full).create(STORE);
            let store = self.did("create", created)?;
            self.model = self.in_flight.take();
            self.earlier.clear();
            self.handles.push(store);
        }
        while self.handles.len() < 2 {
            let opened = self.options(Durability::Full).open(STORE);
            let store = self.did("open", opened)?;
            self.handles.push(store);
        }
        if self.random.below(4) == 0 {
            self.settle()?;
        }
        loop {
            self.operate()?;
        }
    }

    /// Commits and collects, and checks that nothing is left over.
    fn settle(&mut self) -> Lived {
        self.snapshots.clear();
        for at in 0..2 {
            let refreshed = self.handles[at].refresh();
            self.did("refresh", refreshed)?;
        }
        let mut next = self.model.clone().unwrap();
        next.halves[0].attributes.insert("a.settled".into(), self.random.next().to_string());
        let mut txn = self.handles[0].begin().map_err(|e| End::Wrong(e.to_string()))?;
        txn.set_attribute("", "a.settled", &next.halves[0].attributes["a.settled"]).unwrap();
        self.in_flight = Some(next);
        let committed = txn.commit();
        self.did("commit", committed)?;
        self.acknowledge(Durability::Full);
        let refreshed = self.handles[1].refresh();
        self.did("refresh", refreshed)?;
        let collected = self.handles[0].gc();
        self.did("collect", collected)?;
        let verified = self.handles[0].verify(|_| ());
        if let Some(finding) = self.did("verify", verified)?.findings.first() {
            return Err(End::Wrong(format!("verify: {finding}")));
        }
        match check_no_leftovers(&self.disk, &self.handles[0]) {
            Err(_) if self.disk.is_off() => return Err(End::Power),
            checked => checked.map_err(End::Wrong)?,
        }
        self.cuts_in_a_row = 0;
        self.check_content(0)
    }

    /// Records that the operation in progress has returned.
    pub(super) fn acknowledge(&mut self, durability: Durability) {
        self.model = self.in_flight.take();
        if durability == Durability::Full {
            self.earlier.clear();
        }
        self.unsynced_at = (durability == Durability::Process).then(|| self.disk.file_system_syncs());
    }

    /// Checks that a handle reads the acknowledged content.
    pub(super) fn check_content(&mut self, handle: usize) -> Lived {
        let refreshed = self.handles[handle].refresh();
        self.did("refresh", refreshed)?;
        let content = Content::of(&self.handles[handle]);
        let found = self.did("read", content)?;
        let model = self.model.as_mut().unwrap();
        model
            .content()
            .compare(&found)
            .map_err(|wrong| End::Wrong(format!("without a power cut: {wrong}")))?;
        for half in &mut model.halves {
            for (name, known) in &mut half.tensors {
                (known.stride, known.offset) =
                    (found.tensors[name].stride.clone(), found.tensors[name].offset);
            }
        }
        Ok(())
    }

    /// Cuts the power. Returns whether the store can be used again; it need not if nothing is promised.
    fn lose_power(&mut self, power: usize) -> Result<bool, String> {
        let cut = self.disk.power_cut();
        let random = &mut self.random;
        let survivors = cut.random(&mut |n| random.below(n));
        let is_promised = self.unsynced_at.is_none_or(|at| self.disk.file_system_syncs() > at);
        self.history.push(format!("power cut after {power} operations: {}", cut.describe(&survivors)));
        self.disk = cut.disk(&survivors).without_log();
        self.cuts_in_a_row += 1;
        self.figures.points += 1;
        self.figures.depth = self.figures.depth.max(self.cuts_in_a_row);
        let mut candidates = vec![self.model.take()];
        candidates.extend(self.in_flight.take().map(Some));
        candidates.append(&mut self.earlier);
        let store = match self.options(Durability::Full).open(STORE) {
            Err(e) if e.kind() == ErrorKind::NotFound && candidates.iter().any(Option::is_none) => {
                return Ok(true);
            }
            Err(_) if !is_promised => return Ok(false),
            opened => opened.map_err(|e| format!("open: {e}"))?,
        };
        if !is_promised {
            let _ = (Content::of(&store), store.verify(|_| ()));
            return Ok(false);
        }
        self.unsynced_at = None;
        let (found, at) = find(&store, &candidates)?;
        self.model = candidates.swap_remove(at);
        self.model.iter_mut().for_each(|model| model.adopt(&found, true));
        self.figures.recoveries += 1;
        check_verified(&store)?;
        Ok(true)
    }

    /// Kills all processes: all their changes are present, but some can still be lost.
    fn kill(&mut self, power: usize) -> Result<bool, String> {
        self.history.push(format!("killed after {power} operations"));
        self.disk = self.disk.power_cut().disk_after_kill().without_log();
        self.figures.kills += 1;
        let mut candidates = vec![self.model.take()];
        candidates.extend(self.in_flight.take().map(Some));
        // It is no longer known when everything was last synced.
        self.unsynced_at = self.unsynced_at.map(|_| 0);
        let store = match self.options(Durability::Full).open(STORE) {
            Err(e) if e.kind() == ErrorKind::NotFound && candidates[0].is_none() => return Ok(true),
            opened => opened.map_err(|e| format!("open: {e}"))?,
        };
        let (found, at) = find(&store, &candidates)?;
        self.model = candidates.swap_remove(at);
        self.model.iter_mut().for_each(|model| model.adopt(&found, false));
        if at > 0 {
            self.earlier.append(&mut candidates);
        }
        check_verified(&store)?;
        Ok(true)
    }
}

/// Returns the content of a store, and the index of the candidate that it matches.
fn find(store: &Store, candidates: &[Option<Model>]) -> Result<(Content, usize), String> {
    let found = Content::of(store).map_err(|e| format!("read: {e}"))?;
    let mut wrongs = Vec::new();
    for (at, candidate) in candidates.iter().enumerate() {
        match candidate.as_ref().map(|candidate| candidate.content().compare(&found)) {
            Some(Ok(())) => return Ok((found, at)),
            Some(Err(wrong)) => wrongs.push(wrong),
            None => wrongs.push("there is a store".to_owned()),
        }
    }
    Err(format!("the content is no commit's: {}", wrongs.join("; or ")))
}
