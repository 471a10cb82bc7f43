//! Random histories of two stores that push to one remote and pull from it.

use stridemap::history::Retention;
use stridemap::{ErrorKind, Store};

use crate::support::{Place, assert_same, assert_whole, content_of, open};

#[test]
fn random_histories_arrive_whole() {
    let seeds: u64 = std::env::var("STRIDEMAP_TEST_REMOTE_SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    let first: u64 = std::env::var("STRIDEMAP_TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        println!("seed {seed}");
        run(seed);
    }
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let place = Place::in_memory();
    let mut writer = place.create("0.smap");
    writer.save("rows", &vec![[0f32; 16]; 10]).unwrap();
    place.push(&writer);
    place.pull("1.smap");
    let mut other = open(&place.path("1.smap"));
    let mut held = Vec::new();
    let mut steps_since_pull = 0;
    for step in 0..60u32 {
        change(&writer, &mut random, step);
        steps_since_pull += 1;
        if random.u8(..4) > 0 {
            continue;
        }
        place.push(&writer);
        let remote = place.remote.store().unwrap();
        assert_same(&remote, &writer);
        if random.bool() {
            continue;
        }
        if random.bool() {
            let snapshot = other.latest().unwrap();
            let content = content_of(&snapshot);
            held.push((snapshot, content));
        }
        place.pull(other.path().file_name().unwrap().to_str().unwrap());
        other.refresh().unwrap();
        assert_same(&other, &writer);
        assert_whole(&other);
        assert_whole(&remote);
        for (snapshot, content) in &held {
            assert_eq!(&content_of(snapshot), content, "seed {seed}, step {step}");
        }
        if random.bool() {
            held.clear();
            other.gc().unwrap();
            assert_whole(&other);
            assert_same(&other, &writer);
        }
        if steps_since_pull > 0 && random.bool() {
            std::mem::swap(&mut writer, &mut other);
        }
        steps_since_pull = 0;
    }
    // A new store at the end has exactly the files that it needs.
    place.push(&writer);
    place.pull("new.smap");
    let new = open(&place.path("new.smap"));
    assert_same(&new, &writer);
    assert_whole(&new);
    let files = |dir: &str| {
        let names = std::fs::read_dir(new.path().join(dir)).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let received = ["storages", "generations"].map(files);
    new.gc().unwrap();
    assert_eq!(["storages", "generations"].map(files), received, "a collection found something to delete");
    assert_same(&new, &writer);
}

/// Commits one random change.
fn change(store: &Store, random: &mut fastrand::Rng, step: u32) {
    let names = store.names().unwrap();
    let name = |random: &mut fastrand::Rng| names.get(random.usize(..names.len().max(1))).cloned();
    match random.u8(..14) {
        0..3 => store.save(&format!("t{}", random.u8(..12)), &vec![step; random.usize(1..3000)]).unwrap(),
        3 => store
            .save(&format!("large{}", random.u8(..3)), &vec![step; random.usize(260_000..600_000)])
            .unwrap(),
        4 | 5 => {
            if store.contains("rows").unwrap() {
                let rows = vec![[step as f32; 16]; random.usize(1..30_000)];
                store.append("rows", &rows).unwrap();
            } else {
                store.save("rows", &vec![[step as f32; 16]; 5]).unwrap();
            }
        }
        6 => {
            if let Some(name) = name(random) {
                let tensor = store.load(&name).unwrap();
                if tensor.ndim() > 0 && tensor.size()[0] > 1 {
                    let view = tensor.narrow(0, 0, random.usize(1..tensor.size()[0])).unwrap();
                    store.save_view(&format!("view{}", random.u8(..4)), &view).unwrap();
                }
            }
        }
        7 | 8 => {
            if let Some(name) = name(random) {
                store.remove(&name).unwrap();
            }
        }
        9 => drop(store.tag(&format!("tag{step}"))),
        10 => {
            let tags = store.tags().unwrap();
            if let Some(tag) = tags.get(random.usize(..tags.len().max(1))) {
                store.restore(&store.at(tag.name.as_str()).unwrap()).unwrap();
            }
        }
        11 => {
            let tags = store.tags().unwrap();
            if let Some(tag) = tags.get(random.usize(..tags.len().max(1))) {
                store.untag(&tag.name).unwrap();
            }
        }
        12 => drop(store.compact(true, |_| ()).unwrap()),
        _ => {
            store
                .write(|txn| (0..200u32).try_for_each(|i| txn.save(&format!("n/{}", i + step), &i)))
                .unwrap();
            store.gc().unwrap();
        }
    }
}

#[test]
fn retention_on_one_store_reaches_the_remote_and_the_other_store() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    for step in 0..20u32 {
        store
            .write(|txn| {
                txn.save("x", &vec![step; 50_000])?;
                txn.tag(&format!("step{step}"))
            })
            .unwrap();
    }
    place.push(&store);
    place.pull("b.smap");
    let policy = Retention { keep_last: Some(3), ..Retention::default() };
    store.retain(&policy, |_| true).unwrap();
    place.push(&store);
    assert_eq!(place.remote.store().unwrap().tags().unwrap().len(), 3);
    place.pull("b.smap");
    let replica = open(&place.path("b.smap"));
    assert_same(&replica, &store);
    replica.gc().unwrap();
    let bytes = |store: &Store| {
        let storages = std::fs::read_dir(store.path().join("storages")).unwrap();
        storages.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    assert_eq!(bytes(&replica), 3 * 200_000);
    assert_whole(&replica);
    assert_eq!(place.remote.at("step0").unwrap_err().kind(), ErrorKind::NameNotFound);
}
