//! Reads all elements of a large tensor, and some of its rows, from the page cache and from the disk.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt as _;

use memmap2::Advice;
use stridemap::{Advice as Access, Store, Tensor};

use super::gather::storage_file;
use super::save::MIB;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::{drop_pages, map, open_mapped};

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let mib = bench.pick(512, 64);
    let names = [
        format!("scan/{mib} MiB warm"),
        format!("scan/{mib} MiB cold"),
        format!("scan/every 16th row of 4 KiB of {mib} MiB, cold"),
        format!("verify/{mib} MiB"),
    ];
    if !names.iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let elements: Vec<u64> = (0..mib * MIB / 8).map(|at| at as u64).collect();
    let path = bench.kept("scan.smap", |path| {
        Ok(Store::create(path)?.save("x", &Tensor::from_vec(elements.clone(), &[elements.len()])?)?)
    })?;
    let file = storage_file(&path)?;
    let [warm, cold, rows, verify] = names;
    if bench.wants(&warm) {
        let x = open_mapped(&path)?.load("x")?;
        let case = Case::new(warm)
            .add("stridemap", |clock| clock.time(|| Ok(sum(x.as_slice()?))).map(drop))
            .add("floor: plain memory", |clock| clock.time(|| Ok(sum(&elements))).map(drop))
            .at_most_times(1.02, "floor: plain memory");
        bench.run(case)?;
    }
    if bench.wants(&cold) {
        let mut buffer = vec![0; MIB];
        let case = Case::new(cold)
            .add("stridemap", |clock| {
                drop_pages(&file)?;
                clock.time(|| Ok(sum(open_mapped(&path)?.load("x")?.as_slice()?))).map(drop)
            })
            .add("stridemap, prefetched", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let x = open_mapped(&path)?.load("x")?;
                    x.prefetch();
                    Ok(sum(x.as_slice()?))
                })?;
                Ok(())
            })
            .add("stridemap: copied by reads", |clock| {
                drop_pages(&file)?;
                clock.time(|| Ok(sum(&Store::open(&path)?.load("x")?.read()?))).map(drop)
            })
            .add("memmap2", |clock| {
                drop_pages(&file)?;
                clock.time(|| Ok(sum(bytemuck::cast_slice(&map(&file)?)))).map(drop)
            })
            .add("memmap2, prefetched", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let map = map(&file)?;
                    map.advise(Advice::WillNeed)?;
                    Ok(sum(bytemuck::cast_slice(&map)))
                })?;
                Ok(())
            })
            .add("floor: reads of 1 MiB", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let mut file = File::open(&file)?;
                    let mut total = 0u64;
                    while let count @ 1.. = file.read(&mut buffer)? {
                        total = total.wrapping_add(sum(bytemuck::cast_slice(&buffer[..count])));
                    }
                    Ok(total)
                })?;
                Ok(())
            });
        bench.run(case)?;
    }
    if bench.wants(&rows) {
        let view = |store: Store| store.load("x")?.view([mib * 256, 512])?.slice(0, None, None, 16);
        let case = Case::new(rows)
            .add("stridemap, prefetched", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let rows = view(open_mapped(&path)?)?;
                    rows.prefetch();
                    Ok(rows.read::<u64>()?)
                })?;
                Ok(())
            })
            .add("stridemap", |clock| {
                drop_pages(&file)?;
                clock.time(|| Ok(view(open_mapped(&path)?)?.read::<u64>()?)).map(drop)
            })
            .add("stridemap, random", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let rows = view(open_mapped(&path)?)?;
                    rows.advise(Access::Random);
                    Ok(rows.read::<u64>()?)
                })?;
                Ok(())
            })
            .add("stridemap: copied by reads", |clock| {
                drop_pages(&file)?;
                clock.time(|| Ok(view(Store::open(&path)?)?.read::<u64>()?)).map(drop)
            })
            .add("floor: reads of 4 KiB, one thread", |clock| {
                drop_pages(&file)?;
                clock.time(|| {
                    let file = File::open(&file)?;
                    let mut rows = vec![0; mib << 16];
                    for (row, i) in rows.chunks_exact_mut(4096).zip(0..) {
                        file.read_exact_at(row, i << 16)?;
                    }
                    Ok(rows)
                })?;
                Ok(())
            });
        bench.run(case)?;
    }
    if bench.wants(&verify) {
        let store = Store::open(&path)?;
        let case = Case::new(verify)
            .add("stridemap", |clock| clock.time(|| Ok(store.verify(|_| ())?)).map(drop))
            .add("floor: sum of the mapping, one thread", |clock| {
                clock.time(|| Ok(sum(bytemuck::cast_slice(&map(&file)?)))).map(drop)
            });
        bench.run(case)?;
    }
    Ok(())
}

fn sum(elements: &[u64]) -> u64 {
    elements.iter().fold(0, |sum, element| sum.wrapping_add(*element))
}
