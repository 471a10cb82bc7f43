//! Which pages of a file hints and prefetches load, and how views of files that are not mapped are read.
#![allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges of bytes")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::Mmap;
use rustix::param::page_size;
use stridemap::import::ExternalFile;
use stridemap::parallel::thread_count;
use stridemap::{Advice, DType, Header, StorageKind, Store, Tensor, ix};

use crate::harness::hooked::Hooked;
use crate::harness::{fast, new_fast_store, open_mapped};
use crate::support::skip;

/// The bytes of a row. It is more than the kernel reads ahead of a random access.
const ROW_BYTES: usize = 64 << 10;

const UNDROPPABLE: &str = "the file system of temporary files cannot drop pages";

/// Returns a matrix of bytes whose elements state their row.
fn rows(count: usize) -> Tensor {
    let mut bytes = vec![0; count * ROW_BYTES];
    bytes.chunks_exact_mut(ROW_BYTES).zip(0..).for_each(|(row, i)| row.fill((i % 251) as u8));
    Tensor::from_vec(bytes, &[count, ROW_BYTES]).unwrap()
}

/// Returns the file of the only storage.
fn storage_file(store: &Path) -> PathBuf {
    fs::read_dir(store.join("storages")).unwrap().next().unwrap().unwrap().path()
}

fn storage_file_of(store: &Path, id: u64) -> PathBuf {
    store.join(format!("storages/{id:016x}.bin"))
}

/// Removes the pages of a file from the page cache. Returns false if the file system keeps them.
fn drop_pages(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    !resident(path).contains(&true)
}

/// Returns which pages of a file are in the page cache.
fn resident(path: &Path) -> Vec<bool> {
    // SAFETY: the bytes of this mapping are not read.
    let map = unsafe { Mmap::map(&File::open(path).unwrap()).unwrap() };
    let mut pages = vec![0; map.len().div_ceil(page_size())];
    // SAFETY: the call reads no byte of the mapping, and writes one byte per page.
    let asked = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    assert_eq!(asked, 0);
    pages.into_iter().map(|page| page & 1 == 1).collect()
}

fn pages_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / page_size()..bytes.end.div_ceil(page_size())
}

fn are_loaded(path: &Path, bytes: &[Range<usize>]) -> bool {
    let pages = resident(path);
    bytes.iter().all(|bytes| !pages[pages_of(bytes)].contains(&false))
}

/// Gives hints until all these bytes are in the page cache, then checks that nothing far from them is. While memory is
/// short, the kernel ignores a hint, or drops what it loaded, so a hint is given again after a second.
fn assert_loads(path: &Path, bytes: &[Range<usize>], what: &str, hint: impl Fn()) {
    let begin = Instant::now();
    let mut hints = 0;
    while hints == 0 || !are_loaded(path, bytes) {
        if begin.elapsed() >= Duration::from_secs(hints) {
            assert!(hints < 60, "{what}: not loaded after {hints} hints");
            hint();
            hints += 1;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // A file system may load pages in larger units.
    let near: Vec<Range<usize>> = bytes
        .iter()
        .map(|bytes| pages_of(&(bytes.start.saturating_sub(ROW_BYTES)..bytes.end + ROW_BYTES)))
        .collect();
    let far = (0..)
        .zip(resident(path))
        .find(|(page, loaded)| *loaded && !near.iter().any(|near| near.contains(page)));
    assert_eq!(far, None, "{what}: {bytes:?}");
}

#[test]
fn a_prefetch_loads_the_bytes_of_the_view_and_not_the_gaps() {
    const COUNT: usize = 256;
    let (_dir, path, store) = new_fast_store();
    store.save("x", &rows(COUNT)).unwrap();
    let file = storage_file(&path);
    if !drop_pages(&file) {
        return skip("STRIDEMAP_REQUIRE_ROOT", UNDROPPABLE);
    }
    let external = Arc::new(ExternalFile::open(&file).unwrap());
    let header = Header::contiguous(DType::U8, &[COUNT, ROW_BYTES]).unwrap();
    let length = (COUNT * ROW_BYTES) as u64;
    // Pages that a process has mapped and read cannot be dropped, so the mapped tensor is last.
    let tensors = [
        ("unmapped", Store::open(&path).unwrap().load("x").unwrap()),
        ("external", Tensor::from_file(&external, 0..length, header).unwrap()),
        ("mapped", open_mapped(&path).load("x").unwrap()),
    ];
    for (kind, x) in &tensors {
        let part =
            |row: usize, bytes: Range<usize>| row * ROW_BYTES + bytes.start..row * ROW_BYTES + bytes.end;
        let far = x.index(ix![5..;60, 9000..12000]).unwrap();
        let far_bytes: Vec<Range<usize>> = (5..COUNT).step_by(60).map(|row| part(row, 9000..12000)).collect();
        let backwards = far.flip([0, 1]).unwrap();
        // Blocks of one row each, with gaps of 8 KiB.
        let near = x.narrow(0, 40, 10).unwrap().view([80, ROW_BYTES / 8]).unwrap().index(ix![..;2]).unwrap();
        let near_bytes = part(40, 0..9 * ROW_BYTES + ROW_BYTES / 8 * 7);
        let views = [
            ("far rows", far.clone(), far_bytes.clone()),
            ("transposed", far.t().unwrap(), far_bytes.clone()),
            ("backwards", backwards, far_bytes),
            ("an element", x.select(0, 99).unwrap().select(0, 1).unwrap(), vec![part(99, 1..2)]),
            (
                "expanded",
                x.narrow(0, 7, 1).unwrap().expand([1 << 40, ROW_BYTES]).unwrap(),
                vec![part(7, 0..ROW_BYTES)],
            ),
            ("short gaps", near, vec![near_bytes]),
            ("no element", x.narrow(0, 3, 0).unwrap(), vec![]),
            ("whole", x.clone(), vec![0..COUNT * ROW_BYTES]),
        ];
        for (name, view, bytes) in views {
            assert!(drop_pages(&file), "{kind}, {name}");
            assert_loads(&file, &bytes, &format!("{kind}, {name}"), || view.prefetch());
        }
        assert_eq!(far.select(1, 0).unwrap().read::<u8>().unwrap(), [5, 65, 125, 185, 245]);
    }
}

#[test]
fn a_prefetch_loads_mutable_and_live_storages_and_needs_no_file() {
    let (_dir, path, store) = new_fast_store();
    let size = [64, ROW_BYTES];
    for kind in [StorageKind::Mutable, StorageKind::Live] {
        let name = format!("{kind:?}");
        let _ = store.create_tensor(&name, DType::U8, &size, kind).unwrap();
        let x = open_mapped(&path).load(&name).unwrap();
        let file =
            fs::read_dir(path.join("storages")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
        if !drop_pages(&file) {
            return skip("STRIDEMAP_REQUIRE_ROOT", UNDROPPABLE);
        }
        x.advise(Advice::Random);
        let row = x.select(0, 60).unwrap();
        assert_loads(&file, &[60 * ROW_BYTES..61 * ROW_BYTES], &name, || row.prefetch());
    }
    let x = rows(1);
    x.prefetch();
    x.advise(Advice::Sequential);
    assert_eq!(x.get::<u8>([0, 0]).unwrap(), 0);
}

#[test]
fn prefetching_many_tensors_reads_each_byte_once_in_the_order_of_the_files_and_waits_for_it() {
    const COUNT: usize = 256;
    let (_dir, path, store) = new_fast_store();
    store.save("x", &rows(COUNT)).unwrap();
    store.save("y", &rows(80)).unwrap();
    store.write(|txn| (0..40u8).try_for_each(|i| txn.save(&format!("small{i:02}"), &vec![i; 100]))).unwrap();
    let reads = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&reads);
    let disk = Hooked::after(move |operation, path| {
        *seen.lock().unwrap() += usize::from(
            operation == "read_exact_at" && path.parent().is_some_and(|dir| dir.ends_with("storages")),
        );
    });
    let counts = Arc::clone(&disk.counts);
    let unmapped = fast().disk(Arc::new(disk)).open(&path).unwrap();
    let mut read_bytes = 0;
    let mut prefetch = |tensors: &[Tensor]| {
        *reads.lock().unwrap() = 0;
        (counts.lock().unwrap().data_read_bytes, read_bytes) = (0, 0);
        Tensor::prefetch_all(tensors, |bytes| read_bytes += bytes).unwrap();
        assert_eq!(read_bytes, counts.lock().unwrap().data_read_bytes);
        (*reads.lock().unwrap(), read_bytes)
    };
    let x = unmapped.load("x").unwrap();
    let whole = (COUNT * ROW_BYTES) as u64;
    assert_eq!(prefetch(&[x.t().unwrap(), x.clone(), x.narrow(0, 3, 9).unwrap()]), (4, whole));
    let far = x.index(ix![5..;60, 9000..12000]).unwrap();
    assert_eq!(prefetch(&[far.flip([0, 1]).unwrap()]), (5, 5 * 3000), "far rows");
    let near = x.narrow(0, 40, 10).unwrap().view([80, ROW_BYTES / 8]).unwrap().index(ix![..;2]).unwrap();
    assert_eq!(prefetch(&[near]), (1, (ROW_BYTES * 10 - ROW_BYTES / 8) as u64), "short gaps are read");
    assert_eq!(prefetch(&[x.narrow(0, 3, 0).unwrap(), rows(1)]), (0, 0), "nothing on disk");
    let expanded = x.narrow(0, 7, 1).unwrap().expand([1 << 40, ROW_BYTES]).unwrap();
    assert_eq!(prefetch(&[expanded]), (1, ROW_BYTES as u64));
    // Small tensors of one storage take one read, in whatever order they are given. Each begins at a multiple of 64.
    let small: Vec<Tensor> =
        unmapped.snapshot().iter_loaded("small").unwrap().map(|it| it.unwrap().1).collect();
    let mixed: Vec<Tensor> = [small[30..].to_vec(), vec![x], small[..30].to_vec()].concat();
    assert_eq!(prefetch(&mixed), (5, whole + 39 * 128 + 100));

    // All pages are in memory when it returns, and no other page.
    let file = storage_file_of(&path, 1);
    for (name, rows, bytes) in [
        (
            "far",
            ix![5..;60, 9000..12000],
            (5..COUNT).step_by(60).map(|row| row * ROW_BYTES + 9000..row * ROW_BYTES + 12000).collect(),
        ),
        ("all", ix![.., ..], vec![0..COUNT * ROW_BYTES]),
    ] {
        // While a page is mapped, it cannot be dropped.
        if !drop_pages(&file) {
            return skip("STRIDEMAP_REQUIRE_ROOT", UNDROPPABLE);
        }
        let view = open_mapped(&path).load("x").unwrap().index(rows).unwrap();
        let prefetch = || Tensor::prefetch_all([&view], |_| ()).unwrap();
        // Few attempts: only if memory is short does the kernel drop pages meanwhile.
        let waits = (0..5).any(|_| {
            drop_pages(&file);
            prefetch();
            are_loaded(&file, &bytes)
        });
        assert!(waits, "{name}");
        assert_loads(&file, &bytes, name, prefetch);
    }
}

#[test]
fn error_of_a_prefetch_names_the_file() {
    let (_dir, path, store) = new_fast_store();
    store.save("x", &rows(256)).unwrap();
    let file = storage_file_of(&path, 1);
    for store in [open_mapped(&path), fast().open(&path).unwrap()] {
        let x = store.load("x").unwrap();
        File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
        let failed = Tensor::prefetch_all([&x], |_| ()).unwrap_err().to_string();
        assert!(failed.contains(&file.display().to_string()), "{failed}");
        File::options().write(true).open(&file).unwrap().set_len(256 * ROW_BYTES as u64).unwrap();
    }
}

#[test]
fn random_access_loads_no_pages_around_an_element() {
    let (_dir, path, store) = new_fast_store();
    store.save("x", &rows(256)).unwrap();
    let file = storage_file(&path);
    if !drop_pages(&file) {
        return skip("STRIDEMAP_REQUIRE_ROOT", UNDROPPABLE);
    }
    let x = open_mapped(&path).load("x").unwrap();
    let looked_up = x.narrow(0, 100, 100).unwrap();
    looked_up.advise(Advice::Random);
    assert_eq!(looked_up.as_slice::<u8>().unwrap()[50 * ROW_BYTES + 7], 150);
    let loaded = resident(&file).into_iter().filter(|loaded| *loaded).count();
    assert!((1..=ROW_BYTES / page_size()).contains(&loaded), "{loaded} pages");
    for advice in [Advice::Sequential, Advice::Normal] {
        looked_up.advise(advice);
        x.narrow(0, 3, 0).unwrap().advise(advice);
    }
    assert!(x.read::<u8>().unwrap() == rows(256).read::<u8>().unwrap());
}

#[test]
fn runs_with_long_gaps_are_read_one_by_one_on_several_threads_and_short_gaps_are_read_too() {
    let _alone = super::THREAD_LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    const COUNT: usize = 1200;
    let (_dir, path, store) = new_fast_store();
    store.save("x", &rows(COUNT)).unwrap();
    let reads = Arc::new(Mutex::new(BTreeMap::<String, usize>::new()));
    let seen = Arc::clone(&reads);
    let disk = Hooked::after(move |operation, path| {
        if operation == "read_exact_at" && path.parent().is_some_and(|dir| dir.ends_with("storages")) {
            *seen.lock().unwrap().entry(format!("{:?}", thread::current().id())).or_default() += 1;
        }
    });
    let x = fast().disk(Arc::new(disk)).open(&path).unwrap().load("x").unwrap();
    let read = |view: Tensor| {
        reads.lock().unwrap().clear();
        let bytes = view.read::<u8>().unwrap();
        let reads = reads.lock().unwrap();
        (bytes, reads.values().sum::<usize>(), reads.keys().cloned().collect::<BTreeSet<String>>())
    };
    let expected = |step: usize, run: usize| -> Vec<u8> {
        (0..COUNT).step_by(step).flat_map(|row| vec![(row % 251) as u8; run]).collect()
    };

    // Every run is a read of its own. The calling thread reads none if it divides the work.
    let (bytes, count, threads) = read(x.narrow(1, 4096, 4096).unwrap());
    assert!(bytes == expected(1, 4096));
    assert_eq!(count, COUNT);
    let own = format!("{:?}", thread::current().id());
    let is_divided = thread_count(usize::MAX) > 1;
    assert_eq!((threads.len() > 1, threads.contains(&own)), (is_divided, !is_divided));
    // Few runs are read by the calling thread.
    let (bytes, count, threads) = read(x.index(ix![..;100, 4096..8192]).unwrap());
    assert!(bytes == expected(100, 4096));
    assert_eq!((count, threads), (COUNT / 100, BTreeSet::from([own.clone()])));
    // The calling thread reads spans with short gaps, 4 MiB at a time: 64 rows.
    let (bytes, count, threads) = read(x.narrow(1, 4096, ROW_BYTES - 4096).unwrap());
    assert!(bytes == expected(1, ROW_BYTES - 4096));
    assert_eq!((count, threads), (COUNT.div_ceil(64), BTreeSet::from([own])));
    // Columns of bytes in rows: the order of the elements is not that of the file, which is still read once.
    let (bytes, count, _) = read(x.narrow(1, 4096, 4096).unwrap().t().unwrap());
    assert_eq!(count, COUNT);
    let column: Vec<u8> = (0..COUNT).map(|row| (row % 251) as u8).collect();
    assert!(bytes.chunks_exact(COUNT).all(|found| found == column));
}
