//! Changes that are refused if a name exists. The other processes are this test binary, started again.

use std::path::Path;

use stridemap::{DType, ErrorKind, OnExisting, Result, StorageKind, Store};

use crate::harness::processes::{send_line, start_together, wait_for_line};
use crate::harness::{assert_refused, fast, new_fast_store, new_store};

const NEW_NAMES: usize = 40;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "save new names" => {
            let store = fast().open(path).unwrap();
            send_line("ready");
            wait_for_line();
            let mut won = 0;
            for i in 0..NEW_NAMES {
                match save_new(&store, &format!("name.{i}"), i64::from(std::process::id())) {
                    Ok(()) => won += 1,
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NameExists, "{e}"),
                }
            }
            send_line(won);
        }
        _ => return false,
    }
    true
}

/// Saves a scalar unless its name exists.
fn save_new(store: &Store, name: &str, value: i64) -> Result<()> {
    store.write(|txn| {
        txn.on_existing(OnExisting::Refuse);
        txn.save(name, &value)
    })
}

#[test]
fn only_one_of_several_processes_saves_a_new_name() {
    let (_dir, path, store) = new_fast_store();
    let mut won = 0;
    for mut player in start_together("save new names", &path, 4) {
        won += player.read_line().parse::<usize>().unwrap();
        player.assert_success();
    }
    assert_eq!(won, NEW_NAMES);
    store.refresh().unwrap();
    assert_eq!(store.names().unwrap().len(), NEW_NAMES);
    assert_eq!(store.generation(), 1 + NEW_NAMES as u64, "a save that lost was committed");
}

#[test]
fn saving_a_new_name_is_refused_if_it_exists_or_another_commits_it_first() {
    let (_dir, path, store) = new_store();
    store.save("x", &1i64).unwrap();
    let parts = ["save \"x\"", "the name exists", "choose a different one", "Transaction::on_existing"];
    assert_refused(save_new(&store, "x", 2), ErrorKind::NameExists, &parts);
    let mut txn = store.begin().unwrap();
    txn.on_existing(OnExisting::Refuse);
    txn.save("y", &2i64).unwrap();
    // The setting applies to later changes.
    txn.on_existing(OnExisting::Replace);
    txn.save("x", &3i64).unwrap();
    Store::open(&path).unwrap().save("y", &9i64).unwrap();
    assert_refused(txn.commit(), ErrorKind::NameExists, &["another commit, generation 3", "\"y\""]);
    store.refresh().unwrap();
    assert_eq!(store.load("x").unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(store.load("y").unwrap().item::<i64>().unwrap(), 9);
}

#[test]
fn creating_a_tensor_refuses_an_existing_name_unless_told_to_replace() {
    let (_dir, _, store) = new_store();
    store.create_growable("log", DType::U8, &[0], 10).unwrap();
    store.append("log", &[1u8, 2]).unwrap();
    let generation = store.generation();
    let create = || store.create_tensor("log", DType::U8, &[3], StorageKind::Mutable).map(drop);
    let grow = || store.create_growable("log", DType::U8, &[0], 10);
    assert_refused(create(), ErrorKind::NameExists, &["create_tensor \"log\": the name exists"]);
    assert_refused(grow(), ErrorKind::NameExists, &["create_growable \"log\": the name exists"]);
    assert_eq!(
        (store.generation(), store.load("log").unwrap().read::<u8>().unwrap()),
        (generation, vec![1, 2])
    );
    store
        .write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.create_growable("log", DType::U8, &[0], 10)
        })
        .unwrap();
    assert_eq!(store.load("log").unwrap().size(), [0]);

    let mut overtaken = store.begin().unwrap();
    overtaken.create_growable("new", DType::U8, &[0], 10).unwrap();
    store.save("new", &9i64).unwrap();
    let says = ["another commit", "create_growable \"new\": the name exists"];
    assert_refused(overtaken.commit(), ErrorKind::NameExists, &says);
}

#[test]
fn renames_and_copies_refuse_an_existing_name_unless_told_to_replace() {
    let (_dir, _, store) = new_store();
    store
        .write(|txn| ["a", "b", "c.a", "d.a"].iter().zip(0i64..).try_for_each(|(name, i)| txn.save(name, &i)))
        .unwrap();
    let generation = store.generation();
    assert_refused(store.rename("a", "b"), ErrorKind::NameExists, &["rename to \"b\""]);
    assert_refused(store.write(|txn| txn.copy("a", "b")), ErrorKind::NameExists, &["copy to \"b\""]);
    store.rename("a", "a").unwrap();
    assert_eq!(store.generation(), generation);

    let mut overtaken = store.begin().unwrap();
    overtaken.rename("a", "new").unwrap();
    store.save("new", &9i64).unwrap();
    assert_refused(overtaken.commit(), ErrorKind::NameExists, &["another commit"]);

    let replaced = store.write(|txn| {
        txn.on_existing(OnExisting::Replace);
        txn.copy("a", "new")?;
        txn.rename("a", "b")?;
        txn.rename("c.a", "d.a")
    });
    replaced.unwrap();
    let snapshot = store.snapshot();
    let loaded = snapshot.iter_loaded("").unwrap().map(Result::unwrap);
    let items = loaded.map(|(name, tensor)| (name, tensor.item::<i64>().unwrap()));
    let expected = [("b", 0), ("d.a", 2), ("new", 0)].map(|(name, i)| (name.to_owned(), i));
    assert_eq!(items.collect::<Vec<_>>(), expected);
}

#[test]
fn stores_and_transactions_return_the_tensor_they_create() {
    let (_dir, _, store) = new_store();
    let zeros = store.create_tensor("zeros", DType::I64, &[2], StorageKind::Live).unwrap();
    assert_eq!((zeros.read::<i64>().unwrap(), zeros.storage_id()), (vec![0, 0], Some(1)));
    let sizes = store.write(|txn| -> Result<_> {
        let counts = txn.create_tensor("counts", DType::I64, &[2, 3], StorageKind::Mutable)?;
        txn.save_view("row", &counts.select(0, 1)?)?;
        txn.create_growable("rows", DType::F32, &[0, 4], 0)?;
        Ok(counts.size().to_vec())
    });
    assert_eq!(sizes.unwrap(), [2, 3]);
    store.load("row").unwrap().lock_exclusive().unwrap().fill_(1).unwrap();
    assert_eq!(store.load("counts").unwrap().read::<i64>().unwrap(), [0, 0, 0, 1, 1, 1]);
    assert_eq!(store.append("rows", &[[1f32; 4]]).unwrap(), 0..1);
}
