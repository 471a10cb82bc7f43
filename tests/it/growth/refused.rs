//! Refused appends, and the content that they leave unchanged.

use super::{BIN, MIB, SUM, bytes_of, rows};
use crate::harness::{assert_refused, fast, new_fast_store, open_mapped};
use crate::support::temporary;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor, ix};

#[test]
fn impossible_append_is_refused_and_changes_nothing() {
    let (_dir, path, store) = new_fast_store();
    let element = |i: usize| i as f32;
    let mut txn = store.begin().unwrap();
    for name in ["first", "second"] {
        txn.save(name, &rows(0, 2, &[3], element)).unwrap();
    }
    txn.save("scalar", &Tensor::from_vec(vec![1f32], &[]).unwrap()).unwrap();
    txn.save_as("mutable", &rows(0, 2, &[3], element), StorageKind::Mutable).unwrap();
    txn.create_growable("x", DType::F32, &[0, 3], 0).unwrap();
    txn.commit().unwrap();
    store.append("x", &rows(0, 4, &[3], element)).unwrap();
    let x = store.load("x").unwrap();
    store.save_view("transposed", &x.t().unwrap()).unwrap();
    store.save_view("stepped", &x.index(ix![..;2]).unwrap()).unwrap();
    store.save_view("middle", &x.narrow(0, 1, 2).unwrap()).unwrap();
    let before = (store.generation(), bytes_of(&path.join(BIN)));
    let append = |name: &str| store.append(name, &rows(0, 1, &[3], element));
    assert_refused(append("y"), ErrorKind::NameNotFound, &["append to", "\"y\""]);
    assert_refused(append("mutable"), ErrorKind::Unsupported, &["mutable", "create_growable", "24 bytes"]);
    assert_refused(append("middle"), ErrorKind::Unsupported, &["follows it in the same storage", "[0, 3]"]);
    let transposed = store.append("transposed", &rows(0, 1, &[4], element));
    assert_refused(transposed, ErrorKind::Unsupported, &["stride [1, 3]", "contiguous", "48 bytes"]);
    assert_refused(append("stepped"), ErrorKind::Unsupported, &["stride [6, 1]"]);
    let scalar = store.append("scalar", &rows(0, 1, &[], element));
    assert_refused(scalar, ErrorKind::SizeMismatch, &["[1]", "no dimensions"]);
    let of_dtype = store.append("x", &rows(0, 1, &[3], |i| i as i32));
    assert_refused(of_dtype, ErrorKind::DTypeMismatch, &["int32", "float32"]);
    for size_of_row in [&[4][..], &[], &[3, 1], &[1, 3]] {
        let refused = store.append("x", &rows(0, 1, size_of_row, element));
        assert_refused(refused, ErrorKind::SizeMismatch, &["[4, 3]", "dimension 0"]);
    }
    let scalar = store.create_growable("s", DType::F32, &[], 10);
    assert_refused(scalar, ErrorKind::SizeMismatch, &["\"s\"", "[0]"]);
    for capacity in [usize::MAX, (1 << 46) / 8 + 1] {
        let huge = store.create_growable("s", DType::F64, &[0], capacity);
        assert_refused(huge, ErrorKind::LimitExceeded, &["address space", &capacity.to_string()]);
    }
    store.remove("scalar").unwrap();
    assert_eq!((store.generation(), bytes_of(&path.join(BIN))), (before.0 + 1, before.1));
    // Bytes that no tensor reaches follow "second" now.
    let old = store.load("second").unwrap();
    assert_eq!(append("second").unwrap(), 2..3);
    let second = store.load("second").unwrap();
    assert!(!second.shares_storage(&old) && store.load("first").unwrap().shares_storage(&old));
    assert_eq!(second.narrow(0, 0, 2).unwrap().to_bytes().unwrap(), old.to_bytes().unwrap());
    assert_eq!(bytes_of(&path.join(BIN)), before.1);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn file_with_two_names_does_not_grow() {
    let (dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[2 * MIB], 0).unwrap();
    for file in [BIN, SUM] {
        fs::hard_link(path.join(file), dir.path().join("backup")).unwrap();
        let refused = store.append("x", &rows(0, 1, &[], |i| i as u8));
        assert_refused(refused, ErrorKind::Conflict, &["hard links", "its own copy"]);
        fs::remove_file(dir.path().join("backup")).unwrap();
    }
    store.append("x", &rows(0, 1, &[], |i| i as u8)).unwrap();
}

/// In a malformed store, the file that is to grow, or to be truncated, also belongs to a longer storage.
#[test]
fn bytes_borrowed_through_a_longer_storage_are_not_overwritten() {
    let (_dir, path, store) = new_fast_store();
    let element = |i: usize| i as i64;
    store.create_growable("short", DType::I64, &[2], 0).unwrap();
    store.create_growable("long", DType::I64, &[2], 0).unwrap();
    store.append("long", &rows(2, 4, &[], element)).unwrap();
    let mapped = open_mapped(&path);
    let long = mapped.load("long").unwrap();
    let lent = long.as_slice::<i64>().unwrap();
    let before = lent.to_vec();
    fs::rename(path.join("storages/0000000000000002.bin"), path.join(BIN)).unwrap();
    for writer in [&store, &mapped] {
        let refused = writer.append("short", &rows(0, 4, &[], element));
        assert_refused(refused, ErrorKind::Corrupt, &[BIN, "mapped in this process as a longer storage"]);
        assert_eq!(lent, before);
    }
    assert_eq!(store.gc().unwrap().size_bytes, 0);
    assert_eq!((bytes_of(&path.join(BIN)), lent), (6 * 8, &before[..]));
    // Once they are no longer borrowed, they are only bytes past the end of the one remaining storage. That the handle
    // keeps them mapped does not matter.
    drop(long);
    store.append("short", &rows(0, 1, &[], element)).unwrap();
    assert_eq!(store.load("short").unwrap().read::<i64>().unwrap(), [0, 0, 0]);
}

#[test]
fn append_detects_a_damaged_tail_and_does_not_seal_it() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, 2 * MIB + 100, &[], |i| i as u8)).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(path.join(BIN)).unwrap();
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    // The handle that wrote the end of the storage does not read it again, so this is another one each time.
    let append = || fast().open(&path).unwrap().append("x", &rows(0, 1, &[], |i| i as u8));
    for at in [0, 99].map(|at| 2 * MIB as u64 + at) {
        flip(at);
        let generation = store.generation();
        assert_refused(append(), ErrorKind::Corrupt, &["F-25", "2097152", "100 bytes"]);
        assert_eq!(store.generation(), generation);
        flip(at);
    }
    // Other bytes are not read, and do not get a new digest.
    flip(5);
    append().unwrap();
    store.refresh().unwrap();
    let findings = store.verify(|_| ()).unwrap().findings;
    assert_eq!((findings.len(), findings[0].offset_bytes), (1, Some(0)), "{findings:?}");
    flip(5);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // The end that this handle itself wrote is not read, and does not get a new digest either.
    store.append("x", &rows(0, 1, &[], |i| i as u8)).unwrap();
    flip(2 * MIB as u64 + 101);
    store.append("x", &rows(0, 1, &[], |i| i as u8)).unwrap();
    let findings = store.verify(|_| ()).unwrap().findings;
    assert_eq!((findings.len(), findings[0].offset_bytes), (1, Some(2 * MIB as u64)), "{findings:?}");
    flip(2 * MIB as u64 + 101);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // Earlier chunk digests are not read either.
    let sum = fs::OpenOptions::new().write(true).open(path.join(SUM)).unwrap();
    sum.set_len(17).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".sum", "32"]);
    fs::remove_file(path.join(SUM)).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".sum", "missing"]);
    file.set_len(2 * MIB as u64).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".bin"]);
}

#[test]
fn view_of_a_copy_that_grew_differently_is_refused() {
    let dir = temporary();
    let (path, copy) = (dir.path().join("x.smap"), dir.path().join("copy.smap"));
    let store = fast().create(&path).unwrap();
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let status = Command::new("cp").arg("-r").arg(&path).arg(&copy).status().unwrap();
    assert!(status.success());
    for (path, grown) in [(&path, vec![1u8; 5]), (&copy, vec![2; 3])] {
        let size = [grown.len()];
        Store::open(path).unwrap().append("x", &Tensor::from_vec(grown, &size).unwrap()).unwrap();
    }
    store.refresh().unwrap();
    for opened in [Store::open(&copy).unwrap(), open_mapped(&copy)] {
        let foreign = store.save_view("view", &opened.load("x").unwrap());
        assert_refused(foreign, ErrorKind::NeedsCopy, &["copy", "use save"]);
    }
    let before = open_mapped(&path).load("x").unwrap();
    store.append("x", &Tensor::from_vec(vec![3u8], &[1]).unwrap()).unwrap();
    store.save_view("view", &before).unwrap();
    assert_eq!(store.load("view").unwrap().read::<u8>().unwrap(), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
}

#[test]
fn small_tensor_that_others_follow_is_copied_by_its_first_append() {
    let (_dir, path, store) = new_fast_store();
    let element = |i: usize| i as f32;
    let names = ["first", "second", "third"];
    store.write(|txn| names.iter().try_for_each(|name| txn.save(name, &rows(0, 2, &[3], element)))).unwrap();
    let (old, before) = (store.load("first").unwrap(), bytes_of(&path.join(BIN)));
    assert_eq!(store.append("first", &rows(2, 1, &[3], element)).unwrap(), 2..3);
    let copy = store.load("first").unwrap();
    assert!(!copy.shares_storage(&old) && store.load("second").unwrap().shares_storage(&old));
    assert_eq!(bytes_of(&path.join(BIN)), before);
    // It is the last in its own storage now.
    assert_eq!(store.append("first", &rows(3, 1, &[3], element)).unwrap(), 3..4);
    let grown = store.load("first").unwrap();
    assert!(grown.storage_id() == copy.storage_id());
    let expected: Vec<f32> = rows(0, 4, &[3], element).read().unwrap();
    assert_eq!(grown.read::<f32>().unwrap(), expected);
    assert_eq!(old.read::<f32>().unwrap(), expected[..6]);
    // Through an appender, and in a transaction, too.
    let mut appender = store.appender("second").unwrap();
    appender.append(&rows(2, 1, &[3], element)).unwrap();
    appender.commit().unwrap();
    drop(appender);
    store.write(|txn| txn.append("third", &rows(2, 1, &[3], element)).map(drop)).unwrap();
    for name in ["second", "third"] {
        assert_eq!(store.load(name).unwrap().read::<f32>().unwrap(), expected[..9], "{name}");
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
