//! Random histories of two stores that take turns as the one that commits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use stridemap::{DType, OnExisting, Snapshot, StorageKind, Store, Tensor};

use super::{Tensors, assert_same, files, receive, replica_of, tensors};
use crate::harness::fast;
use crate::random::Random;
use crate::support::temporary;

const NAMES: [&str; 6] = ["a", "b", "c", "m.a", "m.b", "m.c"];
const GROWING: [&str; 3] = ["g0", "g1", "g2"];
const IN_PLACE: [&str; 2] = ["u0", "u1"];
const TAGS: usize = 8;

struct Play {
    random: Random,
    /// The first commits; the second receives.
    stores: [Store; 2],
    /// Readers of the two, with what they saw.
    held: [Vec<(Snapshot, Tensors)>; 2],
    counter: i32,
    trace: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Play {
    fn new(seed: u64) -> Self {
        let dir = temporary();
        let store = fast().create(dir.path().join("a.smap")).unwrap();
        let replica = replica_of(&store, &dir.path().join("b.smap"));
        let (random, held, trace) = (Random::new(seed), [Vec::new(), Vec::new()], Vec::new());
        Play { random, stores: [store, replica], held, counter: 0, trace, _dir: dir }
    }

    fn writer(&self) -> &Store {
        &self.stores[0]
    }

    fn note(&mut self, what: String) {
        self.trace.push(what);
    }

    fn elements(&mut self, is_growing: bool) -> Tensor {
        let most: u32 = match (self.random.one_in(40), is_growing) {
            (true, true) => 800_000,
            (true, false) => 1_500_000,
            _ => 3000,
        };
        let count = 1 + self.random.below(most) as i32;
        self.counter += 1;
        Tensor::from_vec((0..count).map(|i: i32| i.wrapping_mul(self.counter)).collect(), &[count as usize])
            .unwrap()
    }

    fn pick(&mut self, names: &[&'static str]) -> &'static str {
        self.random.pick(names).copied().unwrap()
    }

    fn existing(&mut self) -> Option<String> {
        let names = self.writer().latest().unwrap().names().unwrap();
        self.random.pick(&names).cloned()
    }

    fn tag(&mut self) -> Option<String> {
        let tags: Vec<String> = self.writer().tags().unwrap().into_iter().map(|tag| tag.name).collect();
        self.random.pick(&tags).cloned()
    }

    fn step(&mut self) {
        match self.random.below(100u32) {
            0..15 => {
                let (name, elements) = (self.pick(&NAMES), self.elements(false));
                self.note(format!("save {name}"));
                self.writer().save(name, &elements).unwrap();
            }
            15..30 => {
                let (name, rows) = (self.pick(&GROWING), self.elements(true));
                self.note(format!("append {name}"));
                let store = self.writer();
                store.write(|txn| txn.ensure_growable(name, DType::I32, &[0], 16)).unwrap();
                match store.append(name, &rows) {
                    // A view of earlier rows reaches further, after a restore.
                    Err(e) if e.to_string().contains("follows it in the same storage") => {}
                    appended => drop(appended.unwrap()),
                }
            }
            30..38 => {
                let Some(name) = self.existing() else { return };
                self.note(format!("remove {name}"));
                self.writer().remove(&name).unwrap();
            }
            38..42 => {
                let (Some(of), name) = (self.existing(), self.pick(&NAMES)) else { return };
                let tensor = self.writer().latest().unwrap().load(&of).unwrap();
                // A view of what is changed in place changes too.
                if tensor.size().is_empty() || IN_PLACE.contains(&&*of) {
                    return;
                }
                self.note(format!("view {of} {name}"));
                let start = self.random.below(tensor.size()[0]);
                let view = tensor.narrow(0, start, tensor.size()[0] - start).unwrap();
                self.writer().save_view(name, &view).unwrap();
            }
            42..52 => {
                let tag = format!("t{}", self.random.below(TAGS));
                let at = self.random.below(2 * self.held[0].len().max(1));
                let snapshot = match self.held[0].get(at) {
                    Some((snapshot, _)) => snapshot.clone(),
                    None => self.writer().latest().unwrap(),
                };
                self.note(format!("tag {tag} of {}", snapshot.generation()));
                let tagged = self.writer().write(|txn| {
                    txn.on_existing(OnExisting::Replace);
                    if at.is_multiple_of(2) { txn.tag_snapshot(&tag, &snapshot) } else { txn.tag(&tag) }
                });
                tagged.unwrap();
            }
            52..57 => {
                let Some(tag) = self.tag() else { return };
                self.note(format!("untag {tag}"));
                self.writer().untag(&tag).unwrap();
            }
            57..62 => {
                let Some(tag) = self.tag() else { return };
                let at = self.random.below(3 * self.held[0].len().max(1));
                let snapshot = match self.held[0].get(at) {
                    Some((snapshot, _)) => snapshot.clone(),
                    None => self.writer().at(&*tag).unwrap(),
                };
                self.note(format!("restore {}", snapshot.generation()));
                self.writer().restore(&snapshot).unwrap();
            }
            62..68 => self.change_in_place(),
            68..71 => {
                self.note("many names".to_owned());
                let store = self.writer();
                let counter = self.counter;
                store
                    .write(|txn| {
                        txn.on_existing(OnExisting::Replace);
                        (0..120).try_for_each(|i| txn.save(&format!("n.{}", (i + counter) % 150), &counter))
                    })
                    .unwrap();
            }
            71..74 => {
                self.note("collect".to_owned());
                let _ = self.stores[self.random.below(2usize)].gc().unwrap();
            }
            74..76 => {
                self.note("compact".to_owned());
                let _ = self.writer().compact(true, |_| ()).unwrap();
            }
            76..83 => {
                let side = self.random.below(2usize);
                if self.held[side].len() < 3 {
                    let snapshot = match self.tag_on(side) {
                        Some(tag) => self.stores[side].at(&*tag).unwrap(),
                        None => self.stores[side].latest().unwrap(),
                    };
                    self.note(format!("hold {} on {side}", snapshot.generation()));
                    let seen = sealed(tensors(&snapshot));
                    self.held[side].push((snapshot, seen));
                }
            }
            83..88 => {
                let side = self.random.below(2usize);
                if !self.held[side].is_empty() {
                    let at = self.random.below(self.held[side].len());
                    let (snapshot, seen) = self.held[side].swap_remove(at);
                    self.note(format!("release {} on {side}", snapshot.generation()));
                    assert!(sealed(tensors(&snapshot)) == seen);
                }
            }
            88..97 => self.receive(),
            97..98 => {
                self.receive();
                self.note("swap".to_owned());
                self.stores.swap(0, 1);
                self.held.swap(0, 1);
            }
            _ => self.compare_files(),
        }
    }

    fn tag_on(&mut self, side: usize) -> Option<String> {
        let tags: Vec<String> = self.stores[side].tags().unwrap().into_iter().map(|tag| tag.name).collect();
        self.random.pick(&tags).filter(|_| self.random.clone().one_in(2)).cloned()
    }

    fn change_in_place(&mut self) {
        let name = self.pick(&IN_PLACE);
        self.note(format!("change {name}"));
        self.counter += 1;
        let (store, counter) = (self.writer(), self.counter);
        let kind = if name == "u0" { StorageKind::Mutable } else { StorageKind::Live };
        if !store.latest().unwrap().contains(name).unwrap() {
            store.write(|txn| txn.save_as(name, &vec![counter; 100_000], kind)).unwrap();
        } else if kind == StorageKind::Mutable {
            store.latest().unwrap().load(name).unwrap().lock_exclusive().unwrap().fill_(counter).unwrap();
        }
    }

    fn receive(&mut self) {
        self.note("receive".to_owned());
        let [writer, replica] = &self.stores;
        receive(replica, writer).unwrap();
        assert_same(replica, writer);
        for (snapshot, seen) in &self.held[1] {
            assert!(sealed(tensors(snapshot)) == *seen, "a reader of the replica");
        }
    }

    /// Checks that the replica has exactly the files that the other store needs.
    fn compare_files(&mut self) {
        self.receive();
        self.note("compare files".to_owned());
        self.held = [Vec::new(), Vec::new()];
        let _ = self.stores.each_ref().map(|store| store.gc().unwrap());
        let [writer, replica] = &self.stores;
        for dir in ["storages", "generations"] {
            assert_eq!(files(replica, dir), files(writer, dir));
        }
        assert!(files(replica, "meta").len() <= 2, "{:?}", files(replica, "meta"));
    }
}

/// Leaves out what is changed in place, which no reader keeps.
fn sealed(mut tensors: Tensors) -> Tensors {
    tensors.retain(|name, _| !IN_PLACE.contains(&&**name));
    tensors
}

#[test]
fn replica_is_the_same_after_each_receive_in_random_histories() {
    let operations = std::env::var("STRIDEMAP_TEST_REPLICA_OPERATIONS");
    let operations: u64 = operations.map_or(500, |count| count.parse().unwrap());
    let mut play = Play::new(Random::seed("replica"));
    for number in 0..operations {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| play.step())) {
            println!(
                "operation {number}, after {:#?}",
                play.trace.iter().rev().take(80).rev().collect::<Vec<_>>()
            );
            resume_unwind(panic);
        }
    }
    play.receive();
    play.compare_files();
}
