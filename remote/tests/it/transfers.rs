//! What a push and a pull carry.

use stridemap::{Durability, ErrorKind, StoreOptions};

use crate::support::{Place, assert_same, assert_whole, content_of, ignore, open};

#[test]
fn pulled_store_is_the_same_store() {
    for place in [Place::in_memory(), Place::in_files()] {
        let store = place.create("a.smap");
        store.save("weight", &vec![[1f32, 2., 3.]; 1000]).unwrap();
        store.save_view("column", &store.load("weight").unwrap().select(1, 1).unwrap()).unwrap();
        store.save("large", &vec![7u8; 9 << 20]).unwrap();
        store.save("empty", &Vec::<f32>::new()).unwrap();
        store.write(|txn| txn.set_attribute("weight", "unit", "m")).unwrap();
        store.tag("v1").unwrap();
        let pushed = place.push(&store);
        assert_eq!((pushed.generation, pushed.previous), (store.generation(), None));

        let pulled = place.pull("b.smap");
        assert_eq!((pulled.generation, pulled.previous), (store.generation(), None));
        let replica = open(&place.path("b.smap"));
        assert_eq!(replica.uuid(), store.uuid());
        assert_same(&replica, &store);
        assert_same(&place.remote.store().unwrap(), &store);
        assert_whole(&replica);
        assert_whole(&place.remote.store().unwrap());
    }
}

#[test]
fn empty_store_can_be_pushed_and_pulled() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    place.push(&store);
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
    store.save("x", &1f32).unwrap();
    place.push(&store);
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
}

#[test]
fn only_what_changed_is_sent_and_received() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("frozen", &vec![1u8; 8 << 20]).unwrap();
    store.save("rows", &vec![[1f64; 100]; 1000]).unwrap();
    place.push(&store);
    place.pull("b.smap");
    let few = 64 * 1024;

    // A header.
    store.save_view("part", &store.load("frozen").unwrap().narrow(0, 0, 100).unwrap()).unwrap();
    let before = place.objects();
    let pushed = place.push(&store);
    assert!(pushed.sent_bytes < few, "{pushed:?}");
    let new = place.objects().into_keys().filter(|path| !before.contains_key(path));
    let new: Vec<_> = new.filter(|path| path.to_string_lossy().contains("objects/")).collect();
    assert!(new.is_empty(), "objects of elements for a header: {new:?}");
    assert!(place.pull("b.smap").received_bytes < few);

    // Appended rows, a new tensor, a removed and a restored one.
    store.append("rows", &vec![[2f64; 100]; 500]).unwrap();
    let pushed = place.push(&store);
    assert!((400_000..400_000 + few).contains(&pushed.sent_bytes), "{pushed:?}");
    let received = place.pull("b.smap").received_bytes;
    assert!((400_000..1_500_000).contains(&received), "{received}");
    store.save("new", &vec![3u8; 5 << 20]).unwrap();
    let pushed = place.push(&store);
    assert!(((5 << 20)..(5 << 20) + few).contains(&pushed.sent_bytes), "{pushed:?}");
    store.tag("all").unwrap();
    store.remove("new").unwrap();
    assert!(place.push(&store).sent_bytes < few);
    place.pull("b.smap");
    store.restore(&store.at("all").unwrap()).unwrap();
    assert!(place.push(&store).sent_bytes < few);
    assert!(place.pull("b.smap").received_bytes < few);
    assert_same(&open(&place.path("b.smap")), &store);
    assert_whole(&open(&place.path("b.smap")));
}

#[test]
fn push_and_pull_without_a_change_do_nothing() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 1000]).unwrap();
    place.push(&store);
    let before = place.objects();
    let again = place.push(&store);
    assert_eq!((again.generation, again.sent_bytes, again.object_count), (store.generation(), 0, 0));
    assert_eq!(place.objects(), before);
    place.pull("b.smap");
    let again = place.pull("b.smap");
    assert_eq!((again.generation, again.received_bytes), (store.generation(), 0));
}

#[test]
fn readers_of_the_pulled_store_see_whole_generations() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![0u64; 10_000]).unwrap();
    place.push(&store);
    place.pull("b.smap");
    let reader = open(&place.path("b.smap"));
    let held = reader.snapshot();
    let before = content_of(&held);
    for step in 1..5u64 {
        store.save("x", &vec![step; 10_000]).unwrap();
        place.push(&store);
        place.pull("b.smap");
        assert!(reader.refresh().unwrap());
        assert_eq!(reader.load("x").unwrap().read::<u64>().unwrap(), vec![step; 10_000]);
    }
    assert_eq!(content_of(&held), before);
    drop((held, reader));
    let replica = open(&place.path("b.smap"));
    replica.gc().unwrap();
    assert_whole(&replica);
    let files = std::fs::read_dir(place.path("b.smap").join("storages")).unwrap().count();
    let expected = std::fs::read_dir(place.path("a.smap").join("storages")).unwrap().count();
    assert!(files <= expected, "{files} files, and the original has {expected}");
}

#[test]
fn elements_of_mutable_and_live_storages_are_sent_as_they_are() {
    use stridemap::StorageKind;
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store
        .write(|txn| {
            txn.save_as("state", &vec![1f32; 100], StorageKind::Mutable)?;
            txn.save_as("count", &vec![1u64; 4], StorageKind::Live)
        })
        .unwrap();
    place.push(&store);
    place.pull("b.smap");
    let state = store.load("state").unwrap();
    state.lock_exclusive().unwrap().fill_(2f32).unwrap();
    // Nothing was committed, and the elements are other ones.
    assert!(place.push(&store).sent_bytes > 0);
    place.pull("b.smap");
    let replica = open(&place.path("b.smap"));
    assert_eq!(replica.load("state").unwrap().read::<f32>().unwrap(), [2.; 100]);
    assert_eq!(place.remote.store().unwrap().load("state").unwrap().read::<f32>().unwrap(), [2.; 100]);
    assert_eq!(place.push(&store).sent_bytes, 0);
}

#[test]
fn external_storages_are_refused() {
    let place = Place::in_memory();
    let file = place.path("x.bin");
    std::fs::write(&file, [1u8; 64]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    let options = StoreOptions::new().external(stridemap::ExternalFiles::Anywhere);
    let store = options.create(place.path("a.smap")).unwrap();
    let external = stridemap::import::ExternalFile::open(&file).unwrap();
    store
        .write(|txn| {
            let key = txn.adopt(&external, 0..64)?;
            let header = stridemap::Header::contiguous(stridemap::DType::U8, &[64]).unwrap();
            txn.save_header("x", &header, key)
        })
        .unwrap();
    let refused = place.remote.push(&store, &ignore).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAllowed, "{refused}");
    assert!(refused.to_string().contains("materialize"), "{refused}");
    assert_eq!(place.remote.store().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn error_of_the_progress_ends_the_operation_and_changes_nothing() {
    let place = Place::in_memory();
    let store = StoreOptions::new().durability(Durability::Process).create(place.path("a.smap")).unwrap();
    store.save("x", &vec![1u8; 10 << 20]).unwrap();
    let end = |_| Err(stridemap::Error::new(ErrorKind::Busy, "that is enough"));
    let ended = place.remote.push(&store, &end).unwrap_err();
    assert!(ended.to_string().contains("that is enough"), "{ended}");
    assert_eq!(place.remote.store().unwrap_err().kind(), ErrorKind::NotFound);
    place.push(&store);
    let ended = place.remote.pull(&place.path("b.smap"), &end).unwrap_err();
    assert!(ended.to_string().contains("that is enough"), "{ended}");
    assert!(!place.path("b.smap").exists());
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
}
