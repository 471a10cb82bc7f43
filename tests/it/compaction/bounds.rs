//! The file descriptors and reads of compactions of many storages.

use crate::harness::hooked::Hooked;
use std::path::Path;
use std::sync::Arc;

use stridemap::{Store, StoreOptions};

use crate::compaction::{assert_intact, fast, vector};
use crate::filesystems::limits::limited;
use crate::harness::new_path;
use crate::harness::processes::{OtherProcess, send_line};
use crate::support::temporary;

/// Not a test: runs the role of a started process.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "run short of descriptors" => {
            let store = fast().open(path).unwrap();
            let compacted = limited(libc::RLIMIT_NOFILE, 256, || store.compact(false, |_| ())).unwrap();
            send_line(format!("{} {:?}", compacted.storage_count, compacted.skipped));
        }
        _ => return false,
    }
    true
}

/// Creates a store with `count` storages of 20 KB, each with 40 referenced bytes, and with `names` tensors on one more
/// storage, which is large. Its last commit has many changes, and writes a table.
fn create_sparse_storages(path: &Path, count: usize, names: usize, options: &StoreOptions) -> Store {
    let store = options.create(path).unwrap();
    for i in 0..count {
        let mut txn = store.begin().unwrap();
        txn.save("all", &vector(5000, i as u32)).unwrap();
        let thin = txn.load("all").unwrap().narrow(0, 5, 10).unwrap();
        txn.save_view(&format!("thin.{i}"), &thin).unwrap();
        txn.commit().unwrap();
    }
    let mut txn = store.begin().unwrap();
    txn.save("all", &vector(1 << 20, 1)).unwrap();
    let all = txn.load("all").unwrap();
    (0..names).for_each(|i| txn.save_view(&format!("other.{i}"), &all).unwrap());
    txn.remove("all").unwrap();
    txn.commit().unwrap();
    store
}

#[test]
fn many_small_storages_take_few_descriptors() {
    let (_dir, path) = new_path();
    let store = create_sparse_storages(&path, 200, 0, &fast());
    let mut other = OtherProcess::start("run short of descriptors", &path);
    assert_eq!(other.read_line(), "200 []");
    other.assert_success();
    store.refresh().unwrap();
    for i in [0, 63, 64, 199] {
        let expected = vector(5000, i).narrow(0, 5, 10).unwrap();
        assert_eq!(
            store.load(&format!("thin.{i}")).unwrap().to_bytes().unwrap(),
            expected.to_bytes().unwrap()
        );
    }
    assert_intact(&store);
}

#[test]
fn names_on_other_storages_are_not_read_again_for_every_commit() {
    let dir = temporary();
    let disk = Hooked::default();
    let options = fast().disk(Arc::new(disk.clone()));
    // With this many names, the compaction's commits stay below the size that needs a new table.
    let store = create_sparse_storages(&dir.path().join("x.smap"), 193, 50_000, &options);
    let generation = store.generation();
    disk.take_counts();
    // The bytes read before each storage was written. A commit is before the last small one, and one before each of the two
    // that these have become is joined to the other.
    let mut read_bytes = Vec::new();
    let compacted =
        store.compact(false, |_| read_bytes.push(disk.take_counts().metadata_read_bytes)).unwrap();
    assert_eq!((compacted.storage_count, compacted.new_storage_count), (193, 1), "{compacted:?}");
    assert_eq!((read_bytes.len(), store.generation()), (193 + 2, generation + 3));
    let [first, .., second, third, _] = read_bytes[..] else { panic!("{read_bytes:?}") };
    println!(
        "{first} bytes of metadata before the first commit, {second} to the second, {third} to the third"
    );
    // Nodes of the table stay in memory, so later scans read none.
    assert!(first > 50_000 * 20, "{first} bytes for a scan of 50,000 names");
    assert!(second.max(third) < first / 8, "{second} and {third} bytes from one commit to the next");
}
