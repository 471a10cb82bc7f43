//! What a caller can do about each kind of error, and what a log shows of it.

use std::error::Error as _;
use std::io;
use std::path::Path;

use stridemap::{DType, Error, ErrorKind, Header, Store, StoreOptions};

use crate::harness::{assert_refused, filled};
use crate::support::temporary;

const RETRY: [bool; 4] = [true, false, false, false];
const REQUEST: [bool; 4] = [false, true, false, false];
const DAMAGE: [bool; 4] = [false, false, true, false];
const DISK: [bool; 4] = [false, false, false, true];
const NONE: [bool; 4] = [false; 4];

/// Every kind, what is true of it, and the kind of `io::Error` that it becomes.
const KINDS: [(ErrorKind, [bool; 4], io::ErrorKind); 26] = [
    (ErrorKind::Io, DISK, io::ErrorKind::Other),
    (ErrorKind::NotFound, REQUEST, io::ErrorKind::NotFound),
    (ErrorKind::NotAStore, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::AlreadyExists, REQUEST, io::ErrorKind::AlreadyExists),
    (ErrorKind::UnsupportedVersion, NONE, io::ErrorKind::Other),
    (ErrorKind::Corrupt, DAMAGE, io::ErrorKind::InvalidData),
    (ErrorKind::NameNotFound, REQUEST, io::ErrorKind::NotFound),
    (ErrorKind::NameExists, REQUEST, io::ErrorKind::AlreadyExists),
    (ErrorKind::DTypeMismatch, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::SizeMismatch, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::OutOfRange, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::InvalidArgument, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::NeedsCopy, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::Unsupported, REQUEST, io::ErrorKind::Unsupported),
    (ErrorKind::LimitExceeded, REQUEST, io::ErrorKind::InvalidInput),
    (ErrorKind::OutOfMemory, NONE, io::ErrorKind::OutOfMemory),
    (ErrorKind::NotAllowed, REQUEST, io::ErrorKind::PermissionDenied),
    (ErrorKind::ExternalChanged, DAMAGE, io::ErrorKind::InvalidData),
    (ErrorKind::Busy, RETRY, io::ErrorKind::TimedOut),
    (ErrorKind::Stale, NONE, io::ErrorKind::Other),
    (ErrorKind::Conflict, RETRY, io::ErrorKind::Other),
    (ErrorKind::ReadOnly, DISK, io::ErrorKind::ReadOnlyFilesystem),
    (ErrorKind::CommitUnknown, DISK, io::ErrorKind::Other),
    (ErrorKind::Poisoned, DISK, io::ErrorKind::Other),
    (ErrorKind::Interrupted, NONE, io::ErrorKind::Other),
    (ErrorKind::BadFile, NONE, io::ErrorKind::Other),
];

fn predicates(e: &Error) -> [bool; 4] {
    [e.is_retryable(), e.is_invalid_request(), e.is_damage(), e.is_io()]
}

#[test]
fn each_kind_of_error_has_at_most_one_predicate() {
    for (kind, expected, _) in KINDS {
        let found = predicates(&Error::new(kind, "x"));
        assert_eq!(found, expected, "{kind:?}");
        assert!(found.iter().filter(|is_true| **is_true).count() <= 1, "{kind:?}");
    }
    let source = include_str!("../../src/error/kind.rs");
    let (_, kinds) = source.split_once("pub enum ErrorKind {").unwrap();
    let (kinds, _) = kinds.split_once("\n}").unwrap();
    let declared: Vec<&str> =
        kinds.lines().filter_map(|line| line.strip_suffix(',')).map(str::trim).collect();
    let listed: Vec<String> = KINDS.iter().map(|(kind, ..)| format!("{kind:?}")).collect();
    assert_eq!(declared, listed);
}

#[test]
fn errors_of_real_stores_tell_what_a_caller_can_do() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &filled(3, 1i64)).unwrap();
    {
        let _exclusive = store.begin_exclusive().unwrap();
        let other = StoreOptions::new().lock_timeout(std::time::Duration::ZERO).open(&path).unwrap();
        assert_eq!(predicates(&other.save("y", &1).unwrap_err()), RETRY);
    }
    for refused in [
        store.load("y").map(drop),
        Store::create(&path).map(drop),
        Store::open(dir.path().join("none")).map(drop),
        store.load("x").unwrap().view([2, 2]).map(drop),
        store.load("x").unwrap().lock_shared().map(drop),
    ] {
        assert_eq!(predicates(&refused.unwrap_err()), REQUEST);
    }
    std::fs::write(path.join("meta/0000000000000002.man"), "no manifest").unwrap();
    assert_eq!(predicates(&Store::open(&path).unwrap_err()), DAMAGE);
}

#[test]
fn header_that_is_refused_is_an_invalid_argument_or_exceeds_a_limit() {
    let header = |size: &[usize], stride: &[isize]| Header::new(DType::U8, size, stride, 0);
    let named = |names: &[&str]| {
        header(&[2, 3], &[3, 1]).unwrap().with_dim_names(names.iter().map(|&name| Some(name.into())))
    };
    let (invalid, limit) = (ErrorKind::InvalidArgument, ErrorKind::LimitExceeded);
    let tiny_storage = header(&[2, 3], &[3, 1]).unwrap().extent(5);
    for (refused, kind, says) in [
        (header(&[3, 2, 1], &[2, 1]).unwrap_err(), invalid, "3 sizes and 2 strides"),
        (header(&[3, 2], &[4, 2, 1]).unwrap_err(), invalid, "2 sizes and 3 strides"),
        (header(&[1; 65], &[1; 64]).unwrap_err(), invalid, "65 sizes and 64 strides"),
        (header(&[1; 65], &[1; 65]).unwrap_err(), limit, "65 dimensions"),
        (Header::contiguous(DType::U8, &[1; 65]).unwrap_err(), limit, "65 dimensions"),
        (header(&[1 << 32, 1 << 32], &[1, 1]).unwrap_err(), limit, "64-bit"),
        (named(&["row"]).unwrap_err(), invalid, "1 names for 2 dimensions"),
        (named(&["row", "row"]).unwrap_err(), invalid, "twice"),
        ("float99".parse::<DType>().unwrap_err(), invalid, "float99"),
        (tiny_storage.unwrap_err(), ErrorKind::OutOfRange, "5 bytes"),
    ] {
        let error = Error::refused("read x.bin", refused);
        assert_refused(Err::<(), _>(error), kind, &["read x.bin", says]);
    }
}

/// The chain of causes of an error, as `{:#}` of `anyhow` prints it.
fn chain(error: Error) -> String {
    let text = format!("{:#}", anyhow::Error::from(error.clone()));
    let mut walked = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        walked += &format!(": {e}");
        cause = e.source();
    }
    assert_eq!(text, walked);
    text
}

#[test]
fn log_shows_the_cause_of_an_error_once() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    // A file where the directory of the new store would be.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let failed = Store::create(file.join("x.smap")).unwrap_err();
    let cause = failed.io_error().expect("the system refused").to_string();
    assert_eq!(chain(failed).matches(&cause).count(), 1);

    std::fs::write(path.join("meta/0000000000000001.man"), "no manifest").unwrap();
    let damaged = Store::open(&path).unwrap_err();
    let (rule, text) = (damaged.rule().unwrap().to_string(), chain(damaged));
    assert_eq!(text.matches(&rule).count(), 1, "{text}");
    drop(store);
}

#[test]
fn error_becomes_an_io_error_of_the_same_message_and_returns_from_it() {
    for (kind, _, expected) in KINDS {
        let converted = io::Error::from(Error::new(kind, "load \"x\": no such thing"));
        assert_eq!((converted.kind(), converted.to_string()), (expected, "load \"x\": no such thing".into()));
        assert_eq!(converted.downcast::<Error>().unwrap().kind(), kind);
    }
    let full = Error::io("write", Path::new("x.bin"), io::ErrorKind::StorageFull.into());
    assert_eq!(io::Error::from(full).kind(), io::ErrorKind::StorageFull);
}

#[test]
fn closure_of_write_fails_with_any_error_that_a_library_error_becomes() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let text = dir.path().join("x.txt");
    let by_anyhow = || {
        store.write(|txn| -> anyhow::Result<()> {
            let value: i64 = std::fs::read_to_string(&text)?.parse()?;
            txn.save("x", &value)?;
            Ok(())
        })
    };
    let by_io = || {
        store.write(|txn| -> io::Result<()> {
            let bytes = std::fs::read(&text)?;
            txn.save("bytes", &bytes)?;
            Ok(txn.rename("bytes", "x")?)
        })
    };
    assert!(by_anyhow().unwrap_err().is::<io::Error>());
    assert_eq!(by_io().unwrap_err().kind(), io::ErrorKind::NotFound);
    std::fs::write(&text, "12").unwrap();
    by_anyhow().unwrap();
    assert_eq!(by_io().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    std::fs::write(&text, "no number").unwrap();
    assert!(by_anyhow().unwrap_err().is::<std::num::ParseIntError>());
    assert_eq!(store.names().unwrap(), ["x"]);

    // In a function that returns the library's errors, the closure needs no annotation.
    fn column(store: &Store, strides: &[isize]) -> stridemap::Result<()> {
        store.write(|txn| {
            let storage = txn.stage(Some(4), |sink| sink(&[1, 2, 3, 4]))?;
            let header = Header::new(DType::U8, [2], strides, 1);
            txn.save_header("column", &header.map_err(|e| Error::refused("column", e))?, storage)?;
            Ok(())
        })?;
        Ok(())
    }
    column(&store, &[2]).unwrap();
    assert_eq!(store.load("column").unwrap().read::<u8>().unwrap(), [2, 4]);
    assert_refused(column(&store, &[2, 1]), ErrorKind::InvalidArgument, &["column", "1 sizes and 2 strides"]);
}
