//! Files of PyTorch 2.15 with their contents according to PyTorch: `tests/data/pt`, and `tests/data/make_pt_files.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stridemap::{Store, TensorInfo};
use stridemap_interop::{FileFormat, ForeignFile, ForeignOptions};

use super::{data, refusal};
use crate::support::{as_json, temporary};

pub(super) fn checkpoints(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(data(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "pt")).collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

fn is_refused(path: &Path) -> bool {
    stem(path).starts_with("hostile_") || stem(path).starts_with("refused_")
}

/// Compares an attribute with the expected value. Text is compared directly, other values as JSON: `1e-05` and `1e-5`
/// are equal.
fn is_attribute(found: &str, said: &Value) -> bool {
    match said {
        Value::String(text) => text == found,
        said => serde_json::from_str::<Value>(found)
            .is_ok_and(|found| as_number(found) == as_number(said.clone())),
    }
}

fn assert_holds(store: &Store, said: &Value, file: &Path, stem: &str) {
    let named = |name: &str| if name.is_empty() { stem.to_owned() } else { name.to_owned() };
    let snapshot = store.snapshot();
    let infos: BTreeMap<String, TensorInfo> = snapshot
        .iter_tensors("")
        .unwrap()
        .map(Result::unwrap)
        .map(|info| (info.name.clone(), info))
        .collect();
    let lengths: BTreeMap<u64, u64> =
        snapshot.storages().map(Result::unwrap).map(|s| (s.id, s.size_bytes)).collect();
    let tensors = said["tensors"].as_object().unwrap();
    let names: Vec<String> = tensors.keys().map(|name| named(name)).collect();
    assert_eq!(infos.len(), names.len(), "{}: {names:?}", file.display());

    // Where each storage of the file is: in which storage of the store, and the bytes of it.
    let mut places: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = named(name);
        let info = &infos[&name];
        let place = format!("{}: {name}", file.display());
        assert_eq!(tensor["dtype"], info.header.dtype().name(), "{place}");
        assert_eq!(tensor["size"], serde_json::json!(info.header.size()), "{place}");
        assert_eq!(tensor["stride"], serde_json::json!(info.header.stride()), "{place}");
        let itemsize = info.header.dtype().itemsize() as u64;
        let length_elems = tensor["storage_numel"].as_u64().unwrap();
        let offset = tensor["storage_offset"].as_u64().unwrap();
        // In PyTorch, but not here, a tensor without elements may have an offset past the end.
        let offset = if info.header.numel() == 0 { offset.min(length_elems) } else { offset };
        let start_bytes = (info.header.storage_offset() as u64 - offset) * itemsize;
        let end_bytes = start_bytes + length_elems * itemsize;
        assert!(end_bytes <= lengths[&info.storage_id], "{place}");
        let found = (info.storage_id, start_bytes, end_bytes);
        assert_eq!(*places.entry(tensor["storage"].as_u64().unwrap()).or_insert(found), found, "{place}");
        if let Some(bytes) = tensor.get("bytes") {
            assert_eq!(*bytes, serde_json::json!(store.load(&name).unwrap().to_bytes().unwrap()), "{place}");
            continue;
        }
        let values = store.load(&name).unwrap().to_scalars().unwrap().into_iter().map(as_json);
        assert!(
            tensor["values"].as_array().unwrap().iter().cloned().map(as_number).eq(values.map(as_number)),
            "{place}"
        );
    }
    let mut places: Vec<_> = places.into_values().filter(|(_, start, end)| start < end).collect();
    places.sort_unstable();
    let are_apart = places.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1);
    assert!(are_apart, "{}: {places:?}", file.display());

    let found = snapshot.attributes("");
    let attributes = said["attributes"].as_object().unwrap();
    assert_eq!(found.len(), attributes.len(), "{}: {found:?}", file.display());
    for (name, said) in attributes {
        let found = &found[&named(name)];
        assert!(is_attribute(found, said), "{}: {name}: {found:?}, and {said}", file.display());
    }
}

/// Makes `1` and `1.0` equal.
fn as_number(value: Value) -> Value {
    match value.as_f64() {
        Some(x) if value.as_i64().is_none() && value.as_u64().is_none() => {
            if x.fract() == 0. && x.abs() < 1e15 { Value::from(x as i64) } else { Value::from(x) }
        }
        _ => value,
    }
}

fn import_all(folder: &str) -> usize {
    let files: Vec<_> = checkpoints(folder).into_iter().filter(|path| !is_refused(path)).collect();
    for path in &files {
        let dir = temporary();
        let place = dir.path().join("store.smap");
        let store = Store::create(&place).unwrap();
        assert_eq!(ForeignFile::open(path).unwrap().format(), FileFormat::PyTorch);
        stridemap_interop::import(&store, path, "").unwrap();
        drop(store);
        let store = Store::open(&place).unwrap();
        let said = serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
        assert_holds(&store, &said, path, stem(path));
        assert!(store.verify(|_| ()).unwrap().findings.is_empty());
        let file = ForeignFile::open(path).unwrap();
        for info in file.tensors() {
            let mut bytes = Vec::new();
            file.write_elements(&info.name, &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            assert!(
                bytes == file.load(&info.name).unwrap().to_bytes().unwrap(),
                "{}: {}",
                path.display(),
                info.name
            );
        }
    }
    files.len()
}

#[test]
fn checkpoints_are_imported_as_pytorch_describes_them() {
    assert_eq!(import_all("pt"), 11);
    assert_eq!(import_all("pt_more"), 24);
}

#[test]
fn anything_but_plain_tensors_is_refused_by_name() {
    for (name, part) in [
        ("complex", "\"inner\" calls builtins.complex, which is code"),
        ("conj", "\"inner\" has the \"conj\" bit set"),
        ("key", "\"inner\" has a tuple as a key"),
        ("layout", "calls torch.serialization._get_layout, which is code"),
        ("meta", "calls torch._utils._rebuild_meta_tensor_no_storage, which is code"),
        ("module", "calls torch.nn.modules.linear.Linear, which is code"),
        ("neg", "\"inner\" has the \"neg\" bit set"),
        ("quantized", "calls torch._utils._rebuild_qtensor, which is code"),
        ("slice", "calls builtins.slice, which is code"),
        ("sparse", "calls torch._utils._rebuild_sparse_tensor, which is code"),
        ("storage", "\"inner\" is a storage without a tensor"),
        ("subclass", "\"inner\" calls __main__.Wrapped, which is code"),
    ] {
        let path = data(&format!("pt_more/refused_{name}.pt"));
        let said = refusal(&path);
        assert!(said.contains(part), "{said}");
        let file = ForeignOptions::new().skip_unreadable(true).open(&path).unwrap();
        let skipped: Vec<&str> = file.skipped().iter().map(|skipped| skipped.name.as_str()).collect();
        assert_eq!(skipped, ["inner"], "{name}");
        assert_eq!(file.skipped()[0].reason.to_string(), said);
    }
}

#[test]
fn integers_keep_all_their_digits() {
    for layout in ["zip", "legacy"] {
        let file = ForeignFile::open(data(&format!("pt_more/plain_{layout}.pt"))).unwrap();
        let ints: Vec<&str> = (0..10).map(|i| file.attributes()[&format!("ints.{i}")].as_str()).collect();
        assert_eq!(
            ints[5..],
            [
                "-2147483648",
                "9223372036854775808",
                "-9223372036854775809",
                "18446744073709551615",
                "1267650600228229401496703205376",
            ]
        );
        assert_eq!(file.attributes()["size"], "[2,3]");
        assert_eq!(file.attributes()["floats.2"], "1e-05");
    }
}

#[test]
fn hostile_checkpoints_are_refused_and_leave_the_store_unchanged() {
    let said: Vec<String> =
        checkpoints("pt").iter().filter(|path| is_refused(path)).map(|p| refusal(p)).collect();
    assert_eq!(said.len(), 5);
    for (said, part) in said.iter().zip([
        "calls builtins.print, which is code",
        "calls builtins.print, which is code",
        "storage \"0\" has 8 bytes in the zip file, but 60 in the pickle",
        "but the file ends at byte 749",
        "does not end with an end record",
    ]) {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn views_of_a_checkpoint_share_its_storage() {
    for layout in ["zip", "legacy"] {
        let file = ForeignFile::open(data(&format!("pt/views_{layout}.pt"))).unwrap();
        let storages: Vec<_> = file.storages().collect();
        let counts: Vec<u64> = storages.iter().map(|storage| storage.tensor_count).collect();
        assert_eq!(counts, [4, 1], "{layout}");
    }
}
