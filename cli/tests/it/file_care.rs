//! The `verify` and `du` commands on files in other formats.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::harness::{Dir, Run};
use crate::sources::checkpoints;

const NOTE: &str =
    "stridemap: note: the file has no checksums, so changed elements would not be found; a store has them\n";

/// Writes `m.npz` with the arrays a and b, of 40 bytes each.
fn dir() -> Dir {
    let dir = Dir::empty();
    dir.write_npy("a.npy", "|u1", "(40,)", &[7; 40]);
    dir.write_npy("b.npy", "|u1", "(40,)", &[8; 40]);
    dir.messages(&["export", "a.npy", "b.npy", "m.npz"]);
    dir
}

/// Changes an element of b in `m.npz`.
fn damage(dir: &Dir) {
    let bytes = fs::read(dir.path("m.npz")).unwrap();
    let at = bytes.windows(40).position(|run| run == [8; 40]).unwrap();
    dir.flip("m.npz", at + 5);
}

#[test]
fn whole_files_of_every_format_verify() {
    let dir = dir();
    assert_eq!(dir.stdout(&["verify", "m.npz"]), "ok\n");
    dir.messages(&["export", "m.npz", "m.safetensors", "--max-shard-size", "40"]);
    for file in ["a.npy", "m.safetensors.index.json"] {
        let run = dir.run(&["verify", file]);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "ok\n", NOTE), "{file}");
    }
    for file in checkpoints() {
        let run = dir.run(&["verify", file.to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), "ok\n"), "{run:?}");
    }
}

#[test]
fn wrong_checksum_is_reported_with_the_tensors_that_it_affects() {
    let dir = dir();
    damage(&dir);
    let run = dir.run(&["verify", "m.npz"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""), "{run:?}");
    assert!(run.stdout.starts_with("read m.npz: member \"b.npy\" of the zip file is damaged: "), "{run:?}");
    assert!(run.stdout.ends_with(": affects b\n") && run.stdout.lines().count() == 1, "{run:?}");
    // The damaged array is not read.
    assert_eq!(dir.stdout(&["verify", "m.npz", "a"]), "ok\n");
    assert_eq!(dir.run(&["verify", "m.npz", "b*"]).code, Some(1));
    let json: serde_json::Value =
        serde_json::from_str(&dir.run(&["verify", "m.npz", "--json"]).stdout).unwrap();
    assert_eq!((&json["findings"][0]["affects"], &json["bytes_read"]), (&json!(["b"]), &json!(80)));
}

#[test]
fn damaged_member_is_not_exported() {
    let dir = dir();
    damage(&dir);
    let refusal = dir.refusal(&["export", "m.npz", "o.safetensors"]);
    assert!(refusal.starts_with("read m.npz: member \"b.npy\" of the zip file is damaged: "), "{refusal}");
    assert!(!dir.path("o.safetensors").exists());
    dir.messages(&["export", "m.npz", "o.safetensors", "a"]);
}

#[test]
fn damaged_header_affects_all_tensors_and_another_file_is_refused() {
    let dir = dir();
    let mut bytes = fs::read(dir.path("a.npy")).unwrap();
    bytes.pop();
    dir.write("cut.npy", &bytes);
    let run = dir.run(&["verify", "cut.npy"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""), "{run:?}");
    assert!(
        run.stdout.starts_with("read cut.npy: ") && run.stdout.ends_with(": affects all tensors\n"),
        "{run:?}"
    );
    dir.write("junk", b"text");
    assert!(dir.refusal(&["verify", "junk"]).starts_with("read junk: not a tensor file"));
    assert!(dir.refusal(&["verify", "m.npz", "c"]).contains("no tensor with this name"));
}

#[test]
fn du_of_a_file_shows_what_it_holds_and_occupies() {
    let dir = dir();
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    dir.write_safetensors("m.safetensors", header, &[1; 4]);
    let length = 8 + header.len() + 4;
    let usage = dir.stdout(&["du", "m.safetensors"]);
    let expected = format!("format\tsafetensors\nreachable\t4\nunreachable\t0\nfile\t{length}\ndisk\t");
    assert!(usage.starts_with(&expected), "{usage}");
    assert_eq!(dir.stdout(&["du", "m.npz", "a", "*"]), "a\t1\t40\t0\n*\t2\t80\t0\ntotal\t2\t80\t0\n");
    assert_eq!(dir.run(&["du", "m.npz", "c"]).code, Some(1));

    // The files of a sharded model, and a file with a hole.
    dir.messages(&["export", "m.npz", "s.safetensors", "--max-shard-size", "40"]);
    let files = dir.json(&["du", "s.safetensors.index.json"]);
    assert_eq!((&files["reachable_bytes"], files["files"].as_array().unwrap().len()), (&json!(80), 3));
    let header = r#"{"a":{"dtype":"U8","shape":[16777216],"data_offsets":[0,16777216]}}"#;
    dir.write_safetensors("hole.safetensors", header, &[]);
    let file = fs::File::options().write(true).open(dir.path("hole.safetensors")).unwrap();
    file.set_len(8 + header.len() as u64 + (16 << 20)).unwrap();
    let usage = dir.json(&["du", "hole.safetensors"]);
    assert_eq!(usage["reachable_bytes"], 16 << 20);
    assert!(usage["disk_bytes"].as_u64().unwrap() < 1 << 20, "{usage}");
}

/// A system call that fails says nothing about the file.
#[test]
fn file_that_cannot_be_read_is_not_called_damaged() {
    if Command::new("strace").arg("-V").output().is_err() {
        assert!(std::env::var_os("STRIDEMAP_REQUIRE_STRACE").is_none(), "strace is required");
        return println!("skipped: strace is not installed");
    }
    let dir = dir();
    for failing in 1.. {
        let inject = format!("inject=pread64:error=EIO:when={failing}");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o", "trace", "-P", "m.npz", "-e", "trace=pread64", "-e", &inject]);
        let run =
            strace.arg(env!("CARGO_BIN_EXE_stridemap")).args(["verify", "m.npz"]).current_dir(dir.path(""));
        let run = Run::of(run.output().unwrap());
        if !fs::read_to_string(dir.path("trace")).unwrap().contains("INJECTED") {
            assert_eq!((run.code, run.stdout.as_str()), (Some(0), "ok\n"), "{run:?}");
            assert!(failing > 3, "the file is read by {failing} calls");
            break;
        }
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "call {failing}: {run:?}");
        assert!(run.stderr.contains("Input/output error"), "call {failing}: {run:?}");
    }
}
