//! What all commands have in common: hints about arguments, JSON of changes, colors, and spellings.

use serde_json::{Value, json};

use crate::harness::{Dir, json_lines};

/// Runs a command with `--json` and without notes, and returns what it prints.
fn changed(dir: &Dir, args: &[&str]) -> Value {
    serde_json::from_str(&dir.stdout(&[args, &["--json", "-q"]].concat())).unwrap()
}

#[test]
fn swapped_arguments_get_the_order() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "m.npz"]);
    for (args, order) in [
        (&["show", "points", "s.smap"][..], "stridemap show [OPTIONS] <STORE|FILE> [EXPR]"),
        (&["ls", "points", "m.npz"], "stridemap ls [OPTIONS] <STORE|FILE> [NAME]..."),
        (&["rm", "points", "s.smap"], "stridemap rm [OPTIONS] <STORE> <NAME>..."),
        (&["mv", "points", "new", "s.smap"], "stridemap mv [OPTIONS] <STORE> <NAME> <NEW>"),
        (&["attr", "get", "format", "s.smap"], "stridemap attr get [OPTIONS] <STORE> <KEY>"),
        (&["export", "out.npz", "s.smap"], "stridemap export [OPTIONS] <FROM>... <OUT> [NAME]..."),
        (&["append", "points", "s.smap", "m.npz"], "stridemap append [OPTIONS] <STORE> <NAME> <FILE>..."),
        (&["import", "new.smap", "m.npz"], "stridemap import [OPTIONS] <FILE>... <STORE>"),
        (&["tag", "v1", "s.smap"], "stridemap tag [OPTIONS] <STORE> [NAME]..."),
    ] {
        let refusal = dir.refusal(args);
        assert!(refusal.ends_with(&format!("; the order is: {order}")), "{refusal}");
    }
    // The arguments are in order, and something else is wrong.
    for args in
        [&["show", "s.smap", "none"][..], &["show", "none.smap", "points"], &["rm", "s.smap", "m.npz"]]
    {
        assert!(!dir.refusal(args).contains("the order is"), "{args:?}");
    }
}

#[test]
fn file_in_place_of_a_name_is_explained() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "a.npy", "points"]);
    dir.messages(&["export", "s.smap", "b.npy", "points"]);
    let said = "no tensor has the name \"b.npy\", which is the path of a file or store; this command takes one of these, \
                and then names of tensors in it; run it once for each";
    let run = dir.run(&["ls", "a.npy", "b.npy"]);
    assert_eq!((run.code, run.stderr), (Some(1), format!("stridemap: ls a.npy: {said}\n")));
    for args in
        [&["rm", "s.smap", "b.npy"][..], &["stats", "a.npy", "b.npy"], &["du", "--map", "a.npy", "b.npy"]]
    {
        assert_eq!(dir.refusal(args), said, "{args:?}");
    }
    // A new name that is a path is meant after --.
    dir.refusal(&["mv", "s.smap", "points", "b.npy"]);
    dir.messages(&["mv", "--", "s.smap", "points", "b.npy"]);
    assert!(dir.stdout(&["ls", "s.smap", "b.npy"]) == "b.npy\n");
}

#[test]
fn one_damaged_file_among_several_is_one_line() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "good.npy", "points"]);
    dir.write("bad.npy", b"\x93NUMPY damaged");
    dir.write("bad.npz", b"PK damaged");
    for args in [
        &["import", "good.npy", "bad.npy", "good.npy", "t.smap"][..],
        &["import", "bad.npz", "good.npy", "t.smap"],
        &["append", "s.smap", "points", "good.npy", "bad.npy"],
        &["diff", "good.npy", "bad.npy"],
    ] {
        // It is one line that names the file.
        assert!(dir.refusal(args).contains("bad.np"), "{args:?}");
    }
}

#[test]
fn h_is_help_and_human_sizes_after_l() {
    let dir = Dir::with_store();
    assert!(dir.stdout(&["ls", "-h"]).starts_with("List the tensors of a store or a file\n"));
    for args in [&["ls", "-lh", "s.smap"][..], &["ls", "s.smap", "-hl"], &["ls", "-l", "-h", "s.smap"]] {
        assert!(dir.stdout(args).contains("points\tfloat32\t[3, 2]\t24 B\n"), "{args:?}");
    }
    assert!(dir.stdout(&["ls", "-l", "s.smap"]).contains("points\tfloat32\t[3, 2]\t24\n"));
    assert!(dir.stdout(&["show", "-h"]).contains("Usage: stridemap show"));
}

#[test]
fn color_always_is_obeyed_in_pipes_by_help_and_errors() {
    let dir = Dir::with_store();
    let has_color = |args: &[&str]| {
        let run = dir.run(args);
        (run.stdout + &run.stderr).contains("\u{1b}[")
    };
    for args in [&["--help"][..], &["ls", "--help"], &["ls", "-h"], &["ls"], &["none"], &["info", "s.smap"]] {
        assert!(has_color(&[args, &["--color", "always"]].concat()), "{args:?}");
        assert!(has_color(&[&["--color=always"], args].concat()), "{args:?}");
        for color in [&[][..], &["--color", "auto"], &["--color=never"]] {
            assert!(!has_color(&[args, color].concat()), "{args:?} {color:?}");
        }
    }
}

#[test]
fn sizes_and_dtypes_select_in_their_usual_spellings() {
    let dir = Dir::with_store();
    for (args, names) in [
        (&["--size", "*,2"][..], "points\n"),
        (&["--size", "[3, 2]"], "points\n"),
        (&["--size", "[]"], "odd [name]\n"),
        (&["--size", "2,*", "--size", "3,*"], "points\npoints_t\n"),
        (&["--dtype", "f32"], "points\npoints_t\n"),
        (&["--dtype", "torch.float32", "--size", "2,*"], "points_t\n"),
        (&["--dtype", "I64"], "odd [name]\n"),
    ] {
        assert_eq!(dir.stdout(&[&["ls", "s.smap"], args].concat()), names, "{args:?}");
    }
    let run = dir.run(&["ls", "s.smap", "--size", "*,*,*"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (Some(1), "stridemap: ls s.smap: no tensor is left by --size\n")
    );
    assert!(dir.run(&["ls", "s.smap", "--size", "a"]).stderr.contains("expected the size of each dimension"));
}

#[test]
fn changes_are_described_in_json() {
    let dir = Dir::with_store();
    let points = json!({ "name": "points", "dtype": "float32", "size": [3, 2], "numel": 6, "nbytes": 24 });
    let exported = changed(&dir, &["export", "s.smap", "p.npy", "points"]);
    let expected = json!({ "v": 1, "is_dry_run": false, "files": ["p.npy"], "tensor_count": 1, "nbytes": 24,
        "tensors": [points] });
    assert_eq!(exported, expected);
    let copied = changed(&dir, &["export", "s.smap", "copy.smap", "points", "-n"]);
    assert_eq!((&copied["tensors"], &copied["is_dry_run"]), (&json!([points]), &json!(true)));
    assert!(!dir.path("copy.smap").exists());
    assert!(dir.refusal(&["export", "s.smap", "-", "--json"]).contains("standard output gets the tensors"));

    let imported = changed(&dir, &["import", "p.npy", "s.smap", "--prefix", "a.", "--tag", "before"]);
    assert_eq!((&imported["generation"], &imported["tag"]), (&json!(3), &json!("before")));
    assert_eq!(imported["tensors"][0]["name"], "a.p");
    assert_eq!(imported["tensors"][0]["file"], "p.npy");
    let planned = changed(&dir, &["import", "p.npy", "new.smap", "-n"]);
    assert_eq!((&planned["generation"], &planned["nbytes"]), (&Value::Null, &json!(24)));

    let planned = changed(&dir, &["rm", "s.smap", "a.", "-n"]);
    assert_eq!((&planned["is_dry_run"], &planned["generation"]), (&json!(true), &Value::Null));
    let removed = changed(&dir, &["rm", "s.smap", "a."]);
    assert_eq!((&removed["generation"], &removed["tensors"][0]["nbytes"]), (&json!(4), &json!(24)));
    assert_eq!(
        (&planned["tensors"], &planned["freed_bytes"]),
        (&removed["tensors"], &removed["freed_bytes"])
    );
    // Every field of these is one of ls.
    let listed = json_lines(&dir.stdout(&["ls", "s.smap", "points", "--json"]));
    for (key, value) in points.as_object().unwrap() {
        assert_eq!(&listed[0][key], value, "{key}");
    }

    let set = changed(&dir, &["attr", "set", "s.smap", "unit", "m", "--of", "points"]);
    let expected = json!({ "v": 1, "scope": "points", "key": "unit", "value": "m", "previous": null,
        "is_dry_run": false, "generation": 5, "tag": null });
    assert_eq!(set, expected);
    let got = dir.json(&["attr", "get", "s.smap", "unit", "--of", "points"]);
    assert_eq!(got, json!({ "v": 1, "scope": "points", "key": "unit", "value": "m" }));
    let listed = json_lines(&dir.stdout(&["attr", "list", "s.smap", "--json"]));
    assert_eq!((&listed[0]["scope"], &listed[1]), (&Value::Null, &got));
    let removed = changed(&dir, &["attr", "rm", "s.smap", "unit", "--of", "points"]);
    assert_eq!((&removed["value"], &removed["previous"]), (&Value::Null, &json!("m")));
}
