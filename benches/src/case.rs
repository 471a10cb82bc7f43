//! A case: the same work, done by several contenders.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Outcome;

/// The same work, done by stridemap and by others.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// The first one is stridemap, unless they are not compared.
    pub(crate) contenders: Vec<Contender<'a>>,
    pub(crate) goals: Vec<Goal>,
    /// The bytes of files that a contender writes in a round.
    pub(crate) written_bytes: usize,
    /// Whether the contenders do the same work, so that their measures are compared.
    pub(crate) is_compared: bool,
}

pub(crate) struct Contender<'a> {
    pub(crate) label: String,
    pub(crate) round: Box<dyn FnMut(&mut Clock) -> Outcome + 'a>,
}

/// The unit of what a case measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    Seconds,
    Bytes,
    Calls,
    PerSecond,
}

/// A limit for the median of stridemap.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) most: f64,
    /// The label of the contender whose measure the limit is a multiple of. Without one, the limit is a measure.
    pub(crate) times: Option<String>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        let (contenders, goals) = (Vec::new(), Vec::new());
        Case {
            name: name.into(),
            unit: Unit::Seconds,
            contenders,
            goals,
            written_bytes: 0,
            is_compared: true,
        }
    }

    /// States how many bytes of files a contender writes in a round. Before its turn, a file of as many bytes is
    /// written and deleted. Every contender then finds free memory that was used a moment ago: a virtual machine may
    /// have returned other free memory to its host, and the first program that touches it is slow.
    pub(crate) fn writes(mut self, bytes: usize) -> Self {
        self.written_bytes = bytes;
        self
    }

    /// States that the contenders are different operations of stridemap.
    pub(crate) fn uncompared(mut self) -> Self {
        self.is_compared = false;
        self
    }

    pub(crate) fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Adds a contender. `round` is called once per round, and measures what it does with the clock.
    pub(crate) fn add(mut self, label: &str, round: impl FnMut(&mut Clock) -> Outcome + 'a) -> Self {
        self.contenders.push(Contender { label: label.to_owned(), round: Box::new(round) });
        self
    }

    /// Adds a contender whose measures are recorded elsewhere.
    pub(crate) fn add_recorded(self, label: &str) -> Self {
        self.add(label, |_| Ok(()))
    }

    pub(crate) fn add_all(mut self, contenders: impl IntoIterator<Item = Contender<'a>>) -> Self {
        self.contenders.extend(contenders);
        self
    }

    /// Sets a goal: at most this multiple of the measure of a peer.
    pub(crate) fn at_most_times(mut self, most: f64, peer: &str) -> Self {
        self.goals.push(Goal { most, times: Some(peer.to_owned()) });
        self
    }

    /// Sets a goal in the unit of the case.
    pub(crate) fn at_most(mut self, most: f64) -> Self {
        self.goals.push(Goal { most, times: None });
        self
    }
}

/// Measures one round of one contender.
#[derive(Default)]
pub(crate) struct Clock {
    elapsed: Duration,
    operations: usize,
    recorded: Option<f64>,
}

impl Clock {
    /// Times one operation. What it returns is dropped after the clock has stopped.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let began = Instant::now();
        let done = black_box(work());
        self.elapsed += began.elapsed();
        self.operations += 1;
        done
    }

    /// Times many short operations, with the numbers from 0.
    pub(crate) fn time_each(&mut self, count: usize, mut work: impl FnMut(usize) -> Outcome) -> Outcome {
        let began = Instant::now();
        for number in 0..count {
            black_box(work(black_box(number)))?;
        }
        self.elapsed += began.elapsed();
        self.operations += count;
        Ok(())
    }

    /// Records a measure that is not a duration of this process.
    pub(crate) fn record(&mut self, measure: f64) {
        self.recorded = Some(measure);
    }

    /// Returns the recorded measure, or the mean duration of an operation in seconds.
    pub(crate) fn measure(&self) -> f64 {
        self.recorded.unwrap_or_else(|| self.elapsed.as_secs_f64() / self.operations.max(1) as f64)
    }
}
