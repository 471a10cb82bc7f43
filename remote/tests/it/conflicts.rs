//! Two stores that push to one remote.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use stridemap::{ErrorKind, StorageKind, Store};
use stridemap_remote::Remote;
use stridemap_remote::faults::{Fault, Faults};

use crate::support::{Place, assert_same, assert_whole, ignore, open};

#[test]
fn store_that_is_behind_can_neither_push_nor_pull_over_its_own_commits() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    first.save("x", &1f32).unwrap();
    place.push(&first);
    place.pull("b.smap");
    let second = open(&place.path("b.smap"));
    first.save("x", &2f32).unwrap();
    place.push(&first);
    second.save("y", &3f32).unwrap();
    let refused = place.remote.push(&second, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    let refused = place.remote.pull(&place.path("b.smap"), &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.to_string().contains("commits of its own"), "{refused}");
    assert_eq!(second.names().unwrap(), ["x", "y"]);
    // The way out: a new path.
    place.pull("c.smap");
    let third = open(&place.path("c.smap"));
    third.save("y", &3f32).unwrap();
    place.push(&third);
    place.pull("a.smap");
    first.refresh().unwrap();
    assert_same(&first, &third);
}

#[test]
fn different_store_is_refused() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    place.push(&first);
    let other = place.create("other.smap");
    other.save("x", &1f32).unwrap();
    assert_eq!(place.remote.push(&other, &ignore).unwrap_err().kind(), ErrorKind::Conflict);
    let refused = place.remote.pull(&place.path("other.smap"), &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(other.names().unwrap(), ["x"]);
}

#[test]
fn copy_of_the_directory_that_went_its_own_way_is_refused() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &1f32).unwrap();
    place.push(&store);
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([place.path("a.smap"), place.path("b.smap")])
        .status();
    assert!(copied.unwrap().success());
    // Both make generation 3, with different content.
    store.save("x", &2f32).unwrap();
    let fork = open(&place.path("b.smap"));
    fork.save("x", &3f32).unwrap();
    place.push(&store);
    assert_eq!(place.remote.push(&fork, &ignore).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(place.remote.pull(&place.path("b.smap"), &ignore).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(place.remote.store().unwrap().load("x").unwrap().item::<f32>().unwrap(), 2.);
}

#[test]
fn of_two_pushes_at_the_same_time_exactly_one_wins() {
    let rounds: u64 = std::env::var("STRIDEMAP_TEST_RACES").map_or(20, |rounds| rounds.parse().unwrap());
    // Each race leaves a storage, and all are pulled for the next one.
    for first in (0..rounds).step_by(50) {
        race(&Place::in_memory(), 50.min(rounds - first));
    }
    race(&Place::in_files(), (rounds / 4 + 1).min(50));
}

/// Lets two stores push at the same time, again and again.
fn race(place: &Place, rounds: u64) {
    let store = place.create("0.smap");
    store.save("x", &0u64).unwrap();
    place.push(&store);
    let mut winner = "0.smap".to_owned();
    for round in 1..=rounds {
        let names = [format!("{round}a.smap"), format!("{round}b.smap")];
        let stores = names.each_ref().map(|name| {
            place.pull(name);
            let store = open(&place.path(name));
            store.save("x", &(round * 1000 + name.len() as u64)).unwrap();
            store.save(name, &round).unwrap();
            store
        });
        let barrier = Barrier::new(2);
        let results = thread::scope(|scope| {
            let pushes = stores.each_ref().map(|store| {
                scope.spawn(|| {
                    barrier.wait();
                    place.remote.push(store, &ignore)
                })
            });
            pushes.map(|push| push.join().unwrap())
        });
        let won: Vec<bool> = results.iter().map(Result::is_ok).collect();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}: {results:?}");
        let lost = results.into_iter().find_map(Result::err).unwrap();
        assert_eq!(lost.kind(), ErrorKind::Conflict, "{lost}");
        let which = usize::from(won[1]);
        assert_same(&place.remote.store().unwrap(), &stores[which]);
        std::fs::remove_dir_all(place.path(&winner)).unwrap();
        std::fs::remove_dir_all(place.path(&names[1 - which])).unwrap();
        winner = names[which].clone();
    }
    assert_whole(&place.remote.store().unwrap());
    assert_eq!(place.remote.store().unwrap().names().unwrap().len() as u64, rounds + 1);
}

#[test]
fn second_push_from_the_same_store_is_told_that_one_is_running() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 1000]).unwrap();
    let inner = std::sync::Mutex::new(None);
    let push = |_| {
        let second = place.remote.push(&store, &ignore);
        inner.lock().unwrap().get_or_insert(second.unwrap_err().kind());
        Ok(())
    };
    place.remote.push(&store, &push).unwrap();
    assert_eq!(*inner.lock().unwrap(), Some(ErrorKind::Busy));
}

#[test]
fn push_after_a_pull_that_failed_does_not_replace_what_the_pull_was_to_bring() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    first.save("x", &1f32).unwrap();
    place.push(&first);
    place.pull("b.smap");
    let second = open(&place.path("b.smap"));
    first.save("x", &vec![2f32; 100_000]).unwrap();
    first.save("y", &2f32).unwrap();
    place.push(&first);
    let end = |_| Err(stridemap::Error::new(ErrorKind::Busy, "ended"));
    assert_eq!(place.remote.pull(&place.path("b.smap"), &end).unwrap_err().kind(), ErrorKind::Busy);
    for step in 0..5u32 {
        second.save("own", &step).unwrap();
    }
    let refused = place.remote.push(&second, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_same(&place.remote.store().unwrap(), &first);
}

#[test]
fn pull_after_a_push_that_failed_at_its_end_does_not_undo_commits() {
    let faults = Faults::new();
    let remote = Remote::with_client(faults.client(Duration::from_millis(250)), 1);
    let place = Place::in_memory();
    let first = place.create("a.smap");
    first.save("x", &1f32).unwrap();
    remote.push(&first, &ignore).unwrap();
    remote.pull(&place.path("b.smap"), &ignore).unwrap();
    first.save("own", &1f32).unwrap();
    for request in 1.. {
        faults.reset();
        faults.inject_from(request, Fault::Status(403));
        remote.push(&first, &ignore).unwrap_err();
        if faults.log().iter().any(|request| request == "put HEAD") {
            break;
        }
    }
    faults.reset();
    let second = open(&place.path("b.smap"));
    for step in 0..5u32 {
        second.save("y", &step).unwrap();
    }
    remote.push(&second, &ignore).unwrap();
    let refused = remote.pull(&place.path("a.smap"), &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(first.latest().unwrap().names().unwrap(), ["own", "x"]);
}

pub(crate) fn fill(store: &Store, value: f32) {
    store.load("state").unwrap().lock_exclusive().unwrap().fill_(value).unwrap();
}

pub(crate) fn first_element(store: &Store) -> f32 {
    store.load("state").unwrap().read::<f32>().unwrap()[0]
}

#[test]
fn elements_that_another_store_pushed_are_not_replaced_by_a_push_with_a_commit() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    let save = |txn: &mut stridemap::Transaction<'_>| {
        txn.save_as("state", &[1f32; 10], StorageKind::Mutable)?;
        txn.tag("v1") // keeps the generation, so that the store still has it after the next commit
    };
    first.write(save).unwrap();
    place.push(&first);
    place.pull("b.smap");
    let second = open(&place.path("b.smap"));
    fill(&second, 2.);
    place.push(&second);
    first.save("x", &1f32).unwrap();
    let refused = place.remote.push(&first, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.to_string().contains("pull to a new path"), "{refused}");
    assert_eq!(place.remote.plan_push(&first).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(first_element(&place.remote.store().unwrap()), 2.);
}

#[test]
fn remote_that_was_made_anew_by_another_store_is_not_pulled_over_commits() {
    let place = Place::in_files();
    let first = place.create("a.smap");
    place.push(&first);
    place.pull("b.smap");
    first.save("own", &1f32).unwrap();
    place.push(&first);
    std::fs::remove_dir_all(place.path("remote")).unwrap();
    let second = open(&place.path("b.smap"));
    second.save("y", &1f32).unwrap();
    second.save("z", &1f32).unwrap();
    place.push(&second);
    let refused = place.remote.pull(&place.path("a.smap"), &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.to_string().contains("does not follow"), "{refused}");
    assert_eq!(open(&place.path("a.smap")).names().unwrap(), ["own"]);
}

#[test]
fn push_of_a_store_that_is_only_behind_says_to_pull() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    place.push(&first);
    place.pull("b.smap");
    first.save("x", &1f32).unwrap();
    place.push(&first);
    let refused = place.remote.push(&open(&place.path("b.smap")), &ignore).unwrap_err();
    assert!(refused.to_string().ends_with("has nothing newer; pull"), "{refused}");
}

#[test]
fn url_with_another_store_is_refused_before_anything_is_sent() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 100_000]).unwrap();
    std::fs::create_dir_all(place.path("remote")).unwrap();
    std::fs::write(place.path("remote/FORMAT"), [0; 48]).unwrap();
    for refused in
        [place.remote.plan_push(&store).unwrap_err(), place.remote.push(&store, &ignore).unwrap_err()]
    {
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    }
    assert_eq!(place.objects().len(), 1, "{:?}", place.objects());
}

#[test]
fn damaged_elements_are_not_pushed() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 3_000_000]).unwrap();
    let path = place.path("a.smap/storages/0000000000000001.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2_000_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = place.remote.push(&store, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(refused.to_string().contains("0000000000000001.bin"), "{refused}");
    assert!(place.remote.store().is_err());
}

#[test]
fn elements_changed_in_place_are_not_replaced_by_older_ones() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    first.write(|txn| txn.save_as("state", &[1f32; 10], StorageKind::Mutable)).unwrap();
    place.push(&first);
    place.pull("b.smap");
    let second = open(&place.path("b.smap"));
    // A pull that brings nothing new.
    fill(&second, 2.);
    place.pull("b.smap");
    assert_eq!(first_element(&second), 2.);
    place.push(&second);
    // A push over elements that somebody else pushed.
    fill(&first, 3.);
    let refused = place.remote.push(&first, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(first_element(&place.remote.store().unwrap()), 2.);
    assert!(place.remote.plan_pull(&place.path("a.smap")).unwrap().received_bytes > 0);
    place.pull("a.smap");
    assert_eq!(first_element(&first), 2.);
}

#[test]
fn replica_whose_record_was_lost_is_known_by_its_generation() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &1f32).unwrap();
    place.push(&store);
    place.pull("b.smap");
    for file in std::fs::read_dir(place.path("b.smap")).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("REMOTE-") {
            std::fs::remove_file(path).unwrap();
        }
    }
    store.save("x", &2f32).unwrap();
    place.push(&store);
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
}

#[test]
fn push_goes_on_after_an_end_without_the_permission_to_list() {
    let faults = Faults::new();
    let remote = Remote::with_client(faults.client(Duration::from_millis(250)), 1);
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 2_000_000]).unwrap();
    store.save("y", &vec![2f32; 2_000_000]).unwrap();
    // FORMAT and the first object are put, and then nothing is.
    faults.inject_from(3, Fault::Status(403));
    remote.push(&store, &ignore).unwrap_err();
    let request = faults.log().iter().position(|request| request.starts_with("put objects/")).unwrap() as u64;
    assert_eq!(request, 2, "{:?}", faults.log());
    faults.reset();
    // S3 answers so to a look at an object that is not there.
    faults.inject(4, Fault::Status(403));
    remote.push(&store, &ignore).unwrap();
    assert!(faults.log()[4].starts_with("head objects/"), "{:?}", faults.log());
    assert_same(&remote.store().unwrap(), &store);
}
