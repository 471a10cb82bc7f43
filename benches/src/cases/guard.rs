//! What a lock on elements costs that nobody waits for, and a look for newer commits.

use std::fs::{self, File};
use std::hint::black_box;

use rustix::fs::{FlockOperation, flock};
use stridemap::{DType, StorageKind, Store};

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::unsynced;
use crate::formats::heed;

const TIMES: usize = 2000;
const FLOCK: &str = "flock and unlock (floor)";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let [shared, exclusive, refresh] =
        ["guard/shared", "guard/exclusive", "guard/refresh without news"].map(str::to_owned);
    if ![&shared, &exclusive, &refresh].iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let scratch = bench.scratch()?;
    let store = unsynced().create(scratch.path().join("x.smap"))?;
    let tensor = store.create_tensor("x", DType::F32, &[1 << 18], StorageKind::Mutable)?;
    let file = File::create(scratch.path().join("lock"))?;
    let lock_file = |how| {
        flock(&file, how)?;
        flock(&file, FlockOperation::Unlock)?;
        Ok(())
    };
    let lock_shared = || {
        drop(tensor.lock_shared()?);
        Ok(())
    };
    let lock_exclusive = || {
        drop(tensor.lock_exclusive()?);
        Ok(())
    };
    if bench.wants(&shared) {
        let case = Case::new(shared)
            .add("stridemap", |clock| clock.time_each(TIMES, |_| lock_shared()))
            .add(FLOCK, |clock| clock.time_each(TIMES, |_| lock_file(FlockOperation::LockShared)))
            .at_most(3e-6);
        bench.run(case)?;
    }
    if bench.wants(&exclusive) {
        let path = scratch.path().join("x.mdb");
        fs::create_dir(&path)?;
        let env = heed::open(&path)?;
        let case = Case::new(exclusive)
            .add("stridemap", |clock| clock.time_each(TIMES, |_| lock_exclusive()))
            .add(FLOCK, |clock| clock.time_each(TIMES, |_| lock_file(FlockOperation::LockExclusive)))
            // A transaction that wrote nothing.
            .add("heed (LMDB)", |clock| {
                clock.time_each(TIMES, |_| {
                    env.write_txn()?.abort();
                    Ok(())
                })
            })
            .at_most(6e-6);
        bench.run(case)?;
    }
    if bench.wants(&refresh) {
        let reader = Store::open(store.path())?;
        let meta = store.path().join("meta");
        let case = Case::new(refresh)
            .add("stridemap", |clock| {
                clock.time_each(TIMES, |_| match reader.refresh()? {
                    true => Err("there was no commit".into()),
                    false => Ok(()),
                })
            })
            .add("stat of a directory (floor)", |clock| {
                clock.time_each(TIMES, |_| {
                    black_box(fs::metadata(&meta)?);
                    Ok(())
                })
            })
            .at_most(3e-6);
        bench.run(case)?;
    }
    Ok(())
}
