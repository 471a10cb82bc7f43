//! Random operations on a store and on its model.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use stridemap::disk::Disk;
use stridemap::history::Retention;
use stridemap::{DType, OnExisting, Snapshot, Store, StoreOptions};

use super::model::{Model, State, check};
use super::random::Random;
use super::simulated::SimulatedDisk;

const STORE: &str = "s.smap";
const NAMES: [&str; 9] = ["a", "b", "c", "m.a", "m.b", "m.c", "g0", "g1", "g2"];
const TAGS: usize = 12;
/// The most operations between two looks at every tag.
const LOOK: u64 = 400;

struct Play {
    random: Random,
    disk: SimulatedDisk,
    store: Store,
    model: Model,
    /// Snapshots that readers hold.
    held: Vec<(Snapshot, u64, Rc<State>)>,
    counter: i32,
    trace: Vec<String>,
}

fn open(disk: &SimulatedDisk) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    StoreOptions::new().disk(disk).open(STORE).unwrap()
}

impl Play {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new().without_log();
        let store = StoreOptions::new().disk(Arc::new(disk.clone())).create(STORE).unwrap();
        let model = Model { generation: store.generation(), ..Model::default() };
        let (held, trace) = (Vec::new(), Vec::new());
        Play { random: Random::new(seed), disk, store, model, held, counter: 0, trace }
    }

    fn elements(&mut self) -> Vec<i32> {
        let count = 1 + self.random.below(if self.random.clone().one_in(20) { 3000 } else { 12usize });
        self.counter += 1;
        (0..count as i32).map(|i| self.counter * 1000 + i).collect()
    }

    fn name(&mut self) -> String {
        (*self.random.pick(&NAMES[..6]).unwrap()).to_owned()
    }

    fn tag_name(&mut self) -> String {
        format!("t{}", self.random.below(TAGS))
    }

    /// Makes one random change, or none.
    fn step(&mut self) {
        match self.random.below(100u32) {
            0..22 => self.save(),
            22..34 => self.append(),
            34..40 => self.remove(),
            40..44 => self.rename(),
            44..48 => self.view(),
            48..58 => self.tag(),
            58..63 => self.untag(),
            63..71 => self.restore(),
            71..74 => self.retain(),
            74..80 => self.hold(),
            80..84 => self.release(),
            84..87 => self.compact(),
            87..92 => self.collect(),
            92..96 => self.reopen(),
            96..98 => self.crash(),
            _ => self.look_at_one(),
        }
    }

    fn note(&mut self, what: String) {
        if self.trace.len() > 60 {
            self.trace.remove(0);
        }
        self.trace.push(what);
    }

    fn save(&mut self) {
        let (name, elements) = (self.name(), self.elements());
        let (second, other) = (self.name(), self.elements());
        let tag = self.random.one_in(4).then(|| self.tag_name());
        let both = self.random.one_in(3) && second != name;
        self.note(format!("save {name} {both} {second} {tag:?}"));
        self.store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.save(&name, &elements)?;
                if both {
                    txn.save(&second, &other)?;
                }
                tag.as_ref().map_or(Ok(()), |tag| txn.tag(tag))
            })
            .unwrap();
        self.model.commit(|state| {
            state.insert(name, Rc::new(elements));
            if both {
                state.insert(second, Rc::new(other));
            }
        });
        if let Some(tag) = tag {
            self.model.tags.insert(tag, (self.model.generation, Rc::clone(&self.model.newest)));
        }
    }

    fn append(&mut self) {
        let (name, rows) = (format!("g{}", self.random.below(3u32)), self.elements());
        self.note(format!("append {name} {}", rows.len()));
        if !self.model.newest.contains_key(&name) {
            self.store.create_growable(&name, DType::I32, &[0], 16).unwrap();
            self.model.commit(|state| drop(state.insert(name, Rc::default())));
            return;
        }
        match self.store.append(&name, &rows) {
            // A view of earlier rows reaches further, after a restore.
            Err(e) if e.to_string().contains("follows it in the same storage") => return,
            appended => drop(appended.unwrap()),
        }
        self.model.commit(|state| Rc::make_mut(state.get_mut(&name).unwrap()).extend(rows));
    }

    fn existing(&mut self) -> Option<String> {
        let names: Vec<String> = self.model.newest.keys().cloned().collect();
        self.random.pick(&names).cloned()
    }

    fn remove(&mut self) {
        let Some(name) = self.existing() else { return };
        self.note(format!("remove {name}"));
        self.store.remove(&name).unwrap();
        self.model.commit(|state| drop(state.remove(&name)));
    }

    fn rename(&mut self) {
        let (Some(from), to) = (self.existing(), self.name()) else { return };
        if from == to || from.starts_with('g') {
            return;
        }
        self.note(format!("rename {from} {to}"));
        self.store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.rename(&from, &to)
            })
            .unwrap();
        self.model.commit(|state| {
            let moved = state.remove(&from).unwrap();
            state.insert(to, moved);
        });
    }

    fn view(&mut self) {
        let (Some(of), name) = (self.existing(), self.name()) else { return };
        let elements = Rc::clone(&self.model.newest[&of]);
        let start = self.random.below(elements.len());
        self.note(format!("view {of} {name} from {start}"));
        let tensor = self.store.load(&of).unwrap();
        let length = elements.len() - start;
        self.store.save_view(&name, &tensor.narrow(0, start, length).unwrap()).unwrap();
        self.model.commit(|state| drop(state.insert(name, Rc::new(elements[start..].to_vec()))));
    }

    fn tag(&mut self) {
        let tag = self.tag_name();
        let held = self.random.one_in(3).then(|| self.random.below(self.held.len()));
        let target = held
            .and_then(|at| self.held.get(at))
            .map(|(snapshot, generation, state)| (snapshot.clone(), *generation, Rc::clone(state)));
        let (snapshot, generation, state) = target
            .unwrap_or_else(|| (self.store.snapshot(), self.model.generation, Rc::clone(&self.model.newest)));
        self.note(format!("tag {tag} of {generation}"));
        self.store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.tag_snapshot(&tag, &snapshot)
            })
            .unwrap();
        self.model.generation += 1;
        self.model.tags.insert(tag, (generation, state));
    }

    fn any_tag(&mut self) -> Option<String> {
        let tags: Vec<String> = self.model.tags.keys().cloned().collect();
        self.random.pick(&tags).cloned()
    }

    fn untag(&mut self) {
        let Some(tag) = self.any_tag() else { return };
        self.note(format!("untag {tag}"));
        self.store.untag(&tag).unwrap();
        self.model.generation += 1;
        self.model.tags.remove(&tag);
    }

    fn restore(&mut self) {
        let Some(tag) = self.any_tag() else { return };
        let from_held = self.random.one_in(4).then(|| self.random.below(self.held.len()));
        let (snapshot, state) = match from_held.and_then(|at| self.held.get(at)) {
            Some((snapshot, _, state)) => (snapshot.clone(), Rc::clone(state)),
            None => (self.store.at(&*tag).unwrap(), Rc::clone(&self.model.tags[&tag].1)),
        };
        let prefix = if self.random.one_in(3) { "m." } else { "" };
        let is_within = |name: &String| name.starts_with(prefix);
        if !prefix.is_empty() && !state.keys().any(is_within) {
            return;
        }
        self.note(format!("restore {tag} (or held {from_held:?}) {prefix:?}"));
        self.store.write(|txn| txn.restore(&snapshot, prefix)).unwrap();
        self.model.commit(|newest| {
            newest.retain(|name, _| !is_within(name));
            newest.extend(
                state.iter().filter(|(name, _)| is_within(name)).map(|(k, v)| (k.clone(), Rc::clone(v))),
            );
        });
    }

    fn retain(&mut self) {
        let last = 3 + self.random.below(5usize);
        self.note(format!("retain {last}"));
        let policy = Retention { keep_last: Some(last), ..Retention::default() };
        let removed = self.store.retain(&policy, |_| true).unwrap();
        let mut order: Vec<(u64, String)> =
            self.model.tags.iter().map(|(name, (generation, _))| (*generation, name.clone())).collect();
        order.sort();
        let gone = order.len().saturating_sub(last);
        let expected: Vec<String> = order.into_iter().take(gone).map(|(_, name)| name).collect();
        assert_eq!(removed.into_iter().map(|tag| tag.name).collect::<Vec<_>>(), expected);
        if !expected.is_empty() {
            self.model.generation += 1;
        }
        expected.iter().for_each(|name| drop(self.model.tags.remove(name)));
    }

    fn hold(&mut self) {
        if self.held.len() == 3 {
            return;
        }
        let options = StoreOptions::new().disk(Arc::new(self.disk.clone()));
        let (options, generation, state) = match self.any_tag().filter(|_| self.random.one_in(2)) {
            Some(tag) => {
                let (generation, state) = self.model.tags[&tag].clone();
                (options.at(&*tag), generation, state)
            }
            None => (options, self.model.generation, Rc::clone(&self.model.newest)),
        };
        let held = (options.open(STORE).unwrap().snapshot(), generation, state);
        self.note(format!("hold {}", held.1));
        assert_eq!(held.0.generation(), held.1);
        self.held.push(held);
    }

    fn release(&mut self) {
        if !self.held.is_empty() {
            let at = self.random.below(self.held.len());
            let (snapshot, generation, state) = self.held.swap_remove(at);
            self.note(format!("release {generation}"));
            check(&snapshot, &state, "held");
        }
    }

    fn compact(&mut self) {
        self.note("compact".to_owned());
        self.store.compact(true, |_| ()).unwrap();
        self.model.generation = self.store.generation();
    }

    /// Collects, and checks that exactly the files that something needs are left.
    fn collect(&mut self) {
        self.note("gc".to_owned());
        self.store.gc().unwrap();
        self.model.generation = self.store.generation();
        let tagged: BTreeSet<u64> = self.model.tags.values().map(|(generation, _)| *generation).collect();
        let mut snapshots = vec![self.store.snapshot()];
        snapshots.extend(self.held.iter().map(|(snapshot, _, _)| snapshot.clone()));
        snapshots.extend(self.model.tags.keys().map(|tag| self.store.at(&**tag).unwrap()));
        let needed: BTreeSet<String> = snapshots
            .iter()
            .flat_map(|snapshot| {
                snapshot.storages().map(|storage| format!("{:016x}.bin", storage.unwrap().id))
            })
            .collect();
        let found = |dir: &str, end: &str| -> BTreeSet<String> {
            let names = self.disk.list(&Path::new(STORE).join(dir)).unwrap();
            names.into_iter().filter(|name| name.ends_with(end)).collect()
        };
        let storages = found("storages", ".bin");
        let missing: Vec<_> = needed.difference(&storages).collect();
        let extra: BTreeSet<_> = storages.difference(&needed).collect();
        let why = || -> Vec<String> {
            let spare = self.store.disk_usage().unwrap().spare.into_iter();
            let is_extra = |name: &str| extra.iter().any(|extra| *extra == name);
            let spare = spare.filter(|file| is_extra(&file.path.file_name().unwrap().to_string_lossy()));
            spare.map(|file| file.to_string()).collect()
        };
        assert!(storages == needed, "{:?} are left; {missing:?} are missing", why());
        let manifests = found("generations", ".man");
        for generation in &tagged {
            assert!(manifests.contains(&format!("{generation:016x}.man")), "{generation} of {manifests:?}");
        }
        let held: BTreeSet<u64> = self.held.iter().map(|(_, generation, _)| *generation).collect();
        for name in &manifests {
            let generation = u64::from_str_radix(&name[..16], 16).unwrap();
            assert!(tagged.contains(&generation) || held.contains(&generation), "{name} is left");
        }
        assert!(found("generations", ".tab").len() <= tagged.len() + held.len() + 1);
        assert!(found("meta", ".his").len() <= held.len() + 1);
    }

    fn reopen(&mut self) {
        self.note("reopen".to_owned());
        self.store = open(&self.disk);
        assert_eq!(self.store.generation(), self.model.generation);
    }

    /// Cuts the power. Every commit was durable.
    fn crash(&mut self) {
        self.note("crash".to_owned());
        self.held.clear();
        let cut = self.disk.power_cut();
        let random = &mut self.random;
        let survivors = cut.random(&mut |end| random.below(end));
        self.disk = cut.disk(&survivors).without_log();
        self.store = open(&self.disk);
        assert_eq!(self.store.generation(), self.model.generation);
        check(&self.store.snapshot(), &self.model.newest, "after a power cut");
    }

    fn look_at_one(&mut self) {
        check(&self.store.snapshot(), &self.model.newest, "newest");
        if let Some(tag) = self.any_tag() {
            let (generation, state) = &self.model.tags[&tag];
            let snapshot = self.store.at(&*tag).unwrap();
            assert_eq!(snapshot.generation(), *generation);
            check(&snapshot, state, &tag);
        }
    }

    fn look_at_all(&mut self) {
        check(&self.store.snapshot(), &self.model.newest, "newest");
        let tags: Vec<(String, u64)> =
            self.store.tags().unwrap().into_iter().map(|tag| (tag.name, tag.generation)).collect();
        let mut expected: Vec<(String, u64)> =
            self.model.tags.iter().map(|(name, (generation, _))| (name.clone(), *generation)).collect();
        expected.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        assert_eq!(tags, expected);
        for (tag, (_, state)) in &self.model.tags {
            check(&self.store.at(&**tag).unwrap(), state, tag);
        }
        for (snapshot, generation, state) in &self.held {
            check(snapshot, state, &format!("held {generation}"));
        }
        let verified = self.store.verify(|_| ()).unwrap();
        assert!(verified.is_whole(), "{:?}", verified.findings);
    }
}

#[test]
fn tags_keep_exactly_their_states_through_random_histories() {
    let operations = std::env::var("STRIDEMAP_TEST_HISTORY_OPERATIONS");
    let operations: u64 = operations.map_or(100_000, |count| count.parse().unwrap());
    let mut play = Play::new(Random::seed("history"));
    for number in 0..operations {
        let step = std::panic::AssertUnwindSafe(|| {
            play.step();
            if number % LOOK == 0 {
                play.look_at_all();
            }
        });
        let done = std::panic::catch_unwind(step);
        if let Err(panic) = done {
            println!("operation {number}, after {:#?}", play.trace);
            std::panic::resume_unwind(panic);
        }
    }
    play.look_at_all();
}
