//! `import --in-place`, and the other commands on external files.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::harness::Dir;

const HEADER: &str =
    r#"{"__metadata__":{"by":"hand"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;

fn elements() -> Vec<u8> {
    [1f32, 2., 3., 4.].iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Creates a store that has the tensor of `x.safetensors` in place.
fn with_adopted() -> Dir {
    let dir = Dir::empty();
    dir.write_safetensors("x.safetensors", HEADER, &elements());
    assert_eq!(
        dir.messages(&["import", "x.safetensors", "s.smap", "--in-place", "--prefix", "a."]),
        "stridemap: adopted 1 tensor, 16 B, into s.smap: generation 2\n"
    );
    dir
}

fn touch(dir: &Dir) {
    let file = fs::File::options().write(true).open(dir.path("x.safetensors")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

#[test]
fn adopted_tensors_can_be_read_and_inspect_prints_their_files() {
    let dir = with_adopted();
    assert_eq!(dir.stdout(&["show", "s.smap", "a.x.t()"]), "tensor([[1., 3.],\n        [2., 4.]])\n");
    dir.messages(&["view", "s.smap", "a.x[1]", "row"]);
    dir.messages(&["view", "s.smap", "row", "again"]);
    dir.messages(&["mv", "s.smap", "again", "moved"]);
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
    dir.messages(&["export", "s.smap", "out.npy", "moved"]);
    let inspected = dir.json(&["info", "--all", "s.smap"]);
    let storage = &inspected["storages"][0];
    assert_eq!((&storage["kind"], &storage["file"]), (&"external".into(), &"x.safetensors".into()));
    assert_eq!(storage["offset_bytes"], 8 + HEADER.len());
    let stats = dir.on_terminal(120, &["du", "s.smap"]);
    assert!(stats.contains("external     16 B, in files outside the store\n"), "{stats}");
    let stats = dir.json(&["du", "s.smap"]);
    assert_eq!((&stats["external_bytes"], &stats["reachable_bytes"]), (&16.into(), &0.into()));
    assert!(dir.stdout(&["info", "--all", "s.smap"]).contains("by = hand"));
}

#[test]
fn file_that_has_changed_is_refused_and_verify_exits_with_1() {
    let dir = with_adopted();
    touch(&dir);
    for args in [
        &["show", "s.smap", "a.x"][..],
        &["view", "s.smap", "a.x[0]", "new"],
        &["compact", "s.smap", "--materialize"],
    ] {
        let line = dir.refusal(args);
        for part in [
            "x.safetensors",
            "mtime in ns",
            "since it was imported in place",
            "import the present one with --force",
        ] {
            assert!(line.contains(part), "{args:?}: {line}");
        }
    }
    let run = dir.run(&["verify", "s.smap"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("affects \"a.x\"") && run.stdout.contains("F-29"), "{}", run.stdout);
    // Imported in place again, as the message advises.
    dir.messages(&["import", "x.safetensors", "s.smap", "--in-place", "--prefix", "a.", "--force"]);
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn external_files_are_opened_only_where_the_option_or_the_variable_allows() {
    let dir = with_adopted();
    for args in [&["show", "s.smap", "a.x"][..], &["plot", "s.smap", "a.x"], &["export", "s.smap", "out.npz"]]
    {
        let line = dir.refusal(&[args, &["--external", "none"]].concat());
        assert!(line.contains("external file refused"), "{line}");
        assert!(line.ends_with("with --external beside, or all files with --external anywhere"), "{line}");
    }
    let run = dir.run(&["stats", "s.smap", "--external", "none"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
    let shown = dir.command(&["show", "s.smap", "a.x"]).env("STRIDEMAP_EXTERNAL", "none").output().unwrap();
    assert_eq!(shown.status.code(), Some(2));
    let run = dir.run(&["verify", "s.smap", "--external", "none"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "ok\n"));
    assert!(
        run.stderr.contains("note: 1 external file not checked, such as x.safetensors"),
        "{}",
        run.stderr
    );
    // Names and headers are listed without the file.
    fs::remove_file(dir.path("x.safetensors")).unwrap();
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "a.x\n");
    dir.messages(&["rm", "s.smap", "a.x"]);
}

#[test]
fn unchecked_files_are_listed_in_json_for_any_path() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = with_adopted();
    let odd = dir.path(std::ffi::OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    for name in ["s.smap", "x.safetensors"] {
        fs::rename(dir.path(name), odd.join(name)).unwrap();
    }
    let run =
        dir.command(&["verify", "--json", "--external", "none"]).arg(odd.join("s.smap")).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let record: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(record["unchecked"].as_array().unwrap().len(), 1, "{record}");
}

#[test]
fn file_elsewhere_is_adopted_if_allowed_and_otherwise_nothing_is_created() {
    let (dir, elsewhere) = (Dir::empty(), Dir::empty());
    elsewhere.write_safetensors("x.safetensors", HEADER, &elements());
    let file = elsewhere.path("x.safetensors");
    let file = file.to_str().unwrap();
    let line = dir.refusal(&["import", file, "s.smap", "--in-place"]);
    assert!(line.contains("--external anywhere"), "{line}");
    let line = dir.refusal(&["import", file, "s.smap", "--in-place", "--external", "none"]);
    assert!(line.contains("--external none"), "{line}");
    dir.messages(&["import", file, "s.smap", "--in-place", "--external", "anywhere"]);
    let line = dir.refusal(&["show", "s.smap", "x"]);
    assert!(line.contains("external file refused"), "{line}");
    assert!(dir.stdout(&["show", "s.smap", "x", "--external", "anywhere"]).contains("[1., 2.]"));
}

#[test]
fn materialized_store_no_longer_needs_the_file() {
    let dir = with_adopted();
    assert_eq!(
        dir.stdout(&["rm", "s.smap", "a.x", "-n"]).lines().nth(1).unwrap(),
        "would free nothing: the bytes are in files that were imported in place"
    );
    assert_eq!(
        dir.stdout(&["compact", "s.smap", "--materialize", "-n"]),
        "would materialize 1 external storage: 16 B\n"
    );
    assert_eq!(
        dir.stdout(&["compact", "s.smap", "--materialize"]),
        "materialized 1 external storage: 16 B\n"
    );
    fs::remove_file(dir.path("x.safetensors")).unwrap();
    assert!(dir.stdout(&["show", "s.smap", "a.x", "--external", "none"]).contains("[3., 4.]"));
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
    assert_eq!(
        dir.stdout(&["compact", "s.smap", "--materialize"]),
        "materialized 0 external storages\nnothing to compact\n"
    );
}

#[test]
fn export_replaces_no_external_file() {
    let dir = with_adopted();
    let whole = fs::read(dir.path("x.safetensors")).unwrap();
    dir.messages(&["view", "s.smap", "a.x[1]", "row"]);
    fs::hard_link(dir.path("x.safetensors"), dir.path("hard.safetensors")).unwrap();
    // With some of the tensors, and with all of them.
    for names in [&["row"][..], &[]] {
        for out in ["x.safetensors", "./s.smap/../x.safetensors", "hard.safetensors"] {
            let line = dir.refusal(&[&["export", "s.smap", out, "--force"], names].concat());
            for part in [
                out,
                "s.smap uses this file in place",
                "2 tensors such as a.x",
                "compact --materialize s.smap",
            ] {
                assert!(line.contains(part), "{out} {names:?}: {line}");
            }
        }
    }
    assert_eq!(fs::read(dir.path("x.safetensors")).unwrap(), whole);
    // The export replaces a symbolic link, not its target.
    std::os::unix::fs::symlink("x.safetensors", dir.path("link.safetensors")).unwrap();
    dir.messages(&["export", "s.smap", "link.safetensors", "row", "--force"]);
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");

    // The way out that the refusal names.
    let shown = dir.stdout(&["show", "s.smap", "a.x"]);
    dir.stdout(&["compact", "--materialize", "s.smap"]);
    dir.messages(&["export", "s.smap", "x.safetensors", "--force"]);
    for source in ["x.safetensors", "s.smap"] {
        assert_eq!(dir.stdout(&["show", source, "a.x"]), shown);
    }
}

#[test]
fn link_to_a_moved_external_file_is_not_replaced() {
    let dir = with_adopted();
    fs::create_dir(dir.path("moved")).unwrap();
    fs::rename(dir.path("x.safetensors"), dir.path("moved/x.safetensors")).unwrap();
    std::os::unix::fs::symlink("moved/x.safetensors", dir.path("x.safetensors")).unwrap();
    let shown = dir.stdout(&["show", "s.smap", "a.x"]);
    for out in ["x.safetensors", "moved/x.safetensors"] {
        assert!(
            dir.refusal(&["export", "s.smap", out, "--force"]).contains("uses this file in place"),
            "{out}"
        );
    }
    assert_eq!(dir.stdout(&["show", "s.smap", "a.x"]), shown);
}

#[test]
fn export_says_which_tensors_of_an_external_file_it_would_drop() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "k.safetensors"]);
    let skipping = ["import", "--in-place", "--skip", "points*", "k.safetensors", "k.smap"];
    dir.messages(&skipping);
    let line = dir.refusal(&["export", "--force", "k.smap", "k.safetensors"]);
    let dropped = "the new file would lack 2 tensors of the old one, such as points;";
    assert!(line.contains("tensor 'odd [name]' could no longer be read") && line.contains(dropped), "{line}");
}

#[test]
fn file_that_another_store_uses_in_place_is_not_replaced() {
    let dir = with_adopted();
    fs::create_dir_all(dir.path("below/by/far")).unwrap();
    for (file, prefix) in [("below/y.safetensors", "y."), ("below/by/far/z.safetensors", "z.")] {
        dir.write_safetensors(file, HEADER, &elements());
        dir.messages(&["import", file, "s.smap", "--in-place", "--prefix", prefix]);
    }
    dir.messages(&["import", "x.safetensors", "other.smap"]);
    for out in ["x.safetensors", "below/y.safetensors", "below/by/far/z.safetensors"] {
        let line = dir.refusal(&["export", "other.smap", out, "--force"]);
        assert!(line.contains("s.smap uses this file in place"), "{line}");
    }
    // An unreadable store beside the file is no obstacle.
    fs::create_dir(dir.path("broken.smap")).unwrap();
    dir.write("broken.smap/FORMAT", b"broken");
    dir.write("free.safetensors", b"");
    dir.messages(&["export", "other.smap", "free.safetensors", "--force"]);
}

#[test]
fn drawing_replaces_no_file_that_is_read() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "points.npy", "points"]);
    // The format of a file is recognized by its content.
    fs::copy(dir.path("points.npy"), dir.path("points.png")).unwrap();
    fs::copy(dir.path("points.npy"), dir.path("points.html")).unwrap();
    dir.messages(&["import", "points.png", "in.smap", "--in-place"]);
    for (command, out) in [("plot", "points.png"), ("report", "points.html")] {
        let line = dir.refusal(&[command, out, "-o", out, "--force"]);
        assert_eq!(
            line,
            format!("{command} {out}: the tensors are read from this file; write to another path")
        );
    }
    // The store reads it, or a store beside it.
    for source in ["in.smap", "points.npy"] {
        let line = dir.refusal(&["plot", source, "-o", "points.png", "--force"]);
        assert!(line.contains("in.smap uses this file in place, and tensor points could"), "{line}");
    }
    dir.messages(&["plot", "points.npy", "-o", "points.html.png"]);
    dir.messages(&["plot", "points.npy", "-o", "points.html.png", "--force"]);
}

#[test]
fn export_replaces_no_external_part() {
    let dir = with_adopted();
    dir.messages(&["view", "s.smap", "a.x[1]", "row"]);
    dir.messages(&["export", "s.smap", "m.safetensors", "--max-shard-size", "16"]);
    dir.messages(&["import", "m.safetensors.index.json", "m.smap", "--in-place"]);
    // The same shards; other shards, but the same index; one shard by its name.
    dir.messages(&["view", "m.smap", "a.x[0]", "first"]);
    for args in [
        &["m.safetensors", "--max-shard-size", "16", "a.x", "row"][..],
        &["m.safetensors", "--max-shard-size", "8"],
        &["m-00002-of-00002.safetensors"],
    ] {
        let args = [&["export", "m.smap", "--force"], args].concat();
        assert!(dir.refusal(&args).contains("m.smap uses this file in place"), "{args:?}");
    }
    dir.messages(&["export", "m.smap", "n.safetensors", "--max-shard-size", "16"]);
    // One file, whose name is not that of a shard.
    dir.messages(&["export", "m.smap", "m.safetensors", "--max-shard-size", "16", "row"]);
    assert_eq!(dir.stdout(&["verify", "m.smap"]), "ok\n");
}

#[test]
fn file_that_cannot_be_used_in_place_creates_no_store() {
    let dir = with_adopted();
    dir.messages(&["export", "s.smap", "packed.npz", "--compress"]);
    let line = dir.refusal(&["import", "packed.npz", "new.smap", "--in-place"]);
    assert!(line.contains("are compressed") && line.contains("import the file"), "{line}");
    assert!(!dir.path("new.smap").exists());
    dir.messages(&["import", "packed.npz", "new.smap"]);
}

#[test]
fn tagged_generation_still_needs_the_file_after_a_materialization() {
    let dir = with_adopted();
    dir.messages(&["tag", "s.smap", "v1"]);
    let run = dir.run(&["compact", "s.smap", "--materialize"]);
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (Some(0), "materialized 1 external storage: 16 B\n"),
        "{run:?}"
    );
    assert!(run.stderr.contains("note: v1 still needs files outside the store: keep them"), "{run:?}");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
    let elements = dir.stdout(&["show", "s.smap", "a.x"]);

    fs::rename(dir.path("x.safetensors"), dir.path("aside")).unwrap();
    let run = dir.run(&["verify", "s.smap"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("x.safetensors") && run.stdout.contains("the file is missing"), "{run:?}");
    assert!(run.stdout.ends_with("affects no tensor; tags that lose something: v1\n"), "{run:?}");
    for args in [&["restore", "s.smap", "v1", "--force"][..], &["restore", "s.smap", "v1", "-n"]] {
        let line = dir.refusal(args);
        assert!(line.contains("restore \"a.x\"") && line.contains("imported in place, is missing"), "{line}");
    }
    assert_eq!(dir.stdout(&["show", "s.smap", "a.x"]), elements);

    fs::rename(dir.path("aside"), dir.path("x.safetensors")).unwrap();
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
    let run = dir.run(&["verify", "s.smap", "--external", "none"]);
    assert!(format!("{run:?}").contains("x.safetensors"), "{run:?}");
    dir.messages(&["restore", "s.smap", "v1", "--tag", "copied"]);
    assert_eq!(dir.stdout(&["show", "s.smap", "a.x"]), elements);
}

#[test]
fn plan_of_a_materialization_is_refused_as_it_would_be() {
    let dir = with_adopted();
    touch(&dir);
    let planned = dir.refusal(&["compact", "s.smap", "--materialize", "-n"]);
    assert_eq!(planned, dir.refusal(&["compact", "s.smap", "--materialize"]));
    let planned = dir.refusal(&["compact", "s.smap", "--materialize", "-n", "--external", "none"]);
    assert!(planned.contains("external file refused"), "{planned}");
}

#[test]
fn copies_of_tensors_in_place_say_which_files_they_need() {
    let dir = with_adopted();
    for args in [&["copy", "s.smap", "a.", "new.smap"][..], &["export", "s.smap", "all.smap"]] {
        let said = dir.messages(args);
        let copy = args.last().unwrap();
        let note = format!(
            "not copied: {copy} needs x.safetensors; stridemap compact --materialize {copy} copies them\n"
        );
        assert!(said.ends_with(&note), "{said}");
    }
    // What is copied beside tensors in place, or into a store that has some, needs no file.
    dir.messages(&["import", "x.safetensors", "s.smap", "--prefix", "own."]);
    for args in [
        &["copy", "s.smap", "own.", "own.smap"][..],
        &["copy", "s.smap", "own.", "all.smap", "--force"],
        &["export", "s.smap", "part.smap", "own.x"],
    ] {
        let said = dir.messages(args);
        assert!(!said.contains("needs"), "{said}");
    }
    dir.stdout(&["compact", "s.smap", "--materialize"]);
    assert!(!dir.messages(&["copy", "s.smap", "a.", "whole.smap"]).contains("needs"));
}
