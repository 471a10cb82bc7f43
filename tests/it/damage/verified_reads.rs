//! Handles that verify what they read: every change of a sealed element is an error, and each chunk is verified once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use super::support::{content, create_chunked_store, create_small_store, files, is_sealed};
use crate::harness::hooked::Hooked;
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path, open_mapped};

const CHUNK: u64 = 1 << 20;

fn verifying() -> StoreOptions {
    fast().verify_on_read(true)
}

/// Opens a store unmapped and mapped.
fn opened(path: &Path) -> [Store; 2] {
    // SAFETY: a test that changes files opens the store anew.
    [verifying().open(path).unwrap(), unsafe { verifying().open_mapped(path).unwrap() }]
}

/// Changes a byte of a file by writing a new file.
fn change(file: &Path, at: usize, by: u8) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= by;
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

fn storage(path: &Path, id: u64) -> PathBuf {
    path.join(format!("storages/{id:016x}.bin"))
}

#[test]
fn every_flipped_bit_of_a_sealed_element_is_an_error_at_the_first_read_and_never_a_wrong_value() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let sealed: Vec<PathBuf> = files(&path)
        .into_iter()
        .filter(|file| file.extension().is_some_and(|it| it == "bin") && is_sealed(&path, file))
        .collect();
    assert_eq!(sealed.len(), 4, "{sealed:?}");
    for file in sealed {
        for bit in 0..fs::metadata(&file).unwrap().len() as usize * 8 {
            change(&file, bit / 8, 1 << (bit % 8));
            for store in opened(&path) {
                let mut refused = 0;
                for (name, expected) in &expected {
                    match store.load(name).and_then(|x| Ok((x.size().to_vec(), x.to_bytes()?))) {
                        Ok(found) => assert_eq!(found, *expected, "{name}"),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                            let (e, file) = (e.to_string(), file.display().to_string());
                            let is_named = e.contains(&format!("{name:?}")) || e.contains(" more: ");
                            assert!(e.contains(&file) && is_named, "{e}");
                            refused += 1;
                        }
                    }
                }
                assert!(refused > 0, "{}, bit {bit}", file.display());
            }
            change(&file, bit / 8, 1 << (bit % 8));
        }
    }
    assert_eq!(content(&path), expected);
}

#[test]
fn a_view_needs_only_the_chunks_that_its_elements_are_in_whatever_reads_it() {
    let (_dir, path) = new_path();
    create_chunked_store(&path);
    let file = storage(&path, 1);
    let (size, chunk) = (fs::metadata(&file).unwrap().len(), CHUNK as usize);
    // The place of the change, the tensors that have elements in its chunk, and where the chunk begins.
    let cases = [
        (0, vec!["all", "chunk0", "ends"], 0),
        (chunk, vec!["all", "chunk1"], chunk),
        (3 * chunk - 1, vec!["all", "chunk2", "ends"], 2 * chunk),
        (size as usize - 1, vec!["all", "tail"], 3 * chunk),
    ];
    for (at, damaged, start) in cases {
        change(&file, at, 0x80);
        for store in opened(&path) {
            for name in ["none", "tail", "ends", "chunk2", "chunk1", "chunk0", "all"] {
                let x = store.load(name).unwrap();
                let named = format!("{name:?}");
                let parts = [&*named, &*format!("at byte {start}: "), "0000000000000001.bin", "salvage"];
                let check = |read: stridemap::Result<()>| match damaged.contains(&name) {
                    true => assert_refused(read, ErrorKind::Corrupt, &parts),
                    false => read.unwrap(),
                };
                // Damage stays damage.
                (0..2).for_each(|_| check(x.read::<u32>().map(drop)));
                check(x.to_bytes().map(drop));
                check(x.statistics(|_| ()).map(drop));
                check(x.clone_data().map(drop));
                check(x.to_dtype(DType::F64).map(drop));
                check(Tensor::prefetch_all([&x], |_| ()));
                let indices: Vec<i64> = (0..x.numel() as i64).collect();
                let count = indices.len();
                check(x.index_select(0, &Tensor::from_vec(indices, &[count]).unwrap()).map(drop));
                match x.as_slice::<u32>() {
                    Err(e) if e.kind() == ErrorKind::NeedsCopy => {}
                    slice => check(slice.map(drop)),
                }
                match x.clone().typed::<u32>() {
                    Err(e) if e.kind() == ErrorKind::NeedsCopy => {}
                    typed => check(typed.map(drop)),
                }
                let (_dir, _, other) = new_fast_store();
                check(other.save("copy", &x));
            }
        }
        change(&file, at, 0x80);
    }
}

#[test]
fn each_chunk_is_read_whole_once_for_a_handle_and_later_reads_read_what_they_need() {
    let (_dir, path) = new_path();
    let expected = create_chunked_store(&path);
    let disk = Hooked::default();
    let counts = Arc::clone(&disk.counts);
    let store = verifying().disk(Arc::new(disk)).open(&path).unwrap();
    let read_bytes = |read: &dyn Fn()| {
        let before = counts.lock().unwrap().data_read_bytes;
        read();
        counts.lock().unwrap().data_read_bytes - before
    };
    let load = |name: &str| store.load(name).unwrap();
    // The three digests are read twice: to confirm them by the record, and to keep them.
    assert_eq!(read_bytes(&|| drop(load("all"))), 2 * 3 * 16);
    let element = |at: usize| load("all").get::<u32>([at]).map(drop).unwrap();
    assert_eq!(read_bytes(&|| element(5)), CHUNK, "the chunk of the element");
    assert_eq!(read_bytes(&|| element(6)), 4, "it is verified");
    assert_eq!(read_bytes(&|| element(3 << 18)), 400, "the tail");
    // What is verified is read where it is, and each other chunk once.
    let all = &expected["all"].1;
    assert_eq!(read_bytes(&|| assert!(load("all").to_bytes().unwrap() == *all)), all.len() as u64);
    assert_eq!(read_bytes(&|| assert!(load("ends").read::<u32>().unwrap().len() == 2)), 8);
    assert_eq!(read_bytes(&|| drop(load("chunk1").to_bytes().unwrap())), CHUNK);
    // A snapshot and a clone are the same handle. Another handle verifies for itself.
    assert_eq!(read_bytes(&|| drop(store.snapshot().load("tail").unwrap().to_bytes().unwrap())), 400);
    let (other, element) = (verifying().open(&path).unwrap(), 2 << 18);
    assert_eq!(
        store.clone().load("all").unwrap().get::<u32>([element]).unwrap(),
        other.load("all").unwrap().get::<u32>([element]).unwrap()
    );
}

#[test]
fn a_wrong_digest_is_an_error_when_the_tensor_is_loaded() {
    let (_dir, path) = new_path();
    create_chunked_store(&path);
    change(&path.join("storages/0000000000000001.sum"), 17, 1);
    for store in opened(&path) {
        assert_refused(store.load("tail"), ErrorKind::Corrupt, &["load \"tail\"", "0000000000000001.sum"]);
    }
    assert!(open_mapped(&path).load("tail").is_ok(), "a handle that does not verify needs no digest");
}

#[test]
fn rows_that_are_appended_are_verified_and_those_before_them_are_not_verified_again() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("log", DType::U8, &[0], 8 << 20).unwrap();
    store.append("log", &filled(CHUNK as usize + 10, 1u8)).unwrap();
    let disk = Hooked::default();
    let counts = Arc::clone(&disk.counts);
    let reader = verifying().disk(Arc::new(disk)).open(&path).unwrap();
    let sum = || {
        reader
            .load("log")
            .unwrap()
            .read::<u8>()
            .map(|bytes| bytes.iter().map(|&it| u64::from(it)).sum::<u64>())
    };
    assert_eq!(sum().unwrap(), CHUNK + 10);
    store.append("log", &filled(20, 2u8)).unwrap();
    assert!(reader.refresh().unwrap());
    let before = counts.lock().unwrap().data_read_bytes;
    assert_eq!(sum().unwrap(), CHUNK + 50);
    assert_eq!(counts.lock().unwrap().data_read_bytes - before, CHUNK + 30 + 2 * 16);
    // The new rows, and not those before them.
    let file = storage(&path, 1);
    for (at, is_found) in [(CHUNK as usize + 29, true), (3, true)] {
        change(&file, at, 4);
        let reader = verifying().open(&path).unwrap();
        let sum: stridemap::Result<Vec<u8>> = reader.load("log").unwrap().read();
        assert_eq!(sum.is_err(), is_found);
        change(&file, at, 4);
    }
}

#[test]
fn elements_that_may_change_have_no_digest_and_are_not_verified() {
    let (_dir, path, store) = new_fast_store();
    for (name, kind) in [("mutable", StorageKind::Mutable), ("live", StorageKind::Live)] {
        store.write(|txn| txn.save_as(name, &filled(8, 1u8), kind)).unwrap();
    }
    (1..=2).for_each(|id| change(&storage(&path, id), 3, 2));
    for store in opened(&path) {
        for name in ["mutable", "live"] {
            assert_eq!(store.load(name).unwrap().read::<u8>().unwrap(), [1, 1, 1, 3, 1, 1, 1, 1]);
        }
    }
}
