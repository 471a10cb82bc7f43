//! Opens a store and loads one of its tensors.

use safetensors::SafeTensors;
use serde_json::json;

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::tensors::{self, map, open_mapped, spread};

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    for count in bench.pick(vec![1, 1000, 100_000, 1_000_000], vec![1, 1000, 100_000]) {
        let name = format!("open/{count}");
        if !bench.wants(&name) {
            continue;
        }
        let path = tensors::store(bench, count)?;
        let mut opened = 0;
        let case = Case::new(name).add("stridemap", |clock| {
            opened += 1;
            let wanted = tensors::name(spread(opened, count));
            clock.time(|| {
                let store = open_mapped(&path)?;
                let tensor = store.load(&wanted)?;
                let first = tensor.as_slice::<f32>()?[0];
                Ok((store, tensor, first))
            })?;
            Ok(())
        });
        if count > 100_000 {
            // A header of safetensors is at most 100 MB long.
            bench.run(case)?;
            continue;
        }
        let file = tensors::safetensors(bench, count)?;
        let mut opened = 0;
        let case = case.add("safetensors + memmap2", |clock| {
            opened += 1;
            let wanted = tensors::name(spread(opened, count));
            clock.time(|| {
                let map = map(&file)?;
                let first = SafeTensors::deserialize(&map)?.tensor(&wanted)?.data()[0];
                Ok((map, first))
            })?;
            Ok(())
        });
        let arguments = json!({ "path": file, "name": tensors::name(spread(1, count)) });
        let python = bench.python("safetensors (Python)", "open_safetensors", arguments)?;
        bench.run(case.add_all(python))?;
    }
    Ok(())
}
