//! Pruning a remote.

use std::time::Duration;

use stridemap_remote::PruneOptions;

use crate::support::{Place, assert_same, assert_whole, ignore, open};

#[test]
fn prune_frees_what_neither_tags_nor_the_last_generations_need() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    for step in 0..10u8 {
        store.save("x", &vec![step; 5 << 20]).unwrap();
        if step % 5 == 0 {
            store.tag(&format!("step{step}")).unwrap();
        }
        place.push(&store);
    }
    let bytes = |place: &Place| place.objects().values().sum::<u64>();
    let before = bytes(&place);
    let waiting = place.remote.prune(&PruneOptions::new().keep_last(2)).unwrap();
    assert_eq!((waiting.object_count, waiting.freed_bytes), (0, 0));
    assert!(waiting.waiting_bytes > 5 * (5 << 20), "{waiting:?}");
    assert_eq!(bytes(&place), before);

    std::thread::sleep(Duration::from_millis(20));
    let options = PruneOptions::new().keep_last(2).grace(Duration::ZERO);
    let planned = place.remote.prune(&options.plan(true)).unwrap();
    assert_eq!(bytes(&place), before);
    let pruned = place.remote.prune(&options).unwrap();
    assert_eq!(pruned, planned);
    assert_eq!(bytes(&place), before - pruned.freed_bytes);
    // Left: steps 0 and 5 of the tags, and 8 and 9.
    assert!(pruned.freed_bytes >= 6 * (5 << 20), "{pruned:?}");
    assert_same(&place.remote.store().unwrap(), &store);
    assert_whole(&place.remote.store().unwrap());
    assert_eq!(
        place.remote.at(store.generation() - 1).unwrap().load("x").unwrap().read::<u8>().unwrap()[0],
        8
    );
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
    assert_eq!(place.remote.prune(&options).unwrap().object_count, 0);

    // What a removed tag kept.
    store.untag("step0").unwrap();
    place.push(&store);
    store.save("y", &1f32).unwrap();
    place.push(&store);
    store.save("y", &2f32).unwrap();
    place.push(&store);
    let pruned = place.remote.prune(&options).unwrap();
    assert!(((5 << 20)..(11 << 20)).contains(&pruned.freed_bytes), "{pruned:?}");
    assert_whole(&place.remote.store().unwrap());
}

#[test]
fn prune_of_orphans_deletes_what_a_push_left() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 5 << 20]).unwrap();
    place.push(&store);
    store.save("y", &vec![2u8; 12 << 20]).unwrap();
    let before = place.objects();
    // After the first object.
    let end = |_| Err(stridemap::Error::new(stridemap::ErrorKind::Busy, "killed"));
    place.remote.push(&store, &end).unwrap_err();
    assert!(place.objects().len() > before.len());
    std::thread::sleep(Duration::from_millis(20));
    let options = PruneOptions::new().grace(Duration::ZERO);
    assert_eq!(place.remote.prune(&options).unwrap().object_count, 0);
    let pruned = place.remote.prune(&options.orphans(true)).unwrap();
    assert!(pruned.freed_bytes >= 12 << 20, "{pruned:?}");
    assert_eq!(place.objects(), before);
    assert_eq!(place.remote.push(&store, &ignore).unwrap().generation, store.generation());
    assert_whole(&place.remote.store().unwrap());
}
