//! The file formats that stridemap is compared with: arrays of float32 by name, written and read back.

#[cfg(feature = "hdf5")]
mod hdf5;
pub(crate) mod heed;
mod npy;
mod safetensors;
mod stridemap;
mod zarr;
mod ztensor;

use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::bench::Bench;

pub(crate) struct Array {
    pub(crate) name: String,
    pub(crate) size: Vec<usize>,
    pub(crate) elements: Vec<f32>,
}

pub(crate) struct Format {
    pub(crate) label: &'static str,
    extension: &'static str,
    /// The most arrays that it can hold, or that it writes within seconds.
    pub(crate) most: usize,
    /// Writes all arrays to a path that does not exist, without a sync.
    pub(crate) write: fn(&Path, &[Array]) -> Outcome,
    /// Opens the file, and returns the sum of what [`touch`] returns for the arrays with these names.
    pub(crate) read: fn(&Path, &[&str]) -> Outcome<f32>,
}

/// All formats. The first is stridemap.
pub(crate) const FORMATS: &[Format] = &[
    stridemap::FORMAT,
    safetensors::FORMAT,
    ztensor::FORMAT,
    npy::FORMAT,
    zarr::FORMAT,
    #[cfg(feature = "hdf5")]
    hdf5::FORMAT,
    heed::FORMAT,
];

pub(crate) const LMDB: &Format = &heed::FORMAT;

impl Format {
    /// Returns a file with these arrays, which is written once per run.
    pub(crate) fn file(
        &self,
        bench: &Bench,
        name: &str,
        arrays: impl FnOnce() -> Vec<Array>,
    ) -> Outcome<PathBuf> {
        bench.kept(&format!("{name}.{}", self.extension), |path| (self.write)(path, &arrays()))
    }
}

/// Reads one element per page, and returns their sum.
pub(crate) fn touch(elements: &[f32]) -> f32 {
    elements.iter().step_by(1024).sum()
}

/// The elements of a small array: 256 bytes.
pub(crate) const SMALL: usize = 64;

/// Returns `count` arrays of 256 bytes.
pub(crate) fn small_arrays(count: usize) -> Vec<Array> {
    let array =
        |number| Array { name: name(number), size: vec![SMALL], elements: vec![number as f32; SMALL] };
    (0..count).map(array).collect()
}

/// Returns the name of a small array, as a model might have it.
pub(crate) fn name(number: usize) -> String {
    format!("layers.{:05}.block.{:02}.weight", number / 64, number % 64)
}

/// Returns a number below `count`. Successive ones are spread over all of them.
pub(crate) fn spread(number: usize, count: usize) -> usize {
    number.wrapping_mul(7_368_787) % count
}

/// Returns arrays with the names and sizes of all-MiniLM-L6-v2: 104 tensors, 87 MiB, sorted by name.
pub(crate) fn mini_lm() -> Vec<Array> {
    const HIDDEN: usize = 384;
    const WIDE: usize = 4 * HIDDEN;
    let mut sizes = vec![
        ("embeddings.position_ids".to_owned(), vec![1, 512]),
        ("embeddings.word_embeddings.weight".to_owned(), vec![30522, HIDDEN]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![512, HIDDEN]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, HIDDEN]),
        ("embeddings.LayerNorm.weight".to_owned(), vec![HIDDEN]),
        ("embeddings.LayerNorm.bias".to_owned(), vec![HIDDEN]),
        ("pooler.dense.weight".to_owned(), vec![HIDDEN, HIDDEN]),
        ("pooler.dense.bias".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..6 {
        let dense = [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", WIDE, HIDDEN),
            ("output.dense", HIDDEN, WIDE),
        ];
        for (module, rows, columns) in dense {
            sizes.push((format!("encoder.layer.{layer}.{module}.weight"), vec![rows, columns]));
            sizes.push((format!("encoder.layer.{layer}.{module}.bias"), vec![rows]));
        }
        for module in ["attention.output.LayerNorm", "output.LayerNorm"] {
            sizes.push((format!("encoder.layer.{layer}.{module}.weight"), vec![HIDDEN]));
            sizes.push((format!("encoder.layer.{layer}.{module}.bias"), vec![HIDDEN]));
        }
    }
    // As ztensor requires.
    sizes.sort();
    let fill = |(name, size): (String, Vec<usize>)| {
        let count = size.iter().product();
        Array { name, size, elements: (0..count).map(|at| at as f32).collect() }
    };
    sizes.into_iter().map(fill).collect()
}
