//! The `append` command.

use std::fs;

use crate::harness::Dir;

/// Writes a `.npy` file: rows of three bytes, counting up from `first`.
fn write_rows(dir: &Dir, name: &str, first: u8, rows: u8) {
    let elements: Vec<u8> = (first..first + rows * 3).collect();
    dir.write_npy(name, "|u1", &format!("({rows}, 3)"), &elements);
}

fn rows(dir: &Dir) -> Vec<u8> {
    dir.store().load("log").unwrap().read().unwrap()
}

fn with_log() -> Dir {
    let dir = Dir::empty();
    write_rows(&dir, "log.npy", 0, 1);
    write_rows(&dir, "more.npy", 3, 2);
    write_rows(&dir, "last.npy", 9, 1);
    dir.messages(&["import", "log.npy", "s.smap"]);
    dir
}

#[test]
fn append_writes_the_rows_of_all_files_in_one_commit() {
    let dir = with_log();
    let before = dir.store();
    assert_eq!(
        dir.messages(&["append", "s.smap", "log", "more.npy", "last.npy"]),
        "stridemap: appended 3 rows to \"log\", which now has 4: generation 3\n"
    );
    assert_eq!(rows(&dir), Vec::from_iter(0..12));
    assert_eq!(before.load("log").unwrap().size(), [1, 3]);
    assert_eq!(dir.store().snapshot().storages().count(), 1);
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn append_of_several_files_is_refused_if_one_does_not_fit() {
    let dir = with_log();
    dir.write("none.npy", b"not an array");
    let header = r#"{"a":{"dtype":"U8","shape":[1,3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[0,3],"data_offsets":[3,3]}}"#;
    dir.write_safetensors("two.safetensors", header, &[0; 3]);
    dir.write_safetensors("no.safetensors", "{}", &[]);
    let floats = r#"{"a":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]}}"#;
    dir.write_safetensors("floats.safetensors", floats, &[0; 12]);
    for (file, why) in [
        ("none.npy", "none.npy"),
        ("missing.npy", "missing.npy"),
        ("two.safetensors", "append two.safetensors: 2 tensors, but one is expected"),
        ("no.safetensors", "append no.safetensors: 0 tensors, but one is expected"),
        ("floats.safetensors", "append floats.safetensors: append to \"log\": the rows are float32"),
    ] {
        let refusal = dir.refusal(&["append", "s.smap", "log", "more.npy", file]);
        assert!(refusal.contains(why), "{refusal}");
    }
    assert_eq!(rows(&dir), [0, 1, 2]);
    assert_eq!(fs::metadata(dir.path("s.smap/storages/0000000000000001.bin")).unwrap().len(), 3);
    let refusal = dir.refusal(&["append", "s.smap", "lgo", "more.npy"]);
    assert_eq!(refusal, "append to \"lgo\": no tensor with this name; did you mean \"log\"?");
}

#[test]
fn append_to_a_tensor_that_cannot_grow_advises_how_to_make_one_that_can() {
    let dir = with_log();
    dir.messages(&["view", "s.smap", "log.flip(0)", "reversed"]);
    dir.messages(&["append", "s.smap", "log", "more.npy"]);
    let refusal = dir.refusal(&["append", "s.smap", "reversed", "more.npy"]);
    let message = "append to \"reversed\": \"log\" follows it in the same storage";
    let advice = "; to give it its own storage, export it to a .npy file, and import only that file";
    assert!(refusal.starts_with(message) && refusal.ends_with(advice), "{refusal}");

    dir.messages(&["export", "s.smap", "reversed.npy", "reversed"]);
    dir.messages(&["import", "reversed.npy", "s.smap", "--force"]);
    dir.messages(&["append", "s.smap", "reversed", "more.npy"]);
    assert_eq!(dir.store().load("reversed").unwrap().read::<u8>().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}
