//! How the cost of each operation grows with the tensors, storages, tags and readers of a store.

use stridemap::{DType, OnExisting, StorageKind, Store, Tensor};

use super::commit::Views;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::{open_mapped, unsynced};
use crate::formats::{self, SMALL, spread};
use crate::worker;

const LOADS: usize = 1000;
const COMMITS: usize = 20;
const GUARDS: usize = 200;
/// The tensor that is locked. No other is mutable.
const LOCKED: &str = "locked";
/// How many tensors a store has where something else grows.
const TENSORS: usize = 1000;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let tens = |from: u32, to: u32| (from..=to).map(|power| 10usize.pow(power));
    for count in tens(0, bench.pick(6, 4)) {
        measure(bench, &format!("scaling/tensors/{count}"), count, |store| fill(store, count), 0)?;
    }
    for count in tens(0, bench.pick(4, 3)) {
        let save_singly = |store: &Store| {
            (0..count).try_for_each(|at| Ok(store.save(&formats::name(at), &[at as f32; SMALL])?))
        };
        measure(bench, &format!("scaling/storages/{count}"), count, save_singly, 0)?;
    }
    for count in [0].into_iter().chain(tens(1, bench.pick(4, 3))) {
        let tag = |store: &Store| {
            fill(store, TENSORS)?;
            let first = store.load(&formats::name(0))?;
            (0..count).try_for_each(|tag| {
                Ok(store.write(|txn| {
                    txn.on_existing(OnExisting::Replace);
                    txn.save_view("tagged", &first.slice(0, 0, 1 + tag as isize % 50, 1)?)?;
                    txn.tag(&format!("step{tag}"))
                })?)
            })
        };
        measure(bench, &format!("scaling/tags/{count}"), TENSORS, tag, 0)?;
    }
    for count in bench.pick(vec![0, 1, 2, 4, 8, 16, 32, 64], vec![0, 1, 4, 16]) {
        let name = format!("scaling/readers/{count}");
        measure(bench, &name, TENSORS, |store| fill(store, TENSORS), count)?;
    }
    Ok(())
}

/// Saves small tensors in one commit.
fn fill(store: &Store, count: usize) -> Outcome {
    Ok(store.write(|txn| (0..count).try_for_each(|at| txn.save(&formats::name(at), &[at as f32; SMALL])))?)
}

/// Measures every operation on a store that `build` fills with `tensor_count` tensors, while `reader_count` processes
/// hold a generation each.
fn measure(
    bench: &mut Bench,
    name: &str,
    tensor_count: usize,
    build: impl FnOnce(&Store) -> Outcome,
    reader_count: usize,
) -> Outcome {
    if !bench.wants(name) {
        return Ok(());
    }
    let scratch = bench.scratch()?;
    let path = &scratch.path().join("x.smap");
    let store = unsynced().create(path)?;
    build(&store)?;
    let locked = store.create_tensor(LOCKED, DType::F32, &[1 << 10], StorageKind::Mutable)?;
    let mut views = Views::new(store)?;
    let mut readers = Vec::new();
    for _ in 0..reader_count {
        readers.push(worker::Reader::start(path)?);
        views.save_next()?;
    }
    let names: Vec<String> = (0..LOADS).map(|number| formats::name(spread(number, tensor_count))).collect();
    let loading = open_mapped(path)?;
    let case = Case::new(name)
        .uncompared()
        .add("open", |clock| {
            // What ran before, such as the prefetch of all tensors, leaves other data in the processor's caches.
            drop(open_mapped(path)?);
            clock.time(|| open_mapped(path)).map(drop)
        })
        .add("load", |clock| clock.time_each(LOADS, |number| Ok(loading.load(&names[number]).map(drop)?)))
        .add("commit of a header", |clock| {
            views.save_next()?;
            clock.time_each(COMMITS, |_| views.save_next())
        })
        .add("exclusive guard", |clock| clock.time_each(GUARDS, |_| Ok(locked.lock_exclusive().map(drop)?)))
        .add("prefetch of one tensor", |clock| {
            prefetch_one(&open_mapped(path)?, &names[1])?;
            let store = open_mapped(path)?;
            clock.time(|| prefetch_one(&store, &names[1]))
        })
        .add("prefetch of all tensors", |clock| {
            let store = open_mapped(path)?;
            clock.time(|| prefetch_all(&store)).map(drop)
        });
    bench.run(case)
}

fn prefetch_one(store: &Store, name: &str) -> Outcome {
    Ok(Tensor::prefetch_all([&store.load(name)?], |_| ())?)
}

/// Loads all tensors of a store, and reads them ahead. Returns them, so that they are not dropped in this time.
fn prefetch_all(store: &Store) -> Outcome<Vec<Tensor>> {
    let snapshot = store.snapshot();
    let tensors = snapshot.iter_loaded("")?.map(|entry| Ok(entry?.1)).collect::<Outcome<Vec<_>>>()?;
    Tensor::prefetch_all(&tensors, |_| ())?;
    Ok(tensors)
}
