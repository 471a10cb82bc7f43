//! Waiting until an element changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use half::f16;
use stridemap::{ErrorKind, Store};

use super::live;
use crate::harness::processes::start;
use crate::harness::{assert_refused, new_path, open_mapped};

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);

/// How often two processes wait for each other. Without `wake`, each time takes 100 ms.
const ROUNDS: u32 = 2_000;

/// Adds 1 to the second element whenever the first one was changed.
pub(super) fn answer(store: &Store) {
    let x = store.load("x").unwrap().as_live::<u32>().unwrap();
    for round in 0..ROUNDS {
        assert!(x.wait([0], round, LONG).unwrap());
        assert_eq!(x.fetch_add([1], 1).unwrap(), round);
        x.wake([1]).unwrap();
    }
}

#[test]
fn two_processes_wait_for_each_other() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let x = live(&open_mapped(&path), "x", vec![0u32, 0], &[2]);
    let mut other = start("live answer", &path);
    for round in 0..ROUNDS {
        assert_eq!(x.fetch_add([0], 1).unwrap(), round);
        x.wake([0]).unwrap();
        assert!(x.wait([1], round, LONG).unwrap());
    }
    assert!(other.wait().unwrap().success());
    assert_eq!(x.read().unwrap(), [ROUNDS; 2]);
}

#[test]
fn every_bit_of_an_element_is_waited_for() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let wide = live(&store, "wide", vec![0i64, 5], &[2]);
    let float = live(&store, "float", vec![0f64], &[]);
    thread::scope(|scope| {
        let waits = [scope.spawn(|| wide.wait(-1, 5, LONG)), scope.spawn(|| float.wait((), 0., LONG))];
        thread::sleep(Duration::from_millis(20));
        // The other half of the element.
        wide.set(-1, 5 | 1 << 40).unwrap();
        wide.wake(-1).unwrap();
        // A different zero, and nobody wakes.
        float.set((), -0.).unwrap();
        for wait in waits {
            assert!(wait.join().unwrap().unwrap());
        }
    });
    assert!(!wide.wait(0, 0, Duration::ZERO).unwrap());
    assert!(wide.wait(0, 1, Duration::MAX).unwrap());
}

#[test]
fn waking_without_a_change_ends_no_wait() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let x = live(&open_mapped(&path), "x", vec![7f32], &[1]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                x.wake(0).unwrap();
            }
        });
        assert!(!x.wait(0, 7., Duration::from_millis(50)).unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn short_elements_and_places_outside_are_refused() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let bytes = live(&store, "bytes", vec![0u8; 4], &[4]);
    let halves = live(&store, "halves", vec![f16::ZERO], &[1]);
    let words = live(&store, "words", vec![0u32; 4], &[2, 2]);
    assert_refused(bytes.wait(0, 0, LONG), ErrorKind::Unsupported, &["wait", "uint8", "1 bytes", "int32"]);
    assert_refused(bytes.wake(0), ErrorKind::Unsupported, &["wake", "uint8"]);
    assert_refused(halves.wait(0, f16::ZERO, LONG), ErrorKind::Unsupported, &["float16", "2 bytes"]);
    assert_refused(words.wait([2, 0], 0, LONG), ErrorKind::OutOfRange, &["wait"]);
    assert_refused(words.wake(0), ErrorKind::SizeMismatch, &["wake"]);
}
