//! Standard input and output in place of files.

use std::fs;
use std::process::{Command, Output};

use stridemap::Tensor;

use crate::harness::Dir;

/// Runs a pipeline in a shell. Its exit code is that of the first command that fails.
fn bash(dir: &Dir, script: &str) -> Output {
    let bin = env!("CARGO_BIN_EXE_stridemap");
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("set -o pipefail\nstridemap() {{ '{bin}' \"$@\"; }}\n{script}")]);
    shell.current_dir(dir.path("")).output().unwrap()
}

#[track_caller]
fn stderr(dir: &Dir, script: &str) -> String {
    let output = bash(dir, script);
    assert!(output.status.success() && output.stdout.is_empty(), "{script}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn exported_store_can_be_imported_through_a_pipe() {
    let dir = Dir::with_store();
    let said = stderr(&dir, "stridemap export s.smap - | stridemap import - t.smap");
    assert!(said.contains("exported 3 tensors, 56 B, to standard output\n"), "{said}");
    assert!(said.contains("imported 3 tensors, 56 B, into t.smap: generation 2\n"), "{said}");
    assert_eq!(
        dir.stdout(&["diff", "s.smap", "t.smap"]),
        "equal: 3 tensors, 56 B; 1 with different strides; 1 with different sharing of bytes (--strict)\n"
    );
    assert_eq!(dir.stdout(&["attr", "get", "t.smap", "format"]), "pt\n");
    let mut names: Vec<_> =
        fs::read_dir(dir.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["s.smap", "t.smap"]);
}

#[test]
fn standard_output_is_safetensors_unless_format_says_npy() {
    let dir = Dir::with_store();
    for (args, is_npy) in [
        ("points_t", false),
        ("'odd [name]' --format npy", true),
        ("points*", false),
        ("points_*", false),
        ("points points_t", false),
        ("", false),
        ("points_t --format npy --order F", true),
        ("points_t --format safetensors", false),
        ("--prefix points_", false),
    ] {
        stderr(&dir, &format!("stridemap export -q s.smap - {args} > out"));
        let written = fs::read(dir.path("out")).unwrap();
        assert_eq!((written.starts_with(b"\x93NUMPY"), written[8] == b'{'), (is_npy, !is_npy), "{args}");
    }
    // A store with one tensor is not exported otherwise.
    stderr(&dir, "stridemap export -q s.smap one.smap points; stridemap export -q one.smap - > out");
    assert_eq!(fs::read(dir.path("out")).unwrap()[8], b'{');
}

#[test]
fn unnamed_tensor_from_a_pipe_is_named_stdin() {
    let dir = Dir::with_store();
    stderr(&dir, "stridemap export -q s.smap - points_t --format npy | stridemap import -q - s.smap");
    let npy = "stridemap export -q s.smap - points_t --format npy";
    stderr(&dir, &format!("{npy} | stridemap import -q - s.smap --rename stdin=again"));
    let store = dir.store();
    let expected = store.load("points_t").unwrap().read::<f32>().unwrap();
    for name in ["stdin", "again"] {
        assert_eq!(store.load(name).unwrap().read::<f32>().unwrap(), expected, "{name}");
    }
}

#[test]
fn pipe_is_imported_with_other_files() {
    let dir = Dir::with_store();
    stderr(&dir, "stridemap export -q s.smap p.npy points");
    stderr(&dir, "stridemap export -q s.smap - points_t --format npy | stridemap import -q p.npy - t.smap");
    stderr(&dir, "stridemap import -q - u.smap < p.npy");
    assert_eq!(dir.stdout(&["ls", "t.smap"]), "p\nstdin\n");
    assert_eq!(dir.stdout(&["ls", "u.smap"]), "stdin\n");
}

#[test]
fn reader_that_has_read_enough_ends_a_command_quietly() {
    let dir = Dir::with_store();
    dir.store().save("big", &Tensor::from_vec(vec![7u8; 8 << 20], &[8 << 20]).unwrap()).unwrap();
    for command in
        ["export s.smap - big", "export s.smap - --format safetensors", "show s.smap big --format csv"]
    {
        let output = bash(&dir, &format!("stridemap {command} | head -c 10"));
        assert!(output.status.success(), "{output:?}");
        assert_eq!((output.stdout.len(), String::from_utf8(output.stderr).unwrap()), (10, String::new()));
    }
}

#[test]
fn endless_pipe_is_refused_by_its_first_bytes() {
    let dir = Dir::empty();
    dir.write_safetensors("m.safetensors", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, &[7]);
    for (input, said) in [
        ("yes", "read stdin: not a tensor file (supported: "),
        ("cat /dev/zero", "read stdin: not a tensor file (supported: "),
        ("cat m.safetensors /dev/zero", "the header describes 1 bytes of elements, but 2 bytes follow it"),
    ] {
        let output = bash(&dir, &format!("{input} | stridemap import - t.smap; exit ${{PIPESTATUS[1]}}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(said), "{input}: {stderr}");
    }
}

#[test]
fn pipe_may_carry_more_than_fits_in_memory() {
    let dir = Dir::empty();
    let bytes = 512u64 << 20;
    let header = format!(r#"{{"big":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    dir.write_safetensors("big.safetensors", &header, &[]);
    let file = fs::File::options().write(true).open(dir.path("big.safetensors")).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
    dir.messages(&["import", "--quiet", "--in-place", "big.safetensors", "s.smap"]);
    let script = "ulimit -v 400000; stridemap export -q s.smap - | stridemap import -q - t.smap";
    assert_eq!(stderr(&dir, script), "");
    assert_eq!(
        dir.stdout(&["diff", "--no-values", "s.smap", "t.smap"]),
        "equal: 1 tensor, 512.00 MiB; values were not compared\n"
    );
}

#[test]
fn what_cannot_be_piped_is_refused() {
    let dir = Dir::with_store();
    dir.write("empty", b"");
    for (script, refusal) in [
        ("stridemap import - - t.smap < empty", "import -: standard input can be read only once"),
        ("stridemap import - t.smap < empty", "read stdin: "),
        ("printf text | stridemap import - t.smap", "read stdin: "),
        (
            "stridemap import --in-place - t.smap < empty",
            "import --in-place -: standard input cannot stay in place",
        ),
        ("stridemap export s.smap - --format npy | cat", "holds one tensor, not 3"),
        ("stridemap export s.smap - --compress | cat", "--compress is for .npz files"),
        ("stridemap export s.smap - --max-shard-size 1MB | cat", "--max-shard-size is for files"),
        ("stridemap export s.smap x.npy points --format npy", "--format is for standard output"),
        ("stridemap export s.smap - none | cat", "no tensor with this name"),
    ] {
        let output = bash(&dir, script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{script}: {said}");
        assert!(said.contains(refusal) && said.lines().count() == 1, "{script}: {said}");
        assert!(!dir.path("t.smap").exists());
    }
}

/// `script` of util-linux gives a command a terminal.
#[test]
fn terminal_is_neither_read_nor_written() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: script is not there");
        return;
    }
    let dir = Dir::with_store();
    let bin = env!("CARGO_BIN_EXE_stridemap");
    for (args, refusal) in [
        (
            "export s.smap - points",
            "export -: standard output is a terminal; redirect it to a file or a pipe",
        ),
        ("import - t.smap", "import -: standard input is a terminal; pipe a file into it, or name the file"),
    ] {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &format!("'{bin}' {args}"), "/dev/null"]);
        let output = script.current_dir(dir.path("")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), said.trim()),
            (Some(2), &*format!("stridemap: {refusal}")),
            "{said}"
        );
    }
}

#[test]
fn standard_input_is_not_a_store_to_import_into() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "m.npz"]);
    let refusal = dir.refusal(&["import", "m.npz", "-"]);
    assert!(refusal.starts_with("import: the store is missing; - is standard input"), "{refusal}");
}

#[test]
fn index_of_other_files_is_not_read_from_a_pipe() {
    let dir = Dir::with_store();
    dir.write("index.json", br#"{"weight_map": {"w": "w.safetensors"}}"#);
    let mut import = dir.command(&["import", "-", "new.smap"]);
    let output = import.stdin(std::fs::File::open(dir.path("index.json")).unwrap()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("open it by its path"), "{message}");
    assert!(!dir.path("new.smap").exists());
}
