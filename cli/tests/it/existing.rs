//! Names and files that exist: refused, replaced with `--force`, and what a dry run prints.

use std::fs;

use crate::harness::{Dir, tree};

const POINTS: &str = r#"{"points":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#;

fn dir() -> Dir {
    let dir = Dir::with_store();
    dir.write_safetensors("m.safetensors", POINTS, &[0; 2]);
    dir.store().create_growable("log", stridemap::DType::F32, &[3, 2], 9).unwrap();
    dir.write("out.npy", b"precious");
    dir.messages(&["export", "s.smap", "rows.npy", "points"]);
    dir
}

/// Commands that would replace something, and the beginning of the refusal of each.
const REPLACING: [(&[&str], &str); 6] = [
    (&["view", "s.smap", "points[0]", "points_t"], "view: \"points_t\" exists, float32 [2, 3]; "),
    (&["view", "s.smap", "points_t", "points"], "view: \"points\" exists, float32 [3, 2]; "),
    (&["view", "s.smap", "points_t", "'points'"], "view: \"points\" exists, float32 [3, 2]; "),
    (&["mv", "s.smap", "points_t", "points"], "mv: \"points\" exists, float32 [3, 2]; "),
    (&["import", "m.safetensors", "s.smap"], "import: \"points\" exists in s.smap, float32 [3, 2]; "),
    (&["export", "s.smap", "out.npy", "points"], "export out.npy: the file exists; "),
];

#[test]
fn existing_name_or_file_is_refused_and_replaced_with_force() {
    for (args, refusal) in REPLACING {
        let dir = dir();
        let before = tree(&dir.path(""));
        for flags in [&[][..], &["-n"]] {
            assert_eq!(dir.refusal(&[args, flags].concat()), format!("{refusal}--force replaces it"));
        }
        assert_eq!(tree(&dir.path("")), before, "{args:?}");
        dir.messages(&[args, &["--force"]].concat());
        assert_ne!(tree(&dir.path("")), before, "{args:?}");
    }
}

#[test]
fn dry_run_says_what_would_happen_and_changes_nothing() {
    let dir = dir();
    for (args, said) in [
        (&["view", "s.smap", "points[0]", "new"][..], "would save points[0] (float32 [2]) as new\n"),
        (
            &["view", "s.smap", "points[0]", "points_t", "--force"],
            "would save points[0] (float32 [2]) as points_t, replacing float32 [2, 3]\n",
        ),
        (&["view", "s.smap", "points", "br[0]"], "would save points (float32 [3, 2]) as 'br[0]'\n"),
        (
            &["view", "s.smap", "points", "points_t", "--force"],
            "would save points (float32 [3, 2]) as points_t, replacing float32 [2, 3]\n",
        ),
        (&["mv", "s.smap", "points", "new"], "would rename points to new\n"),
        (
            &["mv", "s.smap", "points", "points_t", "--force"],
            "would rename points to points_t, replacing float32 [2, 3]\n",
        ),
        (
            &["rm", "s.smap", "log", "odd [name]"],
            "would remove log\nwould remove 'odd [name]'\nwould free 24 B, and 48 B after compact --all\nno tag keeps them, so they cannot be brought back; \
             --tag NAME tags the state before a change\n",
        ),
        (
            &["append", "s.smap", "log", "rows.npy", "rows.npy"],
            "would append 6 rows to log, which would then have 9\n",
        ),
        (
            &["import", "m.safetensors", "s.smap", "--prefix", "a."],
            "would import 1 tensor, 2 B, into s.smap\n  a.points, int8 [2]\n",
        ),
        (
            &["import", "m.safetensors", "s.smap", "--force"],
            "would import 1 tensor, 2 B, into s.smap\n  points, int8 [2], replacing float32 [3, 2]\n",
        ),
        (
            &["import", "m.safetensors", "new.smap"],
            "would import 1 tensor, 2 B, into new.smap, a new store\n  points, int8 [2]\n",
        ),
        (
            &["export", "s.smap", "new.npy", "points"],
            "would write new.npy: 1 tensor, 24 B\n  points, float32 [3, 2]\n",
        ),
        (
            &["export", "s.smap", "out.npy", "points", "--force"],
            "would write out.npy, replacing it: 1 tensor, 24 B\n  points, float32 [3, 2]\n",
        ),
        (&["export", "s.smap", "copy.smap"], "would write copy.smap, a copy of the store: 4 tensors\n"),
        (
            &["export", "s.smap", "copy.smap", "points"],
            "would write copy.smap, a copy of the store: 1 tensor\n",
        ),
    ] {
        for flag in ["-n", "--dry-run"] {
            let before = tree(&dir.path(""));
            assert_eq!(dir.stdout(&[args, &[flag]].concat()), said);
            assert_eq!(tree(&dir.path("")), before, "{args:?}");
        }
    }
}

#[test]
fn dry_run_is_refused_where_the_command_would_be() {
    let dir = dir();
    dir.messages(&["export", "s.smap", "odd.npy", "odd [name]"]);
    dir.messages(&["import", "m.safetensors", "s.smap", "--prefix", "a."]);
    let before = tree(&dir.path(""));
    for args in [
        &["view", "s.smap", "none", "new"][..],
        &["view", "s.smap", "points.t().flatten()", "new"],
        &["view", "s.smap", "none", "new"],
        &["mv", "s.smap", "none", "new"],
        &["mv", "s.smap", "points", ""],
        &["rm", "s.smap", "points", "none"],
        &["append", "s.smap", "none", "rows.npy"],
        &["append", "s.smap", "points", "odd.npy"],
        &["append", "s.smap", "points_t", "rows.npy"],
        &["append", "s.smap", "odd [name]", "odd.npy"],
        &["import", "m.safetensors", "none.npy", "s.smap"],
        &["export", "s.smap", "new.npy"],
        &["export", "s.smap", "s.smap"],
        &["export", "s.smap", "new.smap", "none"],
    ] {
        let refusal = dir.refusal(args);
        let dry_refusal = dir.refusal(&[args, &["-n"]].concat());
        // The library makes the checks of both.
        if args[0] == "append" && args[2] != "none" {
            assert_eq!(dry_refusal, refusal, "{args:?}");
        }
    }
    assert_eq!(tree(&dir.path("")), before);
}

#[test]
fn refused_import_names_the_first_and_counts_the_others() {
    let dir = Dir::with_store();
    let header = r#"{"points":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},
        "points_t":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}}"#;
    dir.write_safetensors("m.safetensors", header, &[0; 4]);
    let refusal = dir.refusal(&["import", "m.safetensors", "s.smap"]);
    assert!(
        refusal.ends_with("float32 [3, 2], and so do 1 more of the names to import; --force replaces them"),
        "{refusal}"
    );
}

#[test]
fn parts_of_a_model_are_not_replaced_without_force() {
    let dir = dir();
    let export = &["export", "s.smap", "x.safetensors", "--max-shard-size", "30"][..];
    dir.messages(export);
    let before = tree(&dir.path(""));
    assert_eq!(dir.refusal(export), "export x.safetensors.index.json: the file exists; --force replaces it");
    fs::remove_file(dir.path("x.safetensors.index.json")).unwrap();
    let part = "export x-00001-of-00004.safetensors: the file exists; --force replaces it";
    assert_eq!(dir.refusal(export), part);
    assert_eq!(tree(&dir.path("")).len() + 1, before.len());
    dir.messages(&[export, &["--force"]].concat());
    assert_eq!(tree(&dir.path("")).len(), before.len());
}
