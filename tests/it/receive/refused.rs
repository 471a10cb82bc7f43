//! What a replica refuses, and that nothing changes then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stridemap::import::ExternalFile;
use stridemap::replica::ReceiveOptions;
use stridemap::{DType, ErrorKind, ExternalFiles, Header, StorageKind, Store, StoreOptions};

use super::{Tensors, assert_same, filled_store, pair, receive, replica_of, tensors};
use crate::harness::{arange, assert_refused, fast};
use crate::support::temporary;

#[test]
fn commits_of_the_replica_are_not_lost() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let base = replica.snapshot().id().unwrap();
    let options = ReceiveOptions::default();
    store.save("x", &1i32).unwrap();
    replica.save("own", &2i32).unwrap();
    let refused = |from: &Store, base, part: &str| {
        assert_refused(replica.receive(&from.snapshot(), base, &options), ErrorKind::Conflict, &[part]);
        assert!(replica.latest().unwrap().contains("own").unwrap());
    };
    // The same number, but a different generation.
    refused(&store, Some(base), "commits of its own");
    store.save("y", &1i32).unwrap();
    refused(&store, Some(base), "commits of its own");
    refused(&store, None, "not known to be an earlier state");
    refused(&store, Some(store.snapshot().id().unwrap()), "commits of its own");
    replica.save("own", &3i32).unwrap();
    replica.save("own", &4i32).unwrap();
    refused(&store, Some(base), "which is later");
}

#[test]
fn another_store_is_refused() {
    let dir = temporary();
    let (_store, replica) = pair(dir.path());
    let other = filled_store(&dir.path().join("c.smap"));
    let base = replica.snapshot().id().unwrap();
    let refused = replica.receive(&other.snapshot(), Some(base), &ReceiveOptions::default());
    assert_refused(refused, ErrorKind::InvalidArgument, &["different stores"]);
}

#[test]
fn external_tensors_are_refused() {
    let dir = temporary();
    let options = fast().external(ExternalFiles::Anywhere);
    let store = options.create(dir.path().join("a.smap")).unwrap();
    let replica = replica_of(&store, &dir.path().join("b.smap"));
    let file = dir.path().join("x.bin");
    fs::write(&file, [1, 2, 3, 4]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    store
        .write(|txn| {
            let key = txn.adopt(&ExternalFile::open(&file)?, 0..4)?;
            txn.save_header("x", &Header::contiguous(DType::U8, &[4]).unwrap(), key)
        })
        .unwrap();
    assert_refused(receive(&replica, &store), ErrorKind::NotAllowed, &["materialize"]);
    let _ = store.materialize(|_| ()).unwrap();
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
}

#[test]
fn interrupted_change_of_the_other_store_is_refused() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let infos: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
    let mutable = infos.iter().find(|info| info.kind == stridemap::StorageKind::Mutable).unwrap();
    let mut bytes = fs::read(&mutable.file).unwrap();
    *bytes.last_mut().unwrap() = 1;
    fs::write(&mutable.file, bytes).unwrap();
    assert_refused(receive(&replica, &store), ErrorKind::Interrupted, &["allow_interrupted"]);
}

#[test]
fn fixed_handle_does_not_receive() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let fixed = StoreOptions::new().at("v1").open(replica.path()).unwrap();
    let refused = fixed.receive(&store.snapshot(), None, &ReceiveOptions::default());
    assert_refused(refused, ErrorKind::ReadOnly, &["to read it"]);
}

/// Returns the files in the directories of a store.
fn all_files(store: &Path) -> Vec<PathBuf> {
    let dirs = ["meta", "generations", "storages"].map(|dir| store.join(dir));
    let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some()).collect()
}

#[test]
fn damaged_bytes_are_refused_and_change_nothing() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let base = replica.snapshot().id().unwrap();
    let before: Tensors = tensors(&replica.snapshot());
    let commit = |round: i64| {
        store.append("log", &arange(&[200_000])).unwrap();
        store.save("new", &arange(&[400_000])).unwrap();
        store.write(|txn| (0..200).try_for_each(|i| txn.save(&format!("n{round}.{i}"), &i))).unwrap();
        (0..300).for_each(|i| store.tag(&format!("t{round}.{i}")).unwrap());
        store.save("new", &arange(&[400_001])).unwrap();
    };
    commit(0);
    // Otherwise there are tables that no generation needs.
    let _ = store.gc().unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    let snapshot = store.latest().unwrap();
    let known = all_files(replica.path());
    for path in all_files(store.path()) {
        let name = path.strip_prefix(store.path()).unwrap();
        let is_in_memory = name.extension().is_some_and(|end| end == "man") && name.starts_with("meta");
        // A replica computes the digests of chunks itself.
        if is_in_memory || name.extension().is_some_and(|end| end == "sum") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let kind = (name.parent().unwrap().to_owned(), name.extension().unwrap().to_owned());
        let is_grown =
            bytes.len() as u64 > fs::metadata(replica.path().join(name)).map_or(0, |stat| stat.len());
        if known.contains(&replica.path().join(name)) && !is_grown
            || kinds.contains(&(kind.clone(), is_grown))
        {
            continue;
        }
        for (damage, at) in [("flipped", bytes.len() - 1), ("flipped", bytes.len() * 3 / 4), ("cut", 0)] {
            let mut damaged = bytes.clone();
            match damage {
                "flipped" => damaged[at] ^= 1,
                _ => drop(damaged.pop()),
            }
            fs::write(&path, damaged).unwrap();
            // What an earlier try received whole would be used again, and not read.
            let _ = replica.gc().unwrap();
            let received = replica.receive(&snapshot, Some(base), &ReceiveOptions::default());
            let refused = received.as_ref().map(drop).map_err(|e| e.kind());
            assert_eq!(refused, Err(ErrorKind::Corrupt), "{name:?} {damage}: {received:?}");
            assert_eq!(replica.latest().unwrap().id().unwrap(), base);
            // What was read before the damage would be used by the next receive.
            let _ = replica.gc().unwrap();
        }
        fs::write(&path, &bytes).unwrap();
        kinds.insert((kind, is_grown));
    }
    assert!(kinds.len() >= 4, "{kinds:?}");
    assert_eq!(tensors(&replica.latest().unwrap()), before);
    assert!(replica.verify(|_| ()).unwrap().is_whole());
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
}

#[test]
fn missing_files_are_refused() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    store.save("new", &arange(&[400_000])).unwrap();
    store.tag("v2").unwrap();
    let snapshot = store.latest().unwrap();
    let base = replica.snapshot().id().unwrap();
    for path in all_files(store.path()) {
        let name = path.strip_prefix(store.path()).unwrap();
        let is_read = !name.starts_with("meta") && name.extension().is_some_and(|end| end != "sum");
        if !is_read || replica.path().join(name).exists() {
            continue;
        }
        let away = dir.path().join("away");
        fs::rename(&path, &away).unwrap();
        let refused = replica.receive(&snapshot, Some(base), &ReceiveOptions::default());
        assert_refused(refused, ErrorKind::Corrupt, &[&*name.file_name().unwrap().to_string_lossy()]);
        fs::rename(&away, &path).unwrap();
    }
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
}

#[test]
fn commit_or_collection_during_a_receive_is_a_conflict() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    store.save("new", &arange(&[600_000])).unwrap();
    store.append("log", &arange(&[10])).unwrap();
    let base = replica.snapshot().id().unwrap();
    for action in ["collect", "commit"] {
        let other = Store::open(replica.path()).unwrap();
        let (has_long, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let received = AtomicU64::new(0);
        let progress = |bytes: u64| {
            // Storages of 4 MiB and more are read before shorter ones, in pieces of which the last is short. The first has
            // its name when the next is read.
            if has_long.load(Ordering::Relaxed) && !done.swap(true, Ordering::Relaxed) {
                match action {
                    "collect" => drop(other.gc()?),
                    _ => other.save("own", &1i32)?,
                }
            }
            let before = received.fetch_add(bytes, Ordering::Relaxed);
            has_long.fetch_or(before + bytes >= 4_800_000, Ordering::Relaxed);
            Ok(())
        };
        let options = ReceiveOptions { jobs: 1, progress: &progress, ..ReceiveOptions::default() };
        let received = replica.receive(&store.latest().unwrap(), Some(base), &options);
        assert!(done.into_inner(), "{action}");
        assert_refused(received, ErrorKind::Conflict, &["not published"]);
        let verified = replica.verify(|_| ()).unwrap();
        assert!(verified.is_whole(), "{action}: {:?}", verified.findings);
        if action == "collect" {
            assert_eq!(replica.latest().unwrap().id().unwrap(), base);
            // What was read before the damage would be used by the next receive.
            let _ = replica.gc().unwrap();
        }
    }
}

#[test]
fn elements_that_were_replaced_before_a_conflict_are_stated() {
    let dir = temporary();
    let store = fast().create(dir.path().join("a.smap")).unwrap();
    let save = |txn: &mut stridemap::Transaction<'_>| {
        txn.save_as("first", &arange(&[5]), StorageKind::Mutable)?;
        txn.save_as("second", &arange(&[5]), StorageKind::Mutable)
    };
    store.write(save).unwrap();
    let replica = replica_of(&store, &dir.path().join("b.smap"));
    let base = replica.snapshot().id().unwrap();
    for name in ["first", "second"] {
        store.load(name).unwrap().lock_exclusive().unwrap().fill_(7i64).unwrap();
    }
    store.save("new", &1i32).unwrap();
    let other = Store::open(replica.path()).unwrap();
    let second = other.load("second").unwrap();
    let guard = second.lock_exclusive().unwrap();
    let options = ReceiveOptions { jobs: 1, ..ReceiveOptions::default() };
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| replica.receive(&store.latest().unwrap(), Some(base), &options));
        let first = other.load("first").unwrap();
        while first.read::<i64>().unwrap() != [7; 5] {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        other.save("own", &1i32).unwrap();
        drop(guard);
        let refused = receiving.join().unwrap();
        assert_refused(
            refused,
            ErrorKind::Conflict,
            &["of 2 mutable or live storages were replaced", "not published"],
        );
    });
    assert_eq!(other.latest().unwrap().names().unwrap(), ["first", "own", "second"]);
}
