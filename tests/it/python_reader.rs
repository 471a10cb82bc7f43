//! The Python reader, written only from the specification of the format, on stores that this library wrote.
//!
//! Skipped, with the reason printed, if python3 or numpy is missing. `STRIDEMAP_REQUIRE_PYTHON` turns that into a
//! failure.

use std::fs;
use std::path::Path;

use serde_json::Value;
use stridemap::{DType, Index, OnExisting, Store, Tensor, TensorInfo};

use crate::harness::{fast, new_path};
use crate::support::{as_json, python, python_has, stdout};

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/format/reader.py");
const CHECK_VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/format/vectors/check.py");
const CHECK_REMOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/format/vectors/check_remotes.py");

/// Prints every tensor of a store with its elements, using the reader's functions.
const PRINT_ALL: &str = "
import sys
sys.path.insert(0, sys.argv[1])
import reader
store = reader.Store(sys.argv[2])
for name in store.names():
    reader.print_tensor(store, name)
";

/// Creates a store with every dtype, views with negative strides and offsets, tensors of no elements and of one, both
/// in a table and in the manifest.
fn varied_store(path: &Path) -> Store {
    let store = fast().create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for &dtype in DType::ALL {
        let bytes: Vec<u8> = (0..12 * dtype.itemsize())
            .map(|i| (i * 37) as u8 & if dtype == DType::Bool { 1 } else { 255 })
            .collect();
        txn.save(dtype.name(), &Tensor::from_bytes(dtype, &[3, 4], &bytes).unwrap()).unwrap();
    }
    for i in 0..80i16 {
        txn.save(&format!("row.{i}"), &Tensor::from_vec(vec![i, -i, 7], &[3]).unwrap()).unwrap();
    }
    txn.save("large", &Tensor::from_vec((0..700_000i32).collect(), &[700, 1000]).unwrap()).unwrap();
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    let large = store.load("large").unwrap();
    let corner = large.slice(0, None, None, -350).unwrap().slice(1, Some(3), None, 300).unwrap();
    txn.save_view("corner", &corner.t().unwrap()).unwrap();
    txn.save_view("element", &large.index([Index::At(-1), Index::At(-1)]).unwrap()).unwrap();
    txn.save_view("nothing", &large.narrow(0, 5, 0).unwrap()).unwrap();
    for &dtype in DType::ALL {
        let view = store.load(dtype.name()).unwrap().flip([1]).unwrap().t().unwrap();
        txn.save_view(&format!("{dtype}, flipped λ"), &view).unwrap();
    }
    txn.remove("row.7").unwrap();
    txn.save("row.8", &Tensor::from_vec(vec![0.5f32], &[]).unwrap()).unwrap();
    txn.commit().unwrap();
    store
}

fn assert_header(said: &Value, info: &TensorInfo) {
    assert_eq!(said["name"], info.name);
    assert_eq!(said["dtype"], info.header.dtype().name());
    assert_eq!(said["size"], serde_json::json!(info.header.size()), "{}", info.name);
    assert_eq!(said["stride"], serde_json::json!(info.header.stride()), "{}", info.name);
    assert_eq!(said["storage_offset"], info.header.storage_offset(), "{}", info.name);
    assert_eq!(said["storage"], format!("{:016x}", info.storage_id), "{}", info.name);
}

#[test]
fn python_reads_every_tensor_that_rust_wrote() {
    if !python_has("numpy") {
        return;
    }
    let (_dir, path) = new_path();
    let store = varied_store(&path);
    let path = path.to_str().unwrap();
    let snapshot = store.snapshot();
    let infos: Vec<TensorInfo> = snapshot.iter_tensors("").unwrap().map(Result::unwrap).collect();

    let listed = stdout(&python(&[READER, path]));
    assert_eq!(listed.lines().count(), infos.len());
    for (line, info) in listed.lines().zip(&infos) {
        assert_header(&serde_json::from_str(line).unwrap(), info);
    }

    let printed = stdout(&python(&["-c", PRINT_ALL, concat!(env!("CARGO_MANIFEST_DIR"), "/format"), path]));
    assert_eq!(printed.lines().count(), infos.len());
    for (line, info) in printed.lines().zip(&infos) {
        let said: Value = serde_json::from_str(line).unwrap();
        assert_header(&said, info);
        let tensor = store.load(&info.name).unwrap();
        let expected: Vec<Value> = if said.get("bits").is_some() {
            let bytes = tensor.to_bytes().unwrap();
            let elements = bytes.chunks(info.header.dtype().itemsize());
            elements
                .map(|e| e.iter().rev().fold(0u64, |high, &byte| high << 8 | u64::from(byte)).into())
                .collect()
        } else {
            tensor.to_scalars().unwrap().into_iter().map(as_json).collect()
        };
        let key = if said.get("bits").is_some() { "bits" } else { "values" };
        assert_eq!(said[key], Value::from(expected), "{}", info.name);
    }
    println!("python read {} tensors as rust does", infos.len());
}

#[test]
fn python_verifies_a_store_and_finds_a_changed_byte() {
    if !python_has("numpy, xxhash") {
        return;
    }
    let (_dir, path) = new_path();
    drop(varied_store(&path));
    let verify = || python(&[READER, "--verify", path.to_str().unwrap()]);
    assert_eq!(stdout(&verify()), "");
    let file = path.join("storages/0000000000000001.bin");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let output = verify();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("F-25"));
}

/// There are more tags than a manifest lists, so the history has a table.
#[test]
fn python_reads_at_each_tag_what_rust_tagged() {
    if !python_has("numpy, xxhash") {
        return;
    }
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    for step in 0..100i32 {
        let saved = store.write(|txn| -> stridemap::Result<()> {
            txn.on_existing(OnExisting::Replace);
            txn.save("x", &step)?;
            txn.message(&format!("after {step} steps"));
            txn.tag(&format!("step{step:02}"))
        });
        saved.unwrap();
    }
    store.untag("step07").unwrap();
    store.restore(&store.at("step50").unwrap()).unwrap();
    assert!(!crate::history::files(&path, "meta", "his").is_empty());
    let kept = path.join(format!("generations/{:016x}.man", store.at("step00").unwrap().generation()));
    let path = path.to_str().unwrap();
    let verify = || python(&[READER, "--verify", path]);
    assert_eq!(stdout(&verify()), "");

    let listed = stdout(&python(&[READER, "--tags", path]));
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tags = store.tags().unwrap();
    assert_eq!((listed.len(), tags.len()), (99, 99));
    for (said, tag) in listed.iter().zip(&tags) {
        let expected =
            serde_json::json!({ "tag": tag.name, "generation": tag.generation, "message": tag.message });
        assert_eq!(*said, expected);
    }
    let value = |arguments: &[&str]| {
        let said: Value = serde_json::from_str(&stdout(&python(&[&[READER], arguments].concat()))).unwrap();
        said["values"].clone()
    };
    assert_eq!(value(&[path, "x"]), serde_json::json!([50]));
    for step in [0, 50, 99] {
        let tag = format!("step{step:02}");
        assert_eq!(value(&["--at", &tag, path, "x"]), serde_json::json!([step]), "{tag}");
    }
    let missing = python(&[READER, "--at", "step07", path]);
    assert!(String::from_utf8(missing.stderr).unwrap().contains("no tag is named 'step07'"));
    fs::remove_file(kept).unwrap();
    let damaged = verify();
    assert_eq!(damaged.status.code(), Some(1));
    assert!(String::from_utf8(damaged.stderr).unwrap().contains("F-19"));
}

#[test]
fn python_reads_the_golden_vectors() {
    if python_has("numpy, xxhash") {
        print!("{}", stdout(&python(&[CHECK_VECTORS])));
    }
}

#[test]
fn python_reads_remotes_as_it_reads_their_stores_and_finds_every_damaged_object() {
    if !python_has("blake3, numpy, xxhash") {
        return;
    }
    let (_dir, path) = new_path();
    drop(varied_store(&path));
    print!("{}", stdout(&python(&[CHECK_REMOTES, path.to_str().unwrap()])));
    print!("{}", stdout(&python(&[CHECK_REMOTES])));
}
