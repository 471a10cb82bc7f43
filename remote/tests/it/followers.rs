//! Several followers of one publisher, through a server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stridemap::{Snapshot, Store, StoreOptions};
use stridemap_remote::{Client, Followed, Remote};

use crate::common::moto::Moto;
use crate::support::{assert_same, assert_whole, ignore, open};

/// How many commits are pushed, one by one.
fn commit_count() -> u64 {
    std::env::var("STRIDEMAP_TEST_REMOTE_COMMITS").map_or(8, |count| count.parse().unwrap())
}

/// How long a reader waits for the next generation. The server is slow if other tests run beside this one.
const PATIENCE: Duration = Duration::from_secs(300);

/// Makes generation `step` + 2. The elements of every tensor in it show the step.
fn commit(store: &Store, step: u64) {
    store
        .write(|txn| {
            txn.save("up", &vec![step; 1000])?;
            txn.save("down", &vec![u64::MAX - step; 50_000])?;
            match step {
                0 => txn.save("rows", &[[step; 8]])?,
                _ => txn.append("rows", &[[step; 8]]).map(|_| ())?,
            }
            txn.tag(&format!("step{step}"))
        })
        .unwrap();
}

/// Returns the step of a generation, every tensor of which must be of that step.
#[track_caller]
fn step_of(snapshot: &Snapshot) -> u64 {
    let read = |name: &str| snapshot.load(name).unwrap().read::<u64>().unwrap();
    let step = snapshot.generation() - 2;
    assert!(read("up").iter().all(|element| *element == step), "up of step {step}");
    assert!(read("down").iter().all(|element| *element == u64::MAX - step), "down of step {step}");
    let rows: Vec<u64> = (0..=step).flat_map(|row| [row; 8]).collect();
    assert_eq!(read("rows"), rows, "rows of step {step}");
    step
}

/// Reads each generation that a follower makes, until the last one. Returns their steps.
fn read_all(path: &Path, last: u64) -> Vec<u64> {
    let began = Instant::now();
    let store = loop {
        match Store::open(path) {
            Ok(store) => break store,
            Err(e) => assert!(began.elapsed() < PATIENCE, "{e}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    let mut steps = vec![step_of(&store.snapshot())];
    while steps.last() != Some(&last) {
        assert!(store.wait_for_change(PATIENCE).unwrap(), "nothing came after {steps:?}");
        let held = store.snapshot();
        steps.push(step_of(&held));
        // It stays as it is when the follower has a newer one.
        thread::sleep(Duration::from_millis(20));
        step_of(&held);
    }
    steps
}

/// Sets a flag when it is dropped, also by a failed test.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_of_three_followers_see_whole_generations_in_order_up_to_the_last() {
    let Some(moto) = Moto::shared() else { return };
    let (dir, last) = (tempfile::tempdir().unwrap(), commit_count());
    let url = moto.bucket("followed");
    let remote = || {
        let client = Client::open_with(&url, Duration::from_secs(60), moto.variables()).unwrap();
        Remote::with_client(client, 4)
    };
    let store = Store::create(dir.path().join("s.smap")).unwrap();
    commit(&store, 0);
    let publisher = remote();
    publisher.push(&store, &ignore).unwrap();
    let paths = [0, 1, 2].map(|number| dir.path().join(format!("f{number}.smap")));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = SetAtEnd(&is_over);
        for path in &paths {
            let (remote, is_over) = (remote(), &is_over);
            scope.spawn(move || {
                let mut report = |followed| match followed {
                    // The server may be slow.
                    Followed::Failed(e, pause) => {
                        println!("{e}; again in {pause:?}");
                        Ok(!is_over.load(Ordering::Relaxed))
                    }
                    _ => Ok(!is_over.load(Ordering::Relaxed)),
                };
                let (options, interval) = (StoreOptions::new(), Duration::from_millis(50));
                remote.follow(path, &options, interval, &ignore, &mut report).unwrap();
            });
        }
        let readers = paths.each_ref().map(|path| scope.spawn(move || read_all(path, last)));
        let (mut changed, mut sent) = (0, 0);
        for step in 1..=last {
            commit(&store, step);
            let pushed = publisher.push(&store, &ignore).unwrap();
            println!("step {step}: {} bytes changed, {} sent", pushed.changed_bytes, pushed.sent_bytes);
            let limit = pushed.changed_bytes + pushed.changed_bytes / 50 + (64 << 10);
            assert!(pushed.sent_bytes <= limit, "{pushed:?}");
            (changed, sent) = (changed + pushed.changed_bytes, sent + pushed.sent_bytes);
        }
        println!("all {last} pushes: {changed} bytes changed, {sent} sent");
        for (path, reader) in paths.iter().zip(readers) {
            let steps = reader.join().unwrap();
            println!("{}: {} of {} generations were read", path.display(), steps.len(), last + 1);
            assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
            assert_eq!(steps.last(), Some(&last));
        }
    });
    for path in &paths {
        let followed = open(path);
        // Also the generations that were skipped, by their tags.
        assert_same(&followed, &store);
        assert_eq!(followed.tags().unwrap().len() as u64, last + 1);
        assert_whole(&followed);
    }
}
