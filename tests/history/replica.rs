//! Replicas that follow random histories of a store by what changes, against the complete lists.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use stridemap::replica::{FileKey, ReplicaFiles};
use stridemap::{
    DType, Durability, ErrorKind, OnExisting, Result, Snapshot, StorageKind, Store, StoreOptions,
};
use stridemap_format::{Manifest, Marker};

use super::files::MemoryFiles;
use super::random::Random;

const NAMES: [&str; 8] = ["a", "b", "c", "m.a", "m.b", "g0", "g1", "g2"];
const MIB: usize = 1 << 20;

/// What another place has of a store.
#[derive(Default)]
struct Replica {
    format: Vec<u8>,
    manifest: Option<Vec<u8>>,
    files: BTreeMap<FileKey, Arc<Vec<u8>>>,
    complete_count: u64,
    partial_count: u64,
    removed_count: u64,
}

fn read(snapshot: &Snapshot, key: FileKey, length_bytes: u64) -> Vec<u8> {
    let file = snapshot.open_replica_file(key).unwrap_or_else(|e| panic!("{}: {e}", key.path()));
    assert_eq!(file.size_bytes(), length_bytes, "{}", key.path());
    let mut bytes = Vec::new();
    let mut add = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    file.stream(0..length_bytes, &mut add).unwrap();
    bytes
}

impl Replica {
    /// Fetches what has changed.
    fn follow(&mut self, snapshot: &Snapshot) {
        let since = self.manifest.as_deref();
        let changes = snapshot.replica_files(since).unwrap();
        let uuid = Marker::decode(&changes.format).unwrap().uuid;
        let decoded = Manifest::decode(&changes.manifest, uuid, snapshot.generation()).unwrap();
        let tables = since.map(|since| {
            let generation = self.generation(since, uuid);
            let earlier = Manifest::decode(since, uuid, generation).unwrap();
            (earlier.table, earlier.history)
        });
        assert_eq!(changes.is_complete, tables != Some((decoded.table, decoded.history)));
        assert!(!changes.is_complete || changes.removed.is_empty());
        let ReplicaFiles { format, manifest, needed, removed, is_complete, .. } = changes;
        match is_complete {
            true => {
                self.complete_count += 1;
                self.files.retain(|key, _| needed.contains_key(key));
            }
            false => self.partial_count += 1,
        }
        for (key, file) in needed {
            let bytes = Arc::new(read(snapshot, key, file.length_bytes));
            let before = self.files.insert(key, Arc::clone(&bytes));
            // A file that is whole already is listed only if its bytes may change at any time.
            let is_news = before.is_none_or(|before| before != bytes);
            assert!(is_complete || is_news || file.is_in_place, "{} is listed again", key.path());
        }
        for key in &removed {
            self.removed_count += u64::from(self.files.remove(key).is_some());
        }
        (self.format, self.manifest) = (format, Some(manifest));
    }

    /// Returns the generation of a manifest that was fetched.
    fn generation(&self, manifest: &[u8], uuid: [u8; 16]) -> u64 {
        let of = |generation: &u64| Manifest::decode(manifest, uuid, *generation).is_ok();
        (1..).find(of).unwrap()
    }

    /// Checks that exactly the files of the complete list are there, with the bytes that they have in the store.
    fn check(&self, snapshot: &Snapshot) {
        let all = snapshot.replica_files(None).unwrap();
        assert!(all.is_complete);
        assert_eq!((&all.format, Some(&all.manifest)), (&self.format, self.manifest.as_ref()));
        let paths = |keys: &mut dyn Iterator<Item = &FileKey>| keys.map(|key| key.path()).collect::<Vec<_>>();
        assert_eq!(paths(&mut self.files.keys()), paths(&mut all.needed.keys()));
        for (key, file) in all.needed {
            assert!(read(snapshot, key, file.length_bytes) == **self.files[&key], "{}", key.path());
        }
    }

    /// Checks that the files are a whole store, with the same tags and states.
    fn check_store(&self, store: &Store) {
        let mut files = MemoryFiles::default();
        let generation = store.generation();
        files.0.insert("FORMAT".to_owned(), Arc::new(self.format.clone()));
        let manifest = Arc::new(self.manifest.clone().unwrap());
        files.0.insert(format!("meta/{generation:016x}.man"), manifest);
        files.0.extend(self.files.iter().map(|(key, bytes)| (key.path(), Arc::clone(bytes))));
        let there = StoreOptions::new().open_files(Arc::new(files), "memory").unwrap();
        let verified = there.verify(|_| ()).unwrap();
        let here = store.verify(|_| ()).unwrap();
        assert_eq!(verified.findings, here.findings);
        assert!(here.findings.is_empty(), "{:?}", here.findings);
        assert_eq!(there.log().unwrap(), store.log().unwrap());
        let tags = store.tags().unwrap();
        for snapshots in tags.iter().map(|tag| [store, &there].map(|store| store.at(&*tag.name).unwrap())) {
            let states = snapshots.map(|snapshot| {
                let loaded = snapshot.iter_loaded("").unwrap().map(Result::unwrap);
                loaded.map(|(name, tensor)| (name, tensor.to_bytes().unwrap())).collect::<Vec<_>>()
            });
            assert!(states[0] == states[1]);
        }
        // It can be copied on, as it was copied here.
        let copied = there.snapshot().replica_files(None).unwrap();
        assert_eq!(copied, store.snapshot().replica_files(None).unwrap());
    }
}

struct Play {
    random: Random,
    store: Store,
    held: Vec<Snapshot>,
    counter: i32,
}

impl Play {
    fn name(&mut self) -> &'static str {
        self.random.pick(&NAMES[..5]).unwrap()
    }

    /// Returns elements that have no full chunk, one, or several.
    fn elements(&mut self) -> Vec<i32> {
        let count = match self.random.below(8u32) {
            0 => MIB / 4,
            1 => MIB / 4 + self.random.below(MIB / 2),
            _ => 1 + self.random.below(3000usize),
        };
        self.counter += 1;
        (0..count as i32).map(|i| self.counter.wrapping_mul(7919) ^ i).collect()
    }

    fn write(&self, change: impl FnOnce(&mut stridemap::Transaction<'_>) -> Result<()>) {
        let written = self.store.write(|txn| {
            txn.on_existing(OnExisting::Replace);
            change(txn)
        });
        match written {
            // A random name or tag is not there.
            Err(e) if e.kind() == ErrorKind::NameNotFound => {}
            written => written.map(|_| ()).unwrap(),
        }
    }

    fn step(&mut self) {
        let (name, tag) = (self.name(), format!("t{}", self.random.below(8u32)));
        match self.random.below(100u32) {
            0..16 => {
                let (elements, is_tagged) = (self.elements(), self.random.one_in(4));
                self.write(|txn| {
                    txn.save(name, &elements)?;
                    if is_tagged { txn.tag(&tag) } else { Ok(()) }
                });
            }
            16..34 => {
                let (name, rows) = (*self.random.pick(&NAMES[5..]).unwrap(), self.elements());
                if !self.store.contains(name).unwrap() {
                    self.store.create_growable(name, DType::I32, &[0], 1 << 22).unwrap();
                }
                match self.store.append(name, &rows) {
                    // A view of earlier rows reaches further, after a restore.
                    Err(e) if e.to_string().contains("follows it in the same storage") => {}
                    appended => drop(appended.unwrap()),
                }
            }
            34..39 => self.write(|txn| txn.remove(name)),
            39..43 => {
                let name = *self.random.pick(&NAMES[5..]).unwrap();
                self.write(|txn| txn.remove(name));
            }
            43..46 => {
                let other = self.name();
                if other != name {
                    self.write(|txn| txn.rename(name, other));
                }
            }
            46..50 => {
                let view = self.store.load(name).and_then(|tensor| tensor.narrow(0, 0, tensor.numel() / 2));
                if let Ok(view) = view {
                    let name = self.name();
                    self.store.save_view(name, &view).unwrap();
                }
            }
            50..54 => {
                let (elements, is_live) = (self.elements(), self.random.one_in(2));
                let kind = if is_live { StorageKind::Live } else { StorageKind::Mutable };
                self.write(|txn| txn.save_as("in place", &elements, kind));
            }
            54..60 => {
                let in_place = self.store.load("in place");
                if let Ok(mut guard) =
                    in_place.as_ref().map_err(Clone::clone).and_then(|x| x.lock_exclusive())
                {
                    guard.fill_(self.counter).unwrap();
                    self.counter += 1;
                }
            }
            60..68 => self.write(|txn| txn.tag(&tag)),
            68..72 => {
                let held = self.random.pick(&self.held).cloned();
                if let Some(held) = held {
                    self.write(|txn| txn.tag_snapshot(&tag, &held));
                }
            }
            72..79 => self.write(|txn| txn.untag(&tag)),
            79..85 => {
                if let Ok(snapshot) = self.store.at(&*tag) {
                    let prefix = if self.random.one_in(3) { "m." } else { "" };
                    self.write(|txn| txn.restore(&snapshot, prefix));
                }
            }
            85..88 => drop(self.store.compact(true, |_| ()).unwrap()),
            88..93 => drop(self.store.gc().unwrap()),
            93..95 => {
                // Many changes, which make new tables soon.
                let (first, many) = (self.counter, 50 + self.random.below(400));
                self.counter += many;
                self.write(|txn| {
                    txn.save("one", &first)?;
                    (0..many).try_for_each(|i| txn.copy("one", &format!("many {}", (first + i) % 2000)))
                });
            }
            95..98 if self.held.len() < 3 => {
                let options = StoreOptions::new().durability(Durability::Process);
                self.held.push(options.open(self.store.path()).unwrap().snapshot());
            }
            _ => {
                let at = self.random.below(self.held.len().max(1));
                if at < self.held.len() {
                    drop(self.held.swap_remove(at));
                }
            }
        }
    }
}

#[test]
fn replica_that_follows_the_changes_has_exactly_the_files_of_the_complete_list() {
    let operations = std::env::var("STRIDEMAP_TEST_REPLICA_OPERATIONS");
    let operations: u32 = operations.map_or(800, |count| count.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::new().durability(Durability::Process);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let random = Random::new(Random::seed("replica"));
    let mut play = Play { random, store, held: Vec::new(), counter: 0 };
    let mut replica = Replica::default();
    for operation in 0..operations {
        play.step();
        // Some pushes come after several commits.
        if play.random.one_in(2) {
            let snapshot = play.store.snapshot();
            replica.follow(&snapshot);
            replica.check(&snapshot);
        }
        if operation % 50 == 49 {
            let snapshot = play.store.snapshot();
            replica.follow(&snapshot);
            replica.check_store(&play.store);
        }
    }
    let Replica { complete_count, partial_count, removed_count, .. } = replica;
    println!("{complete_count} complete lists, {partial_count} of changes, {removed_count} files removed");
    assert!(complete_count > 1 && partial_count > 10 * complete_count && removed_count > 100);
}

/// Many generations need one table, and tags come and go.
#[test]
fn table_is_removed_with_the_last_tag_that_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::new().durability(Durability::Process);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let mut replica = Replica::default();
    let save_many = |prefix: &str| {
        store
            .write(|txn| {
                txn.save(prefix, &1i32)?;
                (0..3000).try_for_each(|i| txn.copy(prefix, &format!("{prefix}{i}")))
            })
            .unwrap();
    };
    let tables = |replica: &Replica| replica.files.keys().filter(|key| key.path().ends_with(".tab")).count();
    let mut push = || {
        let snapshot = store.snapshot();
        replica.follow(&snapshot);
        replica.check(&snapshot);
        (tables(&replica), replica.partial_count)
    };
    save_many("a");
    save_many("b");
    assert_eq!(push().0, 1);
    // The tags are of generations with one table, and a later table is written after both.
    let tagged = store.snapshot();
    for tag in ["first", "second"] {
        store.write(|txn| txn.tag_snapshot(tag, &tagged)).unwrap();
    }
    drop(tagged);
    save_many("c");
    save_many("d");
    store.save("x", &1i32).unwrap();
    let (before, partial) = push();
    assert_eq!(before, 2);
    store.untag("first").unwrap();
    assert_eq!(push(), (2, partial + 1));
    store.untag("second").unwrap();
    assert_eq!(push(), (1, partial + 2));
    let _ = store.gc().unwrap();
    assert_eq!(push(), (1, partial + 3));
    let kept = fs::read_dir(store.path().join("generations")).unwrap().count();
    assert_eq!(kept, 1);
}
