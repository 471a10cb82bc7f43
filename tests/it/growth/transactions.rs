//! Appends in transactions.

use super::{BIN, MIB, SUM, bytes_of, rows};
use crate::harness::{assert_refused, new_fast_store};
use stridemap::{DType, ErrorKind, OnExisting, Store};

#[test]
fn transaction_appends_repeatedly_to_several_tensors_with_other_changes() {
    let (_dir, path, store) = new_fast_store();
    let element = |i: usize| i as i32;
    for name in ["x", "y"] {
        store.create_growable(name, DType::I32, &[0, 3], 100).unwrap();
        store.append(name, &rows(0, 2, &[3], element)).unwrap();
    }
    let generation = store.generation();
    let mut txn = store.begin().unwrap();
    assert_eq!(txn.append("x", &rows(2, 400_000, &[3], element)).unwrap(), 2..400_002);
    txn.append("y", &rows(2, 5, &[3], element)).unwrap();
    txn.rename("x", "z").unwrap();
    txn.append("z", &rows(400_002, 1, &[3], element)).unwrap();
    txn.save("other", &rows(0, 1, &[3], element)).unwrap();
    assert_refused(txn.load("z"), ErrorKind::Unsupported, &["\"z\"", "commit first"]);
    let staged = txn.append("other", &rows(0, 1, &[3], element));
    assert_refused(staged, ErrorKind::Unsupported, &["\"other\"", "commit first"]);
    // Another writer commits first. This thread's own append would wait for itself.
    let other = Store::open(&path).unwrap();
    other.save("elsewhere", &rows(0, 1, &[3], element)).unwrap();
    let busy = other.append("x", &rows(2, 1, &[3], element));
    assert_refused(busy, ErrorKind::Busy, &["this thread", "commit or drop the transaction"]);
    txn.commit().unwrap();
    assert_eq!(store.generation(), generation + 2, "one commit");
    assert_eq!(store.names().unwrap(), ["elsewhere", "other", "y", "z"]);
    let expected = |count| rows(0, count, &[3], element).read::<i32>().unwrap();
    assert!(store.load("z").unwrap().read::<i32>().unwrap() == expected(400_003));
    assert_eq!(store.load("y").unwrap().read::<i32>().unwrap(), expected(7));
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn dropped_transaction_truncates_the_rows_it_appended() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, MIB + 10, &[], |i| i as u8)).unwrap();
    let before = (bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM)));
    let mut txn = store.begin().unwrap();
    txn.append("x", &rows(0, 3 * MIB, &[], |i| i as u8)).unwrap();
    assert!(bytes_of(&path.join(BIN)) > before.0);
    drop(txn);
    assert_eq!((bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM))), before);
    store.append("x", &rows(MIB + 10, 1, &[], |i| i as u8)).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn append_to_a_name_that_another_writer_changed_is_a_conflict() {
    let (_dir, path, store) = new_fast_store();
    let row = || rows(0, 1, &[], |i| i as u8);
    let create_again = |name: &str| {
        store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                txn.create_growable(name, DType::U8, &[0], 0)
            })
            .unwrap();
    };
    let changes: [fn(&Store); 3] = [
        |other| other.rename("x", "moved").unwrap(),
        |other| other.remove("x").unwrap(),
        |other| other.save("x", &rows(0, 1, &[], |i| i as u8)).unwrap(),
    ];
    for change in changes {
        create_again("x");
        let mut txn = store.begin().unwrap();
        txn.append("x", &row()).unwrap();
        change(&Store::open(&path).unwrap());
        let refused = txn.commit().map(drop);
        assert_refused(refused, ErrorKind::Conflict, &["\"x\""]);
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
        store.refresh().unwrap();
    }
    // A conflict is only a change to the same name.
    create_again("x");
    let mut txn = store.begin().unwrap();
    txn.append("x", &row()).unwrap();
    Store::open(&path).unwrap().write(|txn| txn.copy("x", "empty")).unwrap();
    txn.commit().unwrap();
    assert_eq!(store.load("x").unwrap().size(), [1]);
    assert_eq!(store.load("empty").unwrap().size(), [0]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
