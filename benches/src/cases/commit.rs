//! Commits one header: a view of a saved tensor.

use std::fs::{self, File};
use std::path::Path;

use stridemap::Store;

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::tensors::{self, open_unsynced};

/// The bytes of a small manifest.
const BYTES: usize = 4096;
const COMMITS: usize = 20;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let sizes = bench.pick(vec![(100, 3.), (100_000, 3.), (1_000_000, 6.)], vec![(100, 3.), (100_000, 3.)]);
    for (count, most) in sizes {
        let name = format!("commit/view/{count}/unsynced");
        if !bench.wants(&name) {
            continue;
        }
        let store = open_unsynced(&tensors::store(bench, count)?)?;
        let scratch = bench.scratch()?;
        let case = Case::new(name)
            .add("stridemap", |clock| clock.time_each(COMMITS, |_| save_view(&store)))
            .add("floor: create + write + rename", |clock| {
                clock.time_each(COMMITS, |_| replace(scratch.path(), false))
            })
            .at_most_times(most, "floor: create + write + rename");
        bench.run(case)?;
    }
    for count in [100, 100_000] {
        let name = format!("commit/view/{count}/synced");
        if !bench.wants(&name) {
            continue;
        }
        let store = Store::open(tensors::store(bench, count)?)?;
        let scratch = bench.scratch()?;
        let case = Case::new(name)
            .add("stridemap", |clock| clock.time(|| save_view(&store)))
            .add("floor: the same with two fsyncs", |clock| clock.time(|| replace(scratch.path(), true)))
            .at_most_times(1.5, "floor: the same with two fsyncs");
        bench.run(case)?;
    }
    Ok(())
}

fn save_view(store: &Store) -> Outcome {
    let view = store.load(&tensors::name(0))?.slice(0, 1, 33, 2)?;
    Ok(store.save_view("view", &view)?)
}

/// Replaces a small file, as every program does that must not leave half of it.
fn replace(dir: &Path, is_synced: bool) -> Outcome {
    let (staged, path) = (dir.join("staged"), dir.join("file"));
    fs::write(&staged, [1; BYTES])?;
    if is_synced {
        File::open(&staged)?.sync_all()?;
    }
    fs::rename(&staged, &path)?;
    if is_synced {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}
