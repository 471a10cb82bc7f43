//! The memory of processes that read.

use std::path::Path;

use stridemap::{Store, Tensor};

use super::gather::storage_file;
use super::save::{MIB, remove};
use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Clock, Unit};
use crate::worker::{How, Memory, memory_of};

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let mib = bench.pick(512, 64);
    let names = [
        format!("memory/{mib} MiB loaded and read: anonymous"),
        format!("memory/{mib} MiB loaded and read: PSS"),
        format!("memory/{mib} MiB imported: peak RSS"),
    ];
    let fields: [fn(Memory) -> f64; 3] = [|it| it.anonymous, |it| it.pss, |it| it.peak];
    if !names.iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let path = bench.kept("scan.smap", |path: &Path| {
        let elements: Vec<u64> = (0..mib * MIB / 8).map(|at| at as u64).collect();
        Ok(Store::create(path)?.save("x", &Tensor::from_vec(elements, &[mib * MIB / 8])?)?)
    })?;
    let file = storage_file(&path)?;
    for (name, field) in names.iter().zip(fields).take(2) {
        if !bench.wants(name) {
            continue;
        }
        let measure = |clock: &mut Clock, how, path: &Path| {
            clock.record(field(memory_of(how, path)?));
            Ok(())
        };
        let case = Case::new(name)
            .unit(Unit::Bytes)
            .add("stridemap", |clock| measure(clock, How::Load, &path))
            .add("memmap2", |clock| measure(clock, How::Map, &file))
            .add("fs::read", |clock| measure(clock, How::Read, &file));
        bench.run(if name.ends_with("anonymous") { case.at_most(MIB as f64) } else { case })?;
    }
    let [.., name] = names;
    if bench.wants(&name) {
        let scratch = bench.scratch()?;
        let npy = scratch.path().join("x.npy");
        let tensor = Store::open(&path)?.load("x")?;
        stridemap_interop::npy::Export::new().write(&npy, &tensor, |_| ())?;
        let case = Case::new(name).unit(Unit::Bytes).add("stridemap", |clock| {
            clock.record(memory_of(How::Import, &npy)?.peak);
            remove(&npy.with_extension("imported"))
        });
        bench.run(case)?;
    }
    Ok(())
}
