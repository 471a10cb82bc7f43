//! Reads a whole model tensor by tensor, in random order: from the disk, and from the page cache right after that.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use safetensors::SafeTensors;
use serde_json::json;
use stridemap::{Snapshot, Store, Tensor};

use super::save::MIB;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::{Case, Unit};
use crate::files::{drop_pages_for_sure, map, open_mapped};
use crate::formats::{Array, FORMATS, mini_lm, touch};
use crate::machine::page_faults;

/// The number of tensors of the large model.
const TENSORS: usize = 300;

/// How many bytes a plain read has.
const PIECE_BYTES: u64 = 4 << 20;

const PREFETCHED: &str = "stridemap, prefetched";
const SAFETENSORS: &str = "safetensors + memmap2";
const PREADS: &str = "preads of 4 MiB, 2 threads";

/// The files of a model, and the names of its tensors in random order.
struct Model {
    label: String,
    store: PathBuf,
    file: PathBuf,
    names: Vec<String>,
    bytes: usize,
}

/// Opens a file, and reads all its tensors.
type Read<'a> = &'a dyn Fn() -> Outcome<f32>;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let mib = bench.model_mib();
    measure(bench, "MiniLM", mini_lm)?;
    measure(bench, &format!("{mib} MiB"), || {
        let elems = (mib * MIB / 4 / TENSORS).max(1);
        let name = |number| format!("layers.{number:03}.weight");
        let array =
            |number| Array { name: name(number), size: vec![elems], elements: vec![number as f32; elems] };
        (0..TENSORS).map(array).collect()
    })
}

fn measure(bench: &mut Bench, model: &str, arrays: impl Fn() -> Vec<Array>) -> Outcome {
    let label = format!("model/{model} in random order");
    let kinds = ["cold", "copied, cold", "by candle's VarBuilder, cold", "right after that", "page faults"];
    if !kinds.iter().any(|kind| bench.wants(&format!("{label}, {kind}"))) {
        return Ok(());
    }
    let mut names: Vec<String> = arrays().into_iter().map(|array| array.name).collect();
    fastrand::Rng::with_seed(39).shuffle(&mut names);
    let [store, file] = [0, 1].map(|at| FORMATS[at].file(bench, &format!("model {model}"), &arrays));
    let (store, file) = (store?, file?);
    let bytes = fs::metadata(&file)?.len() as usize;
    let model = Model { label, store, file, names, bytes };
    model.cold(bench)?;
    model.cold_copied(bench)?;
    model.cold_by_candle(bench)?;
    model.warm(bench)
}

impl Model {
    /// Touches every page of the model, which is on the disk.
    fn cold(&self, bench: &mut Bench) -> Outcome {
        let name = format!("{}, cold", self.label);
        if !bench.wants(&name) {
            return Ok(());
        }
        let names = self.names();
        let case = Case::new(name)
            .writes(self.bytes)
            .add(PREFETCHED, |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| prefetched(&self.store, &names)).map(drop)
            })
            .add("stridemap", |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| (FORMATS[0].read)(&self.store, &names)).map(drop)
            })
            .add(SAFETENSORS, |clock| {
                drop_pages_for_sure(&self.file)?;
                clock.time(|| (FORMATS[1].read)(&self.file, &names)).map(drop)
            })
            .add(PREADS, |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| preads(&self.store, 2)).map(drop)
            });
        let mut python = Vec::new();
        for (label, function, arguments, path) in [
            (
                "stridemap, prefetched (Python, numpy)",
                "read_stridemap_numpy",
                json!({ "store": self.store }),
                &self.store,
            ),
            (
                "stridemap, prefetched (Python, torch)",
                "read_stridemap_torch",
                json!({ "store": self.store }),
                &self.store,
            ),
            ("safetensors (Python, torch)", "read_safetensors", json!({ "arrays": self.file }), &self.file),
            (
                "torch.load, mapped (Python)",
                "read_torch",
                json!({ "arrays": self.file }),
                &self.file.with_added_extension("pt"),
            ),
        ] {
            let mut arguments = arguments;
            arguments["names"] = json!(names);
            let Some(mut contender) = bench.python(label, function, arguments)? else { continue };
            let path = path.clone();
            let mut round = contender.round;
            contender.round = Box::new(move |clock| {
                // The file of torch is made in the first round, which is not counted.
                if path.exists() {
                    drop_pages_for_sure(&path)?;
                }
                round(clock)
            });
            python.push(contender);
        }
        bench.run(case.add_all(python).at_most_times(0.7, SAFETENSORS).at_most_times(1.1, PREADS))
    }

    /// Copies every tensor of the model, which is on the disk, to the heap.
    fn cold_copied(&self, bench: &mut Bench) -> Outcome {
        let name = format!("{}, copied, cold", self.label);
        if !bench.wants(&name) {
            return Ok(());
        }
        let names = self.names();
        let read = |tensors: Vec<Tensor>| {
            Ok(tensors.iter().map(Tensor::read).collect::<Result<Vec<Vec<f32>>, _>>()?)
        };
        let case = Case::new(name)
            .writes(self.bytes)
            .add("stridemap, unmapped, prefetched", |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| {
                    let tensors = load(&Store::open(&self.store)?.snapshot(), &names)?;
                    Tensor::prefetch_all(&tensors, |_| ())?;
                    read(tensors)
                })?;
                Ok(())
            })
            .add("stridemap, unmapped", |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| read(load(&Store::open(&self.store)?.snapshot(), &names)?)).map(drop)
            })
            .add("safetensors + memmap2: copied", |clock| {
                drop_pages_for_sure(&self.file)?;
                clock.time(|| {
                    let map = map(&self.file)?;
                    let tensors = SafeTensors::deserialize(&map)?;
                    let copies = names.iter().map(|name| Ok(tensors.tensor(name)?.data().to_vec()));
                    copies.collect::<Outcome<Vec<_>>>()
                })?;
                Ok(())
            });
        bench.run(case)
    }

    /// Gets all variables of the model, which is on the disk, from candle's `VarBuilder`.
    fn cold_by_candle(&self, bench: &mut Bench) -> Outcome {
        let name = format!("{}, by candle's VarBuilder, cold", self.label);
        if !bench.wants(&name) {
            return Ok(());
        }
        let names = self.names();
        let get_all = |builder: VarBuilder<'_>| {
            let variables = names.iter().map(|name| Ok(builder.get_unchecked(name)?));
            variables.collect::<Outcome<Vec<_>>>()
        };
        let of = |snapshot: &Snapshot| stridemap_candle::var_builder(snapshot, "", DType::F32, &Device::Cpu);
        let case = Case::new(name)
            .writes(self.bytes)
            .add(PREFETCHED, |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| {
                    let snapshot = open_mapped(&self.store)?.snapshot();
                    Tensor::prefetch_all(&load(&snapshot, &names)?, |_| ())?;
                    get_all(of(&snapshot))
                })?;
                Ok(())
            })
            .add("stridemap", |clock| {
                drop_pages_for_sure(&self.store)?;
                clock.time(|| get_all(of(&open_mapped(&self.store)?.snapshot()))).map(drop)
            })
            .add("candle's own, safetensors", |clock| {
                drop_pages_for_sure(&self.file)?;
                clock.time(|| {
                    // SAFETY: nothing writes the file while it is mapped.
                    let builder = unsafe {
                        VarBuilder::from_mmaped_safetensors(&[&self.file], DType::F32, &Device::Cpu)?
                    };
                    get_all(builder)
                })?;
                Ok(())
            });
        bench.run(case)
    }

    /// Touches every page of the model again, through new mappings, after each contender has read its file from the
    /// disk in its own way: the page cache keeps the pages as they were read, small or huge.
    fn warm(&self, bench: &mut Bench) -> Outcome {
        let name = format!("{}, right after that", self.label);
        let faults_name = format!("{}, page faults", self.label);
        if !bench.wants(&name) && !bench.wants(&faults_name) {
            return Ok(());
        }
        let names = self.names();
        let (plain, theirs) =
            (|| (FORMATS[0].read)(&self.store, &names), || (FORMATS[1].read)(&self.file, &names));
        let ahead = || prefetched(&self.store, &names);
        let contenders: [(&str, &Path, Read<'_>, Read<'_>); 3] = [
            ("stridemap", &self.store, &plain, &plain),
            (PREFETCHED, &self.store, &ahead, &plain),
            (SAFETENSORS, &self.file, &theirs, &theirs),
        ];
        let faults: Vec<RefCell<Vec<f64>>> = contenders.iter().map(|_| RefCell::default()).collect();
        let (mut case, mut faults_case) =
            (Case::new(name).writes(self.bytes), Case::new(faults_name).unit(Unit::Calls));
        for ((label, path, read_cold, read_warm), faults) in contenders.into_iter().zip(&faults) {
            faults_case = faults_case.add_recorded(label);
            case = case.add(label, move |clock| {
                drop_pages_for_sure(path)?;
                read_cold()?;
                let before = page_faults()?;
                clock.time(read_warm)?;
                faults.borrow_mut().push(page_faults()? - before);
                Ok(())
            });
        }
        bench.run(case.at_most_times(1.5, SAFETENSORS))?;
        // The first round of a case is not counted.
        let rounds = faults.into_iter().map(|faults| faults.into_inner().split_off(1)).collect();
        bench.record(faults_case, rounds)
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

fn load(snapshot: &Snapshot, names: &[&str]) -> Outcome<Vec<Tensor>> {
    Ok(names.iter().map(|name| snapshot.load(name)).collect::<Result<_, _>>()?)
}

/// Reads the whole model ahead, and then touches each page.
fn prefetched(path: &Path, names: &[&str]) -> Outcome<f32> {
    let tensors = load(&open_mapped(path)?.snapshot(), names)?;
    Tensor::prefetch_all(&tensors, |_| ())?;
    let mut sum = 0.;
    for tensor in &tensors {
        sum += touch(tensor.as_slice()?);
    }
    Ok(sum)
}

/// Reads all storages of a store by pieces of 4 MiB, in the order of their names.
fn preads(path: &Path, thread_count: usize) -> Outcome {
    let files = fs::read_dir(path.join("storages"))?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = files.collect::<Outcome<_>>()?;
    files.sort();
    let files: Vec<File> = files.iter().map(File::open).collect::<Result<_, _>>()?;
    let mut pieces = Vec::new();
    for file in &files {
        let size = file.metadata()?.len();
        let starts = (0..size).step_by(PIECE_BYTES as usize);
        pieces.extend(starts.map(|start| (file, start, (size - start).min(PIECE_BYTES))));
    }
    let next = AtomicUsize::new(0);
    let read = || -> std::io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES as usize];
        while let Some((file, start, size)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            file.read_exact_at(&mut buffer[..*size as usize], *start)?;
        }
        Ok(())
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..thread_count).map(|_| scope.spawn(read)).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for result in results {
        result.map_err(|_| "a thread panicked")??;
    }
    Ok(())
}
