//! Processes that use a tagged generation while others remove the tag, and forked ones.

use std::path::Path;

use stridemap::history::Retention;
use stridemap::maintenance::SpaceReason;
use stridemap::{ErrorKind, Store, StoreOptions};

use super::{first_of, on_another_thread, save_tagged, tag_names};
use crate::harness::processes::{OtherProcess, run_to_end, send_line, start_together, wait_for_line};
use crate::harness::{assert_refused, filled, new_fast_store, new_store};
use crate::sharing::forks::fork;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(super) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "history: hold" => {
            let store = Store::open(path).unwrap();
            let snapshot = store.at("v1").unwrap();
            send_line(std::process::id());
            wait_for_line();
            // The handle moves on, and the snapshot does not.
            store.refresh().unwrap();
            send_line(snapshot.load("x").unwrap().read::<i64>().unwrap()[0]);
            wait_for_line();
        }
        "history: hold by options" => {
            let store = StoreOptions::new().at("v1").open(path).unwrap();
            send_line(std::process::id());
            wait_for_line();
            send_line(store.load("x").unwrap().read::<i64>().unwrap()[0]);
            wait_for_line();
        }
        "history: tag and untag" => {
            let store = Store::open(path).unwrap();
            let own = format!("of {}", std::process::id());
            send_line("ready");
            wait_for_line();
            for step in 0..30 {
                save_tagged(&store, &own, &filled(200, i64::from(step)), &own);
                let earlier = store.at(own.as_str()).unwrap();
                store.save(&own, &filled(200, -1i64)).unwrap();
                assert_eq!(earlier.load(&own).unwrap().read::<i64>().unwrap(), [i64::from(step); 200]);
                store.untag(&own).unwrap();
                if step % 7 == 0 {
                    store.gc().unwrap();
                }
                assert_eq!(earlier.load(&own).unwrap().read::<i64>().unwrap(), [i64::from(step); 200]);
                assert_eq!(first_of(&store, "kept", "x"), 1);
            }
        }
        "history: fork" => fork_with_tags(path),
        _ => return false,
    }
    true
}

#[test]
fn process_that_reads_at_a_tag_keeps_the_generation_when_the_tag_goes() {
    for (role, kills) in
        [("history: hold", false), ("history: hold by options", false), ("history: hold", true)]
    {
        let (_dir, path, store) = new_store();
        save_tagged(&store, "x", &filled(1000, 1i64), "v1");
        store.save("x", &filled(1000, 2i64)).unwrap();
        let mut reader = OtherProcess::start(role, &path);
        let id: u32 = reader.read_line().parse().unwrap();
        store.untag("v1").unwrap();
        for value in 3..12 {
            store.save("x", &filled(1000, value)).unwrap();
        }
        reader.resume();
        assert_eq!(reader.read_line(), "1");
        store.gc().unwrap();
        assert_eq!(super::files(&path, "storages", "bin").len(), 2, "{role}");
        let usage = store.disk_usage().unwrap();
        assert_eq!(usage.tagged_bytes, 0);
        let of_the_reader: Vec<_> =
            usage.spare.iter().filter(|file| file.path.extension().is_some_and(|it| it == "bin")).collect();
        let pinned = SpaceReason::Pinned { generation: 2, processes: vec![id] };
        assert_eq!(of_the_reader.iter().map(|file| &file.reason).collect::<Vec<_>>(), [&pinned], "{role}");
        assert!(store.verify(|_| ()).unwrap().is_whole());
        assert_refused(store.at("v1"), ErrorKind::NameNotFound, &["no tag"]);
        if kills {
            reader.kill();
        } else {
            reader.resume();
            reader.assert_success();
        }
        store.gc().unwrap();
        assert_eq!(super::files(&path, "storages", "bin").len(), 1, "{role}");
        assert!(super::files(&path, "generations", "man").is_empty(), "{role}");
        store.save("x", &filled(1000, 12i64)).unwrap();
        assert!(store.verify(|_| ()).unwrap().is_whole());
    }
}

#[test]
fn generation_that_a_process_reads_can_be_tagged_again() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    store.save("x", &filled(1000, 2i64)).unwrap();
    let mut reader = OtherProcess::start("history: hold", &path);
    reader.read_line();
    let held = store.at("v1").unwrap();
    store.untag("v1").unwrap();
    store.write(|txn| txn.tag_snapshot("again", &held)).unwrap();
    drop(held);
    reader.resume();
    assert_eq!(reader.read_line(), "1");
    reader.resume();
    reader.assert_success();
    for value in 3..6 {
        store.save("x", &filled(1000, value)).unwrap();
    }
    store.gc().unwrap();
    assert_eq!((first_of(&store, "again", "x"), tag_names(&store)), (1, vec!["again".to_owned()]));
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn processes_that_tag_and_untag_leave_what_each_needs() {
    let (_dir, path, store) = new_fast_store();
    save_tagged(&store, "x", &filled(10, 1i64), "kept");
    let others = start_together("history: tag and untag", &path, 3);
    let policy = Retention { keep_last: Some(100), ..Retention::default() };
    for _ in 0..10 {
        let verified = store.verify(|_| ()).unwrap();
        assert!(verified.findings.is_empty(), "{verified:#?}");
        assert!(store.log().unwrap().iter().any(|entry| entry.tags == ["kept"]));
        store.refresh().unwrap();
        store.retain(&policy, |_| true).unwrap();
        let _ = store.disk_usage().unwrap();
    }
    others.into_iter().for_each(OtherProcess::assert_success);
    store.gc().unwrap();
    assert_eq!(tag_names(&store), ["kept"]);
    assert_eq!(first_of(&store, "kept", "x"), 1);
    assert_eq!(super::files(&path, "generations", "man").len(), 1);
    // "x", and the name of each process.
    assert_eq!(super::files(&path, "storages", "bin").len(), 4);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

/// A handle on an older generation, whose tags are gone since, finds no damage.
#[test]
fn verification_by_an_older_handle_is_about_the_tags_of_now() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    store.save("x", &filled(1000, 2i64)).unwrap();
    let older = Store::open(&path).unwrap();
    store.untag("v1").unwrap();
    store.save("x", &filled(1000, 3i64)).unwrap();
    save_tagged(&store, "y", &filled(1000, 4i64), "v2");
    store.remove("y").unwrap();
    store.gc().unwrap();
    assert_eq!(older.generation(), 3);
    let verified = older.verify(|_| ()).unwrap();
    assert!(verified.is_whole(), "{verified:#?}");
    // That of a storage that was made since is found.
    let y = super::files(&path, "storages", "bin").pop().unwrap();
    std::fs::write(&y, vec![0; 8000]).unwrap();
    let found = older.verify(|_| ()).unwrap().findings;
    assert_eq!((found.len(), &found[0].path, &found[0].tags), (1, &y, &vec!["v2".to_owned()]), "{found:#?}");
}

#[test]
fn forked_child_cannot_use_the_history_that_it_inherits() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    store.save("x", &filled(10, 2i64)).unwrap();
    run_to_end("history: fork", &path);
    assert_eq!(tag_names(&store), ["v1"]);
}

fn fork_with_tags(path: &Path) {
    let store = Store::open(path).unwrap();
    let fixed = StoreOptions::new().at("v1").open(path).unwrap();
    let snapshot = store.at("v1").unwrap();
    let loaded = snapshot.load("x").unwrap();
    let policy = Retention { keep_last: Some(1), ..Retention::default() };
    let child = fork(|| {
        let words = ["forked", "open the store again"];
        for store in [&store, &fixed] {
            assert_refused(store.at("v1"), ErrorKind::Stale, &words);
            assert_refused(store.at(store.generation()), ErrorKind::Stale, &words);
            assert_refused(store.tags(), ErrorKind::Stale, &words);
            assert_refused(store.log(), ErrorKind::Stale, &words);
            assert_refused(store.freed_without(&["v1"]), ErrorKind::Stale, &words);
            assert_refused(store.tag("v2"), ErrorKind::Stale, &words);
            assert_refused(store.untag("v1"), ErrorKind::Stale, &words);
            assert_refused(store.restore(&snapshot), ErrorKind::Stale, &words);
            assert_refused(store.retain(&policy, |_| true), ErrorKind::Stale, &words);
        }
        assert_refused(snapshot.load("x"), ErrorKind::Stale, &words);
        assert_refused(snapshot.changes_since(&snapshot), ErrorKind::Stale, &words);
        assert_eq!(loaded.read::<i64>().unwrap(), [1; 10]);
        let own = StoreOptions::new().at("v1").open(path).unwrap();
        assert_eq!(own.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
    });
    assert!(child.succeeds());
    // The child gave nothing of the parent's back.
    let other = path.to_owned();
    on_another_thread(move || {
        let store = Store::open(&other).unwrap();
        let held = store.at("v1").unwrap();
        store.untag("v1").unwrap();
        store.gc().unwrap();
        store.write(|txn| txn.tag_snapshot("v1", &held)).unwrap();
    });
    assert_eq!(snapshot.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
    assert_eq!(fixed.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
}
