//! Commits with tags on a full disk, and without syncs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stridemap::{Durability, ErrorKind, OnExisting, Store, StoreOptions};

use super::{first_of, save_tagged, tag_names};
use crate::harness::hooked::Hooked;
use crate::harness::{filled, new_path};
use crate::simulated::{Outcome, SimulatedDisk};

/// The operations of a commit that can find the disk full.
const TAKES_SPACE: [&str; 3] = ["create_staged", "write_all_at", "rename_new"];

/// Makes the disk full at each operation of a commit in turn. Returns how many there were.
fn assert_old_state_remains(commit: impl Fn(&Store) -> stridemap::Result<()>) -> usize {
    for nth in 0.. {
        let (_dir, path) = new_path();
        let store = Store::create(&path).unwrap();
        save_tagged(&store, "x", &filled(100, 1i64), "v1");
        store.save("x", &filled(100, 2i64)).unwrap();
        drop(store);
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let disk = Hooked::before(move |operation: &str, path: &Path| {
            if !TAKES_SPACE.contains(&operation) || counted.fetch_add(1, Ordering::Relaxed) != nth {
                return Ok(());
            }
            if operation == "write_all_at" {
                File::options().write(true).open(path)?.write_all_at(b"half", 0)?;
            }
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        let store = StoreOptions::new().disk(Arc::new(disk)).open(&path).unwrap();
        let committed = commit(&store);
        if seen.load(Ordering::Relaxed) <= nth {
            committed.unwrap();
            return nth;
        }
        let refused = committed.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{nth}: {refused}");
        assert_eq!(
            refused.io_error().and_then(io::Error::raw_os_error),
            Some(libc::ENOSPC),
            "{nth}: {refused}"
        );
        let reader = Store::open(&path).unwrap();
        assert_eq!((reader.generation(), tag_names(&reader)), (3, vec!["v1".to_owned()]), "{nth}");
        assert_eq!((first_of(&reader, "v1", "x"), reader.at("v1").unwrap().generation()), (1, 2), "{nth}");
        assert!(reader.verify(|_| ()).unwrap().is_whole(), "{nth}");
        drop(reader);
        commit(&store).unwrap();
        assert!(store.verify(|_| ()).unwrap().is_whole(), "{nth}");
        store.untag("v1").unwrap();
        store.gc().unwrap();
        let left = super::files(&path, "generations", "man");
        assert_eq!(left.len(), tag_names(&store).len(), "{nth}: {left:?}");
        assert_eq!(store.verify(|_| ()).unwrap().orphans, [], "{nth}");
    }
    unreachable!("the loop returns")
}

#[test]
fn full_disk_at_a_tagged_commit_leaves_the_old_state() {
    let count = assert_old_state_remains(|store| {
        store.write(|txn| {
            txn.save("x", &filled(100, 3i64))?;
            txn.tag("v2")
        })
    });
    // The storage, the kept manifest and the manifest: each is created, written and renamed.
    assert!(count >= 9, "{count}");
    let count = assert_old_state_remains(|store| {
        store.write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.save("x", &filled(100, 3i64))?;
            txn.tag("v1")
        })
    });
    assert!(count >= 9, "{count}");
    let count = assert_old_state_remains(|store| store.tag("v2"));
    assert!(count >= 6, "{count}");
    let count = assert_old_state_remains(|store| store.restore(&store.at("v1")?));
    assert!(count >= 3, "{count}");
}

#[test]
fn later_full_commit_makes_tags_durable_that_were_not_synced() {
    const STORE: &str = "x.smap";
    let disk = SimulatedDisk::new();
    let options = |durability| StoreOptions::new().durability(durability).disk(Arc::new(disk.clone()));
    drop(options(Durability::Full).create(STORE).unwrap());
    let fast = options(Durability::Process).open(STORE).unwrap();
    for step in 1..=100i64 {
        save_tagged(&fast, "x", &filled(10, step), &format!("step{step:03}"));
    }
    fast.untag("step002").unwrap();
    fast.restore(&fast.at("step001").unwrap()).unwrap();
    let full = options(Durability::Full).open(STORE).unwrap();
    save_tagged(&full, "y", &filled(10, 7i64), "full");
    for outcome in [Outcome::EverythingLost, Outcome::EverythingKept, Outcome::NamesKept, Outcome::DataKept] {
        let cut = SimulatedDisk::after_power_cut(&disk.log(), outcome);
        let store = StoreOptions::new().disk(Arc::new(cut)).open(STORE).unwrap();
        assert_eq!(store.tags().unwrap().len(), 100);
        for step in (1..=100).filter(|step| *step != 2) {
            assert_eq!(first_of(&store, &format!("step{step:03}"), "x"), step);
        }
        assert_eq!((first_of(&store, "full", "y"), first_of(&store, "full", "x")), (7, 1));
        assert!(store.verify(|_| ()).unwrap().is_whole());
    }
}
