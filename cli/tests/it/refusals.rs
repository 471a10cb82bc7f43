//! Invalid input: exit code 2, one line with the reason, and no change.

use std::fs;

use crate::harness::Dir;

const TENSOR: &str = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

/// Returns every command that takes only a store, applied to this path.
fn on_store(store: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["view", store, "x", "y"],
        vec!["mv", store, "x", "y"],
        vec!["rm", store, "x"],
        vec!["compact", store],
        vec!["salvage", store, "new.smap"],
        vec!["salvage", store, "-n"],
        vec!["log", store, "--follow"],
        vec!["tag", store],
        vec!["tag", store, "v1"],
        vec!["log", store],
        vec!["restore", store, "v1"],
        vec!["prune", store, "--keep-last", "1"],
    ]
}

#[test]
fn path_inside_a_store_or_with_a_special_file_is_not_written() {
    let dir = Dir::with_store();
    for out in ["s.smap/x.npy", "s.smap/meta/x.npy"] {
        let expected = format!("export {out}: this path is inside a store; choose a path outside");
        assert_eq!(dir.refusal(&["export", "s.smap", out, "points"]), expected);
    }
    fs::create_dir(dir.path("dir.npy")).unwrap();
    for force in [&[][..], &["--force"], &["--force", "-n"]] {
        let args = [&["export", "s.smap", "dir.npy", "points"], force].concat();
        assert_eq!(dir.refusal(&args), "export dir.npy: the path exists and is not a regular file");
    }
}

#[test]
fn dry_run_says_which_files_a_sharded_export_writes() {
    let dir = Dir::with_store();
    let args = ["export", "s.smap", "m.safetensors", "--max-shard-size", "30", "-n"];
    let said = dir.stdout(&args);
    assert!(
        said.starts_with("would write m.safetensors.index.json and its shards: 3 tensors, 56 B\n"),
        "{said}"
    );
    // A single tensor is one file, whatever its size.
    let alone = [&args[..], &["points"]].concat();
    assert!(dir.stdout(&alone).starts_with("would write m.safetensors: 1 tensor, "));
}

/// What `import` suggests instead of a path that is not a store.
const NEW_PATH: &str = "; name a path that does not exist, to create a store there";

#[test]
fn path_that_is_no_store_is_refused_by_every_command() {
    let dir = Dir::empty();
    dir.write("file", b"text");
    fs::create_dir(dir.path("photos")).unwrap();
    dir.write("photos/cat.jpg", b"cat");
    dir.write_safetensors("m.safetensors", TENSOR, &[0; 8]);
    let file = "a safetensors file, not a store; import it first: stridemap import m.safetensors STORE";
    for (path, reason) in [
        ("none.smap", "no store at this path"),
        ("file", "not a stridemap store: it is not a directory"),
        ("photos", "not a stridemap store: it has no FORMAT file"),
        ("m.safetensors", file),
    ] {
        for args in on_store(path) {
            assert_eq!(dir.refusal(&args), format!("open {path}: {reason}"));
        }
    }
    for path in ["file", "photos"] {
        assert!(dir.refusal(&["import", "m.safetensors", path]).ends_with(NEW_PATH));
    }
    assert_eq!(fs::read_dir(dir.path("photos")).unwrap().count(), 1);
}

#[test]
fn error_for_an_unknown_name_lists_the_nearest() {
    let dir = Dir::with_store();
    for (args, action) in [
        (&["show", "s.smap", "poinst[0]"][..], "load"),
        (&["view", "s.smap", "poinst", "new"], "load"),
        (&["mv", "s.smap", "poinst", "new"], "rename"),
        (&["rm", "s.smap", "points_t", "poinst"], "remove"),
        (&["export", "s.smap", "out.npy", "poinst"], "load"),
    ] {
        let refusal = dir.refusal(args);
        let expected = format!("{action} \"poinst\": no tensor with this name; did you mean \"points\"");
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

#[test]
fn refused_import_creates_no_store_and_leaves_an_empty_directory() {
    let dir = Dir::empty();
    fs::create_dir(dir.path("empty")).unwrap();
    let long = "x".repeat(1 << 20);
    let with_metadata = |key: &str, value: &str| {
        TENSOR.replace("{\"w\"", &format!("{{\"__metadata__\":{{\"{key}\":\"{value}\"}},\"w\""))
    };
    for (header, what) in [
        (with_metadata("", "x"), "1 to 4096 bytes"),
        (TENSOR.replace("\"w\"", "\"\""), "1 to 4096 bytes"),
        (TENSOR.replace("\"w\"", &format!("\"{}\"", &long[..4097])), "1 to 4096 bytes"),
    ] {
        dir.write_safetensors("m.safetensors", &header, &[0; 8]);
        for store in ["new.smap", "empty"] {
            let refusal = dir.refusal(&["import", "m.safetensors", store]);
            assert!(refusal.contains(what), "{refusal}");
        }
    }
    // Each file has few enough attributes, but not both together.
    for (name, key) in [("a.safetensors", "k"), ("b.safetensors", "l")] {
        let header = with_metadata(key, &long[..600_000]);
        dir.write_safetensors(name, &header.replace("\"w\"", &format!("\"{name}\"")), &[0; 8]);
    }
    let refusal = dir.refusal(&["import", "a.safetensors", "b.safetensors", "new.smap"]);
    assert_eq!(
        refusal,
        "import: the attributes of the files have 1200002 bytes, but a store holds at most 1048576; --only leaves some out"
    );
    assert_eq!(fs::read_dir(dir.path("empty")).unwrap().count(), 0);
    dir.write_safetensors("w.safetensors", TENSOR, &[0; 8]);
    assert!(
        dir.refusal(&["import", "w.safetensors", "new.smap", "--prefix", &long[..4096]]).contains("name")
    );
    dir.messages(&["import", "w.safetensors", "empty"]);
}

#[test]
fn bad_file_is_refused_before_anything_is_created() {
    let elements = [0; 8];
    for (header, elements, what) in [
        (TENSOR, &elements[..7], "too short"),
        (TENSOR, &[0; 9], "too long"),
        (&TENSOR[..20], &elements[..], "a header cut in the middle"),
        (&TENSOR.replace("[2]", "[3]"), &elements, "a shape that is not its bytes"),
        (&TENSOR.replace("[2]", "[4611686018427387904, 4]"), &elements, "a size that overflows"),
        (&TENSOR.replace("[0,8]", "[8,16]"), &elements, "elements past the end"),
        (&TENSOR.replace("F32", "X99"), &elements, "an unknown dtype"),
    ] {
        let (fresh, existing) = (Dir::empty(), Dir::with_store());
        for dir in [&fresh, &existing] {
            dir.write_safetensors("good.safetensors", TENSOR, &[0; 8]);
            dir.write_safetensors("bad.safetensors", header, elements);
            let refusal = dir.refusal(&["import", "good.safetensors", "bad.safetensors", "s.smap"]);
            assert!(refusal.starts_with("read bad.safetensors: "), "{what}: {refusal}");
        }
        assert!(!fresh.path("s.smap").exists(), "{what}");
    }
}

#[test]
fn only_regular_files_are_imported() {
    let dir = Dir::with_store();
    assert_eq!(dir.refusal(&["import", "none.npy", "s.smap"]), "open none.npy: no such file");
    fs::create_dir(dir.path("model")).unwrap();
    for (args, line) in [
        (
            ["s.smap", "w.npy"],
            "import s.smap: a store; name it last to import into it, or copy its tensors: copy STORE NAME... STORE2",
        ),
        (["model", "s.smap"], "import model: a directory; name the files in it"),
        (["/dev/null", "s.smap"], "open /dev/null: not a regular file"),
    ] {
        assert_eq!(dir.refusal(&["import", args[0], args[1]]), line);
    }
    dir.write("model/model.safetensors.index.json", b"{}");
    assert_eq!(
        dir.refusal(&["import", "model", "s.smap"]),
        "import model: a directory; name the index of the model in it, model/model.safetensors.index.json"
    );
}

#[test]
fn refusal_says_what_was_probably_meant() {
    let dir = Dir::with_store();
    dir.write("empty", b"");
    dir.write("notes", b"What the weights mean: nothing.");
    dir.write_safetensors("model.safetensors", TENSOR, &[0; 8]);
    for (args, refusal) in [
        (&["ls", "s.sma"][..], "open s.sma: no such file or store; did you mean s.smap?"),
        (&["rm", "s.sma", "x"], "open s.sma: no store at this path; did you mean s.smap?"),
        (&["ls", "-"], "open -: no such file or store; only import and export use - for a pipe"),
        (&["import", "emty", "s.smap"], "open emty: no such file; did you mean empty?"),
        (&["-q", "import", "emty", "s.smap"], "open emty: no such file; did you mean empty?"),
        (&["append", "s.smap", "points", "emty"], "open emty: no such file; did you mean empty?"),
        (&["show", "s.smap", ""], "the expression is empty"),
        (&["ls", "empty"], "read empty: the file is empty"),
        (&["import", "notes", "s.smap"], "read notes: not a tensor file (supported: .safetensors, .npy, "),
        (&["export", "s.smap", "out.npy"], "export out.npy: a .npy file holds one tensor, not "),
        (&["export", "s.smap", "out.txt"], "export out.txt: the extension selects the format and must be "),
        (&["export", "s.smap", ".npy"], "export .npy: the extension selects the format and must be "),
        (&["rm", "s.smap", "p[*"], "the glob \"p[*\" is not valid: unclosed character class; missing ']'"),
        (&["export", "s.smap", "no/x.npy", "points"], "export no/x.npy: the directory no does not exist"),
    ] {
        let said = dir.refusal(args);
        assert!(said.starts_with(refusal), "{said}");
    }
    // The same ending is no likeness to model.safetensors.
    let far = dir.refusal(&["ls", "other.safetensors"]);
    assert_eq!(far, "open other.safetensors: no such file or store");
    let order = dir.refusal(&["export", "s.smap", "points", "x.npy"]);
    assert!(order.ends_with("that end like one: stridemap export s.smap x.npy points"), "{order}");
    let order = dir.refusal(&["convert", "model.safetensors", "half.safetensors", "--to", "bf16"]);
    let export = "stridemap export model.safetensors OUT.safetensors --to bfloat16";
    assert!(order.ends_with(&format!("a file, not a store; to write another file: {export}")), "{order}");
    let dtype = dir.run(&["ls", "s.smap", "--dtype", "float"]).stderr;
    assert!(dtype.contains("expected one of bool, uint8, "), "{dtype}");
}

#[test]
fn messages_name_no_items_of_the_library() {
    let dir = Dir::with_store();
    dir.write_npy("untyped.npy", "|V2", "(1,)", &[0; 2]);
    dir.write_safetensors("x.safetensors", TENSOR, &[0; 8]);
    dir.messages(&["import", "x.safetensors", "s.smap", "--in-place"]);
    for (args, flag) in [
        (&["import", "untyped.npy", "s.smap"][..], "(--untyped)"),
        (&["show", "s.smap", "w", "--external", "none"], "--external beside"),
        (&["view", "s.smap", "points", ""], "view: "),
        (&["mv", "s.smap", "points", ""], "name"),
    ] {
        let refusal = dir.refusal(args);
        assert!(
            refusal.contains(flag) && !["::", "save_view", "F-4"].iter().any(|item| refusal.contains(item)),
            "{refusal}"
        );
    }
    let diff = dir.run(&["diff", "s.smap", "x.safetensors", "--external", "none"]);
    assert!(diff.stderr.contains("--external beside"), "{diff:?}");
    assert!(!diff.stderr.contains("::"), "{diff:?}");
}
