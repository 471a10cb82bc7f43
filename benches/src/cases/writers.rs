//! Several processes that write to one store at the same time.

use std::path::Path;
use std::time::Duration;

use stridemap::{DType, Store};

use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Unit};
use crate::formats::{self, SMALL};
use crate::stats::quantile;
use crate::worker::{Kind, write_at_once};

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    for (kind, what) in [(Kind::Commit, "commits"), (Kind::Append, "appends of one row")] {
        for writers in bench.pick(vec![1, 4, 16], vec![1, 4]) {
            measure(bench, kind, what, writers, false)?;
        }
    }
    measure(bench, Kind::Commit, "commits", 4, true)?;
    measure(bench, Kind::Mixed, "appends among reads and commits", 16, true)
}

fn measure(bench: &mut Bench, kind: Kind, what: &str, writers: usize, is_synced: bool) -> Outcome {
    let synced = if is_synced { " synced" } else { "" };
    let name = format!("writers/{writers} processes, {what}{synced}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let scratch = bench.scratch()?;
    let path = scratch.path().join("x.smap");
    create(&path)?;
    let length = Duration::from_millis(bench.pick(600, 200));
    let (mut rates, mut medians, mut slowest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.pick(7, 3) {
        let durations = write_at_once(kind, &path, writers, length, is_synced)?;
        rates.push(durations.len() as f64 / length.as_secs_f64());
        medians.push(quantile(&durations, 0.5));
        slowest.push(quantile(&durations, 0.99));
    }
    let rate = Case::new(format!("{name}: rate")).unit(Unit::PerSecond).add_recorded("stridemap");
    bench.record(rate, vec![rates])?;
    let mut case = Case::new(name).add_recorded("stridemap: p99").add_recorded("stridemap: p50");
    if kind != Kind::Commit && writers > 1 {
        case = case.at_most_times(10., "stridemap: p50");
    }
    if kind == Kind::Mixed {
        case = case.at_most(0.5);
    }
    bench.record(case, vec![slowest, medians])
}

fn create(path: &Path) -> Outcome {
    let store = Store::create(path)?;
    store.save(&formats::name(0), &[1f32; SMALL])?;
    store.create_growable("log", DType::F32, &[0, 128], 1_000_000)?;
    Ok(())
}
