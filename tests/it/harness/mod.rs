//! Helpers of these tests: stores, tensors, assertions, disks and other processes.

#[path = "../../common/hooked.rs"]
pub(crate) mod hooked;
pub(crate) mod processes;
pub(crate) mod small_disk;
pub(crate) mod strace;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use stridemap::{Durability, Element, ErrorKind, Store, StoreOptions, Tensor};

use crate::support::temporary;

/// Returns the options of a store that does not wait for the disk.
pub(crate) fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

/// Returns a path for a store, in a directory that is deleted when the first value is dropped.
pub(crate) fn new_path() -> (tempfile::TempDir, PathBuf) {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    (dir, path)
}

/// Creates a store with the default options, in a directory that is deleted when the first value is dropped.
pub(crate) fn new_store() -> (tempfile::TempDir, PathBuf, Store) {
    create_with(&StoreOptions::new())
}

/// Creates such a store with the options of [`fast`].
pub(crate) fn new_fast_store() -> (tempfile::TempDir, PathBuf, Store) {
    create_with(&fast())
}

fn create_with(options: &StoreOptions) -> (tempfile::TempDir, PathBuf, Store) {
    let (dir, path) = new_path();
    let store = options.create(&path).unwrap();
    (dir, path, store)
}

/// Opens a store mapped.
pub(crate) fn open_mapped(path: impl AsRef<Path>) -> Store {
    // SAFETY: the tests write to a mapped store only through the library, or replace its files by renaming.
    unsafe { Store::open_mapped(path).unwrap() }
}

/// Returns a one-dimensional tensor filled with a value.
pub(crate) fn filled<T: Element + Clone>(n: usize, value: T) -> Tensor {
    Tensor::from_vec(vec![value; n], &[n]).unwrap()
}

/// Returns a tensor without dimensions.
pub(crate) fn scalar(value: i64) -> Tensor {
    Tensor::from_vec(vec![value], &[]).unwrap()
}

/// Returns the integers from 0, in row-major order.
pub(crate) fn arange(size: &[usize]) -> Tensor {
    Tensor::from_vec((0..size.iter().product::<usize>() as i64).collect(), size).unwrap()
}

/// Asserts that an error has this kind, and that its message is one line that contains these parts.
#[track_caller]
pub(crate) fn assert_refused<T: Debug>(result: stridemap::Result<T>, kind: ErrorKind, parts: &[&str]) {
    let error = result.unwrap_err();
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "{message:?} does not contain {part:?}");
    }
}
