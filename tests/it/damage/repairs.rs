//! Repairs: the tensors that are kept and lost, and the files that are moved.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use stridemap::{ErrorKind, Index, Store, Tensor};

use super::support::{
    assert_repaired, content, copy, create_chunked_store, create_small_store, lost_records, verify,
};
use crate::harness::{fast, filled, new_path, new_store};

const BIN: &str = "storages/0000000000000001.bin";
const SUM: &str = "storages/0000000000000001.sum";

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn overwrite(path: &Path, at: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(b"garbage!", at).unwrap();
}

#[test]
fn repair_keeps_tensors_without_a_damaged_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    let whole = fs::read(path.join(BIN)).unwrap();
    let digests = fs::read(path.join(SUM)).unwrap();
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Damage<'_>, &[&str], bool); 10] = [
        ("chunk 1", &|p| overwrite(&p.join(BIN), 1 << 20), &["all", "chunk1"], true),
        ("chunk 0", &|p| overwrite(&p.join(BIN), 77), &["all", "chunk0", "ends"], true),
        ("the tail", &|p| overwrite(&p.join(BIN), 3 << 20), &["all", "tail"], true),
        (
            "cut",
            &|p| fs::write(p.join(BIN), &whole[..3 << 19]).unwrap(),
            &["all", "chunk1", "chunk2", "ends", "tail"],
            true,
        ),
        ("a digest", &|p| overwrite(&p.join(SUM), 16), &[], false),
        ("digests cut", &|p| fs::write(p.join(SUM), &digests[..20]).unwrap(), &[], false),
        ("digests gone", &|p| fs::remove_file(p.join(SUM)).unwrap(), &[], false),
        (
            "a digest and another chunk",
            &|p| {
                overwrite(&p.join(SUM), 16);
                overwrite(&p.join(BIN), 2 << 20);
            },
            // No full chunk can be verified. The tail has its digest elsewhere.
            &["all", "chunk0", "chunk1", "chunk2", "ends"],
            true,
        ),
        (
            "a chunk and its digest",
            &|p| {
                overwrite(&p.join(SUM), 16);
                overwrite(&p.join(BIN), 1 << 20);
            },
            &["all", "chunk0", "chunk1", "chunk2", "ends"],
            true,
        ),
        (
            "gone",
            &|p| fs::remove_file(p.join(BIN)).unwrap(),
            &["all", "chunk0", "chunk1", "chunk2", "ends", "none", "tail"],
            true,
        ),
    ];
    for (what, damage, gone, is_moved) in cases {
        let damaged = dir.path().join("damaged.smap");
        copy(&path, &damaged);
        damage(&damaged);
        let before = fs::read(damaged.join(BIN)).ok();
        assert_eq!(assert_repaired(&damaged, &expected, what), names(gone), "{what}");
        // The damaged file is kept unchanged.
        let kept = damaged.join("lost+found/0000000000000001.bin");
        assert_eq!(kept.exists(), is_moved && before.is_some(), "{what}");
        if kept.exists() {
            assert_eq!(Some(fs::read(kept).unwrap()), before, "{what}");
        }
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
    let done = fast().repair(&path, |_| ()).unwrap();
    assert_eq!(done.losses.iter().flat_map(|loss| &loss.names).collect::<Vec<_>>(), ["x"], "{done:?}");
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    for (name, expected) in [("a", &[0, 3, 6][..]), ("b", &[1, 5])] {
        let rows = store.load(name).unwrap().read::<u8>().unwrap();
        assert!(rows.chunks(ROW).zip(expected).all(|(row, n)| row.iter().all(|byte| byte == n)), "{name}");
        assert_eq!(rows.len(), expected.len() * ROW);
    }
}

#[test]
fn storage_replaced_together_with_its_digests_is_lost() {
    let dir = tempfile::tempdir().unwrap();
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
    assert_eq!(assert_repaired(&path, &expected, "both swapped").len(), expected.len());
}

#[test]
fn store_without_a_manifest_is_refused_whatever_its_table_says() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    let manifest = path.join("meta/0000000000000005.man");
    assert!(path.join("meta/0000000000000004.tab").exists());
    type Damage<'a> = &'a dyn Fn();
    let cases: [(Damage<'_>, &str); 2] = [
        (
            &|| fs::write(&manifest, b"nothing of it").unwrap(),
            "no manifest can be read; that of generation 5",
        ),
        (&|| fs::remove_file(&manifest).unwrap(), "there is no manifest"),
    ];
    for (damage, why) in cases {
        damage();
        for refused in [fast().plan_repair(&path, |_| ()), fast().repair(&path, |_| ())] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
            assert!(refused.to_string().contains(why), "{refused}");
        }
        assert!(!path.join("lost+found").exists());
    }
}

#[test]
fn manifest_without_its_table_keeps_its_own_changes() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    fs::write(path.join("meta/0000000000000004.tab"), b"nothing of it").unwrap();
    let gone = assert_repaired(&path, &expected, "table");
    // The manifest also has the record of the storage of `v7`.
    let mut left = content(&path);
    assert_eq!(left.remove("after").unwrap().1, [9]);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["counts", "later", "shared", "v7"]);
    assert_eq!(gone.len() + left.len(), expected.len());
    assert_eq!(Store::open(&path).unwrap().attributes().get("author").map(String::as_str), Some("nobody"));
}

#[test]
fn repair_steps_back_to_the_generation_of_a_reader() {
    let (_dir, path) = new_path();
    let expected = create_small_store(&path);
    let reader = Store::open(&path).unwrap();
    let snapshot = reader.snapshot();
    let writer = Store::open(&path).unwrap();
    writer.save("newer", &filled(5, 1u8)).unwrap();
    drop(writer);
    overwrite(&path.join("meta/0000000000000006.man"), 30);
    let done = fast().repair(&path, |_| ()).unwrap();
    assert!(done.losses.iter().any(|loss| loss.reason.contains("returns to generation 5")), "{done:?}");
    assert_eq!(content(&path), expected);
    assert_eq!(snapshot.load("later").unwrap().to_bytes().unwrap(), [5, 6, 7, 8]);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // The manifest and the storage of the lost generation are kept, even by a collection.
    store.save("new", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
    store.gc().unwrap();
    for file in ["0000000000000006.man", "0000000000000006.bin"] {
        let kept = path.join("lost+found").join(file);
        assert!(done.moved_files.contains(&kept) && kept.exists(), "{file}: {done:?}");
    }
}

#[test]
fn repair_waits_for_readers_that_need_the_files_to_be_moved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    let expected = create_chunked_store(&path);
    let reader = Store::open(&path).unwrap();
    overwrite(&path.join(BIN), 5);
    let refused = fast().repair(&path, |_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains("end that reader, and repair again"), "{refused}");
    assert!(!path.join("lost+found").exists());
    drop(reader);
    assert_eq!(assert_repaired(&path, &expected, "afterwards"), names(&["all", "chunk0", "ends"]));
}

#[test]
fn files_moved_by_a_repair_are_never_overwritten() {
    let (_dir, path) = new_path();
    create_small_store(&path);
    for round in 0..3 {
        fs::write(path.join("FORMAT"), format!("round {round}")).unwrap();
        fast().repair(&path, |_| ()).unwrap();
    }
    for (name, round) in [("FORMAT", 0), ("FORMAT.1", 1), ("FORMAT.2", 2)] {
        assert_eq!(fs::read_to_string(path.join("lost+found").join(name)).unwrap(), format!("round {round}"));
    }
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
    let table = Path::new("meta/0000000000000003.tab");
    let bytes = fs::read(path.join(table)).unwrap();
    for (at, most) in
        [(bytes.windows(4).position(|window| window == b"v500").unwrap(), 400), (bytes.len() - 4000, 0)]
    {
        let damaged = dir.path().join(format!("{at}.smap"));
        copy(&path, &damaged);
        overwrite(&damaged.join(table), at as u64);
        let finding = verify(&damaged).findings;
        assert!(finding.iter().any(|finding| finding.rule.number() == 21), "{finding:?}");
        let losses = fast().plan_repair(&damaged, |_| ()).unwrap().losses;
        let lost: usize = losses.iter().map(|loss| lost_records(&loss.reason)).sum();
        let gone = assert_repaired(&damaged, &expected, &format!("byte {at}"));
        assert!(
            gone.len() == lost && lost <= most && gone.contains("v500") == (most > 0),
            "{lost}: {gone:?}"
        );
    }
}

#[test]
fn intact_store_needs_no_repair_and_is_not_touched() {
    let (dir, path) = new_path();
    create_small_store(&path);
    let reader = Store::open(&path).unwrap();
    for repair in [fast().plan_repair(&path, |_| ()).unwrap(), fast().repair(&path, |_| ()).unwrap()] {
        assert!(repair.is_empty() && repair.generation.is_none(), "{repair:?}");
    }
    assert!(!reader.refresh().unwrap() && !path.join("lost+found").exists());
    let empty = dir.path().join("no store");
    fs::create_dir(&empty).unwrap();
    assert_eq!(fast().repair(&empty, |_| ()).unwrap_err().kind(), ErrorKind::NotAStore);
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
}
