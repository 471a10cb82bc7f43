//! Selects rows by index.

use std::path::Path;

use serde_json::json;
use stridemap::{Store, Tensor};

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::open_mapped;
use crate::formats::spread;

const LOOP: &str = "floor: plain loop over the mapping";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let rows = bench.pick(1_000_000, 100_000);
    select(bench, rows, 64, 1024)?;
    select(bench, rows, 128, bench.pick(100_000, 10_000))
}

/// Returns a store with a matrix "x", whose elements state their row.
fn matrix(bench: &Bench, rows: usize, columns: usize) -> Outcome<std::path::PathBuf> {
    bench.kept(&format!("{rows} x {columns}.smap"), |path: &Path| {
        let elements = (0..rows * columns).map(|at| (at / columns) as f32).collect();
        Ok(Store::create(path)?.save("x", &Tensor::from_vec(elements, &[rows, columns])?)?)
    })
}

fn indices(count: usize, rows: usize) -> Vec<i64> {
    (0..count).map(|at| spread(at, rows) as i64).collect()
}

/// `index_select` of rows of a mapped and of an unmapped tensor.
fn select(bench: &mut Bench, rows: usize, columns: usize, count: usize) -> Outcome {
    let name = format!("gather/{count} rows of {columns} float32");
    let unmapped_name = format!("{name}, unmapped");
    if !bench.wants(&unmapped_name) {
        return Ok(());
    }
    let path = matrix(bench, rows, columns)?;
    let x = open_mapped(&path)?.load("x")?;
    let wanted = indices(count, rows);
    let index = Tensor::from_vec(wanted.clone(), &[count])?;
    let elements = x.as_slice::<f32>()?;
    let gather = || {
        let mut out = Vec::with_capacity(count * columns);
        for &row in &wanted {
            out.extend_from_slice(&elements[row as usize * columns..][..columns]);
        }
        Ok(out)
    };
    // The only file of the store that has a storage of this size.
    let file = storage_file(&path)?;
    let arguments = json!({ "path": file, "size": [rows, columns], "indices": count });
    let torch = bench.python("torch (Python)", "gather_torch", arguments.clone())?;
    let numpy = bench.python("numpy (Python)", "gather_numpy", arguments)?;
    let case = Case::new(&name)
        .add("stridemap", |clock| clock.time(|| Ok(x.index_select(0, &index)?)).map(drop))
        .add(LOOP, |clock| clock.time(gather).map(drop))
        .add_all(torch)
        .add_all(numpy);
    let case = match columns {
        64 => case.at_most_times(2., LOOP),
        _ => case.at_most_times(0.8, "torch (Python)"),
    };
    if bench.wants(&name) {
        bench.run(case)?;
    }
    let unmapped = Store::open(&path)?.load("x")?;
    let case = Case::new(unmapped_name)
        .add("stridemap", |clock| clock.time(|| Ok(unmapped.index_select(0, &index)?)).map(drop))
        .add(LOOP, |clock| clock.time(gather).map(drop));
    bench.run(case)
}

/// Returns the largest file below a directory of a store.
pub(crate) fn storage_file(store: &Path) -> Outcome<std::path::PathBuf> {
    let mut largest = None;
    for entry in std::fs::read_dir(store.join("storages"))? {
        let entry = entry?;
        let size = entry.metadata()?.len();
        if largest.as_ref().is_none_or(|(of_largest, _)| size > *of_largest) {
            largest = Some((size, entry.path()));
        }
    }
    Ok(largest.ok_or("the store has no storage")?.1)
}
