//! The code that created the good stores, with the version of the library at that time. Their expected content is
//! beside them, and the Python reader reads it too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use num_complex::Complex;
use serde_json::{Value, json};
use stridemap::{
    DType, ExternalFiles, Index, Snapshot, StorageInfo, StorageKind, Store, StoreOptions, Tensor, TensorInfo,
};
use stridemap_interop::npy;

use super::hex;
use crate::harness::{fast, filled, open_mapped};

type Recipe = (&'static str, &'static str, fn(&Path));

pub(super) const RECIPES: [Recipe; 17] = [
    ("empty", "no tensor was ever saved", |path| drop(Store::create(path).unwrap())),
    ("emptied", "all tensors were removed again: the ids go on", emptied),
    ("dtypes", "a tensor of each dtype", dtypes),
    ("views", "many headers on one storage", views),
    ("names", "names of every odd kind, which are data and never paths", names),
    ("dim_names", "dimensions with names, all, some and none", dim_names),
    ("attributes", "text by key", attributes),
    ("scopes", "attributes of tensors, of prefixes, and of names that no tensor has", scopes),
    ("table", "a table under a manifest with changes and removals", table),
    ("grown", "a storage to which rows were appended, with room reserved", grown),
    ("chunked", "a storage of a full chunk and five bytes, appended to after the first", chunked),
    ("mutable", "storages that are changed in place", mutable),
    ("live", "storages that are changed by atomics, of each access size", live),
    (
        "external",
        "a file that is not the store's, beside it; its stamp is another wherever it is copied to",
        external,
    ),
    ("garbage", "storages that lost their last name while a reader was on an older generation", garbage),
    ("foreign_files", "files of others, and a mark of commits without syncs", foreign_files),
    ("tags", "generations that tags keep, one restored in part, and a table of tags and garbage", tags),
];

fn counted(dtype: DType, size: &[usize]) -> Tensor {
    let count = size.iter().product::<usize>() * dtype.itemsize();
    let mask = if dtype == DType::Bool { 1 } else { 255 };
    let bytes: Vec<u8> = (0..count).map(|i| (i * 37 + 11) as u8 & mask).collect();
    Tensor::from_bytes(dtype, size, &bytes).unwrap()
}

fn emptied(path: &Path) {
    let store = Store::create(path).unwrap();
    store.save("x", &counted(DType::F32, &[3])).unwrap();
    store.remove("x").unwrap();
    store.gc().unwrap();
}

fn dtypes(path: &Path) {
    let store = Store::create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for &dtype in DType::ALL {
        txn.save(dtype.name(), &counted(dtype, &[2, 3])).unwrap();
    }
    let special = [f32::NAN, -0., f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 2.];
    txn.save("special", &Tensor::from_vec(special.to_vec(), &[5]).unwrap()).unwrap();
    let complex = Complex::new(f64::NAN, -1.5);
    txn.save("special complex", &Tensor::from_vec(vec![complex], &[]).unwrap()).unwrap();
    txn.commit().unwrap();
}

fn views(path: &Path) {
    let store = Store::create(path).unwrap();
    store.save("base", &Tensor::from_vec((0..24i32).collect(), &[4, 6]).unwrap()).unwrap();
    let base = store.load("base").unwrap();
    let mut txn = store.begin().unwrap();
    for (name, view) in [
        ("transposed", base.t()),
        ("reversed", base.flip([0, 1])),
        ("stepped", base.slice(1, None, None, -2)),
        ("broadcast", base.select(0, 1).and_then(|row| row.expand([3, 6]))),
        ("tied", Ok(base.clone())),
        ("no elements", base.narrow(0, 2, 0)),
        ("no elements, large", base.narrow(0, 0, 0).and_then(|none| none.expand([1i64 << 40, 0, 6]))),
        ("scalar", base.index([Index::At(3), Index::At(-1)])),
        ("odd strides", base.as_strided([1, 4, 1], [999, 6, -77], 5)),
        ("overlapping", base.as_strided([20, 5], [1, 1], 0)),
        ("diagonal", base.as_strided([4], [7], 0)),
        ("rank 64", base.as_strided([1; 64], [1; 64], 23)),
        ("as bytes", base.view_dtype(DType::U8)),
    ] {
        txn.save_view(name, &view.unwrap()).unwrap();
    }
    txn.commit().unwrap();
    store.save("nothing of its own", &counted(DType::F64, &[0, 3])).unwrap();
}

fn names(path: &Path) {
    let store = Store::create(path).unwrap();
    let long = "n".repeat(4096);
    let names = [
        "../x",
        "../../etc/passwd",
        "/etc/passwd",
        ".",
        "..",
        "/",
        "a/../b",
        "FORMAT",
        "meta/0000000000000002.man",
        " ",
        "a b\n",
        "\t",
        "\u{1b}[1m",
        "\u{7f}",
        "\"quoted\"",
        "odd [name]",
        "x.t()",
        "-x",
        "--help",
        "'",
        "\\",
        "é",
        "e\u{301}",
        "λ/权重 🦀",
        "\u{202e}txet",
        "\u{feff}",
        "\u{10ffff}",
        &long,
    ];
    let mut txn = store.begin().unwrap();
    txn.save(names[0], &Tensor::from_vec(vec![7u8], &[1]).unwrap()).unwrap();
    let saved = txn.load(names[0]).unwrap();
    for name in &names[1..] {
        txn.save_view(name, &saved).unwrap();
    }
    txn.commit().unwrap();
}

fn dim_names(path: &Path) {
    let store = Store::create(path).unwrap();
    let plain = counted(DType::I16, &[2, 3]);
    let longest = "d".repeat(255);
    store.save("all", &plain.refine_names(&["row", "_Column2"]).unwrap()).unwrap();
    store.save("some", &plain.refine_names(&[None, Some("x")]).unwrap()).unwrap();
    store.save("long", &plain.refine_names(&[longest.as_str(), "b"]).unwrap()).unwrap();
    store.save("none", &plain).unwrap();
}

fn attributes(path: &Path) {
    let store = Store::create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for (key, value) in [
        ("author", "Ada"),
        ("empty", ""),
        ("ключ", "a\0b\n\u{1b}"),
        ("../x", "data"),
        ("json", "{\"a\":[1]}"),
    ] {
        txn.set_attribute("", key, value).unwrap();
    }
    txn.commit().unwrap();
}

fn scopes(path: &Path) {
    let store = Store::create(path).unwrap();
    store.save("encoder.weight", &counted(DType::F32, &[2])).unwrap();
    let mut txn = store.begin().unwrap();
    for (scope, key, value) in [
        ("", "format", "pt"),
        ("encoder.", "format", "np"),
        ("encoder.", "license", "MIT"),
        ("encoder.weight", "scale", "0.5"),
        ("no tensor", "ключ", "a\0b\n\u{1b}"),
    ] {
        txn.set_attribute(scope, key, value).unwrap();
    }
    txn.commit().unwrap();
}

fn table(path: &Path) {
    let store = Store::create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 0..70u8 {
        txn.save(&format!("row.{i}"), &Tensor::from_vec(vec![i, i ^ 255], &[2]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    txn.remove("row.3").unwrap();
    txn.save("row.5", &Tensor::from_vec(vec![0.5f32], &[]).unwrap()).unwrap();
    txn.rename("row.7", "moved").unwrap();
    let row = txn.load("row.9").unwrap();
    txn.save_view("a view", &row.flip([0]).unwrap()).unwrap();
    txn.commit().unwrap();
    store.save("own", &counted(DType::I64, &[2])).unwrap();
    store.remove("own").unwrap();
}

fn grown(path: &Path) {
    let store = Store::create(path).unwrap();
    store.create_growable("log", DType::F32, &[1, 2], 1000).unwrap();
    store.save_view("first", &store.load("log").unwrap()).unwrap();
    for batch in 1..4u8 {
        let rows = vec![f32::from(batch); 4];
        store.append("log", &Tensor::from_vec(rows, &[2, 2]).unwrap()).unwrap();
    }
}

/// The storage file is not kept: a reader generates its bytes again, as `filled` in the expected content says.
fn chunked(path: &Path) {
    let store = Store::create(path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    for count in [1000, (1 << 20) - 1000, 5] {
        store.append("x", &filled(count, 7u8)).unwrap();
    }
    let x = store.load("x").unwrap();
    store.save_view("across", &x.narrow(0, (1 << 20) - 3, 6).unwrap()).unwrap();
    store.rename("x", "whole").unwrap();
    store.remove("whole").unwrap();
}

fn mutable(path: &Path) {
    let store = Store::create(path).unwrap();
    let x = store.create_tensor("x", DType::I64, &[2, 3], StorageKind::Mutable).unwrap();
    x.select(1, 1).unwrap().lock_exclusive().unwrap().add_(-5).unwrap().flush().unwrap();
    store.save_view("column", &x.select(1, 1).unwrap()).unwrap();
    let _ = store.create_tensor("of no elements", DType::F16, &[0], StorageKind::Mutable).unwrap();
}

fn live(path: &Path) {
    Store::create(path).unwrap();
    let store = open_mapped(path);
    for (name, dtype) in [("1", DType::U8), ("2", DType::I16), ("4", DType::F32), ("8", DType::I64)] {
        let _ = store.create_tensor(name, dtype, &[3], StorageKind::Live).unwrap();
    }
    let last = store.load("8").unwrap().as_live::<i64>().unwrap();
    last.set([1], i64::MIN).unwrap();
    last.flush().unwrap();
    store.save_view("reversed", &store.load("8").unwrap().flip([0]).unwrap()).unwrap();
}

fn external(path: &Path) {
    let file = path.with_file_name("beside.npy");
    npy::Export::new().write(&file, &counted(DType::F32, &[3, 2]), |_| ()).unwrap();
    let store = StoreOptions::new().external(ExternalFiles::Beside).create(path).unwrap();
    stridemap_interop::adopt(&store, &file, "").unwrap();
    store.rename("beside", "x").unwrap();
    store.save_view("t", &store.load("x").unwrap().t().unwrap()).unwrap();
}

fn garbage(path: &Path) {
    let store = Store::create(path).unwrap();
    store.save("x", &counted(DType::U8, &[3])).unwrap();
    let older = store.snapshot();
    store.save("x", &counted(DType::U8, &[5])).unwrap();
    store.save("y", &counted(DType::U8, &[2])).unwrap();
    store.remove("x").unwrap();
    assert!(!path.join("meta/0000000000000002.man").exists() || older.contains("x").unwrap());
    // Never dropped, as in a killed process.
    std::mem::forget(older);
}

fn tags(path: &Path) {
    let store = Store::create(path).unwrap();
    store.create_growable("rows", DType::I16, &[0], 0).unwrap();
    store.append("rows", &counted(DType::I16, &[3])).unwrap();
    store
        .write(|txn| {
            txn.save("x", &counted(DType::F32, &[3]))?;
            txn.set_attribute("x", "unit", "m")?;
            txn.message("the first");
            txn.tag("v1")
        })
        .unwrap();
    store.append("rows", &counted(DType::I16, &[4])).unwrap();
    store.remove("x").unwrap();
    // Enough for a table.
    store.write(|txn| (0..70).try_for_each(|i| txn.tag(&format!("same.{i}")))).unwrap();
    store.save("y", &counted(DType::U8, &[5])).unwrap();
    let v1 = store.at("v1").unwrap();
    store.write(|txn| txn.restore(&v1, "x")).unwrap();
    store.remove("rows").unwrap();
    store.untag("same.7").unwrap();
}

fn foreign_files(path: &Path) {
    let store = fast().create(path).unwrap();
    store.save("x", &counted(DType::U8, &[3])).unwrap();
    fs::create_dir(path.join("lost+found")).unwrap();
    for file in [
        "lost+found/#1234",
        "README.txt",
        "storages/.stage-abc",
        "storages/00000000000000ff.bin",
        "storages/1.bin",
        "storages/0000000000000001.BIN",
        "meta/.stage-xyz",
        "meta/7.man",
        "meta/0000000000000009.man~",
        "meta/0000000000000009.his",
        "meta/0000000000000009.tab",
        "generations/0000000000000009.man",
        "generations/0000000000000009.tab",
    ] {
        fs::write(path.join(file), "of others").unwrap();
    }
    assert!(path.join("UNSYNCED").exists());
}

/// Returns the content of a store, for readers to compare with.
pub(super) fn describe(name: &str, about: &str, path: &Path) -> Value {
    let store = StoreOptions::new().external(ExternalFiles::Beside).open(path).unwrap();
    let mut described = content(&store.snapshot());
    let more: BTreeMap<&str, Value> = if name == "chunked" {
        let bytes = json!({"byte": 7, "length_bytes": (1 << 20) + 5});
        BTreeMap::from([("filled", json!({"store/storages/0000000000000001.bin": bytes}))])
    } else {
        BTreeMap::new()
    };
    for tag in store.tags().unwrap() {
        described["tags"][tag.name.as_str()] = tag.generation.into();
        described["tagged"][tag.generation.to_string()] = content(&store.at(tag.name.as_str()).unwrap());
    }
    described["about"] = about.into();
    for (key, value) in more {
        described[key] = value;
    }
    described
}

/// Returns everything in a snapshot, with each tensor's elements in row-major order.
pub(super) fn content(snapshot: &Snapshot) -> Value {
    let of_tensor = |info: stridemap::Result<TensorInfo>| {
        let info = info.unwrap();
        let tensor = snapshot.load(&info.name).unwrap();
        json!({
            "name": info.name, "dtype": info.header.dtype().name(), "size": info.header.size(),
            "stride": info.header.stride(), "storage_offset": info.header.storage_offset(), "storage": format!("{:016x}", info.storage_id),
            "dim_names": tensor.names(), "bytes": hex(&tensor.to_bytes().unwrap()),
        })
    };
    let of_storage = |storage: stridemap::Result<StorageInfo>| {
        let storage = storage.unwrap();
        json!({
            "id": format!("{:016x}", storage.id), "kind": storage.kind.to_string(), "size_bytes": storage.size_bytes,
            "offset_bytes": storage.offset_bytes, "tensor_count": storage.tensor_count,
        })
    };
    let tensors: Vec<Value> = snapshot.iter_tensors("").unwrap().map(of_tensor).collect();
    let storages: Vec<Value> = snapshot.storages().map(of_storage).collect();
    let mut content = json!({
        "generation": snapshot.generation(), "attributes": snapshot.attributes(""), "tensors": tensors, "storages": storages,
    });
    for ((scope, key), value) in snapshot.all_attributes().iter().filter(|((scope, _), _)| !scope.is_empty())
    {
        content["attributes_of"][scope][key] = value.as_str().into();
    }
    content
}
