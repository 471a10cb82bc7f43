//! Checkpoints from PyTorch, imported into a store that is closed and opened again, and files that must be refused.

mod conformance;
pub(crate) mod forge;
mod hostile;
mod objects;
mod real;
mod small_tensors;

use std::path::{Path, PathBuf};

use stridemap::{Durability, Error, ErrorKind, Store, StoreOptions};
use stridemap_interop::ForeignFile;

use crate::support::temporary;

/// Returns the path of a file in `tests/data`.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Asserts that a file is refused with one line, and that nothing of it is saved. Returns the message.
fn refusal(path: &Path) -> String {
    let dir = temporary();
    let store =
        StoreOptions::new().durability(Durability::Process).create(dir.path().join("store.smap")).unwrap();
    let before = store.generation();
    let refused: Error = stridemap_interop::import(&store, path, "").unwrap_err();
    let message = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::BadFile, "{message}");
    assert!(!message.contains('\n'), "{message:?}");
    assert_eq!(message, ForeignFile::open(path).unwrap_err().to_string());
    let store = Store::open(dir.path().join("store.smap")).unwrap();
    assert_eq!(store.generation(), before);
    assert!(store.names().unwrap().is_empty());
    message
}
