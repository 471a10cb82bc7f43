//! Whole stores under `tests/data/stores`. New ones may be added, but a committed store never changes, because it
//! represents the stores that users have.
//!
//! `STRIDEMAP_MAKE_STORES=1` writes the stores that are described here but do not exist yet. See the README beside
//! them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stridemap::{ExternalFiles, Store, StoreOptions};

mod damaged;
mod digests;
mod good;
mod python;
mod reads;
mod refuses;

/// The second encoder, from the tests of the format. It also writes what the crate refuses to write.
#[path = "../../../../format/tests/support/frame.rs"]
pub(crate) mod frame;
#[path = "../../../../format/tests/support/wire.rs"]
#[allow(dead_code, reason = "only some of it is used here")]
pub(crate) mod wire;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stores");

/// The expected results beside each store.
const EXPECTED: &str = "expected.json";

/// Returns the stores of a kind, by name.
fn stores(kind: &str) -> Vec<(String, PathBuf)> {
    let folder = Path::new(ROOT).join(kind);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    found.sort();
    found
}

fn expected(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join(EXPECTED)).unwrap()).unwrap()
}

/// Copies a store, so that it can be changed, and adds the bytes that are generated instead of committed.
fn copied(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_tree(dir, copy.path());
    if let Some(filled) = expected(dir).get("filled").and_then(Value::as_object) {
        for (file, with) in filled {
            let number = |key: &str| with[key].as_u64().unwrap() as usize;
            fs::write(copy.path().join(file), vec![number("byte") as u8; number("length_bytes")]).unwrap();
        }
    }
    copy
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            fs::create_dir(&target).unwrap();
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

/// Opens a copy in both ways: with positional reads, and mapped.
fn opened(copy: &Path) -> [stridemap::Result<Store>; 2] {
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let path = copy.join("store");
    // SAFETY: no process writes the copy while it is mapped.
    let mapped = unsafe { options.open_mapped(&path) };
    [options.open(&path), mapped]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether missing stores should be written.
fn is_making() -> bool {
    std::env::var_os("STRIDEMAP_MAKE_STORES").is_some_and(|value| value == "1")
}
