//! Statistics of all elements of a large tensor, in the page cache.

use std::thread;

use stridemap::{Store, Tensor};

use super::gather::storage_file;
use super::save::MIB;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::{map, open_mapped};

const PEER: &str = "floor: sum of the same mapped memory on all cores";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let mib = bench.pick(1024, 64);
    let name = bench.pick("stats/1 GiB", "stats/64 MiB");
    if !bench.wants(name) {
        return Ok(());
    }
    let path = bench.kept("stats.smap", |path| {
        let count = mib * MIB / 4;
        let random = |at: usize| (at as u32).wrapping_mul(2_654_435_769) as f32 / u32::MAX as f32 - 0.5;
        // The sum of three is nearly normal, as weights are.
        let number = |at| random(at) + random(at / 3) + random(at / 7);
        Ok(Store::create(path)?.save("x", &Tensor::from_vec((0..count).map(number).collect(), &[count])?)?)
    })?;
    let mapped = open_mapped(&path)?.load("x")?;
    let copied = Store::open(&path)?.load("x")?;
    let file = map(&storage_file(&path)?)?;
    let elements: &[f32] = bytemuck::cast_slice(&file);
    let case = Case::new(name)
        .add("stridemap", |clock| clock.time(|| Ok(mapped.statistics(|_| ())?)).map(drop))
        .add("stridemap: copied by reads", |clock| clock.time(|| Ok(copied.statistics(|_| ())?)).map(drop))
        .add(PEER, |clock| clock.time(|| Ok(sum_on_all_cores(elements))).map(drop))
        .at_most_times(1.5, PEER);
    bench.run(case)
}

fn sum_on_all_cores(elements: &[f32]) -> f64 {
    let part = elements.len().div_ceil(stridemap::parallel::thread_count(usize::MAX));
    thread::scope(|scope| {
        let threads: Vec<_> = elements.chunks(part).map(|part| scope.spawn(|| sum(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum()
    })
}

/// Sums in lanes, so that no addition waits for the one before it.
fn sum(elements: &[f32]) -> f64 {
    let mut sums = [0f64; 16];
    for chunk in elements.as_chunks::<16>().0 {
        sums.iter_mut().zip(chunk).for_each(|(sum, &element)| *sum += f64::from(element));
    }
    sums.iter().sum()
}
