//! Writes of the real disk that fail or are short.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions};

use crate::harness::hooked::Hooked;
use crate::harness::{filled, new_path};

/// Opens a store on a disk where the write with this number writes only half, and then fails with this error. Also
/// returns the counter of writes.
fn open_with_short_write(
    path: &Path,
    nth: usize,
    errno: i32,
    is_due: fn(&Path) -> bool,
) -> (Store, Arc<AtomicUsize>) {
    let writes = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&writes);
    let disk = Hooked::before(move |operation, path| {
        if operation != "write_all_at" || !is_due(path) || seen.fetch_add(1, Ordering::Relaxed) != nth {
            return Ok(());
        }
        File::options().write(true).open(path)?.write_all_at(b"half", 0)?;
        Err(io::Error::from_raw_os_error(errno))
    });
    (StoreOptions::new().disk(Arc::new(disk)).open(path).unwrap(), writes)
}

fn is_metadata(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("meta") || dir.ends_with("generations"))
}

fn files(path: &Path) -> usize {
    ["generations", "meta", "storages"].iter().map(|dir| fs::read_dir(path.join(dir)).unwrap().count()).sum()
}

/// Asserts that a commit that fails at a write leaves nothing, and that the same handle can commit it again, because
/// no sync has failed.
fn assert_old_content_remains(errno: i32, is_due: fn(&Path) -> bool) -> usize {
    let mut nth = 0;
    loop {
        let (_dir, path) = new_path();
        Store::create(&path).unwrap().save("old", &filled(5, 1i64)).unwrap();
        let before = files(&path);
        let (store, writes) = open_with_short_write(&path, nth, errno, is_due);
        let save = || {
            let mut txn = store.begin()?;
            // Enough names for a table.
            (0..70i64).try_for_each(|row| txn.save(&format!("row.{row}"), &filled(5, row)))?;
            txn.commit()
        };
        let saved = save();
        if writes.load(Ordering::Relaxed) <= nth {
            saved.unwrap();
            return nth;
        }
        let error = saved.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "write {nth}: {error}");
        assert_eq!(error.io_error().and_then(io::Error::raw_os_error), Some(errno), "write {nth}: {error}");
        let reader = Store::open(&path).unwrap();
        assert_eq!(reader.names().unwrap(), ["old"], "write {nth}");
        assert_eq!(reader.verify(|_| ()).unwrap().findings, [], "write {nth}");
        drop(reader);
        // A storage and a table get their names before the manifest. The next commit replaces them.
        assert!(files(&path) <= before + 2, "write {nth} left files");
        save().unwrap();
        assert_eq!(store.names().unwrap().len(), 71, "write {nth}");
        assert_eq!(store.verify(|_| ()).unwrap().findings, [], "write {nth}");
        assert_eq!(store.gc().unwrap().file_count, 0, "write {nth} left files");
        nth += 1;
    }
}

#[test]
fn full_disk_while_writing_metadata_leaves_the_old_content() {
    let count = assert_old_content_remains(libc::ENOSPC, is_metadata);
    println!("{count} writes of a table and a manifest found the disk full in turn");
    assert!(count >= 2, "{count}");
}

/// The standard library retries short and interrupted writes below the layer that tests replace. Here the rest of a
/// short write is never written.
#[test]
fn short_write_leaves_the_old_content() {
    let count = assert_old_content_remains(libc::EINTR, |_| true);
    println!("{count} writes of a commit ended half-way in turn");
    assert!(count >= 3, "{count}");
}

/// Opens a store on a disk that is full while this file exists.
fn open_while_full(path: &Path, file: &Path) -> Store {
    let file = file.to_path_buf();
    let disk = Hooked::before(move |operation, _| {
        let is_full = ["allocate", "write_all_at"].contains(&operation) && file.exists();
        if is_full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    });
    StoreOptions::new().disk(Arc::new(disk)).open(path).unwrap()
}

#[test]
fn full_disk_is_freed_of_the_files_of_crashed_writers() {
    const COUNT: usize = 1 << 20;
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let left = path.join("storages/.stage-crashed");
    for save in [
        |store: &Store| store.save("x", &filled(COUNT, 1i64)),
        |store: &Store| store.create_tensor("y", DType::I64, &[COUNT], StorageKind::Mutable).map(drop),
        |store: &Store| store.stage_file(8 << 20).map(drop),
    ] {
        fs::write(&left, b"half a checkpoint").unwrap();
        let store = open_while_full(&path, &left);
        save(&store).unwrap();
        assert!(!left.exists());
    }
}

#[test]
fn what_failed_on_a_full_disk_is_done_when_it_is_repeated() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap().write(|txn| txn.create_growable("rows", DType::I64, &[0], 0)).unwrap();
    let left = path.join("storages/.stage-crashed");
    for save in [
        |store: &Store| store.save("small", &filled(100, 1i64)),
        |store: &Store| store.write(|txn| txn.copy("small", "other")),
        |store: &Store| store.append("rows", &filled(100, 1i64)).map(drop),
    ] {
        fs::write(&left, b"half a checkpoint").unwrap();
        let store = open_while_full(&path, &left);
        let error = save(&store).unwrap_err();
        assert_eq!(error.io_error().and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
        assert!(!left.exists());
        save(&store).unwrap();
    }
}

#[test]
fn full_disk_is_an_error_while_the_unfinished_file_belongs_to_a_writer() {
    let (_dir, path) = new_path();
    let writer = Store::create(&path).unwrap();
    let file = writer.stage_file(100).unwrap();
    let store = open_while_full(&path, file.path());
    for error in
        [store.save("x", &filled(1 << 20, 1i64)).unwrap_err(), store.stage_file(100).map(drop).unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(error.io_error().and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
    }
    assert!(file.path().exists());
    drop(file);
    store.save("x", &filled(1 << 20, 1i64)).unwrap();
}
