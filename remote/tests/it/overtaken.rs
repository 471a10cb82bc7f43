//! Pushes and pulls during which other processes change the local store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use stridemap::{ErrorKind, StorageKind, Store, StoreOptions};
use stridemap_remote::{Done, Followed, Remote, RemoteOptions};

use crate::support::{Place, assert_same, assert_whole, ignore, open};

/// Calls a function when the first bytes have been sent or received.
fn once(call: impl Fn() + Sync) -> impl Fn(Done) -> stridemap::Result<()> + Sync {
    let is_done = AtomicBool::new(false);
    move |_| {
        if !is_done.swap(true, Ordering::Relaxed) {
            call();
        }
        Ok(())
    }
}

/// The same remote, with one request at a time.
fn one_by_one(place: &Place) -> Remote {
    RemoteOptions::new().jobs(1).open(place.remote.location()).unwrap()
}

#[test]
fn push_whose_tags_are_removed_meanwhile_sends_what_the_store_has_now() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    for step in 0..4u8 {
        store.save("x", &vec![step; 5 << 20]).unwrap();
        store.tag(&format!("step{step}")).unwrap();
    }
    let other = open(&place.path("a.smap"));
    let collects = once(|| {
        (0..3).for_each(|step| other.untag(&format!("step{step}")).unwrap());
        other.gc().unwrap();
    });
    let pushed = one_by_one(&place).push(&store, &collects).unwrap();
    store.refresh().unwrap();
    assert_eq!(pushed.generation, store.generation());
    assert_same(&place.remote.store().unwrap(), &store);
    assert_whole(&place.remote.store().unwrap());
}

#[test]
fn push_over_a_fork_is_not_repeated() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &1f32).unwrap();
    place.push(&store);
    place.pull("b.smap");
    let fork = open(&place.path("b.smap"));
    fork.save("y", &vec![1u8; 1000]).unwrap();
    store.save("x", &vec![2u8; 1000]).unwrap();
    let count = AtomicU32::new(0);
    let progress = |_| {
        // The other one wins while this one sends.
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            place.push(&store);
        }
        Ok(())
    };
    let refused = place.remote.push(&fork, &progress).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(count.into_inner(), 1);
    assert_same(&place.remote.store().unwrap(), &store);
}

/// A remote with several storages that the replica `b.smap` lacks.
fn place_to_follow() -> (Place, Store) {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &1f32).unwrap();
    place.push(&store);
    place.pull("b.smap");
    store.write(|txn| (0..6u8).try_for_each(|i| txn.save(&format!("y{i}"), &vec![i; 5 << 20]))).unwrap();
    store.tag("all").unwrap();
    place.push(&store);
    (place, store)
}

/// Follows until something was pulled. Returns the errors before that.
fn follow(
    place: &Place,
    progress: &(impl Fn(Done) -> stridemap::Result<()> + Sync),
) -> stridemap::Result<Vec<stridemap::Error>> {
    let mut failures = Vec::new();
    let mut report = |followed| match followed {
        Followed::Pulled(_) => Ok(false),
        Followed::Failed(e, _) => {
            failures.push(e);
            assert!(failures.len() < 10, "{failures:?}");
            Ok(true)
        }
        _ => Ok(true),
    };
    let interval = Duration::from_millis(10);
    let remote = one_by_one(place);
    remote.follow(&place.path("b.smap"), &StoreOptions::new(), interval, progress, &mut report)?;
    Ok(failures)
}

#[test]
fn follow_goes_on_after_a_collection_in_the_local_store() {
    let (place, store) = place_to_follow();
    let replica = open(&place.path("b.smap"));
    let is_collected = AtomicBool::new(false);
    let progress = |done: Done| {
        // At the third storage, the first two have their names, and nothing refers to them.
        if done.done_bytes > 12 << 20 && !is_collected.swap(true, Ordering::Relaxed) {
            replica.gc().unwrap();
        }
        Ok(())
    };
    let failures = follow(&place, &progress).unwrap();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].to_string().contains("receive again"), "{failures:?}");
    replica.refresh().unwrap();
    assert_same(&replica, &store);
    assert_whole(&replica);
}

#[test]
fn follow_ends_when_the_local_store_has_a_commit_of_its_own() {
    let (place, _store) = place_to_follow();
    let replica = open(&place.path("b.smap"));
    let commits = once(|| replica.save("own", &2f32).unwrap());
    let ended = follow(&place, &commits).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Conflict, "{ended}");
    assert!(ended.to_string().contains("commits of its own"), "{ended}");
    assert_eq!(replica.names().unwrap(), ["own", "x"]);
}

#[test]
fn two_pulls_to_one_new_path_at_the_same_time_both_succeed() {
    let (place, store) = place_to_follow();
    let second = once(|| {
        // On a thread of its own, as another process would be.
        thread::scope(|scope| {
            scope.spawn(|| place.pull("c.smap")).join().unwrap();
        });
    });
    let pulled = place.remote.pull(&place.path("c.smap"), &second).unwrap();
    assert_eq!(pulled.generation, store.generation());
    assert_same(&open(&place.path("c.smap")), &store);
}

/// A mutable tensor of two segments, whose elements are all equal.
const STATE_LENGTH: usize = (65 << 20) / 4;

fn place_with_state() -> (Place, Store) {
    let place = Place::in_memory();
    let store =
        StoreOptions::new().durability(stridemap::Durability::Process).create(place.path("a.smap")).unwrap();
    store.write(|txn| txn.save_as("state", &vec![0u32; STATE_LENGTH], StorageKind::Mutable)).unwrap();
    (place, store)
}

fn fill(store: &Store, value: u32) {
    store.load("state").unwrap().lock_exclusive().unwrap().fill_(value).unwrap();
}

/// Returns the element that the remote has everywhere.
#[track_caller]
fn state(store: &Store) -> u32 {
    let elements = store.load("state").unwrap().read::<u32>().unwrap();
    let differing = elements.iter().position(|element| *element != elements[0]);
    assert_eq!(differing, None, "{} and {}", elements[0], elements[differing.unwrap_or(0)]);
    elements[0]
}

#[test]
fn mutable_tensor_of_several_objects_that_changes_while_it_is_sent_arrives_in_one_state() {
    let (place, store) = place_with_state();
    let changes = once(|| fill(&store, 1));
    one_by_one(&place).push(&store, &changes).unwrap();
    assert_eq!(state(&place.remote.store().unwrap()), 1);
    // And from the server to a replica.
    place.pull("b.smap");
    assert_eq!(state(&open(&place.path("b.smap"))), 1);
}

#[test]
fn writer_that_goes_on_changing_a_large_mutable_tensor_never_lets_a_mixture_arrive() {
    let (place, store) = place_with_state();
    let (is_over, pause) = (AtomicBool::new(false), Mutex::new(Duration::from_millis(200)));
    let (mut arrived, mut refused) = (0, 0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let store = open(&place.path("a.smap"));
            for step in 1u32.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                // Only two states, so that each piece often has the same bytes again.
                fill(&store, step % 2);
                let pause = *pause.lock().unwrap();
                thread::sleep(pause);
            }
        });
        while arrived < 2 && !writer.is_finished() {
            match place.remote.push(&store, &ignore) {
                Ok(_) => {
                    state(&place.remote.store().unwrap());
                    arrived += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                    refused += 1;
                    *pause.lock().unwrap() *= 2;
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{arrived} pushes arrived, {refused} were refused");
    assert_eq!(arrived, 2);
}
