//! Commits one header: a view of a saved tensor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use stridemap::{Store, Tensor};

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::unsynced;
use crate::formats::{self, FORMATS, small_arrays};

/// The bytes of a small manifest.
const BYTES: usize = 4096;
const COMMITS: usize = 20;
const PLAIN: &str = "floor: create + write + rename";
const PLAIN_SYNCED: &str = "floor: the same, file and directory synced";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let sizes = bench.pick(vec![(100, 3.), (100_000, 3.), (1_000_000, 6.)], vec![(100, 3.), (100_000, 3.)]);
    for (count, most) in sizes {
        let name = format!("commit/{count}");
        if !bench.wants(&name) {
            continue;
        }
        let mut views = Views::new(unsynced().open(store(bench, count)?)?)?;
        let scratch = bench.scratch()?;
        let case = Case::new(name)
            .add("stridemap", |clock| clock.time_each(COMMITS, |_| views.save_next()))
            .add(PLAIN, |clock| clock.time_each(COMMITS, |_| replace(scratch.path(), false)))
            .at_most_times(most, PLAIN);
        bench.run(case)?;
    }
    for count in bench.pick(vec![100, 100_000], vec![100]) {
        let name = format!("commit/{count} synced");
        if !bench.wants(&name) {
            continue;
        }
        let mut views = Views::new(Store::open(store(bench, count)?)?)?;
        let scratch = bench.scratch()?;
        let case = Case::new(name)
            .add("stridemap", |clock| clock.time(|| views.save_next()))
            .add(PLAIN_SYNCED, |clock| clock.time(|| replace(scratch.path(), true)))
            .at_most_times(1.5, PLAIN_SYNCED);
        bench.run(case)?;
    }
    Ok(())
}

fn store(bench: &Bench, count: usize) -> Outcome<PathBuf> {
    FORMATS[0].file(bench, &count.to_string(), || small_arrays(count))
}

/// Saves views under one name.
pub(crate) struct Views {
    store: Store,
    of: Tensor,
    saved: usize,
}

impl Views {
    pub(crate) fn new(store: Store) -> Outcome<Self> {
        let of = store.load(&formats::name(0))?;
        Ok(Views { store, of, saved: 0 })
    }

    /// Commits a view that differs from the one before.
    pub(crate) fn save_next(&mut self) -> Outcome {
        self.saved += 1;
        Ok(self.store.save_view("view", &self.of.slice(0, 0, 1 + self.saved as isize % 50, 1)?)?)
    }
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
