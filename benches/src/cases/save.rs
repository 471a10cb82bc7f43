//! Saves tensors: many small ones, and large ones.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::json;
use stridemap::{Store, StoreOptions};

use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Clock};
use crate::files::unsynced;
use crate::formats::{Array, FORMATS, SMALL, small_arrays};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    many(bench)?;
    views(bench)?;
    for mib in bench.pick(vec![1, 4, 16, 64, 256, 512], vec![1, 16, 64]) {
        large(bench, mib)?;
    }
    synced(bench, bench.pick(512, 64))
}

/// Many small tensors in one commit, without a sync.
fn many(bench: &mut Bench) -> Outcome {
    let count = bench.pick(100_000, 10_000);
    let name = format!("save/{count} of 256 bytes");
    if !bench.wants(&name) {
        return Ok(());
    }
    let arrays = small_arrays(count);
    let mut case = Case::new(name).writes(count * SMALL * 4);
    for format in FORMATS.iter().filter(|format| count <= format.most) {
        let (scratch, arrays) = (bench.scratch()?, &arrays);
        case = case.add(format.label, move |clock| {
            let path = scratch.path().join("written");
            clock.time(|| (format.write)(&path, arrays))?;
            remove(&path)
        });
    }
    bench.run(case.at_most_times(0.75, FORMATS[1].label))
}

/// Views in one commit, beside the same number of commits.
fn views(bench: &mut Bench) -> Outcome {
    let name = "save/1000 views in one commit";
    if !bench.wants(name) {
        return Ok(());
    }
    let scratch = bench.scratch()?;
    let store = unsynced().create(scratch.path().join("x.smap"))?;
    store.save("x", &vec![1f32; 4096][..])?;
    let x = store.load("x")?;
    let mut start = 0;
    let mut singly = 0;
    let case = Case::new(name)
        .add("stridemap", |clock| {
            start += 1;
            clock.time(|| {
                Ok(store.write(|txn| {
                    (0..1000).try_for_each(|at| {
                        txn.save_view(
                            &format!("v{at}"),
                            &x.slice(0, start as isize, (start + 9 + at) as isize, 1)?,
                        )
                    })
                })?)
            })
        })
        .add("stridemap: one commit", |clock| {
            singly += 1;
            clock.time(|| Ok(store.save_view("single", &x.slice(0, 0, singly as isize, 1)?)?))
        });
    bench.run(case)
}

/// One tensor of `mib` MiB, without a sync.
fn large(bench: &mut Bench, mib: usize) -> Outcome {
    let name = format!("save/{mib} MiB");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (arrays, plain_scratch) = ([array(mib)], bench.scratch()?);
    let mut case = Case::new(name).writes(mib * MIB);
    for format in FORMATS {
        let (scratch, arrays) = (bench.scratch()?, &arrays);
        case = case.add(format.label, move |clock| {
            let path = scratch.path().join("written");
            clock.time(|| (format.write)(&path, arrays))?;
            remove(&path)
        });
    }
    case = case.add("floor: fallocate + write", |clock| {
        plain(clock, &plain_scratch.path().join("written"), &arrays[0], false)
    });
    case = case.add_all(bench.python_formats("write", &json!({ "mib": mib, "dir": plain_scratch.path() }))?);
    let most = bench.pick(512, 64);
    if mib == most {
        case = case.at_most_times(1., FORMATS[1].label).at_most_times(1.12, "floor: fallocate + write");
    }
    bench.run(case)
}

/// One large tensor that is durable when the call returns.
fn synced(bench: &mut Bench, mib: usize) -> Outcome {
    let name = format!("save/{mib} MiB synced");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (scratch, array) = (bench.scratch()?, array(mib));
    let store = StoreOptions::new().create(scratch.path().join("x.smap"))?;
    let file = scratch.path().join("x.safetensors");
    let plain_file = scratch.path().join("written");
    let case = Case::new(name)
        .writes(mib * MIB)
        .add("stridemap", |clock| {
            clock.time(|| Ok(store.save("x", &array.elements[..])?))?;
            forget(&store)
        })
        .add(FORMATS[1].label, |clock| {
            let arrays = std::slice::from_ref(&array);
            clock.time(|| {
                (FORMATS[1].write)(&file, arrays)?;
                sync(&file)
            })?;
            remove(&file)
        })
        .add("floor: write + fsync", |clock| plain(clock, &plain_file, &array, true))
        .at_most_times(1.05, "floor: write + fsync");
    bench.run(case)
}

/// Deletes the tensor "x", and its storage.
fn forget(store: &Store) -> Outcome {
    store.remove("x")?;
    store.gc()?;
    Ok(())
}

fn array(mib: usize) -> Array {
    let elements: Vec<f32> = (0..mib * MIB / 4).map(|at| at as f32).collect();
    Array { name: "x".to_owned(), size: vec![elements.len()], elements }
}

/// Writes the bytes of an array to a new file, with the bare system calls.
fn plain(clock: &mut Clock, path: &Path, array: &Array, is_synced: bool) -> Outcome {
    let bytes: &[u8] = bytemuck::cast_slice(&array.elements);
    clock.time(|| {
        let mut file = File::create(path)?;
        if !is_synced {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.len() as u64)?;
        }
        file.write_all(bytes)?;
        if is_synced { sync(path) } else { Ok(()) }
    })?;
    remove(path)
}

/// Makes a new file and its name durable.
pub(crate) fn sync(path: &Path) -> Outcome {
    File::open(path)?.sync_all()?;
    Ok(path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?)
}

/// Deletes a file or a directory, so that nothing of it is still to be written when the next contender begins.
pub(crate) fn remove(path: &Path) -> Outcome {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    Ok(())
}
