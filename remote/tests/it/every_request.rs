//! Each fault at each request of a push and of a pull, and an end of the process at each.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use stridemap::{Durability, ErrorKind, Store, StoreOptions};
use stridemap_remote::Remote;
use stridemap_remote::faults::{Fault, Faults};

use crate::support::{assert_same, assert_whole, ignore, open};

/// Stores and a remote before an operation, and how to do it.
struct Scene {
    dir: tempfile::TempDir,
    faults: Faults,
    remote: Remote,
    store: Store,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    FirstPush,
    Push,
    FirstPull,
    Pull,
}

impl Scene {
    fn new(operation: Operation) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let remote = Remote::with_client(faults.client(Duration::from_millis(250)), 1);
        let options = StoreOptions::new().durability(Durability::Process);
        let store = options.create(dir.path().join("a.smap")).unwrap();
        store.save("frozen", &vec![1u8; 5 << 20]).unwrap();
        store.save("rows", &vec![[1f32; 64]; 100]).unwrap();
        store.tag("first").unwrap();
        let scene = Scene { dir, faults, remote, store, operation };
        if operation != Operation::FirstPush {
            scene.remote.push(&scene.store, &ignore).unwrap();
        }
        if operation == Operation::Pull {
            scene.remote.pull(&scene.replica(), &ignore).unwrap();
        }
        if matches!(operation, Operation::Push | Operation::Pull) {
            scene.store.append("rows", &vec![[2f32; 64]; 50]).unwrap();
            scene.store.save("new", &vec![3u8; 5 << 20]).unwrap();
            scene.store.remove("frozen").unwrap();
            scene.store.tag("second").unwrap();
        }
        if operation == Operation::Pull {
            scene.remote.push(&scene.store, &ignore).unwrap();
        }
        scene.faults.reset();
        scene
    }

    fn replica(&self) -> std::path::PathBuf {
        self.dir.path().join("b.smap")
    }

    fn run(&self) -> stridemap::Result<()> {
        match self.operation {
            Operation::FirstPush | Operation::Push => self.remote.push(&self.store, &ignore).map(drop),
            Operation::FirstPull | Operation::Pull => self.remote.pull(&self.replica(), &ignore).map(drop),
        }
    }

    /// Checks that the remote and the replica are what they were, or what the operation makes of them.
    fn check(&self, is_done: bool, context: &str) {
        match self.remote.store() {
            Ok(remote) => {
                assert_whole(&remote);
                if remote.generation() == self.store.generation() {
                    assert_same(&remote, &self.store);
                } else {
                    assert_eq!(remote.names().unwrap(), ["frozen", "rows"], "{context}");
                    assert!(!is_done || self.operation != Operation::Push, "{context}");
                }
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{context}: {e}");
                assert_eq!((self.operation, is_done), (Operation::FirstPush, false), "{context}");
            }
        }
        if Path::new(&self.replica()).exists() {
            let replica = open(&self.replica());
            assert_whole(&replica);
            if replica.generation() == self.store.generation() {
                assert_same(&replica, &self.store);
            } else {
                assert_eq!((self.operation, is_done), (Operation::Pull, false), "{context}");
                assert_eq!(replica.names().unwrap(), ["frozen", "rows"], "{context}");
            }
        }
    }
}

const OPERATIONS: [Operation; 4] =
    [Operation::FirstPush, Operation::Push, Operation::FirstPull, Operation::Pull];

/// How many faults are tried at each request: this many, or as many as the variable says.
fn scale(few: usize) -> usize {
    std::env::var("STRIDEMAP_TEST_REMOTE_FAULTS").map_or(few, |faults| faults.parse().unwrap())
}

fn request_count(operation: Operation) -> u64 {
    let scene = Scene::new(operation);
    scene.run().unwrap();
    println!("{operation:?}: {:?}", scene.faults.log());
    scene.faults.log().len() as u64
}

#[test]
fn each_fault_at_each_request_leaves_a_whole_remote_and_a_whole_store() {
    for operation in OPERATIONS {
        for request in 0..request_count(operation) {
            let faults = [
                Fault::AnswerLost,
                Fault::Lost,
                Fault::Hangs,
                Fault::AnswerHangs,
                Fault::Status(429),
                Fault::Status(503),
                Fault::Status(403),
                Fault::Truncated,
                Fault::Wrong,
            ];
            // Each takes a second or so, so that a short run tries a few, other ones at each request.
            let chosen = faults.iter().cycle().skip(2 * request as usize).take(scale(2).min(faults.len()));
            for fault in chosen.cloned() {
                let context = format!("{operation:?}, request {request}, {fault:?}");
                let scene = Scene::new(operation);
                scene.faults.inject(request, fault.clone());
                let result = scene.run();
                // Those that pass are repeated.
                if !matches!(fault, Fault::Status(403) | Fault::Wrong) {
                    assert!(result.is_ok(), "{context}: {result:?}");
                }
                if let Err(e) = &result {
                    assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::Corrupt), "{context}: {e:?}");
                }
                scene.faults.reset();
                scene.check(result.is_ok(), &context);
                scene.run().unwrap_or_else(|e| panic!("{context}: again: {e:?}"));
                scene.check(true, &context);
            }
        }
    }
}

#[test]
fn operation_that_ends_at_any_request_is_repeated_without_sending_an_object_again() {
    for operation in OPERATIONS {
        for request in 0..request_count(operation) {
            for fault in [Fault::Status(403), Fault::AnswerLost].into_iter().take(scale(1)) {
                let context = format!("{operation:?}, ends at request {request}, {fault:?}");
                let scene = Scene::new(operation);
                scene.faults.inject_from(request, fault);
                let failed = scene.run().unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::Io, "{context}: {failed}");
                let finished: BTreeSet<String> = objects_put(&scene.faults.log()[..request as usize]);
                scene.faults.reset();
                scene.check(false, &context);
                scene.faults.reset();
                scene.run().unwrap_or_else(|e| panic!("{context}: again: {e:?}"));
                let again = objects_put(&scene.faults.log());
                assert!(again.is_disjoint(&finished), "{context}: {again:?} and {finished:?}");
                scene.check(true, &context);
            }
        }
    }
}

fn objects_put(log: &[String]) -> BTreeSet<String> {
    log.iter().filter(|request| request.starts_with("put objects/")).cloned().collect()
}
