//! Changes between two snapshots.

use crate::harness::hooked::Hooked;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stridemap::{ErrorKind, OnExisting, Snapshot, Store};

use crate::harness::{assert_refused, fast, filled, new_fast_store, scalar};
use crate::support::temporary;

fn changes(earlier: &Snapshot, later: &Snapshot) -> [Vec<String>; 3] {
    let changes = later.changes_since(earlier).unwrap();
    assert_eq!(changes.is_empty(), changes == later.changes_since(later).unwrap());
    [changes.added, changes.changed, changes.removed]
}

#[test]
fn changes_between_snapshots_do_not_depend_on_their_tables() {
    let (dir, _, store) = new_fast_store();
    store.save("base", &filled(10, 0i64)).unwrap();
    let base = store.load("base").unwrap();
    let mut snapshots = vec![store.snapshot()];
    // Few names without a table, then enough for a first table, some changes to it, and many again.
    for (round, count) in [3u32, 200, 3, 5, 150].into_iter().enumerate() {
        let mut txn = store.begin().unwrap();
        txn.on_existing(OnExisting::Replace);
        for i in 0..count {
            txn.save(&format!("{}", i * 7 % 211), &scalar(0)).unwrap();
        }
        txn.save_view("view", &base.narrow(0, round as isize, 1).unwrap()).unwrap();
        if round > 0 {
            txn.remove("7").unwrap();
            txn.rename("14", &format!("moved.{round}")).unwrap();
        }
        if round > 2 {
            txn.copy("21", "copy").unwrap();
        }
        txn.commit().unwrap();
        snapshots.push(store.snapshot());
    }
    let content = |snapshot: &Snapshot| -> BTreeMap<String, (u64, usize)> {
        let infos = snapshot.iter_tensors("").unwrap().map(Result::unwrap);
        infos.map(|info| (info.name.clone(), (info.storage_id, info.header.storage_offset()))).collect()
    };
    for earlier in &snapshots {
        for later in &snapshots {
            let (before, after) = (content(earlier), content(later));
            let [mut added, mut changed, mut removed] = [const { Vec::new() }; 3];
            for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                match (before.get(name), after.get(name)) {
                    (None, _) => added.push(name.clone()),
                    (_, None) => removed.push(name.clone()),
                    (before, after) if before != after => changed.push(name.clone()),
                    _ => {}
                }
            }
            assert_eq!(changes(earlier, later), [added, changed, removed]);
        }
    }
    let other = Store::create(dir.path().join("y.smap")).unwrap().snapshot();
    assert_refused(
        snapshots[1].changes_since(&other),
        ErrorKind::InvalidArgument,
        &["y.smap", "x.smap", "a different store"],
    );
}

#[test]
fn comparing_snapshots_of_one_table_reads_only_the_changes() {
    let dir = temporary();
    let disk = Hooked::default();
    let store = fast().disk(Arc::new(disk.clone())).create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    (0..5000).for_each(|i| txn.save(&format!("name.{i}"), &scalar(i)).unwrap());
    txn.commit().unwrap();
    let earlier = store.snapshot();
    store.remove("name.77").unwrap();
    store.save("new", &scalar(1)).unwrap();
    let later = store.snapshot();
    disk.take_counts();
    let changed = [vec!["new".to_owned()], vec![], vec!["name.77".to_owned()]];
    assert_eq!(changes(&earlier, &later), changed);
    let counts = disk.take_counts();
    assert!(counts.metadata_read_bytes < 20_000, "{counts:?}");
}
