//! Commits while readers each pin a different generation.

use std::path::Path;
use std::sync::Arc;

use stridemap::{Durability, OnExisting, Store, StoreOptions, Tensor};

use crate::hooked::{Counts, Hooked};
use crate::latencies::Latencies;

fn row(value: u64) -> Tensor {
    Tensor::from_vec(vec![value; 8], &[8]).unwrap()
}

fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

/// Creates a store, and readers that each pin a different generation.
fn pinned(path: &Path, count: u64) -> Vec<Store> {
    let store = fast().create(path).unwrap();
    let pin = |value| {
        store.save("x", &row(value)).unwrap();
        fast().open(path).unwrap()
    };
    (0..count).map(pin).collect()
}

/// Counts the disk operations of a commit: the maximum of several, by a handle that has committed before or by a new
/// one.
fn counts(path: &Path, is_new: bool) -> Counts {
    let disk = Hooked::default();
    let open = || fast().disk(Arc::new(disk.clone())).open(path).unwrap();
    let mut store = open();
    store.save("x", &row(0)).unwrap();
    let mut most = Counts::default();
    for value in 0..20 {
        if is_new {
            store = open();
        }
        disk.take_counts();
        store.save("x", &row(value)).unwrap();
        let counts = disk.take_counts();
        most.metadata_read_bytes = most.metadata_read_bytes.max(counts.metadata_read_bytes);
        most.operation_count = most.operation_count.max(counts.operation_count);
    }
    most
}

#[test]
fn commit_reads_as_little_with_many_pinned_generations_as_with_few() {
    let dir = tempfile::tempdir().unwrap();
    let (few, many) = (dir.path().join("few"), dir.path().join("many"));
    let _readers = (pinned(&few, 20), pinned(&many, 300));
    for is_new in [false, true] {
        let (few, many) = (counts(&few, is_new), counts(&many, is_new));
        println!(
            "a commit beside 20 pinned generations: {few:?}; beside 300: {many:?}; a new handle: {is_new}"
        );
        assert!(many.operation_count <= few.operation_count + 4, "{few:?}, {many:?}");
        // Manifests repeat what the readers hold back.
        assert!(many.metadata_read_bytes <= few.metadata_read_bytes + 16 * 300 * 16, "{few:?}, {many:?}");
    }
}

/// Tests handles that watch `meta/`, and new ones that do not yet.
#[test]
fn commits_of_other_handles_are_seen_with_many_pinned_generations() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    let readers = pinned(&path, 100);
    let handles = [0, 1].map(|_| fast().open(&path).unwrap());
    let begun = handles[0].generation();
    for turn in 0..60 {
        // Each commits twice in a row, so that the second commit uses what the handle knows.
        let new = (turn % 12 >= 8).then(|| fast().open(&path).unwrap());
        let store = new.as_ref().unwrap_or(&handles[turn as usize / 2 % 2]);
        let name = format!("{turn}");
        store
            .write(|txn| {
                txn.on_existing(OnExisting::Refuse);
                txn.save(&name, &row(turn))
            })
            .unwrap();
        assert_eq!(store.generation(), begun + turn + 1);
    }
    for handle in &handles {
        handle.refresh().unwrap();
        assert_eq!(handle.names().unwrap().len(), 61);
    }
    for (value, reader) in readers.iter().enumerate() {
        assert_eq!(reader.load("x").unwrap().read::<u64>().unwrap(), [value as u64; 8]);
    }
    assert_eq!(handles[0].verify(|_| ()).unwrap().findings, []);
}

#[test]
fn later_commits_free_the_space_of_many_pinned_generations() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    let readers = pinned(&path, 200);
    let store = fast().open(&path).unwrap();
    store.save("x", &row(0)).unwrap();
    let files = |dir: &str| std::fs::read_dir(path.join(dir)).unwrap().count();
    assert!(files("storages") > 200 && files("meta") > 200);
    drop(readers);
    for value in 0..100 {
        store.save("x", &row(value)).unwrap();
    }
    // Only the newest storage is left, and a manifest with its table.
    assert!(files("storages") == 1 && files("meta") <= 2, "{} {}", files("storages"), files("meta"));
}

/// Alternates commits with no reader and with a thousand, because file systems slow down as files are created and
/// deleted.
#[test]
fn commit_with_a_thousand_pinned_generations_is_timed() {
    for durability in [Durability::Process, Durability::Full] {
        let counts = [0, 1000];
        let stores = counts.map(|count| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.smap");
            let readers = pinned(&path, count);
            let store = StoreOptions::new().durability(durability).open(&path).unwrap();
            (dir, readers, store)
        });
        let mut commits = [Latencies::default(), Latencies::default()];
        for ((_, _, store), count) in stores.iter().zip(counts) {
            let mut first = Latencies::default();
            first.time(|| store.save("x", &row(1)).unwrap());
            println!("{durability:?}, {count} pinned generations, the first commit of a handle: {first}");
            let mut stats = Latencies::default();
            let _ = stats.time(|| store.disk_usage().unwrap());
            println!("{durability:?}, {count} pinned generations, stats: {stats}");
        }
        for value in 0..400 {
            for ((_, _, store), commits) in stores.iter().zip(&mut commits) {
                commits.time(|| store.save("x", &row(value)).unwrap());
            }
        }
        for (commits, count) in commits.iter().zip(counts) {
            println!("{durability:?}, {count} pinned generations, a commit: {commits}");
        }
        assert!(stores.iter().flat_map(|(_, readers, _)| readers).all(|reader| reader.load("x").is_ok()));
        let [none, thousand] = commits.map(|commits| commits.quantile(0.5).as_secs_f64());
        println!(
            "{durability:?}: a commit beside 1000 pinned generations takes {:.2} times as long",
            thousand / none
        );
    }
}
