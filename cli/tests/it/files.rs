//! The `import` and `export` commands.

use std::fs;
use std::process::Command;

use stridemap::{Durability, Store, StoreOptions, Tensor};

use crate::harness::{Dir, tree};

const MATRIX: &str =
    r#"{"__metadata__":{"format":"pt","who":"a"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
const VECTOR: &str =
    r#"{"__metadata__":{"format":"np"},"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;

/// Writes the `.npy` file of `np.array([[1, 2, 3], [4, 5, 6]], 'u1')`.
fn write_npy(dir: &Dir, name: &str) {
    dir.write_npy(name, "|u1", "(2, 3)", &[1, 2, 3, 4, 5, 6]);
}

#[test]
fn import_creates_the_store_and_adds_all_files_in_one_commit() {
    let dir = Dir::empty();
    dir.write_safetensors("m.safetensors", MATRIX, &[0; 8]);
    write_npy(&dir, "grid.v1.npy");
    assert_eq!(
        dir.messages(&["import", "m.safetensors", "grid.v1.npy", "s.smap"]),
        "stridemap: imported 2 tensors, 14 B, into s.smap: generation 2\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "grid.v1\nw\n");
    assert_eq!(dir.store().attributes("")["format"], "pt");
}

#[test]
fn import_detects_formats_by_content_and_adds_the_prefix_to_names() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "points.npy", "points", "--order", "F"]);
    fs::rename(dir.path("points.npy"), dir.path("grid.safetensors")).unwrap();
    dir.write_safetensors("w", MATRIX, &[0; 8]);
    dir.messages(&["import", "grid.safetensors", "w", "s.smap", "--prefix", "new."]);
    assert_eq!(dir.stdout(&["ls", "s.smap", "new."]), "new.grid\nnew.w\n");
    assert_eq!(dir.store().load("new.grid").unwrap().read::<f32>().unwrap(), [1., 4., 2., 1., 3., 5.]);
}

#[test]
fn import_notes_conflicting_metadata_and_keeps_the_last() {
    let dir = Dir::empty();
    dir.write_safetensors("a.safetensors", MATRIX, &[0; 8]);
    dir.write_safetensors("b.safetensors", VECTOR, &[0; 8]);
    assert_eq!(
        dir.messages(&["import", "a.safetensors", "b.safetensors", "s.smap"]),
        "stridemap: note: a.safetensors and b.safetensors disagree on \"format\"; the last wins\n\
         stridemap: imported 2 tensors, 16 B, into s.smap: generation 2\n"
    );
    let attributes: Vec<_> = dir.store().attributes("").into_iter().collect();
    assert_eq!(attributes, [("format".into(), "np".into()), ("who".into(), "a".into())]);
}

#[test]
fn import_keeps_an_attribute_of_the_store_and_replaces_it_with_force() {
    let dir = Dir::with_store();
    dir.write_safetensors("m.safetensors", &VECTOR.replace("\"b\"", "\"c\""), &[0; 8]);
    let kept = dir.messages(&["import", "m.safetensors", "s.smap"]);
    assert!(kept.contains("note: the store keeps its own \"format\""), "{kept}");
    assert_eq!(dir.store().attributes("")["format"], "pt");
    let replaced = dir.messages(&["import", "m.safetensors", "s.smap", "--force"]);
    assert!(
        replaced.contains("note: the \"format\" of m.safetensors replaces that of the store"),
        "{replaced}"
    );
    assert_eq!(dir.store().attributes("")["format"], "np");
}

#[test]
fn safetensors_export_imports_unchanged() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.messages(&["export", "s.smap", "out.safetensors"]),
        "stridemap: note: 1 tensor shares bytes with another, so the file stores them twice (up to 24 B extra): \
         \"points_t\" with \"points\"\n\
         stridemap: exported 3 tensors, 56 B, to out.safetensors\n"
    );
    dir.messages(&["import", "out.safetensors", "copy.smap"]);
    let (store, copy) = (dir.store(), Store::open(dir.path("copy.smap")).unwrap());
    assert_eq!(copy.names().unwrap(), store.names().unwrap());
    assert_eq!(copy.attributes(""), store.attributes(""));
    for name in store.names().unwrap() {
        let (original, copied) = (store.load(&name).unwrap(), copy.load(&name).unwrap());
        assert_eq!(original.size(), copied.size(), "{name}");
        assert_eq!(original.to_bytes().unwrap(), copied.to_bytes().unwrap(), "{name}");
    }
}

#[test]
fn export_of_npy_writes_one_tensor_in_logical_order() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.messages(&["export", "s.smap", "out.npy", "points_t"]),
        "stridemap: exported 1 tensor, 24 B, to out.npy\n"
    );
    dir.messages(&["import", "out.npy", "copy.smap"]);
    let copied = Store::open(dir.path("copy.smap")).unwrap().load("out").unwrap();
    assert_eq!((copied.size(), copied.read::<f32>().unwrap()), (&[2, 3][..], vec![1., 2., 3., 4., 1., 5.]));
}

#[test]
fn export_in_parts_prints_their_number_and_imports_by_its_index() {
    let dir = Dir::with_store();
    let said = dir.messages(&["export", "s.smap", "out.safetensors", "--max-shard-size", "30"]);
    assert!(said.contains("3 tensors, 56 B, to out.safetensors, in 3 shards and an index"), "{said}");
    assert!(!dir.path("out.safetensors").exists());
    dir.messages(&["import", "out.safetensors.index.json", "copy.smap"]);
    let copy = Store::open(dir.path("copy.smap")).unwrap();
    assert_eq!(copy.names().unwrap(), dir.store().names().unwrap());
    assert_eq!(copy.attributes("")["total_size"], "56");
    let said = dir.messages(&["export", "s.smap", "out.safetensors", "--max-shard-size", "1GiB"]);
    let note = "to out.safetensors\nstridemap: note: out.safetensors.index.json also exists; ";
    assert!(said.contains(note), "{said}");
    let said = dir.messages(&["export", "s.smap", "out.safetensors", "--max-shard-size", "30", "--force"]);
    assert!(said.contains("note: out.safetensors also exists"), "{said}");
}

#[test]
fn export_to_a_store_copies_it() {
    let dir = Dir::with_store();
    let size = |bytes: u64| format!("stridemap: exported 3 tensors, {bytes} B, to copy.smap");
    let snapshot = dir.store().snapshot();
    let bytes: u64 = snapshot.storages().map(|storage| storage.unwrap().size_bytes).sum();
    assert!(dir.messages(&["export", "s.smap", "copy.smap"]).starts_with(&size(bytes)));
    assert_eq!(dir.stdout(&["diff", "--strict", "s.smap", "copy.smap"]), "equal: 3 tensors, 56 B\n");
    assert_eq!(dir.stdout(&["verify", "copy.smap"]), "ok\n");
    assert_ne!(Store::open(dir.path("copy.smap")).unwrap().uuid(), dir.store().uuid());

    let refusal = dir.refusal(&["export", "s.smap", "copy.smap"]);
    assert_eq!(
        refusal,
        "export copy.smap: the path exists, and a store is never replaced; choose a different path"
    );
    for flag in [&["--order", "F"][..], &["--compress"], &["--max-shard-size", "1GB"]] {
        let refusal = dir.refusal(&[&["export", "s.smap", "other.smap"], flag].concat());
        assert!(refusal.contains(flag[0]), "{refusal}");
    }
    assert!(dir.refusal(&["export", "s.smap", "other.smap", "pints"]).contains("points"));

    dir.messages(&["export", "s.smap", "some.smap", "points_t"]);
    assert_eq!(dir.stdout(&["ls", "some.smap"]), "points_t\n");
    assert_eq!(dir.stdout(&["show", "some.smap", "points_t"]), dir.stdout(&["show", "s.smap", "points_t"]));
}

#[test]
fn export_notes_names_over_the_same_bytes() {
    let dir = Dir::with_store();
    for n in 0..9 {
        dir.messages(&["view", "s.smap", "points", &format!("tied.{n}")]);
    }
    let said = dir.messages(&["export", "s.smap", "out.safetensors"]);
    assert!(said.contains("10 tensors share bytes") && said.contains("240 B extra"), "{said}");
    assert!(said.contains("\"tied.0\" with \"points\"") && said.contains(", and 6 more\n"), "{said}");
    let said = dir.messages(&["export", "s.smap", "out.safetensors", "points", "--force"]);
    assert!(!said.contains("note"), "{said}");
}

#[test]
fn verbose_import_reports_what_was_done_with_each_file() {
    let dir = Dir::empty();
    dir.write_safetensors("m.safetensors", MATRIX, &[0; 8]);
    dir.write_safetensors("v.safetensors", &VECTOR.replace("np", "pt"), &[0; 8]);
    assert_eq!(
        dir.messages(&["import", "m.safetensors", "v.safetensors", "s.smap", "--verbose"]),
        "stridemap: m.safetensors: copied 8 B\nstridemap: v.safetensors: copied 8 B\n\
         stridemap: imported 2 tensors, 16 B, into s.smap: generation 2\n"
    );
    let said = dir.messages(&["import", "m.safetensors", "in_place.smap", "--in-place", "--verbose"]);
    assert!(said.contains("m.safetensors: left in place\n"), "{said}");
}

#[test]
fn import_or_export_above_the_file_size_limit_is_an_error_that_leaves_nothing_behind() {
    let dir = Dir::with_store();
    fs::create_dir(dir.path("empty")).unwrap();
    dir.write_safetensors("a.safetensors", MATRIX, &[0; 8]);
    let header = r#"{"big":{"dtype":"U8","shape":[9000000],"data_offsets":[0,9000000]}}"#;
    dir.write_safetensors("big.safetensors", header, &[0; 9_000_000]);
    dir.messages(&["import", "big.safetensors", "big.smap"]);
    let before = tree(&dir.path(""));
    for args in [
        &["import", "a.safetensors", "big.safetensors", "s.smap"][..],
        &["import", "a.safetensors", "big.safetensors", "new.smap"],
        &["import", "a.safetensors", "big.safetensors", "empty"],
        &["import", "big.safetensors", "big.smap", "--force"],
        &["export", "big.smap", "out.safetensors"],
    ] {
        let limited = ["-c", "ulimit -f 1000 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_stridemap")];
        let output = Command::new("sh").args(limited).args(args).current_dir(dir.path("")).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && message.contains("File too large"), "{message}");
        assert!(tree(&dir.path("")) == before, "{args:?}");
    }
}

#[test]
fn all_names_are_checked_before_anything_is_written() {
    let dir = Dir::with_store();
    dir.write_safetensors("a.safetensors", MATRIX, &[0; 8]);
    let before = tree(&dir.path(""));
    for name in ["points", "w", ""] {
        dir.write_safetensors(
            "b.safetensors",
            &VECTOR.replace("np", "pt").replace("\"b\"", &format!("{name:?}")),
            &[0; 8],
        );
        for store in ["s.smap", "new.smap"].iter().filter(|store| **store == "s.smap" || name != "points") {
            dir.refusal(&["import", "a.safetensors", "b.safetensors", store]);
        }
    }
    fs::remove_file(dir.path("b.safetensors")).unwrap();
    assert!(tree(&dir.path("")) == before);
}

#[test]
fn store_is_not_created_under_the_name_of_a_file() {
    let dir = Dir::empty();
    dir.write_safetensors("a.safetensors", MATRIX, &[0; 8]);
    dir.write_safetensors("b.safetensors", VECTOR, &[0; 8]);
    let endings = ["safetensors", "npy", "npz", "pt", "pth", "bin", "safetensors.index.json", "NPY"];
    let targets = endings.map(|ending| format!("new.{ending}"));
    for target in targets.iter().map(String::as_str).chain(["b.safetensors"]) {
        let refusal = dir.refusal(&["import", "a.safetensors", target]);
        assert_eq!(
            refusal,
            format!(
                "import {target}: this is the name of a file, and the last path must be that of a store, such as \
                 model.smap"
            )
        );
    }
    // A store that has such a name.
    Store::create(dir.path("old.npy")).unwrap();
    dir.messages(&["import", "a.safetensors", "old.npy"]);
}

#[test]
fn more_files_than_the_soft_limit_are_imported_and_exported() {
    let dir = Dir::empty();
    let run = |args: &[&str]| {
        let limited = ["-c", "ulimit -Sn 40 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_stridemap")];
        let output = Command::new("sh").args(limited).args(args).current_dir(dir.path("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let files: Vec<String> = (0..50).map(|index| format!("{index}.npy")).collect();
    for file in &files {
        write_npy(&dir, file);
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    run(&[&["import"], &files[..], &["s.smap"]].concat());

    // Each tensor has its own storage.
    let store = StoreOptions::new().durability(Durability::Process).open(dir.path("s.smap")).unwrap();
    for file in &files {
        store.save(file, &Tensor::from_vec(vec![0u8; 4], &[4]).unwrap()).unwrap();
    }
    run(&["export", "s.smap", "out.safetensors"]);
}
