//! NumPy files: the command line and NumPy read each other's.

use std::env;
use std::process::Command;

use crate::harness::Dir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/numpy_files.py");

/// Skipped, with the reason printed, if python3, numpy or `ml_dtypes` is missing. `STRIDEMAP_REQUIRE_PYTHON` turns
/// that into a failure.
#[test]
fn numpy_and_the_command_line_read_the_same_files() {
    let found = Command::new("python3").args(["-c", "import numpy, ml_dtypes"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 with numpy and ml_dtypes is not there");
        assert!(
            env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(),
            "python3 with numpy and ml_dtypes is required"
        );
        return;
    }
    let ran = Command::new("python3").args(["-B", SCRIPT, env!("CARGO_BIN_EXE_stridemap")]).output().unwrap();
    let (said, failed) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}{failed}");
    print!("{said}");
}

#[test]
fn flags_that_a_format_does_not_use_are_refused() {
    let dir = Dir::with_store();
    for (args, why) in [
        (["out.safetensors", "--order", "F"].as_slice(), "--order is for .npy and .npz files"),
        (&["out.npy", "points", "--compress"], "--compress is for .npz files"),
        (&["out.safetensors", "--compress"], "--compress is for .npz files"),
    ] {
        let refusal = dir.refusal(&[&["export", "s.smap"], args].concat());
        assert!(refusal.contains(why), "{refusal}");
        assert!(!dir.path(args[0]).exists());
    }
}

#[test]
fn every_command_reads_big_endian_and_untyped_arrays() {
    let dir = Dir::empty();
    dir.write_npy("x.npy", ">i2", "(3,)", &[0, 1, 0, 2, 0, 3]);
    dir.write_npy("v.npy", "|V2", "(3,)", &[0x80, 0x3f, 0, 0x40, 0x40, 0x40]);
    for (file, name, flags, dtype) in
        [("x.npy", "x", &[][..], "int16"), ("v.npy", "v", &["--untyped", "bfloat16"], "bfloat16")]
    {
        for (args, shown) in [
            (&["ls", "-l", file][..], dtype),
            (&["tree", file], dtype),
            (&["info", file, "--all"], dtype),
            (&["show", file, name], "1., 2., 3."),
            (&["stats", file, "--json"], "\"max\":3"),
            (&["du", "--map", file, "--json"], name),
            (&["plot", file, name], "3"),
            (&["report", file, "-o", "r.html", "--force"], ""),
            (&["diff", file, file, "--json"], "\"equal\":true"),
            (&["import", file, "s.smap", "--force"], ""),
            (&["append", "s.smap", name, file], ""),
        ] {
            if let Some(flag) = flags.first() {
                let without = dir.run(args);
                assert!(without.code == Some(2) && without.stderr.contains(flag), "{args:?}: {without:?}");
            }
            let run = dir.run(&[args, flags].concat());
            let shown = if dtype == "int16" { shown.replace('.', "") } else { shown.to_owned() };
            assert!(run.code == Some(0) && run.stdout.contains(&shown), "{args:?}: {run:?}");
        }
        let stats = dir.stdout(&["stats", "s.smap", name, "--json"]);
        assert!(stats.contains("\"count\":6"), "{stats}");
    }
}

#[test]
fn names_that_are_changed_in_an_archive_are_printed() {
    let dir = Dir::with_store();
    let store = dir.store();
    store.write(|txn| ["../x", "/abs", "a/b"].iter().try_for_each(|name| txn.save(name, &1u8))).unwrap();
    let said = dir.messages(&["export", "s.smap", "x.npz", "../x", "/abs", "a/b"]);
    let notes: Vec<&str> = said.lines().filter(|line| line.contains("note")).collect();
    assert_eq!(
        notes,
        [
            "stridemap: note: ../x is named _/x in the file: as a path, its name could lead anywhere",
            "stridemap: note: /abs is named abs in the file: as a path, its name could lead anywhere"
        ]
    );
    assert_eq!(dir.stdout(&["ls", "-1", "x.npz"]), "_/x\na/b\nabs\n");
}
