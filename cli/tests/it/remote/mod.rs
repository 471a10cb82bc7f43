//! Stores at URLs: push, pull, follow, prune, and commands that read in place.

mod commands;
mod conflicts;
mod follow;
mod kills;
mod reading;
mod refusals;
mod s3;

use serde_json::Value;
use stridemap::{Store, Tensor};

use crate::harness::{Dir, Run};

/// Returns the URL of a remote in the directory.
fn url(dir: &Dir) -> String {
    format!("file://{}", dir.path("remote/s.smap").display())
}

/// Returns a text without the path of the directory.
fn without_dir(dir: &Dir, text: &str) -> String {
    text.replace(&dir.path("").display().to_string(), "/")
}

/// Runs a command that succeeds, and returns its messages without the path of the directory.
#[track_caller]
fn messages(dir: &Dir, args: &[&str]) -> String {
    without_dir(dir, &dir.messages(args))
}

/// Runs a command with `--json` that succeeds, and returns what it prints.
#[track_caller]
fn json(dir: &Dir, args: &[&str]) -> Value {
    let run = dir.run(&[args, &["--json", "--quiet"]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{args:?}: {run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// Runs a command that fails, and returns its message.
#[track_caller]
fn failure(run: &Run) -> &str {
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
    run.stderr.trim_end().strip_prefix("stridemap: ").unwrap()
}

/// Saves a tensor of one element.
fn save(store: &Store, name: &str, element: i64) {
    store.save(name, &Tensor::from_vec(vec![element], &[1]).unwrap()).unwrap();
}

/// Returns an element that [`save`] has saved.
#[track_caller]
fn element(store: &Store, name: &str) -> i64 {
    store.latest().unwrap().load(name).unwrap().read::<i64>().unwrap()[0]
}
