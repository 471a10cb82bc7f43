//! The `stats` command.

use std::fs;

use serde_json::{Value, json};
use stridemap::{DType, Store, Tensor};

use crate::harness::{Dir, json_lines};

/// Creates a store with tensors that have something to notice.
pub(crate) fn odd_tensors() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let mut save = |name: &str, elements: Vec<f32>| {
        let size = [elements.len()];
        txn.save(name, &Tensor::from_vec(elements, &size).unwrap()).unwrap();
    };
    save("layer.2.weight", (0..100).map(|n| n as f32 - 20.).collect());
    save("layer.10.weight", vec![1., f32::NAN, f32::NAN, 3., f32::INFINITY]);
    save("layer.2.bias", vec![0.; 4]);
    save("layer.10.bias", vec![2.5; 4]);
    save("none", vec![]);
    txn.save("mask", &Tensor::from_vec(vec![true, false, false], &[3]).unwrap()).unwrap();
    txn.commit().unwrap();
    dir
}

#[test]
fn all_tensors_are_a_table_that_marks_what_is_odd() {
    insta::assert_snapshot!(odd_tensors().on_terminal(120, &["stats", "s.smap"]), @r"
    name             dtype    size     min   max     mean      std  histogram   notes
    layer.2.bias     float32  [4]        0     0        0        0           ▇  all zero
    layer.2.weight   float32  [100]    -20    79     29.5   29.011  ██████████
    layer.10.bias    float32  [4]      2.5   2.5      2.5        0           ▇  constant
    layer.10.weight  float32  [5]        1     3        2   1.4142  ▁        ▁  2 NaN, 1 inf
    mask             bool     [3]    False  True  0.33333  0.57735  ▅        ▁
    none             float32  [0]                                               empty
    ");
}

#[test]
fn one_view_has_details_and_a_histogram() {
    let text = odd_tensors().on_terminal(60, &["stats", "s.smap", "layer.2.weight[10:]"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 14 + 2 + 15 + 1, "{text}");
    insta::assert_snapshot!(lines[..18].join("\n"), @r"
    name    layer.2.weight[10:]
    dtype   float32
    size    [90]
    count   90
    zeros   1 (1.111 %)
    NaN     0
    inf     0
    -inf    0
    min     -10
    0.1 %   -9.911
    median  34.5
    99.9 %  78.911
    max     79
    mean    34.5
    std     26.125

        -10  6  ████████████████████████████████████████████████
    -4.0667  6  ████████████████████████████████████████████████
    ");
}

#[test]
fn details_say_where_the_first_nan_is() {
    let dir = odd_tensors();
    let text = dir.stdout(&["stats", "s.smap", "layer.10.weight"]);
    assert!(text.contains("\nNaN     2 (40.000 %), first at ["), "{text}");
}

#[test]
fn stats_selects_by_glob_prefix_name_and_expression_and_lists_a_tensor_once() {
    let dir = odd_tensors();
    let names = |args: &[&str]| -> Vec<String> {
        let text = dir.stdout(&[&["stats", "s.smap", "--json"], args].concat());
        json_lines(&text).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["*.weight", "layer.2."]), ["layer.2.weight", "layer.10.weight", "layer.2.bias"]);
    assert_eq!(names(&["mask", "mask[1:]"]), ["mask", "mask[1:]"]);
    assert_eq!(names(&[]).len(), 6);
}

#[test]
fn what_matches_nothing_is_a_negative_answer() {
    let dir = odd_tensors();
    for text in ["*.gamma", "gamma."] {
        let run = dir.run(&["stats", "s.smap", text]);
        let said = format!("stridemap: stats: no tensor matches {text:?}\n");
        assert_eq!((run.code, run.stderr), (Some(1), said));
    }
}

#[test]
fn tensors_with_nan_or_infinities_can_be_found() {
    let dir = odd_tensors();
    let found = dir.stdout(&["stats", "s.smap", "--non-finite"]);
    assert_eq!(found.lines().count(), 1, "{found}");
    assert!(found.starts_with("layer.10.weight\t"), "{found}");
    assert_eq!(json_lines(&dir.stdout(&["stats", "s.smap", "--non-finite", "--json"])).len(), 1);
    assert_eq!(dir.stdout(&["stats", "s.smap", "--nan"]), found);
    let none = dir.run(&["stats", "s.smap", "--non-finite", "*.bias"]);
    assert_eq!(
        (none.code, none.stdout.as_str(), none.stderr.as_str()),
        (Some(1), "", "stridemap: stats s.smap: no tensor has NaN or infinities\n")
    );
}

#[test]
fn tensors_are_sorted_by_a_number() {
    let dir = odd_tensors();
    for (key, first) in [
        ("name", "layer.2.bias"),
        ("non-finite", "layer.10.weight"),
        ("min", "layer.2.weight"),
        ("max", "layer.2.weight"),
        ("mean", "layer.2.weight"),
        ("std", "layer.2.weight"),
    ] {
        let rows = dir.stdout(&["stats", "s.smap", "--sort", key]);
        assert!(rows.starts_with(first) && rows.lines().count() == 6, "{key}: {rows}");
        let records = json_lines(&dir.stdout(&["stats", "s.smap", "--sort", key, "--json"]));
        let names: Vec<&str> = records.iter().map(|record| record["name"].as_str().unwrap()).collect();
        assert!(
            names.iter().eq(&rows.lines().map(|row| row.split('\t').next().unwrap()).collect::<Vec<_>>())
        );
    }
}

#[test]
fn json_has_counts_and_a_histogram() {
    let dir = odd_tensors();
    let found = json_lines(&dir.stdout(&["stats", "s.smap", "layer.10.weight", "--json"]));
    let mut histogram = [0; 20];
    (histogram[0], histogram[19]) = (1, 1);
    assert_eq!(
        found,
        [json!({
            "v": 1, "name": "layer.10.weight", "dtype": "float32", "size": [5], "count": 5, "nan_count": 2,
            "positive_infinity_count": 1, "negative_infinity_count": 0, "zero_count": 0, "min": 1.0, "max": 3.0,
            "mean": 2.0, "std": 2f64.sqrt(), "sample_count": 2, "quantiles": [[0.001, 1. + 2. * 0.001], [0.5, 2.0], [0.999, 3. - 2. * (1. - 0.999)]],
            "histogram": histogram,
        })]
    );
    let empty = &json_lines(&dir.stdout(&["stats", "s.smap", "none", "--json"]))[0];
    assert_eq!(
        (&empty["min"], &empty["mean"], &empty["quantiles"]),
        (&Value::Null, &Value::Null, &json!([]))
    );
}

#[test]
fn a_histogram_of_a_sample_says_so() {
    let dir = Dir::empty();
    let x = Tensor::from_vec(vec![1f32; 1_048_577], &[1_048_577]).unwrap();
    Store::create(dir.path("s.smap")).unwrap().save("x", &x).unwrap();
    let record = &json_lines(&dir.stdout(&["stats", "s.smap", "x", "--json"]))[0];
    assert_eq!((&record["count"], &record["sample_count"]), (&json!(1_048_577), &json!(1_048_576)));
    for (args, is_noted) in [
        (&["stats", "s.smap", "x"][..], true),
        (&["plot", "--as", "histogram", "s.smap", "x"], true),
        (&["stats", "s.smap", "x[1:]"], false),
    ] {
        assert_eq!(dir.stdout(args).contains("are of a sample of 1,048,576"), is_noted, "{args:?}");
    }
}

#[test]
fn files_in_other_formats_have_the_same_statistics() {
    let dir = odd_tensors();
    let from_store = dir.stdout(&["stats", "s.smap", "--json"]);
    for file in ["m.safetensors", "m.npz"] {
        dir.messages(&["export", "s.smap", file]);
        assert_eq!(dir.stdout(&["stats", file, "--json"]), from_store, "{file}");
    }
}

#[test]
fn a_tensor_that_cannot_be_read_does_not_hide_the_others() {
    let dir = odd_tensors();
    // Each commit writes a new storage.
    dir.store().save("broken", &Tensor::from_vec(vec![1f32; 4], &[4]).unwrap()).unwrap();
    let found = json_lines(&dir.stdout(&["info", "--all", "s.smap", "--json"]));
    let tensors = found[0]["tensors"].as_array().unwrap();
    let storage =
        tensors.iter().find(|tensor| tensor["name"] == "broken").unwrap()["storage"].as_str().unwrap();
    fs::write(dir.path(format!("s.smap/storages/{storage}.bin")), []).unwrap();
    let run = dir.run(&["stats", "s.smap", "--json"]);
    assert_eq!((run.code, run.stdout.lines().count()), (Some(2), 6));
    assert!(run.stderr.starts_with("stridemap: stats: load \"broken\": "), "{}", run.stderr);
    assert_eq!(run.stderr.matches("\"broken\"").count(), 1, "{}", run.stderr);
    assert!(run.stderr.ends_with("stridemap: stats: 1 of 7 tensors could not be read\n"), "{}", run.stderr);
}

#[test]
fn complex_numbers_and_pairs_are_never_called_constant() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    // All magnitudes are 1.
    let circle: Vec<u8> = [1f32, 0., 0., 1., -1., 0.].iter().flat_map(|part| part.to_le_bytes()).collect();
    txn.save("circle", &Tensor::from_bytes(DType::C64, &[3], &circle).unwrap()).unwrap();
    txn.save("pair", &Tensor::from_bytes(DType::F4E2M1FNx2, &[1], &[0x22]).unwrap()).unwrap();
    txn.save("zero", &Tensor::zeros(DType::C64, &[3]).unwrap()).unwrap();
    txn.commit().unwrap();
    let table = dir.stdout(&["stats", "s.smap"]);
    let notes: Vec<&str> = table.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert_eq!(notes, ["", "", "all zero"], "{table}");
}

#[test]
fn views_with_more_elements_than_a_float_can_count_have_statistics() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("a", &Tensor::from_vec(vec![1f32], &[1]).unwrap()).unwrap();
    store.save("b", &Tensor::from_vec(vec![1f32, f32::NAN, 3., 2.], &[4, 1]).unwrap()).unwrap();
    for (base, name, count) in [("a", "e", 1usize << 54), ("a", "f", (1 << 60) + 1), ("b", "g", 1 << 58)] {
        let base = store.load(base).unwrap();
        let size = if base.ndim() == 1 { vec![count] } else { vec![4, count] };
        store.save_view(name, &base.expand(size).unwrap()).unwrap();
    }
    let text = dir.on_terminal(120, &["stats", "s.smap"]);
    assert!(text.lines().any(|line| line.starts_with("e ") && line.ends_with("█  constant")), "{text}");
    for record in json_lines(&dir.stdout(&["stats", "s.smap", "[ef]*", "--json"])) {
        let (count, last) = (&record["count"], &record["histogram"][19]);
        assert!(count == last && count.as_u64().unwrap() >= 1 << 54, "{record}");
    }
    // The first NaN is found without reading repeated elements.
    let text = dir.stdout(&["stats", "s.smap", "g"]);
    assert!(text.contains("25.000 %), first at [1, 0]"), "{text}");
    assert!(text.contains("mean    2\n"), "{text}");
    // The other commands that describe a store.
    for args in [
        &["info", "s.smap"][..],
        &["ls", "-l", "s.smap"],
        &["tree", "s.smap"],
        &["du", "--map", "s.smap"],
        &["du", "--map", "s.smap", "--json"],
        &["du", "s.smap"],
        &["show", "s.smap", "g"],
        &["show", "s.smap", "f"],
        &["diff", "s.smap", "s.smap"],
        &["plot", "s.smap", "f"],
    ] {
        dir.on_terminal(100, args);
        dir.stdout(args);
    }
    dir.messages(&["report", "s.smap", "-o", "s.html"]);
}
