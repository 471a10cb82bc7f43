//! Compaction on a full disk.

use super::{assert_intact, content, storage_bytes, vector};
use crate::harness::fast;
use crate::harness::small_disk::SmallDisk;
use std::path::Path;
use std::{fs, io};
use stridemap::{ErrorKind, Store};

#[test]
fn full_disk_during_compaction_leaves_the_store_intact() {
    let Some(disk) = SmallDisk::mount("10m") else { return };
    let path = disk.path.join("x.smap");
    let store = Store::create(&path).unwrap();
    // Two storages of 4 MiB, each half referenced. The free space does not suffice to copy one of the halves.
    for i in 0..2 {
        store.save("all", &vector(1 << 20, i)).unwrap();
        let all = store.load("all").unwrap().view([1 << 10, 1 << 10]).unwrap();
        store.save_view(&format!("half.{i}"), &all.slice(0, None, None, 2).unwrap()).unwrap();
    }
    store.remove("all").unwrap();
    store.gc().unwrap();
    let before = content(&store);
    let filler = disk.path.join("filler");
    fs::write(&filler, vec![0; 1 << 20]).unwrap();
    let full = store.compact(false, |_| ()).unwrap_err();
    let cause = full.io_error().unwrap();
    assert_eq!((full.kind(), cause.kind()), (ErrorKind::Io, io::ErrorKind::StorageFull), "{full}");
    assert_eq!(content(&store), before);
    assert_eq!(storage_bytes(&path), (8 << 20) + 2 * 4 * 16, "the staged file still exists");
    assert_intact(&store);
    fs::remove_file(filler).unwrap();
}

#[test]
fn nearly_full_disk_is_compacted_in_several_steps() {
    let Some(disk) = SmallDisk::mount("50m") else { return };
    disk.run_role("compact.nearly full");
}

/// The same in several steps, on the small disk at this path.
pub(super) fn compact_bit_by_bit(disk: &Path) {
    let path = disk.join("x.smap");
    let store = fast().create(&path).unwrap();
    // 40 MiB; tensors refer to 27 MiB of it. There is room for one copy at first, but not for all.
    for i in 0..8 {
        let rows = vector(5 << 18, i).view([5 << 10, 1 << 8]).unwrap();
        store.save("all", &rows).unwrap();
        store
            .save_view(&format!("part.{i}"), &store.load("all").unwrap().narrow(0, 0, 3500).unwrap())
            .unwrap();
    }
    store.remove("all").unwrap();
    store.gc().unwrap();
    fs::write(disk.join("filler"), vec![0; 5 << 20]).unwrap();
    let (before, generation) = (content(&store), store.generation());
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes), (8, 8 * 3500 * 1024), "{compacted:?}");
    assert!(store.generation() > generation + 1, "there was room for all");
    assert_eq!(content(&store), before);
    assert_intact(&store);
}
