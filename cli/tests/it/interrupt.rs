//! Signals, and waits for other writers.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use stridemap::{DType, Store, Tensor};

use crate::harness::{Deadline, Dir, tree};

/// More bytes than a command writes before a signal arrives. They are zeros, which take no space in a file.
const LARGE_BYTES: u64 = 4 << 30;

/// Writes files with a large tensor: `big.safetensors`, and `big.npy` with rows of 1 MiB.
fn dir() -> Dir {
    let dir = Dir::with_store();
    let header =
        format!(r#"{{"big":{{"dtype":"U8","shape":[{LARGE_BYTES}],"data_offsets":[0,{LARGE_BYTES}]}}}}"#);
    dir.write_safetensors("big.safetensors", &header, &[]);
    let rows = LARGE_BYTES >> 20;
    dir.write_npy("big.npy", "|u1", &format!("({rows}, 1048576)"), &[]);
    for name in ["big.safetensors", "big.npy"] {
        let file = File::options().write(true).open(dir.path(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() + LARGE_BYTES).unwrap();
    }
    dir
}

/// A running command, which is killed if it hangs.
struct Started {
    child: Child,
    _deadline: Deadline,
}

fn start(dir: &Dir, args: &[&str]) -> Started {
    start_command(&mut dir.command(args))
}

fn start_command(command: &mut Command) -> Started {
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let _deadline = Deadline::of(&child);
    Started { child, _deadline }
}

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Returns the exit code of a process, and what it printed to standard error from now on.
fn end(mut child: Started) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn bytes_written(child: &Child) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    written.parse().unwrap()
}

/// Waits until a process has written more than a store's metadata.
#[track_caller]
fn wait_until_it_writes(child: &mut Child) {
    while bytes_written(child) < 8 << 20 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended: {child:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has a handler for SIGINT.
#[track_caller]
fn wait_until_it_catches_signals(child: &mut Child) {
    let is_caught = |status: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 0b10 != 0
    };
    while !is_caught(&fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap()) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended: {child:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the names of the files below a directory. Large files are not read.
fn names(dir: &Dir) -> Vec<String> {
    let find = Command::new("find").current_dir(dir.path("")).output().unwrap();
    let mut names: Vec<String> = String::from_utf8(find.stdout).unwrap().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn interrupted_command_leaves_nothing_behind_and_says_what_was_done() {
    let dir = dir();
    dir.messages(&["import", "--in-place", "big.safetensors", "external.smap"]);
    dir.store().create_growable("log", DType::U8, &[0, 1 << 20], 1).unwrap();
    dir.stdout(&["compact", "s.smap"]);
    let before = names(&dir);
    let shown = dir.stdout(&["info", "--json", "--all", "s.smap"]);
    for (args, said) in [
        (&["import", "big.safetensors", "new.smap"][..], "import: interrupted; nothing was imported"),
        (&["import", "big.safetensors", "s.smap"], "import: interrupted; nothing was imported"),
        (&["export", "external.smap", "out.safetensors"], "export: interrupted; nothing was written"),
        (&["export", "external.smap", "-"], "export: interrupted; the output is incomplete"),
        (&["append", "s.smap", "log", "big.npy"], "append: interrupted; nothing was appended"),
        (
            &["compact", "--materialize", "external.smap"],
            "compact: interrupted; what was rewritten until then stays",
        ),
    ] {
        for (name, code) in [("INT", 130), ("TERM", 143)] {
            let mut child = start(&dir, args);
            wait_until_it_writes(&mut child);
            signal(&child, name);
            assert_eq!(end(child), (Some(code), format!("stridemap: {said}\n")), "{args:?}");
            assert_eq!(names(&dir), before, "{args:?}");
        }
    }
    assert_eq!(dir.stdout(&["info", "--json", "--all", "s.smap"]), shown);
    assert_eq!(dir.run(&["verify", "s.smap"]).code, Some(0));
}

#[test]
fn second_signal_ends_a_command_at_once() {
    // Both signals arrive before the command can clean up. If two threads handle them at the same moment, neither is
    // the second.
    let has_ended_at_once = || {
        let dir = dir();
        let mut child = start(&dir, &["import", "big.safetensors", "new.smap"]);
        wait_until_it_writes(&mut child);
        for name in ["STOP", "INT", "TERM", "CONT"] {
            signal(&child, name);
        }
        let (code, said) = end(child);
        assert!(matches!(code, Some(130 | 143)), "{code:?} {said}");
        assert!(!dir.path("new.smap").exists());
        said.is_empty()
    };
    assert!((0..20).any(|_| has_ended_at_once()));
}

#[test]
fn command_that_only_reads_ends_at_the_first_signal() {
    let dir = dir();
    let mut child = start(&dir, &["diff", "big.safetensors", "big.safetensors"]);
    wait_until_it_catches_signals(&mut child);
    signal(&child, "INT");
    assert_eq!(end(child), (Some(130), "stridemap: interrupted\n".to_owned()));
}

#[test]
fn signal_that_the_parent_ignores_stays_ignored() {
    let dir = dir();
    let bin = env!("CARGO_BIN_EXE_stridemap");
    let script = format!("trap '' INT; exec '{bin}' import big.safetensors new.smap");
    let mut bash = Command::new("bash");
    let mut child = start_command(bash.args(["-c", &script]).current_dir(dir.path("")));
    wait_until_it_writes(&mut child);
    signal(&child, "INT");
    signal(&child, "TERM");
    let said = "stridemap: import: interrupted; nothing was imported\n".to_owned();
    assert_eq!(end(child), (Some(143), said));
}

#[test]
fn wait_for_another_writer_is_reported_with_its_process() {
    let dir = Dir::with_store();
    let lock = File::options().write(true).open(dir.path("s.smap/LOCK")).unwrap();
    lock.lock().unwrap();
    let mut child = start(&dir, &["rm", "s.smap", "points"]);
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    let expected = format!("stridemap: note: waiting for process {} (", std::process::id());
    assert!(said.starts_with(&expected) && said.ends_with("), which is writing to the store\n"), "{said}");
    assert!(dir.store().contains("points").unwrap());
    lock.unlock().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!dir.store().contains("points").unwrap());
    // It is said once.
    said.clear();
    stderr.read_to_string(&mut said).unwrap();
    assert!(!said.contains("waiting"), "{said}");
}

#[test]
fn wait_for_another_append_is_reported_and_can_be_interrupted() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.create_growable("log", DType::U8, &[0, 2], 1).unwrap();
    write_row(&dir);
    let mut txn = store.begin().unwrap();
    txn.append("log", &Tensor::from_vec(vec![1u8, 2], &[1, 2]).unwrap()).unwrap();
    let before = tree(&dir.path("s.smap"));
    let mut child = start(&dir, &["append", "s.smap", "log", "row.npy"]);
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert!(
        said.starts_with(&format!("stridemap: note: waiting for process {} (", std::process::id())),
        "{said}"
    );
    signal(&child, "INT");
    said.clear();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "stridemap: append: interrupted; nothing was appended\n");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(tree(&dir.path("s.smap")), before);
    txn.commit().unwrap();
    assert_eq!(dir.store().load("log").unwrap().size(), [1, 2]);
}

/// Writes `row.npy`, a row of two elements.
fn write_row(dir: &Dir) {
    let store = Store::create(dir.path("row.smap")).unwrap();
    store.save("row", &Tensor::from_vec(vec![3u8, 4], &[1, 2]).unwrap()).unwrap();
    dir.messages(&["export", "row.smap", "row.npy", "row"]);
}
