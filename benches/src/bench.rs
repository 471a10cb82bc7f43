//! Runs cases, and keeps their results.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::case::{Case, Clock, Contender, Goal, Unit};
use crate::python::Python;
use crate::stats::Quartiles;
use crate::{Args, Outcome, files, machine, report, table};

/// The fewest rounds of a case.
const MIN_ROUNDS: usize = 7;
const MAX_ROUNDS: usize = 51;

pub(crate) struct Bench {
    filter: String,
    json: bool,
    quick: bool,
    dir: TempDir,
    python: Option<Rc<RefCell<Python>>>,
    model: Option<PathBuf>,
    model_mib: usize,
    remote: Option<String>,
    remote_mib: usize,
    report: Option<PathBuf>,
    load: String,
    results: Vec<Measured>,
}

/// The results of a case.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) contenders: Vec<MeasuredContender>,
    pub(crate) goals: Vec<MeasuredGoal>,
}

#[derive(Debug, Serialize)]
pub(crate) struct MeasuredContender {
    pub(crate) label: String,
    pub(crate) measure: Quartiles,
    /// The measure of stridemap divided by this one, round by round. `None` for stridemap, and for operations that are not
    /// compared.
    pub(crate) ratio: Option<Quartiles>,
    pub(crate) rounds: Vec<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct MeasuredGoal {
    pub(crate) most: f64,
    /// The contender whose measure the limit is a multiple of.
    pub(crate) times: Option<String>,
    pub(crate) reached: f64,
    pub(crate) is_met: bool,
}

impl Bench {
    pub(crate) fn new(args: &Args) -> Outcome<Self> {
        fs::create_dir_all(&args.dir)?;
        machine::check_disk(&args.dir)?;
        let python = args.python.as_deref().map(Python::start).transpose()?;
        Ok(Bench {
            filter: args.filter.clone().unwrap_or_default(),
            json: args.json,
            quick: args.quick,
            dir: TempDir::with_prefix_in("run-", fs::canonicalize(&args.dir)?)?,
            python: python.map(|python| Rc::new(RefCell::new(python))),
            model: args.model.clone(),
            model_mib: args.model_mib,
            remote: args.remote.clone(),
            remote_mib: args.remote_mib,
            report: args.report.clone(),
            load: machine::load()?,
            results: Vec::new(),
        })
    }

    /// Returns whether the filter lets the case with this name run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// Returns the value for full runs, or the one for quick runs.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the path of a file or directory that `build` makes when it is first needed.
    pub(crate) fn kept(&self, name: &str, build: impl FnOnce(&Path) -> Outcome) -> Outcome<PathBuf> {
        let path = self.dir.path().join(name);
        if !path.exists() {
            build(&path)?;
        }
        Ok(path)
    }

    /// Returns a safetensors file of a real model, if one was given.
    pub(crate) fn model(&self) -> Option<PathBuf> {
        self.model.clone()
    }

    /// Returns the size of the model that is read from the disk, in MiB.
    pub(crate) fn model_mib(&self) -> usize {
        self.pick(self.model_mib, self.model_mib.min(96))
    }

    /// Returns the URL for the cases of remotes, if one was given.
    pub(crate) fn remote(&self) -> Option<String> {
        self.remote.clone()
    }

    /// Returns how much the cases of remotes transfer, in MiB.
    pub(crate) fn remote_mib(&self) -> usize {
        self.remote_mib
    }

    /// Returns a new directory, deleted when the value is dropped.
    pub(crate) fn scratch(&self) -> Outcome<TempDir> {
        Ok(TempDir::new_in(self.dir.path())?)
    }

    /// Returns a contender that is a function of peers.py, unless there is no Python or its library is missing.
    pub(crate) fn python(
        &self,
        label: &str,
        function: &str,
        arguments: Value,
    ) -> Outcome<Option<Contender<'static>>> {
        let Some(python) = self.python.clone() else { return Ok(None) };
        if !python.borrow().has(function) {
            return Ok(None);
        }
        let (case, function) = (self.results.len(), function.to_owned());
        let round = Box::new(move |clock: &mut Clock| {
            clock.record(python.borrow_mut().time(case, &function, &arguments)?);
            Ok(())
        });
        Ok(Some(Contender { label: label.to_owned(), round }))
    }

    /// Returns the file formats of peers.py as contenders. `verb` is "read" or "write".
    pub(crate) fn python_formats(&self, verb: &str, arguments: &Value) -> Outcome<Vec<Contender<'static>>> {
        let formats = ["h5py", "zarr", "tensordict", "torch"];
        let contenders = formats.iter().map(|format| {
            self.python(&format!("{format} (Python)"), &format!("{verb}_{format}"), arguments.clone())
        });
        Ok(contenders.collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Runs the contenders in turn, round after round, and prints the result.
    pub(crate) fn run(&mut self, mut case: Case<'_>) -> Outcome {
        eprint!("\r\x1b[K{} ", case.name);
        let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); case.contenders.len()];
        let began = Instant::now();
        // The first round fills caches, and is not counted.
        for round in 0..=MAX_ROUNDS {
            let is_long = began.elapsed() > Duration::from_millis(self.pick(1000, 150));
            if round > self.pick(MIN_ROUNDS, 3) && is_long {
                break;
            }
            // What a contender leaves behind slows the next, so the order changes, and unwritten pages are written.
            for at in order(case.contenders.len(), round) {
                files::write_and_delete(self.dir.path(), case.written_bytes)?;
                rustix::fs::sync();
                let mut clock = Clock::default();
                let contender = &mut case.contenders[at];
                (contender.round)(&mut clock)
                    .map_err(|e| format!("{}: {}: {e}", case.name, contender.label))?;
                if round > 0 {
                    rounds[at].push(clock.measure());
                }
            }
        }
        self.record(case, rounds)
    }

    /// Keeps and prints the result of a case, one vector of measures per contender.
    pub(crate) fn record(&mut self, case: Case<'_>, rounds: Vec<Vec<f64>>) -> Outcome {
        let measured = measured(case, rounds);
        eprint!("\r\x1b[K");
        if self.json {
            println!("{}", serde_json::to_string(&measured)?);
        } else {
            println!("{}", table::of(&measured));
        }
        self.results.push(measured);
        Ok(())
    }

    pub(crate) fn finish(self) -> Outcome {
        if self.results.is_empty() {
            return Err(format!("no case has a name that contains {:?}", self.filter).into());
        }
        let goals: Vec<_> = self.results.iter().flat_map(|result| &result.goals).collect();
        let met_count = goals.iter().filter(|goal| goal.is_met).count();
        if !self.json {
            println!("{met_count} of {} goals met", goals.len());
        }
        if let Some(dir) = &self.report {
            let python = self.python.map(|python| python.borrow().versions.clone()).unwrap_or_default();
            report::write(dir, &self.results, &report::setting(self.quick, &self.load, python)?)?;
        }
        Ok(())
    }
}

/// Returns the order of the contenders in a round, by a Williams design: in twice as many rounds as there are contenders, each
/// is the first and the last equally often, and comes after each other one equally often. In two rounds, each comes before
/// each other one once.
fn order(count: usize, round: usize) -> Vec<usize> {
    // 0, 1, the last, 2, the one before it, and so on.
    let first = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 };
    let mut order: Vec<usize> = (0..count).map(|place| (first(place) + round / 2) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

fn measured(case: Case<'_>, rounds: Vec<Vec<f64>>) -> Measured {
    let ours = rounds[0].clone();
    let contenders = case.contenders.iter().zip(rounds).enumerate().map(|(at, (contender, rounds))| {
        let ratios = ours.iter().zip(&rounds).map(|(ours, theirs)| ours / theirs);
        MeasuredContender {
            label: contender.label.clone(),
            measure: Quartiles::of(rounds.iter().copied()),
            ratio: (case.is_compared && at > 0).then(|| Quartiles::of(ratios)),
            rounds,
        }
    });
    let contenders: Vec<_> = contenders.collect();
    let goals = case.goals.iter().filter_map(|goal| measured_goal(goal, &contenders)).collect();
    Measured { name: case.name, unit: case.unit, contenders, goals }
}

/// Returns `None` if the peer that the goal is about did not run.
fn measured_goal(goal: &Goal, contenders: &[MeasuredContender]) -> Option<MeasuredGoal> {
    let reached = match &goal.times {
        None => contenders[0].measure.median,
        Some(label) => contenders.iter().find(|contender| contender.label == *label)?.ratio?.median,
    };
    let Goal { most, times } = goal.clone();
    Some(MeasuredGoal { most, times, reached, is_met: reached <= most })
}
