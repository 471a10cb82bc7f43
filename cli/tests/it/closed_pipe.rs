//! The exit code of every command, whether or not its output is read.

use std::fs;
use std::io;
use std::process::Stdio;

use stridemap::Tensor;

use crate::harness::Dir;

/// Creates an intact store, stores that differ from it or are damaged, and files to import and to append.
fn place() -> Dir {
    let dir = Dir::with_store();
    dir.stdout(&["compact", "s.smap"]);
    for copy in ["other.smap", "damaged.smap", "unreadable.smap"] {
        let copied =
            std::process::Command::new("cp").args(["-r", "s.smap", copy]).current_dir(dir.path("")).status();
        assert!(copied.unwrap().success());
    }
    dir.messages(&["rm", "other.smap", "points"]);
    let many = dir.store_of("many.smap", &[]);
    let mut txn = many.begin().unwrap();
    for i in 0..2000 {
        txn.save(&format!("tensor.{i:04}"), &Tensor::from_vec(vec![i], &[1]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    drop(many);
    dir.store_of("growing.smap", &[("log", Tensor::from_vec(vec![1u8; 3], &[1, 3]).unwrap())]);
    dir.flip("damaged.smap/storages/0000000000000001.bin", 0);
    fs::remove_file(dir.path("unreadable.smap/storages/0000000000000001.bin")).unwrap();
    dir.write_npy("rows.npy", "|u1", "(2, 3)", &[1; 6]);
    dir
}

/// Returns the exit code of a command whose standard output is closed.
fn unread(dir: &Dir, args: &[&str]) -> Option<i32> {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    dir.command(args).stdout(writer).stderr(Stdio::null()).status().unwrap().code()
}

#[test]
fn closed_pipe_does_not_change_the_exit_code() {
    for (args, code) in [
        (&["diff", "s.smap", "s.smap"][..], 0),
        (&["diff", "s.smap", "other.smap", "--json"], 1),
        (&["diff", "s.smap", "damaged.smap"], 1),
        (&["diff", "many.smap", "s.smap"], 1),
        (&["diff", "s.smap", "unreadable.smap"], 2),
        (&["verify", "s.smap"], 0),
        (&["verify", "damaged.smap"], 1),
        (&["verify", "damaged.smap", "--json"], 1),
        (&["verify", "none"], 2),
        (&["salvage", "s.smap", "-n"], 0),
        (&["salvage", "damaged.smap", "-n"], 1),
        (&["salvage", "damaged.smap", "salvaged.smap"], 1),
        (&["compact", "s.smap"], 0),
        (&["du", "s.smap"], 0),
        (&["info", "--all", "many.smap"], 0),
        (&["info", "--all", "many.smap", "--json"], 0),
        (&["info", "many.smap"], 0),
        (&["tree", "many.smap", "--all"], 0),
        (&["du", "--map", "many.smap", "--json"], 0),
        (&["stats", "many.smap"], 0),
        (&["ls", "many.smap"], 0),
        (&["ls", "many.smap", "--json"], 0),
        (&["show", "s.smap", "points"], 0),
        (&["show", "s.smap", "none"], 2),
        (&["show", "unreadable.smap", "points"], 2),
        (&["log", "s.smap", "--follow"], 0),
        (&["import", "rows.npy", "new.smap"], 0),
        (&["export", "s.smap", "new.safetensors"], 0),
        (&["export", "s.smap", "none/new.safetensors"], 2),
        (&["append", "growing.smap", "log", "rows.npy"], 0),
        (&["view", "s.smap", "points", "new"], 0),
        (&["mv", "s.smap", "points", "new"], 0),
        (&["rm", "s.smap", "points"], 0),
        (&["rm", "s.smap", "none"], 2),
        (&["--help"], 0),
        (&["none"], 2),
    ] {
        // Its output is endless if it is read.
        if args != ["log", "s.smap", "--follow"] {
            assert_eq!(place().run(args).code, Some(code), "{args:?}");
        }
        assert_eq!(unread(&place(), args), Some(code), "{args:?} into a closed pipe");
    }
}

/// Compacts a store whose damaged storage is worth compacting.
#[test]
fn closed_pipe_does_not_hide_the_damage_that_compact_found() {
    for is_read in [true, false] {
        let dir = Dir::empty();
        let large = Tensor::from_vec(vec![7u8; 1 << 16], &[1 << 16]).unwrap();
        let store = dir.store_of("s.smap", &[("x", large)]);
        let x = store.load("x").unwrap();
        store.save_view("x", &x.narrow(0, 0, 100).unwrap()).unwrap();
        drop((x, store));
        dir.flip("s.smap/storages/0000000000000001.bin", 0);
        let args = ["compact", "s.smap"];
        assert_eq!(if is_read { dir.run(&args).code } else { unread(&dir, &args) }, Some(1));
    }
}
