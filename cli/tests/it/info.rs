//! The `info` command.

use std::fs;

use serde_json::json;
use stridemap::{StorageKind, Store, Tensor};

use crate::harness::Dir;

/// Writes a file with 100,000 tensors in many modules, of many dtypes, with many attributes.
fn write_large(dir: &Dir) {
    let dtypes = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"];
    let attributes: Vec<String> =
        (0..50).map(|n| format!(r#""key {n}":"{}""#, "value ".repeat(100))).collect();
    let mut header = format!(r#"{{"__metadata__":{{{}}}"#, attributes.join(","));
    for n in 0..100_000 {
        let (part, dtype) = (n % 999, dtypes[n % dtypes.len()]);
        header +=
            &format!(r#","part{part}.{n}.w":{{"dtype":"{dtype}","shape":[0,{n}],"data_offsets":[0,0]}}"#);
    }
    header += "}";
    dir.write_safetensors("large.safetensors", &header, &[]);
}

#[test]
fn summary_of_a_hundred_thousand_tensors_fits_one_screen() {
    let dir = Dir::empty();
    write_large(&dir);
    for width in [40, 80, 140] {
        let text = dir.on_terminal(width, &["info", "large.safetensors"]);
        assert!((15..=24).contains(&text.lines().count()), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
    }
    let json = dir.json(&["info", "large.safetensors"]);
    assert_eq!(json["store"]["tensor_count"], json!(100_000));
    assert_eq!(json["store"]["modules"].as_array().unwrap().len(), 999);
    assert_eq!(json["attributes"].as_object().unwrap().len(), 50);
    assert_eq!((&json["tensors"], &json["storages"]), (&json!(null), &json!(null)));
}

/// Creates a store with two modules, and attributes of the store and of a module.
fn with_modules() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let tensor = |rows: usize| Tensor::from_vec(vec![0f32; rows * 100], &[rows, 100]).unwrap();
    for (name, rows) in [("model.encoder.0.w", 5), ("model.encoder.1.w", 5), ("model.head.w", 20)] {
        txn.save(name, &tensor(rows)).unwrap();
    }
    txn.set_attribute("", "format", "pt").unwrap();
    txn.set_attribute("model.head.", "unit", "m").unwrap();
    txn.commit().unwrap();
    dir
}

#[test]
fn summary_shows_totals_modules_and_attributes() {
    let dir = with_modules();
    let text = dir.on_terminal(80, &["info", "s.smap"]).replace(&dir.store().uuid(), "UUID");
    insta::assert_snapshot!(text, @r"
    path        s.smap
    format      store, generation 2
    uuid        UUID
    tensors     3, 3,000 parameters, 11.72 KiB
    storages    1, 11.81 KiB

                               tensors  parameters      bytes
    dtypes      float32              3       3,000  11.72 KiB
    modules     model.head           1       2,000   7.81 KiB
                model.encoder        2       1,000   3.91 KiB
    attributes  format = pt
                unit of model.head. = m
    ");
    let json = dir.json(&["info", "s.smap"]);
    assert_eq!(json["attributes"], json!({ "format": "pt" }));
    assert_eq!(json["attributes_of"], json!({ "model.head.": { "unit": "m" } }));
    assert_eq!(
        json["store"]["modules"][1],
        json!({ "name": "model.encoder", "tensor_count": 2, "numel": 1000, "nbytes": 4000 })
    );
}

#[test]
fn inspect_is_another_name_of_info_full() {
    let dir = with_modules();
    for option in [&[][..], &["--json"]] {
        let full = dir.stdout(&[&["info", "s.smap", "--all"], option].concat());
        assert_eq!(dir.stdout(&[&["info", "--all", "s.smap"], option].concat()), full);
    }
}

#[test]
fn warnings_name_what_needs_attention() {
    let dir = Dir::with_store();
    let store = dir.store();
    let empty = Tensor::from_vec(Vec::<f32>::new(), &[0]).unwrap();
    store.save("empty", &empty).unwrap();
    store.save("tab\there", &store.load("points").unwrap()).unwrap();
    store.write(|txn| txn.save_as("live", &store.load("points").unwrap(), StorageKind::Live)).unwrap();
    dir.messages(&["export", "s.smap", "m.safetensors", "points"]);
    dir.messages(&["import", "m.safetensors", "s.smap", "--prefix", "ext.", "--in-place"]);
    fs::remove_file(dir.path("m.safetensors")).unwrap();
    let json = dir.json(&["info", "s.smap"]);
    let warnings: Vec<&str> =
        json["store"]["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(warnings[0].starts_with("1 file that was imported in place is missing or too short: "), "{json}");
    assert_eq!(
        warnings[1..],
        [
            "1 tensor has no elements: empty",
            r"1 name has hidden characters: 'tab\there'",
            "1 mutable or live storage without checksums: damage to the elements is not detected",
        ]
    );
    let text = dir.on_terminal(80, &["info", "s.smap"]);
    assert!(text.contains("\nwarnings    1 file that was imported in place"), "{text}");
}

#[test]
fn summary_in_a_pipe_has_tabs_and_plain_numbers() {
    let dir = with_modules();
    dir.messages(&["view", "s.smap", "model.head.w", "tied"]);
    let text = dir.stdout(&["info", "s.smap"]);
    assert!(text.contains("\nparameters\t3000\nbytes\t12000\nparameters with views\t5000\n"), "{text}");
    assert!(text.contains("\ndtypes\tfloat32\t4\t5000\t20000\n"), "{text}");
    assert!(text.lines().all(|line| line.contains('\t')), "{text}");
}

#[test]
fn summary_has_tensors_outside_of_modules_and_says_that_views_are_counted() {
    let dir = with_modules();
    dir.store().save("scale", &[0f32; 8]).unwrap();
    dir.store().save("model", &[0f32; 2]).unwrap();
    let text = dir.on_terminal(80, &["info", "s.smap"]);
    assert!(text.contains("tensors     5, 3,010 parameters, 11.76 KiB\n"), "{text}");
    assert!(text.contains("\nmodules     model                3       3,000  11.72 KiB\n"), "{text}");
    assert!(text.contains("\n            other tensors        2          10       40 B\n"), "{text}");
    dir.messages(&["view", "s.smap", "model.head.w", "model.tied"]);
    let text = dir.on_terminal(80, &["info", "s.smap"]);
    assert!(
        text.contains("tensors     6, 3,010 parameters, 11.76 KiB (with views: 5,010, 19.57 KiB)\n"),
        "{text}"
    );
}

#[test]
fn warnings_are_wrapped_on_a_narrow_terminal() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("empty", &Tensor::from_vec(Vec::<f32>::new(), &[0, 2]).unwrap()).unwrap();
    let text = dir.on_terminal(40, &["info", "s.smap"]);
    assert!(text.contains("\nwarnings    1 tensor has no elements:\n            empty\n"), "{text}");
}
