//! A file that could not be read is not damaged: a failed operation never becomes a finding or a loss.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use stridemap::maintenance::Finding;
use stridemap::{ErrorKind, StoreOptions};

use super::support::{Content, copy, create_chunked_store, create_small_store, lost_or_changed, verify};
use crate::harness::fast;
use crate::harness::hooked::Hooked;

/// The operations that read. Their errors say nothing about the bytes of a file.
const READS: [&str; 7] = ["open", "open to write", "stat", "stat of file", "is_dir", "list", "read_exact_at"];

/// Which of the reading operations fail, counted from 0.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Only(usize),
    From(usize),
}

/// How the operations fail.
type Fault = (Failing, Errno);

/// Returns options with a disk that fails, and the count of its reading operations.
fn failing(fault: Option<Fault>) -> (StoreOptions, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let disk = Hooked::before(move |operation, _| {
        if !READS.contains(&operation) {
            return Ok(());
        }
        let index = seen.fetch_add(1, Ordering::Relaxed);
        match fault {
            Some((Failing::Only(failing), errno)) if index == failing => Err(io::Error::from(errno)),
            Some((Failing::From(first), errno)) if index >= first => Err(io::Error::from(errno)),
            _ => Ok(()),
        }
    });
    (fast().disk(Arc::new(disk)), count)
}

/// Calls `check` with each fault of an operation that does `count` reads.
fn each_fault(count: usize, check: impl Fn(Fault, &str)) {
    let errors = [Errno::IO, Errno::MFILE, Errno::NOMEM, Errno::ACCESS, Errno::INVAL];
    let once = (0..count).flat_map(|k| errors.map(|errno| (Failing::Only(k), errno)));
    let forever = (0..count).flat_map(|k| errors.map(|errno| (Failing::From(k), errno)));
    // A file that is missing twice is missing.
    let absent = (0..count).map(|k| (Failing::Only(k), Errno::NOENT));
    for fault in once.chain(forever).chain(absent) {
        check(fault, &format!("{fault:?}"));
    }
}

/// The bytes of each file of a store.
fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut dirs = vec![path.to_path_buf()];
    let mut files = BTreeMap::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path)
            } else {
                drop(files.insert(path.clone(), fs::read(path).unwrap()))
            }
        }
    }
    files
}

fn stores(dir: &Path) -> [(PathBuf, Content); 2] {
    let (small, chunked) = (dir.join("small.smap"), dir.join("chunked.smap"));
    let contents = [create_small_store(&small), create_chunked_store(&chunked)];
    let [small_content, chunked_content] = contents;
    [(small, small_content), (chunked, chunked_content)]
}

fn is_failure(error: &stridemap::Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::NotFound)
        && error.rule().is_none()
}

#[test]
fn repair_of_a_whole_store_that_fails_to_read_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (path, _) in stores(dir.path()) {
        let before = files(&path);
        let (options, count) = failing(None);
        assert!(options.repair(&path, |_| ()).unwrap().is_empty());
        each_fault(count.load(Ordering::Relaxed), |fault, what| {
            let (options, _) = failing(Some(fault));
            match options.repair(&path, |_| ()) {
                Ok(done) => assert!(done.is_empty(), "{what}: {done:?}"),
                Err(e) => assert!(is_failure(&e), "{what}: {e:?}"),
            }
            assert!(files(&path) == before, "{what}: changed {:?}", files(&path).keys());
        });
    }
}

#[test]
fn repair_that_fails_to_read_loses_only_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    let bin = path.join("storages/0000000000000001.bin");
    let mut bytes = fs::read(&bin).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&bin, bytes).unwrap();
    let damaged: BTreeSet<String> = ["all", "chunk1"].map(str::to_owned).into();
    let run = |fault: Option<Fault>, what: &str| {
        let copied = dir.path().join("copied.smap");
        copy(&path, &copied);
        let (options, count) = failing(fault);
        let repaired = options.repair(&copied, |_| ());
        if let Ok(done) = &repaired {
            let lost = done.losses.iter().flat_map(|loss| loss.names.iter().cloned()).collect();
            assert_eq!(damaged, lost, "{what}");
        }
        if repaired.is_err() {
            fast().repair(&copied, |_| ()).unwrap();
        }
        assert_eq!(lost_or_changed(&copied, &expected), damaged, "{what}: {repaired:?}");
        assert_eq!(verify(&copied).findings, [], "{what}");
        fs::remove_dir_all(&copied).unwrap();
        count.load(Ordering::Relaxed)
    };
    let count = run(None, "without a fault");
    each_fault(count, |fault, what| {
        run(Some(fault), what);
    });
}

#[test]
fn verification_that_fails_to_read_finds_only_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let stores = stores(dir.path());
    let damaged = stores[1].0.join("storages/0000000000000001.bin");
    for is_damaged in [false, true] {
        if is_damaged {
            let mut bytes = fs::read(&damaged).unwrap();
            bytes[1 << 20] ^= 1;
            fs::write(&damaged, bytes).unwrap();
        }
        for (path, _) in &stores {
            let expected: Vec<Finding> = verify(path).findings;
            assert_eq!(expected.is_empty(), !(is_damaged && damaged.starts_with(path)));
            let (options, count) = failing(None);
            let _ = options.verify(path, |_| ()).unwrap();
            each_fault(count.load(Ordering::Relaxed), |fault, what| {
                match failing(Some(fault)).0.verify(path, |_| ()) {
                    Ok(found) => assert_eq!(found.findings, expected, "{what}"),
                    Err(e) => assert!(is_failure(&e), "{what}: {e:?}"),
                }
            });
        }
    }
}
