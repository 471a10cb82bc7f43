//! Commits on a condition: that a name is new, and that a generation is the newest. The other processes are this test
//! binary, started again.

use std::error::Error as _;
use std::path::Path;

use stridemap::{Error, ErrorKind, Store};

use crate::processes::{say, wait_for_a_line};
use crate::refusals::assert_refused;
use crate::support::temporary;
use crate::waiting::{fast, let_go, scalar};

const NEW_NAMES: usize = 40;
const INCREMENTS: i64 = 25;

/// What a started process does; false for another's role.
pub(crate) fn play(role: &str, path: &Path) -> bool {
    match role {
        "save new names" => {
            let store = fast().open(path).unwrap();
            say("ready");
            wait_for_a_line();
            let mut won = 0;
            for i in 0..NEW_NAMES {
                match store.save_new(&format!("name.{i}"), &scalar(i64::from(std::process::id()))) {
                    Ok(()) => won += 1,
                    Err(e) => assert_conflict_of_names(&e),
                }
            }
            say(won);
        }
        "increment" => {
            let store = fast().open(path).unwrap();
            say("ready");
            wait_for_a_line();
            let mut conflicts = 0;
            for _ in 0..INCREMENTS {
                while !increment(&store) {
                    conflicts += 1;
                }
            }
            say(conflicts);
        }
        _ => return false,
    }
    true
}

fn assert_conflict_of_names(e: &Error) {
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    let source = e.source().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(source.kind(), ErrorKind::NameExists, "{e}");
}

/// Reads, adds and commits, if nobody else did meanwhile.
fn increment(store: &Store) -> bool {
    store.refresh().unwrap();
    let seen = store.snapshot();
    let count: i64 = seen.load("count").unwrap().item().unwrap();
    let mut txn = store.begin().unwrap();
    txn.expect_generation(seen.generation());
    txn.save("count", &scalar(count + 1)).unwrap();
    match txn.commit() {
        Ok(generation) => assert_eq!(generation, seen.generation() + 1),
        Err(e) if e.kind() == ErrorKind::Conflict => return false,
        Err(e) => panic!("{e}"),
    }
    true
}

#[test]
fn new_name_is_saved_by_one_of_several_processes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let mut won = 0;
    for mut player in let_go("save new names", &path, 4) {
        won += player.hear().parse::<usize>().unwrap();
        player.succeeds();
    }
    assert_eq!(won, NEW_NAMES);
    store.refresh().unwrap();
    assert_eq!(store.names().unwrap().len(), NEW_NAMES);
    assert_eq!(store.generation(), 1 + NEW_NAMES as u64, "a save that lost was committed");
}

#[test]
fn new_name_that_exists_or_that_another_takes_first_is_a_conflict() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &scalar(1)).unwrap();
    assert_conflict_of_names(&store.save_new("x", &scalar(2)).unwrap_err());
    assert_refused(
        store.save_new("x", &scalar(2)),
        ErrorKind::Conflict,
        &["save_new", "\"x\"", "generation 2"],
    );
    let mut txn = store.begin().unwrap();
    txn.save_new("y", &scalar(2)).unwrap();
    // The policy is that of this one change.
    txn.save("x", &scalar(3)).unwrap();
    Store::open(&path).unwrap().save("y", &scalar(9)).unwrap();
    let lost = txn.commit().unwrap_err();
    assert_conflict_of_names(&lost);
    assert!(lost.to_string().contains("generation 3"), "{lost}");
    store.refresh().unwrap();
    assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(store.load("y").unwrap().item::<i64>().unwrap(), 9);
}

#[test]
fn increments_that_expect_a_generation_are_not_lost_between_processes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    store.save("count", &scalar(0)).unwrap();
    for mut player in let_go("increment", &path, 3) {
        println!("{} conflicts", player.hear());
        player.succeeds();
    }
    store.refresh().unwrap();
    assert_eq!(store.load("count").unwrap().item::<i64>().unwrap(), 3 * INCREMENTS);
}

#[test]
fn commit_that_expects_another_generation_is_a_conflict_and_writes_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let mut txn = store.begin().unwrap();
    txn.expect_generation(1);
    txn.save("x", &scalar(1)).unwrap();
    Store::open(&path).unwrap().save("y", &scalar(1)).unwrap();
    let said = ["generation 1 only", "the newest is 2"];
    assert_refused(txn.commit(), ErrorKind::Conflict, &said);
    let mut idle = store.begin().unwrap();
    idle.expect_generation(1);
    assert_refused(idle.commit(), ErrorKind::Conflict, &said);
    let mut txn = store.begin().unwrap();
    txn.expect_generation(2);
    txn.save("x", &scalar(1)).unwrap();
    assert_eq!(txn.commit().unwrap(), 3);
}
