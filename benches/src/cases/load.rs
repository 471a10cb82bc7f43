//! Loads tensors from an open store.

use std::collections::HashMap;

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::tensors::{self, open_mapped, spread};

const LOADS: usize = 1000;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    for count in bench.pick(vec![1, 1000, 100_000, 1_000_000], vec![1, 1000, 100_000]) {
        let name = format!("load/{count}");
        if !bench.wants(&name) {
            continue;
        }
        let store = open_mapped(&tensors::store(bench, count)?)?;
        let names: Vec<String> = (0..LOADS).map(|number| tensors::name(spread(number, count))).collect();
        let map: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
        let case = Case::new(name)
            .add("stridemap", |clock| {
                clock.time_each(LOADS, |number| {
                    store.load(&names[number])?;
                    Ok(())
                })
            })
            .add("floor: HashMap", |clock| {
                clock.time_each(LOADS, |number| {
                    std::hint::black_box(map.get(names[number].as_str()));
                    Ok(())
                })
            })
            .at_most(2e-6);
        bench.run(case)?;
    }
    Ok(())
}
