//! Python's safetensors with numpy: both libraries write the same tensors to the byte, in one file and in several.

use std::collections::BTreeMap;
use std::fs;

use stridemap::{DType, Tensor};
use stridemap_interop::ForeignFile;
use stridemap_interop::safetensors::Export;

use crate::place::{Place, logical};
use crate::support::{python, python_has, stdout};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/safetensors_files.py");

/// Returns the tensors of the Python script.
fn tensors() -> Vec<(String, Tensor)> {
    let dtypes = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::U32,
        DType::I32,
        DType::U64,
        DType::I64,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::C64,
    ];
    let filled = dtypes.map(|dtype| {
        let mask = if dtype == DType::Bool { 1 } else { 255 };
        let bytes: Vec<u8> = (0..12 * dtype.itemsize()).map(|i| ((i * 37) & mask) as u8).collect();
        (format!("{} λ", dtype.name()), Tensor::from_bytes(dtype, &[3, 4], &bytes).unwrap())
    });
    let scalar = ("scalar".to_owned(), Tensor::from_vec(vec![-0.0f64], &[]).unwrap());
    let none = ("none".to_owned(), Tensor::zeros(DType::I16, &[2, 0, 3]).unwrap());
    filled.into_iter().chain([scalar, none]).collect()
}

#[test]
fn python_and_rust_read_each_others_safetensors_to_the_bit() {
    if !python_has("numpy, safetensors") {
        return;
    }
    let place = Place::new();
    let dir = place.dir.path().to_str().unwrap().to_owned();
    stdout(&python(&[SCRIPT, "write", &dir]));
    for name in ["python.safetensors", "python.safetensors.index.json"] {
        let file = ForeignFile::open(place.path(name)).unwrap();
        assert_eq!(file.tensors().count(), tensors().len());
        assert_eq!(file.attributes()["format"], "np");
        place.import(&place.path(name)).unwrap();
        for (name, tensor) in tensors() {
            assert_eq!(logical(&file.load(&name).unwrap()), logical(&tensor), "{name}");
            assert_eq!(logical(&place.store.load(&name).unwrap()), logical(&tensor), "{name}");
        }
    }
    assert_eq!(place.store.names().unwrap().len(), tensors().len());

    let all: Vec<_> = place.store.snapshot().iter_loaded("").unwrap().map(Result::unwrap).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "np".to_owned())]);
    let options = Export::new().metadata(&metadata);
    let path = place.path("rust.safetensors");
    options.write(&path, &all, |_| ()).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(place.path("python.safetensors")).unwrap(), "other bytes");
    options.max_shard_bytes(150).write(&path, &all, |_| ()).unwrap();
    print!("{}", stdout(&python(&[SCRIPT, "check", &dir])));
}
