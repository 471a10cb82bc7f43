//! Tags, earlier generations, and restores.

use std::path::{Path, PathBuf};
use std::{fs, thread};

use stridemap::{Store, Tensor};

use crate::harness::filled;

mod appends;
mod copies;
mod differences;
mod durability;
mod fixed;
mod in_place;
mod methods;
mod processes;
mod removals;
mod restores;
mod salvages;
mod space;
mod verify;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    processes::run_role(role, path) || copies::run_role(role, path)
}

/// Saves a name in a commit of its own that makes a tag.
fn save_tagged(store: &Store, name: &str, tensor: &Tensor, tag: &str) {
    store
        .write(|txn| {
            txn.save(name, tensor)?;
            txn.tag(tag)
        })
        .unwrap();
}

/// Returns the names of the tags, in the order of [`Store::tags`].
fn tag_names(store: &Store) -> Vec<String> {
    store.tags().unwrap().into_iter().map(|tag| tag.name).collect()
}

fn first_of(store: &Store, at: &str, name: &str) -> i64 {
    store.at(at).unwrap().load(name).unwrap().read::<i64>().unwrap()[0]
}

/// Returns the files with this ending in a directory of a store, in ascending order.
pub(crate) fn files(path: &Path, dir: &str, ending: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(path.join(dir)).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|file| file.extension().is_some_and(|it| it == ending)).collect();
    all.sort();
    all
}

/// Saves names that only a table has room for, each a view of one row.
fn save_many(store: &Store, prefix: &str, count: usize) {
    if !store.contains("row").unwrap() {
        store.save("row", &filled(4, 1i64)).unwrap();
    }
    let row = store.load("row").unwrap();
    store.write(|txn| (0..count).try_for_each(|i| txn.save_view(&format!("{prefix}{i:04}"), &row))).unwrap();
}

/// Runs something on a thread of its own, which holds no lock of this one.
fn on_another_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(run).join().unwrap()
}
