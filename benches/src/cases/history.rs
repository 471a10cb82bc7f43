//! What a store with many tags costs.

use std::fs;
use std::path::{Path, PathBuf};

use stridemap::{OnExisting, Store, Tensor, Transaction};

use super::commit::Views;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Unit};
use crate::files::unsynced;
use crate::formats;

const TENSORS: usize = 1000;
const COMMITS: usize = 20;
/// How many manifests are examined.
const LONGEST_OF: usize = 200;
const UNTAGGED: &str = "stridemap without tags";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let count = bench.pick(10_000, 1000);
    let [commit, first, open, at, manifest] =
        ["commit of a header", "first commit of a process", "open", "at a tag", "longest manifest"]
            .map(|what| format!("history/{what} among {count} tags"));
    if [&commit, &first, &open, &at, &manifest].iter().any(|name| bench.wants(name)) {
        let tagged = store(bench, count, TENSORS / 2)?;
        let untagged = store(bench, 0, 0)?;
        if bench.wants(&commit) {
            let mut views = Views::new(unsynced().open(&tagged)?)?;
            let mut plain = Views::new(unsynced().open(&untagged)?)?;
            // The first commit of a handle looks for the leftovers of killed writers.
            views.save_next()?;
            plain.save_next()?;
            let case = Case::new(commit)
                .add("stridemap", |clock| clock.time_each(COMMITS, |_| views.save_next()))
                .add(UNTAGGED, |clock| clock.time_each(COMMITS, |_| plain.save_next()))
                .at_most_times(1.5, UNTAGGED);
            bench.run(case)?;
        }
        if bench.wants(&first) {
            let save_one = |path: &Path| {
                let store = unsynced().open(path)?;
                let view = store.load(&formats::name(7))?;
                Ok(store.save_view("view", &view)?)
            };
            let case = Case::new(first)
                .add("stridemap", |clock| clock.time(|| save_one(&tagged)))
                .add(UNTAGGED, |clock| clock.time(|| save_one(&untagged)));
            bench.run(case)?;
        }
        if bench.wants(&open) {
            let open_one = |path: &Path| Ok(Store::open(path)?.load(&formats::name(7)).map(drop)?);
            let case = Case::new(open)
                .add("stridemap", |clock| clock.time(|| open_one(&tagged)))
                .add(UNTAGGED, |clock| clock.time(|| open_one(&untagged)))
                .at_most_times(1.3, UNTAGGED);
            bench.run(case)?;
        }
        if bench.wants(&at) {
            let (store, mut opened) = (Store::open(&tagged)?, 0usize);
            let case = Case::new(at)
                .add("stridemap", |clock| {
                    opened += 1;
                    let tag = tag_name(opened * 7919 % count);
                    clock.time(|| Ok(store.at(&*tag).map(drop)?))
                })
                .at_most(1e-3);
            bench.run(case)?;
        }
        if bench.wants(&manifest) {
            let case = Case::new(manifest).unit(Unit::Bytes).add("stridemap", |clock| {
                clock.record(longest_manifest(&tagged)? as f64);
                Ok(())
            });
            bench.run(case.at_most(65_536.))?;
        }
    }
    for (what, is_random) in [("the same", false), ("any", true)] {
        let name = format!("history/metadata for each tag, {what} 10 tensors of 1000 changed");
        if bench.wants(&name) {
            let count = bench.pick(1000, 300);
            let scratch = bench.scratch()?;
            let path = scratch.path().join("x.smap");
            fill(&path, count, 10, is_random)?;
            let case = Case::new(name).unit(Unit::Bytes).add("stridemap", |clock| {
                let bytes = bytes_in(&path.join("meta"))? + bytes_in(&path.join("generations"))?;
                clock.record(bytes as f64 / count as f64);
                Ok(())
            });
            bench.run(case.at_most(12_288.))?;
        }
    }
    Ok(())
}

fn tag_name(tag: usize) -> String {
    format!("step{tag}")
}

/// Returns a store of tensors, in which each tag replaces `changed` of them.
fn store(bench: &Bench, tags: usize, changed: usize) -> Outcome<PathBuf> {
    bench.kept(&format!("history.{tags}.smap"), |path: &Path| fill(path, tags, changed, false))
}

/// Changes tensors and moves a tag, many times. Returns the length of the longest manifest in bytes.
fn longest_manifest(path: &Path) -> Outcome<u64> {
    let store = unsynced().open(path)?;
    let mut longest = 0;
    for commit in 0..LONGEST_OF {
        store.write(|txn| {
            txn.on_existing(OnExisting::Replace);
            change(txn, commit, (0..TENSORS / 2).map(|index| (index * 2 + commit % 2) % TENSORS))?;
            txn.tag("moved")
        })?;
        let manifest = path.join(format!("meta/{:016x}.man", store.generation()));
        longest = longest.max(fs::metadata(manifest)?.len());
    }
    Ok(longest)
}

/// Replaces tensors by small ones that differ from commit to commit.
fn change(
    txn: &mut Transaction<'_>,
    commit: usize,
    mut indices: impl Iterator<Item = usize>,
) -> stridemap::Result<()> {
    indices.try_for_each(|index| {
        let value = Tensor::from_vec(vec![index as f32, commit as f32], &[2])?;
        txn.save(&formats::name(index), &value)
    })
}

fn fill(path: &Path, tags: usize, changed: usize, is_random: bool) -> Outcome {
    let store = unsynced().create(path)?;
    store.write(|txn| change(txn, 0, 0..TENSORS))?;
    let mut random = 1u64;
    for tag in 0..tags {
        store.write(|txn| {
            let pick = |index: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let any = (random >> 33) as usize % TENSORS;
                if is_random { any } else { (index * 2 + tag % 2) % TENSORS }
            };
            change(txn, tag + 1, (0..changed).map(pick))?;
            txn.tag(&tag_name(tag))
        })?;
    }
    Ok(())
}

/// Returns the length of the files in a directory.
fn bytes_in(dir: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
