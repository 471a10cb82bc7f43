//! Rewrites the storages of a store without the bytes that no tensor needs.

use stridemap::Tensor;

use super::save::{MIB, remove, sync};
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::unsynced;

/// The number of tensors before and after.
const TENSORS: usize = 64;
const KEPT: usize = TENSORS / 2;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let name = format!("compact/{} MiB to half", TENSORS);
    if !bench.wants(&name) {
        return Ok(());
    }
    let scratch = bench.scratch()?;
    let (path, file) = (scratch.path().join("x.smap"), scratch.path().join("file"));
    let bytes = vec![1u8; KEPT * MIB];
    let case = Case::new(name)
        .add("stridemap", |clock| {
            let store = unsynced().create(&path)?;
            let tensor = Tensor::from_vec(vec![1u8; MIB], &[MIB])?;
            store.write(|txn| (0..TENSORS).try_for_each(|at| txn.save(&format!("t{at}"), &tensor)))?;
            store.write(|txn| (KEPT..TENSORS).try_for_each(|at| txn.remove(&format!("t{at}"))))?;
            clock.time(|| Ok(store.compact(false, |_| ())?)).map(drop)?;
            remove(&path)
        })
        .add("floor: write of what is kept", |clock| {
            clock.time(|| Ok(std::fs::write(&file, &bytes)?))?;
            sync(&file)?;
            remove(&file)
        });
    bench.run(case)
}
