//! Compaction, and the statistics of space: what is given back, what is kept, and what others may do meanwhile.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs, io};

use stridemap::maintenance::{Compacted, SkipReason, SpaceReason};
use stridemap::{DType, Durability, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::full_disk::SmallDisk;
use crate::hooked::Hooked;
use crate::processes::{command, hear, say, start, wait_for_a_line};
use crate::random::Random;
use crate::support::{scaled, temporary};

const CHANGE: &str = "STRIDEMAP_TEST_CHANGE";

/// Not a test: what the started process does.
pub(crate) fn play(role: &str, path: &Path) {
    match role {
        "compact.pin" => {
            let store = Store::open(path).unwrap();
            let snapshot = store.snapshot();
            say("pinned");
            while wait_for_a_line() {
                let tensor = snapshot.load("thin").unwrap();
                say(format!("{:?} {:?}", tensor.stride(), sum(&tensor)));
            }
        }
        "compact.change" => {
            let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).open(path).unwrap();
            say(change(&store, &env::var(CHANGE).unwrap()));
        }
        "compact.stage" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.save("staged", &vector(2 << 20, 1)).unwrap();
            say(std::process::id());
            wait_for_a_line();
        }
        "compact.window" => {
            let store = StoreOptions::new().durability(Durability::Process).open(path).unwrap();
            say("begun");
            for row in 100.. {
                append_to_window(&store, row);
            }
        }
        "compact.nearly full" => compact_bit_by_bit(path),
        role => panic!("{role}"),
    }
}

/// One commit of another process, and what came of it.
fn change(store: &Store, what: &str) -> String {
    let result = match what {
        "view" => {
            let thin = store.load("thin").unwrap();
            store.save_view("another", &thin.slice(0, Some(1), None, 1).unwrap())
        }
        "replace" => store.save("thin", &vector(3, 77)),
        "replace alike" => store.save("thin", &store.load("thin").unwrap()),
        "remove" => store.remove("thin"),
        "rename" => store.rename("thin", "renamed"),
        "elsewhere" => store.save("elsewhere", &vector(5, 5)),
        "append" => {
            // The growth lock is taken: who appends waits for the end of the compaction.
            let busy = store.append("rows", &vector(1000, 9).view([1, 1000]).unwrap()).unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
            Ok(())
        }
        "compact" => store.compact(|_| ()).map(|compacted| {
            assert!(matches!(compacted.skipped[0].reason, SkipReason::Busy(_)), "{compacted:?}");
            assert_eq!(compacted.storage_count, 0);
        }),
        what => panic!("{what}"),
    };
    format!("{:?}", result.map_err(|e| e.kind()))
}

pub(crate) fn vector(n: usize, seed: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect(), &[n])
        .unwrap()
}

fn sum(tensor: &Tensor) -> u64 {
    tensor.read::<u32>().unwrap().into_iter().map(u64::from).sum()
}

/// A store with a matrix of 4 MiB that has lost its name; one in ten of its rows has one, `thin`.
pub(crate) fn thin_store(path: &Path, options: &StoreOptions) -> (Store, Vec<u32>) {
    let store = options.create(path).unwrap();
    let matrix = vector(1 << 20, 1).view([1 << 10, 1 << 10]).unwrap();
    store.save("matrix", &matrix).unwrap();
    let thin = store.load("matrix").unwrap().slice(0, Some(3), None, 10).unwrap();
    store.save_view("thin", &thin).unwrap();
    store.remove("matrix").unwrap();
    let elements = thin.read().unwrap();
    (store, elements)
}

pub(crate) fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

pub(crate) fn files(dir: &Path) -> Vec<fs::Metadata> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect()
}

/// Lengths of a store's files, and the blocks that the disk has for them, in bytes: what `du` says.
fn disk_usage(path: &Path) -> (u64, u64) {
    let own = files(path).into_iter().filter(|file| file.is_file());
    let all = own.chain(files(&path.join("storages"))).chain(files(&path.join("meta")));
    all.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + file.blocks() * 512))
}

pub(crate) fn storage_bytes(path: &Path) -> u64 {
    files(&path.join("storages")).iter().map(fs::Metadata::len).sum()
}

pub(crate) type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(crate) fn content(store: &Store) -> Content {
    let load = |name: &String| {
        let tensor = store.load(name).unwrap();
        (tensor.size().to_vec(), tensor.to_bytes().unwrap())
    };
    store.names().unwrap().into_iter().map(|name| (name.clone(), load(&name))).collect()
}

pub(crate) fn assert_whole(store: &Store) {
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

/// The reasons in statistics, with their bytes.
fn reasons(store: &Store) -> Vec<(SpaceReason, u64)> {
    let stats = store.stats().unwrap();
    stats.reclaimable().map(|reclaimable| (reclaimable.reason.clone(), reclaimable.bytes)).collect()
}

#[test]
fn compaction_gives_the_disk_back_what_nothing_reaches() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, elements) = thin_store(&path, &StoreOptions::new());
    let thin = store.load("thin").unwrap();
    store.save_view("part", &thin.slice(1, Some(100), Some(200), 3).unwrap().flip([0]).unwrap()).unwrap();
    store.gc().unwrap();
    let (bytes, blocks) = disk_usage(&path);
    let stats = store.stats().unwrap();
    assert_eq!((stats.file_bytes, stats.reachable_bytes, stats.is_exact), (bytes, 103 * 4096, true));

    let mut written_bytes = 0;
    let compacted = store.compact(|bytes| written_bytes += bytes).unwrap();
    assert_eq!((compacted.storage_count, compacted.before_bytes), (1, 4 << 20), "{compacted:?}");
    assert_eq!((compacted.after_bytes, written_bytes), (103 * 4096, 103 * 4096));
    assert_eq!(compacted.skipped, []);
    let (bytes_now, blocks_now) = disk_usage(&path);
    assert!(bytes - bytes_now >= compacted.reclaimed_bytes() - 4096, "{bytes} bytes, now {bytes_now}");
    assert!(
        blocks - blocks_now >= compacted.reclaimed_bytes() - (64 << 10),
        "{blocks} in blocks, now {blocks_now}"
    );
    assert_eq!(store.stats().unwrap().reclaimable_bytes(), 0);
    assert_whole(&store);

    // Both views are on one storage still, and where one has an element of the other it is the same.
    // SAFETY: only this test has the store open, and it writes through the library.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };
    let (thin, part) = (mapped.load("thin").unwrap(), mapped.load("part").unwrap());
    assert_eq!((thin.stride(), part.stride()), (&[1024, 1][..], &[-1024, 3][..]));
    assert_eq!(thin.read::<u32>().unwrap(), elements);
    assert_eq!(thin.storage_id(), part.storage_id());
    assert!(thin.overlaps(&part));
    let (thin, part) = (thin.as_array::<u32>().unwrap(), part.as_array::<u32>().unwrap());
    assert!(std::ptr::eq(&thin[[102, 103]], &part[[0, 1]]));
    assert!(std::ptr::eq(&thin[[0, 199]], &part[[102, 33]]));
}

#[test]
fn what_was_compacted_is_not_compacted_again() {
    let dir = temporary();
    let (store, _) = thin_store(&dir.path().join("x.smap"), &fast());
    store.save("dense", &vector(100_000, 3)).unwrap();
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
    let generation = store.generation();
    let again = store.compact(|_| panic!("something was written")).unwrap();
    assert_eq!((again.storage_count, again.before_bytes, again.collected.file_count), (0, 0, 0), "{again:?}");
    assert_eq!(store.generation(), generation);
}

#[test]
fn small_gains_are_left() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    for (name, kept) in [("three quarters and a bit", 77_000), ("three quarters", 75_000)] {
        store.save("all", &vector(100_000, 1)).unwrap();
        store.save_view(name, &store.load("all").unwrap().narrow(0, 0, kept).unwrap()).unwrap();
    }
    store.save("all", &vector(1500, 1)).unwrap();
    store.save_view("less than a block", &store.load("all").unwrap().narrow(0, 0, 600).unwrap()).unwrap();
    store.remove("all").unwrap();
    store.gc().unwrap();
    assert_eq!(
        reasons(&store),
        [(SpaceReason::TooLittle, 92_000), (SpaceReason::Unreached, 100_000), (SpaceReason::TooLittle, 3600)]
    );
    let compacted = store.compact(|_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.reclaimed_bytes()), (1, 100_000), "{compacted:?}");
}

#[test]
fn tensors_that_were_loaded_before_keep_their_elements_and_are_saved_by_copy() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, elements) = thin_store(&path, &fast());
    // SAFETY: only this test has the store open, and it writes through the library.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };
    let (before, before_mapped) = (store.load("thin").unwrap(), mapped.load("thin").unwrap());
    let lent = before_mapped.as_array::<u32>().unwrap();
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
    mapped.refresh().unwrap();
    store.gc().unwrap();
    assert_eq!(storage_bytes(&path), 103 * 4096);
    assert!(lent.iter().eq(&elements));
    assert_eq!(before.read::<u32>().unwrap(), elements);

    let conflict = store.save_view("view", &before.t().unwrap()).unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert!(conflict.to_string().contains("load the tensor again"), "{conflict}");
    store.save_view("view", &store.load("thin").unwrap().t().unwrap()).unwrap();
    store.save("copy", &before).unwrap();
    assert_eq!(store.load("copy").unwrap().read::<u32>().unwrap(), elements);
    assert_whole(&store);
}

#[test]
fn reader_of_an_earlier_generation_keeps_it_and_holds_the_space_until_it_goes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, elements) = thin_store(&path, &fast());
    store.gc().unwrap();
    let snapshot = store.snapshot();
    let mut reader = start("compact.pin", &path);
    let mut said = BufReader::new(reader.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "pinned");
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
    // Its storage is opened only now.
    let own = snapshot.load("thin").unwrap();
    assert_eq!((own.stride(), own.read::<u32>().unwrap()), (&[10 * 1024, 1][..], elements.clone()));
    writeln!(reader.stdin.as_mut().unwrap()).unwrap();
    assert_eq!(hear(&mut said), format!("[10240, 1] {}", sum(&own)));
    drop((own, snapshot));
    let after_bytes = 103 * 4096;
    store.gc().unwrap();
    assert!(storage_bytes(&path) > (4 << 20) + after_bytes, "the reader's storage went");
    match &reasons(&store)[..] {
        [(SpaceReason::Pinned { generation, processes }, bytes)] => {
            assert_eq!((*generation, *bytes), (4, (4 << 20) + 4 * 16));
            // The kernel tells who holds it, where the file system and the namespace of processes allow.
            assert!(
                processes.is_empty() || *processes == [reader.id()],
                "{processes:?}, not {}",
                reader.id()
            );
        }
        other => panic!("{other:?}"),
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert_eq!(reasons(&store), [(SpaceReason::Garbage, (4 << 20) + 4 * 16)]);
    store.save("next", &vector(1, 1)).unwrap();
    assert_eq!(storage_bytes(&path), after_bytes + 4);
}

#[test]
fn every_view_of_random_stores_reads_the_same() {
    let dir = temporary();
    let mut written_bytes = 0;
    for seed in 0..scaled("STRIDEMAP_TEST_CASES", 400) as u64 / 40 {
        let path = dir.path().join(format!("{seed}.smap"));
        let store = fast().create(&path).unwrap();
        let mut draws = Random::new(seed);
        let mut txn = store.begin().unwrap();
        for base in 0..8 {
            let n = 2000 + draws.below(20_000);
            let bytes: Vec<u8> = (0..n * 16).map(|_| draws.next() as u8).collect();
            let dtype =
                [DType::U8, DType::I16, DType::F32, DType::F64, DType::C64, DType::C128][draws.below(6)];
            let tensor = Tensor::from_bytes(dtype, &[n * 16 / dtype.itemsize()], &bytes).unwrap();
            txn.save(&format!("base.{base}"), &tensor).unwrap();
        }
        txn.commit().unwrap();
        let mut txn = store.begin().unwrap();
        for view in 0..60 {
            let base = store.load(&format!("base.{}", draws.below(8))).unwrap();
            txn.save_view(&format!("view.{view}"), &random_view(base, &mut draws)).unwrap();
        }
        for base in 0..8 {
            if draws.below(8) > 0 {
                txn.remove(&format!("base.{base}")).unwrap();
            }
        }
        txn.commit().unwrap();
        let before = content(&store);
        let shared = overlapping(&store);
        let compacted = store.compact(|bytes| written_bytes += bytes).unwrap();
        assert_eq!(compacted.skipped, []);
        assert_eq!(content(&store), before);
        assert_eq!(overlapping(&store), shared);
        assert_whole(&store);
        let reopened = Store::open(&path).unwrap();
        assert_eq!(content(&reopened), before);
        assert_eq!(reopened.stats().unwrap().file_bytes, disk_usage(&path).0);
    }
    assert!(written_bytes > 0, "nothing was ever compacted");
}

/// A part of a tensor, as a matrix with steps, of another dtype now and then.
fn random_view(base: Tensor, draws: &mut Random) -> Tensor {
    let n = base.numel();
    let start = draws.below(n / 2);
    let columns = 4 + draws.below(60);
    let rows = 1 + draws.below(((n - start) / columns).clamp(1, 40));
    let part = base.narrow(0, start as isize, rows * columns).unwrap();
    let mut view = part.view([rows as isize, columns as isize]).unwrap();
    for axis in [0, 1] {
        let step = 1 + draws.below(4) as isize;
        let step = if draws.below(4) == 0 { -step } else { step };
        view = view.slice(axis, None, None, step).unwrap();
    }
    match draws.below(4) {
        0 => view.t().unwrap(),
        1 => view.select(0, 0).unwrap(),
        2 if view.is_contiguous() && view.stride().ends_with(&[1]) => view.view_dtype(DType::U8).unwrap(),
        _ => view,
    }
}

/// Which names share bytes with which.
fn overlapping(store: &Store) -> Vec<Vec<String>> {
    let snapshot = store.snapshot();
    let names = snapshot.names().unwrap();
    names.iter().step_by(7).map(|name| snapshot.overlapping(name).unwrap()).collect()
}

/// Compacts, and has another process make a change while the storage is being copied.
fn compact_during(path: &Path, store: &Store, what: &str) -> Compacted {
    let mut heard = Vec::new();
    let compacted = store
        .compact(|_| {
            if heard.is_empty() {
                let mut other = command("compact.change", path);
                let mut other = other.env(CHANGE, what).stdout(Stdio::piped()).spawn().unwrap();
                let mut said = BufReader::new(other.stdout.take().unwrap());
                heard.push(hear(&mut said));
                assert!(other.wait().unwrap().success());
            }
        })
        .unwrap();
    assert_eq!(heard, ["Ok(())"], "{what}");
    store.refresh().unwrap();
    assert_whole(store);
    compacted
}

#[test]
fn storage_that_another_process_changes_meanwhile_is_left() {
    for what in ["view", "replace", "replace alike", "remove", "rename"] {
        let dir = temporary();
        let path = dir.path().join("x.smap");
        let (store, elements) = thin_store(&path, &fast());
        let compacted = compact_during(&path, &store, what);
        assert_eq!(compacted.storage_count, 0, "{what}: {compacted:?}");
        let skipped: Vec<_> =
            compacted.skipped.iter().map(|skipped| (skipped.storage_id, &skipped.reason)).collect();
        assert_eq!(skipped, [(1, &SkipReason::Changed)], "{what}");
        let read = |name: &str| store.load(name).unwrap().read::<u32>().unwrap();
        match what {
            "view" => {
                assert_eq!(read("thin"), elements);
                assert_eq!(read("another"), elements[1024..]);
            }
            "replace" => assert_eq!(read("thin"), vector(3, 77).read::<u32>().unwrap()),
            "replace alike" => assert_eq!(read("thin"), elements),
            "remove" => assert!(!store.contains("thin").unwrap()),
            _ => assert_eq!(read("renamed"), elements),
        }
        // The next one finds it as it is now, and nothing is left of the first.
        let again = store.compact(|_| ()).unwrap();
        assert_eq!(again.storage_count, u64::from(["view", "rename"].contains(&what)), "{what}: {again:?}");
        assert_eq!(store.stats().unwrap().reclaimable_bytes(), 0, "{what}");
    }
}

#[test]
fn change_elsewhere_does_not_disturb() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, elements) = thin_store(&path, &fast());
    for (what, count) in [("elsewhere", 1), ("compact", 0)] {
        if count == 0 {
            store
                .save_view("thinner", &store.load("thin").unwrap().slice(0, None, None, 3).unwrap())
                .unwrap();
            store.remove("thin").unwrap();
        }
        let compacted = compact_during(&path, &store, what);
        assert_eq!((compacted.storage_count, compacted.skipped.len()), (1, 0), "{compacted:?}");
    }
    assert_eq!(store.load("thinner").unwrap().read::<u32>().unwrap()[..1024], elements[..1024]);
    assert_eq!(store.names().unwrap(), ["elsewhere", "thinner"]);
}

#[test]
fn tensor_that_grows_is_compacted_between_two_appends() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let rows = vector(600_000, 4).view([600, 1000]).unwrap();
    store.save("all", &rows).unwrap();
    store.append("all", &vector(100_000, 5).view([100, 1000]).unwrap()).unwrap();
    // The last rows, behind which there is room to grow.
    store.save_view("rows", &store.load("all").unwrap().narrow(0, 300, 400).unwrap()).unwrap();
    store.remove("all").unwrap();
    let before = store.load("rows").unwrap();
    let compacted = compact_during(&path, &store, "append");
    assert_eq!((compacted.storage_count, compacted.after_bytes), (1, 400 * 4000), "{compacted:?}");
    store.append("rows", &vector(1000, 6).view([1, 1000]).unwrap()).unwrap();
    let after = store.load("rows").unwrap();
    assert_eq!(after.size(), [401, 1000]);
    assert_eq!(after.narrow(0, 0, 400).unwrap().to_bytes().unwrap(), before.to_bytes().unwrap());
    assert_whole(&store);

    // What an append left that was killed is not part of the storage, and gc cuts it off.
    let file = path.join("storages/0000000000000002.bin");
    let length = fs::metadata(&file).unwrap().len();
    let end = fs::File::options().write(true).open(&file).unwrap();
    end.set_len(length + 5000).unwrap();
    drop(end);
    assert_eq!(reasons(&store), [(SpaceReason::PastEnd, 5000)]);
    assert_eq!(store.gc().unwrap().size_bytes, 5000);
    assert_eq!(reasons(&store), []);
}

#[test]
fn address_space_to_grow_into_is_reserved_as_before() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    let rows = |n: usize| vector(n * 256, 1).view([n as isize, 256]).unwrap();
    store.create_growable("all", DType::U32, &[0, 256], 1 << 20).unwrap();
    store.append("all", &rows(600)).unwrap();
    store.save_view("rows", &store.load("all").unwrap().narrow(0, 300, 300).unwrap()).unwrap();
    store.remove("all").unwrap();
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
    // SAFETY: only this test has the store open, and it writes through the library.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };
    let before = mapped.load("rows").unwrap();
    store.append("rows", &rows(20_000)).unwrap();
    mapped.refresh().unwrap();
    let after = mapped.load("rows").unwrap();
    assert_eq!((before.numel(), after.numel()), (300 * 256, 20_300 * 256));
    assert_eq!(before.as_slice::<u32>().unwrap().as_ptr(), after.as_slice::<u32>().unwrap().as_ptr());
}

#[test]
fn storage_in_use_is_skipped_and_one_that_is_not_goes_its_way() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, _) = thin_store(&path, &fast());
    store.save("all", &vector(1 << 20, 8)).unwrap();
    store.save_view("column", &store.load("all").unwrap().slice(0, None, None, 100).unwrap()).unwrap();
    store.remove("all").unwrap();
    let file = fs::File::open(path.join("storages/0000000000000001.bin")).unwrap();
    fs2::FileExt::lock_exclusive(&file).unwrap();
    let compacted = store.compact(|_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.before_bytes), (1, 4 << 20));
    let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
    assert_eq!((skipped.storage_id, skipped.reclaimable_bytes), (1, (4 << 20) - 103 * 4096));
    assert!(matches!(&skipped.reason, SkipReason::Busy(_)), "{skipped:?}");
    drop(file);
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
}

#[test]
fn damage_gets_no_digests_of_its_own() {
    let damaged: [(&str, usize); 3] = [
        ("storages/0000000000000001.bin", (3 << 20) + 6 * 4096), // in the fourth chunk, beside a kept row
        ("storages/0000000000000001.sum", 17),
        ("storages/0000000000000001.bin", 3 * 4096), // an element of the first row
    ];
    for (file, at) in damaged {
        let dir = temporary();
        let path = dir.path().join("x.smap");
        let (store, _) = thin_store(&path, &fast());
        let mut bytes = fs::read(path.join(file)).unwrap();
        bytes[at] ^= 1;
        fs::write(path.join(file), bytes).unwrap();
        let before = content(&store);
        let compacted = store.compact(|_| ()).unwrap();
        let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
        assert_eq!((compacted.storage_count, skipped.storage_id), (0, 1));
        let SkipReason::Damaged(finding) = &skipped.reason else { panic!("{skipped:?}") };
        assert!(finding.contains(file), "{finding}");
        assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1, "the damage is no longer found");
        assert_eq!(content(&store), before);
        assert_eq!(fs::read_dir(path.join("storages")).unwrap().count(), 2, "a copy was left");
    }
}

#[test]
fn damage_that_nothing_reaches_is_dropped() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    store.save("all", &vector(1 << 20, 1)).unwrap();
    store.save_view("end", &store.load("all").unwrap().narrow(0, -1000, 1000).unwrap()).unwrap();
    store.remove("all").unwrap();
    let file = path.join("storages/0000000000000001.bin");
    let mut bytes = fs::read(&file).unwrap();
    bytes[5] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 1);
    assert_whole(&store);
}

#[test]
fn mutable_storages_stay_and_are_reported() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    let all = store.create_tensor("all", DType::F32, &[100_000], StorageKind::Mutable).unwrap();
    all.lock_exclusive().unwrap().fill_(3).unwrap();
    store.save_view("part", &all.narrow(0, 0, 100).unwrap()).unwrap();
    assert_eq!(store.compact(|_| ()).unwrap().skipped, []);
    store.remove("all").unwrap();
    assert_eq!(reasons(&store), [(SpaceReason::Mutable, 399_600)]);
    let compacted = store.compact(|_| ()).unwrap();
    let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
    assert_eq!((skipped.reclaimable_bytes, &skipped.reason), (399_600, &SkipReason::Mutable));
    // As the reason says.
    store.save_as("part", &store.load("part").unwrap(), StorageKind::Mutable).unwrap();
    store.gc().unwrap();
    assert_eq!(store.stats().unwrap().reclaimable_bytes(), 0);
}

#[test]
fn empty_tensors_and_empty_stores_are_compacted_too() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = fast().create(&path).unwrap();
    assert_eq!(store.compact(|_| ()).unwrap().storage_count, 0);
    store.save("all", &vector(10_000, 1)).unwrap();
    let all = store.load("all").unwrap();
    store.save_view("none", &all.narrow(0, 5000, 0).unwrap()).unwrap();
    store.remove("all").unwrap();
    let compacted = store.compact(|_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes), (1, 0));
    assert_eq!(store.load("none").unwrap().size(), [0]);
    assert_eq!(storage_bytes(&path), 0);
    assert_whole(&store);
}

#[test]
fn statistics_say_of_each_byte_why_it_is_there() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, _) = thin_store(&path, &fast());
    store.save("whole", &vector(1000, 1)).unwrap();
    store.gc().unwrap();
    let unreached = (SpaceReason::Unreached, (4 << 20) - 103 * 4096);
    let reach = || reasons(&store);
    assert_eq!(reach(), std::slice::from_ref(&unreached));

    // A file of a commit that never came to be; one of a live writer; one that its writer left when it was killed.
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    let orphaned = (SpaceReason::Orphaned, 1000);
    assert_eq!(reach(), [unreached.clone(), orphaned.clone()]);
    let mut writer = start("compact.stage", &path);
    let id: u32 = hear(&mut BufReader::new(writer.stdout.take().unwrap())).parse().unwrap();
    // Elements, and chunk digests.
    let by_length = || {
        let mut reasons = reach();
        reasons.sort_by_key(|(_, bytes)| *bytes);
        reasons
    };
    match &by_length()[..] {
        [(SpaceReason::Writing { .. }, 128), first, second, (SpaceReason::Writing { processes }, bytes)] => {
            assert_eq!((first, second, *bytes), (&orphaned, &unreached, 8 << 20));
            assert!(processes.is_empty() || *processes == [id], "{processes:?}, not {id}");
        }
        other => panic!("{other:?}"),
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    let abandoned = |bytes| (SpaceReason::Abandoned, bytes);
    assert_eq!(by_length(), [abandoned(128), orphaned, unreached.clone(), abandoned(8 << 20)]);

    // All the files of the store, byte by byte; and as many as gc gives back.
    let stats = store.stats().unwrap();
    assert_eq!(stats.file_bytes, disk_usage(&path).0);
    let before = storage_bytes(&path);
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (3, 1000 + (8 << 20) + 128));
    assert_eq!(before - storage_bytes(&path), collected.size_bytes);
    assert_eq!(reach(), [unreached]);

    let [thin] = &store.stats().unwrap().storages[..] else { panic!() };
    assert_eq!((thin.id, thin.kind, thin.tensor_count), (Some(1), Some(StorageKind::Sealed), 1));
    assert_eq!((thin.size_bytes, thin.reachable_bytes, thin.is_exact), (4 << 20, 103 * 4096, true));
    assert_eq!((thin.names.as_slice(), thin.file_bytes), (&["thin".to_owned()][..], (4 << 20) + 4 * 16));
}

#[test]
fn statistics_change_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, _) = thin_store(&path, &fast());
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    fs::write(path.join("storages/.stage-dead"), [0; 1000]).unwrap();
    let names = |dir: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = (names(path.join("storages")), names(path.join("meta")));
    // Another writer holds the lock all the while.
    let lock = fs::File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    let reader = Store::open(&path).unwrap();
    assert_eq!(reader.stats().unwrap().storages.len(), 3);
    assert_eq!((names(path.join("storages")), names(path.join("meta"))), before);
    drop(store);
}

#[test]
fn statistics_try_no_lock_that_a_commit_or_an_append_takes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let (store, _) = thin_store(&path, &fast());
    let tried: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let noted = Arc::clone(&tried);
    let disk = Hooked::before(move |operation, path| {
        if operation == "try_lock" {
            noted.lock().unwrap().push(path.to_owned());
        }
        Ok(())
    });
    let reader = fast().disk(Arc::new(disk)).open(&path).unwrap();
    // One of each that somebody may be at work on: past the end, of a commit to come, unfinished, an older generation.
    let _pinned = store.snapshot();
    store.save("new", &vector(3, 3)).unwrap();
    let end = fs::File::options().write(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    end.set_len((4 << 20) + 5000).unwrap();
    fs::write(path.join("storages/00000000000000ff.bin"), [0; 1000]).unwrap();
    let staged = path.join("storages/.stage-dead");
    fs::write(&staged, [0; 100]).unwrap();
    tried.lock().unwrap().clear();
    let expected = [
        (SpaceReason::Unreached, (4 << 20) - 103 * 4096),
        (SpaceReason::PastEnd, 5000),
        (SpaceReason::Orphaned, 1000),
        (SpaceReason::Abandoned, 100),
    ];
    let mut found = reasons(&reader);
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    assert_eq!(found, expected);
    let tried = tried.lock().unwrap();
    assert!(tried.contains(&staged), "{tried:?}");
    let is_another = |path: &&PathBuf| **path != staged && path.extension().is_none_or(|end| end != "man");
    assert_eq!(tried.iter().find(is_another), None);
}

#[test]
fn full_disk_while_compacting_leaves_the_store_whole() {
    let Some(disk) = SmallDisk::mount("10m") else { return };
    let path = disk.path.join("x.smap");
    let store = Store::create(&path).unwrap();
    // Two storages of 4 MiB of which half is reached: together with what is beside them there is no room for one half.
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
    let full = store.compact(|_| ()).unwrap_err();
    let cause = std::error::Error::source(&full).and_then(|cause| cause.downcast_ref::<io::Error>()).unwrap();
    assert_eq!((full.kind(), cause.kind()), (ErrorKind::Io, io::ErrorKind::StorageFull), "{full}");
    assert_eq!(content(&store), before);
    assert_eq!(storage_bytes(&path), (8 << 20) + 2 * 4 * 16, "what was staged is still there");
    assert_whole(&store);
    fs::remove_file(filler).unwrap();
}

#[test]
fn nearly_full_disk_is_compacted_bit_by_bit() {
    let Some(disk) = SmallDisk::mount("50m") else { return };
    disk.play("compact.nearly full");
}

/// The same, on the small disk of this path.
fn compact_bit_by_bit(disk: &Path) {
    let path = disk.join("x.smap");
    let store = fast().create(&path).unwrap();
    // 40 MiB, of which 27 are kept: there is room for one copy at first, and not for all.
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
    let compacted = store.compact(|_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.after_bytes), (8, 8 * 3500 * 1024), "{compacted:?}");
    assert!(store.generation() > generation + 1, "there was room for all");
    assert_eq!(content(&store), before);
    assert_whole(&store);
}

/// The rows of a log that are kept: the last hundred, each of a thousand times its number.
fn append_to_window(store: &Store, row: usize) {
    let elements = Tensor::from_vec(vec![row as u32; 1000], &[1, 1000]).unwrap();
    store.append("log", &elements).unwrap();
    let log = store.load("log").unwrap();
    let size = log.size()[0];
    match store.save_view("log", &log.narrow(0, size as isize - 100, 100).unwrap()) {
        // The log was compacted after it was loaded: it has a row more for once.
        Err(e) if e.kind() == ErrorKind::Conflict => {}
        saved => saved.unwrap(),
    }
}

#[test]
fn what_is_appended_to_without_a_pause_is_compacted_all_the_same() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = StoreOptions::new().durability(Durability::Process).create(&path).unwrap();
    store.create_growable("log", DType::U32, &[0, 1000], 0).unwrap();
    for row in 0..100u32 {
        store.append("log", &Tensor::from_vec(vec![row; 1000], &[1, 1000]).unwrap()).unwrap();
    }
    let mut writer = start("compact.window", &path);
    let mut said = BufReader::new(writer.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "begun");
    let (mut skipped_count, mut compacted_count) = (0, 0);
    while compacted_count < 5 {
        let compacted = store.compact(|_| ()).unwrap();
        compacted_count += compacted.storage_count;
        skipped_count += compacted.skipped.len();
        assert!(skipped_count < 30, "compacted {compacted_count} times, and skipped {skipped_count}");
        store.refresh().unwrap();
        let rows: Vec<u32> = store.load("log").unwrap().select(1, 0).unwrap().read().unwrap();
        let is_run = rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert!(is_run && rows.len() >= 100, "{rows:?}");
    }
    println!("compacted {compacted_count} times, skipped {skipped_count}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
