//! Operations that the system refuses, on a disk that works: nothing was done, and the handle can still be used.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use stridemap::{Error, ErrorKind, Store, StoreOptions};

use crate::harness::hooked::{Hooked, Quirks};
use crate::harness::{filled, new_path};

/// Errors that say that the system has not done what it was asked to.
const REFUSALS: [Errno; 9] = [
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::ACCESS,
    Errno::PERM,
    Errno::ROFS,
    Errno::MFILE,
    Errno::NFILE,
    Errno::EXIST,
    Errno::BUSY,
];

/// Creates a store whose next operation with this name and path fails.
fn failing(
    quirks: Quirks,
    errno: Errno,
    fails: fn(&str, &Path) -> bool,
) -> (tempfile::TempDir, Store, Arc<AtomicBool>) {
    let (dir, path) = new_path();
    let is_on = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_on);
    let disk = Hooked::before(move |operation, path| {
        match fails(operation, path) && switch.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::from(errno)),
            false => Ok(()),
        }
    });
    let store = StoreOptions::new().disk(Arc::new(disk.with(quirks))).create(&path).unwrap();
    store.save("old", &filled(5, 1u8)).unwrap();
    (dir, store, is_on)
}

fn is_manifest_rename(operation: &str, path: &Path) -> bool {
    operation == "rename_new" && path.extension().is_some_and(|extension| extension == "man")
}

fn saves(store: &Store, is_on: &AtomicBool) -> (Error, Result<(), Error>) {
    is_on.store(true, Ordering::Relaxed);
    let failed = store.save("new", &filled(5, 2u8)).unwrap_err();
    assert!(!is_on.load(Ordering::Relaxed), "nothing failed");
    (failed, store.save("later", &filled(5, 3u8)))
}

#[test]
fn commit_whose_rename_is_refused_is_not_published_and_the_handle_can_commit_again() {
    for errno in REFUSALS {
        let (_dir, store, is_on) = failing(Quirks::default(), errno, is_manifest_rename);
        let (failed, later) = saves(&store, &is_on);
        assert!(matches!(failed.kind(), ErrorKind::Io | ErrorKind::ReadOnly), "{errno}: {failed:?}");
        later.unwrap_or_else(|e| panic!("{errno}: {e}"));
        let another = Store::open(store.path()).unwrap();
        assert_eq!(another.names().unwrap(), ["later", "old"], "{errno}");
        assert!(another.verify(|_| ()).unwrap().is_whole(), "{errno}");
    }
}

#[test]
fn commit_whose_rename_may_have_been_done_is_of_unknown_fate() {
    let network = Quirks { is_network: true, ..Quirks::default() };
    let local = [Errno::IO, Errno::NOMEM, Errno::INTR, Errno::UCLEAN, Errno::SHUTDOWN];
    let cases = local.map(|errno| (Quirks::default(), errno));
    for (quirks, errno) in cases.into_iter().chain([(network, Errno::IO), (network, Errno::NOSPC)]) {
        let (_dir, store, is_on) = failing(quirks, errno, is_manifest_rename);
        let (failed, later) = saves(&store, &is_on);
        assert_eq!(failed.kind(), ErrorKind::CommitUnknown, "{errno}: {failed}");
        assert_eq!(later.unwrap_err().kind(), ErrorKind::Poisoned, "{errno}");
    }
}

/// Opening the directory fails before anything is synced, so nothing is lost.
#[test]
fn commit_that_cannot_open_a_directory_to_sync_it_can_be_repeated() {
    let is_sync = |operation: &str, path: &Path| operation == "sync_dir" && path.ends_with("storages");
    for errno in [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::IO] {
        let closed = Quirks { opens_no_dirs: true, ..Quirks::default() };
        let (_dir, store, is_on) = failing(closed, errno, is_sync);
        let (failed, later) = saves(&store, &is_on);
        assert_eq!(failed.kind(), ErrorKind::Io, "{errno}: {failed}");
        later.unwrap_or_else(|e| panic!("{errno}: {e}"));
        // The sync itself may fail with any error.
        let (_dir, store, is_on) = failing(Quirks::default(), errno, is_sync);
        let (_, later) = saves(&store, &is_on);
        assert_eq!(later.unwrap_err().kind(), ErrorKind::Poisoned, "{errno}");
    }
}
