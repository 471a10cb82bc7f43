//! Loads tensors by name.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use safetensors::SafeTensors;
use serde_json::json;
use stridemap::Store;

use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Unit};
use crate::files::{map, open_mapped, unsynced};
use crate::formats::{self, FORMATS, heed, mini_lm, small_arrays, spread, touch};
use crate::worker;

const LOADS: usize = 1000;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    for count in bench.pick(vec![1, 1000, 100_000, 1_000_000], vec![1, 1000, 100_000]) {
        one_of(bench, count)?;
        all_of(bench, count)?;
        by_prefix(bench, count)?;
    }
    not_mapped(bench)?;
    system_calls(bench)?;
    let names: Vec<String> = mini_lm().into_iter().map(|array| array.name).collect();
    model_by_name(bench, &names)?;
    model_at_once(bench, &names)?;
    var_builder(bench)
}

/// Loads of single tensors in an open store.
fn one_of(bench: &mut Bench, count: usize) -> Outcome {
    let name = format!("load/{count}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let store = open_mapped(&FORMATS[0].file(bench, &count.to_string(), || small_arrays(count))?)?;
    let lmdb = formats::LMDB.file(bench, &count.to_string(), || small_arrays(count))?;
    let names: Vec<String> = (0..LOADS).map(|number| formats::name(spread(number, count))).collect();
    let map: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    let env = heed::open(&lmdb)?;
    let db = heed::database(&env)?;
    let case = Case::new(name)
        .add("stridemap", |clock| {
            clock.time_each(LOADS, |number| {
                let _ = black_box(store.load(&names[number])?);
                Ok(())
            })
        })
        .add("heed (LMDB)", |clock| {
            let txn = env.read_txn()?;
            clock.time_each(LOADS, |number| {
                black_box(db.get(&txn, &names[number])?);
                Ok(())
            })
        })
        .add("floor: HashMap", |clock| {
            clock.time_each(LOADS, |number| {
                black_box(map.get(names[number].as_str()));
                Ok(())
            })
        })
        .at_most(2e-6);
    bench.run(case)
}

/// Loads every tensor of an open store at once.
fn all_of(bench: &mut Bench, count: usize) -> Outcome {
    let name = format!("load_all/{count}");
    if !(1000..=100_000).contains(&count) || !bench.wants(&name) {
        return Ok(());
    }
    let store = open_mapped(&FORMATS[0].file(bench, &count.to_string(), || small_arrays(count))?)?;
    let file = map(&FORMATS[1].file(bench, &count.to_string(), || small_arrays(count))?)?;
    let case = Case::new(name)
        .add("stridemap", |clock| {
            clock.time(|| Ok(store.snapshot().iter_loaded("")?.collect::<Result<Vec<_>, _>>()?)).map(drop)
        })
        .add("safetensors, its header included", |clock| {
            clock.time(|| Ok(SafeTensors::deserialize(&file)?.tensors())).map(drop)
        });
    bench.run(case)
}

/// Lists the 64 tensors of one layer.
fn by_prefix(bench: &mut Bench, count: usize) -> Outcome {
    let name = format!("list by prefix/{count}");
    if count < 1000 || !bench.wants(&name) {
        return Ok(());
    }
    let store = open_mapped(&FORMATS[0].file(bench, &count.to_string(), || small_arrays(count))?)?;
    let lmdb = formats::LMDB.file(bench, &count.to_string(), || small_arrays(count))?;
    let env = heed::open(&lmdb)?;
    let db = heed::database(&env)?;
    let case = Case::new(name)
        .add("stridemap", |clock| {
            let list =
                || Ok(store.snapshot().iter_tensors("layers.00007.")?.collect::<Result<Vec<_>, _>>()?);
            clock.time(list).map(drop)
        })
        .add("heed (LMDB)", |clock| {
            let txn = env.read_txn()?;
            clock.time(|| Ok(db.prefix_iter(&txn, "layers.00007.")?.count())).map(drop)
        });
    bench.run(case)
}

/// Loads and reads tensors of 2.5 KB in a store that is not mapped. Each has a file of its own.
fn not_mapped(bench: &mut Bench) -> Outcome {
    let name = "load/and read 2.5 KB, not mapped";
    if !bench.wants(name) {
        return Ok(());
    }
    const COUNT: usize = 100;
    const NUMEL: usize = 640;
    let scratch = bench.scratch()?;
    let path = scratch.path().join("x.smap");
    let names: Vec<String> = (0..COUNT).map(formats::name).collect();
    let saved = unsynced().create(&path)?;
    names.iter().try_for_each(|name| saved.save(name, &[1f32; NUMEL]))?;
    let store = Store::open(&path)?;
    let plain = scratch.path().join("plain");
    fs::write(&plain, [1; NUMEL * 4])?;
    let plain = File::open(plain)?;
    let mut elements = [0f32; NUMEL];
    let mut bytes = [0; NUMEL * 4];
    let case = Case::new(name)
        .add("stridemap", |clock| {
            clock.time_each(LOADS, |number| {
                Ok(store.load(&names[number % COUNT])?.read_into(&mut elements)?)
            })
        })
        .add("floor: pread", |clock| clock.time_each(LOADS, |_| Ok(plain.read_exact_at(&mut bytes, 0)?)))
        .at_most(1.5e-6);
    bench.run(case)
}

/// Counts the system calls of a warm load: those of a process with loads, less those of one without.
fn system_calls(bench: &mut Bench) -> Outcome {
    let name = "load/system calls";
    if !bench.wants(name) || !worker::has_strace() {
        return Ok(());
    }
    let path = FORMATS[0].file(bench, "1000", || small_arrays(1000))?;
    let case = Case::new(name)
        .unit(Unit::Calls)
        .add("stridemap", |clock| {
            let few = worker::system_calls(&path, LOADS)?;
            let many = worker::system_calls(&path, 2 * LOADS)?;
            clock.record((many - few) / LOADS as f64);
            Ok(())
        })
        .at_most(0.);
    bench.run(case)
}

/// Opens a model, and loads, reads and drops one tensor after another, in each format.
fn model_by_name(bench: &mut Bench, names: &[String]) -> Outcome {
    let silero = bench.model();
    if bench.wants("model/MiniLM by name") {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut case = Case::new("model/MiniLM by name, opening included");
        for format in FORMATS {
            let path = format.file(bench, "minilm", mini_lm)?;
            let names = &names;
            case = case.add(format.label, move |clock| clock.time(|| (format.read)(&path, names)).map(drop));
        }
        let arguments = json!({ "arrays": FORMATS[1].file(bench, "minilm", mini_lm)?, "names": names });
        case = case.add_all(bench.python_formats("read", &arguments)?);
        bench.run(case.at_most_times(2., FORMATS[1].label))?;
    }
    if let Some(silero) = silero.filter(|_| bench.wants("model/silero by name")) {
        let path = bench.kept("silero.smap", |path| import(path, &silero))?;
        let names = open_mapped(&path)?.names()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let case = Case::new("model/silero by name, opening included")
            .add("stridemap", |clock| clock.time(|| (FORMATS[0].read)(&path, &names)).map(drop))
            .add(FORMATS[1].label, |clock| clock.time(|| (FORMATS[1].read)(&silero, &names)).map(drop));
        bench.run(case)?;
    }
    Ok(())
}

fn import(path: &Path, file: &Path) -> Outcome {
    Ok(stridemap_interop::import(&stridemap::Store::create(path)?, file, "")?)
}

/// Opens a model, loads and keeps all tensors, then reads them.
fn model_at_once(bench: &mut Bench, names: &[String]) -> Outcome {
    let name = "model/MiniLM at once, opening included";
    if !bench.wants(name) {
        return Ok(());
    }
    let path = FORMATS[0].file(bench, "minilm", mini_lm)?;
    let file = FORMATS[1].file(bench, "minilm", mini_lm)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let case = Case::new(name)
        .add("stridemap", |clock| {
            let load = || {
                let snapshot = open_mapped(&path)?.snapshot();
                let mut sum = 0.;
                for entry in snapshot.iter_loaded("")? {
                    sum += touch(entry?.1.as_slice()?);
                }
                Ok(sum)
            };
            clock.time(load).map(drop)
        })
        .add(FORMATS[1].label, |clock| clock.time(|| (FORMATS[1].read)(&file, &names)).map(drop));
    bench.run(case)
}

/// Loads all variables of a model for candle, which copies them.
fn var_builder(bench: &mut Bench) -> Outcome {
    let name = "model/MiniLM by candle's VarBuilder";
    if !bench.wants(name) {
        return Ok(());
    }
    let path = FORMATS[0].file(bench, "minilm", mini_lm)?;
    let file = FORMATS[1].file(bench, "minilm", mini_lm)?;
    let variables: Vec<(String, Vec<usize>)> =
        mini_lm().into_iter().map(|array| (array.name, array.size)).collect();
    let get_all = |builder: VarBuilder<'_>| {
        let variables = variables.iter().map(|(name, size)| Ok(builder.get(&size[..], name)?));
        variables.collect::<Outcome<Vec<_>>>()
    };
    let case = Case::new(name)
        .add("stridemap", |clock| {
            let load = || {
                let snapshot = open_mapped(&path)?.snapshot();
                get_all(stridemap_candle::var_builder(&snapshot, "", DType::F32, &Device::Cpu))
            };
            clock.time(load).map(drop)
        })
        .add("candle's own, safetensors", |clock| {
            let load = || {
                // SAFETY: nothing writes the file while it is mapped.
                let builder =
                    unsafe { VarBuilder::from_mmaped_safetensors(&[&file], DType::F32, &Device::Cpu)? };
                get_all(builder)
            };
            clock.time(load).map(drop)
        });
    bench.run(case)
}
