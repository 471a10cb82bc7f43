//! Appends rows of 128 float32 to a tensor, without a sync.

use std::fs::File;
use std::io::Write;

use stridemap::{DType, Tensor};

use super::commit::Views;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::unsynced;
use crate::formats::{self, SMALL};

const COLUMNS: usize = 128;
const APPENDS: usize = 10;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    // 50 rows are 25 KiB.
    for rows in [1, 50, 1000] {
        let name = format!("append/{rows} rows of 512 bytes");
        if !bench.wants(&name) {
            continue;
        }
        let scratch = bench.scratch()?;
        let store = unsynced().create(scratch.path().join("x.smap"))?;
        store.save(&formats::name(0), &[0f32; SMALL])?;
        store.create_growable("log", DType::F32, &[0, COLUMNS], 1_000_000)?;
        let batch = Tensor::from_vec(vec![1f32; rows * COLUMNS], &[rows, COLUMNS])?;
        let bytes = batch.to_bytes()?;
        let mut views = Views::new(store.clone())?;
        let mut file = File::create(scratch.path().join("log"))?;
        let case = Case::new(name)
            .add("stridemap", |clock| {
                clock.time_each(APPENDS, |_| {
                    store.append("log", &batch)?;
                    Ok(())
                })
            })
            .add("stridemap: commit of a header", |clock| clock.time_each(APPENDS, |_| views.save_next()))
            .add("floor: write", |clock| clock.time_each(APPENDS, |_| Ok(file.write_all(&bytes)?)));
        let goal = "stridemap: commit of a header";
        bench.run(if rows == 50 { case.at_most_times(1.3, goal) } else { case })?;
    }
    Ok(())
}
