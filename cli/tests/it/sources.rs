//! The `info`, `ls` and `show` commands on files in other formats.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::Dir;

/// Two tensors, not in order of name, and text.
const HEADER: &str = concat!(
    r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"#,
    r#""b [0]":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}"#
);

fn with_file() -> Dir {
    let dir = Dir::empty();
    let elements = [&1.5f32.to_le_bytes()[..], &(-2f32).to_le_bytes(), &7i64.to_le_bytes()].concat();
    dir.write_safetensors("m.safetensors", HEADER, &elements);
    dir
}

/// Returns the checkpoints that PyTorch wrote, except those that must be refused.
pub(crate) fn checkpoints() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/tests/data/pt");
    let files = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let is_good = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".pt") && !name.starts_with("hostile")
    };
    let mut files: Vec<PathBuf> = files.filter(is_good).collect();
    files.sort();
    assert!(files.len() > 4, "{files:?}");
    files
}

#[test]
fn inspect_json_of_a_file_has_the_keys_of_a_store_without_uuid_and_generation() {
    let dir = with_file();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let [file, store] = [&dir, &Dir::with_store()].map(|dir| {
        let name = if dir.path("s.smap").exists() { "s.smap" } else { "m.safetensors" };
        dir.json(&["info", "--all", name])
    });
    assert_eq!(keys(&file), keys(&store));
    for part in ["/store", "/store/dtypes/0", "/tensors/0", "/storages/0"] {
        assert_eq!(keys(file.pointer(part).unwrap()), keys(store.pointer(part).unwrap()), "{part}");
    }
    assert_eq!((&file["store"]["uuid"], &file["store"]["generation"]), (&Value::Null, &Value::Null));
    let expected = json!({
        "id": "0000000000000001", "kind": "external", "size_bytes": 16, "file": "m.safetensors",
        "offset_bytes": 8 + HEADER.len(), "tensor_count": 2,
    });
    assert_eq!(file["storages"], json!([expected]));
}

#[test]
fn inspect_of_a_file_prints_its_format() {
    let text = with_file().on_terminal(100, &["info", "--all", "m.safetensors"]);
    insta::assert_snapshot!(text, @r"
    path        m.safetensors
    format      safetensors
    tensors     2, 3 parameters, 16 B
    storages    1, 16 B

    name     dtype    size    stride  offset  storage
    'b [0]'  int64    []      []           1  0000000000000001
    w        float32  [2, 1]  [1, 1]       0  0000000000000001

    storage           kind      bytes  file           offset  tensors
    0000000000000001  external     16  m.safetensors     152        2

    attributes
      format = pt
    ");
}

#[test]
fn ls_of_a_file_is_sorted_and_accepts_a_glob() {
    let dir = with_file();
    assert_eq!(dir.stdout(&["ls", "-l", "m.safetensors"]), "'b [0]'\tint64\t[]\t8\nw\tfloat32\t[2, 1]\t8\n");
    assert_eq!(dir.stdout(&["ls", "m.safetensors", "b*"]), "b [0]\n");
    assert_eq!(dir.run(&["ls", "m.safetensors", "x"]).code, Some(1));
    let json = dir.stdout(&["ls", "m.safetensors", "w", "--json"]);
    assert!(json.starts_with(r#"{"v":1,"name":"w","dtype":"float32","size":[2,1],"#), "{json}");
}

#[test]
fn show_of_a_file_accepts_every_expression() {
    let dir = with_file();
    assert_eq!(dir.stdout(&["show", "m.safetensors", "w.t().flip(1)"]), "tensor([[-2.0000,  1.5000]])\n");
    assert_eq!(dir.stdout(&["show", "m.safetensors", "'b [0]'[None]"]), "tensor([7])\n");
    assert_eq!(dir.stdout(&["show", "m.safetensors", "w.T[0, 1:]"]), "tensor([-2.])\n");
    let refusal = dir.refusal(&["show", "m.safetensors", "v"]);
    assert!(refusal.starts_with("m.safetensors: load \"v\": no tensor with this name"), "{refusal}");
}

#[test]
fn tensor_without_a_name_gets_that_of_its_file() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "xy.npy", "points_t"]);
    assert_eq!(dir.stdout(&["ls", "-l", "xy.npy"]), "xy\tfloat32\t[2, 3]\t24\n");
    assert_eq!(dir.stdout(&["show", "xy.npy", "xy[1]"]), "tensor([4., 1., 5.])\n");
}

#[test]
fn names_and_headers_of_a_file_match_those_of_an_import() {
    let dir = Dir::with_store();
    for file in ["m.safetensors", "m.npz"] {
        dir.messages(&["export", "s.smap", file]);
    }
    dir.messages(&["export", "s.smap", "m.npy", "points"]);
    let mut files: Vec<String> = ["m.safetensors", "m.npz", "m.npy"].map(String::from).to_vec();
    files.extend(checkpoints().iter().map(|path| path.to_str().unwrap().to_owned()));
    for (index, file) in files.iter().enumerate() {
        let store = format!("{index}.smap");
        dir.messages(&["import", file, &store]);
        let listed = dir.stdout(&["ls", "-l", file]);
        assert!(!listed.is_empty(), "{file}");
        assert_eq!(dir.stdout(&["ls", "-l", &store]), listed, "{file}");
        let compared = dir.stdout(&["diff", file, &store]);
        assert!(compared.starts_with("equal: ") && !compared.contains("attribute"), "{file}: {compared}");
    }
}

#[test]
fn path_that_is_neither_a_store_nor_a_supported_file_is_refused() {
    let dir = Dir::empty();
    dir.write("junk", b"text");
    fs::create_dir(dir.path("photos")).unwrap();
    for (path, message) in [
        ("none", "open none: no such file or store"),
        ("junk", "read junk: not a tensor file (supported: .safetensors, .npy, .npz, .pt, .pth, .gguf)"),
        ("photos", "open photos: not a stridemap store: it has no FORMAT file"),
        ("/dev/null", "open /dev/null: not a store or a regular file"),
    ] {
        for args in [
            &["info", "--all", path][..],
            &["info", "--all", path, "--json"],
            &["ls", path],
            &["show", path, "x"],
            &["diff", path, path],
        ] {
            assert_eq!(dir.refusal(args), message);
        }
    }
}
