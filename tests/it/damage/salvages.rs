//! Salvages: the tensors that are kept and lost.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use stridemap::{DType, ErrorKind, Index, StorageKind, Store, StoreOptions, Tensor};

use super::support::{
    Content, Outcome, assert_salvaged, content, copy, create_chunked_store, create_small_store, lost_records,
    salvage_to, tree, verify,
};
use crate::external::{Adopted, external_anywhere, external_beside, write_model};
use crate::harness::{assert_refused, fast, filled, new_path, new_store};
use crate::images::{is_shared, on_each};
use crate::support::temporary;

const BIN: &str = "storages/0000000000000001.bin";
const SUM: &str = "storages/0000000000000001.sum";

fn gone(names: &[&str]) -> Outcome {
    Outcome { gone: names.iter().map(|&name| name.to_owned()).collect(), ..Outcome::default() }
}

fn overwrite(path: &Path, at: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(b"garbage!", at).unwrap();
}

#[test]
fn salvage_keeps_tensors_without_a_damaged_chunk() {
    let dir = temporary();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    let whole = fs::read(path.join(BIN)).unwrap();
    let digests = fs::read(path.join(SUM)).unwrap();
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Damage<'_>, &[&str]); 10] = [
        ("chunk 1", &|p| overwrite(&p.join(BIN), 1 << 20), &["all", "chunk1"]),
        ("chunk 0", &|p| overwrite(&p.join(BIN), 77), &["all", "chunk0", "ends"]),
        ("the tail", &|p| overwrite(&p.join(BIN), 3 << 20), &["all", "tail"]),
        (
            "cut",
            &|p| fs::write(p.join(BIN), &whole[..3 << 19]).unwrap(),
            &["all", "chunk1", "chunk2", "ends", "tail"],
        ),
        ("a digest", &|p| overwrite(&p.join(SUM), 16), &[]),
        ("digests cut", &|p| fs::write(p.join(SUM), &digests[..20]).unwrap(), &[]),
        ("digests gone", &|p| fs::remove_file(p.join(SUM)).unwrap(), &[]),
        (
            "a digest and another chunk",
            &|p| {
                overwrite(&p.join(SUM), 16);
                overwrite(&p.join(BIN), 2 << 20);
            },
            // No full chunk can be verified. The tail has its digest elsewhere.
            &["all", "chunk0", "chunk1", "chunk2", "ends"],
        ),
        (
            "a chunk and its digest",
            &|p| {
                overwrite(&p.join(SUM), 16);
                overwrite(&p.join(BIN), 1 << 20);
            },
            &["all", "chunk0", "chunk1", "chunk2", "ends"],
        ),
        (
            "gone",
            &|p| fs::remove_file(p.join(BIN)).unwrap(),
            &["all", "chunk0", "chunk1", "chunk2", "ends", "none", "tail"],
        ),
    ];
    for (what, damage, lost) in cases {
        let damaged = dir.path().join("damaged.smap");
        copy(&path, &damaged);
        damage(&damaged);
        assert_eq!(assert_salvaged(&damaged, &expected, what), gone(lost), "{what}");
        fs::remove_dir_all(&damaged).unwrap();
    }
}

#[test]
fn damaged_chunk_between_the_rows_of_a_view_keeps_its_rows() {
    const ROW: usize = 1 << 20;
    let (_dir, path, store) = new_store();
    let rows = (0..7u8).flat_map(|row| std::iter::repeat_n(row, ROW)).collect();
    store.save("x", &Tensor::from_vec(rows, &[7, ROW]).unwrap()).unwrap();
    let x = store.load("x").unwrap();
    // Rows 0, 3 and 6, and rows 1 and 5. No single interval covers both views and skips row 2.
    store.save_view("a", &x.slice(0, None, None, 3).unwrap()).unwrap();
    store.save_view("b", &x.slice(0, 1, None, 4).unwrap()).unwrap();
    drop((x, store));
    overwrite(&path.join("storages/0000000000000001.bin"), 2 * ROW as u64 + 5);
    let new = path.with_extension("new");
    let done = fast().salvage(&path, Some(&new), |_| ()).unwrap();
    assert_eq!(
        done.losses.iter().map(|loss| loss.name.as_deref()).collect::<Vec<_>>(),
        [Some("x")],
        "{done:?}"
    );
    assert_eq!(done.losses[0].lost_bytes, 7 * ROW as u64);
    let store = Store::open(&new).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    for (name, expected) in [("a", &[0, 3, 6][..]), ("b", &[1, 5])] {
        let rows = store.load(name).unwrap().read::<u8>().unwrap();
        assert!(rows.chunks(ROW).zip(expected).all(|(row, n)| row.iter().all(|byte| byte == n)), "{name}");
        assert_eq!(rows.len(), expected.len() * ROW);
    }
}

#[test]
fn storage_replaced_together_with_its_digests_is_lost() {
    let dir = temporary();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    // Both are valid by themselves, but belong to another storage.
    let other = dir.path().join("other.smap");
    let elements = (3 << 18) + 100;
    let store = Store::create(&other).unwrap();
    store.save("all", &filled(elements, 7u32)).unwrap();
    for file in [BIN, SUM] {
        fs::copy(other.join(file), path.join(file)).unwrap();
    }
    let outcome = assert_salvaged(&path, &expected, "both swapped");
    // "none" has no elements.
    assert_eq!(outcome.gone.len() + 1, expected.len(), "{outcome:?}");
}

#[test]
fn manifest_without_its_table_keeps_its_own_changes() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    fs::write(path.join("generations/0000000000000004.tab"), b"nothing of it").unwrap();
    let new = path.with_extension("new");
    let (lost, done) = salvage_to(&path, &new, &expected, "table");
    assert!(
        done.losses.iter().any(|loss| loss.path == path.join("generations/0000000000000004.tab")),
        "{done:?}"
    );
    // The manifest also has the record of the storage of `v7`.
    let left = content(&new);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["counts", "later", "shared", "v7"]);
    assert_eq!(lost.gone.len() + left.len(), expected.len());
    assert_eq!(Store::open(&new).unwrap().attributes("").get("author").map(String::as_str), Some("nobody"));
}

#[test]
fn salvage_reads_the_generation_of_a_reader_if_the_newest_manifest_is_damaged() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let reader = Store::open(&path).unwrap();
    let snapshot = reader.snapshot();
    let writer = Store::open(&path).unwrap();
    writer.save("newer", &filled(5, 1u8)).unwrap();
    drop(writer);
    overwrite(&path.join("meta/0000000000000006.man"), 30);
    let new = path.with_extension("new");
    let (lost, done) = salvage_to(&path, &new, &expected, "the newest manifest");
    assert_eq!((lost, done.generation, done.losses.len()), (Outcome::default(), 5, 1), "{:?}", done.losses);
    assert!(done.losses[0].reason.contains("generation 5 is read instead"), "{:?}", done.losses);
    assert_eq!(done.losses[0].name, None);
    assert_eq!(snapshot.load("later").unwrap().to_bytes().unwrap(), [5, 6, 7, 8]);
}

#[test]
fn growable_tensor_keeps_its_rows_before_the_damage_and_can_grow() {
    const ROW: usize = 3000;
    let (dir, path, store) = new_store();
    let rows = |from: usize, count: usize| {
        let bytes = (from..from + count).flat_map(|row| (0..ROW).map(move |i| (row * 7 + i) as u8)).collect();
        Tensor::from_vec(bytes, &[count, ROW]).unwrap()
    };
    store.create_growable("log", DType::U8, &[0, ROW], 0).unwrap();
    store.append("log", &rows(0, 1000)).unwrap();
    store.write(|txn| txn.copy("log", "then")).unwrap();
    let log = store.load("log").unwrap();
    store.save_view("first", &log.narrow(0, 0, 100).unwrap()).unwrap();
    store.save_view("late", &log.narrow(0, 900, 100).unwrap()).unwrap();
    store.append("log", &rows(1000, 10)).unwrap();
    // The same bytes in a storage that was not made to grow.
    store.save("saved", &rows(0, 1010)).unwrap();
    drop((log, store));
    let expected = content(&path);
    for file in [BIN, "storages/0000000000000002.bin"] {
        overwrite(&path.join(file), (1 << 20) + 7);
    }
    let kept_count = (1 << 20) / ROW;
    let new = path.with_extension("new");
    let (lost, done) = salvage_to(&path, &new, &expected, "a chunk of rows");
    assert_eq!(lost.shorter, BTreeSet::from(["log".to_owned()]), "{done:?}");
    assert_eq!(lost.gone, BTreeSet::from(["saved".to_owned(), "then".to_owned()]), "{done:?}");
    let loss = done.losses.iter().find(|loss| loss.name.as_deref() == Some("log")).unwrap();
    assert!(loss.reason.contains(&format!("its first {kept_count} rows are kept")), "{loss}");
    assert_eq!(loss.lost_bytes, ((1010 - kept_count) * ROW) as u64);
    let store = Store::open(&new).unwrap();
    assert!(store.load("log").unwrap().overlaps(&store.load("first").unwrap()));
    assert_eq!(store.append("log", &rows(0, 2)).unwrap(), kept_count..kept_count + 2);
    assert_eq!(store.load("late").unwrap().to_bytes().unwrap(), expected["late"].1);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);

    // A view across the damage keeps its elements in the storage of the rows.
    let cut = dir.path().join("cut.smap");
    copy(&path, &cut);
    let bytes = fs::read(cut.join(BIN)).unwrap();
    fs::write(cut.join(BIN), &bytes[..bytes.len() - 1]).unwrap();
    let lost = assert_salvaged(&cut, &expected, "and the end is cut off");
    assert!(lost.gone.contains("late") && lost.shorter.contains("log"), "{lost:?}");
}

#[test]
fn salvage_needs_a_free_path_outside_the_damaged_store() {
    let (dir, path) = new_path();
    create_small_store(&path);
    let before = tree(&path);
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    symlink(path.join("meta"), dir.path().join("meta link")).unwrap();
    let inside =
        [path.join("new"), path.join("meta/new"), link.join("new"), dir.path().join("meta link/new")];
    for new in inside {
        assert_refused(fast().salvage(&path, Some(&new), |_| ()), ErrorKind::InvalidArgument, &["inside"]);
    }
    let taken = dir.path().join("taken");
    fs::write(&taken, b"mine").unwrap();
    for new in [&taken, &path, &link] {
        assert_refused(fast().salvage(&path, Some(new), |_| ()), ErrorKind::AlreadyExists, &["exists"]);
    }
    let nowhere = dir.path().join("no such directory/new");
    assert_refused(fast().salvage(&path, Some(&nowhere), |_| ()), ErrorKind::Io, &["no such directory"]);
    assert!(tree(&path) == before && fs::read(&taken).unwrap() == b"mine");
    let names =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>();
    assert_eq!(names.len(), 4, "{names:?}");
}

/// Creates a store with a mutable tensor of four integers, a view of the first one, a mutable tensor without elements,
/// and another mutable one. Panics while it changes the first.
fn create_interrupted_store(path: &Path) -> Content {
    let store = fast().create(path).unwrap();
    for name in ["x", "other"] {
        store.write(|txn| txn.save_as(name, &[1i64; 4], StorageKind::Mutable)).unwrap();
    }
    let _ = store.create_tensor("empty", DType::I64, &[0], StorageKind::Mutable).unwrap();
    let x = store.load("x").unwrap();
    store.save_view("first", &x.narrow(0, 0, 1).unwrap()).unwrap();
    let panicking = || {
        let mut guard = x.lock_exclusive().unwrap();
        guard.at(&x.narrow(0, 1, 2).unwrap()).unwrap().fill_(7).unwrap();
        panic!("expected by the test");
    };
    assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    drop((x, store));
    content(path)
}

#[test]
fn interrupted_change_is_copied_as_it_is_and_marked_in_the_new_store() {
    let (dir, path) = new_path();
    let expected = create_interrupted_store(&path);
    let new = path.with_extension("new");
    let (lost, done) = salvage_to(&path, &new, &expected, "an interrupted change");
    assert_eq!((lost, done.losses), (Outcome::default(), Vec::new()));
    assert_eq!(done.interrupted, ["first", "x"]);
    let store = Store::open(&new).unwrap();
    assert_refused(
        store.load("first").unwrap().read::<i64>(),
        ErrorKind::Interrupted,
        &["allow_interrupted"],
    );
    assert_eq!(store.load("other").unwrap().read::<i64>().unwrap(), [1; 4]);
    let mut guard = store.load("x").unwrap().allow_interrupted().lock_exclusive().unwrap();
    assert!(guard.was_interrupted());
    assert_eq!(guard.read::<i64>().unwrap(), [1, 7, 7, 1]);
    guard.fill_(2).unwrap();
    drop(guard);
    assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [2; 4]);
    // A copy is refused, and leaves nothing.
    let copy = dir.path().join("copy.smap");
    assert_refused(
        Store::open(&path).unwrap().snapshot().copy_to(&copy, None, |_| ()),
        ErrorKind::Interrupted,
        &["\"first\""],
    );
    assert!(!copy.exists());
}

#[test]
fn change_that_is_not_interrupted_yet_is_not_reported() {
    let (_dir, path, store) = new_store();
    let x = store.create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    let salvaged = || fast().salvage(&path, None, |_| ()).unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.fill_(7).unwrap();
    assert_eq!(salvaged().interrupted, [""; 0]);
    std::mem::forget(guard);
    // Only its end would release the lock of the forgotten guard, so this is a copy of its file.
    let file = path.join(BIN);
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, bytes).unwrap();
    assert_eq!(salvaged().interrupted, ["x"]);
}

#[test]
fn mutable_storage_that_lost_its_mark_keeps_its_elements_and_counts_as_interrupted() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let expected = create_interrupted_store(&path);
    let cut = |id: u64, length: u64| {
        let damaged = dir.path().join("damaged.smap");
        copy(&path, &damaged);
        let file = damaged.join(format!("storages/{id:016x}.bin"));
        fs::File::options().write(true).open(file).unwrap().set_len(length).unwrap();
        let new = dir.path().join("new.smap");
        let (lost, done) = salvage_to(&damaged, &new, &expected, &format!("storage {id} of {length} bytes"));
        for dir in [damaged, new] {
            fs::remove_dir_all(dir).unwrap();
        }
        (lost, done.interrupted)
    };
    assert_eq!(cut(2, 32), (gone(&[]), vec!["first".into(), "other".into(), "x".into()]));
    assert_eq!(cut(3, 0), (gone(&[]), vec!["empty".into(), "first".into(), "x".into()]));
    assert_eq!(cut(1, 32), (gone(&[]), vec!["first".into(), "x".into()]));
    assert_eq!(cut(1, 31), (gone(&["x"]), vec!["first".into()]));
    assert_eq!(cut(1, 7), (gone(&["first", "x"]), vec![]));
}

#[test]
fn undamaged_files_share_their_blocks_with_the_salvaged_store() {
    on_each(|kind, image| {
        let path = image.path.join("store.smap");
        let store = Store::create(&path).unwrap();
        for name in ["whole", "damaged"] {
            store.save(name, &filled(16 << 20, 5u8)).unwrap();
        }
        let files: Vec<_> = store.snapshot().storages().map(|storage| storage.unwrap().file).collect();
        drop(store);
        overwrite(&files[1], 5);
        let (new, before) = (image.path.join("new.smap"), image.free_bytes());
        let done = StoreOptions::new().salvage(&path, Some(&new), |_| ()).unwrap();
        let taken = before.saturating_sub(image.free_bytes());
        assert_eq!(
            (done.losses.len(), done.copied.shared_bytes, done.copied.copied_bytes),
            (1, 16 << 20, 0),
            "{kind}"
        );
        assert!(taken < 2 << 20, "{kind}: {taken} bytes");
        let storage = Store::open(&new).unwrap().snapshot().storages().next().unwrap().unwrap();
        assert!(is_shared(&storage.file), "{kind}");
    });
}

#[test]
fn damaged_leaf_loses_only_its_tensors_and_a_damaged_inner_node_loses_nothing() {
    let (dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    store.save("row", &Tensor::from_vec((0..8u8).collect(), &[8]).unwrap()).unwrap();
    let row = store.load("row").unwrap();
    let mut txn = store.begin().unwrap();
    for i in 0..1000 {
        txn.save_view(&format!("v{i:03}"), &row.index([Index::from(i % 8)]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    drop((store, row));
    let expected = content(&path);
    let table = Path::new("generations/0000000000000003.tab");
    let bytes = fs::read(path.join(table)).unwrap();
    for (at, most) in
        [(bytes.windows(4).position(|window| window == b"v500").unwrap(), 400), (bytes.len() - 4000, 0)]
    {
        let damaged = dir.path().join(format!("{at}.smap"));
        copy(&path, &damaged);
        overwrite(&damaged.join(table), at as u64);
        let finding = verify(&damaged).findings;
        assert!(finding.iter().any(|finding| finding.rule.number() == 21), "{finding:?}");
        let losses = fast().salvage(&damaged, None, |_| ()).unwrap().losses;
        let lost: usize = losses.iter().map(|loss| lost_records(&loss.reason)).sum();
        let gone = assert_salvaged(&damaged, &expected, &format!("byte {at}")).gone;
        assert!(
            gone.len() == lost && lost <= most && gone.contains("v500") == (most > 0),
            "{lost}: {gone:?}"
        );
    }
}

#[test]
fn external_file_that_the_new_store_may_not_use_costs_only_its_tensors() {
    let adopted = Adopted::new();
    let own = filled(5, 7u8);
    adopted.open().save("own", &own).unwrap();
    let other = adopted.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let salvage = |options: StoreOptions, path: &Path, new: &Path| {
        let done = options.salvage(path, Some(new), |_| ()).unwrap();
        let store = options.open(new).unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
        assert_eq!(store.load("own").unwrap().to_bytes().unwrap(), own.to_bytes().unwrap());
        let names = store.names().unwrap();
        assert_eq!(names.len() as u64, done.copied.tensor_count);
        fs::remove_dir_all(new).unwrap();
        let lost: Vec<_> = done.losses.iter().map(|loss| loss.name.clone().unwrap()).collect();
        (names, lost, done.losses)
    };
    let (all, gone) = (["bias", "own", "weight"], ["bias", "weight"]);
    // Its file would be outside the directory of the new store.
    let (left, lost, losses) = salvage(external_beside(), &adopted.path, &other.join("new.smap"));
    assert_eq!((&left[..], &lost[..]), (&["own".to_owned()][..], &gone.map(str::to_owned)[..]));
    for (loss, bytes) in losses.iter().zip([4 * 8, 12 * 4]) {
        assert_eq!((&loss.path, loss.lost_bytes), (&adopted.file, bytes));
        let says =
            ["the new store may not use it", "external anywhere", "in a directory that contains the file"];
        assert!(says.iter().all(|part| loss.reason.contains(part)), "{loss}");
    }
    for (options, new) in [
        (external_anywhere(), other.join("new.smap")),
        (external_beside(), adopted.dir.path().join("new.smap")),
    ] {
        assert_eq!(salvage(options, &adopted.path, &new), (all.map(str::to_owned).to_vec(), vec![], vec![]));
    }
    // A copy is a choice, and is refused.
    let copied = adopted.open().snapshot().copy_to(other.join("copy.smap"), None, |_| ());
    assert_refused(copied, ErrorKind::NotAllowed, &["external anywhere"]);

    // Its path, as seen from the new store, is not UTF-8.
    let holder = adopted.dir.path().join(OsStr::from_bytes(b"\xff"));
    fs::create_dir(&holder).unwrap();
    let path = holder.join("model.smap");
    write_model(&holder.join("model.safetensors"));
    let store = external_beside().create(&path).unwrap();
    stridemap_interop::adopt(&store, holder.join("model.safetensors"), "").unwrap();
    store.save("own", &own).unwrap();
    drop(store);
    let (left, lost, losses) = salvage(external_anywhere(), &path, &other.join("new.smap"));
    assert_eq!((&left[..], &lost[..]), (&["own".to_owned()][..], &gone.map(str::to_owned)[..]));
    assert!(losses.iter().all(|loss| loss.reason.contains("not UTF-8")), "{losses:?}");
}

#[test]
fn whole_store_loses_nothing_and_a_directory_that_is_no_store_is_refused() {
    let (dir, path) = new_path();
    let expected = create_small_store(&path);
    let reader = Store::open(&path).unwrap();
    let (lost, done) = salvage_to(&path, &path.with_extension("new"), &expected, "a whole store");
    assert_eq!((lost, done.losses), (Outcome::default(), Vec::new()));
    assert!(!reader.refresh().unwrap());
    let empty = dir.path().join("no store");
    fs::create_dir(&empty).unwrap();
    let new = dir.path().join("not made");
    assert_refused(fast().salvage(&empty, Some(&new), |_| ()), ErrorKind::NotAStore, &["no store"]);
    assert!(fs::read_dir(&empty).unwrap().count() == 0 && !new.exists());
}
