//! Stores and remotes for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use stridemap::{Snapshot, Store};
use stridemap_remote::{Done, Pulled, Pushed, Remote};

/// A directory for a test, and a remote of its own.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    pub(crate) remote: Remote,
}

impl Place {
    /// A remote in memory.
    pub(crate) fn in_memory() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let remote = Remote::open(&format!("memory://test{number}/model.smap")).unwrap();
        Place { dir: tempfile::tempdir().unwrap(), remote }
    }

    /// A remote in a directory.
    pub(crate) fn in_files() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let remote = Remote::open(&format!("file://{}/remote", dir.path().display())).unwrap();
        Place { dir, remote }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn create(&self, name: &str) -> Store {
        Store::create(self.path(name)).unwrap()
    }

    pub(crate) fn push(&self, store: &Store) -> Pushed {
        self.remote.push(store, &ignore).unwrap()
    }

    pub(crate) fn pull(&self, name: &str) -> Pulled {
        self.remote.pull(&self.path(name), &ignore).unwrap()
    }

    /// All objects of a remote in a directory, with their lengths.
    pub(crate) fn objects(&self) -> BTreeMap<PathBuf, u64> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.path("remote")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else {
                    found.insert(entry.path(), entry.metadata().unwrap().len());
                }
            }
        }
        found
    }
}

pub(crate) fn ignore(_: Done) -> stridemap::Result<()> {
    Ok(())
}

/// A tensor: its sizes, its strides, and its elements as bytes.
pub(crate) type Content = (Vec<usize>, Vec<isize>, Vec<u8>);

/// Everything that a generation says: tensors, attributes, time and message.
pub(crate) fn content_of(snapshot: &Snapshot) -> (BTreeMap<String, Content>, String) {
    let mut tensors = BTreeMap::new();
    for name in snapshot.names().unwrap() {
        let tensor = snapshot.load(&name).unwrap();
        let bytes = tensor.to_bytes().unwrap();
        tensors.insert(name, (tensor.size().to_vec(), tensor.stride().to_vec(), bytes));
    }
    let rest = format!("{:?} {:?} {:?}", snapshot.all_attributes(), snapshot.time(), snapshot.message());
    (tensors, rest)
}

/// Checks that two stores are the same: the newest generation, the log, and the generation of each tag.
#[track_caller]
pub(crate) fn assert_same(found: &Store, expected: &Store) {
    let (newest, expected_newest) = (found.latest().unwrap(), expected.latest().unwrap());
    assert_eq!(newest.generation(), expected_newest.generation());
    assert_eq!(content_of(&newest), content_of(&expected_newest));
    let described = |store: &Store| format!("{:?}", store.log().unwrap());
    assert_eq!(described(found), described(expected));
    for tag in expected.tags().unwrap() {
        let at = |store: &Store| content_of(&store.at(tag.name.as_str()).unwrap());
        assert_eq!(at(found), at(expected), "{}", tag.name);
    }
}

/// Checks that nothing about a store is damaged.
#[track_caller]
pub(crate) fn assert_whole(store: &Store) {
    let verification = store.verify(|_| ()).unwrap();
    assert!(verification.is_whole(), "{verification:?}");
}

pub(crate) fn open(path: &Path) -> Store {
    Store::open(path).unwrap()
}
