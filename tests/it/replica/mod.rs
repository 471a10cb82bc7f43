//! Stores whose files are not in a file system.

mod listing;
mod reading;
mod refusals;
mod requests;

use std::path::Path;
use std::sync::Arc;

use stridemap::history::At;
use stridemap::replica::Files;
use stridemap::{DType, OnExisting, StorageKind, Store, StoreOptions, Tensor};

use crate::files::{DirFiles, MemoryFiles};
use crate::harness::{arange, filled};

const LOCATION: &str = "s3://bucket/x.smap";

fn open(files: impl Files + 'static) -> Store {
    StoreOptions::new().open_files(Arc::new(files), LOCATION).unwrap()
}

fn open_at(files: impl Files + 'static, at: impl Into<At>) -> Store {
    StoreOptions::new().at(at).open_files(Arc::new(files), LOCATION).unwrap()
}

/// Opens the files of a store from a directory and from memory.
fn elsewhere(path: &Path) -> [Store; 2] {
    [open(DirFiles(path.to_owned())), open(MemoryFiles::of(path))]
}

/// Fills a store with tensors of every kind, views, attributes and tags, in several generations.
fn fill(store: &Store) {
    store
        .write(|txn| {
            txn.message("first");
            txn.save("matrix", &arange(&[600, 700]))?;
            txn.save("small", &filled(3, 1.5f32))?;
            txn.save("empty", &filled::<f32>(0, 0.))?;
            txn.save_as("mutable", &arange(&[50]), StorageKind::Mutable)?;
            txn.save_as("live", &filled(40, 7u64), StorageKind::Live)?;
            txn.create_growable("rows", DType::I64, &[0, 4], 1 << 20)?;
            txn.set_attribute("", "title", "numbers")?;
            txn.set_attribute("matrix", "unit", "m")
        })
        .unwrap();
    let matrix = store.load("matrix").unwrap();
    store.save_view("transposed", &matrix.t().unwrap()).unwrap();
    store.save_view("column", &matrix.select(1, 5).unwrap()).unwrap();
    store.save_view("every third", &matrix.slice(0, 1, None, 3).unwrap()).unwrap();
    store.save_view("backwards", &matrix.flip([0, 1]).unwrap()).unwrap();
    store.append("rows", &arange(&[1000, 4])).unwrap();
    store.tag("v1").unwrap();
    store
        .write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.save("small", &filled(5, 2.5f32))?;
            txn.remove("column")?;
            txn.tag("v2")
        })
        .unwrap();
    store.append("rows", &arange(&[2, 4])).unwrap();
}

/// Adds so many names in so many commits that there are tables.
fn fill_tables(store: &Store) {
    for part in 0..3 {
        store
            .write(|txn| {
                (0..2000).try_for_each(|i| txn.save(&format!("many.{i:05}.{part}"), &[i as i64, part]))?;
                txn.tag(&format!("part{part}"))
            })
            .unwrap();
    }
    for i in 0..200 {
        store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.save("changing", &[i])?;
                txn.tag(&format!("tag{i}"))
            })
            .unwrap();
    }
    let has = |dir: &str, extension: &str| {
        let mut files = std::fs::read_dir(store.path().join(dir)).unwrap();
        files.any(|file| file.unwrap().path().extension().is_some_and(|found| found == extension))
    };
    assert!(has("generations", "tab") && has("meta", "his"), "the test needs tables");
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.to_bytes().unwrap()
}
