//! Other processes that commit while a command runs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use stridemap::{Durability, OnExisting, Store, StoreOptions, Tensor, Transaction};

use super::{bytes, lines};
use crate::harness::{Deadline, Dir};
use crate::watch::Watcher;

/// Runs a command while another writer holds the store. That writer commits `change` once the command waits for it. Returns
/// the exit code and the messages of the command after the wait.
fn run_during(dir: &Dir, args: &[&str], change: impl FnOnce(&mut Transaction<'_>)) -> (Option<i32>, String) {
    let store = dir.store();
    let mut txn = store.begin_exclusive().unwrap();
    let mut child = dir.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let _deadline = Deadline::of(&child);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for"), "{args:?}: {line}");
    change(&mut txn);
    txn.commit().unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code(), rest)
}

/// Creates a store with the tensors `w` and `log`, and files to import and to append. Its generation is 3.
fn with_w() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("w", &bytes(1)).unwrap();
    store.create_growable("log", stridemap::DType::U8, &[1], 9).unwrap();
    assert_eq!(store.generation(), 3);
    dir.write_npy("w.npy", "|u1", "(1,)", &[9]);
    dir
}

fn first_of(store: &Store, at: &str) -> u8 {
    store.at(at).unwrap().load("w").unwrap().get::<u8>(&[0]).unwrap()
}

#[test]
fn tag_before_a_change_has_the_last_commit_before_it() {
    for args in [
        &["import", "w.npy", "s.smap", "--force"][..],
        &["append", "s.smap", "log", "w.npy"],
        &["view", "s.smap", "w[:2]", "w", "--force"],
        &["view", "s.smap", "log", "w", "--force"],
        &["mv", "s.smap", "log", "w", "--force"],
        &["rm", "s.smap", "w"],
        &["attr", "set", "s.smap", "k", "v"],
        &["attr", "rm", "s.smap", "old"],
        &["restore", "s.smap", "v1"],
    ] {
        let dir = with_w();
        dir.store().write(|txn| txn.set_attribute("", "old", "v")).unwrap();
        dir.messages(&["tag", "s.smap", "v1"]);
        let change = |txn: &mut Transaction<'_>| txn.save("w", &bytes(2)).unwrap();
        let (code, said) = run_during(&dir, &[args, &["--tag", "before"]].concat(), change);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        let store = dir.store();
        assert_eq!(store.generation(), 7, "{args:?}");
        let tags: BTreeMap<String, u64> =
            store.tags().unwrap().into_iter().map(|tag| (tag.name, tag.generation)).collect();
        assert_eq!((tags["v1"], tags["before"]), (4, 6), "{args:?}");
        assert_eq!((first_of(&store, "v1"), first_of(&store, "before")), (1, 2), "{args:?}");
        if args[0] != "attr" {
            assert!(said.contains(", with generation 6 tagged before"), "{args:?}: {said}");
        }
        if !matches!(args[0], "attr" | "append") {
            assert!(said.contains("before keeps it; to get it back: "), "{args:?}: {said}");
        }
    }
}

#[test]
fn restore_says_what_it_undoes_of_another_commit() {
    let dir = with_w();
    dir.messages(&["tag", "s.smap", "v1"]);
    let save = |txn: &mut Transaction<'_>| {
        txn.save("w", &bytes(2)).unwrap();
        txn.save("w2", &bytes(2)).unwrap();
    };
    let (code, said) = run_during(&dir, &["restore", "s.smap", "v1"], save);
    assert_eq!(code, Some(2));
    assert!(said.contains("no tag keeps the present state of w, w2; "), "{said}");
    let (code, said) = run_during(&dir, &["restore", "s.smap", "v1", "--force"], save);
    assert_eq!(code, Some(0));
    assert_eq!(
        said,
        "stridemap: restored v1, generation 3: 1 changed, 1 removed: generation 7\nstridemap: note: no tag keeps them, so \
         they cannot be brought back; --tag NAME tags the state before a change\n"
    );
}

#[test]
fn import_without_a_tag_does_not_say_that_a_tag_keeps_what_another_commit_made() {
    let dir = with_w();
    dir.messages(&["tag", "s.smap", "v1"]);
    let args = ["import", "w.npy", "s.smap", "--force"];
    let (code, said) = run_during(&dir, &args, |txn| txn.save("w", &bytes(2)).unwrap());
    assert_eq!(code, Some(0));
    assert!(said.ends_with("note: another process has committed meanwhile, so what was replaced is not known; --tag NAME tags the state before a change\n"), "{said}");
}

#[test]
fn prune_follows_a_tag_that_is_moved_meanwhile() {
    let dir = with_w();
    let store = dir.store();
    for tag in ["step0", "step1", "step2"] {
        store.tag(tag).unwrap();
        store.save("w", &bytes(3)).unwrap();
    }
    let (code, said) = run_during(&dir, &["prune", "s.smap", "--keep-last", "1"], |txn| {
        txn.on_existing(OnExisting::Replace);
        txn.tag("step0").unwrap();
    });
    assert_eq!(code, Some(0));
    assert!(said.starts_with("stridemap: removed 2 tags"), "{said}");
    let names: Vec<String> = dir.store().tags().unwrap().into_iter().map(|tag| tag.name).collect();
    assert_eq!(names, ["step0"]);
}

/// Runs `act` while a thread commits again and again.
fn while_committing(dir: &Dir, commit: impl Fn(&Store, usize) + Send + 'static, act: impl FnOnce()) {
    let is_over = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&is_over);
    let store = StoreOptions::new().durability(Durability::Process).open(dir.path("s.smap")).unwrap();
    let writer = thread::spawn(move || {
        let mut count = 0;
        while !has_ended.load(Ordering::Relaxed) {
            commit(&store, count);
            count += 1;
        }
    });
    act();
    is_over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn log_always_has_the_newest_generation() {
    let dir = with_w();
    dir.messages(&["tag", "s.smap", "v1"]);
    dir.store().save("w", &bytes(2)).unwrap();
    let small = Tensor::from_vec(vec![1u8], &[1]).unwrap();
    while_committing(
        &dir,
        move |store, _| store.save("w", &small).unwrap(),
        || {
            for _ in 0..20 {
                let log = lines(&dir, &["log", "s.smap"]);
                assert_eq!(log.len(), 2, "{log:?}");
            }
        },
    );
}

#[test]
fn watch_misses_no_tag_that_is_made_as_it_starts() {
    let dir = with_w();
    // The tag `t7` is made by the commit with the generation 3 + 1 + 7.
    let tag = |store: &Store, count: usize| store.tag(&format!("t{count}")).unwrap();
    while_committing(&dir, tag, || {
        for _ in 0..6 {
            let watcher = Watcher::start(&dir, &["--count", "3"]);
            let from = watcher.from;
            let (code, text) = watcher.end();
            assert_eq!(code, Some(0));
            let first = text.lines().next().unwrap();
            assert!(first.contains(&format!("\ttagged t{} (", from - 3)), "from {from}: {first}");
        }
    });
}
