//! Lists of the tensors with a prefix, and several changes in one commit.

use stridemap::{Error, ErrorKind, Result, Store, Tensor};

use crate::harness::assert_refused;
use crate::support::temporary;

/// Creates a store with a scalar for each name, whose value is the name's position.
fn store_of(dir: &tempfile::TempDir, names: &[&str]) -> Store {
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.write(|txn| (0i64..).zip(names).try_for_each(|(i, name)| txn.save(name, &i))).unwrap();
    store
}

fn content(store: &Store) -> Vec<(String, i64)> {
    let item = |(name, tensor): (String, Tensor)| (name, tensor.item().unwrap());
    store.snapshot().iter_loaded("").unwrap().map(|entry| item(entry.unwrap())).collect()
}

fn named(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|&(name, i)| (name.to_owned(), i)).collect()
}

#[test]
fn transactions_and_snapshots_list_the_same_names() {
    let dir = temporary();
    let store = store_of(&dir, &["a.x", "a.y", "ab", "b"]);
    let (snapshot, txn) = (store.snapshot(), store.begin().unwrap());
    for prefix in ["", "a", "a.", "a.x", "c"] {
        let expected: Vec<&str> =
            ["a.x", "a.y", "ab", "b"].into_iter().filter(|name| name.starts_with(prefix)).collect();
        let seen: Result<Vec<String>> =
            snapshot.iter_tensors(prefix).unwrap().map(|info| Ok(info?.name)).collect();
        let drafted: Result<Vec<String>> =
            txn.iter_tensors(prefix).unwrap().map(|info| Ok(info?.name)).collect();
        for names in [seen, drafted] {
            assert_eq!(names.unwrap(), expected);
        }
    }
}

#[test]
fn write_commits_all_or_nothing_and_returns_the_value() {
    let dir = temporary();
    let store = store_of(&dir, &["x"]);
    let generation = store.generation();
    let refused = store.write(|txn| {
        txn.remove("x")?;
        Err::<(), _>(Error::new(ErrorKind::InvalidArgument, "on second thought"))
    });
    assert_refused(refused, ErrorKind::InvalidArgument, &["on second thought"]);
    assert_eq!((store.generation(), content(&store)), (generation, named(&[("x", 0)])));
    let value = store.write(|txn| -> Result<_> {
        txn.rename("x", "y")?;
        txn.save("x", &5i64)?;
        Ok("done")
    });
    assert_eq!(value.unwrap(), "done");
    assert_eq!((store.generation(), content(&store)), (generation + 1, named(&[("x", 5), ("y", 0)])));
}
