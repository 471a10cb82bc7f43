//! Replicas: stores that receive generations of the same store elsewhere.

mod creating;
mod random;
mod receiving;
mod refused;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use stridemap::replica::{ReceiveOptions, Received};
use stridemap::{DType, Snapshot, StorageKind, Store};

use crate::harness::{arange, fast};

/// Creates a replica beside a store.
fn replica_of(store: &Store, path: &Path) -> Store {
    fast().create_replica(path, &store.latest().unwrap(), &ReceiveOptions::default()).unwrap().0
}

/// Receives the newest generation of a store into a replica that is at an earlier one of it.
fn receive(replica: &Store, from: &Store) -> stridemap::Result<Received> {
    let base = replica.latest()?.id()?;
    replica.receive(&from.latest()?, Some(base), &ReceiveOptions::default())
}

/// The tensors of a generation: sizes and elements.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn tensors(snapshot: &Snapshot) -> Tensors {
    let names = snapshot.names().unwrap().into_iter();
    let entry = |name: String| {
        let tensor = snapshot.load(&name).unwrap();
        let elements = tensor.to_bytes().unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, (tensor.size().to_vec(), elements))
    };
    names.map(entry).collect()
}

/// Checks that a replica has the newest generation of a store, and all that its tags keep.
#[track_caller]
fn assert_same(replica: &Store, store: &Store) {
    let (own, other) = (replica.latest().unwrap(), store.latest().unwrap());
    assert_eq!(own.id().unwrap(), other.id().unwrap());
    assert!(tensors(&own) == tensors(&other));
    assert_eq!(replica.attributes(""), store.attributes(""));
    assert_eq!(replica.tags().unwrap(), store.tags().unwrap());
    assert_eq!(replica.log().unwrap(), store.log().unwrap());
    for tag in store.tags().unwrap() {
        let (own, other) = (replica.at(&*tag.name).unwrap(), store.at(&*tag.name).unwrap());
        assert_eq!(own.id().unwrap(), other.id().unwrap(), "{}", tag.name);
        assert!(tensors(&own) == tensors(&other), "{}", tag.name);
    }
    let verified = replica.verify(|_| ()).unwrap();
    assert!(verified.is_whole(), "{:?}", verified.findings);
}

/// Returns the files in a directory of a store, with their lengths.
fn files(store: &Store, dir: &str) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(store.path().join(dir)).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())).collect()
}

/// Returns a store with tensors of each kind that a replica can have, a tag and garbage that the tag keeps.
fn filled_store(path: &Path) -> Store {
    let store = fast().create(path).unwrap();
    store.save("chunked", &arange(&[300_000])).unwrap();
    store.save("replaced", &arange(&[10])).unwrap();
    store.write(|txn| txn.save_as("mutable", &arange(&[5]), StorageKind::Mutable)).unwrap();
    store.write(|txn| txn.save_as("live", &arange(&[5]), StorageKind::Live)).unwrap();
    store.create_growable("log", DType::I64, &[0], 1000).unwrap();
    store.append("log", &arange(&[140_000])).unwrap();
    store.tag("v1").unwrap();
    store.save("replaced", &arange(&[11])).unwrap();
    store.write(|txn| txn.set_attribute("", "key", "value")).unwrap();
    store
}

/// Returns a store, and a replica of it.
fn pair(dir: &Path) -> (Store, Store) {
    let store = filled_store(&dir.join("a.smap"));
    let replica = replica_of(&store, &dir.join("b.smap"));
    (store, replica)
}
