//! Plans, which change nothing, and the progress that is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use stridemap::StorageKind;
use stridemap_remote::{Done, PruneOptions};

use crate::support::{Place, open};

/// All files below a directory, with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.append(&mut files(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn plan_changes_nothing_here_and_nothing_there() {
    let place = Place::in_files();
    let all = || files(place.path("").as_path());
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 1000]).unwrap();
    let unchanged = |what: &str, plan: &dyn Fn()| {
        let before = all();
        plan();
        let after = all();
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{what}");
        assert!(after == before, "{what} changed a file");
    };
    let push = || assert!(place.remote.plan_push(&store).unwrap().changed_bytes > 0);
    unchanged("plan of the first push", &push);
    place.push(&store);
    unchanged("plan of a push of nothing new", &|| {
        place.remote.plan_push(&store).unwrap();
    });
    unchanged("plan of the first pull", &|| {
        place.remote.plan_pull(&place.path("b.smap")).unwrap();
    });
    place.pull("b.smap");
    store.save("x", &vec![2f32; 1000]).unwrap();
    unchanged("plan of a push", &push);
    place.push(&store);
    // As if the store came from a backup without the records.
    for name in all().into_keys().filter(|path| path.to_string_lossy().contains("REMOTE-")) {
        std::fs::remove_file(name).unwrap();
    }
    let pull = || assert!(place.remote.plan_pull(&place.path("b.smap")).unwrap().received_bytes > 0);
    unchanged("plan of a pull", &pull);
    unchanged("plan of a push without a record", &|| {
        place.remote.plan_push(&store).unwrap();
    });
    let prune = PruneOptions::new().keep_last(1).orphans(true).plan(true);
    unchanged("plan of a prune", &|| {
        place.remote.prune(&prune).unwrap();
    });
}

#[test]
fn plan_is_made_while_a_push_is_running() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 1000]).unwrap();
    let plan = |_| {
        assert!(place.remote.plan_push(&store).unwrap().changed_bytes > 0);
        Ok(())
    };
    place.remote.push(&store, &plan).unwrap();
}

/// Runs an operation, and checks that its progress never goes back and ends at its total.
#[track_caller]
fn check_progress(
    operation: impl FnOnce(&(dyn Fn(Done) -> stridemap::Result<()> + Sync)) -> stridemap::Result<()>,
) {
    let seen: Mutex<Vec<Done>> = Mutex::default();
    operation(&|done| {
        seen.lock().unwrap().push(done);
        Ok(())
    })
    .unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.is_sorted_by_key(|done| done.done_bytes), "{seen:?}");
    assert!(seen.iter().all(|done| done.done_bytes <= done.total_bytes), "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!(last.done_bytes, last.total_bytes, "{seen:?}");
}

#[test]
fn progress_ends_at_the_announced_total() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store
        .write(|txn| {
            txn.save("large", &vec![1u8; 9 << 20])?;
            txn.save("rows", &vec![[1f32; 64]; 10_000])?;
            txn.save_as("state", &vec![1u8; 3 << 20], StorageKind::Mutable)
        })
        .unwrap();
    store.tag("v1").unwrap();
    store.write(|txn| (0..3000u32).try_for_each(|i| txn.save(&format!("many/{i}"), &i))).unwrap();
    store.write(|txn| (0..3000u32).try_for_each(|i| txn.save(&format!("more/{i}"), &i))).unwrap();
    let (path, remote) = (place.path("b.smap"), &place.remote);
    check_progress(|progress| remote.push(&store, progress).map(drop));
    check_progress(|progress| remote.pull(&path, progress).map(drop));

    store.append("rows", &vec![[2f32; 64]; 10_000]).unwrap();
    store.save("new", &vec![3u8; 2 << 20]).unwrap();
    check_progress(|progress| remote.push(&store, progress).map(drop));
    check_progress(|progress| remote.pull(&path, progress).map(drop));

    // Only elements that change in place.
    store.load("state").unwrap().lock_exclusive().unwrap().fill_(2u8).unwrap();
    check_progress(|progress| remote.push(&store, progress).map(drop));
    check_progress(|progress| remote.pull(&path, progress).map(drop));

    // A pull that was ended has left some storages, which are not received again.
    store.write(|txn| (0..4u8).try_for_each(|i| txn.save(&format!("y{i}"), &vec![i; 5 << 20]))).unwrap();
    check_progress(|progress| remote.push(&store, progress).map(drop));
    let end = |done: Done| match done.done_bytes > 11 << 20 {
        true => Err(stridemap::Error::new(stridemap::ErrorKind::Busy, "ended")),
        false => Ok(()),
    };
    remote.pull(&path, &end).unwrap_err();
    check_progress(|progress| remote.pull(&path, progress).map(drop));
    crate::support::assert_same(&open(&path), &store);
}
