//! The cost of commits, opens and loads, by the number of tensors and of commits.
//!
//! `STRIDEMAP_TEST_TENSORS` sets the largest number. The default is 100,000.

use crate::harness::hooked::{Counts, Hooked};
use std::sync::Arc;

use stridemap::{Store, StoreOptions};

use crate::harness::{fast, filled};
use crate::support::{scaled, temporary};

const KIB: u64 = 1024;

fn options(disk: &Hooked) -> StoreOptions {
    fast().disk(Arc::new(disk.clone()))
}

/// Creates a store of `count` tensors of 256 bytes in one commit.
fn store_of(path: &std::path::Path, disk: &Hooked, count: usize) -> Store {
    let store = options(disk).create(path).unwrap();
    let mut txn = store.begin().unwrap();
    let row = filled(64, 1f32);
    for i in 0..count {
        txn.save(&format!("layers.{i}.weight"), &row).unwrap();
    }
    txn.commit().unwrap();
    store
}

#[test]
fn open_load_and_commit_touch_about_the_square_root_of_the_metadata() {
    for (count, open_limit_bytes) in [(100_000, 64 * KIB), (1_000_000, 256 * KIB)] {
        if count > scaled("STRIDEMAP_TEST_TENSORS", 100_000) {
            println!("skipped {count} tensors: STRIDEMAP_TEST_TENSORS is smaller");
            continue;
        }
        let (dir, disk) = (temporary(), Hooked::default());
        let path = dir.path().join("many.smap");
        drop(store_of(&path, &disk, count));
        let saved = disk.take_counts();

        let reader_disk = Hooked::default();
        let open_and_load = |name: &str| {
            let store = options(&reader_disk).open(&path).unwrap();
            assert_eq!(store.load(name).unwrap().size(), [64]);
            reader_disk.take_counts().metadata_read_bytes
        };
        let mut opened_bytes = vec![open_and_load("layers.77777.weight")];

        let store = options(&disk).open(&path).unwrap();
        let view = store.load("layers.5.weight").unwrap().slice(0, None, None, 2).unwrap();
        disk.take_counts();
        // A table is written twice.
        let commit_count = 2 * (2 * count as u64).isqrt() + 8;
        for i in 0..commit_count {
            store.save_view(&format!("views.{i}"), &view).unwrap();
            if i % 9 == 0 {
                opened_bytes.push(open_and_load("layers.77777.weight"));
            }
        }
        let commits: Counts = disk.take_counts();
        let most_bytes = *opened_bytes.iter().max().unwrap();
        println!(
            "{count} tensors: metadata {} bytes; open and load {} bytes, at most {most_bytes} during {commit_count} \
             commits; a commit of a header writes {} bytes and reads {} bytes on average",
            saved.metadata_written_bytes,
            opened_bytes[0],
            commits.metadata_written_bytes / commit_count,
            commits.metadata_read_bytes / commit_count,
        );
        assert!(most_bytes < open_limit_bytes, "{most_bytes} bytes to open and load");
        assert!(commits.metadata_written_bytes / commit_count < 256 * KIB, "{commits:?}");
        assert_eq!(commits.data_written_bytes, 0, "a header moves no data");
    }
}

#[test]
fn commits_of_the_longest_headers_are_not_refused_before_a_table_is_due() {
    const BATCH: usize = 25;
    let count = scaled("STRIDEMAP_TEST_TENSORS", 100_000);
    if count < 1_000_000 {
        println!("skipped: STRIDEMAP_TEST_TENSORS is less than 1,000,000");
        return;
    }
    let (dir, disk) = (temporary(), Hooked::default());
    let path = dir.path().join("long.smap");
    // With a million tensors, a table is due after 4,096 changes. Fewer of these make a manifest as long as it can be.
    drop(store_of(&path, &disk, count));
    let store = fast().open(&path).unwrap();
    let names: Vec<String> = (0..64).map(|axis| format!("{axis:n>255}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let header = store.load("layers.5.weight").unwrap().narrow(0, 0, 1).unwrap();
    let header = header.view([1; 64]).unwrap().rename(&names).unwrap();
    for batch in 0..40 {
        let name = |i| format!("{:0>4096}", batch * BATCH + i);
        store.write(|txn| (0..BATCH).try_for_each(|i| txn.save_view(&name(i), &header))).unwrap();
    }
    let last = store.load(&format!("{:0>4096}", 40 * BATCH - 1)).unwrap();
    assert_eq!(last.names(), header.names());
}

#[test]
fn listing_by_prefix_reads_only_the_listed_names() {
    let (dir, disk) = (temporary(), Hooked::default());
    let path = dir.path().join("many.smap");
    drop(store_of(&path, &disk, 20_000));
    let store = options(&disk).open(&path).unwrap();
    disk.take_counts();
    let snapshot = store.snapshot();
    let listed: Vec<String> =
        snapshot.iter_tensors("layers.1234").unwrap().map(|info| info.unwrap().name).collect();
    let read_bytes = disk.take_counts().metadata_read_bytes;
    let expected: Vec<String> = {
        let mut names: Vec<String> = (0..20_000).map(|i| format!("layers.{i}.weight")).collect();
        names.retain(|name| name.starts_with("layers.1234"));
        names.sort();
        names
    };
    assert_eq!(listed, expected);
    println!("listed {} of 20000 names by {read_bytes} bytes of metadata", listed.len());
    assert!(read_bytes < 64 * KIB, "{read_bytes} bytes to list {} names", listed.len());
}

/// A handle that is never refreshed pins only its own generation.
#[test]
fn cost_of_replacing_commits_does_not_grow_with_an_old_reader() {
    const COMMITS: u64 = 2000;
    let (dir, disk) = (temporary(), Hooked::default());
    let path = dir.path().join("replaced.smap");
    let store = options(&disk).create(&path).unwrap();
    let row = |value: u64| filled(8, value);
    store.save("kept", &row(7)).unwrap();
    store.save("replaced", &row(8)).unwrap();
    let reader = Store::open(&path).unwrap();
    let batch = |from: u64| {
        disk.take_counts();
        for i in from..from + COMMITS / 10 {
            store.save("replaced", &row(i)).unwrap();
        }
        disk.take_counts()
    };
    let batches: Vec<Counts> = (0..10).map(|batch_index| batch(batch_index * COMMITS / 10)).collect();
    let (first, last) = (batches[0], batches[9]);
    println!("{COMMITS} replacing commits, by tenths: first {first:?}, last {last:?}");
    assert!(last.operation_count < first.operation_count * 11 / 10, "operations grow with the commits");
    assert!(last.metadata_written_bytes < first.metadata_written_bytes * 11 / 10, "manifests grow");
    assert_eq!(
        std::fs::read_dir(path.join("storages")).unwrap().count(),
        3,
        "kept, the reader's, the newest"
    );
    assert_eq!(reader.load("replaced").unwrap().read::<u64>().unwrap(), [8; 8]);
    assert_eq!(reader.load("kept").unwrap().read::<u64>().unwrap(), [7; 8]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    drop(reader);
    store.save("replaced", &row(9)).unwrap();
    assert_eq!(std::fs::read_dir(path.join("storages")).unwrap().count(), 2, "the reader is gone");
}

/// Of the generations that a tag keeps, and of those that only readers hold since their tags were removed, a commit looks at
/// a few.
#[test]
fn cost_of_commits_does_not_grow_with_tags_and_the_generations_of_readers() {
    let cost = |count: u64| {
        let (dir, disk) = (temporary(), Hooked::default());
        let path = dir.path().join("tagged.smap");
        let store = options(&disk).create(&path).unwrap();
        for step in 0..2 * count {
            let saved = store.write(|txn| {
                txn.save("x", &filled(8, step))?;
                txn.tag(&format!("t{step}"))
            });
            saved.unwrap();
        }
        let reader = Store::open(&path).unwrap();
        let held: Vec<_> = (0..count).map(|step| reader.at(&*format!("t{step}")).unwrap()).collect();
        store.write(|txn| (0..count).try_for_each(|step| txn.untag(&format!("t{step}")))).unwrap();
        store.save("y", &0i32).unwrap();
        disk.take_counts();
        (0..50).for_each(|step| store.save("y", &step).unwrap());
        let counts = disk.take_counts();
        for (snapshot, step) in held.iter().zip(0u64..) {
            assert_eq!(snapshot.load("x").unwrap().read::<u64>().unwrap(), [step; 8]);
        }
        println!("50 commits beside {count} tags and {count} held generations: {counts:?}");
        counts.operation_count
    };
    let (few, many) = (cost(20), cost(200));
    assert!(many <= few * 11 / 10, "{many} operations instead of {few}");
}

/// A restore finds its storages among the garbage that was dropped soon after the restored generation.
#[test]
fn cost_of_a_restore_does_not_grow_with_the_garbage_of_other_tags() {
    let (dir, disk) = (temporary(), Hooked::default());
    let path = dir.path().join("restored.smap");
    let store = options(&disk).create(&path).unwrap();
    for step in 0..2000u64 {
        let saved = store.write(|txn| {
            txn.save("x", &filled(8, step))?;
            txn.tag(&format!("t{step:04}"))
        });
        saved.unwrap();
    }
    drop(store);
    let read = [1000, 1500, 1998].map(|step| {
        let store = options(&disk).open(&path).unwrap();
        let tagged = store.at(&*format!("t{step}")).unwrap();
        disk.take_counts();
        store.restore(&tagged).unwrap();
        assert_eq!(store.load("x").unwrap().read::<u64>().unwrap(), [step; 8]);
        disk.take_counts().metadata_read_bytes
    });
    println!("restored with {read:?} bytes of metadata");
    // One of these commits may write the table of the history again.
    assert!(read.iter().filter(|&&bytes| bytes < 64 * KIB).count() >= 2, "{read:?} bytes to restore");
}
