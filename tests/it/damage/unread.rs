//! A file that could not be read is not damaged: a failed operation never becomes a finding or a loss.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use stridemap::maintenance::{Finding, Loss};
use stridemap::{ErrorKind, StorageKind, StoreOptions};

use super::support::{Content, content, create_chunked_store, create_small_store, tree, verify};
use crate::harness::hooked::Hooked;
use crate::harness::{assert_refused, fast, filled};
use crate::support::temporary;

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

/// An error of the disk that stays is reported as a loss; any other one ends the salvage.
#[test]
fn salvage_that_fails_to_read_loses_only_what_is_damaged() {
    let dir = temporary();
    let stores = stores(dir.path());
    let bin = stores[1].0.join("storages/0000000000000001.bin");
    let mut bytes = fs::read(&bin).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&bin, bytes).unwrap();
    let new = dir.path().join("new.smap");
    for (path, _) in &stores {
        let expected = fast().salvage(path, None, |_| ()).unwrap().losses;
        assert_eq!(expected.len(), if bin.starts_with(path) { 2 } else { 0 });
        for to in [None, Some(&*new)] {
            let before = tree(path);
            let (options, count) = failing(None);
            let _ = options.salvage(path, to, |_| ()).unwrap();
            let _ = fs::remove_dir_all(&new);
            each_fault(count.load(Ordering::Relaxed), |fault, what| {
                let is_of_the_disk = matches!(fault, (Failing::From(_), Errno::IO));
                match failing(Some(fault)).0.salvage(path, to, |_| ()) {
                    Ok(done) if is_of_the_disk => {
                        let is_told = |loss: &&Loss| loss.reason.starts_with("could not be read: ");
                        assert!(
                            done.losses == expected || done.losses.iter().any(|loss| is_told(&loss)),
                            "{what}"
                        );
                    }
                    Ok(done) => assert_eq!(done.losses, expected, "{what}"),
                    Err(e) => {
                        assert!(is_failure(&e), "{what}: {e:?}");
                        assert!(!new.exists(), "{what}");
                    }
                }
                let _ = fs::remove_dir_all(&new);
                assert!(tree(path) == before, "{what}");
            });
        }
    }
}

/// Returns options with a disk that cannot read these bytes of a file.
fn unreadable(file: &Path, bytes: Range<u64>) -> StoreOptions {
    let disk = Hooked { unreadable: Some((file.to_owned(), bytes)), ..Hooked::default() };
    fast().disk(Arc::new(disk))
}

/// The reason for the loss of what the disk cannot read.
const UNREAD: &str = "could not be read: Input/output error (os error 5)";

#[test]
fn bytes_that_the_disk_cannot_read_cost_only_the_tensors_on_them() {
    let dir = temporary();
    let (path, new) = (dir.path().join("x.smap"), dir.path().join("new.smap"));
    let mut expected = create_chunked_store(&path);
    let store = fast().open(&path).unwrap();
    store.write(|txn| txn.save_as("counts", &filled(600_000, 7i32), StorageKind::Mutable)).unwrap();
    let counts = store.load("counts").unwrap();
    store.save_view("counts.start", &counts.narrow(0, 0, 10).unwrap()).unwrap();
    drop((counts, store));
    expected.extend(content(&path));
    let id = |n: u64, ending: &str| path.join(format!("storages/{n:016x}.{ending}"));
    let mark = 600_000 * 4;
    let cases: [(PathBuf, Range<u64>, &[&str]); 6] = [
        (id(1, "bin"), (1 << 20) + 5..(1 << 20) + 6, &["all", "chunk1"]),
        (id(1, "bin"), 3 << 20..u64::MAX, &["all", "tail"]),
        (id(1, "sum"), 20..21, &[]),
        (id(2, "bin"), 2 << 20..u64::MAX, &["counts"]),
        (id(2, "bin"), mark..mark + 1, &[]),
        (path.join("FORMAT"), 0..1, &[]),
    ];
    for (file, bytes, gone) in cases {
        let what = format!("{}: {bytes:?}", file.display());
        let before = tree(&path);
        let done = unreadable(&file, bytes.clone()).salvage(&path, Some(&new), |_| ()).unwrap();
        assert!(tree(&path) == before, "{what}");
        assert_eq!(
            done.losses.iter().filter_map(|loss| loss.name.as_deref()).collect::<Vec<_>>(),
            gone,
            "{what}"
        );
        for loss in &done.losses {
            assert_eq!(loss.reason, UNREAD, "{what}");
            assert_eq!(
                (&loss.path, loss.lost_bytes),
                (&file, expected[loss.name.as_ref().unwrap()].1.len() as u64)
            );
        }
        let left: Content =
            expected.clone().into_iter().filter(|(name, _)| !gone.contains(&name.as_str())).collect();
        assert!(content(&new) == left, "{what}");
        // If its mark cannot be read, a change may have been interrupted.
        let is_interrupted =
            |name: &&String| file == id(2, "bin") && bytes.contains(&mark) && name.starts_with("counts");
        let interrupted: Vec<&String> = left.keys().filter(is_interrupted).collect();
        assert_eq!(done.interrupted.iter().collect::<Vec<_>>(), interrupted, "{what}");
        let verified = verify(&new);
        assert_eq!((&verified.findings[..], &verified.interrupted), (&[][..], &done.interrupted), "{what}");
        fs::remove_dir_all(&new).unwrap();
    }
    // A page of the table, and a manifest.
    let (small, expected) =
        (dir.path().join("small.smap"), create_small_store(&dir.path().join("small.smap")));
    let table = small.join("generations/0000000000000004.tab");
    let pages = fs::metadata(&table).unwrap().len() / 4096;
    for page in 0..pages {
        let bytes = page * 4096..(page + 1) * 4096;
        let done = unreadable(&table, bytes.clone()).salvage(&small, Some(&new), |_| ()).unwrap();
        // No rule is broken by what could not be read.
        for loss in &done.losses {
            assert!(!loss.reason.contains("(F-"), "page {page}: {loss}");
            assert!(loss.name.is_some() || loss.reason.ends_with(UNREAD), "page {page}: {loss}");
        }
        let verified = unreadable(&table, bytes).verify(&small, |_| ());
        assert_refused(verified, ErrorKind::Io, &["Input/output error"]);
        let left = content(&new);
        assert!(left.iter().all(|(name, tensor)| expected[name] == *tensor), "page {page}");
        assert!(left.len() == expected.len() || !done.losses.is_empty(), "page {page}");
        fs::remove_dir_all(&new).unwrap();
    }
    let manifest = small.join("meta/0000000000000005.man");
    let refused = unreadable(&manifest, 0..9).salvage(&small, Some(&new), |_| ());
    assert_refused(refused, ErrorKind::Io, &["no manifest can be read", "Input/output error"]);
}

#[test]
fn verification_that_fails_to_read_finds_only_what_is_damaged() {
    let dir = temporary();
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
