//! Damage to files that only tags need.

use std::fs;
use std::path::{Path, PathBuf};

use stridemap::maintenance::Finding;
use stridemap::{DType, ErrorKind, Store, StoreOptions};

use super::{files, save_many, save_tagged};
use crate::harness::{assert_refused, filled, new_path, new_store};

const CHUNK: usize = 1 << 20;

fn findings(path: &Path) -> Vec<Finding> {
    StoreOptions::new().verify(path, |_| ()).unwrap().findings
}

/// Changes a byte of a file, returns what is found, and changes it back.
fn with_flipped(path: &Path, file: &Path, at: usize) -> Vec<Finding> {
    let whole = fs::read(file).unwrap();
    let mut bytes = whole.clone();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
    let found = findings(path);
    fs::write(file, whole).unwrap();
    found
}

fn without(path: &Path, file: &Path) -> Vec<Finding> {
    let whole = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    let found = findings(path);
    fs::write(file, whole).unwrap();
    found
}

/// Creates a store in which only the tags "old" and "same", of one generation, need a storage of two chunks, a table and
/// a manifest. Returns these files, and the digests.
fn store_with_an_old_tag(path: &Path) -> [PathBuf; 4] {
    let store = Store::create(path).unwrap();
    store.save("large", &filled(2 * CHUNK + 10, 1u8)).unwrap();
    save_many(&store, "a", 300);
    store.tag("old").unwrap();
    store.write(|txn| txn.tag_snapshot("same", &store.at("old")?)).unwrap();
    let names: Vec<String> = store.names().unwrap();
    store.write(|txn| names.iter().try_for_each(|name| txn.remove(name))).unwrap();
    save_many(&store, "b", 300);
    store.tag("new").unwrap();
    drop(store);
    Store::open(path).unwrap().gc().unwrap();
    let first = |dir, ending| files(path, dir, ending).remove(0);
    [
        first("storages", "bin"),
        first("storages", "sum"),
        first("generations", "tab"),
        first("generations", "man"),
    ]
}

#[test]
fn damage_that_only_an_old_generation_has_names_its_tags() {
    let (_dir, path) = new_path();
    let [storage, digests, table, manifest] = store_with_an_old_tag(&path);
    assert_eq!(findings(&path), []);
    let cases = [
        ("a chunk", &storage, CHUNK + 7, 25),
        ("the tail", &storage, 2 * CHUNK + 7, 25),
        ("digests", &digests, 3, 25),
        ("a leaf of the table", &table, 4096 + 100, 21),
        ("the manifest", &manifest, 60, 16),
    ];
    for (what, file, at, rule) in cases {
        let found = with_flipped(&path, file, at);
        assert!(!found.is_empty(), "{what}");
        for finding in &found {
            assert_eq!((&finding.path, finding.rule.number()), (file, rule), "{what}: {finding}");
            assert_eq!(finding.tags, ["old", "same"], "{what}: {finding}");
            let line = finding.to_string();
            assert!(line.ends_with("; tags that lose something: old, same"), "{what}: {line}");
        }
        assert!(found.iter().all(|finding| !finding.affects("b0000")), "{what}");
    }
    for file in [&storage, &digests, &table, &manifest] {
        let found = without(&path, file);
        assert!(!found.is_empty(), "{}", file.display());
        for finding in &found {
            assert_eq!(
                (&finding.path, &finding.tags[..]),
                (file, &["old".to_owned(), "same".to_owned()][..])
            );
            assert!(!finding.affects_all);
        }
    }
    // What does not need the file can still be used.
    fs::remove_file(&manifest).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.at("new").unwrap().names().unwrap().len(), 301);
    let missing = "the manifest of a tagged generation is missing";
    assert_refused(store.at("old"), ErrorKind::Corrupt, &[missing, manifest.to_str().unwrap()]);
    store.save("more", &filled(1, 1i64)).unwrap();
    // And the tag that cannot be used can be removed.
    store.write(|txn| ["old", "same"].iter().try_for_each(|tag| txn.untag(tag))).unwrap();
    store.gc().unwrap();
    assert_eq!(findings(&path), []);
    assert!(!storage.exists() && !table.exists());
}

#[test]
fn damaged_table_of_tags_says_which_cannot_be_read() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    for step in 0..200i64 {
        save_tagged(&store, "x", &filled(1, step), &format!("{}{step:03}", "long".repeat(40)));
    }
    drop(store);
    let all: Vec<String> =
        Store::open(&path).unwrap().tags().unwrap().into_iter().map(|tag| tag.name).collect();
    let history = files(&path, "meta", "his").pop().unwrap();
    let whole = fs::read(&history).unwrap();
    let mut named = 0;
    for page in 0..whole.len() / 4096 {
        let found = with_flipped(&path, &history, page * 4096 + 100);
        assert!(
            !found.is_empty() && found.iter().all(|finding| finding.path == history),
            "{page}: {found:#?}"
        );
        let mut bytes = whole.clone();
        bytes[page * 4096 + 100] ^= 1;
        fs::write(&history, bytes).unwrap();
        let Ok(store) = Store::open(&path) else { panic!("page {page}: the newest generation needs no tag") };
        assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [199]);
        let lost: Vec<&String> = all.iter().filter(|tag| store.at(tag.as_str()).is_err()).collect();
        let said = found.iter().map(|finding| finding.tags.len() + unread(&finding.detail)).sum::<usize>();
        assert_eq!(said, lost.len(), "{page}: {found:#?}");
        assert!(found.iter().flat_map(|finding| &finding.tags).all(|tag| lost.contains(&tag)), "{page}");
        named += usize::from(!lost.is_empty());
        for tag in lost {
            assert_eq!(store.at(tag.as_str()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        drop(store);
        fs::write(&history, &whole).unwrap();
    }
    assert!(named > 2, "{named}");
    let found = without(&path, &history);
    assert!(found.iter().all(|finding| finding.path == history) && !found.is_empty(), "{found:#?}");
}

/// Returns the number of tags that a finding says cannot be read.
fn unread(detail: &str) -> usize {
    let Some(before) = detail.strip_suffix(" tags cannot be read") else { return 0 };
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn damaged_rows_name_exactly_the_tags_that_have_them() {
    let (_dir, path, store) = new_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    for (tag, rows) in [("a", CHUNK + CHUNK / 2), ("b", CHUNK), ("c", CHUNK)] {
        store.append("x", &filled(rows, 1u8)).unwrap();
        store.tag(tag).unwrap();
    }
    let storage = files(&path, "storages", "bin").remove(0);
    let tags_at = |at: usize| -> Vec<Vec<String>> {
        with_flipped(&path, &storage, at).into_iter().map(|finding| finding.tags).collect()
    };
    let every = |found: &[Vec<String>]| -> Vec<String> {
        let mut all: Vec<String> = found.iter().flatten().cloned().collect();
        all.sort();
        all.dedup();
        all
    };
    // "a" ends in the middle of the second chunk, and "b" in the middle of the third.
    for is_in_newest in [true, false] {
        assert_eq!(every(&tags_at(5)), ["a", "b", "c"]);
        assert_eq!(every(&tags_at(CHUNK + 5)), ["a", "b", "c"]);
        assert_eq!(every(&tags_at(CHUNK + CHUNK / 2 + 5)), ["b", "c"]);
        assert_eq!(every(&tags_at(2 * CHUNK + 5)), ["b", "c"]);
        assert_eq!(every(&tags_at(2 * CHUNK + CHUNK / 2 + 5)), ["c"]);
        assert_eq!(every(&tags_at(3 * CHUNK + 5)), ["c"]);
        let names = with_flipped(&path, &storage, 5).into_iter().any(|finding| finding.affects("x"));
        assert_eq!(names, is_in_newest);
        if is_in_newest {
            store.remove("x").unwrap();
            store.gc().unwrap();
        }
    }
    // The last rows are cut off.
    let whole = fs::read(&storage).unwrap();
    fs::write(&storage, &whole[..2 * CHUNK + CHUNK / 2]).unwrap();
    let tags: Vec<Vec<String>> = findings(&path).into_iter().map(|finding| finding.tags).collect();
    assert_eq!(every(&tags), ["c"]);
    assert!(store.at("b").unwrap().load("x").is_ok() && store.at("c").unwrap().load("x").is_err());
    fs::write(&storage, &whole).unwrap();
    assert_eq!(findings(&path), []);
}

/// A store may be written while it is verified.
#[test]
fn damage_is_reported_although_other_tags_go_meanwhile() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "kept", &filled(100, 1i64), "stays");
    save_tagged(&store, "old", &filled(100, 2i64), "goes 0");
    (1..10).for_each(|i| store.tag(&format!("goes {i}")).unwrap());
    store.write(|txn| ["kept", "old"].iter().try_for_each(|name| txn.remove(name))).unwrap();
    let storage = files(&path, "storages", "bin").remove(0);
    fs::write(&storage, vec![0; 800]).unwrap();
    let mut gone = 0;
    let verified = StoreOptions::new().verify(&path, |_| {
        store.untag(&format!("goes {gone}")).unwrap();
        store.gc().unwrap();
        gone += 1;
    });
    let found = verified.unwrap().findings;
    assert!(gone > 0);
    assert_eq!((found.len(), &found[0].path), (1, &storage), "{found:#?}");
    let left = (gone..10).map(|i| format!("goes {i}")).chain(["stays".to_owned()]);
    assert_eq!(found[0].tags, left.collect::<Vec<_>>());
}
