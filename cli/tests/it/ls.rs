//! The `ls` command.

use serde_json::Value;
use stridemap::{DType, Store, Tensor};

use crate::harness::Dir;

/// Creates a store of layers, and of one tensor with a name of 250 characters.
pub(crate) fn layers() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    for layer in [10, 9, 2, 1] {
        let weight = Tensor::from_vec(vec![0f32; 4 * layer], &[layer, 4]).unwrap();
        txn.save(&format!("layer.{layer}.weight"), &weight).unwrap();
    }
    txn.save("layer.9.bias", &Tensor::from_vec(vec![0i64; 5], &[5]).unwrap()).unwrap();
    txn.save(&"x".repeat(250), &Tensor::from_vec(vec![0u8; 100], &[100]).unwrap()).unwrap();
    txn.commit().unwrap();
    dir
}

const NAMES: [&str; 5] =
    ["layer.1.weight", "layer.2.weight", "layer.9.bias", "layer.9.weight", "layer.10.weight"];

#[test]
fn pipe_gets_one_name_on_each_line_in_natural_order() {
    let dir = layers();
    let expected = format!("{}\n{}\n", NAMES.join("\n"), "x".repeat(250));
    assert_eq!(dir.stdout(&["ls", "s.smap"]), expected);
    assert_eq!(dir.on_terminal(80, &["ls", "-1", "s.smap"]), expected);
    assert_eq!(dir.on_terminal(80, &["ls", "-0", "s.smap"]), expected.replace('\n', "\0"));
    // Some shells export the width of their terminal.
    let piped = dir.command(&["ls", "s.smap"]).env("COLUMNS", "80").output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), expected);
}

#[test]
fn names_that_a_narrow_terminal_would_make_equal_are_whole() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for layer in 0..2 {
        store.save(&format!("bert.encoder.layer.{layer}.attention.self.query.bias"), &[0f32; 3]).unwrap();
    }
    store.save("short", &[0f32]).unwrap();
    insta::assert_snapshot!(dir.on_terminal(40, &["ls", "-l", "s.smap"]), @r"
    name                dtype    size  bytes
    bert.encoder.layer.0.attention.self.query.bias
                        float32  [3]    12 B
    bert.encoder.layer.1.attention.self.query.bias
                        float32  [3]    12 B
    short               float32  [1]     4 B
    ");
    let wide = dir.on_terminal(80, &["ls", "-l", "s.smap"]);
    assert!(wide.contains("\nbert.encoder.layer.1.attention.self.query.bias  float32  [3]"), "{wide}");
}

#[test]
fn terminal_gets_dtypes_and_sizes_and_whole_names() {
    let dir = layers();
    insta::assert_snapshot!(dir.on_terminal(40, &["ls", "s.smap", "layer."]), @r"
    name             dtype    size
    layer.1.weight   float32  [1, 4]
    layer.2.weight   float32  [2, 4]
    layer.9.bias     int64    [5]
    layer.9.weight   float32  [9, 4]
    layer.10.weight  float32  [10, 4]
    ");
    let long = "x".repeat(250);
    let wide = dir.on_terminal(80, &["ls", "s.smap"]);
    assert!(wide.contains(&format!("\n{long}\n")), "{wide}");
    let names =
        ["layer.1.weight", "layer.2.weight", "layer.9.bias", "layer.9.weight", "layer.10.weight", &long];
    assert_eq!(dir.on_terminal(40, &["ls", "-1", "s.smap"]), names.map(|name| format!("{name}\n")).concat());
}

#[test]
fn long_listing_is_a_table() {
    let dir = layers();
    insta::assert_snapshot!(dir.on_terminal(40, &["ls", "-l", "s.smap", "layer."]), @r"
    name             dtype    size     bytes
    layer.1.weight   float32  [1, 4]    16 B
    layer.2.weight   float32  [2, 4]    32 B
    layer.9.bias     int64    [5]       40 B
    layer.9.weight   float32  [9, 4]   144 B
    layer.10.weight  float32  [10, 4]  160 B
    ");
    insta::assert_snapshot!(dir.on_terminal(32, &["ls", "-l", "s.smap", "layer.1."]), @r"
    name            size    bytes
    layer.1.weight  [1, 4]   16 B
    ");
}

#[test]
fn long_listing_in_a_pipe_has_tabs_and_all_digits() {
    let listed = layers().stdout(&["ls", "-l", "s.smap", "layer.10."]);
    assert_eq!(listed, "layer.10.weight\tfloat32\t[10, 4]\t160\n");
}

#[test]
fn tensors_are_selected_by_globs_prefixes_and_dtypes() {
    let dir = layers();
    let ls = |args: &[&str]| dir.stdout(&[&["ls", "s.smap"], args].concat());
    assert_eq!(ls(&["layer.?.weight"]), "layer.1.weight\nlayer.2.weight\nlayer.9.weight\n");
    assert_eq!(ls(&["*.bias", "layer.1."]), "layer.1.weight\nlayer.9.bias\n");
    assert_eq!(ls(&["layer.9."]), "layer.9.bias\nlayer.9.weight\n");
    assert_eq!(ls(&["--dtype", "int64"]), "layer.9.bias\n");
    assert_eq!(ls(&["layer.", "--dtype", "int64", "--dtype", "float32"]).lines().count(), 5);
}

#[test]
fn tensors_are_sorted_with_the_largest_first() {
    let dir = layers();
    let first = |key: &str| dir.stdout(&["ls", "s.smap", "--sort", key]).lines().next().unwrap().to_owned();
    assert_eq!(first("name"), "layer.1.weight");
    assert_eq!([first("size"), first("bytes")], ["layer.10.weight"; 2]);
    assert_eq!(first("numel"), "x".repeat(250));
}

#[test]
fn pattern_without_a_match_is_a_negative_answer() {
    let dir = Dir::with_store();
    for (args, listed, said) in [
        (&["nothing"][..], "", "no tensor matches \"nothing\""),
        (&["points_t", "*.x", "y"], "points_t\n", "no tensor matches \"*.x\" or \"y\""),
        (&["--dtype", "uint8"], "", "no tensor is left by --dtype"),
        (&["points", "--size", "9,9"], "", "no tensor is left by --size"),
        (&["--shape", "9,9", "--dtype", "uint8"], "", "no tensor is left by --dtype and --size"),
        (&["nothing", "--json"], "", "no tensor matches \"nothing\""),
        (
            &["point"],
            "",
            "no tensor has the name \"point\", but 2 names begin with it, such as points: 'point*' selects them",
        ),
    ] {
        let run = dir.run(&[&["ls", "s.smap"], args].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), listed), "{args:?}");
        assert_eq!(run.stderr, format!("stridemap: ls s.smap: {said}\n"));
    }
    Store::create(dir.path("empty.smap")).unwrap();
    assert_eq!(dir.stdout(&["ls", "empty.smap"]), "");
}

#[test]
fn name_with_an_asterisk_is_not_a_glob() {
    let dir = Dir::with_store();
    let store = dir.store();
    for name in ["a*", "ab"] {
        store.save(name, &store.load("points").unwrap()).unwrap();
    }
    assert_eq!(dir.stdout(&["ls", "s.smap", "a*"]), "a*\n");
    assert_eq!(dir.stdout(&["ls", "s.smap", "?b"]), "ab\n");
}

#[test]
fn json_is_a_versioned_object_on_each_line() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.stdout(&["ls", "s.smap", "points_t", "--json"]),
        concat!(
            r#"{"v":1,"name":"points_t","dtype":"float32","size":[2,3],"stride":[1,2],"storage_offset":0,"#,
            r#""storage":"0000000000000001","is_contiguous":false,"numel":6,"nbytes":24,"dim_names":null}"#,
            "\n"
        )
    );
    let lines = layers().stdout(&["ls", "s.smap", "layer.", "--json"]);
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = records.iter().map(|record| record["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
}

#[test]
fn every_name_can_be_shown_as_listed() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let scalar = Tensor::from_bytes(DType::U8, &[], &[1]).unwrap();
    for name in ["it's", "'", "a.t()", "back\\slash [0]", "tab\tline\nescape\u{1b}[0m", "größe", " "] {
        store.save(name, &scalar).unwrap();
    }
    let listed = dir.stdout(&["ls", "-l", "s.smap"]);
    assert_eq!(listed.lines().count(), 7);
    for line in listed.lines() {
        let name = line.split('\t').next().unwrap();
        assert_eq!(dir.stdout(&["show", "s.smap", name]), "tensor(1, dtype=uint8)\n", "{name}");
    }
    let raw = dir.stdout(&["ls", "-1", "s.smap"]);
    assert!(raw.contains("\nit's\n") && raw.contains("\nback\\slash [0]\n"), "{raw}");
    assert!(raw.contains(r"'tab\tline\nescape\u{1b}[0m'") && raw.contains(r"'\''"), "{raw}");
}
