//! Storages that a transaction stages before it saves headers over them, and tensors over ranges of files.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use stridemap::import::ExternalFile;
use stridemap::{
    DType, Durability, Error, ErrorKind, ExternalFiles, Header, OnExisting, Store, StoreOptions, Tensor,
};

use crate::harness::hooked::{Hooked, Quirks};
use crate::harness::new_store;
use crate::support::temporary;

fn bytes_of(count: usize) -> Header {
    Header::contiguous(DType::U8, &[count]).unwrap()
}

fn files(store: &Store) -> usize {
    fs::read_dir(store.path().join("storages")).unwrap().count()
}

#[test]
fn staged_storage_of_unknown_length_has_the_written_length() {
    let (_dir, _, store) = new_store();
    let mut txn = store.begin().unwrap();
    let key = txn.stage(None, |sink| (0..=255u8).try_for_each(|byte| sink(&[byte; 10_000]))).unwrap();
    let last = Header::new(DType::U8, [2], [-1], 2_559_999).unwrap();
    txn.save_header("last", &last, key).unwrap();
    assert_eq!(txn.load("last").unwrap().read::<u8>().unwrap(), [255, 255]);
    let beyond = Header::new(DType::U8, [2], [1], 2_559_999).unwrap();
    assert_eq!(txn.save_header("x", &beyond, key).unwrap_err().kind(), ErrorKind::OutOfRange);
    txn.commit().unwrap();
    assert_eq!(store.names().unwrap(), ["last"]);
    assert_eq!(store.load("last").unwrap().storage_nbytes(), 2_560_000);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn writing_less_than_the_stated_length_ends_the_transaction() {
    let (_dir, _, store) = new_store();
    for pieces in [1, 3] {
        let mut txn = store.begin().unwrap();
        let error = txn.stage(Some(20), |sink| (0..pieces).try_for_each(|_| sink(&[7; 10]))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SizeMismatch, "{error}");
        assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::SizeMismatch);
    }
    // Even if the importer ignores the error, and writes as many bytes as it stated.
    let mut txn = store.begin().unwrap();
    let staged = txn.stage(Some(20), |sink| {
        assert!(sink(&[7; 30]).is_err());
        let _ = sink(&[7; 20]);
        Ok::<_, Error>(())
    });
    assert_eq!(staged.unwrap_err().kind(), ErrorKind::SizeMismatch);
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::SizeMismatch);
    let mut txn = store.begin().unwrap();
    let error = txn.stage(Some(u64::MAX), |_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    let error = txn.stage(None, |_| Err(Error::new(ErrorKind::BadFile, "read x"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
    drop(txn);
    // An error of another library, and one of this library that it contains, are returned as they are.
    let mut txn = store.begin().unwrap();
    let error = txn.stage(None, |_| Err::<(), _>(anyhow::Error::from("x".parse::<u8>().unwrap_err())));
    assert!(error.unwrap_err().is::<std::num::ParseIntError>());
    let refused = txn.commit().unwrap_err().to_string();
    assert!(refused.contains("the first failure was: stage: invalid digit"), "{refused}");
    let mut txn = store.begin().unwrap();
    let error = txn.stage(Some(1), |sink| -> anyhow::Result<()> { Ok(sink(&[1, 2])?) }).unwrap_err();
    assert_eq!(error.downcast::<Error>().unwrap().kind(), ErrorKind::SizeMismatch);
    drop(txn);
    assert_eq!(files(&store), 0);
}

/// Writes a part of a file that a transaction has staged, as another process would.
fn write_part(path: &Path, part: &[u8], offset_bytes: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(part, offset_bytes).unwrap();
}

#[test]
fn staged_file_has_what_others_wrote_and_zeros_elsewhere() {
    let (_dir, _, store) = new_store();
    for (round, length) in [(3 << 20) + 5, 1 << 20, 100, 0].into_iter().enumerate() {
        let file = store.stage_file(length as u64).unwrap();
        let path = file.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        let name = format!("x{round}");
        let mut expected = vec![0u8; length];
        for (part, at) in [(1u8, 0), (2, length / 3)] {
            let part = vec![part; length / 3];
            write_part(&path, &part, at as u64);
            expected[at..at + part.len()].copy_from_slice(&part);
        }
        // Other commits do not take it for what a crashed writer left.
        Store::open(store.path()).unwrap().save("between", &1u8).unwrap();
        let mut txn = store.begin().unwrap();
        let key = txn.stage_file(file).unwrap();
        txn.save_header(&name, &bytes_of(length), key).unwrap();
        assert_eq!(txn.load(&name).unwrap().read::<u8>().unwrap(), expected);
        txn.commit().unwrap();
        assert_eq!(store.load(&name).unwrap().read::<u8>().unwrap(), expected);
        assert!(!path.exists());
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn many_staged_files_are_finished_at_a_time_and_one_that_is_refused_ends_the_commit() {
    let dir = temporary();
    let store = StoreOptions::new().durability(Durability::Full).create(dir.path().join("x.smap")).unwrap();
    let length = (1 << 20) + 1;
    for refused in [None, Some(0), Some(6), Some(11)] {
        let mut txn = store.begin().unwrap();
        txn.on_existing(OnExisting::Replace);
        let mut paths = Vec::new();
        for number in 0..12u8 {
            let file = store.stage_file(length).unwrap();
            write_part(file.path(), &[number + 1; 9], length - 9);
            paths.push(file.path().to_path_buf());
            let key = txn.stage_file(file).unwrap();
            txn.save_header(&format!("x{number}"), &bytes_of(length as usize), key).unwrap();
        }
        let Some(refused) = refused else {
            txn.commit().unwrap();
            for number in 0..12u8 {
                let tail = store.load(&format!("x{number}")).unwrap().narrow(0, 1 << 20, 1).unwrap();
                assert_eq!(tail.read::<u8>().unwrap(), [number + 1]);
            }
            assert_eq!(store.verify(|_| ()).unwrap().findings, []);
            continue;
        };
        fs::File::options().write(true).open(&paths[refused]).unwrap().set_len(7).unwrap();
        let error = txn.commit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SizeMismatch, "{error}");
        assert!(paths.iter().all(|path| !path.exists()), "all are deleted");
        store.save("works", &1u8).unwrap();
    }
}

#[test]
fn staged_file_takes_space_where_none_can_be_reserved() {
    let quirks = Quirks { reserves_nothing: true, ..Quirks::default() };
    let dir = temporary();
    let options = StoreOptions::new().disk(Arc::new(Hooked::before(|_, _| Ok(())).with(quirks)));
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let file = store.stage_file((2 << 20) + 9).unwrap();
    assert!(fs::metadata(file.path()).unwrap().blocks() * 512 >= 2 << 20);
    write_part(file.path(), &[7; 9], 2 << 20);
    let mut txn = store.begin().unwrap();
    let key = txn.stage_file(file).unwrap();
    txn.save_header("x", &bytes_of((2 << 20) + 9), key).unwrap();
    txn.commit().unwrap();
    let tail = store.load("x").unwrap().narrow(0, (2 << 20) - 1, 10).unwrap();
    assert_eq!(tail.read::<u8>().unwrap(), [0, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn staged_file_whose_length_others_change_is_refused_and_deleted() {
    let (_dir, _, store) = new_store();
    for changed in [0, 99, 101] {
        let file = store.stage_file(100).unwrap();
        let path = file.path().to_path_buf();
        let mut txn = store.begin().unwrap();
        let key = txn.stage_file(file).unwrap();
        txn.save_header("x", &bytes_of(100), key).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(changed).unwrap();
        let error = txn.commit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SizeMismatch, "{error}");
        assert!(error.to_string().contains(&format!("has changed the length to {changed}")), "{error}");
    }
    assert_eq!(store.names().unwrap(), Vec::<String>::new());
    let error = store.stage_file(u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    let file = store.stage_file(100).unwrap();
    assert!(file.path().exists());
    drop(file);
    // A clone of the handle may commit it, and another handle may not.
    let error = Store::open(store.path()).unwrap().begin().unwrap().stage_file(store.stage_file(1).unwrap());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.clone().write(|txn| txn.stage_file(store.stage_file(1)?)).map(drop).unwrap(), ());
    assert_eq!(files(&store), 0);
}

#[test]
fn small_staged_storages_share_one_file_with_small_tensors() {
    const MIB: usize = 1 << 20;
    let (_dir, _, store) = new_store();
    let mut txn = store.begin().unwrap();
    let bytes = |count: usize, first: usize| (0..count).map(|i| (first + i) as u8).collect::<Vec<u8>>();
    for i in 0..300 {
        let content = bytes(10 + i, i);
        let key = txn.stage(Some(content.len() as u64), |sink| content.chunks(7).try_for_each(sink)).unwrap();
        let name = |part: &str| format!("{part}{i}");
        txn.save_header(&name("all"), &bytes_of(content.len()), key).unwrap();
        let backwards = Header::new(DType::U16, [4], [-1], 3).unwrap();
        txn.save_header(&name("backwards"), &backwards, key).unwrap();
        let beyond = Header::new(DType::U8, [1], [1], content.len()).unwrap();
        let error = txn.save_header("beyond", &beyond, key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        txn.save(&name("saved"), &content).unwrap();
    }
    let large = vec![1u8; 4 * MIB];
    let key = txn.stage(Some(large.len() as u64), |sink| sink(&large)).unwrap();
    txn.save_header("large", &bytes_of(large.len()), key).unwrap();
    let almost = &large[1..];
    let key = txn.stage(Some(almost.len() as u64), |sink| sink(almost)).unwrap();
    txn.save_header("almost", &bytes_of(almost.len()), key).unwrap();
    let check = |load: &dyn Fn(&str) -> Tensor| {
        for i in 0..300 {
            let content = bytes(10 + i, i);
            assert_eq!(load(&format!("all{i}")).read::<u8>().unwrap(), content);
            assert_eq!(load(&format!("saved{i}")).read::<u8>().unwrap(), content);
            let pairs = content[..8].chunks(2).rev().map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            assert_eq!(load(&format!("backwards{i}")).read::<u16>().unwrap(), pairs.collect::<Vec<_>>());
        }
        assert_eq!(load("almost").read::<u8>().unwrap(), almost);
    };
    check(&|name| txn.load(name).unwrap());
    txn.commit().unwrap();
    check(&|name| store.load(name).unwrap());
    assert_eq!(store.snapshot().storages().count(), 2);
    assert!(store.load("all1").unwrap().shares_storage(&store.load("almost").unwrap()));
    assert_eq!(store.load("large").unwrap().storage_nbytes(), 4 << 20);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn staged_storage_without_a_header_is_not_committed() {
    let dir = temporary();
    let file = dir.path().join("file");
    fs::write(&file, [1; 100]).unwrap();
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.stage(Some(10), |sink| sink(&[7; 10])).unwrap();
    txn.adopt(&ExternalFile::open(&file).unwrap(), 0..10).unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    txn.commit().unwrap();
    assert_eq!((store.snapshot().storages().count(), files(&store)), (0, 0));
}

#[test]
fn staged_key_of_another_transaction_is_refused() {
    let (_dir, _, store) = new_store();
    let (mut one, mut other) = (store.begin().unwrap(), store.begin().unwrap());
    let key = one.stage(Some(1), |sink| sink(&[1])).unwrap();
    other.stage(Some(1), |sink| sink(&[2])).unwrap();
    let error = other.save_header("x", &bytes_of(1), key).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn ranges_outside_the_file_are_refused_and_keep_the_transaction() {
    let dir = temporary();
    let path = dir.path().join("file");
    fs::write(&path, b"0123456789").unwrap();
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let file = Arc::new(ExternalFile::open(&path).unwrap());
    let mut txn = store.begin().unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "reversed ranges must be refused")]
    for range in [0..11, 11..11, 5..4, 0..u64::MAX] {
        let error = txn.adopt(&file, range.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        let error = Tensor::from_file(&file, range, bytes_of(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    }
    let error = Tensor::from_file(&file, 2..4, bytes_of(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    let key = txn.adopt(&file, 4..10).unwrap();
    txn.save_header("x", &bytes_of(6), key).unwrap();
    txn.commit().unwrap();
    assert_eq!(store.load("x").unwrap().read::<u8>().unwrap(), b"456789");
}

#[test]
fn tensors_share_a_storage_if_their_ranges_are_equal() {
    let dir = temporary();
    let path = dir.path().join("file");
    fs::write(&path, b"0123456789").unwrap();
    let open = || Arc::new(ExternalFile::open(&path).unwrap());
    let tensor = |file: &Arc<ExternalFile>, range| Tensor::from_file(file, range, bytes_of(2)).unwrap();
    let (one, again) = (open(), open());
    let first = tensor(&one, 0..4);
    assert!(first.shares_storage(&tensor(&one, 0..4)) && first.shares_storage(&tensor(&again, 0..4)));
    assert!(!first.shares_storage(&tensor(&one, 0..5)) && !first.shares_storage(&tensor(&one, 2..6)));
    fs::write(dir.path().join("other"), b"0123456789").unwrap();
    let other = Arc::new(ExternalFile::open(dir.path().join("other")).unwrap());
    assert!(!first.shares_storage(&tensor(&other, 0..4)));
}
