//! Elements that were changed in place in the local store, and are pulled over.

use std::time::Duration;

use stridemap::{ErrorKind, StorageKind, Store};
use stridemap_remote::Remote;
use stridemap_remote::faults::{Fault, Faults};

use crate::conflicts::{fill, first_element};
use crate::support::{Place, ignore, open};

#[test]
fn pull_leaves_elements_that_only_the_local_store_has_changed() {
    let place = Place::in_memory();
    let first = place.create("a.smap");
    let save = |txn: &mut stridemap::Transaction<'_>| {
        txn.save_as("state", &[1f32; 10], StorageKind::Mutable)?;
        txn.save_as("other", &[1f32; 10], StorageKind::Mutable)
    };
    first.write(save).unwrap();
    place.push(&first);
    place.pull("b.smap");
    let second = open(&place.path("b.smap"));
    let other = |store: &Store| store.load("other").unwrap().read::<f32>().unwrap()[0];
    // After a pull: the remote has a new generation, and new elements of one of the two.
    fill(&second, 2.);
    first.load("other").unwrap().lock_exclusive().unwrap().fill_(3f32).unwrap();
    first.save("x", &1f32).unwrap();
    place.push(&first);
    place.pull("b.smap");
    assert_eq!((first_element(&second), other(&second)), (2., 3.));
    // New elements without a new generation.
    first.load("other").unwrap().lock_exclusive().unwrap().fill_(4f32).unwrap();
    place.push(&first);
    place.pull("b.smap");
    assert_eq!((first_element(&second), other(&second)), (2., 4.));
    // After a push: the elements that it sent are those of the remote.
    second.refresh().unwrap();
    place.push(&second);
    fill(&second, 5.);
    place.pull("a.smap");
    assert_eq!(first_element(&first), 2.);
    first.refresh().unwrap();
    first.save("x", &2f32).unwrap();
    place.push(&first);
    place.pull("b.smap");
    assert_eq!(first_element(&second), 5.);
    // What the remote has changed since replaces them.
    fill(&first, 6.);
    place.push(&first);
    place.pull("b.smap");
    assert_eq!(first_element(&second), 6.);
}

#[test]
fn pull_that_cannot_read_what_was_pulled_last_replaces_nothing() {
    let faults = Faults::new();
    let remote = Remote::with_client(faults.client(Duration::from_millis(250)), 1);
    let place = Place::in_memory();
    let first = place.create("a.smap");
    first.write(|txn| txn.save_as("state", &[1f32; 10], StorageKind::Mutable)).unwrap();
    remote.push(&first, &ignore).unwrap();
    remote.pull(&place.path("b.smap"), &ignore).unwrap();
    let second = open(&place.path("b.smap"));
    fill(&second, 2.);
    first.save("x", &1f32).unwrap();
    remote.push(&first, &ignore).unwrap();
    faults.reset();
    // HEAD, its remote manifest, and the one that was pulled last.
    faults.inject(2, Fault::Status(403));
    let failed = remote.pull(&place.path("b.smap"), &ignore).unwrap_err();
    assert!(faults.log()[2].starts_with("get generations/"), "{:?}", faults.log());
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    remote.pull(&place.path("b.smap"), &ignore).unwrap();
    assert_eq!(first_element(&second), 2.);
}
