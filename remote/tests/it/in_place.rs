//! Reading a remote without pulling it.

use stridemap::{ErrorKind, Store};
use stridemap_remote::Remote;

use crate::support::{Place, assert_same, assert_whole, content_of, open};

#[test]
fn views_slices_and_large_tensors_are_read_by_ranges() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    let rows: Vec<[u32; 1024]> =
        (0..6000u32).map(|row| std::array::from_fn(|column| row * 1024 + column as u32)).collect();
    store.save("x", &rows).unwrap();
    place.push(&store);
    let remote = Remote::open(place.remote.location()).unwrap();
    let (local, tensor) = (store.load("x").unwrap(), remote.store().unwrap().load("x").unwrap());
    let before = remote.requests();
    let row = tensor.select(0, 4321).unwrap();
    assert_eq!(row.read::<u32>().unwrap(), rows[4321]);
    let after = remote.requests();
    assert!(after.received_bytes - before.received_bytes <= 300 * 1024, "{before:?} {after:?}");
    let column = |tensor: &stridemap::Tensor| tensor.select(1, 77).unwrap().read::<u32>().unwrap();
    assert_eq!(column(&tensor), column(&local));
    assert_eq!(tensor.t().unwrap().to_bytes().unwrap(), local.t().unwrap().to_bytes().unwrap());
    let mean = |tensor: &stridemap::Tensor| tensor.statistics(|_| ()).unwrap().mean();
    assert_eq!(mean(&tensor), mean(&local));
}

#[test]
fn tags_and_the_last_generations_are_read_by_name_and_number() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    for step in 1..6u64 {
        store.save("x", &vec![step; 100]).unwrap();
        if step == 2 {
            store.tag("two").unwrap();
        }
        place.push(&store);
    }
    let at = |at: stridemap::history::At| {
        let loaded = place.remote.at(at).unwrap().load("x").unwrap();
        loaded.read::<u64>().unwrap()[0]
    };
    assert_eq!(at("two".into()), 2);
    let newest = store.generation();
    assert_eq!([newest, newest - 1, newest - 2].map(|generation| at(generation.into())), [5, 4, 3]);
    assert_eq!(place.remote.at("three").unwrap_err().kind(), ErrorKind::NameNotFound);
    assert_eq!(place.remote.at(999).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn remote_is_read_only_and_can_be_copied() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 100]).unwrap();
    store.save("y", &vec![2f32; 100]).unwrap();
    place.push(&store);
    let remote = place.remote.store().unwrap();
    assert_eq!(remote.save("z", &1f32).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(remote.remove("x").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(remote.tag("v1").unwrap_err().kind(), ErrorKind::ReadOnly);
    let path = place.path("part.smap");
    remote.snapshot().copy_to(&path, Some(&["x"]), |_| ()).unwrap();
    let part = open(&path);
    assert_eq!(part.names().unwrap(), ["x"]);
    assert_ne!(part.uuid(), store.uuid());
    assert_whole(&part);
    let all = place.path("all.smap");
    remote.copy_with_tags(&all, |_| ()).unwrap();
    assert_eq!(content_of(&open(&all).snapshot()).0, content_of(&store.snapshot()).0);
}

#[test]
fn missing_remote_is_not_found_and_an_unreachable_one_could_not_be_read() {
    let place = Place::in_files();
    let missing = place.remote.store().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert_eq!(Remote::open("s3:/bucket").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Remote::open("ftp://host/x").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn handle_keeps_its_generation_while_the_remote_moves_on() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 5000]).unwrap();
    place.push(&store);
    let reader: Store = place.remote.store().unwrap();
    let before = content_of(&reader.snapshot());
    store.save("x", &vec![2f32; 5000]).unwrap();
    place.push(&store);
    assert_eq!(content_of(&reader.snapshot()), before);
    assert_eq!(content_of(&reader.latest().unwrap()), before);
    // Two handles of one process, at different generations.
    assert_same(&place.remote.store().unwrap(), &store);
}
