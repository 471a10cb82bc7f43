//! Operations on all tensors with a prefix, and several changes in one commit.

use stridemap::{Error, ErrorKind, Result, Store, Tensor, Transaction};

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
        let loaded: Result<Vec<String>> =
            txn.iter_loaded(prefix).unwrap().map(|entry| Ok(entry?.0)).collect();
        for names in [seen, drafted, loaded] {
            assert_eq!(names.unwrap(), expected);
        }
    }
}

#[test]
fn transaction_lists_loads_and_removes_its_own_tensors() {
    let dir = temporary();
    let store = store_of(&dir, &["a.0", "b"]);
    store
        .write(|txn| -> Result<()> {
            txn.save("a.1", &7i64)?;
            assert!(txn.contains("a.1")? && !store.contains("a.1")?);
            let items = txn.iter_loaded("a.")?.map(|entry| entry?.1.item::<i64>());
            assert_eq!(items.collect::<Result<Vec<_>>>()?, [0, 7]);
            assert_eq!(txn.remove_prefix("a.")?, 2);
            assert_eq!(txn.remove_prefix("a.")?, 0);
            Ok(())
        })
        .unwrap();
    assert_eq!(content(&store), named(&[("b", 1)]));
}

#[test]
fn renames_of_a_prefix_may_swap_names() {
    let dir = temporary();
    let store = store_of(&dir, &["a", "aa", "aaa", "b"]);
    assert_eq!(store.write(|txn| txn.rename_prefix("a", "aa")).unwrap(), 3);
    assert_eq!(content(&store), named(&[("aa", 0), ("aaa", 1), ("aaaa", 2), ("b", 3)]));
    assert_eq!(store.write(|txn| txn.rename_prefix("aa", "a")).unwrap(), 3);
    assert_eq!(content(&store), named(&[("a", 0), ("aa", 1), ("aaa", 2), ("b", 3)]));
    assert_eq!(store.write(|txn| txn.rename_prefix("a", "a")).unwrap(), 3);
    assert_eq!(store.write(|txn| txn.rename_prefix("c", "d")).unwrap(), 0);
    let generation = store.generation();
    assert_refused(
        store.write(|txn| txn.rename_prefix("a", &"long".repeat(2000))),
        ErrorKind::InvalidArgument,
        &["rename_prefix"],
    );
    assert_eq!((store.generation(), content(&store).len()), (generation, 4));
}

#[test]
fn prefix_changed_by_another_writer_is_a_conflict() {
    let dir = temporary();
    let store = store_of(&dir, &["a.0", "a.1"]);
    let changed = |change: &dyn Fn(&mut Transaction<'_>) -> Result<usize>| {
        store.write(|txn| -> Result<usize> {
            let count = change(txn)?;
            store.remove("a.1")?;
            Ok(count)
        })
    };
    assert_eq!(changed(&|txn| txn.remove_prefix("a.")).unwrap_err().kind(), ErrorKind::Conflict);
    store.save("a.1", &1i64).unwrap();
    assert_eq!(changed(&|txn| txn.rename_prefix("a.", "b.")).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(content(&store), named(&[("a.0", 0)]));
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
