//! Power cuts at every point of a script, with each state that can survive, and at every point of the recovery.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};

use crate::simulated::{Op, PowerCut, SimulatedDisk, Survivors};

use crate::content::Content;
use crate::random::Random;
use crate::recover::{After, recover};
use crate::script::{BEGAN, RETURNED, Recorder, Run, Script, Setup, UNSYNCED};

/// The limits of an exploration.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// The most states tried at a crash point. If there are more, the extremes and a selection are tried.
    pub(crate) states: usize,
    /// Which recoveries are interrupted by another power cut. For each depth, beginning with the second: the most
    /// states tried at a crash point, and `n` if one in `n` recoveries is interrupted.
    pub(crate) deeper: Vec<(usize, u64)>,
    /// Whether, at each point, processes are also killed, and the power is cut at each point of the next process's
    /// work.
    pub(crate) kills: bool,
    /// The seed of the selection.
    pub(crate) seed: u64,
}

impl Budget {
    /// Tries everything, up to `states` states at a crash point. Recoveries are not interrupted.
    pub(crate) fn flat(states: usize) -> Self {
        Budget { states, deeper: Vec::new(), kills: false, seed: 1 }
    }
}

/// Counts of what was tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// The crash points, and those among them at which every possible state was tried.
    pub(crate) points: u64,
    pub(crate) complete_points: u64,
    /// Pairs of a crash point and a state, each counted once.
    pub(crate) states: u64,
    /// The pairs at those crash points at which every possible state was tried.
    pub(crate) complete_states: u64,
    /// The pairs that were recovered. The others repeat a state with the same expectation.
    pub(crate) recoveries: u64,
    /// The number of times that all processes were killed.
    pub(crate) kills: u64,
    /// Operations of the store and of the disk, in the script and in recoveries.
    pub(crate) store_operations: u64,
    pub(crate) disk_operations: u64,
    /// The number of power cuts in a row.
    pub(crate) depth: usize,
}

impl Figures {
    pub(crate) fn add(&mut self, other: &Figures) {
        self.points += other.points;
        self.complete_points += other.complete_points;
        self.states += other.states;
        self.complete_states += other.complete_states;
        self.recoveries += other.recoveries;
        self.kills += other.kills;
        self.store_operations += other.store_operations;
        self.disk_operations += other.disk_operations;
        self.depth = self.depth.max(other.depth);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash points ({} with every state there can be), {} states ({}), {} recoveries, {} kills, up to {} crashes \
             in a row, {} operations of the store, {} of the disk",
            self.points,
            self.complete_points,
            self.states,
            self.complete_states,
            self.recoveries,
            self.kills,
            self.depth,
            self.store_operations,
            self.disk_operations
        )
    }
}

/// A state that is not allowed.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) script: &'static str,
    /// The power cuts that led to it, in order.
    pub(crate) cuts: Vec<String>,
    pub(crate) wrong: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  {}", self.script, self.wrong, self.cuts.join("\n  "))
    }
}

/// Plays a script, and cuts the power after each of its operations. Returns, as the error, the first state that is
/// neither that of the last completed step nor that of the step in progress, or from which the store cannot continue.
pub(crate) fn explore(script: &Script, setup: &Setup, budget: &Budget) -> Result<Figures, Violation> {
    explore_run(script.name, &Recorder::play(script, setup), setup, budget)
}

/// Explores a run that was already played, and may have been modified since. See [`explore`].
pub(crate) fn explore_run(
    script: &'static str,
    run: &Run,
    setup: &Setup,
    budget: &Budget,
) -> Result<Figures, Violation> {
    let mut explorer = Explorer {
        setup,
        budget,
        figures: Figures { store_operations: run.operations, ..Figures::default() },
        seen: HashSet::new(),
        random: Random::new(budget.seed),
    };
    let explored = explorer.explore(run, 1);
    explored.map_err(|(mut cuts, wrong)| {
        cuts.reverse();
        Violation { script, cuts, wrong }
    })?;
    Ok(explorer.figures)
}

struct Explorer<'a> {
    setup: &'a Setup,
    budget: &'a Budget,
    figures: Figures,
    /// Disks that were recovered, with the expected contents.
    seen: HashSet<(u64, u64)>,
    random: Random,
}

/// The power cuts, last first, and the problem.
type Wrong = (Vec<String>, String);

impl Explorer<'_> {
    fn explore(&mut self, run: &Run, depth: usize) -> Result<(), Wrong> {
        let most = match depth {
            1 => self.budget.states,
            _ => self.budget.deeper.get(depth - 2).map_or(self.budget.states, |deeper| deeper.0),
        };
        self.figures.depth = self.figures.depth.max(depth);
        let mut cut = run.start.clone();
        let (mut began, mut returned, mut is_promised) = (0, 0, true);
        for (at, op) in run.log.iter().enumerate() {
            match op {
                Op::Mark(mark) if mark == BEGAN => began += 1,
                Op::Mark(mark) if mark == RETURNED => returned += 1,
                Op::Mark(mark) if mark == UNSYNCED => is_promised = false,
                Op::SyncAll => is_promised = true,
                _ => {}
            }
            cut.apply(op);
            match op {
                Op::Mark(mark) if mark != RETURNED => continue,
                Op::Mark(_) => {}
                _ => self.figures.disk_operations += 1,
            }
            let candidates = returned..returned + 1 + usize::from(began > returned);
            let earlier = if returned == 0 { &run.earlier[..] } else { &[] };
            let candidates: Vec<_> = run.contents[candidates].iter().chain(earlier).collect();
            let expecting = if is_promised { hash(&candidates) } else { 0 };
            if self.budget.kills && depth == 1 && is_promised {
                for after in [After::Kill, After::KillThenCollect] {
                    self.kill(&cut, &candidates, after).map_err(|(mut cuts, wrong)| {
                        cuts.push(format!("killed after {:?} ({} of {})", brief(op), at + 1, run.log.len()));
                        (cuts, wrong)
                    })?;
                }
            }
            // Where nothing is promised, a few states suffice to show that nothing panics.
            let most = if is_promised { most } else { most.min(16) };
            let possible = cut.possible(most, &mut |n| self.random.below(n));
            self.figures.points += 1;
            self.figures.states += possible.survivors.len() as u64;
            if possible.is_complete {
                self.figures.complete_points += 1;
                self.figures.complete_states += possible.survivors.len() as u64;
            }
            for (survivors, fingerprint) in &possible.survivors {
                if !self.seen.insert((*fingerprint, expecting)) {
                    continue;
                }
                self.figures.recoveries += 1;
                let tried = if is_promised {
                    self.recover(cut.disk(survivors), &candidates, *fingerprint, depth)
                } else {
                    read_unpromised(&cut.disk(survivors), self.setup);
                    Ok(())
                };
                tried.map_err(|(mut cuts, wrong)| {
                    cuts.push(describe(&cut, at, run, survivors));
                    (cuts, wrong)
                })?;
            }
        }
        Ok(())
    }

    fn recover(
        &mut self,
        disk: SimulatedDisk,
        candidates: &[&Option<Content>],
        fingerprint: u64,
        depth: usize,
    ) -> Result<(), Wrong> {
        let recovery = recover(&disk, self.setup, candidates, After::PowerCut);
        let recovery = recovery.map_err(|wrong| (Vec::new(), wrong))?;
        self.figures.store_operations += recovery.operations;
        match self.budget.deeper.get(depth - 1) {
            Some((_, share)) if fingerprint.is_multiple_of(*share) => self.explore(&recovery, depth + 1),
            _ => Ok(()),
        }
    }
}

impl Explorer<'_> {
    /// Lets the next process run on what a killed process left, and cuts the power at any point of its work.
    fn kill(&mut self, cut: &PowerCut, candidates: &[&Option<Content>], after: After) -> Result<(), Wrong> {
        let recovery = recover(&cut.disk_after_kill(), self.setup, candidates, after);
        let mut recovery = recovery.map_err(|wrong| (Vec::new(), wrong))?;
        recovery.earlier = candidates.iter().map(|&candidate| candidate.clone()).collect();
        self.figures.kills += 1;
        self.figures.store_operations += recovery.operations;
        self.explore(&recovery, 2)
    }
}

fn describe(cut: &PowerCut, at: usize, run: &Run, survivors: &Survivors) -> String {
    format!(
        "power cut after {:?} ({} of {}): {}",
        brief(&run.log[at]),
        at + 1,
        run.log.len(),
        cut.describe(survivors)
    )
}

/// Returns an operation without its bytes.
fn brief(op: &Op) -> String {
    match op {
        Op::Write { file, offset_bytes, bytes } => {
            format!("write {} bytes at {offset_bytes} of file {file}", bytes.len())
        }
        op => format!("{op:?}"),
    }
}

/// Reads a store of unknown state: it may be a store, an error, or missing, but must not panic.
fn read_unpromised(disk: &SimulatedDisk, setup: &Setup) {
    let options = (setup.recovery)().disk(std::sync::Arc::new(disk.clone()));
    if let Ok(store) = options.open(crate::script::STORE) {
        let _ = Content::of(&store);
        let _ = store.verify(|_| ());
    }
}

fn hash(value: &(impl std::hash::Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
