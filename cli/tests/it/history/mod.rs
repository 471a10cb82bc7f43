//! Tags, the log, restore and prune, and tagged generations in the arguments of other commands.

mod at;
mod copies;
mod log;
mod prune;
mod races;
mod restore;
mod tags;
mod undo;

use serde_json::Value;
use stridemap::{Store, Tensor};

use crate::harness::{Dir, json_lines};

/// The length of the tensors of [`with_tags`].
const LEN: usize = 10_000;

fn bytes(value: u8) -> Tensor {
    Tensor::from_vec(vec![value; LEN], &[LEN]).unwrap()
}

/// Creates a store with two tagged generations and one that is not tagged. Each tensor has a storage of its own.
///
/// | generation | tag | tensors |
/// |---|---|---|
/// | 3 | `v1` | `a`, `b` |
/// | 5 | `v2` | `a`, changed; `c` |
/// | 6 | | `c` |
fn with_tags() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("a", &bytes(1)).unwrap();
    store
        .write(|txn| {
            txn.save("b", &bytes(2))?;
            txn.message("two tensors");
            txn.tag("v1")
        })
        .unwrap();
    store.save("c", &Tensor::from_vec(vec![0u8; 1], &[1]).unwrap()).unwrap();
    store
        .write(|txn| {
            txn.save("a", &bytes(3))?;
            txn.remove("b")?;
            txn.set_attribute("", "step", "2")?;
            txn.tag("v2")
        })
        .unwrap();
    store.remove("a").unwrap();
    assert_eq!(store.generation(), 6);
    dir
}

/// Returns the JSON objects that a command prints, one per line.
fn lines(dir: &Dir, args: &[&str]) -> Vec<Value> {
    json_lines(&dir.stdout(&[args, &["--json"]].concat()))
}

/// Replaces the times in a text.
fn without_times(text: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in text.split(' ') {
        words.push(if word.len() == 30 && word.ends_with('Z') { "TIME" } else { word });
    }
    words.join(" ")
}
