//! How much is asked of files that are far away.

use std::ops::Range;

use stridemap::Tensor;

use super::{bytes, fill_tables, open};
use crate::files::{MemoryFiles, Recorded};
use crate::harness::{filled, new_fast_store};

const MIB: u64 = 1 << 20;

#[test]
fn opening_and_loading_one_of_many_tensors_reads_few_nodes() {
    let (_dir, path, store) = new_fast_store();
    fill_tables(&store);
    let files = Recorded::new(MemoryFiles::of(&path));
    let there = open(files.clone());
    let opened = files.take();
    assert_eq!(opened.listed, ["meta"]);
    // FORMAT, the manifest, the table and the history.
    assert_eq!(opened.opened.len(), 4, "{opened:?}");
    assert!(opened.read.len() <= 4, "{opened:?}");
    let tensor = there.load("many.01234.1").unwrap();
    assert_eq!(tensor.get::<i64>([0]).unwrap(), 1234);
    let loaded = files.take();
    assert_eq!(loaded.opened.len(), 1, "{loaded:?}");
    // Two levels below the roots, and the element.
    assert!(loaded.read.len() <= 5, "{loaded:?}");
    assert!(loaded.announced.is_empty(), "{loaded:?}");
    let table_bytes = loaded.read_bytes();
    assert!(table_bytes < 6 * 4096, "{loaded:?}");
    // A second load of the same storage opens nothing.
    drop(there.load("many.01234.1").unwrap());
    assert_eq!((files.take().opened.len(), there.load("many.00001.2").is_ok()), (0, true));
}

#[test]
fn scan_of_a_table_announces_leaves() {
    let (_dir, path, store) = new_fast_store();
    fill_tables(&store);
    let files = Recorded::new(MemoryFiles::of(&path));
    let there = open(files.clone());
    files.take();
    assert_eq!(there.names().unwrap().len(), store.names().unwrap().len());
    let scanned = files.take();
    let table_reads = scanned.read.iter().filter(|(name, _)| name.ends_with(".tab"));
    let is_announced = |read: &Range<u64>| {
        scanned.announced.iter().any(|(_, range)| range.start <= read.start && read.end <= range.end)
    };
    let (announced, others): (Vec<_>, Vec<_>) = table_reads.partition(|(_, range)| is_announced(range));
    assert!(announced.len() > 30 && others.len() <= 4, "{scanned:?}");
    assert!(scanned.announced.len() < 10, "{scanned:?}");
}

fn announced_before_reads(files: &Recorded, view: &Tensor, expected: &Tensor) -> Vec<Range<u64>> {
    files.take();
    assert!(bytes(view) == bytes(expected));
    let log = files.take();
    assert!(log.read.iter().all(|(_, range)| range.end - range.start <= 4 * MIB), "{:?}", log.read.len());
    let announced: Vec<Range<u64>> = log.announced.into_iter().map(|(_, range)| range).collect();
    for (_, read) in &log.read {
        let covered = |at: u64| announced.iter().any(|range| range.contains(&at));
        assert!(covered(read.start) && covered(read.end - 1), "{read:?} is not announced");
    }
    announced
}

#[test]
fn bulk_reads_are_announced_in_ranges_of_4_mib() {
    let (_dir, path, store) = new_fast_store();
    let values: Vec<i32> = (0..6 << 20).collect();
    store.save("x", &Tensor::from_vec(values, &[6 << 10, 1 << 10]).unwrap()).unwrap();
    let files = Recorded::new(MemoryFiles::of(&path));
    let there = open(files.clone());
    let [here, far] = [&store, &there].map(|store| store.load("x").unwrap());
    let whole: Vec<Range<u64>> = (0..6).map(|block| block * 4 * MIB..(block + 1) * 4 * MIB).collect();
    assert_eq!(announced_before_reads(&files, &far, &here), whole);
    let transposed = announced_before_reads(&files, &far.t().unwrap(), &here.t().unwrap());
    assert!(transposed.len() <= 8, "{transposed:?}");
    // Rows that are 256 KiB apart are joined, rows that are 1 MiB apart are not.
    let every = |tensor: &Tensor, step: usize| tensor.slice(0, None, None, step as isize).unwrap();
    let near = announced_before_reads(&files, &every(&far, 64), &every(&here, 64));
    assert_eq!(near.len(), 6, "{near:?}");
    let sparse = announced_before_reads(&files, &every(&far, 256), &every(&here, 256));
    assert_eq!(sparse.len(), 24, "{sparse:?}");
    assert!(sparse.iter().all(|range| range.end - range.start == 4096), "{sparse:?}");
    let rows = Tensor::from_vec(vec![6000i64, 1, 3, 2, 5000], &[5]).unwrap();
    let chosen = |tensor: &Tensor| tensor.index_select(0, &rows).unwrap();
    files.take();
    let selected = chosen(&far);
    assert_eq!(bytes(&selected), bytes(&chosen(&here)));
    assert_eq!(files.take().announced.len(), 3);
    files.take();
    far.prefetch();
    let announced: Vec<Range<u64>> = files.take().announced.into_iter().map(|(_, range)| range).collect();
    assert_eq!(announced, whole);
}

#[test]
fn copies_and_verifications_announce_chunks_and_read_digests_together() {
    let (dir, path, store) = new_fast_store();
    store.save("x", &filled(3 << 20, 7i32)).unwrap();
    let files = Recorded::new(MemoryFiles::of(&path));
    let there = open(files.clone());
    let check = |log: crate::files::Log| {
        let sums = log.read.iter().filter(|(name, _)| name.ends_with(".sum")).count();
        assert!(sums <= 4, "{sums} reads of digests");
        let announced: u64 = log.announced.iter().map(|(_, range)| range.end - range.start).sum();
        assert_eq!(announced, 12 * MIB, "{:?}", log.announced);
    };
    files.take();
    there.snapshot().copy_to(dir.path().join("copy.smap"), None, |_| ()).unwrap();
    check(files.take());
    assert!(there.verify(|_| ()).unwrap().is_whole());
    check(files.take());
}
