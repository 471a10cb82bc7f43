//! Imports, adopts and exports a safetensors file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use stridemap::{ExternalFiles, StoreOptions, Tensor};
use stridemap_interop::safetensors::Export;

use super::save::{MIB, remove, sync};
use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Clock};
use crate::files::open_mapped;
use crate::formats::{Array, FORMATS, small_arrays};

const COPY: &str = "floor: copy of the file + sync";
/// The number of tensors of a file.
const TENSORS: usize = 16;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let mib = bench.pick(1024, 64);
    import(bench, mib)?;
    import_small(bench)?;
    adopt(bench, mib)?;
    export(bench, mib, false)?;
    export(bench, mib, true)
}

/// Returns a file of `mib` MiB.
fn file(bench: &Bench, mib: usize) -> Outcome<PathBuf> {
    let path = FORMATS[1].file(bench, &format!("{mib} MiB"), || {
        let rows = mib * MIB / TENSORS / 4096;
        let array = |at| Array {
            name: format!("t{at:02}"),
            size: vec![rows, 1024],
            elements: vec![at as f32; rows * 1024],
        };
        (0..TENSORS).map(array).collect()
    })?;
    sync(&path)?;
    Ok(path)
}

fn import(bench: &mut Bench, mib: usize) -> Outcome {
    let name = format!("import/{mib} MiB of safetensors");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (file, scratch) = (file(bench, mib)?, bench.scratch()?);
    let (store_path, copied) = (scratch.path().join("x.smap"), scratch.path().join("copied"));
    let case = Case::new(name)
        .writes(mib * MIB)
        .add("stridemap", |clock| {
            let store = StoreOptions::new().create(&store_path)?;
            clock.time(|| Ok(stridemap_interop::import(&store, &file, "")?))?;
            remove(&store_path)
        })
        .add(COPY, |clock| {
            clock.time(|| copy(&file, &copied))?;
            remove(&copied)
        })
        .at_most_times(1.1, COPY);
    bench.run(case)
}

/// Imports a checkpoint of PyTorch, written by Python, with a storage for each of its small tensors.
fn import_small(bench: &mut Bench) -> Outcome {
    let name = "import/1000 small tensors of PyTorch";
    if !bench.wants(name) {
        return Ok(());
    }
    let file = FORMATS[1].file(bench, "1000 small", || small_arrays(1000))?;
    let arguments = json!({ "arrays": file, "names": [] });
    let Some(mut writes_checkpoint) = bench.python("torch (Python)", "read_torch", arguments)? else {
        return Ok(());
    };
    (writes_checkpoint.round)(&mut Clock::default())?;
    let mut checkpoint = file.clone().into_os_string();
    checkpoint.push(".pt");
    let (checkpoint, scratch) = (PathBuf::from(checkpoint), bench.scratch()?);
    let path = scratch.path().join("x.smap");
    let import = |clock: &mut Clock, file: &Path| {
        let store = StoreOptions::new().create(&path)?;
        clock.time(|| Ok(stridemap_interop::import(&store, file, "")?))?;
        let storage_count = store.snapshot().storages().count();
        if storage_count > 3 {
            return Err(format!("{storage_count} storages were written").into());
        }
        remove(&path)
    };
    let case = Case::new(name)
        .add("stridemap", |clock| import(clock, &checkpoint))
        .add("stridemap: the same tensors of safetensors", |clock| import(clock, &file))
        .at_most(0.2);
    bench.run(case)
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to)?;
    sync(to)
}

fn adopt(bench: &mut Bench, mib: usize) -> Outcome {
    let name = format!("adopt/{mib} MiB of safetensors");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (file, scratch) = (file(bench, mib)?, bench.scratch()?);
    let path = scratch.path().join("x.smap");
    let case = Case::new(name).add("stridemap", |clock| {
        let store = StoreOptions::new().external(ExternalFiles::Anywhere).create(&path)?;
        clock.time(|| Ok(stridemap_interop::adopt(&store, &file, "")?))?;
        remove(&path)
    });
    bench.run(case)
}

fn export(bench: &mut Bench, mib: usize, is_transposed: bool) -> Outcome {
    let name = format!("export/{mib} MiB{}", if is_transposed { " transposed" } else { "" });
    if !bench.wants(&name) {
        return Ok(());
    }
    let (file, scratch) = (file(bench, mib)?, bench.scratch()?);
    let path = bench.kept(&format!("{mib} MiB.smap"), |path| {
        Ok(stridemap_interop::import(&StoreOptions::new().create(path)?, &file, "")?)
    })?;
    let mut tensors: Vec<(String, Tensor)> =
        open_mapped(&path)?.snapshot().iter_loaded("")?.collect::<Result<_, _>>()?;
    if is_transposed {
        for (_, tensor) in &mut tensors {
            *tensor = tensor.t()?;
        }
    }
    let (exported, copied) = (scratch.path().join("exported"), scratch.path().join("copied"));
    let case = Case::new(name)
        .writes(mib * MIB)
        .add("stridemap", |clock| {
            clock.time(|| Ok(Export::new().write(&exported, &tensors, |_| ())?))?;
            remove(&exported)
        })
        .add(COPY, |clock| {
            clock.time(|| copy(&file, &copied))?;
            remove(&copied)
        });
    bench.run(if is_transposed { case } else { case.at_most_times(1.1, COPY) })
}
